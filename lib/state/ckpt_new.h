/*
 * ckpt_new.h: a new checkpoint in a root, on the rank or the program that owns the root meanwhile.
 *
 *   hl_ckpt_new_open     lock the root, clear what a killed save left, and what is there beyond what is kept;
 *                        make the directory
 *   ...                  data files are written into it
 *   hl_ckpt_new_commit   the manifest, then `latest`, then older ones go
 *   hl_ckpt_new_close    without a commit before it nothing is left
 */
#ifndef HL_CKPT_NEW_H
#define HL_CKPT_NEW_H

#include "ckpt_file.h"
#include "ckpt_root.h"

struct hl_ckpt_new {
    char *root;
    int rootfd, dirfd;
    char name[HL_CKPT_NAME_BYTES];
    uint64_t id, serial;
    int made, complete;
};

/* The caller's bytes, and which checkpoints stay. */
struct hl_ckpt_rest {
    const void *user;
    uint64_t user_bytes;
    uint32_t keep_last;
    uint64_t keep_every;
};

int hl_ckpt_new_open(const char *root, uint64_t step, const struct hl_ckpt_rest *rest,
                     struct hl_ckpt_new **out);

/* m: all but id, serial and user; its files are on the drive. */
int hl_ckpt_new_commit(struct hl_ckpt_new *n, struct hl_ckpt_manifest *m,
                       const struct hl_ckpt_rest *rest);

/* The last error's text stays. NULL is fine. */
void hl_ckpt_new_close(struct hl_ckpt_new *n);

/* All of it by one process: files for m->nranks ranks from a source. name: [out], may be NULL. */
int hl_ckpt_new_write(const char *root, struct hl_ckpt_manifest *m,
                      const struct hl_ckpt_source *source, const struct hl_ckpt_rest *rest,
                      char name[HL_CKPT_NAME_BYTES]);

#endif
