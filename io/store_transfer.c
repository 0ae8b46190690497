/* store_transfer.c: what happens to one block. See enum hl_step for the states.
 * Runs on the I/O thread. Hot path: no allocation, no log, no lock. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "checksum.h"
#include "clock.h"
#include "transfer.h"

/* ---- steps ---- */

static uint64_t checksum(struct haul_store *s, const void *p, size_t bytes)
{
    uint64_t begun_ns = hl_clock_ns(), sum = hl_checksum(p, bytes);

    s->check_ns += hl_clock_ns() - begun_ns;
    return sum;
}

static int wants_sums(const struct haul_store *s)
{
    return s->opts.durable || s->opts.verify != HAUL_VERIFY_OFF;
}

/* Publish the content once it is on the drive and its checksum known. */
static void written(struct haul_store *s, struct hl_xfer *x)
{
    struct hl_block *blk = hl_xfer_block(x);

    if (!x->io_done || !x->sum_done)
        return;
    blk->slot = x->slot;
    blk->sum = x->sum;
    blk->bytes = hl_block_len(s, x->ext, x->block);
    blk->generation = 0;
    blk->torn = 0;
    hl_xfer_release(s, x);
}

static void begin_write(struct haul_store *s, struct hl_xfer *x, uint8_t slot)
{
    uint32_t len = hl_block_len(s, x->ext, x->block);

    x->step = HL_WRITE;
    x->in_place = slot == hl_xfer_block(x)->slot;
    x->slot = slot;
    x->start = 0;
    x->bytes = x->bounce < 0 ? len : hl_round_up(len, hl_xfer_align(s, x));
    x->moved = x->tries = 0;
    x->io_done = 0;
    x->sum_done = !wants_sums(s);
    x->in_flight = 0;
    if (!x->sum_done)
        hl_work_put(s, x); /* made while the drive writes */
    hl_xfer_issue(s, x);
}

/* The slot that neither the current nor the older generation needs; NONE: both do. */
static uint8_t free_slot(const struct haul_store *s, const struct hl_block *blk)
{
    for (uint8_t slot = 0; slot < s->nslots; slot++)
        if (slot != blk->held && slot != blk->older)
            return slot;
    return HL_SLOT_NONE;
}

/* An unpublished slot is written again in place: no generation knows it. */
static uint8_t target_slot(const struct haul_store *s, const struct hl_block *blk)
{
    if (blk->slot != HL_SLOT_NONE && blk->slot != blk->held && blk->slot != blk->older)
        return blk->slot;
    return free_slot(s, blk);
}

static void fail_sum(struct haul_store *s, struct hl_xfer *x, uint64_t found)
{
    struct hl_block *blk = hl_xfer_block(x);

    s->checksum_errors++;
    hl_xfer_fail(s, x, HAUL_E_CHECKSUM,
                 "checksum of %s at offset %" PRIu64 " (extent %u, block %" PRIu64
                 ", %u bytes): expected "
                 "%016" PRIx64 ", found %016" PRIx64,
                 s->dirs[blk->dir].label, hl_xfer_offset(s, x), x->ext->id, x->block, blk->bytes,
                 blk->sum, found);
}

/* Compare what was read; clears what must not be handed out. 0: handled, the transfer is gone. */
static int content_good(struct haul_store *s, struct hl_xfer *x)
{
    struct hl_block *blk = hl_xfer_block(x);
    uint64_t found;

    if (!x->check)
        return 1;
    found = checksum(s, x->mem, blk->bytes);
    if (found == blk->sum)
        return 1;
    if (x->bounce < 0)
        memset(x->mem, 0, x->bytes);
    fail_sum(s, x, found);
    return 0;
}

static void work_check(struct haul_store *s, struct hl_xfer *x)
{
    struct hl_block *blk = hl_xfer_block(x);

    if (!content_good(s, x))
        return;
    if (x->bounce >= 0) {
        if (x->to > blk->bytes) /* beyond what was ever written */
            memset(x->mem + blk->bytes, 0, x->to - blk->bytes);
        hl_segs_put(x->op, x->seg, x->seg_offset, x->mem + x->from, x->to - x->from);
    }
    hl_xfer_release(s, x);
}

static void work_merge(struct haul_store *s, struct hl_xfer *x)
{
    struct hl_block *blk = hl_xfer_block(x);
    uint32_t len = hl_block_len(s, x->ext, x->block),
             padded = hl_round_up(len, hl_xfer_align(s, x));
    uint32_t valid = blk->slot == HL_SLOT_NONE ? 0 : blk->bytes;

    if (x->from > 0 || x->to < len) {
        if (valid && !content_good(s, x))
            return;
        memset(x->mem + valid, 0, padded - valid);
    } else {
        memset(x->mem + len, 0, padded - len);
    }
    hl_segs_get(x->op, x->seg, x->seg_offset, x->mem + x->from, x->to - x->from);
    begin_write(s, x, target_slot(s, blk));
}

static void work_sum(struct haul_store *s, struct hl_xfer *x)
{
    x->sum = checksum(s, x->mem, hl_block_len(s, x->ext, x->block));
    x->sum_done = 1;
    written(s, x);
}

void hl_transfer_work(struct haul_store *s)
{
    struct hl_xfer *x = s->work.head;

    if (!x)
        return;
    s->work.head = x->next;
    if (!s->work.head)
        s->work.tail = NULL;
    if (x->step == HL_CHECK) {
        work_check(s, x);
    } else if (x->step == HL_MERGE) {
        work_merge(s, x);
    } else if (x->step == HL_ZERO) {
        hl_segs_put(x->op, x->seg, x->seg_offset, NULL, x->to - x->from);
        hl_xfer_release(s, x);
    } else {
        work_sum(s, x);
    }
}

static void moved_all(struct haul_store *s, struct hl_xfer *x)
{
    struct hl_meter *m = x->step == HL_WRITE ? &s->write : &s->read;

    m->s.blocks++;
    m->s.disk_bytes += x->bytes;
    m->s.bounced += x->bounce >= 0;
    hl_buffered_after(s, hl_xfer_block(x)->dir, x->step == HL_WRITE,
                      hl_xfer_offset(s, x) + x->start, x->bytes);
    if (x->step == HL_WRITE) {
        x->io_done = 1;
        written(s, x);
        return;
    }
    x->step = x->step == HL_READ ? HL_CHECK : HL_MERGE;
    hl_work_put(s, x);
}

void hl_transfer_done(struct haul_store *s, const struct hl_done *done)
{
    uint32_t index = (uint32_t)done->tag;
    struct hl_xfer *x = index < s->nxfers ? &s->xfers[index] : NULL;

    if (!x || x->step == HL_FREE || !x->in_flight || x->serial != done->tag >> 32) {
        s->stale++;
        return;
    }
    x->in_flight = 0;
    hl_meter_move(hl_xfer_meter(s, x), -1, hl_clock_ns());
    if (done->result < 0)
        hl_xfer_refused(s, x, (int)done->result);
    else if (done->result > (int64_t)(x->bytes - x->moved))
        hl_xfer_fail_io(s, x, -EIO, "more bytes reported than asked for");
    else if (done->result < (int64_t)(x->bytes - x->moved))
        hl_xfer_resume(s, x, (uint32_t)done->result);
    else
        moved_all(s, x);
}

/* ---- beginnings ---- */

/* The part of the block that the request wants next. */
static void cut(const struct haul_store *s, struct hl_xfer *x, struct hl_op *op)
{
    uint64_t at = op->offset + op->cursor, left = op->bytes - op->cursor;
    uint32_t room;

    x->op = op;
    x->ext = op->ext;
    x->block = at / s->opts.block_bytes;
    x->from = (uint32_t)(at % s->opts.block_bytes);
    room = s->opts.block_bytes - x->from;
    x->to = x->from + (left < room ? (uint32_t)left : room);
    x->seg = op->seg;
    x->seg_offset = op->seg_offset;
}

static int aligned(const struct haul_store *s, const struct hl_xfer *x, const char *mem,
                   uint32_t start, uint32_t bytes)
{
    const struct hl_dir *d = &s->dirs[hl_xfer_block(x)->dir];

    return mem && (uintptr_t)mem % d->mem_align == 0 && start % d->align == 0 &&
           bytes % d->align == 0;
}

static int wants_check(struct haul_store *s, const struct hl_op *op)
{
    if (op->force_check || s->opts.verify == HAUL_VERIFY_ALWAYS)
        return 1;
    return s->opts.verify == HAUL_VERIFY_SAMPLE && s->sample_count++ % s->opts.verify_every == 0;
}

/* Take a bounce block as the transfer's memory; 0: none is free. */
static int take_bounce(struct haul_store *s, struct hl_xfer *x)
{
    if (!s->nbounce_free)
        return 0;
    x->bounce = (int)s->bounce_free[--s->nbounce_free];
    x->mem = s->bounce_mem + (uint64_t)x->bounce * s->opts.block_bytes;
    return 1;
}

/* 0: no bounce block. */
static int plan_read(struct haul_store *s, struct hl_xfer *x)
{
    struct hl_block *blk = hl_xfer_block(x);
    char *piece = hl_segs_piece(x->op, x->seg, x->seg_offset, x->to - x->from);
    int whole = x->from == 0 && x->to == blk->bytes;

    if (blk->slot == HL_SLOT_NONE) {
        x->step = HL_ZERO;
        return 1;
    }
    x->step = HL_READ;
    x->slot = blk->slot;
    x->check = wants_check(s, x->op);
    if ((whole || (!x->check && x->to <= blk->bytes)) &&
        aligned(s, x, piece, x->from, x->to - x->from)) {
        x->mem = piece;
        x->start = x->from;
        x->bytes = x->to - x->from;
        return 1;
    }
    x->start = 0;
    x->bytes = hl_round_up(blk->bytes, hl_xfer_align(s, x));
    return take_bounce(s, x);
}

/* 0: no bounce block. */
static int plan_write(struct haul_store *s, struct hl_xfer *x)
{
    struct hl_block *blk = hl_xfer_block(x);
    uint32_t len = hl_block_len(s, x->ext, x->block);
    char *piece = hl_segs_piece(x->op, x->seg, x->seg_offset, x->to - x->from);
    int whole = x->from == 0 && x->to == len;

    if (whole && aligned(s, x, piece, 0, len)) {
        x->step = HL_WRITE;
        x->mem = piece;
        return 1;
    }
    x->step = whole || blk->slot == HL_SLOT_NONE ? HL_MERGE : HL_FILL;
    x->slot = blk->slot;
    x->check = s->opts.verify != HAUL_VERIFY_OFF || s->opts.durable;
    x->start = 0;
    x->bytes = hl_round_up(blk->bytes, hl_xfer_align(s, x));
    return take_bounce(s, x);
}

/* Reasons to refuse the request altogether. */
static int refuse(const struct haul_store *s, const struct hl_xfer *x)
{
    const struct hl_block *blk = hl_xfer_block(x);
    struct hl_op *op = x->op;
    int whole = x->from == 0 && x->to == hl_block_len(s, x->ext, x->block);

    if (blk->torn && !(op->write && whole)) {
        op->rc = -EIO;
        snprintf(op->text, sizeof op->text,
                 "extent %u block %" PRIu64
                 " in %.150s was lost by a failed write; write it again whole",
                 x->ext->id, x->block, s->dirs[blk->dir].label);
    } else if (op->write && target_slot(s, blk) == HL_SLOT_NONE) {
        op->rc = HAUL_E_STATE;
        snprintf(op->text, sizeof op->text,
                 "extent %u block %" PRIu64 ": both slots are needed by generations; retire the "
                 "older one before writing again",
                 x->ext->id, x->block);
    }
    return op->rc;
}

/* A generation is being prepared, and this write came too late for it. */
static int held_back(const struct haul_store *s, const struct hl_op *op)
{
    return s->frozen && op->serial > s->frozen_after;
}

static void start(struct haul_store *s, struct hl_xfer *x)
{
    if (x->step == HL_WRITE)
        begin_write(s, x, target_slot(s, hl_xfer_block(x)));
    else if (x->step == HL_READ || x->step == HL_FILL)
        hl_xfer_issue(s, x);
    else
        hl_work_put(s, x);
}

int hl_transfer_begin(struct haul_store *s, struct hl_op *op)
{
    struct hl_xfer *x = s->free_xfers;
    struct hl_block *blk;
    uint32_t bytes;

    cut(s, x, op);
    blk = hl_xfer_block(x);
    if (blk->writing || (op->write && (blk->readers || held_back(s, op))))
        return 0;
    if (refuse(s, x) < 0)
        return op->rc;
    x->bounce = -1;
    x->moved = x->tries = 0;
    x->in_flight = 0;
    x->check = 0;
    if (!(op->write ? plan_write(s, x) : plan_read(s, x))) {
        x->step = HL_FREE;
        return 0;
    }
    s->free_xfers = x->next;
    if (op->write)
        blk->writing = 1;
    else
        blk->readers++;
    bytes = x->to - x->from;
    op->inflight++;
    op->cursor += bytes;
    hl_segs_advance(op, &op->seg, &op->seg_offset, bytes);
    start(s, x);
    return 1;
}
