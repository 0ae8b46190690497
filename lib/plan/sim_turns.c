/*
 * sim_turns.c: several ranks: gathers and reduces in the order of the trainer's calls. Counterpart:
 * lib/engine/turns.c.
 */
#include "sim_state.h"

void hl_sim_put_turn(struct sim *s, struct sim_turn turn)
{
    s->turns[s->turns_put++ % s->nturns] = turn;
}

/* In a ring every rank sends all but its own part; across nodes the parts pass each node's network once. */
struct sim_op hl_sim_collective(const struct sim *s, uint64_t whole_bytes, int32_t unit)
{
    const struct hl_sim_opts *o = s->o;
    const double sent = (double)whole_bytes * (o->ranks - 1) / o->ranks;
    double rate = o->rates.comm_bytes_per_s;

    if (o->ranks > o->ranks_per_node && (o->rates.net_bytes_per_s < rate || o->ranks_per_node == 1))
        rate = o->rates.net_bytes_per_s;
    return (struct sim_op){.head_s = o->rates.comm_latency_s,
                           .work = sent / rate,
                           .bytes = (uint64_t)sent,
                           .unit = unit};
}

static struct sim_mark gather(struct sim *s, struct sim_unit *u, struct sim_mark first,
                              struct sim_mark second)
{
    struct sim_op op = hl_sim_collective(s, 2 * u->elems, (int32_t)(u - s->unit));

    op.wait[0] = first;
    op.wait[1] = second;
    op.nwaits = 2;
    return hl_sim_put(s, SIM_COMM, op);
}

/* ---- fetches ---- */

static bool pulls(const struct sim *s, const struct sim_unit *u)
{
    return s->o->pull && s->o->stage == 3 && hl_sim_on_host(u) && !u->param_paged;
}

/* Up the link: this rank's piece where the ranks gather, else the whole. */
static struct sim_mark lift(struct sim *s, struct sim_unit *u, const struct sim_turn *t)
{
    const struct sim_frame *w = &s->wframe[t->frame];
    const uint64_t shard = (u->elems + s->o->ranks - 1) / s->o->ranks;
    const uint64_t bytes = 2 * (pulls(s, u) ? u->elems : t->gather ? shard : u->rest);

    return hl_sim_put(s, SIM_H2D,
                      (struct sim_op){.idle_s = s->o->rates.link_latency_s,
                                      .work = (double)bytes,
                                      .bytes = bytes,
                                      .wait = {w->released, w->saved, u->published},
                                      .nwaits = 3,
                                      .unit = (int32_t)t->unit});
}

/* Stages 1 and 2: what the others have updated goes to this rank's copy in host memory. */
static struct sim_mark save_others(struct sim *s, const struct sim_unit *u, struct sim_frame *w)
{
    const uint64_t bytes = 2 * (u->elems - u->own);

    w->saved = hl_sim_put(s, SIM_D2H,
                          (struct sim_op){.idle_s = s->o->rates.link_latency_s,
                                          .work = (double)bytes,
                                          .bytes = bytes,
                                          .wait = {w->loaded},
                                          .nwaits = 1,
                                          .unit = (int32_t)(u - s->unit)});
    return w->saved;
}

static void submit_fetch(struct sim *s, const struct sim_turn *t, struct sim_param_slot *slot)
{
    struct sim_unit *u = &s->unit[t->unit];
    struct sim_frame *w = &s->wframe[t->frame];
    const bool on_host = hl_sim_on_host(u), saves = on_host && t->gather && s->o->stage < 3;

    if (on_host)
        w->loaded = lift(s, u, t);
    if (slot)
        slot->copied = w->loaded;
    if (t->gather) {
        w->loaded = gather(s, u, on_host ? w->loaded : u->published, w->released);
        if (!on_host)
            u->released = w->loaded;
    }
    if (saves) {
        u->published = save_others(s, u, w);
        if (slot)
            slot->copied = u->published;
    }
}

static bool can_fetch(struct sim *s, const struct sim_turn *t, struct sim_param_slot **slot)
{
    const struct sim_unit *u = &s->unit[t->unit];
    const bool saves = t->gather && s->o->stage < 3;

    *slot = NULL;
    if (u->update != SIM_IDLE)
        return false;
    if (!u->param_paged)
        return true;
    int i = hl_sim_param_loaded(s, t->unit);
    s->demand = i < 0 ? (int64_t)t->unit : -1;
    if (i < 0 || s->pslot[i].refreshed)
        return false;
    if (saves && (s->pslot[i].dirty || s->pslot[i].writing))
        return false;
    *slot = &s->pslot[i];
    (*slot)->copying = true;
    (*slot)->refreshed = saves;
    return true;
}

static bool take_fetch(struct sim *s, const struct sim_turn *t)
{
    struct sim_param_slot *slot;

    if (!can_fetch(s, t, &slot))
        return false;
    submit_fetch(s, t, slot);
    s->wframe[t->frame].ready = true;
    return true;
}

static bool take_gather(struct sim *s, const struct sim_turn *t)
{
    struct sim_unit *u = &s->unit[t->unit];

    if (u->update != SIM_IDLE)
        return false;
    u->published = gather(s, u, u->published, u->released);
    u->gathering = false;
    return true;
}

/* ---- reduces ---- */

/* Pieces to their owners, summed there; in stage 0 gathered again. Then to where the sum rests. */
static bool take_reduce(struct sim *s, const struct sim_turn *t)
{
    struct sim_unit *u = &s->unit[t->unit];
    struct sim_grad_buffer *buf = &s->buffer[t->buffer];
    struct sim_mark *copied = &s->reduced_copied[s->nreduced_used++ % 2];
    const uint64_t whole = u->elems * s->o->grad_bytes;
    const bool device = u->offload == HAUL_OFFLOAD_NONE;
    struct sim_op op = hl_sim_collective(s, s->o->stage == 0 ? 2 * whole : whole, (int32_t)t->unit);
    struct sim_mark reduced;

    op.wait[0] = buf->ready;
    op.wait[1] = *copied;
    op.nwaits = 2;
    reduced = buf->drained = hl_sim_put(s, SIM_COMM, op);
    *copied = hl_sim_put(s, SIM_D2H,
                         (struct sim_op){.idle_s = device ? 0 : s->o->rates.link_latency_s,
                                         .work = device ? 0 : (double)u->travel,
                                         .bytes = device ? 0 : u->travel,
                                         .wait = {reduced},
                                         .nwaits = 1,
                                         .unit = (int32_t)t->unit});
    u->landed = *copied;
    buf->queued = false;
    u->nreduces_taken++;
    return true;
}

bool hl_sim_take_turn(struct sim *s)
{
    const struct sim_turn *t = &s->turns[s->turns_done % (s->nturns ? s->nturns : 1)];
    bool taken;

    if (s->turns_done == s->turns_put)
        return false;
    taken = t->kind == SIM_FETCH    ? take_fetch(s, t)
            : t->kind == SIM_GATHER ? take_gather(s, t)
                                    : take_reduce(s, t);
    s->turns_done += taken;
    return taken;
}
