/*
 * comm.h: collectives between the ranks. For back-end authors and the engine.
 *
 * Two kinds. Queued: all_gather, reduce_scatter and broadcast work on device memory, in the order of a
 * stream, and return at once. Blocking: all_reduce and barrier work on a few values in host memory.
 * All ranks make the same calls in the same order with the same sizes.
 *
 * Sums do not depend on the library below (rule R1): a reduce-scatter moves every rank's contribution
 * unsummed, widens it to FP32, adds in rank order beginning with rank 0's value, and rounds once.
 */
#ifndef HL_COMM_H
#define HL_COMM_H

#include "device_ops.h"

enum hl_comm_kind {
    HL_COMM_ALL_GATHER = 0,
    HL_COMM_REDUCE_SCATTER,
    HL_COMM_ALL_REDUCE,
    HL_COMM_BROADCAST,
    HL_COMM_NKINDS
};

/* Counted when the call is made; a barrier moves nothing. */
struct hl_comm_count {
    uint64_t calls;
    uint64_t elems; /* of the whole array: nranks * n for gather and scatter, n for the others */
    uint64_t sent_elems; /* that left this rank: (nranks - 1) * n for gather and scatter */
    uint64_t sent_bytes;
};

struct hl_comm_stats {
    struct hl_comm_count kind[HL_COMM_NKINDS];
    uint64_t busy_ns; /* time that data was on its way, so far */
};

/* all_reduce: what is computed, over what. Double sums are added in rank order. */
enum hl_comm_scalar { HL_COMM_SUM_F64 = 0, HL_COMM_MAX_F64, HL_COMM_SUM_U64, HL_COMM_MAX_U64 };

/* One reduce-scatter. Pointers are device pointers; nothing overlaps. */
struct hl_comm_reduce {
    const void *src; /* (nranks * n,): piece r is for rank r */
    enum haul_dtype src_dtype;
    void *dst; /* (n,): this rank's piece, summed */
    enum haul_dtype dst_dtype;
    uint64_t n;
    void *scratch; /* (reduce_scratch_bytes,), busy until the stream is past; NULL when that is 0 */
};

struct hl_comm;

struct hl_comm_ops {
    void (*close)(struct hl_comm *comm);
    /* full (nranks * n,) = the shards (n,) of all ranks in rank order. shard may be where it belongs in
     * full; otherwise they do not overlap. */
    int (*all_gather)(struct hl_comm *comm, void *full, const void *shard, enum haul_dtype dtype,
                      uint64_t n, void *stream);
    /* Device memory that a reduce_scatter of n elements a rank needs; the caller owns it, so that it
     * is in the ledger. */
    uint64_t (*reduce_scratch_bytes)(struct hl_comm *comm, enum haul_dtype src_dtype, uint64_t n);
    int (*reduce_scatter)(struct hl_comm *comm, const struct hl_comm_reduce *args, void *stream);
    int (*broadcast)(struct hl_comm *comm, void *buf, enum haul_dtype dtype, uint64_t n,
                     unsigned root, void *stream);
    /* values (n,) double or uint64_t in host memory, in place. Blocks. */
    int (*all_reduce)(struct hl_comm *comm, enum hl_comm_scalar op, void *values, uint64_t n);
    int (*barrier)(struct hl_comm *comm);
    void (*stats)(struct hl_comm *comm, struct hl_comm_stats *out);
};

/* Every back end's communicator begins with this. */
struct hl_comm {
    const struct hl_comm_ops *ops;
    struct haul_device *dev; /* not owned */
    unsigned rank, nranks;
};

/* The communicator of a single rank. One thread at a time. Errors 0, -ENOMEM */
int hl_comm_self_open(struct haul_device *dev, struct hl_comm **out);

/* NULL is fine. Queued collectives must be done. */
static inline void hl_comm_close(struct hl_comm *comm)
{
    if (comm)
        comm->ops->close(comm);
}

#endif
