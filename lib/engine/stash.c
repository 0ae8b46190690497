/*
 * stash.c: activation checkpoints, last in, first out, in pool slots and past them on nvme.
 *
 * The trainer's thread puts and takes; the pump writes the oldest entries out while the stash grows and
 * reads the newest of those back while it shrinks. States: struct hl_stash_entry in engine_state.h.
 *
 * Hot path: nothing here allocates or logs.
 */
#include "clock.h"
#include "engine_state.h"
#include "sys.h"

#define NO_SLOT     (-1)
#define LEAST_SLOTS 3 /* one to put to, one being written out, one being read back */

/* ---- size ---- */

static uint64_t round_up(uint64_t n, uint64_t step)
{
    return (n + step - 1) / step * step;
}

void hl_stash_size(struct haul_engine *e)
{
    const struct haul_engine_opts *o = &e->opts;
    struct hl_stash *st = &e->stash;
    uint64_t least = LEAST_SLOTS;

    st->nentries = o->stash_entries;
    st->nslots = o->stash_entries;
    st->slot_bytes = round_up(o->stash_entry_bytes, 4096);
    if (o->stash_entries == 0 || o->stash_host_bytes == 0 ||
        o->stash_host_bytes / st->slot_bytes >= o->stash_entries)
        return;
    st->slot_bytes = round_up(o->stash_entry_bytes, e->block_bytes);
    uint64_t n = o->stash_host_bytes / st->slot_bytes;
    n = n < least ? least : n;
    st->nslots = n < st->nentries ? (uint32_t)n : st->nentries;
}

uint64_t hl_stash_nvme_bytes(const struct haul_engine *e)
{
    /* an entry has its own place there, so that none must move */
    return e->stash.nslots < e->stash.nentries ? e->stash.nentries * e->stash.slot_bytes : 0;
}

uint32_t hl_stash_extent(const struct haul_engine *e)
{
    return 2 * e->nunits;
}

/* ---- opening ---- */

int hl_stash_open(struct haul_engine *e)
{
    struct hl_stash *st = &e->stash;
    void *mem;
    int rc;

    if (st->nentries == 0)
        return 0;
    if ((rc = haul_pool_take(e->pool, "stash", st->nslots * st->slot_bytes, &mem)) < 0 ||
        (rc = hl_sys_alloc_array(st->nentries, sizeof *st->entry, (void **)&st->entry)) < 0 ||
        (rc = hl_sys_alloc_array(st->nslots, sizeof *st->slot, (void **)&st->slot)) < 0)
        return rc;
    for (uint32_t i = 0; i < st->nslots; i++) {
        struct hl_stash_slot *s = &st->slot[i];
        s->engine = e;
        s->mem = (char *)mem + i * st->slot_bytes;
        if ((rc = e->ops->event_open(e->dev, &s->ready)) < 0 ||
            (rc = e->ops->event_open(e->dev, &s->done)) < 0)
            return rc;
    }
    return 0;
}

void hl_stash_close(struct haul_engine *e)
{
    struct hl_stash *st = &e->stash;

    for (uint32_t i = 0; st->slot && i < st->nslots; i++) {
        if (st->slot[i].ready)
            e->ops->event_close(e->dev, st->slot[i].ready);
        if (st->slot[i].done)
            e->ops->event_close(e->dev, st->slot[i].done);
    }
    hl_sys_free(st->slot);
    hl_sys_free(st->entry);
    st->slot = NULL;
    st->entry = NULL;
}

/* ---- the pump ---- */

/* Under lock. */
static int free_slot(const struct hl_stash *st)
{
    for (uint32_t i = 0; i < st->nslots; i++)
        if (!st->slot[i].used && !st->slot[i].writing && !st->slot[i].leaving)
            return (int)i;
    return NO_SLOT;
}

/* Under lock: fewer than two free slots: the next put may find none. */
static bool short_of_slots(const struct hl_stash *st)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < st->nslots; i++)
        n += !st->slot[i].used && !st->slot[i].writing && !st->slot[i].leaving;
    return n < 2;
}

/* Under lock: an entry that was taken while it was written out may still be on its way to this place. */
static bool place_is_busy(const struct hl_stash *st, uint32_t entry)
{
    for (uint32_t i = 0; i < st->nslots; i++)
        if (st->slot[i].writing && st->slot[i].entry == entry)
            return true;
    return false;
}

static void trace_transfer(const struct hl_stash_slot *s)
{
    struct haul_engine *e = s->engine;

    if (!hl_trace_on(e))
        return;
    hl_spin_lock(&e->lock);
    bool write = s->writing;
    hl_spin_unlock(&e->lock);
    hl_trace_span(e, write ? HAUL_LANE_IO_WRITE : HAUL_LANE_IO_READ, -1, s->submitted_ns,
                  e->stash.slot_bytes);
}

static void transfer_done(void *user, int rc)
{
    struct hl_stash_slot *s = user;
    struct haul_engine *e = s->engine;
    struct hl_stash *st = &e->stash;

    trace_transfer(s);
    if (rc < 0)
        hl_engine_fail(e, rc);
    hl_spin_lock(&e->lock);
    struct hl_stash_entry *entry = s->entry < st->depth ? &st->entry[s->entry] : NULL;
    bool mine = entry && entry->slot == (int)(s - st->slot);
    if (s->writing) {
        s->writing = false;
        if (mine && entry->state == HL_STASH_WRITING) {
            entry->state = HL_STASH_NVME;
            entry->slot = NO_SLOT;
            s->used = false;
        }
    } else if (mine && entry->state == HL_STASH_READING) {
        entry->state = HL_STASH_HOST;
    }
    hl_spin_unlock(&e->lock);
    hl_gate_wake(&e->gate);
}

static int submit(struct haul_engine *e, uint32_t slot, bool write)
{
    struct hl_stash_slot *s = &e->stash.slot[slot];
    struct haul_io io = {.write = write,
                         .extent = hl_stash_extent(e),
                         .offset = s->entry * e->stash.slot_bytes,
                         .buf = s->mem,
                         .bytes = e->stash.slot_bytes,
                         .urgent = !write,
                         .fn = transfer_done,
                         .user = s};

    s->submitted_ns = hl_clock_ns();
    int rc = haul_store_submit(e->store, &io, NULL);

    return rc < 0 ? rc : 1;
}

/* Under lock: slots whose entry has left for the device. */
static bool settle(struct haul_engine *e, bool *poll)
{
    struct hl_stash *st = &e->stash;
    bool freed = false;

    for (uint32_t i = 0; i < st->nslots; i++) {
        if (!st->slot[i].leaving)
            continue;
        if (e->ops->event_query(e->dev, st->slot[i].done) == 0) {
            *poll = true;
            continue;
        }
        st->slot[i].leaving = false;
        freed = true;
    }
    return freed;
}

/* Under lock: the oldest entry in the pool, landed, to write out; NO_SLOT. */
static int choose_write(struct haul_engine *e, bool *poll)
{
    struct hl_stash *st = &e->stash;

    if (st->shrinking || !short_of_slots(st))
        return NO_SLOT;
    for (uint32_t i = 0; i < st->depth; i++) {
        struct hl_stash_entry *entry = &st->entry[i];
        if (entry->state == HL_STASH_WRITING)
            return NO_SLOT; /* one at a time is enough: each frees a slot */
        if (entry->state != HL_STASH_HOST)
            continue;
        if (place_is_busy(st, i))
            return NO_SLOT;
        if (e->ops->event_query(e->dev, st->slot[entry->slot].done) == 0) {
            *poll = true;
            return NO_SLOT;
        }
        entry->state = HL_STASH_WRITING;
        st->slot[entry->slot].writing = true;
        return entry->slot;
    }
    return NO_SLOT;
}

/* Under lock: the newest entry on nvme, and a slot for it; NO_SLOT. */
static int choose_read(struct haul_engine *e)
{
    struct hl_stash *st = &e->stash;
    int slot = free_slot(st);

    if (slot == NO_SLOT || (!st->shrinking && !st->waiting))
        return NO_SLOT;
    for (uint32_t i = st->depth; i-- > 0;) {
        struct hl_stash_entry *entry = &st->entry[i];
        if (entry->state != HL_STASH_NVME)
            continue;
        entry->state = HL_STASH_READING;
        entry->slot = slot;
        st->slot[slot].used = true;
        st->slot[slot].entry = i;
        return slot;
    }
    return NO_SLOT;
}

int hl_pump_stash(struct haul_engine *e, bool *poll)
{
    bool freed;
    int read = NO_SLOT, write = NO_SLOT;

    if (e->stash.nentries == 0)
        return 0;
    hl_spin_lock(&e->lock);
    freed = settle(e, poll);
    if (e->stash.nslots < e->stash.nentries) {
        write = choose_write(e, poll);
        read = write == NO_SLOT ? choose_read(e) : NO_SLOT;
    }
    hl_spin_unlock(&e->lock);
    if (freed)
        hl_gate_wake(&e->gate);
    if (write != NO_SLOT)
        return submit(e, (uint32_t)write, true);
    return read != NO_SLOT ? submit(e, (uint32_t)read, false) : 0;
}

/* ---- the trainer's thread ---- */

static int check_stash(struct haul_engine *e, const void *buf, const char *name, uint64_t bytes)
{
    int rc;

    if ((rc = hl_need("stash", "engine", e)) < 0 || (rc = hl_need("stash", name, buf)) < 0)
        return rc;
    if (!e->built)
        return hl_fail(HAUL_E_STATE, "stash: the engine is not built");
    if (bytes == 0 || bytes > e->opts.stash_entry_bytes)
        return hl_fail(-EINVAL, "stash: an entry of %llu bytes; 1 to opts.stash_entry_bytes, %llu",
                       (unsigned long long)bytes, (unsigned long long)e->opts.stash_entry_bytes);
    return hl_engine_check(e);
}

/* A slot for a new entry on top, marked used. */
static int wait_for_slot(struct haul_engine *e, uint64_t bytes)
{
    struct hl_stash *st = &e->stash;

    for (;;) {
        uint32_t seen = hl_gate_look(&e->gate);
        int rc = hl_engine_check(e);
        if (rc < 0)
            return rc;
        hl_spin_lock(&e->lock);
        bool turned = st->shrinking;
        st->shrinking = false;
        int slot = free_slot(st);
        if (slot != NO_SLOT) {
            st->slot[slot].used = true;
            st->slot[slot].entry = st->depth;
            st->entry[st->depth] = (struct hl_stash_entry){HL_STASH_HOST, bytes, slot};
        }
        hl_spin_unlock(&e->lock);
        if (slot != NO_SLOT)
            return slot;
        if (turned)
            hl_gate_wake(&e->gate);
        else
            hl_gate_sleep(&e->gate, seen);
    }
}

/* Nothing was copied to the slot. */
static int give_back(struct haul_engine *e, struct hl_stash_slot *s, struct hl_sample *sample,
                     int rc)
{
    if (sample)
        e->nsamples--;
    hl_spin_lock(&e->lock);
    s->used = false;
    hl_spin_unlock(&e->lock);
    hl_gate_wake(&e->gate);
    return rc;
}

int haul_stash_put(struct haul_engine *e, const void *src, uint64_t bytes, void *stream)
{
    int rc = check_stash(e, src, "src", bytes);

    if (rc < 0)
        return rc;
    struct hl_stash *st = &e->stash;
    if (st->depth == st->nentries)
        return hl_fail(HAUL_E_STATE,
                       "stash: %u entries are on it; opts.stash_entries allows no more", st->depth);
    struct hl_sample *sample = hl_sample_begin(e, stream, HAUL_LANE_IO_WRITE);
    int slot = wait_for_slot(e, bytes);
    if (slot < 0)
        return slot;
    struct hl_stash_slot *s = &st->slot[slot];
    if ((rc = e->ops->event_record(e->dev, s->ready, stream)) < 0 ||
        (rc = e->ops->stream_wait(e->dev, e->d2h, s->ready)) < 0 ||
        (rc = e->ops->copy_d2h(e->dev, s->mem, src, bytes, e->d2h)) < 0)
        return give_back(e, s, sample, rc);
    if ((rc = e->ops->event_record(e->dev, s->done, e->d2h)) < 0 ||
        (st->last_put && (rc = e->ops->stream_wait(e->dev, stream, st->last_put)) < 0) ||
        (sample && (rc = hl_sample_end(e, sample, HAUL_LANE_D2H, stream)) < 0)) {
        hl_engine_fail(e, rc); /* a copy is under way to a slot whose end nobody can tell */
        return rc;
    }
    st->last_put = s->done;
    hl_spin_lock(&e->lock);
    st->depth++;
    hl_spin_unlock(&e->lock);
    hl_gate_wake(&e->gate);
    return 0;
}

/* The newest entry's slot, once it is in the pool; the entry is off the stash then. */
static int wait_for_entry(struct haul_engine *e)
{
    struct hl_stash *st = &e->stash;

    for (;;) {
        uint32_t seen = hl_gate_look(&e->gate);
        int rc = hl_engine_check(e), slot = NO_SLOT;
        if (rc < 0)
            return rc;
        hl_spin_lock(&e->lock);
        struct hl_stash_entry *top = &st->entry[st->depth - 1];
        bool turned = !st->shrinking || !st->waiting;
        st->shrinking = st->waiting = true;
        if (top->state == HL_STASH_HOST || top->state == HL_STASH_WRITING) {
            slot = top->slot;
            top->state = HL_STASH_HOST; /* a write that ends now must not give the slot away */
            st->waiting = false;
        }
        hl_spin_unlock(&e->lock);
        if (slot != NO_SLOT)
            return slot;
        if (turned)
            hl_gate_wake(&e->gate);
        else
            hl_gate_sleep(&e->gate, seen);
    }
}

int haul_stash_take(struct haul_engine *e, void *dst, uint64_t bytes, void *stream)
{
    int rc = check_stash(e, dst, "dst", bytes);

    if (rc < 0)
        return rc;
    struct hl_stash *st = &e->stash;
    if (st->depth == 0)
        return hl_fail(HAUL_E_STATE, "stash: it is empty; a take needs a put before it");
    if (st->entry[st->depth - 1].bytes != bytes)
        return hl_fail(HAUL_E_STATE, "stash: the newest entry has %llu bytes, not %llu",
                       (unsigned long long)st->entry[st->depth - 1].bytes,
                       (unsigned long long)bytes);
    struct hl_sample *sample = hl_sample_begin(e, stream, HAUL_LANE_IO_READ);
    int slot = wait_for_entry(e);
    if (slot < 0)
        return slot;
    struct hl_stash_slot *s = &st->slot[slot];
    if ((rc = e->ops->event_record(e->dev, s->ready, stream)) < 0 ||
        (rc = e->ops->stream_wait(e->dev, e->h2d, s->ready)) < 0 ||
        (rc = e->ops->stream_wait(e->dev, e->h2d, s->done)) < 0 ||
        (rc = e->ops->copy_h2d(e->dev, dst, s->mem, bytes, e->h2d)) < 0 ||
        (rc = e->ops->event_record(e->dev, s->done, e->h2d)) < 0 ||
        (rc = e->ops->stream_wait(e->dev, stream, s->done)) < 0 ||
        (sample && (rc = hl_sample_end(e, sample, HAUL_LANE_H2D, stream)) < 0))
        return rc;
    st->last_put = NULL; /* the stream has now waited for every copy before this one */
    hl_spin_lock(&e->lock);
    st->depth--;
    s->used = false;
    s->leaving = true;
    hl_spin_unlock(&e->lock);
    hl_gate_wake(&e->gate);
    return 0;
}
