/*
 * device_host_stream.c: streams of the emulated device: a ring of operations and a thread that runs
 * them in order.
 *
 * Nothing here allocates or logs between open and close.
 */
#include "clock.h"
#include "device_host.h"
#include "sys.h"
#include <string.h>

int hl_device_host_reached(const struct host_stream *s, uint64_t ticket)
{
    return atomic_load_explicit(&s->done, memory_order_acquire) >= ticket;
}

/* When the ring has gone round since, the time of a later operation comes out, or now. */
static uint64_t ended(const struct host_stream *s, uint64_t ticket)
{
    uint64_t at = atomic_load_explicit(&s->ended_ns[ticket % HOST_RING], memory_order_acquire);

    return hl_device_host_reached(s, ticket + HOST_RING) ? hl_clock_ns() : at;
}

uint64_t hl_device_host_await(struct host_stream *s, uint64_t ticket)
{
    for (;;) {
        uint32_t seen = hl_gate_look(&s->progress);

        if (hl_device_host_reached(s, ticket))
            return ended(s, ticket);
        hl_gate_sleep(&s->progress, seen);
    }
}

int hl_device_host_outcome(const struct host_stream *s, uint64_t ticket)
{
    int rc = atomic_load_explicit(&s->rc, memory_order_acquire);

    return rc < 0 && s->failed_ticket <= ticket ? hl_fail_text(rc, s->text) : 0;
}

static void fail_stream(struct host_stream *s, uint64_t ticket, int rc)
{
    size_t len = strnlen(haul_last_error(), sizeof s->text - 1);

    memcpy(s->text, haul_last_error(), len);
    s->text[len] = '\0';
    s->failed_ticket = ticket;
    atomic_store_explicit(&s->rc, rc, memory_order_release);
}

/* xorshift64: every fourth operation is held back by up to half a millisecond. */
static void jitter(struct host_stream *s)
{
    uint64_t x = s->jitter;

    if (!x)
        return;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    s->jitter = x;
    if (x >> 62 == 0)
        hl_clock_sleep_until(hl_clock_ns() + (x >> 20) % 500000);
}

/* Count down to the failure that a test has asked for. */
static int planned_failure(struct host_device *dev)
{
    int64_t left = atomic_load_explicit(&dev->fail_in, memory_order_relaxed);

    while (left > 0)
        if (atomic_compare_exchange_weak(&dev->fail_in, &left, left - 1))
            return left == 1;
    return 0;
}

static int run_counted(struct host_stream *s, const struct host_op *op)
{
    uint64_t begin = hl_clock_ns(), end;
    int rc = op->run(s, op);

    end = hl_clock_ns();
    if (!op->no_time)
        s->ready_ns = end;
    atomic_fetch_add_explicit(&s->dev->lane[op->lane].busy_ns, end - begin, memory_order_relaxed);
    hl_device_tell_span(&s->dev->base, (enum hl_device_lane)op->lane, begin, end, 0);
    return rc;
}

static void run_op(struct host_stream *s, uint64_t ticket)
{
    const struct host_op *op = &s->ring[ticket % HOST_RING];
    int rc = 0, failed = atomic_load_explicit(&s->rc, memory_order_relaxed) < 0;

    jitter(s);
    if (op->queued_ns > s->ready_ns)
        s->ready_ns = op->queued_ns;
    if (!failed && planned_failure(s->dev))
        rc = hl_fail(HAUL_E_DEVICE, "emulated device: operation failed on demand");
    if (op->always || (rc == 0 && !failed)) {
        int own = op->lane >= 0 ? run_counted(s, op) : op->run(s, op);

        rc = rc < 0 ? rc : own;
    }
    if (rc < 0 && !failed)
        fail_stream(s, ticket, rc);
    atomic_store_explicit(&s->ended_ns[ticket % HOST_RING], s->ready_ns, memory_order_release);
    atomic_store_explicit(&s->done, ticket, memory_order_release);
    hl_gate_wake(&s->progress);
}

static void *stream_main(void *arg)
{
    struct host_stream *s = arg;

    for (;;) {
        uint32_t seen = hl_gate_look(&s->work);
        /* Read first: whoever closes has queued before. */
        int closing = atomic_load_explicit(&s->closing, memory_order_acquire);
        uint64_t next = atomic_load_explicit(&s->done, memory_order_relaxed) + 1;

        if (next <= atomic_load_explicit(&s->queued, memory_order_acquire))
            run_op(s, next);
        else if (closing)
            return NULL;
        else
            hl_gate_sleep(&s->work, seen);
    }
}

uint64_t hl_device_host_push(struct host_stream *s, const struct host_op *op)
{
    uint64_t now = hl_clock_ns(), ticket;

    for (;;) {
        uint32_t seen = hl_gate_look(&s->progress);

        hl_spin_lock(&s->lock);
        ticket = atomic_load_explicit(&s->queued, memory_order_relaxed) + 1;
        if (hl_device_host_reached(s, ticket > HOST_RING ? ticket - HOST_RING : 0))
            break;
        hl_spin_unlock(&s->lock);
        hl_gate_sleep(&s->progress, seen);
    }
    s->ring[ticket % HOST_RING] = *op;
    s->ring[ticket % HOST_RING].queued_ns = now;
    atomic_store_explicit(&s->queued, ticket, memory_order_release);
    hl_spin_unlock(&s->lock);
    hl_gate_wake(&s->work);
    return ticket;
}

struct host_stream *hl_device_host_stream(struct host_device *dev, void *stream)
{
    struct host_stream *s = stream;

    if (s && s->dev == dev && atomic_load_explicit(&s->is_open, memory_order_relaxed))
        return s;
    (void)hl_fail(-EINVAL, "%p is not an open stream of this device", stream);
    return NULL;
}

/* A closed stream to use again. A failed one still answers for its events. */
static struct host_stream *take_closed(struct host_device *dev)
{
    struct host_stream **at, *s = NULL;

    hl_spin_lock(&dev->lock);
    for (at = &dev->closed; *at; at = &(*at)->next)
        if (atomic_load_explicit(&(*at)->rc, memory_order_relaxed) == 0)
            break;
    if (*at) {
        s = *at;
        *at = s->next;
    }
    hl_spin_unlock(&dev->lock);
    return s;
}

static void put(struct host_device *dev, struct host_stream **list, struct host_stream *s)
{
    hl_spin_lock(&dev->lock);
    s->next = *list;
    *list = s;
    hl_spin_unlock(&dev->lock);
}

static void seed_jitter(struct host_device *dev, struct host_stream *s)
{
    uint64_t n;

    hl_spin_lock(&dev->lock);
    n = ++dev->nstreams;
    hl_spin_unlock(&dev->lock);
    s->jitter = dev->jitter_seed ? (dev->jitter_seed + n * UINT64_C(0x9e3779b97f4a7c15)) | 1 : 0;
}

int hl_device_host_stream_open(struct haul_device *base, int urgent, void **stream)
{
    struct host_device *dev = host_of(base);
    struct host_stream *s = take_closed(dev);
    int rc, used_before = s != NULL;
    void *p;

    if (!used_before) {
        rc = hl_sys_alloc(sizeof *s, &p);
        if (rc < 0)
            return hl_fail(rc, "no memory for a stream (%zu bytes)", sizeof *s);
        s = p;
        s->dev = dev;
    }
    s->urgent = urgent != 0;
    s->ready_ns = 0;
    seed_jitter(dev, s);
    atomic_store(&s->closing, 0);
    rc = hl_sys_thread("haul-stream", stream_main, s, &s->thread);
    if (rc < 0)
        goto undo;
    atomic_store(&s->is_open, 1);
    put(dev, &dev->open, s);
    *stream = s;
    return 0;

undo:
    if (used_before)
        put(dev, &dev->closed, s);
    else
        hl_sys_free(s);
    return hl_fail(rc, "no thread for a stream of the emulated device");
}

static void end_stream(struct host_device *dev, struct host_stream *s)
{
    atomic_store(&s->is_open, 0);
    atomic_store_explicit(&s->closing, 1, memory_order_release);
    hl_gate_wake(&s->work);
    hl_sys_join(s->thread);
    put(dev, &dev->closed, s);
}

void hl_device_host_stream_close(struct haul_device *base, void *stream)
{
    struct host_device *dev = host_of(base);
    struct host_stream **at, *s = NULL;

    hl_spin_lock(&dev->lock);
    for (at = &dev->open; *at && *at != stream; at = &(*at)->next)
        ;
    if (*at) {
        s = *at;
        *at = s->next;
    }
    hl_spin_unlock(&dev->lock);
    if (s)
        end_stream(dev, s);
    else
        hl_log(HAUL_LOG_WARN, "haul_device_stream_close: %p is not an open stream", stream);
}

unsigned hl_device_host_streams_end(struct host_device *dev)
{
    unsigned n = 0;

    while (dev->open) {
        struct host_stream *s = dev->open;

        dev->open = s->next;
        end_stream(dev, s);
        n++;
    }
    return n;
}

int hl_device_host_stream_sync(struct haul_device *base, void *stream)
{
    struct host_stream *s = hl_device_host_stream(host_of(base), stream);
    uint64_t ticket;

    if (!s)
        return -EINVAL;
    ticket = atomic_load_explicit(&s->queued, memory_order_acquire);
    hl_device_host_await(s, ticket);
    return hl_device_host_outcome(s, ticket);
}
