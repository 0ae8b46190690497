/*
 * cuda_gpt_kernels.h: the model's kernels for a GPU: names and arguments. Read by nvcc, by what launches them,
 * and by the host build of the same kernels that tests run.
 *
 * Each kernel is a function of one index below n: an element, or one lane of a row. A row is summed by
 * GK_LANES threads, each of which takes every GK_LANES-th element and leaves a partial result; a second
 * kernel joins them. So threads never meet: no barrier, no shuffle, and one order of summation.
 */
#ifndef CUDA_GPT_KERNELS_H
#define CUDA_GPT_KERNELS_H

#include <stddef.h>
#include <stdint.h>

/* What sums are made in, and what enters matrix products: BF16. Both FP64 for the check of gradients. */
#ifdef GPT_DOUBLE
typedef double gk_real;
typedef double gk_half;
#else
typedef float gk_real;
typedef uint16_t gk_half;
#endif

#define GK_THREADS 256u /* of a block */
#define GK_LANES   32u
#define GK_CHUNK   64u /* rows whose column sums one thread makes */

#define GK_KERNELS(X)                                                                              \
    X(narrow)                                                                                      \
    X(narrow_fp16)                                                                                 \
    X(embed)                                                                                       \
    X(embed_token_grad)                                                                            \
    X(embed_position_grad)                                                                         \
    X(norm_lanes)                                                                                  \
    X(norm_rows)                                                                                   \
    X(norm)                                                                                        \
    X(norm_back_lanes)                                                                             \
    X(norm_back)                                                                                   \
    X(sum_rows)                                                                                    \
    X(sum_chunks)                                                                                  \
    X(add_chunks)                                                                                  \
    X(add_bias)                                                                                    \
    X(narrow_with_bias)                                                                            \
    X(gelu)                                                                                        \
    X(gelu_back)                                                                                   \
    X(softmax_lanes)                                                                               \
    X(softmax_rows)                                                                                \
    X(softmax)                                                                                     \
    X(softmax_back_lanes)                                                                          \
    X(softmax_back)                                                                                \
    X(cross_entropy)                                                                               \
    X(cross_entropy_back)                                                                          \
    X(mean_loss)

enum gk_kernel {
#define GK_X(name) GK_##name,
    GK_KERNELS(GK_X)
#undef GK_X
        GK_NKERNELS
};

/* The arguments of every kernel; each uses some. Arrays are (rows, cols) unless said otherwise. Pointers
 * stand first: the fake driver of the tests looks at each. */
struct gk_args {
    const void *raw;       /* parameters as they are kept */
    const uint8_t *tokens; /* sequences of seq + 1 */
    const gk_real *x, *add;
    const gk_half *x16, *p16;   /* p16: probabilities */
    const gk_half *gain, *bias; /* (cols,) */
    const gk_half *wte, *wpe;   /* (vocabulary, cols), (seq, cols) */
    gk_real *y;
    gk_half *y16, *z16;
    gk_real *d; /* gradient of what a layer gave, or of what it took */
    const gk_real *dy;
    gk_half *d16;
    gk_real *grad, *grad2;     /* of parameters: added to */
    gk_real *mean, *rstd;      /* (rows,) */
    gk_real *lanes, *lanes2;   /* (rows, GK_LANES) */
    gk_real *sums, *sums2;     /* (rows,) */
    gk_real *chunks, *chunks2; /* (rows / GK_CHUNK rounded up, cols) */
    double *loss;
    uint64_t n; /* threads */
    uint64_t rows, cols;
    uint64_t seq;
    uint64_t first; /* row, in the micro-batch or sequence, that row 0 here is */
    uint64_t tile;  /* softmax: rows of a tile, row r sees first + r % tile + 1 columns; 0: all */
    gk_real scale;
    int32_t overwrite; /* norm_back: d is set, not added to */
};
#define GK_NPOINTERS (offsetof(struct gk_args, n) / sizeof(void *))

#endif
