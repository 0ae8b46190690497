/* store_transfer.c: what happens to one block. See enum hl_step for the states.
 * Runs on the I/O thread. Hot path: no allocation, no log, no lock. */
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "checksum.h"
#include "clock.h"
#include "store.h"
#include "sys_file.h"

/* In a row without progress; with the pauses below that is about 3 seconds. */
#define MAX_TRIES        40
#define FIRST_PAUSE_NS   20000u
#define LONGEST_PAUSE_NS 100000000u

static void queue_work(struct haul_store *s, struct hl_xfer *x)
{
    x->next = NULL;
    if (s->work.tail)
        s->work.tail->next = x;
    else
        s->work.head = x;
    s->work.tail = x;
}

/* For a write that fails before its checksum was made. */
static void unqueue_work(struct haul_store *s, struct hl_xfer *x)
{
    struct hl_xfer *before = NULL;

    for (struct hl_xfer *at = s->work.head; at; before = at, at = at->next) {
        if (at != x)
            continue;
        if (before)
            before->next = x->next;
        else
            s->work.head = x->next;
        if (s->work.tail == x)
            s->work.tail = before;
        return;
    }
}

static struct hl_block *block_of(const struct hl_xfer *x)
{
    return &x->ext->blocks[x->block];
}

static struct hl_meter *meter_of(struct haul_store *s, const struct hl_xfer *x)
{
    return x->op->write ? &s->write : &s->read;
}

static uint64_t disk_offset(const struct haul_store *s, const struct hl_xfer *x)
{
    return ((uint64_t)block_of(x)->cell * s->nslots + x->slot) * s->opts.block_bytes;
}

static uint32_t round_up(uint32_t n, uint32_t align)
{
    return (n + align - 1) / align * align;
}

static uint32_t align_of(const struct haul_store *s, const struct hl_xfer *x)
{
    return s->dirs[block_of(x)->dir].align;
}

/* ---- ends ---- */

static void release(struct haul_store *s, struct hl_xfer *x)
{
    struct hl_block *blk = block_of(x);

    if (x->op->write)
        blk->writing = 0;
    else
        blk->readers--;
    if (x->bounce >= 0)
        s->bounce_free[s->nbounce_free++] = (uint32_t)x->bounce;
    x->op->inflight--;
    x->step = HL_FREE;
    x->next = s->free_xfers;
    s->free_xfers = x;
}

static void fail(struct haul_store *s, struct hl_xfer *x, int rc, const char *fmt, ...)
    HAUL_PRINTF(4, 5);

static void fail(struct haul_store *s, struct hl_xfer *x, int rc, const char *fmt, ...)
{
    struct hl_op *op = x->op;
    va_list ap;

    if (op->rc == 0) {
        op->rc = rc;
        va_start(ap, fmt);
        vsnprintf(op->text, sizeof op->text, fmt, ap);
        va_end(ap);
    }
    if (x->step == HL_WRITE && x->in_place)
        block_of(x)->torn = 1;
    unqueue_work(s, x);
    release(s, x);
}

static void fail_io(struct haul_store *s, struct hl_xfer *x, int rc, const char *why)
{
    int writing = x->step == HL_WRITE;

    fail(s, x, rc, "%s of %s at offset %" PRIu64 " (extent %u, block %" PRIu64 "): %s%s",
         writing ? "write" : "read", s->dirs[block_of(x)->dir].label,
         disk_offset(s, x) + x->start + x->moved, x->ext->id, x->block, why,
         rc == -ENOSPC || rc == -EDQUOT ? "; free some space and write it again" : "");
}

static void fail_sum(struct haul_store *s, struct hl_xfer *x, uint64_t found)
{
    struct hl_block *blk = block_of(x);

    s->checksum_errors++;
    fail(s, x, HAUL_E_CHECKSUM,
         "checksum of %s at offset %" PRIu64 " (extent %u, block %" PRIu64 ", %u bytes): expected "
         "%016" PRIx64 ", found %016" PRIx64,
         s->dirs[blk->dir].label, disk_offset(s, x), x->ext->id, x->block, blk->bytes, blk->sum,
         found);
}

/* ---- moving ---- */

static void put_off(struct haul_store *s, struct hl_xfer *x)
{
    uint64_t pause_ns = FIRST_PAUSE_NS;

    for (uint32_t i = 1; i < x->tries && pause_ns < LONGEST_PAUSE_NS; i++)
        pause_ns *= 2;
    if (pause_ns > LONGEST_PAUSE_NS)
        pause_ns = LONGEST_PAUSE_NS;
    x->not_before_ns = hl_clock_ns() + pause_ns;
    x->retry_next = s->retry;
    s->retry = x;
}

static void issue(struct haul_store *s, struct hl_xfer *x);

/* O_DIRECT that open accepted and a transfer refused: some stacked file systems do that. */
static int leave_direct(struct haul_store *s, struct hl_xfer *x)
{
    struct hl_dir *d = &s->dirs[block_of(x)->dir];

    if (!d->direct || s->opts.direct == HAUL_DIRECT_ON)
        return 0;
    if (hl_sys_set_flags(s->fds[block_of(x)->dir], O_DIRECT, 0) < 0)
        return 0;
    d->direct = 0;
    return 1;
}

static int transient(int rc)
{
    return rc == -EAGAIN || rc == -EINTR || rc == -EBUSY || rc == -ENOMEM;
}

static void refused(struct haul_store *s, struct hl_xfer *x, int rc)
{
    if (transient(rc) && ++x->tries < MAX_TRIES)
        put_off(s, x);
    else if (rc == -EINVAL && leave_direct(s, x))
        issue(s, x);
    else
        fail_io(s, x, rc, haul_strerror(rc));
}

static void issue(struct haul_store *s, struct hl_xfer *x)
{
    struct hl_transfer t = {.write = x->step == HL_WRITE,
                            .file = block_of(x)->dir,
                            .bytes = x->bytes - x->moved,
                            .offset = disk_offset(s, x) + x->start + x->moved,
                            .buf = x->mem + x->moved};
    int rc;

    x->serial++;
    t.tag = (uint64_t)x->serial << 32 | (uint64_t)(x - s->xfers);
    rc = s->method->ops->start(s->method, &t);
    if (rc < 0) {
        refused(s, x, rc);
        return;
    }
    x->in_flight = 1;
    hl_meter_move(meter_of(s, x), 1, hl_clock_ns());
}

void hl_transfer_retry(struct haul_store *s, uint64_t now_ns)
{
    struct hl_xfer *x = s->retry;

    s->retry = NULL;
    while (x) {
        struct hl_xfer *next = x->retry_next;

        if (x->not_before_ns <= now_ns) {
            s->retries++;
            issue(s, x);
        } else {
            x->retry_next = s->retry;
            s->retry = x;
        }
        x = next;
    }
}

uint64_t hl_transfer_patience(const struct haul_store *s, uint64_t now_ns)
{
    uint64_t first_ns = HL_WAIT_FOREVER;

    for (const struct hl_xfer *x = s->retry; x; x = x->retry_next)
        if (first_ns > x->not_before_ns)
            first_ns = x->not_before_ns;
    if (first_ns == HL_WAIT_FOREVER)
        return first_ns;
    return first_ns > now_ns ? first_ns - now_ns : 1;
}

/* Go on from the last aligned byte that was moved. */
static void resume(struct haul_store *s, struct hl_xfer *x, uint32_t moved)
{
    uint32_t align = align_of(s, x), before = x->moved;

    s->short_transfers++;
    x->moved = (x->start + x->moved + moved) / align * align - x->start;
    if (x->moved > before) {
        x->tries = 0;
        issue(s, x);
    } else if (moved && ++x->tries < MAX_TRIES) {
        issue(s, x);
    } else if (!moved && x->step == HL_WRITE && ++x->tries < MAX_TRIES) {
        put_off(s, x);
    } else {
        fail_io(s, x, HAUL_E_SHORT_IO, "the file ends here; was it truncated?");
    }
}

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
    struct hl_block *blk = block_of(x);

    if (!x->io_done || !x->sum_done)
        return;
    blk->slot = x->slot;
    blk->sum = x->sum;
    blk->bytes = hl_block_len(s, x->ext, x->block);
    blk->generation = 0;
    blk->torn = 0;
    release(s, x);
}

static void begin_write(struct haul_store *s, struct hl_xfer *x, uint8_t slot)
{
    uint32_t len = hl_block_len(s, x->ext, x->block);

    x->step = HL_WRITE;
    x->in_place = slot == block_of(x)->slot;
    x->slot = slot;
    x->start = 0;
    x->bytes = x->bounce < 0 ? len : round_up(len, align_of(s, x));
    x->moved = x->tries = 0;
    x->io_done = 0;
    x->sum_done = !wants_sums(s);
    x->in_flight = 0;
    if (!x->sum_done)
        queue_work(s, x); /* made while the drive writes */
    issue(s, x);
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

/* Compare what was read; clears what must not be handed out. 0: handled, the transfer is gone. */
static int content_good(struct haul_store *s, struct hl_xfer *x)
{
    struct hl_block *blk = block_of(x);
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
    struct hl_block *blk = block_of(x);

    if (!content_good(s, x))
        return;
    if (x->bounce >= 0) {
        if (x->to > blk->bytes) /* beyond what was ever written */
            memset(x->mem + blk->bytes, 0, x->to - blk->bytes);
        hl_segs_put(x->op, x->seg, x->seg_offset, x->mem + x->from, x->to - x->from);
    }
    release(s, x);
}

static void work_merge(struct haul_store *s, struct hl_xfer *x)
{
    struct hl_block *blk = block_of(x);
    uint32_t len = hl_block_len(s, x->ext, x->block), padded = round_up(len, align_of(s, x));
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
        release(s, x);
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
    hl_buffered_after(s, block_of(x)->dir, x->step == HL_WRITE, disk_offset(s, x) + x->start,
                      x->bytes);
    if (x->step == HL_WRITE) {
        x->io_done = 1;
        written(s, x);
        return;
    }
    x->step = x->step == HL_READ ? HL_CHECK : HL_MERGE;
    queue_work(s, x);
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
    hl_meter_move(meter_of(s, x), -1, hl_clock_ns());
    if (done->result < 0)
        refused(s, x, (int)done->result);
    else if (done->result > (int64_t)(x->bytes - x->moved))
        fail_io(s, x, -EIO, "more bytes reported than asked for");
    else if (done->result < (int64_t)(x->bytes - x->moved))
        resume(s, x, (uint32_t)done->result);
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
    const struct hl_dir *d = &s->dirs[block_of(x)->dir];

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
    struct hl_block *blk = block_of(x);
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
    x->bytes = round_up(blk->bytes, align_of(s, x));
    return take_bounce(s, x);
}

/* 0: no bounce block. */
static int plan_write(struct haul_store *s, struct hl_xfer *x)
{
    struct hl_block *blk = block_of(x);
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
    x->bytes = round_up(blk->bytes, align_of(s, x));
    return take_bounce(s, x);
}

/* Reasons to refuse the request altogether. */
static int refuse(const struct haul_store *s, const struct hl_xfer *x)
{
    const struct hl_block *blk = block_of(x);
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
        begin_write(s, x, target_slot(s, block_of(x)));
    else if (x->step == HL_READ || x->step == HL_FILL)
        issue(s, x);
    else
        queue_work(s, x);
}

int hl_transfer_begin(struct haul_store *s, struct hl_op *op)
{
    struct hl_xfer *x = s->free_xfers;
    struct hl_block *blk;
    uint32_t bytes;

    cut(s, x, op);
    blk = block_of(x);
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

void hl_transfer_fail_all(struct haul_store *s, int rc, const char *text)
{
    s->work = (struct hl_xfer_list){0};
    s->retry = NULL;
    for (uint32_t i = 0; i < s->nxfers; i++) {
        struct hl_xfer *x = &s->xfers[i];

        if (x->step == HL_FREE)
            continue;
        if (x->in_flight)
            hl_meter_move(meter_of(s, x), -1, hl_clock_ns());
        x->in_flight = 0;
        fail(s, x, rc, "%s", text);
    }
}
