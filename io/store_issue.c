/* store_issue.c: a transfer on its way to the method and back: retries, short ones, failures.
 * Runs on the I/O thread. Hot path: no allocation, no log, no lock. */
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "clock.h"
#include "sys_file.h"
#include "transfer.h"

/* In a row without progress; with the pauses below that is about 3 seconds. */
#define MAX_TRIES        40
#define FIRST_PAUSE_NS   20000u
#define LONGEST_PAUSE_NS 100000000u

void hl_work_put(struct haul_store *s, struct hl_xfer *x)
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

/* ---- ends ---- */

void hl_xfer_release(struct haul_store *s, struct hl_xfer *x)
{
    struct hl_block *blk = hl_xfer_block(x);

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

void hl_xfer_fail(struct haul_store *s, struct hl_xfer *x, int rc, const char *fmt, ...)
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
        hl_xfer_block(x)->torn = 1;
    unqueue_work(s, x);
    hl_xfer_release(s, x);
}

void hl_xfer_fail_io(struct haul_store *s, struct hl_xfer *x, int rc, const char *why)
{
    int writing = x->step == HL_WRITE;

    hl_xfer_fail(s, x, rc, "%s of %s at offset %" PRIu64 " (extent %u, block %" PRIu64 "): %s%s",
                 writing ? "write" : "read", s->dirs[hl_xfer_block(x)->dir].label,
                 hl_xfer_offset(s, x) + x->start + x->moved, x->ext->id, x->block, why,
                 rc == -ENOSPC || rc == -EDQUOT ? "; free some space and write it again" : "");
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

/* O_DIRECT that open accepted and a transfer refused: some stacked file systems do that. */
static int leave_direct(struct haul_store *s, struct hl_xfer *x)
{
    struct hl_dir *d = &s->dirs[hl_xfer_block(x)->dir];

    if (!d->direct || s->opts.direct == HAUL_DIRECT_ON)
        return 0;
    if (hl_sys_set_flags(s->fds[hl_xfer_block(x)->dir], O_DIRECT, 0) < 0)
        return 0;
    d->direct = 0;
    return 1;
}

static int transient(int rc)
{
    return rc == -EAGAIN || rc == -EINTR || rc == -EBUSY || rc == -ENOMEM;
}

void hl_xfer_refused(struct haul_store *s, struct hl_xfer *x, int rc)
{
    if (transient(rc) && ++x->tries < MAX_TRIES)
        put_off(s, x);
    else if (rc == -EINVAL && leave_direct(s, x))
        hl_xfer_issue(s, x);
    else
        hl_xfer_fail_io(s, x, rc, haul_strerror(rc));
}

void hl_xfer_issue(struct haul_store *s, struct hl_xfer *x)
{
    struct hl_transfer t = {.write = x->step == HL_WRITE,
                            .file = hl_xfer_block(x)->dir,
                            .bytes = x->bytes - x->moved,
                            .offset = hl_xfer_offset(s, x) + x->start + x->moved,
                            .buf = x->mem + x->moved};
    int rc;

    x->serial++;
    t.tag = (uint64_t)x->serial << 32 | (uint64_t)(x - s->xfers);
    rc = s->method->ops->start(s->method, &t);
    if (rc < 0) {
        hl_xfer_refused(s, x, rc);
        return;
    }
    x->in_flight = 1;
    hl_meter_move(hl_xfer_meter(s, x), 1, hl_clock_ns());
}

void hl_transfer_retry(struct haul_store *s, uint64_t now_ns)
{
    struct hl_xfer *x = s->retry;

    s->retry = NULL;
    while (x) {
        struct hl_xfer *next = x->retry_next;

        if (x->not_before_ns <= now_ns) {
            s->retries++;
            hl_xfer_issue(s, x);
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
void hl_xfer_resume(struct haul_store *s, struct hl_xfer *x, uint32_t moved)
{
    uint32_t align = hl_xfer_align(s, x), before = x->moved;

    s->short_transfers++;
    x->moved = (x->start + x->moved + moved) / align * align - x->start;
    if (x->moved > before) {
        x->tries = 0;
        hl_xfer_issue(s, x);
    } else if (moved && ++x->tries < MAX_TRIES) {
        hl_xfer_issue(s, x);
    } else if (!moved && x->step == HL_WRITE && ++x->tries < MAX_TRIES) {
        put_off(s, x);
    } else {
        hl_xfer_fail_io(s, x, HAUL_E_SHORT_IO, "the file ends here; was it truncated?");
    }
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
            hl_meter_move(hl_xfer_meter(s, x), -1, hl_clock_ns());
        x->in_flight = 0;
        hl_xfer_fail(s, x, rc, "%s", text);
    }
}
