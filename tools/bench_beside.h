/* bench_beside.h: what link and drive take from the optimizer when they work beside it. */
#ifndef HL_BENCH_BESIDE_H
#define HL_BENCH_BESIDE_H

#include <stdint.h>

#include "bench_io.h"
#include "haul/optim.h"

/* Bytes per second. */
struct hl_beside_rates {
    double optim;                     /* alone: bytes that updates read and write */
    double norm, accumulate;          /* of gradients as they land: read; added to sums in FP32 */
    double copy;                      /* one thread's copies, alone */
    double optim_at_copy, copy_too;   /* both at once */
    double optim_at_drive, drive_too; /* likewise, a drive both ways; 0 without a store */
};

struct hl_beside;

/* An optimizer on arrays of its own, with a thread of its own that binds its team, as the engine's does.
 * nthreads 0: haul_optim_threads(1). unit_elems: of a gradient that lands; more than 8Mi count as 8Mi. */
int hl_beside_open(enum haul_master master, uint32_t nthreads, uint64_t unit_elems,
                   struct hl_beside **out);
void hl_beside_close(struct hl_beside *b);

/* One sample of each; io may be NULL. Takes about a fifth of a second, and two passes over the store. */
int hl_beside_take(struct hl_beside *b, struct hl_bench_io *io, struct hl_beside_rates *out);

/* How fast updates are on records of so many bytes that have just come from the drive, through so many slots:
 * bytes that they read and write in a second. A slot is in a cache where it fits one. */
int hl_beside_paged(struct hl_beside *b, struct hl_bench_io *io, uint32_t nslots,
                    uint64_t record_bytes, double *out);

/* Bytes of the optimizer's that a byte of the other takes, while both work; never below 0. */
static inline double hl_beside_cost(double optim_alone, double optim_at, double other)
{
    return other > 0 && optim_at < optim_alone ? (optim_alone - optim_at) / other : 0;
}

#endif
