/* kernel_avx512.c: the kernels in AVX-512 (F, BW, DQ, VL). */
#include <immintrin.h>

#include <stdint.h>

#define VW      16
#define KERNELS hl_kernels_avx512

typedef __m512 vf;
typedef __m512i vi;
typedef __m512i vp;

#define vf_set1(x)           _mm512_set1_ps(x)
#define vf_load(p)           _mm512_loadu_ps(p)
#define vf_store(p, x)       _mm512_storeu_ps(p, x)
#define vf_add(a, b)         _mm512_add_ps(a, b)
#define vf_mul(a, b)         _mm512_mul_ps(a, b)
#define vf_div(a, b)         _mm512_div_ps(a, b)
#define vf_sqrt(a)           _mm512_sqrt_ps(a)
#define vf_fma(a, b, c)      _mm512_fmadd_ps(a, b, c)
#define vf_bits(x)           _mm512_castps_si512(x)
#define vf_of_bits(x)        _mm512_castsi512_ps(x)
#define vi_set1(x)           _mm512_set1_epi32(x)
#define vi_iota()            _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
#define vi_add(a, b)         _mm512_add_epi32(a, b)
#define vi_xor(a, b)         _mm512_xor_si512(a, b)
#define vi_and(a, b)         _mm512_and_si512(a, b)
#define vi_mul(a, b)         _mm512_mullo_epi32(a, b)
#define vi_srl(a, n)         _mm512_srli_epi32(a, n)
#define vp_load(p)           _mm512_loadu_si512((const void *)(p))
#define vp_store(p, x)       _mm512_storeu_si512((void *)(p), x)
#define vp_sub(a, b)         _mm512_sub_epi16(a, b)
#define vp_srl(a, n)         _mm512_srli_epi16(a, n)
#define vp_zero()            _mm512_setzero_si512()
#define vx_stream_line(p, h) _mm512_stream_si512((void *)(p), (h)[0])
#define vx_prefetch(p)       _mm_prefetch(p, _MM_HINT_T0)
#define vx_fence()           _mm_sfence()

/* Quarters in the order in which unpacklo takes the first VW halves, and unpackhi the others. */
static inline vp spread(vp x)
{
    return _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7), x);
}

#define vi_zip(lo, hi, a, b)                                                                       \
    do {                                                                                           \
        vp lo_ = spread(lo), hi_ = spread(hi);                                                     \
        (a) = _mm512_unpacklo_epi16(lo_, hi_);                                                     \
        (b) = _mm512_unpackhi_epi16(lo_, hi_);                                                     \
    } while (0)
#define vf_of_fp16(h, a, b)                                                                        \
    do {                                                                                           \
        (a) = _mm512_cvtph_ps(_mm512_castsi512_si256(h));                                          \
        (b) = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(h, 1));                                    \
    } while (0)

static inline vp join(__m256i a, __m256i b)
{
    return _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1);
}

static inline vp vp_low(vi a, vi b)
{
    return join(_mm512_cvtepi32_epi16(a), _mm512_cvtepi32_epi16(b));
}

static inline vp vp_high(vi a, vi b)
{
    return vp_low(_mm512_srli_epi32(a, 16), _mm512_srli_epi32(b, 16));
}

static inline vp vp_fp16(vf a, vf b)
{
    return join(_mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
                _mm512_cvtps_ph(b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

static inline vf vf_canon(vf x)
{
    return vf_of_bits(_mm512_mask_mov_epi32(vf_bits(x), _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q),
                                            vi_set1(0x7fc00000)));
}

static inline vf vf_sign(vf x)
{
    __mmask16 other = _mm512_cmp_ps_mask(x, vf_set1(0), _CMP_NEQ_OQ);
    vi one = _mm512_or_si512(vi_and(vf_bits(x), vi_set1((int)0x80000000u)), vf_bits(vf_set1(1)));

    return vf_of_bits(_mm512_mask_mov_epi32(vf_bits(x), other, one));
}

#include "kernel_body.inc.h"
