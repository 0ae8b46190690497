/*
 * quiesce.c: stop everything that touches the state, so that the trainer's thread can reach into it.
 *
 * Meanwhile the first record slot and the first parameter slot hold the pieces of paged state that are
 * being looked at.
 */
#include <errno.h>
#include <string.h>

#include "engine_state.h"

/* ---- paged pieces at hand ---- */

static int move_chunk(struct haul_engine *e, bool write)
{
    const struct haul_unit *u = e->at_hand.unit;
    uint64_t offset = e->at_hand.chunk * e->record_slot_bytes;
    uint64_t bytes = hl_chunk_bytes(&u->ck, e->at_hand.chunk, e->block_bytes);

    return write ? haul_store_write(e->store, hl_record_extent(u), offset, e->rslot[0].mem, bytes)
                 : haul_store_read(e->store, hl_record_extent(u), offset, e->rslot[0].mem, bytes);
}

static int move_params(struct haul_engine *e, bool write)
{
    const struct haul_unit *u = e->params_at_hand.unit;

    return write ? haul_store_write(e->store, hl_param_extent(u), 0, e->pslot[0].mem,
                                    u->param_extent_bytes)
                 : haul_store_read(e->store, hl_param_extent(u), 0, e->pslot[0].mem,
                                   u->param_extent_bytes);
}

static int put_back_chunk(struct haul_engine *e)
{
    int rc = e->at_hand.unit && e->at_hand.dirty ? move_chunk(e, true) : 0;

    e->at_hand.unit = NULL;
    e->at_hand.dirty = false;
    return rc;
}

static int put_back_params(struct haul_engine *e)
{
    int rc = e->params_at_hand.unit && e->params_at_hand.dirty ? move_params(e, true) : 0;

    e->params_at_hand.unit = NULL;
    e->params_at_hand.dirty = false;
    return rc;
}

int hl_chunk_at_hand(struct haul_unit *u, uint32_t chunk, bool write)
{
    struct haul_engine *e = u->engine;

    if (e->at_hand.unit != u || e->at_hand.chunk != chunk) {
        int rc = put_back_chunk(e);
        if (rc < 0)
            return rc;
        e->at_hand.unit = u;
        e->at_hand.chunk = chunk;
        rc = move_chunk(e, false);
        if (e->overwrites && (rc == HAUL_E_CHECKSUM || rc == -EIO)) {
            memset(e->rslot[0].mem, 0, hl_chunk_bytes(&u->ck, chunk, e->block_bytes));
            rc = 0;
        }
        if (rc < 0) {
            e->at_hand.unit = NULL;
            return rc;
        }
    }
    e->at_hand.dirty |= write;
    return 0;
}

int hl_params_at_hand(struct haul_unit *u, bool write)
{
    struct haul_engine *e = u->engine;

    if (e->params_at_hand.unit != u) {
        int rc = put_back_params(e);
        if (rc < 0)
            return rc;
        e->params_at_hand.unit = u;
        if ((rc = move_params(e, false)) < 0) {
            e->params_at_hand.unit = NULL;
            return rc;
        }
    }
    e->params_at_hand.dirty |= write;
    return 0;
}

/* ---- stopping and going on ---- */

static bool all_quiet(struct haul_engine *e)
{
    bool quiet;

    hl_spin_lock(&e->lock);
    quiet = hl_slots_quiet(e);
    for (uint32_t i = 0; i < e->nframes; i++)
        quiet &= !e->frame[i].pinned;
    hl_spin_unlock(&e->lock);
    return quiet;
}

/* What window and slots hold may be about to change. */
static void forget_copies(struct haul_engine *e)
{
    hl_spin_lock(&e->lock);
    for (uint32_t i = 0; i < e->nframes; i++) {
        e->frame[i].unit = -1;
        e->wframe[i].ready = 0;
    }
    for (uint32_t i = 0; i < e->nparam_slots; i++) {
        e->pframe[i].unit = -1;
        e->pslot[i].copying = false;
    }
    hl_spin_unlock(&e->lock);
}

int hl_engine_quiesce(struct haul_engine *e)
{
    int rc = hl_snapshot_settle(e);

    if (rc == 0)
        rc = hl_turns_drain(e);
    if (rc == 0)
        rc = haul_engine_sync(e);
    if (rc < 0)
        return rc;
    if (e->nheld)
        return hl_fail(HAUL_E_STATE, "engine: %u units are held; release them first", e->nheld);
    hl_spin_lock(&e->lock);
    e->pos = HL_NEVER;
    e->paused = true;
    hl_spin_unlock(&e->lock);
    for (;;) {
        uint32_t seen = hl_gate_look(&e->gate);
        hl_record_slots_drop(e);
        if (all_quiet(e))
            break;
        if ((rc = hl_engine_check(e)) < 0)
            return rc;
        hl_gate_sleep(&e->gate, seen);
    }
    rc = e->ops->stream_sync(e->dev, e->h2d);
    if (rc == 0 && e->comm)
        rc = e->ops->stream_sync(e->dev, e->comm_stream);
    if (rc == 0 && e->comm)
        rc = e->ops->stream_sync(e->dev, e->d2h);
    forget_copies(e);
    return rc;
}

int hl_engine_resume(struct haul_engine *e, uint64_t pos)
{
    int rc = put_back_chunk(e), rc_params = put_back_params(e);

    rc = rc < 0 ? rc : rc_params;
    if (e->pulls) { /* what the others may have written is there; all have come as far */
        int rc_met = e->comm->ops->barrier(e->comm);
        rc = rc < 0 ? rc : rc_met;
    }
    hl_spin_lock(&e->lock);
    e->overwrites = false;
    e->pos = pos;
    e->paused = false;
    hl_spin_unlock(&e->lock);
    hl_gate_wake(&e->gate);
    return rc;
}
