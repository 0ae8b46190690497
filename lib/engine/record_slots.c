/*
 * record_slots.c: paged records on their way between nvme and the optimizer.
 *
 * Chunks are read in update order as slots come free, also while the step's gradients are still on their
 * way, updated by optim, and written back. States: struct hl_record_slot in engine_state.h.
 *
 * Hot path: nothing here allocates or logs; only optim waits, for the chunk it needs next.
 */
#include "clock.h"
#include "engine_state.h"

/* ---- completions, on the store's thread ---- */

static uint64_t bytes_of(const struct hl_record_slot *slot)
{
    return hl_chunk_bytes(&slot->unit->ck, slot->chunk, slot->engine->block_bytes);
}

/* Under lock. */
static void trace_slots(struct haul_engine *e)
{
    uint64_t used = 0, moving = 0;

    for (uint32_t i = 0; hl_trace_on(e) && i < e->nrecord_slots; i++) {
        enum hl_slot_state st = e->rslot[i].state;
        used += st != HL_SLOT_FREE;
        if (st == HL_SLOT_READING || st == HL_SLOT_WRITING)
            moving += bytes_of(&e->rslot[i]);
    }
    hl_trace_counter(e, HAUL_TRACE_SLOTS, used);
    hl_trace_counter(e, HAUL_TRACE_IN_FLIGHT, moving);
}

static void set_state(struct hl_record_slot *slot, enum hl_slot_state to)
{
    struct haul_engine *e = slot->engine;

    hl_spin_lock(&e->lock);
    slot->state = to;
    trace_slots(e);
    hl_spin_unlock(&e->lock);
    hl_gate_wake(&e->gate);
}

static void read_done(void *user, int rc)
{
    struct hl_record_slot *slot = user;

    hl_trace_span(slot->engine, HAUL_LANE_IO_READ, (int32_t)slot->unit->index, slot->submitted_ns,
                  bytes_of(slot));

    if (rc < 0)
        hl_engine_fail(slot->engine, rc);
    hl_spin_lock(&slot->engine->lock);
    bool drop = slot->drop || rc < 0;
    hl_spin_unlock(&slot->engine->lock);
    set_state(slot, drop ? HL_SLOT_FREE : HL_SLOT_READY);
}

static void write_done(void *user, int rc)
{
    struct hl_record_slot *slot = user;

    hl_trace_span(slot->engine, HAUL_LANE_IO_WRITE, (int32_t)slot->unit->index, slot->submitted_ns,
                  bytes_of(slot));

    if (rc < 0)
        hl_engine_fail(slot->engine, rc);
    set_state(slot, HL_SLOT_FREE);
}

/* ---- the pump ---- */

static int submit(struct hl_record_slot *slot, bool write)
{
    struct haul_engine *e = slot->engine;
    struct haul_io io = {.write = write,
                         .extent = hl_record_extent(slot->unit),
                         .offset = slot->chunk * e->record_slot_bytes,
                         .buf = slot->mem,
                         .bytes = bytes_of(slot),
                         .urgent = !write,
                         .fn = write ? write_done : read_done,
                         .user = slot};

    slot->submitted_ns = hl_clock_ns();
    return haul_store_submit(e->store, &io, NULL);
}

/* Under lock: the slot that has to do with a chunk; NULL. */
static struct hl_record_slot *find(const struct haul_engine *e, const struct haul_unit *u,
                                   uint32_t chunk)
{
    for (uint32_t i = 0; i < e->nrecord_slots; i++)
        if (e->rslot[i].state != HL_SLOT_FREE && e->rslot[i].unit == u &&
            e->rslot[i].chunk == chunk)
            return &e->rslot[i];
    return NULL;
}

static struct hl_record_slot *find_state(const struct haul_engine *e, enum hl_slot_state state)
{
    for (uint32_t i = 0; i < e->nrecord_slots; i++)
        if (e->rslot[i].state == state)
            return &e->rslot[i];
    return NULL;
}

/* Under lock: take a free slot for the next chunk to read; NULL when there is none to read now. */
static struct hl_record_slot *next_read(struct haul_engine *e)
{
    for (; !e->paused && e->read_at < e->npaged; e->read_at++) {
        const struct hl_paged_chunk *next = &e->paged[e->read_at];
        struct hl_record_slot *slot = find(e, next->unit, next->chunk);
        /* While updates run, only their units' records are wanted. */
        if (atomic_load(&e->nupdates) && atomic_load(&next->unit->update) == HL_UPDATE_IDLE)
            continue;
        if (slot && !slot->drop && (slot->state == HL_SLOT_READING || slot->state == HL_SLOT_READY))
            continue;
        if (slot) /* not before what is being written has arrived */
            return NULL;
        slot = find_state(e, HL_SLOT_FREE);
        if (!slot)
            return NULL;
        slot->state = HL_SLOT_READING;
        slot->drop = false;
        slot->unit = next->unit;
        slot->chunk = next->chunk;
        e->read_at++;
        return slot;
    }
    return NULL;
}

int hl_pump_records(struct haul_engine *e)
{
    if (e->nrecord_slots == 0)
        return 0;
    hl_spin_lock(&e->lock);
    struct hl_record_slot *write = find_state(e, HL_SLOT_UPDATED);
    if (write)
        write->state = HL_SLOT_WRITING;
    bool ahead = e->opts.overlap || atomic_load(&e->nupdates);
    struct hl_record_slot *read = write || !ahead ? NULL : next_read(e);
    hl_spin_unlock(&e->lock);
    if (!write && !read)
        return 0;
    int rc = submit(write ? write : read, write != NULL);
    return rc < 0 ? rc : 1;
}

/* ---- optim ---- */

/* Under lock: the chunk, in slot or in none, cannot be read before a write is done. */
static bool waits_for_write(const struct haul_engine *e, const struct hl_record_slot *slot)
{
    if (slot)
        return slot->state == HL_SLOT_UPDATED || slot->state == HL_SLOT_WRITING;
    return !find_state(e, HL_SLOT_FREE) &&
           (find_state(e, HL_SLOT_UPDATED) || find_state(e, HL_SLOT_WRITING));
}

struct hl_record_slot *hl_record_slot_take(struct haul_unit *u, uint32_t chunk)
{
    struct haul_engine *e = u->engine;
    uint64_t since = hl_clock_ns(), now;

    for (;;) {
        uint32_t seen = hl_gate_look(&e->gate);
        hl_spin_lock(&e->lock);
        struct hl_record_slot *slot = find(e, u, chunk);
        bool ready = slot && slot->state == HL_SLOT_READY && !slot->drop;
        if (ready)
            slot->state = HL_SLOT_UPDATING;
        bool write = waits_for_write(e, slot);
        hl_spin_unlock(&e->lock);
        if (ready)
            return slot;
        if (atomic_load(&e->stop) || atomic_load(&e->failed))
            return NULL;
        hl_gate_sleep(&e->gate, seen);
        now = hl_clock_ns();
        hl_io_wait_add(e, write, since, now);
        since = now;
    }
}

void hl_record_slot_updated(struct hl_record_slot *slot)
{
    set_state(slot, HL_SLOT_UPDATED);
}

void hl_record_slots_rewind(struct haul_engine *e)
{
    hl_spin_lock(&e->lock);
    e->read_at = 0;
    hl_spin_unlock(&e->lock);
    hl_gate_wake(&e->gate);
}

bool hl_record_slot_dirty(const struct haul_engine *e, const struct haul_unit *u, uint32_t chunk)
{
    const struct hl_record_slot *slot = find(e, u, chunk);

    return slot && (slot->state == HL_SLOT_UPDATING || slot->state == HL_SLOT_UPDATED ||
                    slot->state == HL_SLOT_WRITING);
}

/* ---- the trainer's thread ---- */

/* Under lock. */
static void drop_slot(struct hl_record_slot *slot)
{
    if (slot->state == HL_SLOT_READY)
        slot->state = HL_SLOT_FREE;
    else if (slot->state == HL_SLOT_READING)
        slot->drop = true;
}

void hl_record_slots_begin(struct haul_engine *e)
{
    hl_spin_lock(&e->lock);
    for (uint32_t i = 0; i < e->nrecord_slots; i++)
        if (e->rslot[i].unit && atomic_load(&e->rslot[i].unit->update) == HL_UPDATE_IDLE)
            drop_slot(&e->rslot[i]);
    hl_spin_unlock(&e->lock);
}

void hl_record_slots_drop(struct haul_engine *e)
{
    hl_spin_lock(&e->lock);
    for (uint32_t i = 0; i < e->nrecord_slots; i++)
        drop_slot(&e->rslot[i]);
    e->read_at = 0;
    hl_spin_unlock(&e->lock);
}
