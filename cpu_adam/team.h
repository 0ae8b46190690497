/*
 * team.h: threads for array work, and the floating-point environment that kernels assume.
 */
#ifndef HL_TEAM_H
#define HL_TEAM_H

#include <stdint.h>

/* Work on elements [begin, end). */
typedef void (*hl_team_fn)(void *ctx, uint64_t begin, uint64_t end);

/* Elements that one thread handles at least, and of which its share is a multiple. */
#define HL_TEAM_GRAIN 4096

/**
 * Cut [0, n) into one contiguous share per thread and run fn on each.
 *
 * Shares depend on n and the team's size alone, so that a thread meets the pages that it touched first.
 * Around fn: round to nearest, denormals kept; the caller's own environment is restored.
 *
 * @param nthreads  [in] 0: haul_optim_threads(1); HAUL_THREADS_OPENMP: OpenMP's own choice
 */
void hl_team_run(unsigned nthreads, uint64_t n, hl_team_fn fn, void *ctx);

/* First element of share i of nshares; share nshares begins at n. */
uint64_t hl_team_share(uint64_t n, unsigned nshares, unsigned i);

#endif
