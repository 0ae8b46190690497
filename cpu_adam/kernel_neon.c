/* kernel_neon.c: the kernels in NEON (AArch64). Bit identity is tested under emulation; no speed claim. */
#include <arm_neon.h>

#include <stdint.h>

#define VW      4
#define KERNELS hl_kernels_neon

typedef float32x4_t vf;
typedef uint32x4_t vi;
typedef uint16x8_t vp;

#define vf_set1(x)      vdupq_n_f32(x)
#define vf_load(p)      vreinterpretq_f32_u8(vld1q_u8((const uint8_t *)(p)))
#define vf_store(p, x)  vst1q_u8((uint8_t *)(p), vreinterpretq_u8_f32(x))
#define vf_add(a, b)    vaddq_f32(a, b)
#define vf_mul(a, b)    vmulq_f32(a, b)
#define vf_div(a, b)    vdivq_f32(a, b)
#define vf_sqrt(a)      vsqrtq_f32(a)
#define vf_fma(a, b, c) vfmaq_f32(c, a, b)
#define vf_bits(x)      vreinterpretq_u32_f32(x)
#define vf_of_bits(x)   vreinterpretq_f32_u32(x)
#define vi_set1(x)      vdupq_n_u32((uint32_t)(x))
#define vi_add(a, b)    vaddq_u32(a, b)
#define vi_xor(a, b)    veorq_u32(a, b)
#define vi_or(a, b)     vorrq_u32(a, b)
#define vi_and(a, b)    vandq_u32(a, b)
#define vi_mul(a, b)    vmulq_u32(a, b)
#define vi_srl(a, n)    vshrq_n_u32(a, n)
#define vp_load(p)      vreinterpretq_u16_u8(vld1q_u8((const uint8_t *)(p)))
#define vp_store(p, x)  vst1q_u8((uint8_t *)(p), vreinterpretq_u8_u16(x))
#define vp_sub(a, b)    vsubq_u16(a, b)
#define vp_srl(a, n)    vshrq_n_u16(a, n)
#define vp_zero()       vdupq_n_u16(0)
#define vp_low(a, b)    vcombine_u16(vmovn_u32(a), vmovn_u32(b))
#define vp_high(a, b)   vcombine_u16(vshrn_n_u32(a, 16), vshrn_n_u32(b, 16))
#define vp_fp16(a, b)   vreinterpretq_u16_f16(vcombine_f16(vcvt_f16_f32(a), vcvt_f16_f32(b)))
#define vi_zip(lo, hi, a, b)                                                                       \
    do {                                                                                           \
        (a) = vreinterpretq_u32_u16(vzip1q_u16(lo, hi));                                           \
        (b) = vreinterpretq_u32_u16(vzip2q_u16(lo, hi));                                           \
    } while (0)
#define vf_of_fp16(h, a, b)                                                                        \
    do {                                                                                           \
        (a) = vcvt_f32_f16(vreinterpret_f16_u16(vget_low_u16(h)));                                 \
        (b) = vcvt_f32_f16(vreinterpret_f16_u16(vget_high_u16(h)));                                \
    } while (0)
/* stnp is no promise worth an asm statement */
#define vx_stream_line(p, h)                                                                       \
    do {                                                                                           \
        for (int part = 0; part < 4; part++)                                                       \
            vp_store((p) + 16 * part, (h)[part]);                                                  \
    } while (0)
#define vx_prefetch(p) __builtin_prefetch(p)
#define vx_fence()     ((void)0)

static inline vi vi_iota(void)
{
    static const uint32_t lanes[4] = {0, 1, 2, 3};

    return vld1q_u32(lanes);
}

static inline vf vf_canon(vf x)
{
    return vf_of_bits(vbslq_u32(vceqq_f32(x, x), vf_bits(x), vi_set1(0x7fc00000)));
}

static inline vf vf_sign(vf x)
{
    vi one = vi_or(vi_and(vf_bits(x), vi_set1(0x80000000u)), vf_bits(vf_set1(1)));
    vi other = vorrq_u32(vcgtq_f32(x, vf_set1(0)), vcltq_f32(x, vf_set1(0)));

    return vf_of_bits(vbslq_u32(other, one, vf_bits(x)));
}

#include "kernel_body.inc.h"
