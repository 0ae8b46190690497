/* kernel_avx2.c: the kernels in AVX2 with FMA and F16C. */
#include <immintrin.h>

#include <stdint.h>

#define VW      8
#define KERNELS hl_kernels_avx2

typedef __m256 vf;
typedef __m256i vi;
typedef __m256i vp;

#define vf_set1(x)      _mm256_set1_ps(x)
#define vf_load(p)      _mm256_loadu_ps((const float *)(p))
#define vf_store(p, x)  _mm256_storeu_ps((float *)(p), x)
#define vf_add(a, b)    _mm256_add_ps(a, b)
#define vf_mul(a, b)    _mm256_mul_ps(a, b)
#define vf_div(a, b)    _mm256_div_ps(a, b)
#define vf_sqrt(a)      _mm256_sqrt_ps(a)
#define vf_fma(a, b, c) _mm256_fmadd_ps(a, b, c)
#define vf_bits(x)      _mm256_castps_si256(x)
#define vf_of_bits(x)   _mm256_castsi256_ps(x)
#define vi_set1(x)      _mm256_set1_epi32(x)
#define vi_iota()       _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)
#define vi_add(a, b)    _mm256_add_epi32(a, b)
#define vi_xor(a, b)    _mm256_xor_si256(a, b)
#define vi_and(a, b)    _mm256_and_si256(a, b)
#define vi_mul(a, b)    _mm256_mullo_epi32(a, b)
#define vi_srl(a, n)    _mm256_srli_epi32(a, n)
#define vp_load(p)      _mm256_loadu_si256((const void *)(p))
#define vp_store(p, x)  _mm256_storeu_si256((void *)(p), x)
#define vp_sub(a, b)    _mm256_sub_epi16(a, b)
#define vp_srl(a, n)    _mm256_srli_epi16(a, n)
#define vp_zero()       _mm256_setzero_si256()
#define vx_stream_line(p, h)                                                                       \
    do {                                                                                           \
        _mm256_stream_si256((__m256i *)(void *)(p), (h)[0]);                                       \
        _mm256_stream_si256((__m256i *)(void *)(p) + 1, (h)[1]);                                   \
    } while (0)
#define vx_prefetch(p) _mm_prefetch(p, _MM_HINT_T0)
#define vx_fence()     _mm_sfence()

/* Quarters in the order in which unpacklo takes the first VW halves, and unpackhi the others; and in which
 * pack leaves them. */
static inline vp spread(vp x)
{
    return _mm256_permute4x64_epi64(x, _MM_SHUFFLE(3, 1, 2, 0));
}

#define vi_zip(lo, hi, a, b)                                                                       \
    do {                                                                                           \
        vp lo_ = spread(lo), hi_ = spread(hi);                                                     \
        (a) = _mm256_unpacklo_epi16(lo_, hi_);                                                     \
        (b) = _mm256_unpackhi_epi16(lo_, hi_);                                                     \
    } while (0)
#define vf_of_fp16(h, a, b)                                                                        \
    do {                                                                                           \
        (a) = _mm256_cvtph_ps(_mm256_castsi256_si128(h));                                          \
        (b) = _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1));                                     \
    } while (0)

static inline vp vp_low(vi a, vi b)
{
    const vi zero = _mm256_setzero_si256();

    return spread(
        _mm256_packus_epi32(_mm256_blend_epi16(a, zero, 0xaa), _mm256_blend_epi16(b, zero, 0xaa)));
}

static inline vp vp_high(vi a, vi b)
{
    return spread(_mm256_packus_epi32(_mm256_srli_epi32(a, 16), _mm256_srli_epi32(b, 16)));
}

static inline vp vp_fp16(vf a, vf b)
{
    return _mm256_set_m128i(_mm256_cvtps_ph(b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
                            _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

static inline vf vf_canon(vf x)
{
    return _mm256_blendv_ps(x, vf_of_bits(vi_set1(0x7fc00000)), _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}

static inline vf vf_sign(vf x)
{
    vf one = _mm256_or_ps(_mm256_and_ps(x, vf_set1(-0.0f)), vf_set1(1));

    /* two ordered compares: valgrind takes _CMP_NEQ_OQ for its unordered sister */
    vf other = _mm256_or_ps(_mm256_cmp_ps(x, vf_set1(0), _CMP_LT_OQ),
                            _mm256_cmp_ps(vf_set1(0), x, _CMP_LT_OQ));

    return _mm256_blendv_ps(x, one, other);
}

#include "kernel_body.inc.h"
