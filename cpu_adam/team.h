/*
 * team.h: threads for array work, and the floating-point environment that kernels assume.
 */
#ifndef HL_TEAM_H
#define HL_TEAM_H

#include <stdint.h>

/* Work on elements [begin, end). */
typedef void (*hl_team_fn)(void *ctx, uint64_t begin, uint64_t end);

/* Shares and pieces are multiples of this many elements. */
#define HL_TEAM_GRAIN 4096
/* Below this many a range is not worth waking a team for: tens of microseconds for one thread. */
#define HL_TEAM_ALONE (8 * HL_TEAM_GRAIN)

/**
 * Cut [0, n) into one contiguous share per thread and run fn on pieces of each. A thread begins with its own
 * share; one that is done helps with what is left of others', so that the team does not wait for a thread
 * whose core something else has taken. The team is used whole or not at all: OpenMP ends the threads that a
 * smaller team leaves idle.
 *
 * Shares depend on n and the team's size alone, so that a thread meets the pages that it touched first.
 * Around fn: fp_env.h; the caller's own environment is restored.
 *
 * @param nthreads  [in] 0: haul_optim_threads(1); HAUL_THREADS_OPENMP: OpenMP's own choice
 */
void hl_team_run(unsigned nthreads, uint64_t n, hl_team_fn fn, void *ctx);
/* Each thread its share in one piece, and no other: where it matters who touches what. */
void hl_team_run_apart(unsigned nthreads, uint64_t n, hl_team_fn fn, void *ctx);

/* 0, or -EINVAL: no team of so many. OpenMP ends the process where it cannot start a thread, so what is
 * surely a mistake is refused before it is asked. call: "haul_norm_sumsq". */
#define HL_TEAM_MOST 4096u
int hl_team_check(const char *call, unsigned nthreads);

/* First element of share i of nshares; share nshares begins at n. */
uint64_t hl_team_share(uint64_t n, unsigned nshares, unsigned i);

/*
 * Where threads sit. A team's seats are cores of this process's affinity, evenly spaced in the order of the
 * topology, so that neighbouring shares rest on one NUMA node; with several ranks on a machine each has
 * its own stretch of cores.
 *
 * Nothing is bound unless its owner asks: the threads of an OpenMP team belong to the thread that leads
 * it, and with it to the trainer, who may use them for work of his own. The engine's update thread leads
 * a team that is haul's alone and binds it.
 */
struct hl_topo;

struct hl_team_seat {
    int pu;   /* OS index */
    int node; /* logical index of the NUMA node, -1 unknown */
};

/* Seat of thread i of nthreads, in rank local_rank of local_ranks. */
struct hl_team_seat hl_team_seat(const struct hl_topo *topo, unsigned local_rank,
                                 unsigned local_ranks, unsigned nthreads, unsigned i);

/**
 * Bind the team that the calling thread leads, itself included, each thread to its seat. The binding
 * holds for every later hl_team_run() of this thread with the same nthreads (nthreads > 1).
 *
 * Errors  0, or what the topology or the kernel said; some threads may be bound then
 */
int hl_team_bind(unsigned local_rank, unsigned local_ranks, unsigned nthreads);

#endif
