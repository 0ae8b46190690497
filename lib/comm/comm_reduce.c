/* comm_reduce.c: counted collectives, and the sum over ranks in rank order with one rounding (R1). */
#include "comm.h"
#include "fail.h"

static uint64_t dtype_bytes(enum haul_dtype dtype)
{
    return dtype == HAUL_FP32 ? 4 : 2;
}

static void count(struct haul_comm_count *c, const struct haul_comm *comm, uint64_t n,
                  uint64_t each_bytes)
{
    c->calls++;
    c->elems += comm->nranks * n;
    c->sent_elems += (comm->nranks - 1) * n;
    c->sent_bytes += (comm->nranks - 1) * n * each_bytes;
}

int hl_comm_all_gather(struct haul_comm *comm, struct haul_comm_count *counts, void *full,
                       const void *shard, enum haul_dtype dtype, uint64_t n, void *stream)
{
    uint64_t bytes = n * dtype_bytes(dtype);
    int rc = comm->ops->all_gather(comm, full, shard, bytes, stream);

    if (rc == 0)
        count(&counts[HAUL_COMM_ALL_GATHER], comm, n, dtype_bytes(dtype));
    return rc;
}

/* What every rank sent. */
uint64_t hl_comm_reduce_scratch_bytes(uint32_t nranks, enum haul_dtype dtype, uint64_t n)
{
    return nranks == 1 ? 0 : nranks * n * dtype_bytes(dtype);
}

static int reduce_here(struct haul_comm *comm, const struct hl_comm_reduce *a, void *stream)
{
    const struct hl_device_ops *ops = comm->dev->ops;
    uint64_t bytes = a->n * dtype_bytes(a->dtype);
    int rc;

    if (comm->nranks == 1)
        return ops->sum(comm->dev, a->dst, a->src, a->dtype, 1, a->n, stream);
    rc = comm->ops->all_to_all(comm, a->scratch, a->src, bytes, stream);
    return rc < 0 ? rc
                  : ops->sum(comm->dev, a->dst, a->scratch, a->dtype, comm->nranks, a->n, stream);
}

int hl_comm_reduce_scatter(struct haul_comm *comm, struct haul_comm_count *counts,
                           const struct hl_comm_reduce *args, void *stream)
{
    int rc =
        comm->ops->reduce_scatter && comm->nranks > 1
            ? comm->ops->reduce_scatter(comm, args->dst, args->src, args->dtype, args->n, stream)
            : reduce_here(comm, args, stream);

    if (rc == 0)
        count(&counts[HAUL_COMM_REDUCE_SCATTER], comm, args->n, dtype_bytes(args->dtype));
    return rc;
}

int hl_comm_all_reduce(struct haul_comm *comm, struct haul_comm_count *counts,
                       enum haul_comm_scalar op, void *values, uint64_t n)
{
    int rc = comm->ops->all_reduce(comm, op, values, n);

    if (rc == 0) {
        counts[HAUL_COMM_ALL_REDUCE].calls++;
        counts[HAUL_COMM_ALL_REDUCE].elems += n;
    }
    return rc;
}
