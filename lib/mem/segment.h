/* segment.h: one contiguous range of host memory, mapped on the pages asked for, not yet touched. */
#ifndef HL_SEGMENT_H
#define HL_SEGMENT_H

#include "haul/pool.h"

#define HL_PAGE_BYTES ((uint64_t)4096)
#define HL_HUGE_BYTES ((uint64_t)2 << 20)

struct hl_segment {
    char *base;     /* 2 MiB aligned */
    uint64_t bytes; /* a multiple of HL_PAGE_BYTES */
    uint64_t
        hugetlb_bytes; /* the leading part that hugetlb pages back; the rest is ordinary memory */
    uint64_t taken_bytes; /* cut off so far, from the start */
    int fd;               /* memfd, -1 when private */
    int made;             /* 1: its memory is ours to pay for; 0: a memfd that was handed in */
};

/* Errors: those of haul_pool_open(). */
int hl_segment_open(const struct haul_pool_segment *want, enum haul_pages pages,
                    struct hl_segment *out);
void hl_segment_close(struct hl_segment *seg);

#endif
