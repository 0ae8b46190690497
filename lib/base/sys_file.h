/*
 * sys_file.h: the part of sys.h that deals with files and file systems.
 *
 * Same pattern: 0 (or a result) or -errno with a text, and every call can be made to fail in test
 * builds. Paths are relative to dirfd as with the *at calls.
 */
#ifndef HL_SYS_FILE_H
#define HL_SYS_FILE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* One transfer, as the kernel did it: a count (maybe short, 0 at the end of the file) or -errno.
 * Leaves no text and retries nothing: for callers that must see every result. */
ssize_t hl_sys_pread(int fd, void *buf, size_t n, off_t off);
ssize_t hl_sys_pwrite(int fd, const void *buf, size_t n, off_t off);

int hl_sys_fsync(int fd);
int hl_sys_fdatasync(int fd);
/* Start writing back [off, off + n); wait = 1: and wait until it is on the device. */
int hl_sys_write_behind(int fd, off_t off, off_t n, int wait);
/* Drop [off, off + n) from the page cache where it is clean. */
int hl_sys_drop_cache(int fd, off_t off, off_t n);

/* Allocate [off, off + n) and extend the file. -EOPNOTSUPP where the file system cannot. */
int hl_sys_fallocate(int fd, off_t off, off_t n);
/* Share [from_off, from_off + n) of one file with another, which it extends: blocks are copied when one of them is
 * written. -EOPNOTSUPP, -EXDEV or -EINVAL where that cannot be. */
int hl_sys_share_range(int from, off_t from_off, off_t n, int to, off_t to_off);
int hl_sys_rename(int dirfd, const char *from, const char *to);
int hl_sys_unlink(int dirfd, const char *path);
/* Of an empty directory. */
int hl_sys_rmdir(int dirfd, const char *path);
/* The name of an existing file or directory from the root on, without links. -ENAMETOOLONG: not of len bytes. */
int hl_sys_real_path(const char *path, char *out, size_t len);
/* An existing directory is success. */
int hl_sys_mkdir(const char *path, mode_t mode);
/* flock: exclusive or shared, not waiting; -EWOULDBLOCK when another holds it. */
int hl_sys_lock_file(int fd, int exclusive);
/* Change the flags of an open file (O_DIRECT). */
int hl_sys_set_flags(int fd, int clear, int set);

struct hl_fs {
    int64_t magic;       /* statfs f_type */
    const char *name;    /* "ext4", "xfs", ...; "unknown" */
    uint64_t free_bytes; /* for this user */
};
int hl_sys_statfs(int fd, struct hl_fs *out);

/* What direct I/O on this file asks for. 1: the kernel says (both 0: not supported); 0: it does not. */
int hl_sys_dio_align(int fd, uint32_t *mem_bytes, uint32_t *offset_bytes);

/* fn for each name in the directory, "." and ".." left out; a negative result of fn ends the walk. */
typedef int (*hl_sys_name_fn)(void *user, const char *name);
int hl_sys_names(int dirfd, hl_sys_name_fn fn, void *user);

#endif
