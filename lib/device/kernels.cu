/*
 * kernels.cu: cuda_kernels.inc.h for nvcc. Built with -ftz=true -prec-div=true -prec-sqrt=true -fmad=false;
 * the operations below are named with their rounding, so that no flag can change a bit.
 */
#include "cuda_kernels.h"

#define DEVICE static __device__ __forceinline__
#define UNROLL _Pragma("unroll")
#define KERNEL(name, args, threads)                                                                \
    extern "C" __global__ void __launch_bounds__(threads) name(const __grid_constant__ args a)     \
    {                                                                                              \
        name##_body(&a, blockIdx.x, threadIdx.x);                                                  \
    }

#define f32_fma     __fmaf_rn
#define f32_mul     __fmul_rn
#define f32_add     __fadd_rn
#define f32_div     __fdiv_rn
#define f32_sqrt    __fsqrt_rn
#define f32_bits    __float_as_uint
#define f32_of_bits __uint_as_float

struct __align__(16) vec16
{
    uint32_t x, y, z, w;
};

DEVICE vec16 load16(const void *p)
{
    uint4 v = *(const uint4 *)p;

    return {v.x, v.y, v.z, v.w};
}

DEVICE void store16(void *p, vec16 v)
{
    *(uint4 *)p = make_uint4(v.x, v.y, v.z, v.w);
}

DEVICE float f32_of_half(uint16_t half)
{
    float f;

    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(half));
    return f;
}

/* Half to even; past 65519 infinity, as IEEE 754 has it. */
DEVICE uint16_t half_of_f32(float f)
{
    uint16_t half;

    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(f));
    return half;
}

#include "cuda_kernels.inc.h"
