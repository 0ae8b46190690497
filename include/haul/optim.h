/*
 * haul/optim.h: optimizer steps and gradient norms over plain arrays.
 *
 * Usable alone: arrays in, arrays out, no engine. One pass over memory reads
 * gradient, master, m and v and writes master, m, v and the published
 * parameter; widening, unscaling, clipping, weight decay and narrowing happen
 * in registers. The bits do not depend on the instruction set, the number of
 * threads or the way a range is cut into calls.
 *
 *     struct haul_optim adamw;
 *     haul_optim_init(&adamw, HAUL_ADAMW);
 *     struct haul_optim_arrays a = {.struct_size = sizeof a, .n = n,
 *         .grad_dtype = HAUL_BF16, .param_dtype = HAUL_BF16, .master_form = HAUL_MASTER_FP32,
 *         .grad = g, .master = p, .m = m, .v = v, .param = p16};
 *     struct haul_optim_step s = {.struct_size = sizeof s, .step = t, .lr = 1e-3,
 *         .weight_decay = 0.01, .grad_scale = clip / loss_scale};
 *     rc = haul_optim_update(&adamw, &a, &s, 0);
 */
#ifndef HAUL_OPTIM_H
#define HAUL_OPTIM_H

#include <limits.h>

#include "haul/error.h"

#ifdef __cplusplus
extern "C" {
#endif

enum haul_dtype { HAUL_DTYPE_NONE = 0, HAUL_FP32, HAUL_BF16, HAUL_FP16 };

enum haul_optimizer { HAUL_ADAMW = 0, HAUL_ADAM, HAUL_LION, HAUL_ADAGRAD, HAUL_SGD };

/* How the FP32 master weight is kept. */
enum haul_master {
    HAUL_MASTER_FP32 = 0, /* 4 bytes in .master */
    HAUL_MASTER_SPLIT,    /* .param holds the upper 16 bits (BF16, rounded half away from zero),
                             .master points to the lower 16 (uint16_t): 2 bytes, lossless */
};

/* Hyperparameters: what stays the same from step to step. */
struct haul_optim {
    size_t struct_size;
    enum haul_optimizer kind;
    double beta1;            /* in [0,1) */
    double beta2;            /* in [0,1) */
    double eps;              /* >= 0 */
    double momentum;         /* SGD only, in [0,1) */
    int nesterov;            /* SGD only */
    int bias_correction;     /* AdamW, Adam: 1 (default) or 0 */
    int amsgrad;             /* must be 0: refused with -EINVAL */
    enum haul_dtype moment_dtype; /* HAUL_FP32 (default); HAUL_BF16: stochastic rounding, which
                                     changes the mathematics */
    uint64_t seed;           /* stochastic rounding only */
};

/* beta1 0.9, beta2 0.999 (Lion 0.99), eps 1e-8 (Adagrad 1e-10), momentum 0.9 (SGD), bias_correction 1,
 * moment_dtype FP32; the rest 0. */
HAUL_API
void haul_optim_init(struct haul_optim *opt, enum haul_optimizer kind);

/* One range of n elements. Arrays must not overlap; any alignment. */
struct haul_optim_arrays {
    size_t struct_size;
    uint64_t n;
    enum haul_dtype grad_dtype;  /* FP32, BF16 or FP16 */
    enum haul_dtype param_dtype; /* published copy: BF16, FP16 or NONE */
    enum haul_master master_form;
    const void *grad; /* (n,) read only */
    void *master;     /* (n,) float, or uint16_t lower halves with HAUL_MASTER_SPLIT */
    void *m;          /* (n,) moment_dtype; AdamW, Adam, Lion, SGD with momentum; else ignored */
    void *v;          /* (n,) moment_dtype; AdamW, Adam, Adagrad; else ignored */
    void *param;      /* (n,) param_dtype; with HAUL_MASTER_SPLIT read and written */
    uint64_t first;   /* index of element 0 in the whole array: keys stochastic rounding only */
};

/* A part of a range with a learning rate and a decay of its own: one tensor of a flat shard, say. */
struct haul_optim_part {
    uint64_t n;          /* elements; parts follow each other from element 0 */
    double lr;           /* finite */
    double weight_decay; /* finite, >= 0 */
};

/* What changes from step to step. */
struct haul_optim_step {
    size_t struct_size;
    uint64_t step;       /* 1 for the first update; bias correction uses it */
    double lr;           /* finite; of the whole range when parts is NULL */
    double weight_decay; /* finite, >= 0; likewise */
    double grad_scale;   /* finite; the gradient is multiplied by this, in FP32, before all else */
    const struct haul_optim_part *parts; /* (nparts,) whose n add up to the range's, or NULL */
    uint64_t nparts;
};

/* nthreads: as many as OpenMP itself would use, which is where OMP_NUM_THREADS counts. */
#define HAUL_THREADS_OPENMP UINT_MAX

/**
 * Update one range in place.
 *
 * With g = grad * grad_scale, all in FP32, one rounding per operation and per fused multiply-add:
 *
 *     AdamW     p -= lr wd p                            (and Lion)
 *     others    g += wd p
 *     AdamW,    m += (1 - beta1) (g - m);   v += (1 - beta2) (g^2 - v)
 *     Adam      p -= lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
 *     Lion      p -= lr sign(m + (1 - beta1) (g - m));   m += (1 - beta2) (g - m)
 *     Adagrad   v += g^2;   p -= lr g / (sqrt(v) + eps)
 *     SGD       m = momentum m + g;   p -= lr (nesterov ? g + momentum m : m)
 *               (momentum 0: p -= lr g, and no m)
 *
 * Without bias_correction the powers of beta count as 0. Constants are formed in double from the step
 * number and narrowed once, so a resumed run has the same bits as one that never stopped. docs/numerics.md
 * says what is exact and how far off the rest can be.
 *
 * Denormals count as zero, as operands and as results, in every variant, whatever the caller's MXCSR or
 * FPCR says; it is restored. docs/numerics.md section 2 names the one result next to 2^-126 in which ARM
 * differs from x86. A NaN is stored as 7fc00000 (BF16 7fc0, FP16 7e00). A published BF16 is rounded half
 * away from zero, FP16 half to even. An overflowed (infinite) moment is NaN one step later: nothing freezes
 * in silence.
 *
 * moment_dtype HAUL_BF16 changes the mathematics: m and v are stored rounded up or down at random, so that
 * their mean is right, with 32 bits drawn per element from (seed, step, arrays->first + i) alone.
 *
 * @param opt       [in]     hyperparameters
 * @param arrays    [in,out] the range
 * @param step      [in]     step number, learning rate, decay, scale
 * @param nthreads  [in]     threads to use, at most 4096; 0: haul_optim_threads(1); or HAUL_THREADS_OPENMP
 *
 * Shape      every array (n,); a moment that the rule does not keep is neither read nor written
 * Threads    any; calls on disjoint ranges may run at once. The team is OpenMP's of the calling thread:
 *            keep to one nthreads per thread, since OpenMP starts threads anew when it changes. Where the
 *            system refuses a thread (RLIMIT_NPROC, the cgroup's pids.max, no memory for a stack), OpenMP
 *            itself prints that and ends the process: no error comes back
 * Blocks     until done
 * Errors     0, or -EINVAL (text names the argument), HAUL_E_ABI; nothing is written then
 * Source     Loshchilov & Hutter 2019 (AdamW), Kingma & Ba 2015 (Adam), Chen et al. 2023 (Lion),
 *            Duchi et al. 2011 (Adagrad), Sutskever et al. 2013 (momentum); denominators as in PyTorch
 */
HAUL_API HAUL_MUST_USE
int haul_optim_update(const struct haul_optim *opt, const struct haul_optim_arrays *arrays,
                      const struct haul_optim_step *step, unsigned nthreads);

/* Elements per block of the norm. */
#define HAUL_NORM_BLOCK 4096

/**
 * Sum of squares of a gradient, over the fixed tree.
 *
 * Blocks of HAUL_NORM_BLOCK elements from element 0; inside a block 16 interleaved FP32 lanes
 * (element i goes to lane i % 16, fmaf), lanes combined pairwise (8, 4, 2, 1 apart); blocks added
 * in double in order. The same bits for every instruction set and thread count.
 *
 * @param grad      [in]  (n,) of dtype
 * @param nthreads  [in]  as in haul_optim_update(), here and in the other norms
 * @param sum       [out] sum of squares
 * @param finite    [out] 1 when every element is finite, else 0 (sum is then not meaningful)
 *
 * Blocks     until done; allocates nothing
 * Errors     0, or -EINVAL
 */
HAUL_API HAUL_MUST_USE
int haul_norm_sumsq(const void *grad, enum haul_dtype dtype, uint64_t n, unsigned nthreads,
                    double *sum, int *finite);

/* A gradient cut into parts, one tensor each, say. */
struct haul_norm_parts {
    size_t struct_size;
    const void *grad;       /* the parts, one after the other */
    enum haul_dtype dtype;
    const uint64_t *part_n; /* (nparts,) elements of each */
    uint64_t nparts;
    double *part_sum;       /* (nparts,) out */
};

/**
 * The norm of a whole gradient, and of each of its parts, in one pass.
 *
 * Blocks begin at element 0 of the whole, wherever parts begin: the sum of a part is the fixed tree with
 * every element outside of the part read as 0. *sum and *finite are haul_norm_sumsq()'s.
 *
 * part_sum[i] is NaN when, and only when, an element of part i is not finite.
 *
 * Errors     0, or -EINVAL, HAUL_E_ABI
 */
HAUL_API HAUL_MUST_USE
int haul_norm_by_part(const struct haul_norm_parts *parts, unsigned nthreads, double *sum,
                      int *finite);

/**
 * acc[i] += widen(grad[i]) in FP32, and the sum of squares of the new acc over the fixed tree.
 *
 * @param acc       [in,out] (n,) FP32; with first = 1 it is overwritten instead of added to
 * @param sum       [out]    may be NULL when the norm is not wanted yet
 * @param finite    [out]    may be NULL together with sum
 */
HAUL_API HAUL_MUST_USE
int haul_norm_accumulate(float *acc, const void *grad, enum haul_dtype dtype, uint64_t n, int first,
                         unsigned nthreads, double *sum, int *finite);

/**
 * Threads that an update should use here: cores allowed by affinity and the cgroup's quota,
 * divided among local_ranks processes; at least 1. A launcher's OMP_NUM_THREADS is ignored; pass
 * HAUL_THREADS_OPENMP as nthreads to follow it. What 0 stands for is found once and kept.
 */
HAUL_API
unsigned haul_optim_threads(unsigned local_ranks);

/**
 * Zero an array with the split that an update of n elements uses, so that pages not touched before rest
 * on the NUMA node of the thread that will work on them.
 *
 * @param array       [out] (n,) of elem_bytes each
 * @param nthreads    [in]  as in the updates that follow
 *
 * Errors     0, or -EINVAL
 */
HAUL_API HAUL_MUST_USE
int haul_optim_first_touch(void *array, uint64_t n, uint64_t elem_bytes, unsigned nthreads);

/* Name of the kernel variant in use: "c", "avx2", "avx512", "neon". HAUL_CPU_MASK in the environment
 * is an upper bound, read once. */
HAUL_API
const char *haul_optim_variant(void);

#ifdef __cplusplus
}
#endif
#endif
