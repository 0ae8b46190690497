/*
 * unit_calls.c: acquire, release and passes, on the trainer's thread.
 *
 * Hot path: nothing here allocates or logs, and nothing waits for queued device work (R5). What may be
 * waited for: the unit's update and the submission of its copy (acquire).
 */
#include "engine_state.h"

int hl_check_built(struct haul_engine *e)
{
    if (!e->built)
        return hl_fail(HAUL_E_STATE, "engine: not built; call haul_engine_build() first");
    return hl_engine_check(e);
}

/* ---- waits, and how long compute stood still for them ---- */

void hl_begin_sample(struct haul_engine *e, void *stream, enum haul_lane host_lane,
                     struct hl_sample **sample)
{
    if (!*sample)
        *sample = hl_sample_begin(e, stream, host_lane);
}

/* The stream waits for ev; sampled unless it has happened already and nothing else was waited for. */
int hl_wait_in_stream(struct haul_engine *e, void *stream, struct hl_event *ev, enum haul_lane lane,
                      struct hl_sample *sample)
{
    int rc = e->ops->event_query(e->dev, ev);

    if (rc == 0) {
        hl_begin_sample(e, stream, lane, &sample);
        rc = e->ops->stream_wait(e->dev, stream, ev);
    }
    if (rc < 0)
        return rc;
    return sample ? hl_sample_end(e, sample, lane, stream) : 0;
}

/* ---- acquire ---- */

static bool update_pending(const struct haul_unit *u)
{
    return atomic_load_explicit(&u->update, memory_order_acquire) != HL_UPDATE_IDLE;
}

static int wait_for_update(struct haul_unit *u)
{
    struct haul_engine *e = u->engine;

    for (;;) {
        uint32_t seen = hl_gate_look(&e->gate);
        int rc = hl_engine_check(e);
        if (rc < 0 || !update_pending(u))
            return rc;
        hl_gate_sleep(&e->gate, seen);
    }
}

/* Under lock: the frame that holds the unit with its copy submitted; -1. */
static int find_frame(const struct haul_engine *e, uint32_t unit)
{
    for (uint32_t i = 0; i < e->nframes; i++)
        if (e->frame[i].unit == unit && e->wframe[i].ready)
            return (int)i;
    return -1;
}

/* Pin the unit's frame, having it fetched when it is not there. */
static int pin_frame(struct haul_unit *u, void *stream, struct hl_sample **sample)
{
    struct haul_engine *e = u->engine;

    for (;;) {
        uint32_t seen = hl_gate_look(&e->gate);
        int rc = hl_engine_check(e);
        if (rc < 0)
            return rc;
        hl_spin_lock(&e->lock);
        int f = find_frame(e, u->index);
        bool ask = f < 0 && e->demand != u->index;
        if (f >= 0) {
            e->frame[f].pinned = 1;
            e->demand = -1;
        } else {
            e->demand = u->index;
        }
        hl_spin_unlock(&e->lock);
        if (f >= 0)
            return f;
        hl_begin_sample(e, stream, u->param_paged ? HAUL_LANE_IO_READ : HAUL_LANE_H2D, sample);
        if (ask)
            hl_gate_wake(&e->gate);
        else
            hl_gate_sleep(&e->gate, seen);
    }
}

static void follow_order(struct haul_engine *e, struct haul_unit *u)
{
    int missed;

    hl_spin_lock(&e->lock);
    e->pos = hl_order_follow(&e->order, u->index, e->pos, &missed);
    u->acquired_at =
        e->pos && hl_order_unit(&e->order, e->pos - 1) == u->index ? e->pos - 1 : HL_NEVER;
    hl_spin_unlock(&e->lock);
    e->order_misses += (uint64_t)missed;
    e->wandered |= missed != 0;
    e->acquired_elems += u->layout.elems;
}

/* Turn by turn: wait until the pump has taken the unit's. */
static int wait_for_turn(struct haul_unit *u, void *stream, struct hl_sample **sample)
{
    struct haul_engine *e = u->engine;

    for (;;) {
        uint32_t seen = hl_gate_look(&e->gate);
        int rc = hl_engine_check(e), f = -1;
        if (rc < 0)
            return rc;
        hl_spin_lock(&e->lock);
        bool here = !u->gathering;
        if (hl_unit_windowed(u)) {
            f = find_frame(e, u->index);
            here = f >= 0;
        }
        hl_spin_unlock(&e->lock);
        if (here)
            return f;
        hl_begin_sample(e, stream, u->param_paged ? HAUL_LANE_IO_READ : HAUL_LANE_COMM, sample);
        hl_gate_sleep(&e->gate, seen);
    }
}

static int acquire_first(struct haul_unit *u, void *stream)
{
    struct haul_engine *e = u->engine;
    bool in_turn = hl_fetches_in_turn(e);
    struct hl_sample *sample = NULL;
    struct hl_event *ready = u->published;
    int rc;

    if (e->nheld >= e->opts.max_held)
        return hl_fail(HAUL_E_STATE,
                       "unit %s: %u units are held already; release one, or raise max_held",
                       u->name, e->nheld);
    follow_order(e, u);
    if (in_turn && (rc = hl_turns_fetch(e, u)) < 0)
        return rc;
    if (update_pending(u)) {
        hl_begin_sample(e, stream, HAUL_LANE_OPTIM, &sample);
        if ((rc = wait_for_update(u)) < 0)
            return rc;
    }
    if (!u->resident || in_turn) {
        rc = in_turn ? wait_for_turn(u, stream, &sample) : pin_frame(u, stream, &sample);
        if (rc < 0 && !u->resident)
            return rc;
        if ((rc = hl_engine_check(e)) < 0)
            return rc;
    }
    if (!u->resident) {
        hl_spin_lock(&e->lock);
        u->frame = find_frame(e, u->index);
        hl_spin_unlock(&e->lock);
        ready = e->wframe[u->frame].loaded;
    }
    if ((rc = hl_wait_in_stream(e, stream, ready, in_turn ? HAUL_LANE_COMM : HAUL_LANE_H2D,
                                sample)) < 0)
        return rc;
    e->nheld++;
    return 0;
}

int haul_unit_acquire(struct haul_unit *u, void *stream, struct haul_view *view)
{
    int rc;

    if ((rc = hl_need("haul_unit_acquire", "unit", u)) < 0 ||
        (rc = hl_need("haul_unit_acquire", "view", view)) < 0)
        return rc;
    struct haul_engine *e = u->engine;
    rc = hl_check_built(e);
    if (rc == 0 && u->held == 0)
        rc = acquire_first(u, stream);
    if (rc < 0)
        return rc;
    u->held++;
    view->base = u->frame >= 0 ? e->wframe[u->frame].mem : u->resident;
    view->offset_bytes = u->param_offset;
    view->ntensors = u->ntensors;
    return 0;
}

int haul_unit_release(struct haul_unit *u, void *stream)
{
    int rc;

    if ((rc = hl_need("haul_unit_release", "unit", u)) < 0)
        return rc;
    struct haul_engine *e = u->engine;
    rc = hl_check_built(e);
    if (rc < 0)
        return rc;
    if (u->held == 0)
        return hl_fail(HAUL_E_STATE, "unit %s: released more often than acquired", u->name);
    if (u->held > 1) {
        u->held--;
        return 0;
    }
    struct hl_event *ev = u->frame >= 0 ? e->wframe[u->frame].released : u->released;
    rc = e->ops->event_record(e->dev, ev, stream);
    if (rc < 0)
        return rc;
    if (u->frame >= 0) {
        hl_spin_lock(&e->lock);
        e->frame[u->frame].pinned = 0;
        e->frame[u->frame].left = e->pos;
        bool hungry = e->hungry;
        hl_spin_unlock(&e->lock);
        if (hungry)
            hl_gate_wake(&e->gate);
    }
    u->frame = -1;
    u->held = 0;
    e->nheld--;
    return e->comm ? hl_unit_settle_grad(u) : 0;
}

/* ---- passes ---- */

int haul_engine_pass(struct haul_engine *e, enum haul_pass pass)
{
    uint32_t npasses = 0;
    int rc;

    if ((rc = hl_need("haul_engine_pass", "engine", e)) < 0 || (rc = hl_check_built(e)) < 0)
        return rc;
    if (pass != HAUL_PASS_TRAIN && pass != HAUL_PASS_EVAL)
        return hl_fail(-EINVAL, "haul_engine_pass: pass %d is neither train nor eval", (int)pass);
    if (e->nheld)
        return hl_fail(HAUL_E_STATE, "engine: a pass begins with nothing held; %u units are",
                       e->nheld);
    for (uint32_t i = 0; i < e->nunits; i++)
        if (e->units[i]->nreduced > npasses)
            npasses = e->units[i]->nreduced;
    hl_spin_lock(&e->lock);
    e->order.eval = pass == HAUL_PASS_EVAL;
    e->pos = e->order.eval ? 0 : 2ull * e->nvisits * npasses;
    hl_spin_unlock(&e->lock);
    hl_gate_wake(&e->gate);
    return 0;
}
