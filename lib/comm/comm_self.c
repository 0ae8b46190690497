/* comm_self.c: the communicator of a single rank: what it gathers is its own, what it sums is one value. */
#include "arith.h"
#include "comm.h"
#include "fail.h"
#include "sys.h"
#include <inttypes.h>

struct comm_self {
    struct hl_comm base;
    struct hl_comm_stats stats;
};

static void count_call(struct hl_comm *comm, enum hl_comm_kind kind, uint64_t elems)
{
    struct hl_comm_count *c = &((struct comm_self *)comm)->stats.kind[kind];

    c->calls++;
    c->elems += elems;
}

static void self_close(struct hl_comm *comm)
{
    hl_sys_free(comm);
}

static int array_bytes(const char *call, enum haul_dtype dtype, uint64_t n, uint64_t *bytes)
{
    uint64_t size = hl_dtype_bytes(dtype);

    if (!size || __builtin_mul_overflow(n, size, bytes))
        return hl_fail(-EINVAL, "%s: %" PRIu64 " elements of dtype %d", call, n, (int)dtype);
    return 0;
}

static int self_all_gather(struct hl_comm *comm, void *full, const void *shard,
                           enum haul_dtype dtype, uint64_t n, void *stream)
{
    uint64_t bytes = 0;
    int rc = array_bytes("all_gather", dtype, n, &bytes);

    if (rc == 0 && full != shard)
        rc = comm->dev->ops->copy_d2d(comm->dev, full, shard, bytes, stream);
    if (rc == 0)
        count_call(comm, HL_COMM_ALL_GATHER, n);
    return rc;
}

static uint64_t self_reduce_scratch_bytes(struct hl_comm *comm, enum haul_dtype src_dtype,
                                          uint64_t n)
{
    return 0;
}

/* The sum of one value is that value; what remains is the rounding. */
static int self_reduce_scatter(struct hl_comm *comm, const struct hl_comm_reduce *args,
                               void *stream)
{
    int rc = comm->dev->ops->convert(comm->dev, args->dst, args->dst_dtype, args->src,
                                     args->src_dtype, args->n, stream);

    if (rc == 0)
        count_call(comm, HL_COMM_REDUCE_SCATTER, args->n);
    return rc;
}

static int self_broadcast(struct hl_comm *comm, void *buf, enum haul_dtype dtype, uint64_t n,
                          unsigned root, void *stream)
{
    if (root != 0)
        return hl_fail(-EINVAL, "broadcast: root %u of 1 rank", root);
    count_call(comm, HL_COMM_BROADCAST, n);
    return 0;
}

static int self_all_reduce(struct hl_comm *comm, enum hl_comm_scalar op, void *values, uint64_t n)
{
    count_call(comm, HL_COMM_ALL_REDUCE, n);
    return 0;
}

static int self_barrier(struct hl_comm *comm)
{
    return 0;
}

static void self_stats(struct hl_comm *comm, struct hl_comm_stats *out)
{
    *out = ((struct comm_self *)comm)->stats;
}

static const struct hl_comm_ops self_ops = {
    .close = self_close,
    .all_gather = self_all_gather,
    .reduce_scratch_bytes = self_reduce_scratch_bytes,
    .reduce_scatter = self_reduce_scatter,
    .broadcast = self_broadcast,
    .all_reduce = self_all_reduce,
    .barrier = self_barrier,
    .stats = self_stats,
};

int hl_comm_self_open(struct haul_device *dev, struct hl_comm **out)
{
    struct comm_self *self;
    void *p;
    int rc = hl_sys_alloc(sizeof *self, &p);

    if (rc < 0)
        return hl_fail(rc, "no memory for a communicator");
    self = p;
    self->base = (struct hl_comm){.ops = &self_ops, .dev = dev, .rank = 0, .nranks = 1};
    *out = &self->base;
    return 0;
}
