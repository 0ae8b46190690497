/*
 * snapshot.h: what outlives a run: the model's names, the counters, and all state in pieces, wherever it
 * rests. For lib/state.
 *
 * Elements are counted in a tensor as declared, so that no placement, master form or number of ranks shows.
 * Only between hl_snapshot_begin() and hl_snapshot_end(), on the trainer's thread, but for what describes.
 */
#ifndef HL_SNAPSHOT_H
#define HL_SNAPSHOT_H

#include <stdbool.h>

#include "haul/engine.h"

struct hl_snapshot_unit {
    const char *name;
    const struct haul_tensor *tensors; /* (ntensors,) */
    uint32_t ntensors;
    uint64_t nsteps; /* updates so far */
};

struct hl_snapshot_counters {
    uint64_t step;          /* steps asked for, skipped ones too */
    double loss_scale;      /* 0: none */
    uint32_t nsteps_finite; /* since it last changed */
};

/* ---- any time after build ---- */

int hl_snapshot_check(const struct haul_engine *e, const char *call);
uint32_t hl_snapshot_nunits(const struct haul_engine *e);
void hl_snapshot_unit(const struct haul_engine *e, uint32_t unit, struct hl_snapshot_unit *out);
void hl_snapshot_counters(const struct haul_engine *e, struct hl_snapshot_counters *out);
uint32_t hl_snapshot_rank(const struct haul_engine *e, uint32_t *nranks);

/* Where a call begins that all ranks make: all make it, with the same args, and none refuses it (rc: this
 * rank's verdict). */
int hl_snapshot_enter(struct haul_engine *e, const char *call, uint64_t args, int rc);

/* All ranks; nothing with one. */
int hl_snapshot_all_reduce(struct haul_engine *e, enum haul_comm_scalar op, uint64_t *words,
                           uint64_t n);

/* The trainer's own function, if it has given one: so much is saved, or loaded. */
void hl_snapshot_work(const struct haul_engine *e, enum haul_work work, uint64_t done_bytes,
                      uint64_t total_bytes);

/* ---- state ---- */

/* Nothing held, no gradient reduced: else HAUL_E_STATE. */
int hl_snapshot_between_steps(struct haul_engine *e);

/* Between steps. Everything stands still until end. */
int hl_snapshot_begin(struct haul_engine *e);
/* Returns the first error: rc, or that of going on. */
int hl_snapshot_end(struct haul_engine *e, int rc);

/* Elements [first, first + n) of a tensor, all in this rank's shard: master (or the parameter widened) and
 * moments. m and v NULL, as for a frozen tensor: the parameter alone, as it rests, widened (of split masters
 * the upper half); the record is not touched. */
int hl_snapshot_read(struct haul_engine *e, uint32_t unit, uint32_t tensor, uint64_t first,
                     uint64_t n, float *p, float *m, float *v);

/* This rank keeps something of them. */
bool hl_snapshot_wants(const struct haul_engine *e, uint32_t unit, uint32_t tensor, uint64_t first,
                       uint64_t n);
/* Set of them what this rank keeps; m and v NULL: likewise. */
int hl_snapshot_write(struct haul_engine *e, uint32_t unit, uint32_t tensor, uint64_t first,
                      uint64_t n, const float *p, const float *m, const float *v);

/* ---- records that stay in a durable store ----
 *
 * A save: all is on the drive; places; prepare, on all ranks; the manifest; retire, on all ranks (or take back).
 * From prepare to retire nothing may write a record. */

struct hl_store_place; /* store_kept.h */

struct hl_snapshot_store {
    uint64_t id, generation; /* the current one; 0: none yet */
    uint32_t block_bytes, ndirs;
    uint64_t nblocks; /* of all records together: the records space */
};

/* A file, and a word near its beginning, which say that a checkpoint is complete. */
struct hl_snapshot_note {
    char word[17];
    char path[4096];
};

/* In which form a record holds a run of elements. */
enum hl_kept_form {
    HL_KEPT_NOT = 0,
    HL_KEPT_WHOLE,   /* FP32 master, m, v */
    HL_KEPT_SPLIT,   /* lower halves, m, v; the parameter is the upper half */
    HL_KEPT_MOMENTS, /* m, v; the parameter is the master */
};

struct hl_snapshot_kept {
    enum hl_kept_form form;
    uint64_t p, m, v; /* bytes from the beginning of the records space */
};

/* False: this engine's records do not stay; the same on all ranks. */
bool hl_snapshot_store(const struct haul_engine *e, struct hl_snapshot_store *out);
const char *hl_snapshot_store_dir(const struct haul_engine *e, uint32_t i);
bool hl_snapshot_is_kept(const struct haul_engine *e, uint32_t unit);
/* How many of elements [first, first + n) of this rank's shard are kept alike, one after the other. */
uint64_t hl_snapshot_kept(const struct haul_engine *e, uint32_t unit, uint32_t tensor,
                          uint64_t first, uint64_t n, struct hl_snapshot_kept *out);
/* (nblocks,) of the records space. */
int hl_snapshot_places(struct haul_engine *e, struct hl_store_place *out);
int hl_snapshot_prepare(struct haul_engine *e, const struct hl_snapshot_note *note);
int hl_snapshot_retire(struct haul_engine *e);
int hl_snapshot_take_back(struct haul_engine *e);
/* 1, and the note of the current generation; 0: there is none. */
int hl_snapshot_note(struct haul_engine *e, struct hl_snapshot_note *out);
/* 1: the file is there and has the word; 0: not; an error: nobody can say. */
int hl_snapshot_note_holds(const struct hl_snapshot_note *note);
/* The records are those of that generation of that store, and nothing has changed since. */
bool hl_snapshot_is_at(struct haul_engine *e, uint64_t id, uint64_t generation);

/* ---- behind training ---- */

struct hl_snapshot_hooks {
    /* On the trainer's thread in step(), several ranks: whether this rank has written all; and when all ranks
     * have. */
    bool (*written)(void *user);
    void (*all_written)(void *user);
    /* On the trainer's thread, all ranks alike, before updates are queued or the state is reached. NULL: nothing */
    void (*meet)(void *user);
    /* On the trainer's thread; the engine closes: when this returns, nothing reads it any more. */
    void (*abandon)(void *user);
    void *user;
};

/**
 * From here on a thread of the caller's may read the state as it is after all steps so far, while training
 * goes on: a unit's next update waits until the unit has been read.
 *
 * Trainer's thread, between steps, one at a time. End it with hl_snapshot_disarm().
 */
int hl_snapshot_arm(struct haul_engine *e, const struct hl_snapshot_hooks *hooks);

/* What was given as hooks.user; NULL: none is armed. */
void *hl_snapshot_user(const struct haul_engine *e);

/* As hl_snapshot_read(). Waits for the unit's update, and for what is on its way to the drive. */
int hl_snapshot_read_behind(struct haul_engine *e, uint32_t unit, uint32_t tensor, uint64_t first,
                            uint64_t n, float *p, float *m, float *v);
/* Wait until all records that stay are on the drive. */
int hl_snapshot_settled(struct haul_engine *e);
/* The unit's next update may run. */
void hl_snapshot_unit_read(struct haul_engine *e, uint32_t unit);

/* After the last read: 0 when all that was read is of one instant; else what has let updates run before their
 * units were read. */
int hl_snapshot_intact(struct haul_engine *e);

/* Have reads end with HAUL_E_STATE, and let all updates run, but for those of records that stay in a store: they wait
 * for unit_read, or disarm. Any thread. */
void hl_snapshot_stop(struct haul_engine *e);

/* Trainer's thread, when the caller's thread has ended. */
void hl_snapshot_disarm(struct haul_engine *e);

/* ---- counters ---- */

/* After the last write: nsteps (nunits,). The next step is counters->step + 1, from a forward pass. */
void hl_snapshot_set(struct haul_engine *e, const struct hl_snapshot_counters *counters,
                     const uint64_t *nsteps);

#endif
