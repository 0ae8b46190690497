/*
 * gpu.h: launching the model's kernels and multiplying matrices on a GPU. gpu.c does it through the driver
 * and cuBLAS, both opened at run time; the check of gradients has launch and multiply of its own.
 *
 * Launch and multiply queue work and return. Their first error stays: later calls do nothing.
 */
#ifndef TRAIN_GPT_GPU_H
#define TRAIN_GPT_GPU_H

#include <stdbool.h>
#include "cuda_gpt_kernels.h"

/* Device memory that cuBLAS works in, so that it takes none of its own while it trains. */
#define GPU_WORKSPACE_BYTES (UINT64_C(32) << 20)

struct gpu;

/**
 * Open the first GPU, which haul has open too: its context, the kernels, cuBLAS. The context is this thread's
 * current one until gpu_close().
 *
 * Returns 0, or HAUL_E_DEVICE or -ENOMEM; gpu_error() says more. Nothing is left open then.
 */
int gpu_open(uint32_t local_rank, struct gpu **out);
void gpu_close(struct gpu *gpu);

/* The stream to queue on, and GPU_WORKSPACE_BYTES of device memory at 256 bytes. */
int gpu_bind(struct gpu *gpu, void *stream, void *workspace);

/* 0, or the first error of a launch or product. */
int gpu_status(const struct gpu *gpu);
/* Text of the last error here; "" when there was none. */
const char *gpu_error(void);

/* What a and b are is given as for c = a b: (m, k) and (k, n); turned, the array in memory is (k, m) or
 * (n, k). Row-major with a row stride of lda, ldb, ldc elements. batch products, whose arrays are stride_a,
 * stride_b and stride_c elements apart. */
struct gpu_product {
    uint64_t m, n, k;
    const gk_half *a, *b;
    uint64_t lda, ldb, ldc;
    bool turn_a, turn_b;
    gk_real *c;   /* c = scale * a b + keep * c */
    gk_half *c16; /* unless NULL: instead of c, with keep 0 */
    gk_real scale, keep;
    uint64_t batch, stride_a, stride_b, stride_c;
};

/* args->n threads, at least 1. */
void gpu_launch(struct gpu *gpu, enum gk_kernel kernel, const struct gk_args *args);
void gpu_multiply(struct gpu *gpu, const struct gpu_product *product);

#endif
