/* host_gpt_kernels.h: the kernels of examples/train_gpt for the host: one function each, in a table. */
#ifndef HAUL_TESTS_HOST_GPT_KERNELS_H
#define HAUL_TESTS_HOST_GPT_KERNELS_H

#include <math.h>
#include <string.h>

#include "../../examples/train_gpt/cuda_gpt_kernels.h"
#include "arith.h"

#define DEVICE       static inline
#define KERNEL(name) static void host_gpt_##name(const struct gk_args *a, uint64_t i)

#ifdef GPT_DOUBLE
#define gk_exp  exp
#define gk_log  log
#define gk_sqrt sqrt
#define gk_tanh tanh
#else
#define gk_exp  expf
#define gk_log  logf
#define gk_sqrt sqrtf
#define gk_tanh tanhf
#endif
#define gk_bits    hl_float_bits
#define gk_of_bits hl_float_from_bits
#define gk_of_fp16 hl_fp16_to_float

#include "../../examples/train_gpt/cuda_gpt_kernels.inc.h"

static const struct {
    const char *name;
    void (*body)(const struct gk_args *a, uint64_t i);
} host_gpt_kernels[GK_NKERNELS] = {
#define GK_X(kernel) [GK_##kernel] = {"gpt_" #kernel, host_gpt_##kernel},
    GK_KERNELS(GK_X)
#undef GK_X
};

#endif
