/*
 * snapshot_behind.c: a snapshot of all state while training goes on.
 *
 * The trainer arms it between two steps. Units whose update is then under way are read after it, the others
 * at once; no unit's next update begins before the unit has been read (enum hl_snap). So the snapshot is of one
 * instant though nothing stands still, and needs no memory here but for the piece in hand: what it costs is that
 * an update waits when the next step's comes before the snapshot's thread has got there. That thread reads ahead of
 * the checkpoint's drive (lib/state/ckpt_stream.h).
 *
 * Lock order and waits: the snapshot's thread waits for updates of the step before it was armed, which never
 * wait for the snapshot, and for writes of the drive. Optim waits for the snapshot's thread alone.
 */
#include <string.h>

#include "access.h"
#include "sys.h"

/* ---- optim and pump ---- */

void hl_snapshot_updated(struct haul_unit *u)
{
    int after = HL_SNAP_AFTER;

    atomic_compare_exchange_strong(&u->snap, &after, HL_SNAP_READ);
}

void hl_snapshot_pass(struct haul_unit *u)
{
    struct haul_engine *e = u->engine;

    while (atomic_load(&u->snap) == HL_SNAP_READ) {
        uint32_t seen = hl_gate_look(&e->gate);
        if (atomic_load(&e->stop) || atomic_load(&e->failed))
            return;
        if (atomic_load(&u->snap) == HL_SNAP_READ)
            hl_gate_sleep(&e->gate, seen);
    }
}

/* ---- the trainer's thread ---- */

void hl_snapshot_meet(struct haul_engine *e)
{
    if (e->snap.armed && e->snap.hooks.meet)
        e->snap.hooks.meet(e->snap.hooks.user);
}

int hl_snapshot_settle(struct haul_engine *e)
{
    hl_snapshot_meet(e);
    for (uint32_t i = 0; e->snap.armed && i < e->nunits;) {
        uint32_t seen = hl_gate_look(&e->gate);
        int rc = hl_engine_check(e);
        if (rc < 0)
            return rc;
        if (atomic_load(&e->units[i]->snap) == HL_SNAP_NONE)
            i++;
        else
            hl_gate_sleep(&e->gate, seen);
    }
    return 0;
}

static int take_memory(struct haul_engine *e)
{
    int rc = hl_sys_alloc_aligned(4096, HL_BOUNCE_BYTES, (void **)&e->snap.bounce);

    if (rc == 0 && e->nrecord_slots)
        rc = hl_sys_alloc_aligned(4096, e->record_slot_bytes, (void **)&e->snap.chunk);
    if (rc == 0 && e->nparam_slots)
        rc = hl_sys_alloc_aligned(4096, HL_SNAP_PARAM_BYTES, (void **)&e->snap.params);
    return rc < 0 ? rc : e->ops->stream_open(e->dev, 0, &e->snap.stream);
}

static void give_memory(struct haul_engine *e)
{
    if (e->snap.stream)
        e->ops->stream_close(e->dev, e->snap.stream);
    hl_sys_free(e->snap.bounce);
    hl_sys_free(e->snap.chunk);
    hl_sys_free(e->snap.params);
    memset(&e->snap, 0, sizeof e->snap);
}

int hl_snapshot_arm(struct haul_engine *e, const struct hl_snapshot_hooks *hooks)
{
    int rc = take_memory(e);

    if (rc < 0) {
        give_memory(e);
        return rc;
    }
    e->snap.hooks = *hooks;
    e->snap.armed = true;
    for (uint32_t i = 0; i < e->nunits; i++) {
        struct haul_unit *u = e->units[i];
        atomic_store(&u->snap, HL_SNAP_AFTER);
        if (atomic_load(&u->update) == HL_UPDATE_IDLE)
            hl_snapshot_updated(u);
    }
    return 0;
}

void *hl_snapshot_user(const struct haul_engine *e)
{
    return e->snap.armed ? e->snap.hooks.user : NULL;
}

void hl_snapshot_disarm(struct haul_engine *e)
{
    hl_snapshot_stop(e);
    for (uint32_t i = 0; i < e->nunits; i++)
        hl_snapshot_unit_read(e, i);
    give_memory(e);
}

bool hl_snapshot_written(const struct haul_engine *e)
{
    return e->snap.armed && e->snap.hooks.written(e->snap.hooks.user);
}

void hl_snapshot_all_written(struct haul_engine *e)
{
    e->snap.hooks.all_written(e->snap.hooks.user);
}

void hl_snapshot_abandon(struct haul_engine *e)
{
    if (e->snap.armed)
        e->snap.hooks.abandon(e->snap.hooks.user);
}

/* ---- the snapshot's thread ---- */

void hl_snapshot_stop(struct haul_engine *e)
{
    atomic_store(&e->snap.stop, 1);
    for (uint32_t i = 0; i < e->nunits; i++)
        if (!hl_snapshot_is_kept(e, i)) /* a generation of it may be in the making */
            atomic_store(&e->units[i]->snap, HL_SNAP_NONE);
    hl_gate_wake(&e->gate);
}

void hl_snapshot_unit_read(struct haul_engine *e, uint32_t unit)
{
    atomic_store(&e->units[unit]->snap, HL_SNAP_NONE);
    hl_gate_wake(&e->gate);
}

static int check(struct haul_engine *e)
{
    int rc = hl_engine_check(e);

    if (rc < 0 || !atomic_load(&e->snap.stop))
        return rc;
    return hl_fail(HAUL_E_STATE, "checkpoint: given up before it was complete");
}

int hl_snapshot_intact(struct haul_engine *e)
{
    return check(e);
}

static int wait_for_update(struct haul_unit *u)
{
    struct haul_engine *e = u->engine;

    for (;;) {
        uint32_t seen = hl_gate_look(&e->gate);
        int rc = check(e);
        if (rc < 0 || atomic_load(&u->snap) != HL_SNAP_AFTER)
            return rc;
        hl_gate_sleep(&e->gate, seen);
    }
}

/* Until what optim has written is on the drive. chunk -1: of the parameters. */
static int wait_for_drive(struct haul_unit *u, int64_t chunk)
{
    struct haul_engine *e = u->engine;

    for (;;) {
        uint32_t seen = hl_gate_look(&e->gate);
        int rc = check(e);
        hl_spin_lock(&e->lock);
        bool dirty =
            chunk < 0 ? hl_param_slot_dirty(e, u) : hl_record_slot_dirty(e, u, (uint32_t)chunk);
        hl_spin_unlock(&e->lock);
        if (rc < 0 || !dirty)
            return rc;
        hl_gate_sleep(&e->gate, seen);
    }
}

int hl_snapshot_chunk(struct haul_unit *u, uint32_t chunk)
{
    struct haul_engine *e = u->engine;
    int rc;

    if (e->snap.chunk_u == u && e->snap.chunk_i == chunk)
        return 0;
    e->snap.chunk_u = NULL;
    if ((rc = wait_for_drive(u, chunk)) < 0)
        return rc;
    rc = haul_store_read(e->store, hl_record_extent(u), chunk * e->record_slot_bytes, e->snap.chunk,
                         hl_chunk_bytes(&u->ck, chunk, e->block_bytes));
    if (rc < 0)
        return rc;
    e->snap.chunk_u = u;
    e->snap.chunk_i = chunk;
    return 0;
}

/* Whole windows are read: a piece's bytes, and what follows them. */
int hl_snapshot_params(struct haul_unit *u, uint64_t at, uint64_t bytes, char **out)
{
    struct haul_engine *e = u->engine;
    uint64_t left = u->param_extent_bytes - at;
    int rc;

    if (e->snap.params_u != u || at < e->snap.params_at ||
        at + bytes > e->snap.params_at + e->snap.params_bytes) {
        e->snap.params_u = NULL;
        if ((rc = wait_for_drive(u, -1)) < 0)
            return rc;
        e->snap.params_at = at;
        e->snap.params_bytes = left < HL_SNAP_PARAM_BYTES ? left : HL_SNAP_PARAM_BYTES;
        rc =
            haul_store_read(e->store, hl_param_extent(u), at, e->snap.params, e->snap.params_bytes);
        if (rc < 0)
            return rc;
        e->snap.params_u = u;
    }
    *out = e->snap.params + (at - e->snap.params_at);
    return 0;
}

int hl_snapshot_read_behind(struct haul_engine *e, uint32_t unit, uint32_t tensor, uint64_t first,
                            uint64_t n, float *p, float *m, float *v)
{
    struct haul_unit *u = e->units[unit];
    int rc = wait_for_update(u);

    for (uint64_t done = 0; rc == 0 && done < n;) {
        struct hl_piece pc = hl_piece_of(u, tensor, first + done, n - done);
        rc = check(e);
        if (rc == 0)
            rc = m ? hl_piece_read_behind(&pc, p + done, m + done, v + done)
                   : hl_piece_read_rest(&pc, true, p + done);
        done += pc.n;
    }
    return rc;
}

int hl_snapshot_settled(struct haul_engine *e)
{
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < e->nunits; i++) {
        struct haul_unit *u = e->units[i];
        if (!hl_snapshot_is_kept(e, i))
            continue;
        rc = wait_for_update(u);
        for (uint32_t c = 0; rc == 0 && c < u->ck.nchunks; c++)
            rc = wait_for_drive(u, c);
    }
    return rc;
}
