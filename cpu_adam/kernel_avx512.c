/* kernel_avx512.c: the kernels in AVX-512 (F, BW, DQ, VL). */
#include <immintrin.h>

#include <stdint.h>

#define VW      16
#define KERNELS hl_kernels_avx512

typedef __m512 vf;
typedef __m512i vi;
typedef __m256i vh;

#define vf_set1(x)        _mm512_set1_ps(x)
#define vf_load(p)        _mm512_loadu_ps(p)
#define vf_store(p, x)    _mm512_storeu_ps(p, x)
#define vf_add(a, b)      _mm512_add_ps(a, b)
#define vf_mul(a, b)      _mm512_fmadd_ps(a, b, _mm512_set1_ps(-0.0f))
#define vf_div(a, b)      _mm512_div_ps(a, b)
#define vf_sqrt(a)        _mm512_sqrt_ps(a)
#define vf_fma(a, b, c)   _mm512_fmadd_ps(a, b, c)
#define vf_fnma(a, b, c)  _mm512_fnmadd_ps(a, b, c)
#define vf_any_less(a, b) (_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ) != 0)
#define vf_bits(x)        _mm512_castps_si512(x)
#define vf_of_bits(x)     _mm512_castsi512_ps(x)
#define vi_set1(x)        _mm512_set1_epi32(x)
#define vi_iota()         _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
#define vi_add(a, b)      _mm512_add_epi32(a, b)
#define vi_sub(a, b)      _mm512_sub_epi32(a, b)
#define vi_xor(a, b)      _mm512_xor_si512(a, b)
#define vi_or(a, b)       _mm512_or_si512(a, b)
#define vi_and(a, b)      _mm512_and_si512(a, b)
#define vi_mul(a, b)      _mm512_mullo_epi32(a, b)
#define vi_sll(a, n)      _mm512_slli_epi32(a, n)
#define vi_srl(a, n)      _mm512_srli_epi32(a, n)
#define vh_load(p)        _mm256_loadu_si256((const void *)(p))
#define vh_store(p, x)    _mm256_storeu_si256((void *)(p), x)
#define vi_of_vh(h)       _mm512_cvtepu16_epi32(h)
#define vh_low(x)         _mm512_cvtepi32_epi16(x)
#define vh_high(x)        _mm512_cvtepi32_epi16(_mm512_srli_epi32(x, 16))
#define vf_of_fp16(h)     _mm512_cvtph_ps(h)
#define vh_fp16(x)        _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
#define vx_stream_line(p, h)                                                                       \
    _mm512_stream_si512((void *)(p), _mm512_inserti64x4(_mm512_castsi256_si512((h)[0]), (h)[1], 1))
#define vx_prefetch(p) _mm_prefetch(p, _MM_HINT_T0)
#define vx_fence()     _mm_sfence()

static inline vf vf_canon(vf x)
{
    return vf_of_bits(_mm512_mask_mov_epi32(vf_bits(x), _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q),
                                            vi_set1(0x7fc00000)));
}

static inline vf vf_pick_less(vf a, vf b, vf x, vf y)
{
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), y, x);
}

static inline vf vf_sign(vf x)
{
    __mmask16 other = _mm512_cmp_ps_mask(x, vf_set1(0), _CMP_NEQ_OQ);
    vi one = vi_or(vi_and(vf_bits(x), vi_set1((int)0x80000000u)), vf_bits(vf_set1(1)));

    return vf_of_bits(_mm512_mask_mov_epi32(vf_bits(x), other, one));
}

#include "kernel_body.inc.h"
