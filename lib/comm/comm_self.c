/* comm_self.c: the communicator of a single rank: what it gathers is its own. */
#include "comm.h"
#include "fail.h"
#include "sys.h"

static void self_close(struct haul_comm *comm)
{
    hl_sys_free(comm);
}

static int self_copy(struct haul_comm *comm, void *to, const void *from, uint64_t bytes,
                     void *stream)
{
    return to == from || bytes == 0 ? 0
                                    : comm->dev->ops->copy_d2d(comm->dev, to, from, bytes, stream);
}

static int self_broadcast(struct haul_comm *comm, void *buf, uint64_t bytes, unsigned root,
                          void *stream)
{
    return root == 0 ? 0 : hl_fail(-EINVAL, "broadcast: root %u of 1 rank", root);
}

static int self_all_reduce(struct haul_comm *comm, enum haul_comm_scalar op, void *values,
                           uint64_t n)
{
    return 0;
}

static int self_barrier(struct haul_comm *comm)
{
    return 0;
}

static const struct haul_comm_ops self_ops = {
    .struct_size = sizeof(struct haul_comm_ops),
    .all_gather = self_copy,
    .all_to_all = self_copy,
    .broadcast = self_broadcast,
    .all_reduce = self_all_reduce,
    .barrier = self_barrier,
    .close = self_close,
};

int haul_comm_self_open(struct haul_device *dev, struct haul_comm **out)
{
    struct haul_comm *self;
    int rc;

    if ((rc = hl_need("haul_comm_self_open", "dev", dev)) < 0 ||
        (rc = hl_need("haul_comm_self_open", "out", out)) < 0)
        return rc;
    rc = hl_sys_alloc(sizeof *self, (void **)&self);
    if (rc < 0)
        return hl_fail(rc, "no memory for a communicator");
    *self = (struct haul_comm){.ops = &self_ops, .dev = dev, .nranks = 1, .nlocal = 1};
    *out = self;
    return 0;
}

void haul_comm_close(struct haul_comm *comm)
{
    if (comm)
        comm->ops->close(comm);
}
