/*
 * ckpt_root.h: a directory of checkpoints.
 *
 *     ROOT/step-0000000100/     manifest.json, rank-00000.bin ..., user.bin
 *     ROOT/step-0000000100.2/   a later checkpoint of the same step
 *     ROOT/latest               the name of the newest, for people and scripts; never read here
 *
 * The newest is the one with the largest serial, which counts up from save to save, not the one with the
 * largest step: a run may have gone back.
 */
#ifndef HL_CKPT_ROOT_H
#define HL_CKPT_ROOT_H

#include <stddef.h>
#include <stdint.h>

#define HL_CKPT_NAME_BYTES 48
#define HL_CKPT_LATEST     "latest"

struct hl_ckpt_entry {
    char name[HL_CKPT_NAME_BYTES];
    int rc;        /* of reading its manifest: 0; -ENOENT: not complete; else damaged */
    char why[512]; /* rc < 0 */
    uint64_t id, serial, step;
};

/* What has a checkpoint's name: the complete ones first, the newest before the others; end it with
 * hl_sys_free(). */
int hl_ckpt_list(int rootfd, const char *root, struct hl_ckpt_entry **out, uint32_t *n);

/* One checkpoint's directory from a path as users give it: that of a checkpoint, or of a root, whose newest
 * complete one is meant. -ENOENT when there is none. */
int hl_ckpt_choose(const char *path, char *out, size_t len);

/* Whether the path is one checkpoint: it has a manifest. */
int hl_ckpt_is_one(const char *path);

/* A directory for a new checkpoint of that step, which none has been; also makes it. name: [out]. */
int hl_ckpt_make_dir(int rootfd, const char *root, uint64_t step, char name[HL_CKPT_NAME_BYTES]);

/* The manifest first: from then on it is not complete. */
int hl_ckpt_remove(int rootfd, const char *name);

/* Remove what a killed save has left. */
int hl_ckpt_clean(int rootfd, const char *root);

/* Keep the newest keep_last (0: all) and those whose step is a multiple of keep_every (0: none); what cannot
 * be removed is told in the log. */
int hl_ckpt_retain(int rootfd, const char *root, uint32_t keep_last, uint64_t keep_every);

#endif
