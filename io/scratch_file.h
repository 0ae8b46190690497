/* scratch_file.h: files without a name. */
#ifndef HL_SCRATCH_FILE_H
#define HL_SCRATCH_FILE_H

/* A new file in dirfd that is gone when its last descriptor is: O_TMPFILE, else a name that is
 * removed at once. flags: O_DIRECT or 0. */
int hl_scratch_file(int dirfd, int flags);

/* Remove named scratch files whose maker died between making and removing. */
int hl_scratch_sweep(int dirfd);

#endif
