/*
 * haul/pool.h: the pinned host memory.
 *
 * A pool is one or more segments of memory that is resident, on huge pages
 * where they can be had, bound to a NUMA node, and never moved. Regions are cut
 * from it by name until it is full; their sum is exactly what the ledger says.
 * Nothing is rounded to powers of two: a segment takes its size rounded up to
 * whole 4 KiB pages and no more.
 *
 *     struct haul_pool_segment seg = {.bytes = 6ull << 30};
 *     struct haul_pool_opts opts;
 *     haul_pool_opts_init(&opts);
 *     opts.segments = &seg;
 *     opts.nsegments = 1;
 *     rc = haul_pool_open(&opts, &pool);
 *     rc = haul_pool_take(pool, "records", bytes, &p);
 *     ...
 *     haul_pool_close(pool);
 */
#ifndef HAUL_POOL_H
#define HAUL_POOL_H

#include "haul/error.h"

#ifdef __cplusplus
extern "C" {
#endif

struct haul_pool;

enum haul_pages {
    HAUL_PAGES_AUTO = 0, /* hugetlb, else transparent huge pages, else 4 KiB */
    HAUL_PAGES_HUGETLB,  /* hugetlb for the whole 2 MiB pages, or -ENOMEM; the tail is small pages */
    HAUL_PAGES_THP,      /* transparent huge pages asked for; never hugetlb */
    HAUL_PAGES_SMALL,    /* 4 KiB pages only */
};

struct haul_pool_segment {
    uint64_t bytes; /* rounded up to 4096 */
    int shared;     /* 0: private anonymous memory; 1: a memfd that other processes can map */
    int fd; /* shared only: -1 creates the memfd, else an open one is mapped (kept by caller) */
};

struct haul_pool_opts {
    size_t struct_size;
    const struct haul_pool_segment *segments; /* read here, not kept */
    uint32_t nsegments;
    int32_t numa_node;      /* logical index of the node to bind to; -1 (default): no binding */
    enum haul_pages pages;  /* default HAUL_PAGES_AUTO */
    uint32_t touch_threads; /* threads that touch the pages; 0 (default): as many as cores allow */
    int lock; /* 1: mlock, and fail when it is refused; 0 (default): resident, not locked */
};

HAUL_API
void haul_pool_opts_init(struct haul_pool_opts *opts);

/**
 * Map, bind and touch every segment.
 *
 * All pages are resident when this returns, so nothing later on the pool
 * allocates or faults, and a page that the system refuses (cgroup, hugetlb) is
 * an error here instead of a SIGBUS later. Where binding is refused (as in
 * containers) a warning says so once and the pool opens unbound.
 *
 * @param opts  [in]  options; nsegments >= 1
 * @param out   [out] the pool; written only on success
 *
 * Units      bytes
 * Ownership  the caller owns *out; end it with haul_pool_close()
 * Threads    any
 * Blocks     yes: touches every page, in parallel
 * Errors     0, or
 *            -EINVAL     no segments, a size of 0 or over 2^47, no such node, a memfd smaller than its
 *                        segment, or a shared segment with HAUL_PAGES_HUGETLB that is not whole 2 MiB
 *            -ENOMEM     no address space, more than the machine or the cgroup has left (seen before
 *                        anything is touched), no hugetlb pages, or a private segment of
 *                        less than one (HAUL_PAGES_HUGETLB), over RLIMIT_MEMLOCK (lock = 1)
 *            HAUL_E_ABI  opts not initialised
 *            and what mmap, memfd_create, fstat or a thread's start gave
 */
HAUL_API HAUL_MUST_USE
int haul_pool_open(const struct haul_pool_opts *opts, struct haul_pool **out);

/* Unmap everything. NULL is fine. Regions taken from it are gone. Memory that is registered with a
 * device or a ring must be unregistered first. */
HAUL_API
void haul_pool_close(struct haul_pool *pool);

/**
 * Cut a named region from the pool.
 *
 * @param name   [in]  purpose, for the ledger; copied, at most 31 characters
 * @param bytes  [in]  size; 0 is -EINVAL. Regions start on 4096-byte boundaries
 * @param out    [out] start of the region
 *
 * Regions are never given back one by one: a pool is laid out once and closed whole.
 *
 * Threads    one at a time per pool
 * Blocks     no
 * Errors     0, -EINVAL, or -ENOSPC: no segment has room (text says how much is left)
 */
HAUL_API HAUL_MUST_USE
int haul_pool_take(struct haul_pool *pool, const char *name, uint64_t bytes, void **out);

struct haul_pool_stats {
    size_t struct_size;
    uint64_t bytes;         /* mapped, all segments */
    uint64_t taken_bytes;   /* cut into regions, each rounded up to 4096 */
    uint64_t huge_bytes;    /* of the mapped bytes, on huge pages (read from the kernel) */
    uint64_t hugetlb_bytes; /* of those, hugetlb */
    uint32_t nregions;
    int32_t bound_node; /* -1: not bound */
};

/* Fill *stats (struct_size set by the caller). Reads /proc/self/smaps: not for hot paths. */
HAUL_API HAUL_MUST_USE
int haul_pool_stat(const struct haul_pool *pool, struct haul_pool_stats *stats);

/* Region i in order of haul_pool_take(): name, start, bytes asked for. -EINVAL past the last. */
HAUL_API HAUL_MUST_USE
int haul_pool_region(const struct haul_pool *pool, uint32_t i, const char **name, void **start,
                     uint64_t *bytes);

/* Segment i: start, bytes, and the memfd (-1 when private). -EINVAL past the last. */
HAUL_API HAUL_MUST_USE
int haul_pool_segment_info(const struct haul_pool *pool, uint32_t i, void **start, uint64_t *bytes,
                           int *fd);

#ifdef __cplusplus
}
#endif
#endif
