/* mem_case.h: what the suites of the pool share. */
#ifndef HAUL_TESTS_MEM_CASE_H
#define HAUL_TESTS_MEM_CASE_H

#include "haul/pool.h"

#define PAGE 4096u

static inline struct haul_pool_opts opts_for(const struct haul_pool_segment *segments, uint32_t n)
{
    struct haul_pool_opts opts;

    haul_pool_opts_init(&opts);
    opts.segments = segments;
    opts.nsegments = n;
    return opts;
}

#endif
