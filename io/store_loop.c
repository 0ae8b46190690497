/* store_loop.c: the I/O thread. One turn: take what callers handed over, start transfers, do a piece
 * of CPU work, reap. Hot path: no allocation, no log, no sleeping lock. */
#include <stdio.h>
#include <string.h>

#include "clock.h"
#include "store.h"
#include "sys.h"

static void activate(struct haul_store *s, struct hl_op *op)
{
    op->next = NULL;
    op->prev = s->active_tail;
    if (s->active_tail)
        s->active_tail->next = op;
    else
        s->active_head = op;
    s->active_tail = op;
}

static void deactivate(struct haul_store *s, struct hl_op *op)
{
    if (op->prev)
        op->prev->next = op->next;
    else
        s->active_head = op->next;
    if (op->next)
        op->next->prev = op->prev;
    else
        s->active_tail = op->prev;
}

/* The extent is there and the range lies in it. */
static void admit(struct haul_store *s, struct hl_op *op)
{
    struct hl_extent *ext = hl_extent_find(s, op->extent);

    activate(s, op);
    op->serial = ++s->nadmitted;
    if (s->dead_rc) {
        op->rc = s->dead_rc;
        snprintf(op->text, sizeof op->text, "the store's I/O method failed earlier: %s",
                 haul_strerror(s->dead_rc));
    } else if (!ext) {
        op->rc = -ENOENT;
        snprintf(op->text, sizeof op->text, "extent %u does not exist", op->extent);
    } else if (op->offset > ext->bytes || op->bytes > ext->bytes - op->offset) {
        op->rc = -EINVAL;
        snprintf(op->text, sizeof op->text,
                 "%s of %llu bytes at %llu goes past the end of extent %u (%llu bytes)",
                 op->write ? "write" : "read", (unsigned long long)op->bytes,
                 (unsigned long long)op->offset, op->extent, (unsigned long long)ext->bytes);
    } else {
        op->ext = ext;
        ext->active++;
    }
}

static void take_inbox(struct haul_store *s)
{
    struct hl_control *c;
    struct hl_op *op;

    hl_spin_lock(&s->lock);
    op = s->inbox_head;
    s->inbox_head = s->inbox_tail = NULL;
    c = s->posted_controls;
    s->posted_controls = NULL;
    hl_spin_unlock(&s->lock);
    while (op) {
        struct hl_op *next = op->next;

        admit(s, op);
        op = next;
    }
    while (c) {
        struct hl_control *next = c->next;

        c->next = s->controls;
        s->controls = c;
        c = next;
    }
}

static void run_controls(struct haul_store *s)
{
    struct hl_control **at = &s->controls;

    while (*at) {
        struct hl_control *c = *at;
        int rc = c->fn(s, c->arg);

        if (rc == -EINPROGRESS) {
            at = &c->next;
            continue;
        }
        *at = c->next;
        c->rc = rc;
        if (rc < 0)
            snprintf(c->text, sizeof c->text, "%s", haul_last_error());
        atomic_store(&c->done, 1); /* c is gone from here on */
        hl_gate_wake(&s->done_gate);
    }
}

static int finished(const struct hl_op *op)
{
    return !op->inflight && (op->rc < 0 || op->cursor == op->bytes);
}

static void finish(struct haul_store *s, struct hl_op *op)
{
    deactivate(s, op);
    if (op->ext)
        op->ext->active--;
    hl_meter_request(op->write ? &s->write : &s->read, op, hl_clock_ns());
    hl_op_complete(s, op);
}

/* How many there were. */
static uint32_t finish_all(struct haul_store *s)
{
    struct hl_op *op = s->active_head;
    uint32_t n = 0;

    while (op) {
        struct hl_op *next = op->next;

        if (finished(op)) {
            finish(s, op);
            n++;
        }
        op = next;
    }
    return n;
}

static int has_more(const struct hl_op *op)
{
    return op->rc == 0 && op->cursor < op->bytes;
}

/* Start what may be started. Urgent requests first; while an urgent read waits for room, nothing
 * else starts, so that it does not share the drive with background writes. The second round looks at
 * all requests: one may have become urgent since the first. */
static int start_round(struct haul_store *s, int urgent_only)
{
    int waiting = 0;

    for (struct hl_op *op = s->active_head; op; op = op->next) {
        struct hl_meter *m = op->write ? &s->write : &s->read;

        if (urgent_only && !atomic_load_explicit(&op->urgent, memory_order_relaxed))
            continue;
        while (has_more(op) && s->free_xfers && m->inflight < m->limit &&
               hl_transfer_begin(s, op) > 0)
            ;
        waiting |= has_more(op) && !op->write;
    }
    return waiting;
}

static void start_all(struct haul_store *s)
{
    if (!start_round(s, 1))
        (void)start_round(s, 0);
}

/* How long a reap may wait now. Whoever posts after this look finds `asleep` set, and wakes. A control
 * that waits for requests looks again when some have just finished. */
static uint64_t patience(struct haul_store *s, uint32_t nfinished)
{
    int posted;

    if (s->work.head || s->stopping || (nfinished && s->controls))
        return 0;
    atomic_store(&s->asleep, 1);
    hl_spin_lock(&s->lock);
    posted = s->inbox_head || s->posted_controls;
    hl_spin_unlock(&s->lock);
    return posted ? 0 : hl_transfer_patience(s, hl_clock_ns());
}

static void method_died(struct haul_store *s, int rc)
{
    char text[HL_OP_TEXT_BYTES];

    s->dead_rc = rc;
    snprintf(text, sizeof text, "%s", haul_last_error());
    hl_transfer_fail_all(s, rc, text);
    for (struct hl_op *op = s->active_head; op; op = op->next) {
        if (op->rc == 0) {
            op->rc = rc;
            snprintf(op->text, sizeof op->text, "%s", text);
        }
    }
}

/* CPU work waits while completions come in: the drive is kept busy first. */
static void turn(struct haul_store *s)
{
    uint32_t nfinished;
    int n;

    take_inbox(s);
    run_controls(s);
    if (s->retry)
        hl_transfer_retry(s, hl_clock_ns());
    start_all(s);
    nfinished = finish_all(s);
    n = s->method->ops->reap(s->method, s->reaped, s->nxfers, patience(s, nfinished));
    atomic_store(&s->asleep, 0);
    for (int i = 0; i < n; i++)
        hl_transfer_done(s, &s->reaped[i]);
    if (n == 0)
        hl_transfer_work(s);
    if (n < 0)
        method_died(s, n);
}

/* Nothing can be moved any more: answer every request with the reason. */
static void turn_dead(struct haul_store *s)
{
    take_inbox(s);
    run_controls(s);
    (void)finish_all(s);
    hl_clock_sleep_until(hl_clock_ns() + 1000000);
}

struct start {
    struct haul_store *store;
    struct hl_control result;
};

/* The pool's segments, then our own memory. */
static uint32_t list_regions(const struct haul_store *s, struct haul_seg *regions, uint32_t max)
{
    uint32_t n = 0;
    int fd;

    for (uint32_t i = 0; s->opts.pool && n + 1 < max; i++, n++)
        if (haul_pool_segment_info(s->opts.pool, i, &regions[n].base, &regions[n].bytes, &fd) < 0)
            break;
    if (s->own_pool &&
        haul_pool_segment_info(s->own_pool, 0, &regions[n].base, &regions[n].bytes, &fd) == 0)
        n++;
    return n;
}

static int open_method(struct haul_store *s)
{
    struct haul_seg regions[64];
    struct hl_method_args args = {
        .fds = s->fds, .nfiles = s->ndirs, .depth = s->nxfers, .regions = regions};

    args.nregions = list_regions(s, regions, 64);
    return s->method_ops->open(&args, &s->method);
}

static void *loop(void *arg)
{
    struct start *start = arg;
    struct haul_store *s = start->store;
    int rc = open_method(s);

    start->result.rc = rc;
    if (rc < 0)
        snprintf(start->result.text, sizeof start->result.text, "%s", haul_last_error());
    atomic_store(&start->result.done, 1); /* start is gone from here on */
    hl_gate_wake(&s->done_gate);
    if (rc < 0)
        return NULL;
    while (!s->stopping || s->active_head)
        s->dead_rc ? turn_dead(s) : turn(s);
    return NULL;
}

/* The ring belongs to the thread that made it, so the thread opens the method itself. */
int hl_loop_start(struct haul_store *s)
{
    struct start start = {.store = s};
    int rc = hl_sys_thread("haul-io", loop, &start, &s->thread);

    if (rc < 0)
        return rc;
    for (;;) {
        uint32_t seen = hl_gate_look(&s->done_gate);

        if (atomic_load(&start.result.done))
            break;
        hl_gate_sleep(&s->done_gate, seen);
    }
    if (start.result.rc < 0) {
        hl_sys_join(s->thread);
        return hl_fail_text(start.result.rc, start.result.text);
    }
    s->thread_up = 1;
    return 0;
}

static int stop_on_loop(struct haul_store *s, void *arg)
{
    s->stopping = 1;
    return 0;
}

void hl_loop_stop(struct haul_store *s)
{
    if (!s->thread_up)
        return;
    (void)hl_store_run(s, stop_on_loop, NULL);
    hl_sys_join(s->thread);
    /* Not on the loop's thread: whoever woke it last may still be inside the method. */
    s->method->ops->close(s->method);
    s->thread_up = 0;
}
