/*
 * bench_adam.h: what haul bench adam measures. One arena holds every array, touched once by the team
 * that works on it; candidates take turns, so that a machine that drifts slows all of them.
 */
#ifndef HL_BENCH_ADAM_H
#define HL_BENCH_ADAM_H

#include "cpu.h"
#include "haul/optim.h"

#define HL_BENCH_MAX_REPEATS 99

struct hl_bench_opts {
    uint64_t elems; /* a multiple of 64 Ki */
    unsigned threads;
    unsigned repeats;
};

/* Arrays of elems elements, on pages of their own, no two at one offset within 4096 bytes. */
struct hl_bench_arena {
    char *base;
    uint64_t bytes;
    char *grad, *grad32, *master, *m, *v, *param;
    int bound; /* 1: the team is bound to cores */
};

struct hl_bench_case {
    enum hl_isa isa;
    struct haul_optim opt;
    enum haul_dtype grad, out; /* out is BF16 for split */
    enum haul_master master;
    int norm; /* the norm of the gradient instead of an update */
};

struct hl_bench_result {
    double ns_per_elem; /* medians of the repeats */
    double roof_ns_per_elem;
    double gb_per_s;
    double ratio_to_roof;
    double spread; /* (slowest - fastest) / median */
    double fastest_ns_per_elem, fastest_roof_ns_per_elem;
    unsigned bytes_per_elem;
    const char *roof; /* which way of moving bytes was the fastest */
};

struct hl_whole_step {
    double ns_per_elem, separate_ns_per_elem;
    double with_norm_ns_per_elem; /* the norm as a pass of its own */
    double speedup, speedup_with_norm;
    unsigned bytes_per_elem, bytes_per_elem_separate;
};

/* Reserve and touch; the calling thread's team is bound. */
int hl_bench_arena_open(const struct hl_bench_opts *opts, struct hl_bench_arena *out);
void hl_bench_arena_close(struct hl_bench_arena *arena);

/* Before anything is timed: every variant here against the C reference, in every layout. 0, or
 * HAUL_E_STATE with a text that names the case. ncases: how many were compared. */
int hl_bench_check(unsigned nthreads, unsigned *ncases);

int hl_bench_run(const struct hl_bench_opts *opts, const struct hl_bench_arena *arena,
                 const struct hl_bench_case *c, struct hl_bench_result *out);

/* The whole step, fused and as separate passes, on the best variant here. */
int hl_bench_whole_step(const struct hl_bench_opts *opts, const struct hl_bench_arena *arena,
                        const struct hl_bench_case *c, struct hl_whole_step *out);

struct hl_bench_time {
    double median_ns, fastest_ns, slowest_ns;
};

/* Run each of n candidates opts->repeats times, in turns, after one round that does not count. */
int hl_bench_turns(const struct hl_bench_opts *opts, int (*const *run)(void *ctx, unsigned which),
                   void *ctx, unsigned n, struct hl_bench_time *out);

#endif
