/*
 * sim_pump.c: what the engine's pump does: publishing, prefetch into the window, reads and writes of the
 * drives. Counterparts: lib/engine/pump.c, record_slots.c, param_slots.c.
 */
#include "sim_state.h"

/* ---- to the device ---- */

/* Updated parameters go to where they rest on the device. */
static bool publish(struct sim *s)
{
    for (uint32_t i = 0; s->nupdated && i < s->nunits; i++) {
        struct sim_unit *u = &s->unit[s->update_order[i]];
        if (u->update != SIM_UPDATED)
            continue;
        u->published = hl_sim_put(s, SIM_H2D,
                                  (struct sim_op){.idle_s = s->o->rates.link_latency_s,
                                                  .work = 2 * (double)u->own,
                                                  .bytes = 2 * u->own,
                                                  .wait = {u->released},
                                                  .nwaits = 1,
                                                  .unit = (int32_t)s->update_order[i]});
        if (u->publish_slot >= 0) {
            s->publish_copied[u->publish_slot] = u->published;
            s->publish_busy[u->publish_slot] = false;
            u->publish_slot = -1;
        }
        u->update = SIM_IDLE;
        s->nupdated--;
        return true;
    }
    return false;
}

int hl_sim_find_frame(const struct sim *s, uint32_t unit, bool ready)
{
    for (uint32_t i = 0; i < s->nframes; i++)
        if (s->frame[i].unit == unit && (!ready || s->wframe[i].ready) && !s->wframe[i].stale)
            return (int)i;
    return -1;
}

static bool at_hand(const struct sim *s, uint32_t unit)
{
    return !s->unit[unit].param_paged || hl_sim_param_loaded(s, unit) >= 0;
}

/* The next unit to fetch and the frame for it; -1. */
static int choose_fetch(struct sim *s, uint32_t *unit)
{
    const uint64_t len = hl_order_len(&s->order);

    if (s->demand >= 0 && hl_sim_find_frame(s, (uint32_t)s->demand, false) < 0) {
        *unit = (uint32_t)s->demand;
        return at_hand(s, *unit) ? hl_order_victim(&s->order, s->pos, s->pos, s->frame, s->nframes)
                                 : -1;
    }
    for (uint64_t k = s->pos; s->o->overlap && k < len && k < s->pos + 2ull * s->nframes; k++) {
        *unit = hl_order_unit(&s->order, k);
        if (hl_sim_find_frame(s, *unit, false) >= 0 || !s->unit[*unit].windowed)
            continue;
        if (s->unit[*unit].update != SIM_IDLE || !at_hand(s, *unit))
            return -1;
        return hl_order_victim(&s->order, s->pos, k, s->frame, s->nframes);
    }
    return -1;
}

static bool prefetch(struct sim *s)
{
    uint32_t unit;
    int f = s->nframes == 0 || s->in_turn ? -1 : choose_fetch(s, &unit);

    if (f < 0)
        return false;
    struct sim_unit *u = &s->unit[unit];
    struct sim_frame *w = &s->wframe[f];
    w->loaded = hl_sim_put(s, SIM_H2D,
                           (struct sim_op){.idle_s = s->o->rates.link_latency_s,
                                           .work = 2 * (double)u->rest,
                                           .bytes = 2 * u->rest,
                                           .wait = {w->released},
                                           .nwaits = 1,
                                           .unit = (int32_t)unit});
    if (u->param_paged) {
        struct sim_param_slot *slot = &s->pslot[hl_sim_param_loaded(s, unit)];
        slot->copying = true;
        slot->copied = w->loaded;
    }
    s->frame[f] = (struct hl_frame){unit, s->demand == unit, 0};
    u->last_frame = f;
    w->ready = true;
    w->stale = false;
    return true;
}

/* ---- records ---- */

static bool submit(struct sim *s, enum sim_slot_kind kind, int slot, uint32_t unit, uint64_t bytes,
                   bool write)
{
    s->flight_bytes += bytes;
    if (s->flight_bytes > s->result.most_flight_bytes)
        s->result.most_flight_bytes = s->flight_bytes;
    (void)hl_sim_put(s, write ? SIM_WRITE : SIM_READ,
                     (struct sim_op){.idle_s = s->o->rates.drive_latency_s,
                                     .work = (double)bytes,
                                     .bytes = bytes,
                                     .unit = (int32_t)unit,
                                     .slot = slot,
                                     .kind = kind});
    return true;
}

int hl_sim_record_find(const struct sim *s, uint32_t unit, uint32_t chunk)
{
    for (uint32_t i = 0; i < s->nrslots; i++)
        if (s->rslot[i].state != SIM_FREE && s->rslot[i].unit == unit && s->rslot[i].chunk == chunk)
            return (int)i;
    return -1;
}

static int find_state(const struct sim *s, int state)
{
    for (uint32_t i = 0; i < s->nrslots; i++)
        if ((int)s->rslot[i].state == state)
            return (int)i;
    return -1;
}

bool hl_sim_record_waits_for_write(const struct sim *s, int slot)
{
    if (slot >= 0)
        return s->rslot[slot].state == SIM_UPDATED_SLOT || s->rslot[slot].state == SIM_WRITING;
    return find_state(s, SIM_FREE) < 0 &&
           (find_state(s, SIM_UPDATED_SLOT) >= 0 || find_state(s, SIM_WRITING) >= 0);
}

static uint64_t slot_bytes(const struct sim *s, int i)
{
    return hl_chunk_bytes(&s->unit[s->rslot[i].unit].ck, s->rslot[i].chunk, s->block_bytes);
}

/* Take a free slot for the next chunk; -1. */
static int next_read(struct sim *s)
{
    for (; s->read_at < s->npaged; s->read_at++) {
        const struct sim_chunk *next = &s->paged[s->read_at];
        int slot = hl_sim_record_find(s, next->unit, next->chunk);
        if (s->nupdates && s->unit[next->unit].update == SIM_IDLE)
            continue;
        if (slot >= 0 && (s->rslot[slot].state == SIM_READING || s->rslot[slot].state == SIM_READY))
            continue;
        if (slot >= 0 || (slot = find_state(s, SIM_FREE)) < 0)
            return -1;
        s->rslot[slot] = (struct sim_record_slot){SIM_READING, next->unit, next->chunk};
        s->read_at++;
        return slot;
    }
    return -1;
}

static void count_slots(struct sim *s)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < s->nrslots; i++)
        n += s->rslot[i].state != SIM_FREE;
    if (n > s->result.most_slots)
        s->result.most_slots = n;
}

static bool records(struct sim *s)
{
    int slot;

    if (s->nrslots == 0)
        return false;
    slot = find_state(s, SIM_UPDATED_SLOT);
    if (slot >= 0) {
        s->rslot[slot].state = SIM_WRITING;
        return submit(s, SIM_RECORD, slot, s->rslot[slot].unit, slot_bytes(s, slot), true);
    }
    slot = s->o->overlap || s->nupdates ? next_read(s) : -1;
    if (slot < 0)
        return false;
    count_slots(s);
    return submit(s, SIM_RECORD, slot, s->rslot[slot].unit, slot_bytes(s, slot), false);
}

/* ---- parameters on nvme ---- */

static int find_param(const struct sim *s, uint32_t unit)
{
    for (uint32_t i = 0; i < s->nparam_slots; i++)
        if (s->pframe[i].unit == unit)
            return (int)i;
    return -1;
}

int hl_sim_param_loaded(const struct sim *s, uint32_t unit)
{
    int i = find_param(s, unit);

    return i >= 0 && !s->pslot[i].reading && !s->pslot[i].updating ? i : -1;
}

static int victim(struct sim *s, uint64_t k)
{
    for (uint32_t i = 0; i < s->nparam_slots; i++) {
        const struct sim_param_slot *p = &s->pslot[i];
        s->pframe[i].pinned = p->reading || p->updating || p->dirty || p->writing || p->copying ||
                              (s->demand >= 0 && s->pframe[i].unit == s->demand);
    }
    return hl_order_victim(&s->order, s->pos, k, s->pframe, s->nparam_slots);
}

/* Whether any copy has left its slot: optim may wait for such a slot. */
static bool settle_copies(struct sim *s)
{
    bool freed = false;

    for (uint32_t i = 0; i < s->nparam_slots; i++) {
        struct sim_param_slot *p = &s->pslot[i];
        if (!p->copying || !hl_sim_done(s, p->copied))
            continue;
        p->copying = false;
        p->dirty |= p->refreshed;
        p->refreshed = false;
        freed = true;
    }
    return freed;
}

static bool wants_read(const struct sim *s, uint32_t unit)
{
    return s->unit[unit].param_paged && find_param(s, unit) < 0 &&
           hl_sim_find_frame(s, unit, true) < 0;
}

static int choose_param(struct sim *s, uint32_t *unit)
{
    const uint64_t len = hl_order_len(&s->order);

    if (s->param_demand >= 0 && find_param(s, (uint32_t)s->param_demand) < 0) {
        *unit = (uint32_t)s->param_demand;
        return victim(s, s->pos);
    }
    if (s->demand >= 0 && wants_read(s, (uint32_t)s->demand)) {
        *unit = (uint32_t)s->demand;
        return victim(s, s->pos);
    }
    for (uint64_t k = s->pos;
         s->o->overlap && k < len && k < s->pos + 2ull * (s->nframes + s->nparam_slots); k++) {
        *unit = hl_order_unit(&s->order, k);
        if (!s->unit[*unit].param_paged || !wants_read(s, *unit))
            continue;
        return s->unit[*unit].update != SIM_IDLE ? -1 : victim(s, k);
    }
    return -1;
}

static bool params(struct sim *s)
{
    uint32_t unit;

    if (s->nparam_slots == 0)
        return false;
    bool freed = settle_copies(s);
    for (uint32_t i = 0; i < s->nparam_slots; i++) {
        struct sim_param_slot *p = &s->pslot[i];
        if (!p->dirty || p->updating)
            continue;
        p->dirty = false;
        p->writing = true;
        unit = (uint32_t)s->pframe[i].unit;
        return submit(s, SIM_PARAM, (int)i, unit, s->unit[unit].param_extent_bytes, true);
    }
    int i = choose_param(s, &unit);
    if (i < 0)
        return freed;
    s->pframe[i].unit = unit;
    s->pslot[i].reading = true;
    return submit(s, SIM_PARAM, i, unit, s->unit[unit].param_extent_bytes, false);
}

int hl_sim_param_take(struct sim *s, uint32_t unit, bool load)
{
    int i = find_param(s, unit);

    if (i < 0 && load) {
        s->param_demand = unit;
        return -1;
    }
    if (i < 0)
        i = victim(s, s->pos);
    if (i < 0 || s->pslot[i].reading || s->pslot[i].dirty || s->pslot[i].writing)
        return -1;
    s->pframe[i].unit = unit;
    s->pslot[i].updating = true;
    s->param_demand = -1;
    return i;
}

bool hl_sim_param_waits_for_write(struct sim *s, uint32_t unit)
{
    int i = find_param(s, unit);

    return i >= 0 ? !s->pslot[i].reading : victim(s, s->pos) < 0;
}

/* ---- ends of transfers ---- */

void hl_sim_transfer_done(struct sim *s, const struct sim_op *op, bool write)
{
    s->flight_bytes -= op->bytes;
    switch (op->kind) {
    case SIM_RECORD:
        s->rslot[op->slot].state = write ? SIM_FREE : SIM_READY;
        break;
    case SIM_PARAM:
        s->pslot[op->slot].reading = s->pslot[op->slot].writing = false;
        break;
    case SIM_STASH:
        hl_sim_stash_transfer_done(s, op, write);
        break;
    }
}

bool hl_sim_pump(struct sim *s)
{
    return publish(s) || hl_sim_take_turn(s) || prefetch(s) || records(s) || params(s) ||
           hl_sim_pump_stash(s);
}
