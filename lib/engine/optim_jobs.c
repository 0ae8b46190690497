/*
 * optim_jobs.c: what the optim thread does, job by job, in the order the trainer's calls made them.
 *
 * Hot path: nothing here allocates or logs. It may wait for device work: nobody waits for this thread
 * but acquire, through the unit's update state, and step().
 */
#include <math.h>

#include "arith.h"
#include "clock.h"
#include "engine_state.h"

/* ---- gradients that have landed ---- */

static int land_on_host(struct haul_engine *e, struct haul_unit *u, const struct hl_job *job)
{
    struct hl_landing *slot = job->landing < 0 ? NULL : &e->landing[job->landing];
    int rc = e->ops->event_sync(e->dev, slot ? slot->landed : u->landed);
    double sum = 0;
    int finite = 1;

    for (unsigned s = 0; rc == 0 && s < HL_NTRAIN; s++) {
        uint64_t n = u->layout.span[s].shard_elems;
        double part = 0;
        int ok = 1;
        if (n == 0)
            continue;
        if (slot)
            rc = haul_norm_accumulate((float *)u->rest_grads[s],
                                      slot->mem + hl_travel_span_offset(u, s),
                                      hl_travel_dtype(e, s), n, job->first, e->opts.nthreads,
                                      job->last ? &part : NULL, job->last ? &ok : NULL);
        else
            rc = haul_norm_sumsq(u->rest_grads[s], hl_rest_dtype(e, s), n, e->opts.nthreads, &part,
                                 &ok);
        sum += part;
        finite &= ok;
    }
    u->sumsq = sum;
    u->finite = finite;
    if (slot)
        atomic_store(&slot->busy, 0);
    return rc;
}

/* The device's block sums have come to the host: add them in order. */
static int land_on_device(struct haul_engine *e, struct haul_unit *u, const struct hl_job *job)
{
    int rc = e->ops->event_sync(e->dev, u->landed);

    u->sumsq = 0;
    u->finite = 1;
    if (rc == 0 && job->last)
        hl_arith_sum_partials(u->partials_host,
                              hl_norm_blocks(u, HL_TRAIN16) + hl_norm_blocks(u, HL_TRAIN32),
                              &u->sumsq, &u->finite);
    return rc;
}

static int run_land(struct haul_engine *e, const struct hl_job *job)
{
    return hl_engine_records_on_device(e) ? land_on_device(e, job->unit, job)
                                          : land_on_host(e, job->unit, job);
}

/* Fewer reduces than declared: the sums were not taken on arrival. */
static int run_norm(struct haul_engine *e, const struct hl_job *job)
{
    struct haul_unit *u = job->unit;
    struct hl_job last = {.kind = HL_JOB_LAND, .unit = u, .landing = -1, .last = 1};

    if (!hl_engine_records_on_device(e))
        return land_on_host(e, u, &last);
    int rc = hl_unit_queue_norm(u);
    return rc < 0 ? rc : land_on_device(e, u, &last);
}

/* ---- updates ---- */

static struct haul_optim_arrays run_arrays(const struct haul_unit *u, const struct hl_run *run,
                                           char *param)
{
    const struct haul_engine *e = u->engine;
    const struct hl_record *r = &u->record[run->span];
    uint64_t i = run->first_elem;
    bool split = run->span == HL_TRAIN16 && e->opts.master == HAUL_MASTER_SPLIT;
    struct haul_optim_arrays a = {
        .struct_size = sizeof a,
        .n = run->elems,
        .grad_dtype = hl_rest_dtype(e, run->span),
        .param_dtype = run->span == HL_TRAIN16 ? e->dtype16 : HAUL_DTYPE_NONE,
        .master_form = split ? HAUL_MASTER_SPLIT : HAUL_MASTER_FP32,
        .m = r->m + i,
        .v = r->v + i,
        .first = i,
    };

    a.grad = u->rest_grads[run->span] + i * hl_plan_dtype_bytes(a.grad_dtype);
    a.master = (char *)r->master + i * (split ? 2 : 4);
    a.param = run->span == HL_TRAIN16 ? param + i * 2 : NULL;
    return a;
}

static struct haul_optim_step run_step(const struct haul_unit *u, const struct hl_run *run)
{
    const struct haul_group_step *g = &u->engine->group_step[run->group];

    return (struct haul_optim_step){.struct_size = sizeof(struct haul_optim_step),
                                    .step = u->nsteps,
                                    .lr = g->lr,
                                    .weight_decay = g->weight_decay,
                                    .grad_scale = u->engine->update_scale};
}

/* gradient read; master, m, v read and written; parameter written (split: read too) */
static uint64_t run_bytes(const struct haul_engine *e, const struct hl_run *run)
{
    uint64_t each = hl_plan_dtype_bytes(hl_rest_dtype(e, run->span)) + 16;

    if (run->span == HL_TRAIN32)
        return run->elems * (each + 8);
    return run->elems * (each + (e->opts.master == HAUL_MASTER_SPLIT ? 8 : 10));
}

static int update_on_device(struct haul_engine *e, struct haul_unit *u)
{
    int rc = e->ops->stream_wait(e->dev, e->update_stream, u->released);

    for (uint32_t i = 0; rc == 0 && i < u->nruns; i++) {
        struct hl_device_optim args = {.opt = e->opts.optim,
                                       .arrays =
                                           run_arrays(u, &u->runs[i], u->rest_params[HL_TRAIN16]),
                                       .step = run_step(u, &u->runs[i])};
        rc = e->ops->optim(e->dev, &args, e->update_stream);
    }
    if (rc == 0)
        rc = e->ops->event_record(e->dev, u->published, e->update_stream);
    if (rc == 0)
        hl_unit_set_update(u, HL_UPDATE_IDLE);
    return rc;
}

/* No copy may still read what the update is about to write: not one being submitted, not one queued. */
static int wait_for_readers(struct haul_engine *e, struct haul_unit *u)
{
    if (!hl_engine_params_on_host(e))
        return e->ops->event_sync(e->dev, u->published);
    for (;;) {
        uint32_t seen = hl_gate_look(&e->gate);
        hl_spin_lock(&e->lock);
        int f = u->last_frame;
        bool filling =
            f >= 0 && e->frame[f].unit == u->index && e->frame[f].pinned && !e->wframe[f].ready;
        hl_spin_unlock(&e->lock);
        if (f < 0)
            return 0;
        if (!filling)
            return e->ops->event_sync(e->dev, e->wframe[f].loaded);
        if (atomic_load(&e->stop) || atomic_load(&e->failed))
            return 0;
        hl_gate_sleep(&e->gate, seen);
    }
}

/* A slot whose last copy has left it; -1 when the engine ends meanwhile. */
static int take_publish_slot(struct haul_engine *e, int *out)
{
    *out = -1;
    for (;;) {
        uint32_t seen = hl_gate_look(&e->gate);
        if (atomic_load(&e->stop) || atomic_load(&e->failed))
            return 0;
        for (uint32_t i = 0; i < e->nslots; i++)
            if (!atomic_load(&e->slot[i].busy)) {
                atomic_store(&e->slot[i].busy, 1);
                *out = (int)i;
                return e->ops->event_sync(e->dev, e->slot[i].copied);
            }
        hl_gate_sleep(&e->gate, seen);
    }
}

static int update_on_host(struct haul_engine *e, struct haul_unit *u)
{
    bool publish = e->opts.offload == HAUL_OFFLOAD_OPTIMIZER;
    char *param = publish ? (char *)u->hi : u->rest_params[HL_TRAIN16];
    int slot = -1, rc = wait_for_readers(e, u);

    if (rc == 0 && publish && e->nslots) {
        rc = take_publish_slot(e, &slot);
        if (slot < 0)
            return rc;
        param = e->slot[slot].mem;
    }
    for (uint32_t i = 0; rc == 0 && i < u->nruns; i++) {
        struct haul_optim_arrays a = run_arrays(u, &u->runs[i], param);
        struct haul_optim_step s = run_step(u, &u->runs[i]);
        rc = haul_optim_update(&e->opts.optim, &a, &s, e->opts.nthreads);
    }
    if (rc < 0)
        return rc;
    u->publish_slot = slot;
    hl_unit_set_update(u, publish ? HL_UPDATE_UPDATED : HL_UPDATE_IDLE);
    return 0;
}

static int run_update(struct haul_engine *e, struct haul_unit *u)
{
    uint64_t begin = hl_clock_ns(), bytes = 0;

    hl_unit_set_update(u, HL_UPDATE_RUNNING);
    int rc = hl_engine_records_on_device(e) ? update_on_device(e, u) : update_on_host(e, u);
    for (uint32_t i = 0; i < u->nruns; i++)
        bytes += run_bytes(e, &u->runs[i]);
    atomic_fetch_add(&e->optim_bytes, bytes);
    atomic_fetch_add(&e->optim_busy_ns, hl_clock_ns() - begin);
    return rc;
}

int hl_job_run(struct haul_engine *e, const struct hl_job *job)
{
    switch (job->kind) {
    case HL_JOB_LAND:
        return run_land(e, job);
    case HL_JOB_NORM:
        return run_norm(e, job);
    case HL_JOB_UPDATE:
        return run_update(e, job->unit);
    }
    return 0;
}
