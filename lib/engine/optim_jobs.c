/*
 * optim_jobs.c: what the optim thread does, job by job, in the order the trainer's calls made them.
 *
 * Hot path: nothing here allocates or logs. It may wait for device work: nobody waits for this thread
 * but acquire, through the unit's update state, and step().
 */
#include <string.h>

#include "arith.h"
#include "clock.h"
#include "engine_state.h"

/* ---- gradients that have landed ---- */

/* Several ranks: the pump has queued the reduce, and so recorded the event to wait for. */
static int wait_for_turn(struct haul_engine *e, const struct haul_unit *u, const struct hl_job *job)
{
    while (e->comm && atomic_load(&u->nreduces_submitted) < job->nreduces) {
        uint32_t seen = hl_gate_look(&e->gate);
        int rc = hl_engine_check(e);
        if (rc < 0)
            return rc;
        if (atomic_load(&e->stop))
            return HAUL_E_STATE;
        if (atomic_load(&u->nreduces_submitted) < job->nreduces)
            hl_gate_sleep(&e->gate, seen);
    }
    return 0;
}

static int wait_for_landing(struct haul_engine *e, struct haul_unit *u, const struct hl_job *job)
{
    struct hl_landing *slot = job->landing < 0 ? NULL : &e->landing[job->landing];
    int rc = wait_for_turn(e, u, job);

    if (rc == 0)
        rc = e->ops->event_sync(e->dev, slot ? slot->landed : u->landed);
    return rc < 0 || !e->comm ? rc : hl_comm_check(e->comm);
}

/* Elements [from, from + n) of what this rank owns; sum and finite may be NULL. */
static int accumulate(struct haul_engine *e, struct haul_unit *u, unsigned s, const char *landed,
                      struct hl_range r, int first, double *sum, int *finite)
{
    enum haul_dtype dtype = hl_travel_dtype(e, s);

    if (r.elems == 0)
        return 0;
    return haul_norm_accumulate((float *)u->rest_grads[s] + r.first,
                                landed + r.first * hl_plan_dtype_bytes(dtype), dtype, r.elems,
                                first, e->opts.nthreads, sum, finite);
}

/* All that has landed is added; the sum of squares is that of this rank's shard. */
static int accumulate_span(struct haul_engine *e, struct haul_unit *u, unsigned s,
                           const char *landed, const struct hl_job *job, double *sum, int *finite)
{
    uint64_t before = u->shard[s].first - u->own[s].first, n = u->shard[s].elems;
    struct hl_range head = {0, before}, mid = {before, n}, tail = {before + n, 0};
    int rc;

    tail.elems = u->own[s].elems - tail.first;
    if ((rc = accumulate(e, u, s, landed, head, job->first, NULL, NULL)) < 0 ||
        (rc = accumulate(e, u, s, landed, mid, job->first, job->last ? sum : NULL,
                         job->last ? finite : NULL)) < 0)
        return rc;
    return accumulate(e, u, s, landed, tail, job->first, NULL, NULL);
}

static int land_on_host(struct haul_engine *e, struct haul_unit *u, const struct hl_job *job)
{
    struct hl_landing *slot = job->landing < 0 ? NULL : &e->landing[job->landing];
    int rc = wait_for_landing(e, u, job);
    double sum = 0;
    int finite = 1;

    for (unsigned s = 0; rc == 0 && s < HL_NTRAIN; s++) {
        double part = 0;
        int ok = 1;
        if (u->shard[s].elems == 0)
            continue;
        if (slot)
            rc = accumulate_span(e, u, s, slot->mem + hl_land_span_offset(u, s), job, &part, &ok);
        else
            rc = haul_norm_sumsq(hl_shard_grads(u, s), hl_rest_dtype(e, s), u->shard[s].elems,
                                 e->opts.nthreads, &part, &ok);
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
    int rc = wait_for_landing(e, u, job);

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
    return hl_unit_records_on_device(job->unit) ? land_on_device(e, job->unit, job)
                                                : land_on_host(e, job->unit, job);
}

/* Fewer reduces than declared: the sums were not taken on arrival. */
static int run_norm(struct haul_engine *e, const struct hl_job *job)
{
    struct haul_unit *u = job->unit;
    struct hl_job last = {.kind = HL_JOB_LAND,
                          .unit = u,
                          .landing = -1,
                          .last = 1,
                          .nreduces = u->nreduces_submitted};

    if (!hl_unit_records_on_device(u))
        return land_on_host(e, u, &last);
    int rc = hl_unit_queue_norm(u);
    return rc < 0 ? rc : land_on_device(e, u, &last);
}

/* ---- updates ---- */

/* Where an update finds a piece of a unit's record, and the unit's parameters. */
struct piece {
    uint64_t first[HL_NTRAIN], n[HL_NTRAIN]; /* elements of what this rank owns */
    struct hl_record record[HL_NTRAIN];      /* of element first */
    char *param[HL_NTRAIN]; /* of the first element owned; NULL: not published here */
};

static void add_params(struct piece *pc, const struct haul_unit *u, char *slot)
{
    for (unsigned s = 0; s < HL_NTRAIN; s++)
        pc->param[s] = slot ? slot + hl_rest_span_offset(u, s) +
                                  (u->own[s].first - u->rest[s].first) * hl_span_param_bytes(s)
                            : hl_own_params(u, s);
}

static struct piece whole_record(const struct haul_unit *u)
{
    struct piece pc = {{0}, {0}, {{0}}, {0}};

    for (unsigned s = 0; s < HL_NTRAIN; s++) {
        pc.n[s] = u->own[s].elems;
        pc.record[s] = u->record[s];
    }
    return pc;
}

static struct piece chunk_record(const struct haul_unit *u, uint32_t chunk, char *mem)
{
    struct piece pc = {{0}, {0}, {{0}}, {0}};
    struct hl_chunk_part part[HL_NTRAIN];

    hl_chunk_parts(&u->ck, chunk, part);
    for (unsigned s = 0; s < HL_NTRAIN; s++) {
        pc.first[s] = part[s].first;
        pc.n[s] = part[s].n;
        pc.record[s] =
            (struct hl_record){.master = u->ck.master_bytes[s] ? mem + part[s].master : NULL,
                               .m = (float *)(mem + part[s].m),
                               .v = (float *)(mem + part[s].v)};
    }
    return pc;
}

/* The elements of a run that lie in the piece; n = 0: none. */
static struct haul_optim_arrays run_arrays(const struct haul_unit *u, const struct hl_run *run,
                                           const struct piece *pc)
{
    const struct haul_engine *e = u->engine;
    unsigned s = run->span;
    uint64_t lo = run->first_elem > pc->first[s] ? run->first_elem : pc->first[s];
    uint64_t end = pc->first[s] + pc->n[s], hi = run->first_elem + run->elems;
    uint64_t master_bytes = hl_unit_split(u, s) ? 2 : 4, at = lo - pc->first[s];
    struct haul_optim_arrays a = {
        .struct_size = sizeof a,
        .grad_dtype = hl_rest_dtype(e, s),
        .param_dtype = s == HL_TRAIN16 ? e->dtype16 : HAUL_DTYPE_NONE,
        .master_form = hl_unit_split(u, s) ? HAUL_MASTER_SPLIT : HAUL_MASTER_FP32,
        .first = lo,
    };

    hi = hi < end ? hi : end;
    if (hi <= lo)
        return a;
    a.n = hi - lo;
    a.grad = u->rest_grads[s] + lo * hl_plan_dtype_bytes(a.grad_dtype);
    a.m = pc->record[s].m + at;
    a.v = pc->record[s].v + at;
    /* An FP32 parameter without a master in its record is its own. */
    a.master = pc->record[s].master ? (char *)pc->record[s].master + at * master_bytes
                                    : pc->param[s] + lo * 4;
    a.param = s == HL_TRAIN16 ? pc->param[s] + lo * 2 : NULL;
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
    struct piece pc = whole_record(u);
    int rc = e->ops->stream_wait(e->dev, e->update_stream, u->released);

    add_params(&pc, u, NULL);
    for (uint32_t i = 0; rc == 0 && i < u->nruns; i++) {
        struct hl_device_optim args = {.opt = e->opts.optim,
                                       .arrays = run_arrays(u, &u->runs[i], &pc),
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
    if (!hl_unit_params_on_host(u))
        return e->ops->event_sync(e->dev, u->published);
    for (;;) {
        uint32_t seen = hl_gate_look(&e->gate);
        hl_spin_lock(&e->lock);
        int f = u->last_frame;
        /* a fetch in its turn waits for this update, and step() has waited for those before it */
        bool filling = !hl_fetches_in_turn(e) && f >= 0 && e->frame[f].unit == u->index &&
                       e->frame[f].pinned && !e->wframe[f].ready;
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

/* A slot whose last copy has left it; -1 when the engine ends meanwhile. In turn: the copy that was submitted
 * first leaves its slot first, while the link goes on with the others'. */
static int take_publish_slot(struct haul_engine *e, int *out)
{
    struct hl_publish_slot *slot = &e->slot[e->next_slot];

    *out = -1;
    for (;;) {
        uint32_t seen = hl_gate_look(&e->gate);
        if (atomic_load(&e->stop) || atomic_load(&e->failed))
            return 0;
        if (!atomic_load(&slot->busy))
            break;
        hl_gate_sleep(&e->gate, seen);
    }
    atomic_store(&slot->busy, 1);
    *out = (int)e->next_slot;
    e->next_slot = (e->next_slot + 1) % e->nslots;
    return e->ops->event_sync(e->dev, slot->copied);
}

static int update_piece(struct haul_unit *u, const struct piece *pc)
{
    struct haul_engine *e = u->engine;
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < u->nruns; i++) {
        struct haul_optim_arrays a = run_arrays(u, &u->runs[i], pc);
        struct haul_optim_step s = run_step(u, &u->runs[i]);
        if (a.n)
            rc = haul_optim_update(&e->opts.optim, &a, &s, e->opts.nthreads);
    }
    return rc;
}

/* The record where it rests, or chunk by chunk through the slots. *ended: the engine ends meanwhile. */
static int update_record(struct haul_unit *u, char *const param[HL_NTRAIN], bool *ended)
{
    struct piece pc = whole_record(u);
    int rc = 0;

    if (!u->record_paged) {
        memcpy(pc.param, param, sizeof pc.param);
        return update_piece(u, &pc);
    }
    for (uint32_t c = 0; rc == 0 && c < u->ck.nchunks; c++) {
        struct hl_record_slot *slot = hl_record_slot_take(u, c);
        *ended = slot == NULL;
        if (!slot)
            return 0;
        pc = chunk_record(u, c, slot->mem);
        memcpy(pc.param, param, sizeof pc.param);
        rc = update_piece(u, &pc);
        /* FP32 masters go with their chunk: keep what the device's shard still waits for */
        if (pc.n[HL_TRAIN32] && pc.record[HL_TRAIN32].master)
            memcpy(param[HL_TRAIN32] + pc.first[HL_TRAIN32] * 4, pc.record[HL_TRAIN32].master,
                   pc.n[HL_TRAIN32] * 4);
        hl_record_slot_updated(slot);
    }
    return rc;
}

/* Parameters that rest on nvme: all of a slot's content is written back, so what the update does not
 * replace must be there first. */
static bool needs_old_params(const struct haul_unit *u)
{
    const struct hl_span *sp = u->layout.span;

    return hl_unit_split(u, HL_TRAIN16) || sp[HL_TRAIN32].elems || sp[HL_FROZEN16].elems ||
           sp[HL_FROZEN32].elems || u->rest[HL_TRAIN16].elems != u->own[HL_TRAIN16].elems;
}

static int update_and_publish(struct haul_engine *e, struct haul_unit *u)
{
    char *param[HL_NTRAIN] = {(char *)u->hi, NULL};
    bool ended = false;
    int slot = -1, rc = 0;

    if (hl_publish_bytes(u)) {
        rc = take_publish_slot(e, &slot);
        if (rc < 0 || slot < 0)
            return rc;
        if (!u->hi)
            param[HL_TRAIN16] = e->slot[slot].mem;
        param[HL_TRAIN32] = e->slot[slot].mem + hl_publish_offset32(u);
    }
    rc = update_record(u, param, &ended);
    if (rc < 0 || ended)
        return rc;
    u->publish_slot = slot;
    hl_unit_set_update(u, HL_UPDATE_UPDATED);
    return 0;
}

static int update_in_host(struct haul_engine *e, struct haul_unit *u)
{
    struct piece pc = whole_record(u);
    bool ended = false;
    int slot = -1, rc = 0;

    if (u->param_paged) {
        rc = hl_param_slot_take(u, needs_old_params(u), &slot);
        if (rc < 0 || slot < 0)
            return rc;
    }
    add_params(&pc, u, slot < 0 ? NULL : e->pslot[slot].mem);
    rc = update_record(u, pc.param, &ended);
    if (rc < 0 || ended)
        return rc;
    if (slot >= 0)
        hl_param_slot_updated(e, slot);
    hl_peers_updated(u);
    hl_unit_set_update(u, HL_UPDATE_IDLE);
    return 0;
}

static int run_update(struct haul_engine *e, struct haul_unit *u)
{
    hl_snapshot_pass(u);
    uint64_t begin = hl_clock_ns(), waited = e->io_wait_ns, bytes = 0;
    int rc = 0;

    hl_unit_set_update(u, HL_UPDATE_RUNNING);
    if (hl_unit_records_on_device(u))
        rc = update_on_device(e, u);
    else if ((rc = wait_for_readers(e, u)) == 0)
        rc = u->offload == HAUL_OFFLOAD_OPTIMIZER ? update_and_publish(e, u) : update_in_host(e, u);
    for (uint32_t i = 0; i < u->nruns; i++)
        bytes += run_bytes(e, &u->runs[i]);
    hl_trace_span(e, HAUL_LANE_OPTIM, (int32_t)u->index, begin, bytes);
    atomic_fetch_add(&e->optim_bytes, bytes);
    waited = e->io_wait_ns - waited;
    atomic_fetch_add(&e->optim_busy_ns, hl_clock_ns() - begin - waited);
    if (atomic_fetch_sub(&e->nupdates, 1) == 1)
        hl_record_slots_rewind(e);
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
