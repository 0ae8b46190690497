/*
 * haul/comm.h: how the ranks of a training run reach each other.
 *
 * An engine with several ranks is given a communicator: haul_comm_self_open() for one rank, haul/mpi.h,
 * haul/nccl.h, or a table of the caller's own. A table only moves bytes. What is summed over ranks is
 * summed by haul itself, widened to FP32, in rank order, and rounded once, so that the bits of a run do
 * not depend on the library below.
 *
 * All ranks make the same calls in the same order with the same sizes. Two kinds of calls: queued ones
 * work on device memory in the order of a stream and return at once; blocking ones work on values in host
 * memory. One thread queues, one thread blocks; the two may be different, and run at the same time.
 */
#ifndef HAUL_COMM_H
#define HAUL_COMM_H

#include "haul/device.h"
#include "haul/optim.h"

#ifdef __cplusplus
extern "C" {
#endif

struct haul_comm;

/* What all_reduce computes, over what. Double sums are added in rank order. */
enum haul_comm_scalar {
    HAUL_COMM_SUM_F64 = 0,
    HAUL_COMM_MAX_F64,
    HAUL_COMM_SUM_U64,
    HAUL_COMM_MAX_U64
};

/*
 * For authors of a communicator. Pointers of queued calls are device pointers of comm->dev; `bytes` is of
 * one rank's piece, and may be 0. Queued calls do not allocate. Hooks marked (optional) may be NULL.
 *
 * A rank that does not answer within the communicator's time-out is an error that names it. Once a queued
 * call has failed, later ones do nothing, and check() returns the error.
 */
struct haul_comm_ops {
    size_t struct_size;

    /* full (nranks, bytes) = the shards (bytes,) of all ranks in rank order. shard may be where it
     * belongs in full; otherwise they do not overlap. */
    int (*all_gather)(struct haul_comm *comm, void *full, const void *shard, uint64_t bytes,
                      void *stream);
    /* recv (nranks, bytes): piece r is what rank r sent here. send (nranks, bytes): piece r is for rank r.
     * They do not overlap. */
    int (*all_to_all)(struct haul_comm *comm, void *recv, const void *send, uint64_t bytes,
                      void *stream);
    int (*broadcast)(struct haul_comm *comm, void *buf, uint64_t bytes, unsigned root, void *stream);
    /* dst (n,) = this rank's piece of the sum of src (nranks, n), by a reduction of the library's own: it
     * gives up equal bits over back ends. NULL (usual): all_to_all, and haul sums. (optional) */
    int (*reduce_scatter)(struct haul_comm *comm, void *dst, const void *src, enum haul_dtype dtype,
                          uint64_t n, void *stream);

    /* values (n,) double or uint64_t in host memory, in place. Blocks. */
    int (*all_reduce)(struct haul_comm *comm, enum haul_comm_scalar op, void *values, uint64_t n);
    int (*barrier)(struct haul_comm *comm);

    /* 0, or the first error of a queued call. Any thread; does not block. (optional) */
    int (*check)(struct haul_comm *comm);
    /* This rank gives up: its queued and blocked calls return soon, and the other ranks learn of it as
     * soon as the library lets them, at the latest by time-out. Any thread. (optional) */
    void (*abort)(struct haul_comm *comm);
    /* Queued calls are done, or aborted. */
    void (*close)(struct haul_comm *comm);
};

/* Every communicator begins with this. Fixed while it is open. */
struct haul_comm {
    const struct haul_comm_ops *ops;
    struct haul_device *dev; /* not owned; outlives the communicator */
    uint32_t rank, nranks;
    uint32_t local_rank, nlocal; /* among the ranks of this node; nlocal 1 to nranks */
};

/* The communicator of a single rank. Errors 0, -EINVAL, -ENOMEM */
HAUL_API HAUL_MUST_USE
int haul_comm_self_open(struct haul_device *dev, struct haul_comm **out);

/* NULL is fine. Close it after the engine that uses it. */
HAUL_API
void haul_comm_close(struct haul_comm *comm);

enum haul_comm_kind {
    HAUL_COMM_ALL_GATHER = 0,
    HAUL_COMM_REDUCE_SCATTER,
    HAUL_COMM_ALL_REDUCE, /* of scalars */
    HAUL_COMM_NKINDS
};

/* What an engine has asked of its communicator since build. */
struct haul_comm_count {
    uint64_t calls;
    uint64_t elems;      /* of the whole array: nranks * n for gather and scatter, n for scalars */
    uint64_t sent_elems; /* that left this rank: (nranks - 1) * n for gather and scatter; scalars: 0 */
    uint64_t sent_bytes;
};

#ifdef __cplusplus
}
#endif
#endif
