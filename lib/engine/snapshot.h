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
 * moments. m and v of a frozen tensor are not touched and may be NULL. */
int hl_snapshot_read(struct haul_engine *e, uint32_t unit, uint32_t tensor, uint64_t first,
                     uint64_t n, float *p, float *m, float *v);

/* This rank keeps something of them. */
bool hl_snapshot_wants(const struct haul_engine *e, uint32_t unit, uint32_t tensor, uint64_t first,
                       uint64_t n);
/* Set of them what this rank keeps. */
int hl_snapshot_write(struct haul_engine *e, uint32_t unit, uint32_t tensor, uint64_t first,
                      uint64_t n, const float *p, const float *m, const float *v);

/* ---- behind training ---- */

struct hl_snapshot_hooks {
    /* On the trainer's thread in step(), several ranks: whether this rank has written all; and when all ranks
     * have. */
    bool (*written)(void *user);
    void (*all_written)(void *user);
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
/* The unit's next update may run. */
void hl_snapshot_unit_read(struct haul_engine *e, uint32_t unit);

/* After the last read: 0 when all that was read is of one instant; else what has let updates run before their
 * units were read. */
int hl_snapshot_intact(struct haul_engine *e);

/* Have reads end with HAUL_E_STATE, and let all updates run. Any thread. */
void hl_snapshot_stop(struct haul_engine *e);

/* Trainer's thread, when the caller's thread has ended. */
void hl_snapshot_disarm(struct haul_engine *e);

/* ---- counters ---- */

/* After the last write: nsteps (nunits,). The next step is counters->step + 1, from a forward pass. */
void hl_snapshot_set(struct haul_engine *e, const struct hl_snapshot_counters *counters,
                     const uint64_t *nsteps);

#endif
