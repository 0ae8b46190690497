/*
 * device_cuda_stream.c: streams, events, and event times on haul's own time line.
 *
 * CUDA tells the time between two events, as a float of milliseconds. So one event is kept whose time is
 * known on both lines, the anchor, and it is renewed before the float grows coarse or the clocks drift.
 */
#include "clock.h"
#include "device_cuda.h"
#include "sys.h"

#define ANCHOR_AGE_NS UINT64_C(2000000000)

/* ---- streams ---- */

int hl_cuda_stream_open(struct haul_device *base, int urgent, void **stream)
{
    struct cuda_device *dev = cuda_of(base);
    int priority = urgent ? dev->greatest_priority : dev->least_priority;
    struct cuda_stream *s;
    int entered, rc;
    void *p;

    if ((rc = hl_sys_alloc(sizeof *s, &p)) < 0)
        return hl_fail(rc, "no memory for a stream");
    s = p;
    entered = hl_cuda_enter(dev);
    rc = entered < 0 ? entered
                     : HL_CU(&dev->drv, cuStreamCreateWithPriority, &s->stream,
                             CU_STREAM_NON_BLOCKING, priority);
    hl_cuda_leave(dev, entered);
    if (rc < 0) {
        hl_sys_free(s);
        return rc;
    }
    hl_spin_lock(&dev->lock);
    s->next = dev->streams;
    dev->streams = s;
    hl_spin_unlock(&dev->lock);
    *stream = s->stream;
    return 0;
}

static struct cuda_stream *take_stream(struct cuda_device *dev, const void *stream)
{
    struct cuda_stream **at, *s;

    hl_spin_lock(&dev->lock);
    for (at = &dev->streams; *at && (*at)->stream != stream; at = &(*at)->next)
        ;
    s = *at;
    if (s)
        *at = s->next;
    hl_spin_unlock(&dev->lock);
    return s;
}

/* In the context. */
static int end_stream(struct cuda_device *dev, struct cuda_stream *s)
{
    int synced = HL_CU(&dev->drv, cuStreamSynchronize, s->stream);
    int rc = HL_CU(&dev->drv, cuStreamDestroy, s->stream);

    hl_sys_free(s);
    return synced < 0 ? synced : rc;
}

void hl_cuda_stream_close(struct haul_device *base, void *stream)
{
    struct cuda_device *dev = cuda_of(base);
    struct cuda_stream *s = take_stream(dev, stream);
    int entered;

    if (!s) {
        hl_log(HAUL_LOG_WARN, "haul_device_stream_close: %p is not an open stream", stream);
        return;
    }
    entered = hl_cuda_enter(dev);
    if (end_stream(dev, s) < 0)
        hl_log(HAUL_LOG_WARN, "a stream was closed with an error: %s", haul_last_error());
    hl_cuda_leave(dev, entered);
}

unsigned hl_cuda_streams_end(struct cuda_device *dev)
{
    unsigned n = 0;

    for (; dev->streams; n++)
        (void)end_stream(dev, take_stream(dev, dev->streams->stream));
    return n;
}

int hl_cuda_stream_sync(struct haul_device *base, void *stream)
{
    struct cuda_device *dev = cuda_of(base);
    int entered = hl_cuda_enter(dev), rc;

    if (entered < 0)
        return entered;
    rc = HL_CU(&dev->drv, cuStreamSynchronize, stream);
    hl_cuda_leave(dev, entered);
    return rc;
}

int hl_cuda_stream_wait(struct haul_device *base, void *stream, struct hl_event *ev)
{
    struct cuda_device *dev = cuda_of(base);
    int entered = hl_cuda_enter(dev), rc;

    if (entered < 0)
        return entered;
    rc = HL_CU(&dev->drv, cuStreamWaitEvent, stream, ev->ev, CU_EVENT_WAIT_DEFAULT);
    hl_cuda_leave(dev, entered);
    return rc;
}

/* ---- events ---- */

static void link_event(struct cuda_device *dev, struct hl_event *ev)
{
    hl_spin_lock(&dev->lock);
    ev->next = dev->events;
    if (ev->next)
        ev->next->prev = ev;
    dev->events = ev;
    hl_spin_unlock(&dev->lock);
}

static void unlink_event(struct cuda_device *dev, struct hl_event *ev)
{
    hl_spin_lock(&dev->lock);
    if (ev->prev)
        ev->prev->next = ev->next;
    else
        dev->events = ev->next;
    if (ev->next)
        ev->next->prev = ev->prev;
    hl_spin_unlock(&dev->lock);
}

/* Blocking: who waits for an event sleeps, since the cores have updates to do. */
int hl_cuda_event_open(struct haul_device *base, struct hl_event **out)
{
    struct cuda_device *dev = cuda_of(base);
    struct hl_event *ev;
    int entered, rc;
    void *p;

    if ((rc = hl_sys_alloc(sizeof *ev, &p)) < 0)
        return hl_fail(rc, "no memory for an event");
    ev = p;
    entered = hl_cuda_enter(dev);
    rc = entered < 0 ? entered : HL_CU(&dev->drv, cuEventCreate, &ev->ev, CU_EVENT_BLOCKING_SYNC);
    hl_cuda_leave(dev, entered);
    if (rc < 0) {
        hl_sys_free(ev);
        return rc;
    }
    link_event(dev, ev);
    *out = ev;
    return 0;
}

void hl_cuda_event_close(struct haul_device *base, struct hl_event *ev)
{
    struct cuda_device *dev = cuda_of(base);
    int entered;

    if (!ev)
        return;
    unlink_event(dev, ev);
    entered = hl_cuda_enter(dev);
    if (HL_CU(&dev->drv, cuEventDestroy, ev->ev) < 0)
        hl_log(HAUL_LOG_WARN, "an event was closed with an error: %s", haul_last_error());
    hl_cuda_leave(dev, entered);
    hl_sys_free(ev);
}

unsigned hl_cuda_events_end(struct cuda_device *dev)
{
    unsigned n = 0;

    for (; dev->events; n++)
        hl_cuda_event_close(&dev->base, dev->events);
    return n;
}

int hl_cuda_event_record(struct haul_device *base, struct hl_event *ev, void *stream)
{
    struct cuda_device *dev = cuda_of(base);
    int entered = hl_cuda_enter(dev), rc;

    if (entered < 0)
        return entered;
    rc = HL_CU(&dev->drv, cuEventRecord, ev->ev, stream);
    hl_cuda_leave(dev, entered);
    if (rc == 0)
        atomic_store(&ev->recorded, 1);
    return rc;
}

int hl_cuda_event_query(struct haul_device *base, struct hl_event *ev)
{
    struct cuda_device *dev = cuda_of(base);
    int entered = hl_cuda_enter(dev);
    CUresult res;

    if (entered < 0)
        return entered;
    res = dev->drv.cuEventQuery(ev->ev);
    hl_cuda_leave(dev, entered);
    if (res == CUDA_ERROR_NOT_READY)
        return 0;
    return res == CUDA_SUCCESS ? 1 : hl_cuda_result(&dev->drv, res, "cuEventQuery");
}

int hl_cuda_event_sync(struct haul_device *base, struct hl_event *ev)
{
    struct cuda_device *dev = cuda_of(base);
    int entered = hl_cuda_enter(dev), rc;

    if (entered < 0)
        return entered;
    rc = HL_CU(&dev->drv, cuEventSynchronize, ev->ev);
    hl_cuda_leave(dev, entered);
    return rc;
}

/* ---- time ---- */

/* The spare event becomes the anchor: recorded on a stream that has nothing else to do, so that it is
 * reached at once. */
static int renew(struct cuda_device *dev)
{
    struct cuda_anchor *a = &dev->anchor;
    CUevent old = a->ev;
    uint64_t before = hl_clock_ns();
    int rc;

    if ((rc = HL_CU(&dev->drv, cuEventRecord, a->spare, a->stream)) < 0 ||
        (rc = HL_CU(&dev->drv, cuEventSynchronize, a->spare)) < 0)
        return rc;
    a->at_ns = before + (hl_clock_ns() - before) / 2;
    a->ev = a->spare;
    a->spare = old;
    return 0;
}

int hl_cuda_anchor_open(struct cuda_device *dev)
{
    struct cuda_anchor *a = &dev->anchor;
    int rc;

    if ((rc = HL_CU(&dev->drv, cuStreamCreateWithPriority, &a->stream, CU_STREAM_NON_BLOCKING,
                    dev->greatest_priority)) < 0 ||
        (rc = HL_CU(&dev->drv, cuEventCreate, &a->ev, CU_EVENT_DEFAULT)) < 0 ||
        (rc = HL_CU(&dev->drv, cuEventCreate, &a->spare, CU_EVENT_DEFAULT)) < 0)
        return rc;
    return renew(dev);
}

void hl_cuda_anchor_close(struct cuda_device *dev)
{
    struct cuda_anchor *a = &dev->anchor;

    if (a->spare)
        (void)dev->drv.cuEventDestroy(a->spare);
    if (a->ev)
        (void)dev->drv.cuEventDestroy(a->ev);
    if (a->stream)
        (void)dev->drv.cuStreamDestroy(a->stream);
}

static void hold(struct cuda_anchor *a)
{
    for (;;) {
        uint32_t seen = hl_gate_look(&a->given_back);

        if (!atomic_exchange(&a->held, 1))
            return;
        hl_gate_sleep(&a->given_back, seen);
    }
}

static void give_back(struct cuda_anchor *a)
{
    atomic_store(&a->held, 0);
    hl_gate_wake(&a->given_back);
}

/* The driver's answer is negative when ev came before the anchor. */
static int time_of(struct cuda_device *dev, CUevent ev, uint64_t *out)
{
    struct cuda_anchor *a = &dev->anchor;
    float ms = 0;
    int rc = 0;

    if (hl_clock_ns() - a->at_ns > ANCHOR_AGE_NS)
        rc = renew(dev);
    if (rc == 0)
        rc = HL_CU(&dev->drv, cuEventElapsedTime, &ms, a->ev, ev);
    if (rc == 0)
        *out = a->at_ns + (uint64_t)(int64_t)((double)ms * 1e6);
    return rc;
}

int hl_cuda_event_time_ns(struct haul_device *base, struct hl_event *ev, uint64_t *out)
{
    struct cuda_device *dev = cuda_of(base);
    int entered, rc;

    if (!atomic_load(&ev->recorded)) {
        *out = 0;
        return 0;
    }
    entered = hl_cuda_enter(dev);
    if (entered < 0)
        return entered;
    hold(&dev->anchor);
    rc = time_of(dev, ev->ev, out);
    give_back(&dev->anchor);
    hl_cuda_leave(dev, entered);
    return rc;
}
