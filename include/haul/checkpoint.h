/*
 * haul/checkpoint.h: the state of an engine on disk, so that a run goes on after its process has ended.
 *
 *     struct haul_checkpoint_save_opts opts;
 *     haul_checkpoint_save_opts_init(&opts);
 *     opts.user = &counters, opts.user_bytes = sizeof counters;    the trainer's own
 *     opts.keep_last = 2;
 *     haul_checkpoint_save(engine, "/data/run7", &opts);           /data/run7/step-0000000100
 *
 *     haul_checkpoint_load(engine, "/data/run7", NULL, &info);     the newest complete one
 *
 * A checkpoint is complete or invisible: its manifest is written last. A run that was resumed has the same
 * bits as one that never stopped. It may have another number of ranks, another stage, other tiers and
 * another form of the master weights than the run that saved.
 *
 * Where the engine keeps records on nvme (haul_engine_opts.nvme_durable), the newest checkpoint refers to
 * them instead of holding them; one that stays beside a newer one gets a copy.
 *
 * A directory of checkpoints is called a root; docs/checkpoint-format.md describes every byte in it. All
 * ranks make the same calls, and see the same directory.
 */
#ifndef HAUL_CHECKPOINT_H
#define HAUL_CHECKPOINT_H

#include "haul/engine.h"

#ifdef __cplusplus
extern "C" {
#endif

#define HAUL_CHECKPOINT_MAX_USER_BYTES (UINT64_C(1) << 30)

struct haul_checkpoint_save_opts {
    size_t struct_size;
    const void *user;    /* (user_bytes,) the caller's own: counters, random state, position in the
                            data. Rank 0's is kept. May be NULL */
    uint64_t user_bytes; /* at most HAUL_CHECKPOINT_MAX_USER_BYTES */
    uint32_t keep_last;  /* so many stay, the newest; 0 (default): all */
    uint64_t keep_every; /* of the older ones, those whose step is a multiple stay; 0 (default): none */
    int background;      /* 1: return once the state is fixed, and write it behind training; 0 (default):
                            return when the checkpoint is complete */
};

HAUL_API
void haul_checkpoint_save_opts_init(struct haul_checkpoint_save_opts *opts);

/**
 * Save all state as a new checkpoint in a root.
 *
 * Old checkpoints are removed only when the new one is complete, so that the disk holds at most one more
 * than are kept. Memory does not grow with the model: about 25 MiB, and in the background 30 MiB and one slot
 * of paged records. Where records stay on nvme, a checkpoint that will not be the last one kept is copied once it is
 * complete, in the background behind training.
 *
 * In the background a unit's next update waits until the unit has been read. Reading is up to 24 MiB ahead
 * of the drive; when a drive is further behind, the step after waits for it. Of records that stay on nvme the
 * next update waits until the checkpoint is complete. The checkpoint is complete
 * some time later: with one rank by itself, with several when a step (or haul_checkpoint_wait()) finds that
 * all ranks have written. The next save waits for the one before and returns its error, and nothing is saved
 * then. haul_engine_close() gives up one that is not complete.
 *
 * @param root  [in] a directory; made when missing (not its parents)
 * @param opts  [in] NULL for defaults; read here, not kept
 *
 * Blocks     yes: waits for all updates, writes and flushes the state; in the background: while the
 *            directory is made
 * Errors     0, or
 *            HAUL_E_STATE      not built, a unit is held, or gradients were reduced since the last step
 *            -ENOSPC, -EDQUOT  the disk is full; checkpoints before this one are intact, nothing of this
 *                              one is left, and training can go on
 *            -EBUSY            another process saves in this root
 *            -EINVAL           an option; -errno of the file system; the engine's error; an error of
 *                              another rank (text: which rank, and what)
 */
HAUL_API HAUL_MUST_USE
int haul_checkpoint_save(struct haul_engine *engine, const char *root,
                         const struct haul_checkpoint_save_opts *opts);

/**
 * Wait for the save in the background, if there is one.
 *
 * Blocks     until the checkpoint is complete, on all ranks
 * Errors     0, or those of haul_checkpoint_save() that came up meanwhile; each is returned once
 */
HAUL_API HAUL_MUST_USE
int haul_checkpoint_wait(struct haul_engine *engine);

struct haul_checkpoint_load_opts {
    size_t struct_size;
    void *user; /* [out] (user_capacity,) what save was given; may be NULL */
    uint64_t user_capacity;
};

HAUL_API
void haul_checkpoint_load_opts_init(struct haul_checkpoint_load_opts *opts);

/* What was loaded. */
struct haul_checkpoint_info {
    size_t struct_size;  /* 0 is read as this version's size */
    uint64_t step;       /* haul_report.step of the last step before it was saved */
    uint64_t user_bytes; /* of what save was given */
    uint32_t nranks;     /* that saved it */
    uint32_t nskipped;   /* newer ones in the root that were not complete, or damaged */
    char path[1024];     /* cut when longer */
    char skipped[2048];  /* one line each: which, and why; cut when longer */
};

/**
 * Give a built engine the state of a checkpoint. Before it: the same units and tensors as when it was
 * saved. No fill is needed.
 *
 * Every block is checked before it is used. In a root, a checkpoint that is not complete or damaged is
 * passed over with a warning in the log, and the next older one is loaded.
 *
 * @param path  [in]  a root: the newest complete checkpoint; or one checkpoint
 * @param opts  [in]  NULL for defaults
 * @param info  [out] may be NULL
 *
 * Blocks     yes: waits for all updates, reads the state
 * Errors     0, or
 *            -ENOENT          no complete checkpoint there (text: what was passed over, and why)
 *            HAUL_E_CONFIG    of another model, or of a later version (text: unit, tensor, what differs);
 *                             the engine is as before
 *            HAUL_E_CHECKSUM, HAUL_E_FORMAT, HAUL_E_SHORT_IO  one checkpoint was asked for, and it is
 *                             damaged (text: file). When the text says so, the engine has part of it:
 *                             load another, or fill
 *            -ENOBUFS         user_capacity is less than what was saved (text: both)
 *            HAUL_E_STATE, -errno, the engine's error, an error of another rank
 */
HAUL_API HAUL_MUST_USE
int haul_checkpoint_load(struct haul_engine *engine, const char *path,
                         const struct haul_checkpoint_load_opts *opts,
                         struct haul_checkpoint_info *info);

#ifdef __cplusplus
}
#endif
#endif
