/*
 * sim_trainer.c: the trainer's calls, one visit after the other, and the end of a step. Counterparts:
 * lib/engine/unit_calls.c, grad_calls.c, step.c.
 */
#include "sim_state.h"

static bool is_backward(const struct sim *s, uint64_t k)
{
    return k % (2ull * s->order.nvisits) >= s->order.nvisits;
}

static const struct hl_sim_visit *visit_at(const struct sim *s, uint64_t k)
{
    uint64_t n = s->order.nvisits, at = k % (2 * n);

    return &s->o->model.visits[at < n ? at : 2 * n - 1 - at];
}

/* ---- compute ---- */

static double forward_flops(const struct sim *s)
{
    double sum = 0;

    for (uint32_t k = 0; k < s->order.nvisits; k++)
        sum += s->o->model.visits[k].forward_flops;
    return sum;
}

static double visit_s(const struct sim *s, uint64_t k)
{
    const struct hl_sim_opts *o = s->o;
    const bool backward = is_backward(s, k);
    const double flops = visit_at(s, k)->forward_flops,
                 given = backward ? o->backward_s : o->forward_s;

    if (given > 0 && forward_flops(s) > 0)
        return given * flops / forward_flops(s) / s->passes;
    if (o->forward_s > 0 || o->backward_s > 0)
        return 0;
    return flops * (backward ? o->recompute ? 3 : 2 : 1) * o->tokens / o->ranks / s->passes /
           o->rates.flops_per_s;
}

static void wait_in_stream(struct sim *s, struct sim_mark mark, enum haul_lane blame)
{
    if (hl_sim_done(s, mark))
        return;
    (void)hl_sim_put(s, SIM_COMPUTE,
                     (struct sim_op){.wait = {mark}, .nwaits = 1, .blame = blame, .unit = -1});
}

/* ---- acquire ---- */

/* Whether the unit, visited at position k, is or will be there without more frames. */
static bool queue_fetch(struct sim *s, uint32_t unit, uint64_t k)
{
    struct sim_unit *u = &s->unit[unit];
    const bool pulls = s->o->pull && hl_sim_on_host(u) && !u->param_paged;
    const bool gathers = (s->o->stage == 3 && !pulls) || u->apart;

    if (!u->windowed) {
        if (u->apart) {
            u->gathering = true;
            hl_sim_put_turn(s, (struct sim_turn){.kind = SIM_GATHER, .unit = unit});
        }
        u->apart = false;
        return true;
    }
    if (hl_sim_find_frame(s, unit, false) >= 0)
        return true;
    int f = hl_order_victim(&s->order, s->pos, k, s->frame, s->nframes);
    if (f < 0)
        return false;
    s->frame[f].unit = unit;
    s->wframe[f].ready = s->wframe[f].stale = false;
    u->last_frame = f;
    u->apart = false;
    hl_sim_put_turn(s, (struct sim_turn){SIM_FETCH, unit, f, -1, -1, gathers, false});
    return true;
}

static void fetch_in_turn(struct sim *s, uint32_t unit)
{
    const uint64_t len = hl_order_len(&s->order);
    bool here = queue_fetch(s, unit, s->pos);
    int f = hl_sim_find_frame(s, unit, false);

    if (f >= 0)
        s->frame[f].pinned = 1;
    for (uint64_t k = s->pos; here && s->o->overlap && k < len && k < s->pos + s->o->window; k++)
        here = queue_fetch(s, hl_order_unit(&s->order, k), k);
}

/* The unit's frame, pinned; or asked for. */
static bool pin_frame(struct sim *s, uint32_t unit)
{
    struct sim_unit *u = &s->unit[unit];

    u->frame = hl_sim_find_frame(s, unit, true);
    if (u->frame >= 0) {
        s->frame[u->frame].pinned = 1;
        s->demand = s->in_turn ? s->demand : -1;
        return true;
    }
    if (!s->in_turn)
        s->demand = unit;
    s->trainer.waits = u->param_paged ? HAUL_LANE_IO_READ
                       : s->in_turn   ? HAUL_LANE_COMM
                                      : HAUL_LANE_H2D;
    return false;
}

static bool parameters_come(struct sim *s, uint32_t unit)
{
    struct sim_unit *u = &s->unit[unit];
    const enum haul_lane lane = s->in_turn ? HAUL_LANE_COMM : HAUL_LANE_H2D;

    s->trainer.waits = HAUL_LANE_COMM;
    if (u->windowed ? !pin_frame(s, unit) : u->gathering)
        return false;
    wait_in_stream(s, u->windowed ? s->wframe[u->frame].loaded : u->published,
                   u->offload == HAUL_OFFLOAD_NONE && !s->in_turn ? HAUL_LANE_OPTIM : lane);
    return true;
}

/* ---- grad and reduce ---- */

static int choose_buffer(const struct sim *s)
{
    uint32_t best = 0;

    for (uint32_t i = 1; i < s->nbuffers; i++)
        if (s->buffer[i].reduced_at < s->buffer[best].reduced_at)
            best = i;
    return (int)best;
}

static int free_landing(const struct sim *s)
{
    for (uint32_t i = 0; i < s->nlandings; i++)
        if (!s->landing_busy[i])
            return (int)i;
    return -1;
}

static bool open_grad(struct sim *s, const struct sim_unit *u)
{
    const int b = choose_buffer(s);
    const bool lands = s->nlandings && u->offload != HAUL_OFFLOAD_NONE;

    s->trainer.waits = HAUL_LANE_D2H;
    s->trainer.landing = lands ? free_landing(s) : -1;
    if (lands && s->trainer.landing < 0)
        return false;
    s->trainer.waits = HAUL_LANE_COMM;
    if (s->buffer[b].queued)
        return false;
    if (s->trainer.landing >= 0)
        s->landing_busy[s->trainer.landing] = true;
    wait_in_stream(s, s->buffer[b].drained, HAUL_LANE_D2H);
    s->trainer.buffer = b;
    return true;
}

/* The last visit of a unit in a backward pass gives its gradient away. */
static bool reduces_here(const struct sim *s, uint64_t k)
{
    const uint64_t pass = 2ull * s->order.nvisits,
                   next = hl_order_next_use(&s->order, hl_order_unit(&s->order, k), k + 1);

    return is_backward(s, k) &&
           (next == HL_NEVER || next / pass > k / pass || !is_backward(s, next));
}

static struct sim_mark bring_down(struct sim *s, const struct sim_unit *u, uint32_t unit,
                                  struct sim_mark ready)
{
    const double turned = (double)u->elems * (4 + s->o->grad_bytes); /* narrowed, or moved */
    struct sim_op op = {.head_s = turned / s->o->rates.device_mem_bytes_per_s,
                        .wait = {ready},
                        .nwaits = 1,
                        .unit = (int32_t)unit};

    if (u->offload != HAUL_OFFLOAD_NONE) {
        op.idle_s = s->o->rates.link_latency_s;
        op.bytes = u->travel;
        op.work = (double)op.bytes;
    }
    return hl_sim_put(s, SIM_D2H, op);
}

static void reduce(struct sim *s, uint32_t unit)
{
    struct sim_unit *u = &s->unit[unit];
    struct sim_grad_buffer *buf = &s->buffer[s->trainer.buffer];
    struct sim_job job = {.unit = unit, .landing = s->trainer.landing};

    buf->ready = hl_sim_here(s, SIM_COMPUTE);
    buf->reduced_at = ++s->nreduces;
    job.first = u->nreduced == 0;
    u->nreduced++;
    job.last = u->nreduced == s->passes;
    job.nreduces = ++u->nreduces_asked;
    if (s->comm) {
        buf->queued = true;
        hl_sim_put_turn(s, (struct sim_turn){SIM_REDUCE, unit, -1, s->trainer.buffer, job.landing,
                                             false, job.last});
    } else {
        buf->drained = job.landed = bring_down(s, u, unit, buf->ready);
    }
    hl_sim_put_job(s, job);
}

static void release(struct sim *s, uint32_t unit)
{
    struct sim_unit *u = &s->unit[unit];
    const struct sim_mark here = hl_sim_here(s, SIM_COMPUTE);

    if (u->frame >= 0) {
        s->wframe[u->frame].released = here;
        s->frame[u->frame].pinned = 0;
        s->frame[u->frame].left = s->pos;
        u->frame = -1;
    } else {
        u->released = here;
    }
}

/* ---- a visit ---- */

enum { ENTER = 0, UPDATE, PARAMETERS, GRADIENT, TAKE, COMPUTE, PUT, LEAVE };

static bool stashes(const struct sim *s, uint64_t k)
{
    return s->nentries && visit_at(s, k)->stash_bytes > 0;
}

static void compute(struct sim *s, uint64_t k, uint32_t unit)
{
    /* the gradient's buffer is zeroed first; a time that was given has that in it */
    const bool given = s->o->forward_s > 0 || s->o->backward_s > 0;
    const double zeros = !given && reduces_here(s, k) ? 4 * (double)s->unit[unit].elems : 0;
    const double each = visit_s(s, k);

    (void)hl_sim_put(s, SIM_COMPUTE,
                     (struct sim_op){.idle_s = s->o->rates.link_latency_s,
                                     .work = each + zeros / s->o->rates.device_mem_bytes_per_s,
                                     .unit = (int32_t)unit});
    *(is_backward(s, k) ? &s->result.backward_s : &s->result.forward_s) += each;
}

static bool next_phase(struct sim *s)
{
    s->trainer.phase++;
    return true;
}

static bool leave(struct sim *s, uint64_t k, uint32_t unit)
{
    if (reduces_here(s, k))
        reduce(s, unit);
    release(s, unit);
    s->trainer.phase = ENTER;
    s->trainer.at++;
    return true;
}

static bool visit(struct sim *s)
{
    const uint64_t k = s->trainer.at;
    const uint32_t unit = hl_order_unit(&s->order, k);
    struct sim_unit *u = &s->unit[unit];
    bool go = true;

    switch (s->trainer.phase) {
    case ENTER:
        s->pos = k + 1;
        if (s->in_turn)
            fetch_in_turn(s, unit);
        break;
    case UPDATE:
        s->trainer.waits = HAUL_LANE_OPTIM;
        go = u->update == SIM_IDLE;
        break;
    case PARAMETERS:
        go = parameters_come(s, unit);
        break;
    case GRADIENT:
        go = !reduces_here(s, k) || open_grad(s, u);
        break;
    case TAKE:
        s->trainer.waits = HAUL_LANE_IO_READ;
        go = !is_backward(s, k) || !stashes(s, k) || hl_sim_stash_take(s, (int32_t)unit);
        break;
    case COMPUTE:
        compute(s, k, unit);
        break;
    case PUT:
        s->trainer.waits = HAUL_LANE_IO_WRITE;
        go = is_backward(s, k) || !stashes(s, k) ||
             hl_sim_stash_put(s, s->stash_entry_bytes, (int32_t)unit);
        break;
    default:
        return leave(s, k, unit);
    }
    return go && next_phase(s);
}

/* ---- the end of a step ---- */

static void queue_updates(struct sim *s)
{
    const bool meet = s->comm && (s->o->stage == 1 || s->o->stage == 2);

    s->nupdates = 0;
    for (uint32_t i = 0; i < s->nunits; i++) {
        struct sim_unit *u = &s->unit[i];
        if (!u->nreduced)
            continue;
        u->update = SIM_QUEUED;
        u->apart |= meet;
        s->nupdates++;
    }
    for (uint32_t i = 0; i < s->nframes; i++)
        if (s->frame[i].unit >= 0 && s->unit[s->frame[i].unit].nreduced) {
            s->frame[i].unit = -1;
            s->wframe[i].ready = false;
        }
    for (uint32_t i = 0; i < s->nunits; i++)
        if (s->unit[s->update_order[i]].nreduced)
            hl_sim_put_job(s, (struct sim_job){.update = true, .unit = s->update_order[i]});
    for (uint32_t i = 0; i < s->nunits; i++)
        s->unit[i].nreduced = 0;
    s->pos = 0;
}

static bool all_idle(const struct sim *s)
{
    for (uint32_t i = 0; i < s->nunits; i++)
        if (s->unit[i].update != SIM_IDLE)
            return false;
    return s->jobs_done == s->jobs_put && hl_sim_done(s, hl_sim_here(s, SIM_H2D)) &&
           hl_sim_done(s, hl_sim_here(s, SIM_UPDATE));
}

/* The ranks meet twice: one word about all units, and the norm. */
static struct sim_mark meet(struct sim *s)
{
    return hl_sim_put(
        s, SIM_COMM,
        (struct sim_op){.head_s = s->comm ? 2 * s->o->rates.comm_latency_s : 0, .unit = -1});
}

enum { LANDED = 0, AGREED, UPDATED };

static bool step(struct sim *s)
{
    switch (s->trainer.phase) {
    case LANDED:
        s->trainer.waits = HAUL_LANE_OPTIM;
        if (s->turns_done < s->turns_put || s->jobs_done < s->jobs_put)
            return false;
        s->trainer.agreed = meet(s);
        return next_phase(s);
    case AGREED:
        s->trainer.waits = HAUL_LANE_COMM;
        if (!hl_sim_done(s, s->trainer.agreed))
            return false;
        queue_updates(s);
        return next_phase(s);
    default:
        s->trainer.waits = HAUL_LANE_OPTIM;
        if (!s->o->overlap && !all_idle(s))
            return false;
        s->trainer.phase = ENTER;
        s->trainer.at = 0;
        s->trainer.nsteps++;
        return true;
    }
}

bool hl_sim_trainer(struct sim *s)
{
    return s->trainer.at < hl_order_len(&s->order) ? visit(s) : step(s);
}
