/* sim_optim.c: what the optimizer's thread does, job by job. Counterpart: lib/engine/optim_jobs.c. */
#include "sim_state.h"

void hl_sim_put_job(struct sim *s, struct sim_job job)
{
    s->jobs[s->jobs_put++ % s->njobs] = job;
}

static struct sim_job *current(struct sim *s)
{
    return &s->jobs[s->jobs_done % s->njobs];
}

static bool end_job(struct sim *s)
{
    s->jobs_done++;
    s->optim.phase = 0;
    s->optim.waits = HAUL_LANE_OPTIM;
    return true;
}

static void work(struct sim *s, uint32_t unit, double bytes, double as_update)
{
    s->optim.work = hl_sim_put(s, SIM_HOST,
                               (struct sim_op){.idle_s = s->o->rates.link_latency_s,
                                               .work = as_update,
                                               .bytes = (uint64_t)bytes,
                                               .unit = (int32_t)unit});
}

/* ---- gradients that have landed ---- */

/* Read once for the norm; with several passes added to FP32 sums, which are read back but the first time. */
static double land_bytes(const struct sim *s, const struct sim_unit *u, const struct sim_job *job)
{
    const double n = (double)u->own, shard = (double)u->elems / s->o->ranks;

    if (s->passes == 1)
        return shard * s->o->grad_bytes;
    return n * (s->o->grad_bytes + (job->first ? 4 : 8));
}

/* Its time, as that of an update's bytes. */
static double land_work(const struct sim *s, double bytes)
{
    const struct hl_sim_rates *r = &s->o->rates;
    const double rate = s->passes == 1 ? r->norm_bytes_per_s : r->accumulate_bytes_per_s;

    return rate > 0 ? bytes * r->optim_bytes_per_s / rate : bytes;
}

static bool land(struct sim *s, const struct sim_job *job)
{
    const struct sim_unit *u = &s->unit[job->unit];
    double bytes;

    switch (s->optim.phase) {
    case 0: /* several ranks: until the pump has queued the reduce; then until it has landed */
        s->optim.waits = HAUL_LANE_D2H;
        if (s->comm && u->nreduces_taken < job->nreduces)
            return false;
        if (!hl_sim_done(s, s->comm ? u->landed : job->landed))
            return false;
        s->optim.waits = HAUL_LANE_OPTIM;
        if (u->offload == HAUL_OFFLOAD_NONE)
            return end_job(s);
        bytes = land_bytes(s, u, job);
        work(s, job->unit, bytes, land_work(s, bytes));
        s->optim.phase = 1;
        return true;
    default:
        if (!hl_sim_done(s, s->optim.work))
            return false;
        if (job->landing >= 0)
            s->landing_busy[job->landing] = false;
        return end_job(s);
    }
}

/* ---- updates ---- */

/* Gradient read; master, m, v read and written; parameter written (split: read too). */
static double update_bytes(const struct sim *s)
{
    const double grad = s->passes > 1 ? 4 : s->o->grad_bytes;

    return grad + 16 + (s->o->master == HAUL_MASTER_SPLIT ? 8 : 10);
}

static bool end_update(struct sim *s, uint32_t unit, int state)
{
    s->unit[unit].update = state;
    s->nupdated += state == SIM_UPDATED;
    if (--s->nupdates == 0)
        s->read_at = 0;
    return end_job(s);
}

static bool update_on_device(struct sim *s, uint32_t unit)
{
    struct sim_unit *u = &s->unit[unit];
    const double bytes = (double)u->own * update_bytes(s);

    u->published = hl_sim_put(s, SIM_UPDATE,
                              (struct sim_op){.work = bytes,
                                              .bytes = (uint64_t)bytes,
                                              .wait = {u->released},
                                              .nwaits = 1,
                                              .unit = (int32_t)unit});
    return end_update(s, unit, SIM_IDLE);
}

/* No copy may still read what the update will write. */
static bool readers_done(const struct sim *s, const struct sim_unit *u)
{
    if (!hl_sim_on_host(u))
        return hl_sim_done(s, u->published);
    return u->last_frame < 0 || hl_sim_done(s, s->wframe[u->last_frame].loaded);
}

static bool take_publish_slot(struct sim *s)
{
    for (uint32_t i = 0; i < s->npublish; i++)
        if (!s->publish_busy[i] && hl_sim_done(s, s->publish_copied[i])) {
            s->publish_busy[i] = true;
            s->optim.slot = (int)i;
            return true;
        }
    return s->npublish == 0;
}

/* Where the new parameters go first; false: wait. */
static bool take_slots(struct sim *s, uint32_t unit)
{
    struct sim_unit *u = &s->unit[unit];

    s->optim.slot = s->optim.pslot = -1;
    if (u->offload == HAUL_OFFLOAD_OPTIMIZER)
        return take_publish_slot(s);
    if (!u->param_paged)
        return true;
    s->optim.pslot =
        hl_sim_param_take(s, unit, s->o->master == HAUL_MASTER_SPLIT || u->rest != u->own);
    if (s->optim.pslot < 0)
        s->optim.waits =
            hl_sim_param_waits_for_write(s, unit) ? HAUL_LANE_IO_WRITE : HAUL_LANE_IO_READ;
    return s->optim.pslot >= 0;
}

static void update_elems(struct sim *s, uint32_t unit, double n)
{
    const struct hl_sim_rates *r = &s->o->rates;
    const double bytes = n * update_bytes(s);
    const bool cached = s->unit[unit].record_paged && r->optim_paged_bytes_per_s > 0;

    work(s, unit, bytes,
         cached ? bytes * r->optim_bytes_per_s / r->optim_paged_bytes_per_s : bytes);
}

static bool begin_chunk(struct sim *s, uint32_t unit)
{
    const struct sim_unit *u = &s->unit[unit];
    struct hl_chunk_part part[2];

    if (!u->record_paged) {
        update_elems(s, unit, (double)u->own);
        return true;
    }
    int slot = hl_sim_record_find(s, unit, s->optim.chunk);
    if (slot < 0 || s->rslot[slot].state != SIM_READY) {
        s->optim.waits =
            hl_sim_record_waits_for_write(s, slot) ? HAUL_LANE_IO_WRITE : HAUL_LANE_IO_READ;
        return false;
    }
    s->optim.waits = HAUL_LANE_OPTIM;
    s->rslot[slot].state = SIM_UPDATING;
    s->optim.rslot = slot;
    hl_chunk_parts(&u->ck, s->optim.chunk, part);
    update_elems(s, unit, (double)part[0].n);
    return true;
}

static bool publish(struct sim *s, uint32_t unit)
{
    struct sim_unit *u = &s->unit[unit];

    if (s->optim.pslot >= 0) {
        s->pslot[s->optim.pslot].updating = false;
        s->pslot[s->optim.pslot].dirty = true;
    }
    u->publish_slot = s->optim.slot;
    return end_update(s, unit, u->offload == HAUL_OFFLOAD_OPTIMIZER ? SIM_UPDATED : SIM_IDLE);
}

enum { BEGIN = 0, SLOTS, CHUNK, WORKING };

static bool update(struct sim *s, uint32_t unit)
{
    struct sim_unit *u = &s->unit[unit];

    switch (s->optim.phase) {
    case BEGIN:
        u->update = SIM_RUNNING;
        if (u->offload == HAUL_OFFLOAD_NONE)
            return update_on_device(s, unit);
        if (!readers_done(s, u))
            return false;
        s->optim.phase = SLOTS;
        return true;
    case SLOTS:
        if (!take_slots(s, unit) ||
            (s->optim.pslot >= 0 && !hl_sim_done(s, s->pslot[s->optim.pslot].copied)))
            return false;
        s->optim.chunk = 0;
        s->optim.phase = CHUNK;
        return true;
    case CHUNK:
        if (!begin_chunk(s, unit))
            return false;
        s->optim.phase = WORKING;
        return true;
    default:
        if (!hl_sim_done(s, s->optim.work))
            return false;
        if (u->record_paged)
            s->rslot[s->optim.rslot].state = SIM_UPDATED_SLOT;
        s->optim.phase = CHUNK;
        return u->record_paged && ++s->optim.chunk < u->ck.nchunks ? true : publish(s, unit);
    }
}

bool hl_sim_optim(struct sim *s)
{
    if (s->jobs_done == s->jobs_put)
        return false;
    const struct sim_job *job = current(s);
    return job->update ? update(s, job->unit) : land(s, job);
}
