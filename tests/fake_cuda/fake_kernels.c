/* fake_kernels.c: lib/device/cuda_kernels.inc.h for the host: the kernels that the fake driver launches. */
#include <math.h>
#include <string.h>

#include "arith.h"
#include "cuda_kernels.h"
#include "fake_state.h"

#define DEVICE static inline
#define UNROLL
#define KERNEL(name, args, threads)                                                                \
    static void name##_run(const void *a, uint64_t block, uint32_t thread)                         \
    {                                                                                              \
        name##_body(a, block, thread);                                                             \
    }

#define f32_fma     fmaf
#define f32_sqrt    sqrtf
#define f32_bits    hl_float_bits
#define f32_of_bits hl_float_from_bits
#define f32_of_half hl_fp16_to_float
#define half_of_f32 hl_fp16_from_float

static inline float f32_mul(float a, float b)
{
    return a * b;
}

static inline float f32_add(float a, float b)
{
    return a + b;
}

static inline float f32_div(float a, float b)
{
    return a / b;
}

struct vec16 {
    uint32_t x, y, z, w;
};

DEVICE struct vec16 load16(const void *p)
{
    struct vec16 v;

    memcpy(&v, __builtin_assume_aligned(p, 16), sizeof v);
    return v;
}

DEVICE void store16(void *p, struct vec16 v)
{
    memcpy(__builtin_assume_aligned(p, 16), &v, sizeof v);
}

#include "cuda_kernels.inc.h"

#define HL_ROW_CONVERT(to, from)                                                                   \
    {"hl_convert_" #to "_" #from,                                                                  \
     hl_convert_##to##_##from##_run,                                                               \
     FAKE_CONVERT,                                                                                 \
     HL_CUDA_##to,                                                                                 \
     HL_CUDA_##from,                                                                               \
     HL_CUDA_THREADS},
#define HL_ROW_ACCUMULATE(kind, from)                                                              \
    {"hl_accumulate_" #from, hl_accumulate_##from##_run,                                           \
     FAKE_ACCUMULATE,        HL_CUDA_FP32,                                                         \
     HL_CUDA_##from,         HL_CUDA_THREADS},
#define HL_ROW_SUM(kind, from)                                                                     \
    {"hl_sum_" #from, hl_sum_##from##_run, FAKE_SUM,                                               \
     HL_CUDA_##from,  HL_CUDA_##from,      HL_CUDA_THREADS},
#define HL_ROW_SUMSQ(kind, from)                                                                   \
    {"hl_sumsq_" #from, hl_sumsq_##from##_run, FAKE_SUMSQ,                                         \
     HL_CUDA_FP32,      HL_CUDA_##from,        HL_CUDA_SUMSQ_THREADS},
#define HL_ROW_OPTIM(grad, form)                                                                   \
    {"hl_optim_" #grad "_" #form,                                                                  \
     hl_optim_##grad##_##form##_run,                                                               \
     FAKE_OPTIM,                                                                                   \
     HL_CUDA_PARAM_##form,                                                                         \
     HL_CUDA_##grad,                                                                               \
     HL_CUDA_THREADS},

const struct fake_kernel fake_kernels[] = {HL_CUDA_CONVERTS(HL_ROW_CONVERT) HL_CUDA_FORMS(
    HL_ROW_ACCUMULATE, accumulate) HL_CUDA_FORMS(HL_ROW_SUM, sum) HL_CUDA_FORMS(HL_ROW_SUMSQ, sumsq)
                                               HL_CUDA_OPTIMS(HL_ROW_OPTIM)};
const unsigned fake_nkernels = sizeof fake_kernels / sizeof *fake_kernels;
