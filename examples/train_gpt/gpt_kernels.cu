/* gpt_kernels.cu: cuda_gpt_kernels.inc.h for nvcc. */
#include "cuda_gpt_kernels.h"

#define DEVICE static __device__ __forceinline__
#define KERNEL(name)                                                                               \
    static __device__ __forceinline__ void gpt_##name##_body(const gk_args *a, uint64_t i);        \
    extern "C" __global__ void __launch_bounds__(GK_THREADS)                                       \
        gpt_##name(const __grid_constant__ gk_args a)                                              \
    {                                                                                              \
        uint64_t i = blockIdx.x * (uint64_t)GK_THREADS + threadIdx.x;                              \
                                                                                                   \
        if (i < a.n)                                                                               \
            gpt_##name##_body(&a, i);                                                              \
    }                                                                                              \
    static __device__ __forceinline__ void gpt_##name##_body(const gk_args *a, uint64_t i)

#define gk_exp     expf
#define gk_log     logf
#define gk_sqrt    sqrtf
#define gk_tanh    tanhf
#define gk_bits    __float_as_uint
#define gk_of_bits __uint_as_float

DEVICE float gk_of_fp16(uint16_t half)
{
    float f;

    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(half));
    return f;
}

#include "cuda_gpt_kernels.inc.h"
