/* snapshot.c: all state in pieces, for a checkpoint. Everything is quiescent meanwhile. */
#include "snapshot.h"

#include <string.h>

#include "access.h"

int hl_snapshot_check(const struct haul_engine *e, const char *call)
{
    int rc = hl_need(call, "engine", e);

    if (rc < 0 || e->built)
        return rc;
    return hl_fail(HAUL_E_STATE, "%s: the engine is not built", call);
}

uint32_t hl_snapshot_nunits(const struct haul_engine *e)
{
    return e->nunits;
}

void hl_snapshot_unit(const struct haul_engine *e, uint32_t unit, struct hl_snapshot_unit *out)
{
    const struct haul_unit *u = e->units[unit];

    *out = (struct hl_snapshot_unit){u->name, u->tensors, u->ntensors, u->nsteps};
}

void hl_snapshot_counters(const struct haul_engine *e, struct hl_snapshot_counters *out)
{
    *out = (struct hl_snapshot_counters){.step = e->nsteps};
    if (e->opts.loss_scale != 0) {
        out->loss_scale = e->loss_scale;
        out->nsteps_finite = e->nsteps_finite;
    }
}

uint32_t hl_snapshot_rank(const struct haul_engine *e, uint32_t *nranks)
{
    *nranks = e->nranks;
    return e->rank;
}

int hl_snapshot_enter(struct haul_engine *e, const char *call, uint64_t args, int rc)
{
    return hl_ranks_enter(e, call, args, rc);
}

int hl_snapshot_all_reduce(struct haul_engine *e, enum haul_comm_scalar op, uint64_t *words,
                           uint64_t n)
{
    return e->comm ? hl_comm_all_reduce(e->comm, e->comm_counts, op, words, n) : 0;
}

void hl_snapshot_work(const struct haul_engine *e, enum haul_work work, uint64_t done_bytes,
                      uint64_t total_bytes)
{
    if (e->opts.work)
        e->opts.work(e->opts.work_user, work, done_bytes, total_bytes);
}

/* ---- state ---- */

int hl_snapshot_end(struct haul_engine *e, int rc)
{
    int rc_resume = hl_engine_resume(e, e->snapshot_pos);

    return rc < 0 ? rc : rc_resume;
}

int hl_snapshot_between_steps(struct haul_engine *e)
{
    int rc = hl_engine_check(e);

    if (rc < 0)
        return rc;
    for (uint32_t i = 0; i < e->nunits; i++) {
        const struct haul_unit *u = e->units[i];
        if (u->held || u->grad_buffer >= 0 || u->nreduced)
            return hl_fail(HAUL_E_STATE,
                           "checkpoint: unit %s is held or has a gradient; save and load between "
                           "steps",
                           u->name);
    }
    return 0;
}

int hl_snapshot_begin(struct haul_engine *e)
{
    int rc = hl_snapshot_between_steps(e);

    if (rc < 0)
        return rc;
    e->snapshot_pos = e->pos;
    rc = hl_engine_quiesce(e);
    return rc < 0 ? hl_snapshot_end(e, rc) : 0;
}

int hl_snapshot_read(struct haul_engine *e, uint32_t unit, uint32_t tensor, uint64_t first,
                     uint64_t n, float *p, float *m, float *v)
{
    int rc = 0;

    for (uint64_t done = 0; rc == 0 && done < n;) {
        struct hl_piece pc = hl_piece_of(e->units[unit], tensor, first + done, n - done);
        rc = m ? hl_piece_read(&pc, p + done) : hl_piece_read_rest(&pc, false, p + done);
        if (rc == 0 && m)
            rc = hl_piece_read_moments(&pc, m + done, v + done);
        done += pc.n;
    }
    return rc;
}

bool hl_snapshot_wants(const struct haul_engine *e, uint32_t unit, uint32_t tensor, uint64_t first,
                       uint64_t n)
{
    bool wants = false;

    for (uint64_t done = 0; !wants && done < n;) {
        struct hl_piece pc = hl_piece_of(e->units[unit], tensor, first + done, n - done);
        wants = pc.own || pc.rest;
        done += pc.n;
    }
    return wants;
}

int hl_snapshot_write(struct haul_engine *e, uint32_t unit, uint32_t tensor, uint64_t first,
                      uint64_t n, const float *p, const float *m, const float *v)
{
    struct hl_scratch s = hl_scratch_of(e);
    int rc = 0;

    e->overwrites |= m != NULL;
    for (uint64_t done = 0; rc == 0 && done < n;) {
        struct hl_piece pc = hl_piece_of(e->units[unit], tensor, first + done, n - done);
        memcpy(s.value, p + done, pc.n * sizeof *p);
        rc = m ? hl_piece_write(&pc, s.value) : hl_piece_write_rest(&pc, s.value);
        if (rc == 0 && m && pc.own) {
            memcpy(s.m, m + done, pc.n * sizeof *m);
            memcpy(s.v, v + done, pc.n * sizeof *v);
            rc = hl_piece_write_moments(&pc, s.m, s.v);
        }
        done += pc.n;
    }
    return rc;
}

void hl_snapshot_set(struct haul_engine *e, const struct hl_snapshot_counters *counters,
                     const uint64_t *nsteps)
{
    for (uint32_t i = 0; i < e->nunits; i++) {
        e->units[i]->nsteps = nsteps[i];
        e->units[i]->apart = false;
    }
    e->nsteps = counters->step;
    if (e->opts.loss_scale != 0 && counters->loss_scale != 0) {
        e->loss_scale = counters->loss_scale;
        e->nsteps_finite = counters->nsteps_finite;
    }
    e->snapshot_pos = 0;
    hl_report_rebase(e);
}
