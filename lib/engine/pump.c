/*
 * pump.c: every host-to-device copy of the engine.
 *
 * Hot path: nothing here allocates, logs, or waits for device work.
 */
#include "engine_state.h"

static int copy_span(struct haul_engine *e, void *dst, const void *src, uint64_t bytes)
{
    return bytes ? e->ops->copy_h2d(e->dev, dst, src, bytes, e->h2d) : 0;
}

/* Bring the device's shard up to date from where the update wrote it. */
static int publish_unit(struct haul_engine *e, struct haul_unit *u)
{
    struct hl_publish_slot *slot = u->publish_slot < 0 ? NULL : &e->slot[u->publish_slot];
    const char *src16 = u->hi ? (char *)u->hi : slot ? slot->mem : NULL;
    const char *src32 =
        u->record_paged && slot ? slot->mem + hl_publish_offset32(u) : u->record[HL_TRAIN32].master;
    int rc;

    if ((rc = e->ops->stream_wait(e->dev, e->h2d, u->released)) < 0 ||
        (rc = copy_span(e, hl_own_params(u, HL_TRAIN16), src16, u->own[HL_TRAIN16].elems * 2)) <
            0 ||
        (rc = copy_span(e, hl_own_params(u, HL_TRAIN32), src32, u->own[HL_TRAIN32].elems * 4)) <
            0 ||
        (rc = e->ops->event_record(e->dev, u->published, e->h2d)) < 0)
        return rc;
    if (slot) {
        rc = e->ops->event_record(e->dev, slot->copied, e->h2d);
        if (rc < 0)
            return rc;
        u->publish_slot = -1;
        atomic_store(&slot->busy, 0);
    }
    hl_unit_set_update(u, HL_UPDATE_IDLE);
    return 1;
}

int hl_pump_publish(struct haul_engine *e)
{
    if (atomic_load(&e->nupdated) == 0)
        return 0;
    for (uint32_t i = 0; i < e->nunits; i++) {
        struct haul_unit *u = e->units[e->update_order[i]];
        if (atomic_load(&u->update) == HL_UPDATE_UPDATED)
            return publish_unit(e, u);
    }
    return 0;
}

static bool in_window(const struct haul_engine *e, uint32_t unit)
{
    for (uint32_t i = 0; i < e->nframes; i++)
        if (e->frame[i].unit == unit && !e->wframe[i].stale)
            return true;
    return false;
}

/* Under lock: its parameters are in host memory. */
static bool at_hand(const struct haul_engine *e, uint32_t unit)
{
    return !e->units[unit]->param_paged || hl_param_slot_loaded(e, unit) >= 0;
}

/* Under lock: the next unit to fetch and the frame for it; -1 when there is nothing to do now. What the
 * trainer waits for comes first, then the order, as far as updates are done and frames are free. `hungry`
 * is left set when a release may change the answer. */
static int choose(struct haul_engine *e, uint32_t *unit)
{
    uint64_t len = hl_order_len(&e->order);

    e->hungry = true;
    if (e->demand >= 0 && !in_window(e, (uint32_t)e->demand)) {
        *unit = (uint32_t)e->demand;
        if (!at_hand(e, *unit))
            return -1;
        return hl_order_victim(&e->order, e->pos, e->pos, e->frame, e->nframes);
    }
    for (uint64_t k = e->pos; e->opts.overlap && k < len && k < e->pos + 2ull * e->nframes; k++) {
        *unit = hl_order_unit(&e->order, k);
        if (in_window(e, *unit))
            continue;
        if (e->units[*unit]->resident)
            continue;
        if (atomic_load(&e->units[*unit]->update) != HL_UPDATE_IDLE || !at_hand(e, *unit))
            return -1;
        return hl_order_victim(&e->order, e->pos, k, e->frame, e->nframes);
    }
    e->hungry = e->opts.overlap && e->nframes < e->nunits;
    return -1;
}

/* The whole unit, which rests here. slot: what its parameters come from when they are paged; else NULL. */
static int submit_fetch(struct haul_engine *e, struct haul_unit *u, struct hl_window_frame *w,
                        struct hl_param_slot *slot)
{
    int rc = e->ops->stream_wait(e->dev, e->h2d, w->released);

    for (unsigned s = 0; rc == 0 && s < HL_NSPANS; s++) {
        uint64_t at = hl_param_span_offset(u, s);
        rc = copy_span(e, w->mem + at, slot ? slot->mem + at : u->rest_params[s],
                       u->rest[s].elems * hl_span_param_bytes(s));
    }
    if (rc == 0 && slot)
        rc = e->ops->event_record(e->dev, slot->copied, e->h2d);
    return rc < 0 ? rc : e->ops->event_record(e->dev, w->loaded, e->h2d);
}

/* Under lock: frame f is being filled with the unit. */
static struct hl_param_slot *begin_fetch(struct haul_engine *e, int f, uint32_t unit)
{
    e->frame[f].unit = unit;
    e->frame[f].pinned = 1;
    e->wframe[f].ready = e->wframe[f].stale = 0;
    e->units[unit]->last_frame = f;
    if (!e->units[unit]->param_paged)
        return NULL;
    struct hl_param_slot *slot = &e->pslot[hl_param_slot_loaded(e, unit)];
    slot->copying = true;
    return slot;
}

int hl_pump_prefetch(struct haul_engine *e)
{
    struct hl_param_slot *slot = NULL;
    uint32_t unit = 0;

    if (e->nframes == 0 || hl_fetches_in_turn(e))
        return 0;
    hl_spin_lock(&e->lock);
    int f = choose(e, &unit);
    if (f >= 0)
        slot = begin_fetch(e, f, unit);
    hl_spin_unlock(&e->lock);
    if (f < 0)
        return 0;
    int rc = submit_fetch(e, e->units[unit], &e->wframe[f], slot);
    if (rc < 0)
        return rc;
    hl_spin_lock(&e->lock);
    /* What the trainer waits for stays pinned until it takes it. */
    e->frame[f].pinned = e->demand == unit && !e->wframe[f].stale;
    if (e->wframe[f].stale)
        e->frame[f].unit = -1;
    else
        e->wframe[f].ready = 1;
    hl_spin_unlock(&e->lock);
    hl_gate_wake(&e->gate);
    return 1;
}
