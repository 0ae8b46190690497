/*
 * device_host_link.c: one direction of the emulated PCIe link.
 *
 * A copy goes in chunks. A chunk takes the link, copies, and holds it until the time that the set
 * bandwidth needs has passed too. Chunks lie one after the other on an emulated time line that follows
 * the clock from behind: a thread that wakes late has not made its chunk longer, and over any interval
 * from before a copy was queued to after it ended the link was not faster than set.
 */
#include "clock.h"
#include "device_host.h"
#include <string.h>

#define CHUNK_BYTES (UINT64_C(4) << 20) /* how long an urgent copy waits for an ordinary one */

static void link_enter(struct host_link *link, int urgent, uint64_t ticket)
{
    for (;;) {
        uint32_t seen = hl_gate_look(&link->freed);
        int mine;

        hl_spin_lock(&link->lock);
        mine = !link->held && link->serving[urgent] == ticket &&
               (urgent || link->issued[1] == link->serving[1]);
        link->held |= mine;
        hl_spin_unlock(&link->lock);
        if (mine)
            return;
        hl_gate_sleep(&link->freed, seen);
    }
}

static void link_leave(struct host_link *link, int urgent, int finished)
{
    hl_spin_lock(&link->lock);
    link->held = 0;
    link->serving[urgent] += (uint64_t)finished;
    hl_spin_unlock(&link->lock);
    hl_gate_wake(&link->freed);
}

/* One chunk, by the holder of the link. Returns its end on the time line. */
static uint64_t chunk_copy(struct host_link *link, void *dst, const void *src, uint64_t bytes,
                           uint64_t begin_ns)
{
    uint64_t t0 = hl_clock_ns(), copied, begin, took, end;

    memcpy(dst, src, bytes);
    copied = hl_clock_ns();
    took = copied - t0;
    begin = begin_ns > link->free_ns ? begin_ns : link->free_ns;
    if (link->bytes_per_s > 0) {
        double least = (double)bytes / link->bytes_per_s * 1e9 + 1; /* + 1: rounded up */

        if (least > (double)took)
            took = (uint64_t)least;
    } else {
        begin = t0;
    }
    end = begin + took;
    if (end > copied)
        hl_clock_sleep_until(end);
    link->free_ns = end;
    atomic_fetch_add_explicit(&link->lane->busy_ns, took, memory_order_relaxed);
    atomic_fetch_add_explicit(&link->lane->bytes, bytes, memory_order_relaxed);
    return end;
}

uint64_t hl_device_host_link_copy(struct host_link *link, void *dst, const void *src,
                                  uint64_t bytes, int urgent, uint64_t begin_ns)
{
    uint64_t ticket, done = 0;

    if (link->latency_ns) {
        begin_ns += link->latency_ns;
        hl_clock_sleep_until(begin_ns);
    }
    hl_spin_lock(&link->lock);
    ticket = link->issued[urgent]++;
    hl_spin_unlock(&link->lock);
    while (done < bytes) {
        uint64_t n = bytes - done < CHUNK_BYTES ? bytes - done : CHUNK_BYTES;

        link_enter(link, urgent, ticket);
        begin_ns = chunk_copy(link, (char *)dst + done, (const char *)src + done, n, begin_ns);
        done += n;
        link_leave(link, urgent, done == bytes);
    }
    return begin_ns;
}
