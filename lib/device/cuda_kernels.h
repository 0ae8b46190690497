/*
 * cuda_kernels.h: the kernels of the CUDA back end: names, arguments, launch geometry. Read by nvcc, by
 * device_cuda_kernel.c and by the host build of the same kernels, which tests/fake_cuda launches.
 *
 * A kernel takes one struct. Its name is its kind and the forms of what it reads and writes, as in
 * hl_convert_BF16_FP32. Blocks run in any order and threads never meet: no barrier, no shuffle.
 */
#ifndef HL_CUDA_KERNELS_H
#define HL_CUDA_KERNELS_H

#include <stdint.h>

/* Threads of a block, and elements that a block works on. */
#define HL_CUDA_THREADS 256u
#define HL_CUDA_ELEMS   2048u
/* sumsq: one thread a block of the norm. Small blocks, so that they spread over the processors. */
#define HL_CUDA_SUMSQ_THREADS 32u
#define HL_CUDA_NORM_BLOCK    4096u

/* What elements of an array look like in memory. */
enum hl_cuda_form { HL_CUDA_FP32, HL_CUDA_BF16, HL_CUDA_FP16, HL_CUDA_NFORMS };
/* What is published beside the master, and in which form the master is. */
enum hl_cuda_param {
    HL_CUDA_PARAM_NONE,
    HL_CUDA_PARAM_BF16,
    HL_CUDA_PARAM_FP16,
    HL_CUDA_PARAM_SPLIT,
    HL_CUDA_NPARAMS
};

/* convert, accumulate (dst: the sums), sum (src: the parts), sumsq (dst: the partial sums) */
struct hl_cuda_array {
    void *dst;
    const void *src;
    uint64_t n;
    int32_t aligned; /* every array begins on 16 bytes */
    int32_t first;   /* accumulate: overwrite */
    int32_t nparts;  /* sum */
};

struct hl_cuda_optim {
    const void *grad;
    void *master, *m, *v, *param;
    uint64_t n;
    int32_t aligned;
    int32_t decoupled; /* AdamW; else Adam, whose decay joins the gradient */
    float grad_scale, weight_decay, decay, weight1, weight2, denom_scale, eps, step_size;
};

#define HL_CUDA_FORMS(X, kind) X(kind, FP32) X(kind, BF16) X(kind, FP16)
#define HL_CUDA_FORMS_2(X, to) X(to, FP32) X(to, BF16) X(to, FP16)
#define HL_CUDA_CONVERTS(X)                                                                        \
    HL_CUDA_FORMS_2(X, FP32) HL_CUDA_FORMS_2(X, BF16) HL_CUDA_FORMS_2(X, FP16)
#define HL_CUDA_PARAMS(X, grad) X(grad, NONE) X(grad, BF16) X(grad, FP16) X(grad, SPLIT)
#define HL_CUDA_OPTIMS(X)       HL_CUDA_PARAMS(X, FP32) HL_CUDA_PARAMS(X, BF16) HL_CUDA_PARAMS(X, FP16)

#endif
