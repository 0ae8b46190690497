/* bench_link.h: copies between host and device, timed. Used by haul bench link. */
#ifndef HL_BENCH_LINK_H
#define HL_BENCH_LINK_H

#include "haul/device.h"

/* Where the host side of a copy is. */
enum hl_link_memory {
    HL_LINK_POOL = 0,  /* haul's pool, registered */
    HL_LINK_HOSTALLOC, /* cuMemHostAlloc: what the pool is held against */
    HL_LINK_PAGEABLE,  /* plain memory on small pages */
    HL_LINK_NMEMORIES
};

enum hl_link_way { HL_LINK_H2D = 0, HL_LINK_D2H, HL_LINK_DUPLEX, HL_LINK_NWAYS };

struct hl_bench_link;

/* bytes: the largest copy; twice that on the device, and in each kind of host memory. On the emulated
 * device there is no cuMemHostAlloc. */
int hl_bench_link_open(struct haul_device *dev, uint64_t bytes, int is_cuda,
                       struct hl_bench_link **out);
void hl_bench_link_close(struct hl_bench_link *b);

/* 1 when there is memory of the kind. */
int hl_bench_link_has(const struct hl_bench_link *b, enum hl_link_memory memory);

/* Copies of `bytes` one behind the other until at least 64 MiB have moved each way: GB (1e9 bytes) per
 * second, both directions added up. */
int hl_bench_link_rate(struct hl_bench_link *b, enum hl_link_memory memory, enum hl_link_way way,
                       uint64_t bytes, double *gb_per_s);

/* One copy of 4 KiB queued and waited for, median of many: nanoseconds. */
int hl_bench_link_latency(struct hl_bench_link *b, enum hl_link_memory memory, enum hl_link_way way,
                          double *ns);

#endif
