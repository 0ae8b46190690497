/* store_requests.c: the callers' side: taking a request, handing it over, waiting for it.
 * Hot path: no allocation, no log; the lock is a spin lock held for a few instructions. */
#include <stdio.h>
#include <string.h>

#include "clock.h"
#include "store.h"

/* A token is generation << 32 | index + 1. */
static uint64_t token_of(const struct haul_store *s, const struct hl_op *op)
{
    return (uint64_t)atomic_load(&op->generation) << 32 | (uint64_t)(op - s->ops + 1);
}

/* NULL: nobody can wait for it. */
static struct hl_op *op_of(struct haul_store *s, uint64_t token)
{
    uint64_t index = (token & UINT32_MAX) - 1;
    struct hl_op *op;
    uint32_t state;

    if (index >= s->opts.max_requests)
        return NULL;
    op = &s->ops[index];
    state = atomic_load(&op->state);
    return atomic_load(&op->generation) == token >> 32 &&
                   (state == HL_OP_TAKEN || state == HL_OP_DONE)
               ? op
               : NULL;
}

static void wake_loop(struct haul_store *s)
{
    if (atomic_exchange(&s->asleep, 0))
        s->method->ops->wake(s->method);
}

static struct hl_op *take_op(struct haul_store *s)
{
    struct hl_op *op;

    hl_spin_lock(&s->lock);
    op = s->free_ops;
    if (op)
        s->free_ops = op->next;
    hl_spin_unlock(&s->lock);
    return op;
}

/* The generation has moved on. */
static void give_op(struct haul_store *s, struct hl_op *op)
{
    atomic_store(&op->state, HL_OP_FREE);
    hl_spin_lock(&s->lock);
    op->next = s->free_ops;
    s->free_ops = op;
    hl_spin_unlock(&s->lock);
}

static int check_io(const struct haul_store *s, const struct haul_io *io, uint64_t *bytes)
{
    if (io->write && s->opts.read_only)
        return hl_fail(-EROFS, "write to extent %u: the store was opened read_only", io->extent);
    if (io->nsegs && !io->segs)
        return hl_fail(-EINVAL, "request on extent %u: segs is NULL and nsegs is %u", io->extent,
                       io->nsegs);
    *bytes = io->nsegs ? 0 : io->bytes;
    for (uint32_t i = 0; i < io->nsegs; i++) {
        if (!io->segs[i].base || __builtin_add_overflow(*bytes, io->segs[i].bytes, bytes))
            return hl_fail(-EINVAL, "request on extent %u: piece %u of its memory is not usable",
                           io->extent, i);
    }
    if (!*bytes)
        return hl_fail(-EINVAL, "request on extent %u: bytes is 0", io->extent);
    if (!io->nsegs && !io->buf)
        return hl_fail(-EINVAL, "request on extent %u: buf is NULL", io->extent);
    return 0;
}

static void fill_op(struct hl_op *op, const struct haul_io *io, uint64_t bytes)
{
    op->write = io->write != 0;
    atomic_store(&op->urgent, io->urgent);
    op->extent = io->extent;
    op->offset = io->offset;
    op->bytes = bytes;
    op->one = (struct haul_seg){io->buf, bytes};
    op->segs = io->nsegs ? io->segs : &op->one;
    op->nsegs = io->nsegs ? io->nsegs : 1;
    op->fn = io->fn;
    op->user = io->user;
    op->begun_ns = hl_clock_ns();
    op->ext = NULL;
    op->cursor = 0;
    op->seg = 0;
    op->seg_offset = 0;
    op->inflight = 0;
    op->rc = 0;
    op->next = op->prev = NULL;
    hl_segs_advance(op, &op->seg, &op->seg_offset, 0); /* past empty pieces */
}

int hl_store_submit(struct haul_store *s, const struct haul_io *io, int force_check,
                    uint64_t *token)
{
    uint64_t bytes = 0;
    struct hl_op *op;
    int rc = check_io(s, io, &bytes);

    if (rc < 0)
        return rc;
    op = take_op(s);
    if (!op)
        return hl_fail(-EAGAIN, "%u requests (max_requests) are submitted and not waited for",
                       s->opts.max_requests);
    fill_op(op, io, bytes);
    op->force_check = force_check;
    atomic_store(&op->state, op->fn ? HL_OP_CALLBACK : HL_OP_TAKEN);
    if (token)
        *token = token_of(s, op);
    atomic_fetch_add(&s->npending, 1);
    hl_spin_lock(&s->lock);
    if (s->inbox_tail)
        s->inbox_tail->next = op;
    else
        s->inbox_head = op;
    s->inbox_tail = op;
    hl_spin_unlock(&s->lock);
    wake_loop(s);
    return 0;
}

int haul_store_submit(struct haul_store *store, const struct haul_io *io, uint64_t *token)
{
    int rc = HL_GIVEN(store);

    rc = rc ? rc : HL_GIVEN(io);
    if (rc < 0)
        return rc;
    if (!token && !io->fn)
        return hl_fail(-EINVAL, "a request needs a token or a callback");
    return hl_store_submit(store, io, 0, token);
}

void hl_op_complete(struct haul_store *s, struct hl_op *op)
{
    if (op->fn) {
        haul_io_fn fn = op->fn;
        void *user = op->user;
        int rc = op->rc;

        if (rc < 0)
            hl_fail_text(rc, op->text);
        atomic_fetch_add(&op->generation, 1);
        give_op(s, op);
        fn(user, rc);
    } else {
        atomic_store(&op->state, HL_OP_DONE);
    }
    atomic_fetch_sub(&s->npending, 1);
    hl_gate_wake(&s->done_gate);
}

static int may_wait(const struct haul_store *s)
{
    if (s->thread_up && pthread_equal(pthread_self(), s->thread))
        return hl_fail(HAUL_E_STATE, "a callback must not wait for requests");
    return 0;
}

static int stale(uint64_t token)
{
    return hl_fail(-EINVAL, "token %016llx belongs to no request: it was waited for already",
                   (unsigned long long)token);
}

/* Under way, and still the token's. Whoever takes the result moves the generation on first and frees the op
 * then: an op that looks busy because it has been freed is the token's no more. */
static int is_busy(struct haul_store *s, struct hl_op *op, uint64_t token)
{
    return atomic_load(&op->state) != HL_OP_DONE && op_of(s, token) == op;
}

/* The op was seen DONE. Several threads may hold the token: the one that moves the generation on has
 * the result. Completion woke the others too, and they find the token stale. */
static int claim(struct hl_op *op, uint64_t token)
{
    uint32_t generation = (uint32_t)(token >> 32);

    return atomic_compare_exchange_strong(&op->generation, &generation, generation + 1);
}

static int collect(struct haul_store *s, struct hl_op *op)
{
    int rc = op->rc;

    if (rc < 0)
        hl_fail_text(rc, op->text);
    give_op(s, op);
    return rc;
}

int haul_store_wait(struct haul_store *store, uint64_t token)
{
    int rc = HL_GIVEN(store);
    struct hl_op *op;

    rc = rc ? rc : may_wait(store);
    if (rc < 0)
        return rc;
    for (;;) {
        uint32_t seen = hl_gate_look(&store->done_gate);

        op = op_of(store, token);
        if (!op)
            return stale(token);
        if (!is_busy(store, op, token))
            return claim(op, token) ? collect(store, op) : stale(token);
        atomic_store(&op->urgent, 1);
        hl_gate_sleep(&store->done_gate, seen);
    }
}

/* Index of the first complete one; n: none yet; UINT32_MAX: a token is stale. */
static uint32_t look(struct haul_store *s, const uint64_t *tokens, uint32_t n, int first_look,
                     uint32_t *nlive)
{
    *nlive = 0;
    for (uint32_t i = 0; i < n; i++) {
        struct hl_op *op;

        if (!tokens[i])
            continue;
        op = op_of(s, tokens[i]);
        if (!op) {
            (void)stale(tokens[i]);
            return UINT32_MAX;
        }
        (*nlive)++;
        if (!is_busy(s, op, tokens[i]))
            return i;
        if (first_look)
            atomic_store(&op->urgent, 1);
    }
    return n;
}

int haul_store_wait_any(struct haul_store *store, const uint64_t *tokens, uint32_t n,
                        uint32_t *index)
{
    int rc = HL_GIVEN(store), first_look = 1;
    struct hl_op *op;
    uint32_t i, nlive;

    rc = rc || !n ? rc : HL_GIVEN(tokens);
    rc = rc ? rc : HL_GIVEN(index);
    rc = rc ? rc : may_wait(store);
    if (rc < 0)
        return rc;
    for (;;) {
        uint32_t seen = hl_gate_look(&store->done_gate);

        i = look(store, tokens, n, first_look, &nlive);
        if (i == UINT32_MAX)
            return -EINVAL;
        if (!nlive)
            return hl_fail(-EINVAL, "wait_any: no tokens");
        if (i < n)
            break;
        first_look = 0;
        hl_gate_sleep(&store->done_gate, seen);
    }
    op = op_of(store, tokens[i]);
    if (!op || !claim(op, tokens[i]))
        return stale(tokens[i]);
    *index = i;
    return collect(store, op);
}

int haul_store_poll(struct haul_store *store, uint64_t token, int *done)
{
    int rc = HL_GIVEN(store);
    struct hl_op *op;

    rc = rc ? rc : HL_GIVEN(done);
    if (rc < 0)
        return rc;
    op = op_of(store, token);
    if (!op)
        return stale(token);
    if (atomic_load(&op->state) != HL_OP_DONE) {
        *done = 0;
        return 0;
    }
    if (!claim(op, token))
        return stale(token);
    *done = 1;
    return collect(store, op);
}

void haul_store_drain(struct haul_store *store)
{
    if (HL_GIVEN(store) < 0 || may_wait(store) < 0)
        return;
    for (;;) {
        uint32_t seen = hl_gate_look(&store->done_gate);

        if (!atomic_load(&store->npending))
            return;
        hl_gate_sleep(&store->done_gate, seen);
    }
}

static int blocking(struct haul_store *s, const struct haul_io *io)
{
    uint64_t token;
    int rc = may_wait(s);

    if (rc == 0)
        rc = hl_store_submit(s, io, 0, &token);
    return rc < 0 ? rc : haul_store_wait(s, token);
}

int haul_store_read(struct haul_store *store, uint32_t extent, uint64_t offset, void *buf,
                    uint64_t bytes)
{
    int rc = HL_GIVEN(store);

    if (rc < 0)
        return rc;
    return blocking(
        store, &(struct haul_io){
                   .extent = extent, .offset = offset, .buf = buf, .bytes = bytes, .urgent = 1});
}

int haul_store_write(struct haul_store *store, uint32_t extent, uint64_t offset, const void *buf,
                     uint64_t bytes)
{
    int rc = HL_GIVEN(store);

    if (rc < 0)
        return rc;
    /* The one place where const is cast away: writes only read the memory. */
    return blocking(store, &(struct haul_io){.write = 1,
                                             .extent = extent,
                                             .offset = offset,
                                             .buf = (void *)(uintptr_t)buf,
                                             .bytes = bytes,
                                             .urgent = 1});
}

int hl_store_run(struct haul_store *s, hl_control_fn fn, void *arg)
{
    struct hl_control c = {.fn = fn, .arg = arg};
    int rc = may_wait(s);

    if (rc < 0)
        return rc;
    hl_spin_lock(&s->lock);
    c.next = s->posted_controls;
    s->posted_controls = &c;
    hl_spin_unlock(&s->lock);
    wake_loop(s);
    for (;;) {
        uint32_t seen = hl_gate_look(&s->done_gate);

        if (atomic_load(&c.done))
            break;
        hl_gate_sleep(&s->done_gate, seen);
    }
    return c.rc < 0 ? hl_fail_text(c.rc, c.text) : c.rc;
}
