/*
 * comm_nccl_watch.c: a thread that looks after what is queued, since a collective whose peer is missing
 * holds its stream for good, and who waits for the stream cannot look itself.
 */
#include <inttypes.h>

#include "clock.h"
#include "comm_nccl.h"
#include "sys.h"

#define MOST_NAP_NS UINT64_C(50000000)

/* What NCCL has noticed by itself: a lost connection, a peer that has aborted. */
static int ask(struct nccl_comm *c, struct ncclComm **comm)
{
    int result = NCCL_SUCCESS, rc = 0;

    hl_nccl_hold(c);
    if (*comm)
        rc = HL_NCCL(&c->lib, ncclCommGetAsyncError, *comm, &result);
    if (rc == 0)
        rc = hl_nccl_result(&c->lib, result, "NCCL has met an error");
    hl_nccl_give_back(c);
    return rc;
}

static int too_old(const struct nccl_comm *c, const struct nccl_watched *w)
{
    return hl_fail(HAUL_E_NCCL,
                   "%s of %" PRIu64 " bytes a rank, call %" PRIu64 ", has been under way for %g s "
                   "on rank %u of %u: another rank has ended, hangs, or makes another call (NCCL "
                   "does not say which); look at the others' output, set NCCL_DEBUG=INFO, or raise "
                   "timeout_s where it is only slow",
                   hl_nccl_kind_name(w->kind), w->bytes, w->number, (double)c->timeout_ns * 1e-9,
                   c->base.rank, c->base.nranks);
}

/* The oldest calls: done ones are taken out; one that has begun has an age. */
static int look(struct nccl_comm *c)
{
    struct haul_device *dev = c->base.dev;
    uint64_t seen = atomic_load_explicit(&c->nseen, memory_order_relaxed);

    for (; seen < atomic_load_explicit(&c->nwatched, memory_order_acquire); seen++) {
        struct nccl_watched *w = &c->watched[seen % NCCL_WATCHED];
        int rc = dev->ops->event_query(dev, w->end);

        if (rc == 0)
            rc = dev->ops->event_query(dev, w->begin);
        else if (rc > 0) {
            atomic_store_explicit(&c->nseen, seen + 1, memory_order_release);
            continue;
        }
        if (rc <= 0)
            return rc;
        if (!w->since_ns)
            w->since_ns = hl_clock_ns();
        return hl_clock_ns() - w->since_ns > c->timeout_ns ? too_old(c, w) : 0;
    }
    return 0;
}

static int look_everywhere(struct nccl_comm *c)
{
    int rc;

    if ((rc = ask(c, &c->queued)) < 0 || (rc = ask(c, &c->blocking)) < 0 || (rc = look(c)) < 0)
        return rc;
    return c->over ? hl_comm_check(c->over) : 0; /* hears of ranks that give up */
}

static void *watch_main(void *arg)
{
    struct nccl_comm *c = arg;
    uint64_t nap = c->timeout_ns / 20 < MOST_NAP_NS ? c->timeout_ns / 20 : MOST_NAP_NS;

    for (;;) {
        uint32_t rung = hl_gate_look(&c->bell);

        if (atomic_load(&c->closing))
            return NULL;
        if (atomic_load(&c->rc) == 0) {
            int rc = look_everywhere(c);

            if (rc < 0)
                hl_nccl_fail(c, rc);
        }
        hl_gate_sleep_for(&c->bell, rung, nap);
    }
}

int hl_nccl_watch_start(struct nccl_comm *c)
{
    struct haul_device *dev = c->base.dev;
    int rc;

    for (int i = 0; i < NCCL_WATCHED; i++)
        if ((rc = dev->ops->event_open(dev, &c->watched[i].begin)) < 0 ||
            (rc = dev->ops->event_open(dev, &c->watched[i].end)) < 0)
            return rc;
    rc = hl_sys_thread("haul-nccl", watch_main, c, &c->watch);
    c->watching = rc == 0;
    return rc < 0 ? hl_fail(rc, "no thread that watches over NCCL") : 0;
}

void hl_nccl_watch_end(struct nccl_comm *c)
{
    struct haul_device *dev = c->base.dev;

    atomic_store(&c->closing, 1);
    hl_gate_wake(&c->bell);
    if (c->watching)
        hl_sys_join(c->watch);
    for (int i = 0; i < NCCL_WATCHED; i++) {
        dev->ops->event_close(dev, c->watched[i].begin);
        dev->ops->event_close(dev, c->watched[i].end);
    }
}
