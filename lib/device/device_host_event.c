/*
 * device_host_event.c: events of the emulated device.
 *
 * A record is an operation with a ticket; the event remembers (stream, ticket) of the latest one. A
 * wait takes that pair with it when it is queued, so that recording the event again, or closing it,
 * does not change what is waited for.
 */
#include "clock.h"
#include "device_host.h"
#include "sys.h"

int hl_device_host_event_open(struct haul_device *base, struct hl_event **out)
{
    struct host_device *dev = host_of(base);
    struct hl_event *ev;
    void *p;
    int rc;

    rc = hl_sys_alloc(sizeof *ev, &p);
    if (rc < 0)
        return hl_fail(rc, "no memory for an event");
    ev = p;
    hl_spin_lock(&dev->lock);
    ev->next = dev->events;
    if (ev->next)
        ev->next->prev = ev;
    dev->events = ev;
    hl_spin_unlock(&dev->lock);
    *out = ev;
    return 0;
}

/* Queued records point here until they are reached. The last one lets go of the event's lock before it
 * wakes the device's gate, so nothing touches the event once it is seen idle. */
static void await_idle(struct host_device *dev, struct hl_event *ev)
{
    for (;;) {
        uint32_t seen = hl_gate_look(&dev->event_idle);
        uint64_t pending;

        hl_spin_lock(&ev->lock);
        pending = ev->pending;
        hl_spin_unlock(&ev->lock);
        if (!pending)
            return;
        hl_gate_sleep(&dev->event_idle, seen);
    }
}

void hl_device_host_event_close(struct haul_device *base, struct hl_event *ev)
{
    struct host_device *dev = host_of(base);

    if (!ev)
        return;
    await_idle(dev, ev);
    hl_spin_lock(&dev->lock);
    if (ev->prev)
        ev->prev->next = ev->next;
    else
        dev->events = ev->next;
    if (ev->next)
        ev->next->prev = ev->prev;
    hl_spin_unlock(&dev->lock);
    hl_sys_free(ev);
}

unsigned hl_device_host_events_end(struct host_device *dev)
{
    unsigned n = 0;

    for (; dev->events; n++)
        hl_device_host_event_close(&dev->base, dev->events);
    return n;
}

static int run_record(struct host_stream *s, const struct host_op *op)
{
    struct host_device *dev = s->dev;
    struct hl_event *ev = op->record.event;

    hl_spin_lock(&ev->lock);
    if (ev->nrecords == op->record.record)
        ev->reached_ns = s->ready_ns;
    ev->pending--;
    hl_spin_unlock(&ev->lock);
    hl_gate_wake(&dev->event_idle);
    return 0;
}

int hl_device_host_event_record(struct haul_device *base, struct hl_event *ev, void *stream)
{
    struct host_stream *s = hl_device_host_stream(host_of(base), stream);
    struct host_op op = {.run = run_record, .lane = -1, .always = 1};
    uint64_t ticket;

    if (!s)
        return -EINVAL;
    op.record.event = ev;
    hl_spin_lock(&ev->lock);
    op.record.record = ++ev->nrecords;
    ev->pending++;
    hl_spin_unlock(&ev->lock);
    ticket = hl_device_host_push(s, &op);
    hl_spin_lock(&ev->lock);
    if (ev->nrecords == op.record.record) {
        ev->stream = s;
        ev->ticket = ticket;
    }
    hl_spin_unlock(&ev->lock);
    return 0;
}

/* The latest record; NULL when there was none. */
static struct host_stream *latest(struct hl_event *ev, uint64_t *ticket)
{
    struct host_stream *s;

    hl_spin_lock(&ev->lock);
    s = ev->stream;
    *ticket = ev->ticket;
    hl_spin_unlock(&ev->lock);
    return s;
}

int hl_device_host_event_query(struct haul_device *base, struct hl_event *ev)
{
    uint64_t ticket;
    struct host_stream *s = latest(ev, &ticket);
    int rc;

    if (!s)
        return 1;
    if (!hl_device_host_reached(s, ticket))
        return 0;
    rc = hl_device_host_outcome(s, ticket);
    return rc < 0 ? rc : 1;
}

int hl_device_host_event_sync(struct haul_device *base, struct hl_event *ev)
{
    uint64_t ticket;
    struct host_stream *s = latest(ev, &ticket);

    if (!s)
        return 0;
    hl_device_host_await(s, ticket);
    return hl_device_host_outcome(s, ticket);
}

int hl_device_host_event_time_ns(struct haul_device *base, struct hl_event *ev, uint64_t *out)
{
    hl_spin_lock(&ev->lock);
    *out = ev->reached_ns;
    hl_spin_unlock(&ev->lock);
    return 0;
}

static int run_wait(struct host_stream *s, const struct host_op *op)
{
    uint64_t ended = hl_device_host_await(op->wait.stream, op->wait.ticket);

    if (ended > s->ready_ns)
        s->ready_ns = ended;
    return hl_device_host_outcome(op->wait.stream, op->wait.ticket);
}

static int went_well(const struct host_stream *s, uint64_t ticket)
{
    return hl_device_host_reached(s, ticket) &&
           atomic_load_explicit(&s->rc, memory_order_acquire) == 0;
}

int hl_device_host_stream_wait(struct haul_device *base, void *stream, struct hl_event *ev)
{
    struct host_stream *s = hl_device_host_stream(host_of(base), stream);
    struct host_op op = {.run = run_wait, .lane = -1};

    if (!s)
        return -EINVAL;
    op.wait.stream = latest(ev, &op.wait.ticket);
    /* A stream is behind its own records anyway, and what is done well needs no waking up for. */
    if (!op.wait.stream || op.wait.stream == s || went_well(op.wait.stream, op.wait.ticket))
        return 0;
    (void)hl_device_host_push(s, &op);
    return 0;
}
