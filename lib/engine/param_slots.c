/*
 * param_slots.c: parameter shards that rest on nvme.
 *
 * A shard comes to a slot ahead of the visit that needs it, in forward and in backward order, and goes
 * from there to the window. An update writes the new shard into a slot, from which it is both written
 * back and served. Flags: struct hl_param_slot in engine_state.h.
 *
 * Hot path: nothing here allocates or logs; only optim waits, for a slot.
 */
#include "clock.h"
#include "engine_state.h"

/* Under lock, before a slot is chosen: pinned is what something is under way with, or waited for. */
static void refresh_pins(struct haul_engine *e)
{
    for (uint32_t i = 0; i < e->nparam_slots; i++) {
        const struct hl_param_slot *s = &e->pslot[i];
        e->pframe[i].pinned = s->reading || s->updating || s->dirty || s->writing || s->copying ||
                              (e->demand >= 0 && e->pframe[i].unit == e->demand);
    }
}

static int victim(struct haul_engine *e, uint64_t k)
{
    refresh_pins(e);
    return hl_order_victim(&e->order, e->pos, k, e->pframe, e->nparam_slots);
}

/* Under lock. */
static int find(const struct haul_engine *e, uint32_t unit)
{
    for (uint32_t i = 0; i < e->nparam_slots; i++)
        if (e->pframe[i].unit == unit)
            return (int)i;
    return -1;
}

int hl_param_slot_loaded(const struct haul_engine *e, uint32_t unit)
{
    int i = find(e, unit);

    return i >= 0 && !e->pslot[i].reading && !e->pslot[i].updating ? i : -1;
}

/* ---- completions, on the store's thread ---- */

static void trace_transfer(const struct hl_param_slot *s)
{
    struct haul_engine *e = s->engine;
    const struct haul_unit *u;

    if (!hl_trace_on(e))
        return;
    hl_spin_lock(&e->lock);
    bool read = s->reading;
    u = e->units[e->pframe[s - e->pslot].unit];
    hl_spin_unlock(&e->lock);
    hl_trace_span(e, read ? HAUL_LANE_IO_READ : HAUL_LANE_IO_WRITE, (int32_t)u->index,
                  s->submitted_ns, u->param_extent_bytes);
}

static void transfer_done(void *user, int rc)
{
    struct hl_param_slot *s = user;
    struct haul_engine *e = s->engine;

    trace_transfer(s);
    if (rc < 0)
        hl_engine_fail(e, rc);
    hl_spin_lock(&e->lock);
    if (rc < 0 && s->reading)
        e->pframe[s - e->pslot].unit = -1;
    s->reading = s->writing = false;
    hl_spin_unlock(&e->lock);
    hl_gate_wake(&e->gate);
}

/* ---- the pump ---- */

static int submit(struct haul_engine *e, uint32_t i, bool write)
{
    const struct haul_unit *u = e->units[e->pframe[i].unit];
    struct haul_io io = {.write = write,
                         .extent = hl_param_extent(u),
                         .buf = e->pslot[i].mem,
                         .bytes = u->param_extent_bytes,
                         .urgent = !write,
                         .fn = transfer_done,
                         .user = &e->pslot[i]};

    e->pslot[i].submitted_ns = hl_clock_ns();
    int rc = haul_store_submit(e->store, &io, NULL);

    return rc < 0 ? rc : 1;
}

/* Under lock: copies that have left their slot. Whether any has: optim may wait for such a slot. */
static bool settle_copies(struct haul_engine *e, bool *poll)
{
    bool freed = false;

    for (uint32_t i = 0; i < e->nparam_slots; i++) {
        if (!e->pslot[i].copying)
            continue;
        if (e->ops->event_query(e->dev, e->pslot[i].copied) == 0) {
            *poll = true;
            continue;
        }
        e->pslot[i].copying = false;
        e->pslot[i].dirty |= e->pslot[i].refreshed;
        e->pslot[i].refreshed = false;
        freed = true;
    }
    return freed;
}

static bool in_window(const struct haul_engine *e, uint32_t unit)
{
    for (uint32_t i = 0; i < e->nframes; i++)
        if (e->frame[i].unit == unit && e->wframe[i].ready && !e->wframe[i].stale)
            return true;
    return false;
}

static bool wants_read(const struct haul_engine *e, uint32_t unit)
{
    return e->units[unit]->param_paged && find(e, unit) < 0 && !in_window(e, unit);
}

/* Under lock: the next unit to read and the slot for it; -1. What somebody waits for comes first. */
static int choose(struct haul_engine *e, uint32_t *unit)
{
    uint64_t len = hl_order_len(&e->order);

    if (e->param_demand >= 0 && find(e, (uint32_t)e->param_demand) < 0) {
        *unit = (uint32_t)e->param_demand;
        return victim(e, e->pos);
    }
    if (e->demand >= 0 && wants_read(e, (uint32_t)e->demand)) {
        *unit = (uint32_t)e->demand;
        return victim(e, e->pos);
    }
    if (e->paused || !e->opts.overlap)
        return -1;
    for (uint64_t k = e->pos; k < len && k < e->pos + 2ull * (e->nframes + e->nparam_slots); k++) {
        *unit = hl_order_unit(&e->order, k);
        if (!e->units[*unit]->param_paged || !wants_read(e, *unit))
            continue;
        if (atomic_load(&e->units[*unit]->update) != HL_UPDATE_IDLE)
            return -1;
        return victim(e, k);
    }
    return -1;
}

int hl_pump_params(struct haul_engine *e, bool *poll)
{
    uint32_t unit = 0, i;
    bool write = false;

    if (e->nparam_slots == 0)
        return 0;
    hl_spin_lock(&e->lock);
    bool freed = settle_copies(e, poll);
    for (i = 0; i < e->nparam_slots && !write; i++)
        if (e->pslot[i].dirty && !e->pslot[i].updating) {
            e->pslot[i].dirty = false;
            write = e->pslot[i].writing = true;
            break;
        }
    int chosen = write ? (int)i : choose(e, &unit);
    if (!write && chosen >= 0) {
        e->pframe[chosen].unit = unit;
        e->pslot[chosen].reading = true;
    }
    hl_spin_unlock(&e->lock);
    if (freed)
        hl_gate_wake(&e->gate);
    return chosen < 0 ? 0 : submit(e, (uint32_t)chosen, write);
}

/* ---- optim ---- */

/* Under lock: a slot for the unit's new parameters, marked `updating`; -1: wait. */
static int try_take(struct haul_engine *e, const struct haul_unit *u, bool load)
{
    int i = find(e, u->index);

    if (i < 0 && load) {
        e->param_demand = u->index;
        return -1;
    }
    if (i < 0)
        i = victim(e, e->pos);
    if (i < 0 || e->pslot[i].reading || e->pslot[i].dirty || e->pslot[i].writing)
        return -1;
    e->pframe[i].unit = u->index;
    e->pslot[i].updating = true;
    e->param_demand = -1;
    return i;
}

/* Under lock, where try_take() found none. */
static bool waits_for_write(struct haul_engine *e, const struct haul_unit *u)
{
    int i = find(e, u->index);

    if (i >= 0)
        return !e->pslot[i].reading;
    return victim(e, e->pos) < 0;
}

int hl_param_slot_take(struct haul_unit *u, bool load, int *out)
{
    struct haul_engine *e = u->engine;
    uint64_t since = hl_clock_ns(), now;

    *out = -1;
    for (;;) {
        uint32_t seen = hl_gate_look(&e->gate);
        hl_spin_lock(&e->lock);
        int64_t asked = e->param_demand;
        int i = try_take(e, u, load);
        bool write = i < 0 && waits_for_write(e, u);
        bool ask = e->param_demand >= 0 && asked != e->param_demand;
        hl_spin_unlock(&e->lock);
        if (i >= 0) {
            *out = i;
            /* no copy to the window may still read what the update is about to write */
            return e->ops->event_sync(e->dev, e->pslot[i].copied);
        }
        if (atomic_load(&e->stop) || atomic_load(&e->failed))
            return 0;
        if (ask)
            hl_gate_wake(&e->gate);
        else
            hl_gate_sleep(&e->gate, seen);
        now = hl_clock_ns();
        hl_io_wait_add(e, write, since, now);
        since = now;
    }
}

void hl_param_slot_updated(struct haul_engine *e, int slot)
{
    hl_spin_lock(&e->lock);
    e->pslot[slot].updating = false;
    e->pslot[slot].dirty = true;
    hl_spin_unlock(&e->lock);
    hl_gate_wake(&e->gate);
}

bool hl_param_slot_dirty(const struct haul_engine *e, const struct haul_unit *u)
{
    int i = find(e, u->index);

    return i >= 0 && (e->pslot[i].updating || e->pslot[i].dirty || e->pslot[i].writing);
}

bool hl_slots_quiet(const struct haul_engine *e)
{
    for (uint32_t i = 0; i < e->nrecord_slots; i++)
        if (e->rslot[i].state != HL_SLOT_FREE)
            return false;
    for (uint32_t i = 0; i < e->nparam_slots; i++)
        if (e->pslot[i].reading || e->pslot[i].updating || e->pslot[i].dirty ||
            e->pslot[i].writing || e->pslot[i].refreshed)
            return false;
    return true;
}
