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

/* What every rank sent, and an FP32 sum where the sum is not formed in dst. */
uint64_t hl_comm_reduce_scratch_bytes(uint32_t nranks, enum haul_dtype src_dtype, uint64_t n)
{
    return nranks == 1 ? 0 : nranks * n * dtype_bytes(src_dtype) + n * sizeof(float);
}

/* dst = parts (nranks, n) added in rank order in FP32, rounded once. */
static int sum_parts(struct haul_comm *comm, const struct hl_comm_reduce *a, const char *parts,
                     float *sum, void *stream)
{
    const struct hl_device_ops *ops = comm->dev->ops;
    uint64_t each = a->n * dtype_bytes(a->src_dtype);
    int rc = 0;

    for (uint32_t r = 0; rc == 0 && r < comm->nranks; r++)
        rc = ops->accumulate(comm->dev, sum, parts + r * each, a->src_dtype, a->n, r == 0, stream);
    if (rc == 0 && (void *)sum != a->dst)
        rc = ops->convert(comm->dev, a->dst, a->dst_dtype, sum, HAUL_FP32, a->n, stream);
    return rc;
}

static int reduce_here(struct haul_comm *comm, const struct hl_comm_reduce *a, void *stream)
{
    uint64_t bytes = a->n * dtype_bytes(a->src_dtype);
    char *parts = a->scratch;
    float *sum = (float *)(parts + comm->nranks * bytes);
    int rc;

    if (comm->nranks == 1)
        return comm->dev->ops->convert(comm->dev, a->dst, a->dst_dtype, a->src, a->src_dtype, a->n,
                                       stream);
    rc = comm->ops->all_to_all(comm, parts, a->src, bytes, stream);
    return rc < 0 ? rc
                  : sum_parts(comm, a, parts, a->dst_dtype == HAUL_FP32 ? a->dst : sum, stream);
}

/* The library's own reduction gives its result in the dtype that travelled. */
static int reduce_below(struct haul_comm *comm, const struct hl_comm_reduce *a, void *stream)
{
    void *dst = a->dst_dtype == a->src_dtype ? a->dst : a->scratch;
    int rc = comm->ops->reduce_scatter(comm, dst, a->src, a->src_dtype, a->n, stream);

    if (rc == 0 && dst != a->dst)
        rc = comm->dev->ops->convert(comm->dev, a->dst, a->dst_dtype, dst, a->src_dtype, a->n,
                                     stream);
    return rc;
}

int hl_comm_reduce_scatter(struct haul_comm *comm, struct haul_comm_count *counts,
                           const struct hl_comm_reduce *args, void *stream)
{
    int rc = comm->ops->reduce_scatter && comm->nranks > 1 ? reduce_below(comm, args, stream)
                                                           : reduce_here(comm, args, stream);

    if (rc == 0)
        count(&counts[HAUL_COMM_REDUCE_SCATTER], comm, args->n, dtype_bytes(args->src_dtype));
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
