/* sim_stash.c: activation checkpoints, last in, first out. Counterpart: lib/engine/stash.c. */
#include "sim_state.h"

static int free_slot(const struct sim *s)
{
    for (uint32_t i = 0; i < s->nsslots; i++)
        if (!s->sslot[i].used && !s->sslot[i].writing && !s->sslot[i].leaving)
            return (int)i;
    return -1;
}

static bool short_of_slots(const struct sim *s)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < s->nsslots; i++)
        n += !s->sslot[i].used && !s->sslot[i].writing && !s->sslot[i].leaving;
    return n < 2;
}

static bool place_is_busy(const struct sim *s, uint32_t entry)
{
    for (uint32_t i = 0; i < s->nsslots; i++)
        if (s->sslot[i].writing && s->sslot[i].entry == entry)
            return true;
    return false;
}

/* ---- the pump ---- */

static int choose_write(struct sim *s)
{
    if (s->shrinking || !short_of_slots(s))
        return -1;
    for (uint32_t i = 0; i < s->depth; i++) {
        struct sim_stash_entry *e = &s->entry[i];
        if (e->state == SIM_GOING)
            return -1;
        if (e->state != SIM_IN_HOST)
            continue;
        if (place_is_busy(s, i) || !hl_sim_done(s, s->sslot[e->slot].done))
            return -1;
        e->state = SIM_GOING;
        s->sslot[e->slot].writing = true;
        return e->slot;
    }
    return -1;
}

static int choose_read(struct sim *s)
{
    int slot = free_slot(s);

    if (slot < 0 || (!s->shrinking && !s->stash_waiting))
        return -1;
    for (uint32_t i = s->depth; i-- > 0;) {
        struct sim_stash_entry *e = &s->entry[i];
        if (e->state != SIM_ON_NVME)
            continue;
        e->state = SIM_COMING;
        e->slot = slot;
        s->sslot[slot].used = true;
        s->sslot[slot].entry = i;
        return slot;
    }
    return -1;
}

static bool submit(struct sim *s, int slot, bool write)
{
    (void)hl_sim_put(s, write ? SIM_WRITE : SIM_READ,
                     (struct sim_op){.idle_s = s->o->rates.drive_latency_s,
                                     .work = (double)s->stash_slot_bytes,
                                     .bytes = s->stash_slot_bytes,
                                     .unit = -1,
                                     .slot = slot,
                                     .kind = SIM_STASH});
    s->flight_bytes += s->stash_slot_bytes;
    return true;
}

bool hl_sim_pump_stash(struct sim *s)
{
    bool freed = false;
    int slot;

    for (uint32_t i = 0; i < s->nsslots; i++)
        if (s->sslot[i].leaving && hl_sim_done(s, s->sslot[i].done)) {
            s->sslot[i].leaving = false;
            freed = true;
        }
    if (s->nsslots >= s->nentries)
        return freed;
    if ((slot = choose_write(s)) >= 0)
        return submit(s, slot, true);
    slot = choose_read(s);
    return slot < 0 ? freed : submit(s, slot, false);
}

void hl_sim_stash_transfer_done(struct sim *s, const struct sim_op *op, bool write)
{
    struct sim_stash_slot *slot = &s->sslot[op->slot];
    struct sim_stash_entry *e = slot->entry < s->depth ? &s->entry[slot->entry] : NULL;
    const bool mine = e && e->slot == op->slot;

    if (!write) {
        if (mine && e->state == SIM_COMING)
            e->state = SIM_IN_HOST;
        return;
    }
    slot->writing = false;
    if (mine && e->state == SIM_GOING) {
        e->state = SIM_ON_NVME;
        e->slot = -1;
        slot->used = false;
    }
}

/* ---- the trainer ---- */

bool hl_sim_stash_put(struct sim *s, uint64_t bytes, int32_t unit)
{
    int i;

    s->shrinking = false;
    i = free_slot(s);
    if (i < 0)
        return false;
    struct sim_stash_slot *slot = &s->sslot[i];
    slot->used = true;
    slot->entry = s->depth;
    s->entry[s->depth++] = (struct sim_stash_entry){SIM_IN_HOST, i, bytes};
    slot->done = hl_sim_put(s, SIM_D2H,
                            (struct sim_op){.idle_s = s->o->rates.link_latency_s,
                                            .work = (double)bytes,
                                            .bytes = bytes,
                                            .wait = {hl_sim_here(s, SIM_COMPUTE)},
                                            .nwaits = 1,
                                            .unit = unit});
    if (!hl_sim_done(s, s->last_put))
        (void)hl_sim_put(
            s, SIM_COMPUTE,
            (struct sim_op){
                .wait = {s->last_put}, .nwaits = 1, .blame = HAUL_LANE_D2H, .unit = -1});
    s->last_put = slot->done;
    if (s->depth > s->result.most_stashed)
        s->result.most_stashed = s->depth;
    return true;
}

bool hl_sim_stash_take(struct sim *s, int32_t unit)
{
    struct sim_stash_entry *top = &s->entry[s->depth - 1];

    s->shrinking = s->stash_waiting = true;
    if (top->state != SIM_IN_HOST && top->state != SIM_GOING)
        return false;
    struct sim_stash_slot *slot = &s->sslot[top->slot];
    top->state = SIM_IN_HOST;
    s->stash_waiting = false;
    slot->done = hl_sim_put(s, SIM_H2D,
                            (struct sim_op){.idle_s = s->o->rates.link_latency_s,
                                            .work = (double)top->bytes,
                                            .bytes = top->bytes,
                                            .wait = {hl_sim_here(s, SIM_COMPUTE), slot->done},
                                            .nwaits = 2,
                                            .unit = unit});
    (void)hl_sim_put(
        s, SIM_COMPUTE,
        (struct sim_op){.wait = {slot->done}, .nwaits = 1, .blame = HAUL_LANE_H2D, .unit = -1});
    s->depth--;
    slot->used = false;
    slot->leaving = true;
    return true;
}
