/*
 * trace.c: what each lane did when, for haul_engine_trace().
 *
 * A ring that any thread writes without a lock: a writer takes a place, and gives it up when the trainer
 * has not yet taken what stands there.
 */
#include "clock.h"
#include "engine_state.h"
#include "sys.h"

static void add(struct haul_engine *e, struct haul_trace_event event)
{
    struct hl_trace *t = &e->trace;
    uint64_t at = atomic_load_explicit(&t->put, memory_order_relaxed);

    do {
        /* `at` may be older than `taken`: then the exchange fails */
        if ((int64_t)(at - atomic_load_explicit(&t->taken, memory_order_acquire)) >= t->n) {
            atomic_fetch_add(&t->ndropped, 1);
            return;
        }
    } while (!atomic_compare_exchange_weak(&t->put, &at, at + 1));
    event.step = (uint32_t)atomic_load_explicit(&e->nsteps, memory_order_relaxed) + 1;
    t->event[at % t->n] = event;
    atomic_store_explicit(&t->ready[at % t->n], 1, memory_order_release);
}

void hl_trace_span(struct haul_engine *e, enum haul_lane lane, int32_t unit, uint64_t begin_ns,
                   uint64_t bytes)
{
    if (hl_trace_on(e))
        add(e, (struct haul_trace_event){.lane = lane,
                                         .unit = unit,
                                         .begin_ns = begin_ns,
                                         .end_ns = hl_clock_ns(),
                                         .value = bytes});
}

void hl_trace_counter(struct haul_engine *e, enum haul_trace_kind kind, uint64_t value)
{
    uint64_t now;

    if (!hl_trace_on(e))
        return;
    now = hl_clock_ns();
    add(e, (struct haul_trace_event){
               .kind = kind, .unit = -1, .begin_ns = now, .end_ns = now, .value = value});
}

static void device_span(void *user, enum hl_device_lane lane, uint64_t begin_ns, uint64_t end_ns,
                        uint64_t bytes)
{
    static const enum haul_lane as[] = {[HL_DEVICE_COMPUTE] = HAUL_LANE_COMPUTE,
                                        [HL_DEVICE_H2D] = HAUL_LANE_H2D,
                                        [HL_DEVICE_D2H] = HAUL_LANE_D2H};

    if (lane <= HL_DEVICE_D2H)
        add(user, (struct haul_trace_event){.lane = as[lane],
                                            .unit = -1,
                                            .begin_ns = begin_ns,
                                            .end_ns = end_ns,
                                            .value = bytes});
}

int hl_trace_open(struct haul_engine *e)
{
    struct hl_trace *t = &e->trace;
    int rc;

    if (e->opts.trace_events == 0)
        return 0;
    if ((rc = hl_sys_alloc_array(e->opts.trace_events, sizeof *t->event, (void **)&t->event)) < 0 ||
        (rc = hl_sys_alloc_array(e->opts.trace_events, sizeof *t->ready, (void **)&t->ready)) < 0)
        return rc;
    t->n = e->opts.trace_events;
    e->dev->span_user = e;
    atomic_store(&e->dev->span_fn, device_span);
    return 0;
}

void hl_trace_close(struct haul_engine *e)
{
    if (hl_trace_on(e))
        atomic_store(&e->dev->span_fn, NULL);
    hl_sys_free(e->trace.event);
    hl_sys_free((void *)e->trace.ready);
    e->trace.event = NULL;
    e->trace.ready = NULL;
    e->trace.n = 0;
}

int haul_engine_trace(struct haul_engine *e, struct haul_trace_event *events, uint32_t max,
                      uint32_t *n, uint64_t *ndropped)
{
    uint32_t got = 0;
    int rc;

    if ((rc = hl_need("haul_engine_trace", "engine", e)) < 0 ||
        (max && (rc = hl_need("haul_engine_trace", "events", events)) < 0) ||
        (rc = hl_need("haul_engine_trace", "n", n)) < 0)
        return rc;
    struct hl_trace *t = &e->trace;
    if (!e->built || !hl_trace_on(e))
        return hl_fail(HAUL_E_STATE, "trace: none is kept; set opts.trace_events before open");
    uint64_t at = atomic_load_explicit(&t->taken, memory_order_relaxed);

    while (got < max && atomic_load_explicit(&t->ready[at % t->n], memory_order_acquire)) {
        events[got++] = t->event[at % t->n];
        atomic_store_explicit(&t->ready[at % t->n], 0, memory_order_relaxed);
        atomic_store_explicit(&t->taken, ++at, memory_order_release);
    }
    *n = got;
    if (ndropped)
        *ndropped = atomic_exchange(&t->ndropped, 0);
    return 0;
}
