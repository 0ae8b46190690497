/*
 * comm_nccl_scalar.c: the calls that block: through another communicator, or on a stream of their own
 * through the GPU, where NCCL gathers every rank's values and they are combined here, in rank order.
 */
#include "clock.h"
#include "comm_nccl.h"
#include "comm_scalar.h"
#include "cuda_context.h"
#include "sys.h"

#define NAP_NS UINT64_C(100000)

static uint64_t bounce_bytes(const struct nccl_comm *c)
{
    return (uint64_t)c->base.nranks * NCCL_REDUCE_LEN * HL_COMM_VALUE_BYTES;
}

int hl_nccl_bounce_open(struct nccl_comm *c)
{
    struct haul_device *dev = c->base.dev;
    void *p = NULL;
    int rc;

    if ((rc = dev->ops->stream_open(dev, 1, &c->stream)) < 0 ||
        (rc = dev->ops->event_open(dev, &c->arrived)) < 0 ||
        (rc = dev->ops->alloc(dev, bounce_bytes(c), &p)) < 0)
        return rc;
    c->device_values = p;
    rc = hl_sys_alloc(bounce_bytes(c), &p);
    if (rc < 0)
        return hl_fail(rc, "no memory for the values of %u ranks", c->base.nranks);
    c->values = p;
    return 0;
}

void hl_nccl_bounce_close(struct nccl_comm *c)
{
    struct haul_device *dev = c->base.dev;

    if (c->stream)
        dev->ops->stream_close(dev, c->stream);
    dev->ops->event_close(dev, c->arrived);
    if (c->device_values)
        dev->ops->free(dev, c->device_values);
    hl_sys_free(c->values);
}

/* In the context: the gather is queued, or an error. */
static int queue_gather(struct nccl_comm *c, uint64_t n)
{
    uint64_t *own = c->device_values + c->base.rank * n;
    int rc = 0;

    hl_nccl_hold(c);
    if (c->blocking)
        rc = HL_NCCL(&c->lib, ncclAllGather, own, c->device_values, n * HL_COMM_VALUE_BYTES,
                     NCCL_INT8, c->blocking, c->stream);
    hl_nccl_give_back(c);
    return rc < 0 ? rc : hl_nccl_settle(c, &c->blocking, "all-reduce of scalars");
}

/* Not by waiting for the stream: a peer may be missing. */
static int await(struct nccl_comm *c)
{
    struct haul_device *dev = c->base.dev;
    uint64_t begin = hl_clock_ns();
    int rc;

    while ((rc = dev->ops->event_query(dev, c->arrived)) == 0) {
        if ((rc = hl_nccl_check(&c->base)) < 0)
            return rc;
        if (hl_clock_ns() - begin > c->timeout_ns)
            return hl_fail(HAUL_E_NCCL,
                           "an all-reduce of scalars has waited %g s on rank %u of %u: another "
                           "rank has ended, hangs, or makes another call (NCCL does not say which)",
                           (double)c->timeout_ns * 1e-9, c->base.rank, c->base.nranks);
        hl_clock_sleep_until(hl_clock_ns() + NAP_NS);
    }
    return rc < 0 ? rc : hl_nccl_check(&c->base); /* an abort lets the stream go on, with nothing */
}

/* values (n,) of this rank; all ranks' are then in c->values (nranks, n). */
static int gather(struct nccl_comm *c, const uint64_t *values, uint64_t n)
{
    struct haul_device *dev = c->base.dev;
    uint64_t bytes = n * HL_COMM_VALUE_BYTES;
    int rc;

    if ((rc = dev->ops->copy_h2d(dev, c->device_values + c->base.rank * n, values, bytes,
                                 c->stream)) < 0 ||
        (rc = queue_gather(c, n)) < 0 ||
        (rc = dev->ops->event_record(dev, c->arrived, c->stream)) < 0 || (rc = await(c)) < 0 ||
        (rc = dev->ops->copy_d2h(dev, c->values, c->device_values, bytes * c->base.nranks,
                                 c->stream)) < 0)
        return rc;
    return dev->ops->stream_sync(dev, c->stream);
}

static int gather_in_context(struct nccl_comm *c, const uint64_t *values, uint64_t n)
{
    int entered = hl_cuda_context_enter(c->base.dev, NULL), rc;

    if (entered < 0)
        return entered;
    rc = gather(c, values, n);
    hl_cuda_context_leave(c->base.dev, entered);
    if (rc < 0)
        hl_nccl_fail(c, rc);
    return rc;
}

int hl_nccl_gather_word(struct nccl_comm *c, uint64_t word, const uint64_t **out)
{
    int rc = gather_in_context(c, &word, 1);

    *out = c->values;
    return rc;
}

static int reduce_some(struct nccl_comm *c, enum haul_comm_scalar op, uint64_t *values, uint64_t n)
{
    int rc = gather_in_context(c, values, n);

    for (uint64_t i = 0; rc == 0 && i < n; i++) {
        values[i] = c->values[i];
        for (uint32_t r = 1; r < c->base.nranks; r++)
            values[i] = hl_comm_combine(op, values[i], c->values[r * n + i]);
    }
    return rc;
}

int hl_nccl_all_reduce(struct haul_comm *comm, enum haul_comm_scalar op, void *values, uint64_t n)
{
    struct nccl_comm *c = nccl_of(comm);
    uint64_t *at = values;
    int rc;

    if (c->over)
        return c->over->ops->all_reduce(c->over, op, values, n);
    rc = hl_nccl_check(comm);
    for (uint64_t left = n; rc == 0 && left;) {
        uint64_t some = left < NCCL_REDUCE_LEN ? left : NCCL_REDUCE_LEN;

        rc = reduce_some(c, op, at, some);
        at += some;
        left -= some;
    }
    return rc;
}

int hl_nccl_barrier(struct haul_comm *comm)
{
    struct nccl_comm *c = nccl_of(comm);
    uint64_t word = 0;

    return c->over ? c->over->ops->barrier(c->over)
                   : hl_nccl_all_reduce(comm, HAUL_COMM_MAX_U64, &word, 1);
}
