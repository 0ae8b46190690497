/*
 * turns.c: what the ranks do together: gathers and reduces, in the order of the trainer's calls.
 *
 * The trainer's thread queues turns, the pump takes them one after the other: a turn whose parameters are
 * not there yet holds back the ones behind it, so that all ranks make the same collectives in the same
 * order (R5). Nothing a turn waits for is behind it: a fetch waits for its unit's update, which step() has
 * queued before.
 *
 * Hot path: nothing here allocates or logs; only the trainer waits, in hl_turns_drain().
 */
#include "clock.h"
#include "engine_state.h"

static void put(struct haul_engine *e, struct hl_turn turn)
{
    uint64_t at = atomic_load_explicit(&e->turns.put, memory_order_relaxed);
    const uint64_t what[] = {turn.kind, turn.unit->index, turn.gather};

    e->turns_hash = hl_hash(e->turns_hash, what, sizeof what);
    e->turns.ring[at % e->turns.nring] = turn;
    atomic_store_explicit(&e->turns.put, at + 1, memory_order_release);
    hl_gate_wake(&e->gate);
}

int hl_turns_drain(struct haul_engine *e)
{
    uint64_t all = atomic_load_explicit(&e->turns.put, memory_order_relaxed);

    for (;;) {
        uint32_t seen = hl_gate_look(&e->gate);
        int rc = hl_engine_check(e);
        if (rc < 0 || atomic_load_explicit(&e->turns.done, memory_order_acquire) == all)
            return rc;
        hl_gate_sleep(&e->gate, seen);
    }
}

/* ---- the trainer's side ---- */

/* Under lock: whether the unit, visited at position k, is or will be there without more frames. */
static bool queue_fetch(struct haul_engine *e, struct haul_unit *u, uint64_t k)
{
    bool gather = (e->opts.stage == 3 && !hl_unit_pulls(u)) || u->apart;
    int f;

    if (!hl_unit_windowed(u)) {
        if (u->apart) {
            u->gathering = true;
            put(e, (struct hl_turn){.kind = HL_TURN_GATHER, .unit = u});
        }
        u->apart = false;
        return true;
    }
    for (uint32_t i = 0; i < e->nframes; i++)
        if (e->frame[i].unit == u->index)
            return true;
    f = hl_order_victim(&e->order, e->pos, k, e->frame, e->nframes);
    if (f < 0)
        return false;
    e->frame[f].unit = u->index;
    e->wframe[f].ready = e->wframe[f].stale = 0;
    u->last_frame = f;
    u->apart = false;
    put(e, (struct hl_turn){.kind = HL_TURN_FETCH, .unit = u, .gather = gather, .frame = f});
    return true;
}

/* Under lock: the unit's frame is the trainer's from here on. */
static void pin(struct haul_engine *e, const struct haul_unit *u)
{
    for (uint32_t i = 0; i < e->nframes; i++)
        if (e->frame[i].unit == u->index)
            e->frame[i].pinned = 1;
}

int hl_turns_fetch(struct haul_engine *e, struct haul_unit *u)
{
    uint64_t len = hl_order_len(&e->order);
    bool here;

    hl_spin_lock(&e->lock);
    here = queue_fetch(e, u, e->pos);
    pin(e, u);
    for (uint64_t k = e->pos; here && e->opts.overlap && k < len && k < e->pos + e->opts.window;
         k++)
        if (!queue_fetch(e, e->units[hl_order_unit(&e->order, k)], k))
            break;
    hl_spin_unlock(&e->lock);
    return here ? 0
                : hl_fail(HAUL_E_STATE, "unit %s: no frame of the window is free for it", u->name);
}

void hl_turns_reduce(struct haul_unit *u, int buffer, bool last)
{
    struct haul_engine *e = u->engine;

    if (buffer >= 0)
        atomic_store(&e->grad_buffer[buffer].queued, 1);
    u->nreduces_asked++;
    put(e, (struct hl_turn){.kind = HL_TURN_REDUCE,
                            .unit = u,
                            .buffer = buffer,
                            .landing = u->landing,
                            .first = u->nreduced == 0,
                            .last = last});
}

/* ---- the pump's side: how long the comm lane works ---- */

static int settle_span(struct haul_engine *e, struct hl_comm_span *s)
{
    uint64_t before, after;
    int rc;

    if (!s->open || e->ops->event_query(e->dev, s->before) != 1 ||
        e->ops->event_query(e->dev, s->after) != 1)
        return 0;
    if ((rc = e->ops->event_time_ns(e->dev, s->before, &before)) < 0 ||
        (rc = e->ops->event_time_ns(e->dev, s->after, &after)) < 0)
        return rc;
    e->comm_busy_ns += after > before ? after - before : 0;
    s->open = false;
    return 0;
}

int hl_comm_spans_settle(struct haul_engine *e)
{
    int rc = 0;

    for (unsigned i = 0; rc == 0 && e->comm && i < HL_COMM_SPANS; i++)
        rc = settle_span(e, &e->comm_span[i]);
    return rc;
}

/* Where the oldest of the events are still under way, this turn goes unmeasured: *span is NULL. */
static int begin_span(struct haul_engine *e, struct hl_comm_span **span)
{
    struct hl_comm_span *s = &e->comm_span[e->ncomm_spans++ % HL_COMM_SPANS];
    int rc = settle_span(e, s);

    *span = s->open ? NULL : s;
    return rc < 0 || s->open ? rc : e->ops->event_record(e->dev, s->before, e->comm_stream);
}

static int end_span(struct haul_engine *e, struct hl_comm_span *s)
{
    if (!s)
        return 0;
    s->open = true;
    return e->ops->event_record(e->dev, s->after, e->comm_stream);
}

/* ---- the pump's side: gathers ---- */

/* Ranges of a span that other ranks own: before this rank's own and after it. */
static void others(const struct haul_unit *u, unsigned s, struct hl_range out[2])
{
    uint64_t end = u->own[s].first + u->own[s].elems;

    out[0] = (struct hl_range){0, u->own[s].first};
    out[1] = (struct hl_range){end, u->layout.span[s].elems - end};
}

/* All of a span by all-gather; `from` is this rank's shard, perhaps already in its place. */
static int gather_span(struct haul_engine *e, const struct haul_unit *u, unsigned s, char *full,
                       const char *from)
{
    uint64_t n = u->layout.span[s].shard_elems;

    if (n == 0)
        return 0;
    return hl_comm_all_gather(e->comm, e->comm_counts, full, from, hl_span_dtype(e, s), n,
                              e->comm_stream);
}

/* Frozen parameters have been whole since they were filled, but in stage 3. */
static bool is_gathered(const struct haul_engine *e, unsigned s)
{
    return s < HL_NTRAIN || e->opts.stage == 3;
}

static int gather_resident(struct haul_engine *e, struct haul_unit *u)
{
    struct hl_comm_span *span = NULL;
    int rc = e->ops->stream_wait(e->dev, e->comm_stream, u->published);

    if (rc == 0)
        rc = e->ops->stream_wait(e->dev, e->comm_stream, u->released);
    if (rc == 0)
        rc = begin_span(e, &span);
    for (unsigned s = 0; rc == 0 && s < HL_NTRAIN; s++)
        rc = gather_span(e, u, s, u->rest_params[s], hl_own_params(u, s));
    if (rc == 0)
        rc = end_span(e, span);
    if (rc == 0)
        rc = e->ops->event_record(e->dev, u->published, e->comm_stream);
    hl_spin_lock(&e->lock);
    u->gathering = false;
    hl_spin_unlock(&e->lock);
    return rc;
}

/* ---- the pump's side: fetches ---- */

/* A fetch under way: where the unit's parameters rest in host memory, span by span. */
struct fetch {
    struct haul_engine *e;
    struct haul_unit *unit;
    struct hl_window_frame *frame;
    struct hl_param_slot *slot; /* NULL: not paged */
    bool gather;
};

/* Up the link from the memory of all ranks. */
static int pull_span(const struct fetch *f, unsigned s)
{
    struct haul_engine *e = f->e;
    const struct haul_unit *u = f->unit;
    uint64_t bytes = u->shard[s].elems * hl_span_param_bytes(s);
    char *to = f->frame->mem + hl_param_span_offset(u, s);
    int rc = 0;

    for (uint32_t r = 0; rc == 0 && bytes && r < e->nranks; r++)
        rc = e->ops->copy_h2d(e->dev, to + r * bytes,
                              e->peer[r].params + (u->rest_params[s] - e->peer[e->rank].params),
                              bytes, e->h2d);
    return rc;
}

static char *rest_at(const struct fetch *f, unsigned s)
{
    return f->slot ? f->slot->mem + hl_rest_span_offset(f->unit, s) : f->unit->rest_params[s];
}

/* Up the link: this rank's piece where the ranks gather, else the whole span. */
static int lift_span(const struct fetch *f, unsigned s)
{
    struct haul_engine *e = f->e;
    const struct haul_unit *u = f->unit;
    uint64_t each = hl_span_param_bytes(s);
    bool piece = f->gather && is_gathered(e, s);
    struct hl_range r = piece ? u->shard[s] : u->rest[s];
    char *to = f->frame->mem + hl_param_span_offset(u, s) + r.first * each;

    if (r.elems == 0)
        return 0;
    return e->ops->copy_h2d(e->dev, to, rest_at(f, s) + (r.first - u->rest[s].first) * each,
                            r.elems * each, e->h2d);
}

static int lift(const struct fetch *f)
{
    struct haul_engine *e = f->e;
    int rc = e->ops->stream_wait(e->dev, e->h2d, f->frame->released);

    if (rc == 0)
        rc = e->ops->stream_wait(e->dev, e->h2d, f->frame->saved);
    if (rc == 0)
        rc = e->ops->stream_wait(e->dev, e->h2d, f->unit->published);
    for (unsigned s = 0; rc == 0 && s < HL_NSPANS; s++)
        rc = hl_unit_pulls(f->unit) ? pull_span(f, s) : lift_span(f, s);
    return rc < 0 ? rc : e->ops->event_record(e->dev, f->frame->loaded, e->h2d);
}

static int gather_frame(const struct fetch *f)
{
    struct haul_engine *e = f->e;
    const struct haul_unit *u = f->unit;
    bool on_device = !hl_unit_params_on_host(u);
    struct hl_comm_span *span = NULL;
    int rc =
        e->ops->stream_wait(e->dev, e->comm_stream, on_device ? u->published : f->frame->loaded);

    if (rc == 0 && on_device)
        rc = e->ops->stream_wait(e->dev, e->comm_stream, f->frame->released);
    if (rc == 0)
        rc = begin_span(e, &span);
    for (unsigned s = 0; rc == 0 && s < HL_NSPANS; s++) {
        char *full = f->frame->mem + hl_param_span_offset(u, s);
        if (is_gathered(e, s))
            rc = gather_span(e, u, s, full,
                             on_device ? u->rest_params[s]
                                       : full + u->shard[s].first * hl_span_param_bytes(s));
    }
    if (rc == 0)
        rc = end_span(e, span);
    if (rc == 0 && on_device)
        rc = e->ops->event_record(e->dev, u->released, e->comm_stream);
    return rc < 0 ? rc : e->ops->event_record(e->dev, f->frame->loaded, e->comm_stream);
}

/* Stages 1 and 2: what the others have updated goes to this rank's copy in host memory, from which the
 * unit is fetched until the next update. */
static int save_others(const struct fetch *f)
{
    struct haul_engine *e = f->e;
    struct haul_unit *u = f->unit;
    int rc = e->ops->stream_wait(e->dev, e->d2h, f->frame->loaded);

    for (unsigned s = 0; rc == 0 && s < HL_NTRAIN; s++) {
        uint64_t each = hl_span_param_bytes(s);
        struct hl_range r[2];
        others(u, s, r);
        for (unsigned i = 0; rc == 0 && i < 2; i++)
            if (r[i].elems)
                rc =
                    e->ops->copy_d2h(e->dev, rest_at(f, s) + r[i].first * each,
                                     f->frame->mem + hl_param_span_offset(u, s) + r[i].first * each,
                                     r[i].elems * each, e->d2h);
    }
    if (rc == 0)
        rc = e->ops->event_record(e->dev, f->frame->saved, e->d2h);
    return rc < 0 ? rc : e->ops->event_record(e->dev, u->published, e->d2h);
}

static int submit_fetch(const struct fetch *f)
{
    struct haul_engine *e = f->e;
    bool on_host = hl_unit_params_on_host(f->unit), saves = f->gather && e->opts.stage < 3;
    int rc = on_host ? lift(f) : 0;

    if (rc == 0 && f->gather)
        rc = gather_frame(f);
    if (rc == 0 && on_host && saves)
        rc = save_others(f);
    if (rc == 0 && f->slot)
        rc = e->ops->event_record(e->dev, f->slot->copied, saves ? e->d2h : e->h2d);
    return rc;
}

int hl_turns_time_fetch(struct haul_engine *e, struct haul_unit *u, double *seconds)
{
    struct hl_window_frame *w = &e->wframe[0];
    uint64_t begin;
    int rc = e->comm->ops->barrier(e->comm);

    begin = hl_clock_ns();
    if (rc == 0)
        rc = submit_fetch(&(struct fetch){e, u, w, NULL, !hl_unit_pulls(u)});
    if (rc == 0)
        rc = e->ops->event_sync(e->dev, w->loaded);
    *seconds = (double)(hl_clock_ns() - begin) * 1e-9;
    return rc;
}

/* Under lock: the unit is new and its parameters are in memory; else the pager is asked for them. */
static bool can_fetch(struct haul_engine *e, const struct hl_turn *t, struct hl_param_slot **slot)
{
    const struct haul_unit *u = t->unit;
    int i;

    *slot = NULL;
    if (atomic_load(&u->update) != HL_UPDATE_IDLE)
        return false;
    if (!u->param_paged)
        return true;
    i = hl_param_slot_loaded(e, u->index);
    e->demand = i < 0 ? (int64_t)u->index : -1;
    if (i < 0 || e->pslot[i].refreshed)
        return false;
    *slot = &e->pslot[i];
    /* the others' pieces must not come into it while it is being written */
    if (t->gather && e->opts.stage < 3 && ((*slot)->dirty || (*slot)->writing))
        return false;
    (*slot)->copying = true;
    (*slot)->refreshed = t->gather && e->opts.stage < 3;
    return true;
}

static int take_fetch(struct haul_engine *e, const struct hl_turn *t, bool *poll)
{
    struct hl_param_slot *slot;
    bool ready;
    int rc;

    hl_spin_lock(&e->lock);
    ready = can_fetch(e, t, &slot);
    hl_spin_unlock(&e->lock);
    if (ready && hl_unit_pulls(t->unit) && !hl_peers_ready(t->unit)) {
        *poll = true; /* other processes cannot wake this one */
        return 0;
    }
    if (!ready)
        return 0;
    rc = submit_fetch(&(struct fetch){e, t->unit, &e->wframe[t->frame], slot, t->gather});
    if (rc < 0)
        return rc;
    hl_spin_lock(&e->lock);
    e->wframe[t->frame].ready = 1;
    hl_spin_unlock(&e->lock);
    return 1;
}

/* ---- the pump's side: reduces ---- */

/* A span's gradient in the dtype it travels in; *src is where. Without a buffer: zeros. */
static int narrow(struct haul_engine *e, const struct hl_turn *t, unsigned s, const char **src)
{
    const struct haul_unit *u = t->unit;
    enum haul_dtype travel = hl_travel_dtype(e, s);
    enum haul_dtype dtype = s == HL_TRAIN16 ? u->buffer_dtype : HAUL_FP32;
    uint64_t n = u->layout.span[s].elems;

    *src = e->staging;
    if (t->buffer < 0)
        return e->ops->fill(e->dev, e->staging, 0, n * hl_plan_dtype_bytes(travel), e->comm_stream);
    const char *from = e->grad_buffer[t->buffer].mem + hl_grad_span_offset(u, s);
    if (dtype != travel)
        return e->ops->convert(e->dev, e->staging, travel, from, dtype, n, e->comm_stream);
    *src = from;
    return 0;
}

/* to: range own of the span's gradient, in the dtype it travels in. */
static int sum_span(struct haul_engine *e, const struct hl_turn *t, unsigned s, char *to)
{
    const struct haul_unit *u = t->unit;
    enum haul_dtype travel = hl_travel_dtype(e, s);
    char *piece = to + (u->shard[s].first - u->own[s].first) * hl_plan_dtype_bytes(travel);
    struct hl_comm_reduce a = {
        .dtype = travel, .dst = piece, .n = u->shard[s].elems, .scratch = e->scratch};
    const char *src;
    int rc = narrow(e, t, s, &src);

    a.src = src;
    if (rc == 0)
        rc = hl_comm_reduce_scatter(e->comm, e->comm_counts, &a, e->comm_stream);
    if (rc == 0 && e->opts.stage == 0)
        rc = hl_comm_all_gather(e->comm, e->comm_counts, to, piece, travel, a.n, e->comm_stream);
    return rc;
}

/* Where a span's sum goes first: its place on the device, or a buffer on the way. */
static char *sum_place(const struct haul_unit *u, unsigned s, const struct hl_reduced *out)
{
    if (hl_unit_records_on_device(u) && u->engine->opts.passes == 1)
        return u->rest_grads[s];
    return out->mem + hl_land_span_offset(u, s);
}

static int sum_spans(struct haul_engine *e, const struct hl_turn *t, struct hl_reduced *out)
{
    const struct haul_unit *u = t->unit;
    bool accumulates = hl_unit_records_on_device(u) && e->opts.passes > 1;
    int rc = 0;

    for (unsigned s = 0; rc == 0 && s < HL_NTRAIN; s++) {
        if (u->shard[s].elems == 0)
            continue;
        char *to = sum_place(u, s, out);
        rc = sum_span(e, t, s, to);
        if (rc == 0 && accumulates)
            rc = e->ops->accumulate(e->dev, (float *)u->rest_grads[s], to, hl_travel_dtype(e, s),
                                    u->own[s].elems, t->first, e->comm_stream);
    }
    return rc < 0 ? rc : e->ops->event_record(e->dev, out->reduced, e->comm_stream);
}

/* To host memory, or block sums of what rests on the device. */
static int land(struct haul_engine *e, const struct hl_turn *t, const struct hl_reduced *out)
{
    struct haul_unit *u = t->unit;
    struct hl_landing *slot = t->landing < 0 ? NULL : &e->landing[t->landing];
    int rc = e->ops->stream_wait(e->dev, e->d2h, out->reduced);

    for (unsigned s = 0; rc == 0 && !hl_unit_records_on_device(u) && s < HL_NTRAIN; s++) {
        uint64_t at = hl_land_span_offset(u, s);
        if (u->own[s].elems)
            rc = e->ops->copy_d2h(e->dev, slot ? slot->mem + at : u->rest_grads[s], out->mem + at,
                                  u->own[s].elems * hl_plan_dtype_bytes(hl_travel_dtype(e, s)),
                                  e->d2h);
    }
    if (rc == 0)
        rc = e->ops->event_record(e->dev, out->copied, e->d2h);
    if (rc == 0 && hl_unit_records_on_device(u) && t->last)
        return hl_unit_queue_norm(u);
    return rc < 0 ? rc : e->ops->event_record(e->dev, slot ? slot->landed : u->landed, e->d2h);
}

static int take_reduce(struct haul_engine *e, const struct hl_turn *t)
{
    struct hl_grad_buffer *buf = t->buffer < 0 ? NULL : &e->grad_buffer[t->buffer];
    struct hl_reduced *out = &e->reduced[e->nreduced_slots_used++ % 2];
    struct hl_comm_span *span = NULL;
    /* an added zero comes after the update that its place was last read by */
    int rc = e->ops->stream_wait(e->dev, e->comm_stream, buf ? buf->ready : t->unit->published);

    if (rc == 0)
        rc = e->ops->stream_wait(e->dev, e->comm_stream, out->copied);
    if (rc == 0)
        rc = begin_span(e, &span);
    if (rc == 0)
        rc = sum_spans(e, t, out);
    if (rc == 0)
        rc = end_span(e, span);
    if (rc == 0 && buf)
        rc = e->ops->event_record(e->dev, buf->drained, e->comm_stream);
    if (rc == 0)
        rc = land(e, t, out);
    if (rc < 0)
        return rc;
    if (buf)
        atomic_store(&buf->queued, 0);
    atomic_fetch_add(&t->unit->nreduces_submitted, 1);
    return 1;
}

int hl_pump_turns(struct haul_engine *e, bool *poll)
{
    uint64_t done = atomic_load_explicit(&e->turns.done, memory_order_relaxed);
    const struct hl_turn *t;
    int rc = 0;

    if (!e->comm || done == atomic_load_explicit(&e->turns.put, memory_order_acquire))
        return 0;
    t = &e->turns.ring[done % e->turns.nring];
    switch (t->kind) {
    case HL_TURN_FETCH:
        rc = take_fetch(e, t, poll);
        break;
    case HL_TURN_GATHER:
        if (atomic_load(&t->unit->update) != HL_UPDATE_IDLE)
            return 0;
        rc = gather_resident(e, t->unit);
        rc = rc < 0 ? rc : 1;
        break;
    case HL_TURN_REDUCE:
        rc = take_reduce(e, t);
        break;
    }
    if (rc <= 0)
        return rc;
    atomic_store_explicit(&e->turns.done, done + 1, memory_order_release);
    hl_gate_wake(&e->gate);
    return 1;
}
