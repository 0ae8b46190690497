/*
 * ckpt_saving.h: one save, on one rank: what the ranks do together before and after their files are written.
 *
 *   hl_ckpt_saving_begin   rank 0 makes the directory and says its name to all
 *   ...                    every rank writes its own file into dirfd: m.files[rank]
 *   hl_ckpt_saving_share   every rank knows all files
 *   hl_ckpt_saving_commit  rank 0 writes the manifest; others do nothing
 *   hl_ckpt_saving_settle  all ranks know whether it is complete: of records that stay in stores, the generation
 *                          before goes; or this one
 *   hl_ckpt_saving_end
 *
 *   ckpt_behind.h has the files written behind training.
 */
#ifndef HL_CKPT_SAVING_H
#define HL_CKPT_SAVING_H

#include <stdbool.h>

#include "ckpt_new.h"
#include "haul/checkpoint.h"

struct hl_ckpt_saving {
    struct haul_engine *e;
    char *root;
    void *user; /* a copy */
    struct hl_ckpt_rest rest;
    uint32_t rank, nranks;
    struct hl_ckpt_new *place; /* rank 0's */
    int dirfd;
    char name[HL_CKPT_NAME_BYTES];
    struct hl_ckpt_manifest m;
    bool keeps; /* records stay in the ranks' stores: the same on all */
    struct hl_ckpt_keeper keeper;
    char real_root[4096]; /* keeps */
    bool prepared; /* this rank's store has the checkpoint's generation, and the one before */
};

/* Collective. Ends itself after an error. */
int hl_ckpt_saving_begin(struct haul_engine *e, const char *root,
                         const struct haul_checkpoint_save_opts *opts, struct hl_ckpt_saving *out);

/* This rank's file, from a source, and the directory, flushed; then the store's generation. Any thread. */
int hl_ckpt_saving_write(struct hl_ckpt_saving *s, const struct hl_ckpt_source *source);

/* Collective, trainer's thread. */
int hl_ckpt_saving_share(struct hl_ckpt_saving *s);

/* Any thread. */
int hl_ckpt_saving_commit(struct hl_ckpt_saving *s);

/* Collective; rc: what all ranks have agreed on; returned, or the first error here. */
int hl_ckpt_saving_settle(struct hl_ckpt_saving *s, int rc);

/* The last error's text stays. */
void hl_ckpt_saving_end(struct hl_ckpt_saving *s);

#endif
