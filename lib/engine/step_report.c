/*
 * step_report.c: where the time of a step went.
 *
 * Busy time and bytes come from counters. Exposed time is sampled: at every acquire or grad that had to
 * wait, an event before and one after the wait say when the compute lane stood still; the part of that
 * in which the host itself was waiting belongs to what it waited for, the rest to the copy. Where it waited
 * for updates, what optim stood still for the drive in just that time is the drive's.
 */
#include <string.h>

#include "clock.h"
#include "engine_state.h"

/* A wait that goes on after a wake for something else is one wait. */
void hl_io_wait_add(struct haul_engine *e, bool write, uint64_t begin_ns, uint64_t end_ns)
{
    struct hl_io_wait *last = &e->io_waits[(e->nio_waits + e->io_waits_cap - 1) % e->io_waits_cap];

    e->io_wait_ns += end_ns - begin_ns;
    if (e->nio_waits && last->write == write && last->end_ns == begin_ns)
        last->end_ns = end_ns;
    else
        e->io_waits[e->nio_waits++ % e->io_waits_cap] =
            (struct hl_io_wait){begin_ns, end_ns, write};
}

static uint64_t span_ns(uint64_t from, uint64_t to)
{
    return to > from ? to - from : 0;
}

static uint64_t overlap_ns(const struct hl_io_wait *w, uint64_t from, uint64_t to)
{
    return span_ns(w->begin_ns > from ? w->begin_ns : from, w->end_ns < to ? w->end_ns : to);
}

void hl_expose_updates(struct haul_engine *e, uint64_t from_ns, uint64_t to_ns)
{
    uint64_t left = span_ns(from_ns, to_ns);

    for (uint64_t i = 0; i < e->nio_waits && i < e->io_waits_cap; i++) {
        const struct hl_io_wait *w = &e->io_waits[(e->nio_waits - 1 - i) % e->io_waits_cap];
        uint64_t ns = overlap_ns(w, from_ns, to_ns);

        if (w->end_ns <= from_ns)
            break;
        e->exposed_ns[w->write ? HAUL_LANE_IO_WRITE : HAUL_LANE_IO_READ] += ns;
        left -= ns;
    }
    e->exposed_ns[HAUL_LANE_OPTIM] += left;
}

struct hl_sample *hl_sample_begin(struct haul_engine *e, void *stream, enum haul_lane host_lane)
{
    struct hl_sample *s;

    if (e->nsamples == e->samples_cap)
        return NULL;
    s = &e->samples[e->nsamples];
    if (e->ops->event_record(e->dev, s->before, stream) < 0)
        return NULL;
    e->nsamples++;
    s->ended = false;
    s->host_lane = host_lane;
    s->enter_ns = hl_clock_ns();
    return s;
}

int hl_sample_end(struct haul_engine *e, struct hl_sample *s, enum haul_lane lane, void *stream)
{
    s->leave_ns = hl_clock_ns();
    s->lane = lane;
    s->ended = true;
    return e->ops->event_record(e->dev, s->after, stream);
}

static int settle(struct haul_engine *e, const struct hl_sample *s)
{
    uint64_t before, after;
    int rc;

    if (!s->ended || e->ops->event_query(e->dev, s->before) != 1 ||
        e->ops->event_query(e->dev, s->after) != 1)
        return 0;
    if ((rc = e->ops->event_time_ns(e->dev, s->before, &before)) < 0 ||
        (rc = e->ops->event_time_ns(e->dev, s->after, &after)) < 0)
        return rc;
    uint64_t idle = before > s->enter_ns ? before : s->enter_ns;
    uint64_t host_end = s->leave_ns < after ? s->leave_ns : after;
    if (s->host_lane == HAUL_LANE_OPTIM)
        hl_expose_updates(e, idle, host_end);
    else
        e->exposed_ns[s->host_lane] += span_ns(idle, host_end);
    e->exposed_ns[s->lane] += span_ns(idle > host_end ? idle : host_end, after);
    return 0;
}

int hl_samples_settle(struct haul_engine *e)
{
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < e->nsamples; i++)
        rc = settle(e, &e->samples[i]);
    e->nsamples = 0;
    return rc;
}

static void read_store_counters(struct haul_engine *e, struct haul_lane_report lane[HAUL_NLANES])
{
    struct haul_store_stats st = {.struct_size = sizeof st};

    if (!e->store || haul_store_stat(e->store, &st) < 0)
        return;
    lane[HAUL_LANE_IO_READ].busy_ns = st.read.busy_ns;
    lane[HAUL_LANE_IO_READ].bytes = st.read.disk_bytes;
    lane[HAUL_LANE_IO_WRITE].busy_ns = st.write.busy_ns;
    lane[HAUL_LANE_IO_WRITE].bytes = st.write.disk_bytes;
}

static void read_counters(struct haul_engine *e, struct haul_lane_report lane[HAUL_NLANES])
{
    static const enum haul_lane device_lane[HL_DEVICE_NLANES] = {[HL_DEVICE_COMPUTE] =
                                                                     HAUL_LANE_COMPUTE,
                                                                 [HL_DEVICE_H2D] = HAUL_LANE_H2D,
                                                                 [HL_DEVICE_D2H] = HAUL_LANE_D2H};

    memset(lane, 0, HAUL_NLANES * sizeof *lane);
    for (unsigned i = 0; i <= HL_DEVICE_D2H; i++) {
        struct hl_device_lane_stats st;
        e->ops->lane_stats(e->dev, i, &st);
        lane[device_lane[i]].busy_ns = st.busy_ns;
        lane[device_lane[i]].bytes = st.bytes;
    }
    lane[HAUL_LANE_OPTIM].busy_ns = atomic_load(&e->optim_busy_ns);
    lane[HAUL_LANE_OPTIM].bytes = atomic_load(&e->optim_bytes);
    (void)hl_comm_spans_settle(e); /* a device that has failed says so elsewhere */
    lane[HAUL_LANE_COMM].busy_ns = e->comm_busy_ns;
    lane[HAUL_LANE_COMM].bytes = e->comm_counts[HAUL_COMM_ALL_GATHER].sent_bytes +
                                 e->comm_counts[HAUL_COMM_REDUCE_SCATTER].sent_bytes;
    read_store_counters(e, lane);
    for (unsigned i = 0; i < HAUL_NLANES; i++)
        lane[i].exposed_ns = e->exposed_ns[i];
}

void hl_report_fill(struct haul_engine *e, struct haul_report *out)
{
    struct haul_lane_report now[HAUL_NLANES];

    read_counters(e, now);
    for (unsigned i = 0; i < HAUL_NLANES; i++) {
        out->lanes[i].busy_ns = now[i].busy_ns - e->lane_base[i].busy_ns;
        out->lanes[i].exposed_ns = now[i].exposed_ns - e->lane_base[i].exposed_ns;
        out->lanes[i].bytes = now[i].bytes - e->lane_base[i].bytes;
    }
    out->wall_ns = hl_clock_ns() - e->step_returned_ns;
    out->weight_passes = e->elems ? (double)e->acquired_elems / (double)e->elems : 0;
    out->order_misses = e->order_misses;
}

void hl_report_rebase(struct haul_engine *e)
{
    read_counters(e, e->lane_base);
    e->acquired_elems = e->order_misses = 0;
    e->step_returned_ns = hl_clock_ns();
}
