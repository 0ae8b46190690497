/*
 * comm.h: collectives as the engine uses them: counted, and with sums that do not depend on the library
 * below (rule R1). A table of haul/comm.h moves the bytes.
 *
 * A reduce-scatter moves every rank's contribution unsummed, widens it to FP32, adds in rank order
 * beginning with rank 0's value, and rounds once.
 */
#ifndef HL_COMM_H
#define HL_COMM_H

#include "device_ops.h"
#include "haul/comm.h"

/* One reduce-scatter. Pointers are device pointers; nothing overlaps. */
struct hl_comm_reduce {
    const void *src; /* (nranks, n): piece r is for rank r */
    void *dst;       /* (n,): this rank's piece, summed */
    enum haul_dtype dtype;
    uint64_t n;
    void *scratch; /* (hl_comm_reduce_scratch_bytes(),), busy until the stream is past */
};

/* Device memory that a reduce-scatter of n elements a rank needs; 0 for one rank. */
uint64_t hl_comm_reduce_scratch_bytes(uint32_t nranks, enum haul_dtype dtype, uint64_t n);

/* Queued, in the order of stream. counts (HAUL_COMM_NKINDS,). Errors: the table's, the device's */
int hl_comm_all_gather(struct haul_comm *comm, struct haul_comm_count *counts, void *full,
                       const void *shard, enum haul_dtype dtype, uint64_t n, void *stream);
int hl_comm_reduce_scatter(struct haul_comm *comm, struct haul_comm_count *counts,
                           const struct hl_comm_reduce *args, void *stream);

/* Blocks. */
int hl_comm_all_reduce(struct haul_comm *comm, struct haul_comm_count *counts,
                       enum haul_comm_scalar op, void *values, uint64_t n);

/* 0, or the first error of a queued call. */
static inline int hl_comm_check(struct haul_comm *comm)
{
    return comm->ops->check ? comm->ops->check(comm) : 0;
}

static inline void hl_comm_abort(struct haul_comm *comm)
{
    if (comm->ops->abort)
        comm->ops->abort(comm);
}

#endif
