/*
 * arith.h: conversions, sums and norms over arrays, for the rooms above.
 *
 * The same bits for every instruction set and thread count. Lengths are in elements, any alignment,
 * nthreads as in haul_optim_update(). Nothing here fails or allocates: callers pass valid dtypes (FP32,
 * BF16, FP16) and arrays that do not overlap.
 *
 * A NaN is stored as 7fc00000 (BF16 7fc0, FP16 7e00). BF16 is rounded half away from zero, FP16 half to
 * even. Denormals are zero to arithmetic, whatever the caller's MXCSR says.
 */
#ifndef HL_ARITH_H
#define HL_ARITH_H

#include <stdint.h>
#include <string.h>

#include "haul/optim.h"

#define HL_NAN_FP32 0x7fc00000u
#define HL_NAN_BF16 0x7fc0u
#define HL_NAN_FP16 0x7e00u

static inline uint32_t hl_float_bits(float f)
{
    uint32_t bits;

    memcpy(&bits, &f, sizeof bits);
    return bits;
}

static inline float hl_float_from_bits(uint32_t bits)
{
    float f;

    memcpy(&f, &bits, sizeof f);
    return f;
}

/* The value itself, or the one NaN that haul stores. */
static inline float hl_float_canon(float f)
{
    return f != f ? hl_float_from_bits(HL_NAN_FP32) : f;
}

static inline float hl_bf16_to_float(uint16_t h)
{
    return hl_float_canon(hl_float_from_bits((uint32_t)h << 16));
}

/* Half away from zero: the only rounding that 16 more bits can undo. */
static inline uint16_t hl_bf16_from_float(float f)
{
    return (uint16_t)((hl_float_bits(hl_float_canon(f)) + 0x8000u) >> 16);
}

static inline float hl_fp16_to_float(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, rest = h & 0x7fffu;

    if (rest > 0x7c00u)
        return hl_float_from_bits(HL_NAN_FP32);
    if (rest == 0x7c00u)
        return hl_float_from_bits(sign | 0x7f800000u);
    if (rest >= 0x0400u)
        return hl_float_from_bits(sign | ((rest << 13) + (112u << 23)));
    return hl_float_from_bits(sign | hl_float_bits((float)rest * 0x1p-24f));
}

/* Half to even. */
static inline uint16_t hl_fp16_from_float(float f)
{
    uint32_t bits = hl_float_bits(f), sign = bits >> 16 & 0x8000u, rest = bits & 0x7fffffffu;

    if (rest > 0x7f800000u)
        return HL_NAN_FP16;
    if (rest >= 0x477ff000u) /* 65520, half way from the largest to what would follow it */
        return (uint16_t)(sign | 0x7c00u);
    if (rest >= 0x38800000u) /* 2^-14, the smallest normal */
        return (uint16_t)(sign | ((rest - (112u << 23) + 0xfffu + (rest >> 13 & 1u)) >> 13));
    /* One unit in the last place of 0.5 is FP16's smallest denormal: the sum rounds for us. */
    return (uint16_t)(sign | (hl_float_bits(hl_float_from_bits(rest) + 0.5f) - 0x3f000000u));
}

/* The two halves of a split master (DESIGN section 4); lossless over all bit patterns. */
static inline uint16_t hl_split_hi(uint32_t bits)
{
    return (uint16_t)((bits + 0x8000u) >> 16);
}

static inline uint16_t hl_split_lo(uint32_t bits)
{
    return (uint16_t)bits;
}

static inline uint32_t hl_split_join(uint16_t hi, uint16_t lo)
{
    return (uint32_t)(uint16_t)(hi - (lo >> 15)) << 16 | lo;
}

static inline uint64_t hl_dtype_bytes(enum haul_dtype dtype)
{
    return dtype == HAUL_FP32 ? 4 : dtype == HAUL_DTYPE_NONE ? 0 : 2;
}

/* dst = src in another dtype (or the same: then only NaNs change). */
void hl_arith_convert(void *dst, enum haul_dtype dst_dtype, const void *src,
                      enum haul_dtype src_dtype, uint64_t n, unsigned nthreads);

/* acc = first ? widen(src) : acc + widen(src) */
void hl_arith_accumulate(float *acc, const void *src, enum haul_dtype dtype, uint64_t n, int first,
                         unsigned nthreads);

/* dst (n,) = parts (nparts, n) added in order in FP32, rounded once; BF16 and FP16 half to even. */
void hl_arith_sum(void *dst, const void *parts, enum haul_dtype dtype, uint32_t nparts, uint64_t n,
                  unsigned nthreads);

/* partial[b] = sum of squares of block b of HAUL_NORM_BLOCK elements over the fixed tree; NaN when, and
 * only when, an element of the block is not finite. partial is (ceil(n / HAUL_NORM_BLOCK),). */
void hl_arith_sumsq_partials(float *partial, const void *src, enum haul_dtype dtype, uint64_t n,
                             unsigned nthreads);

/* accumulate and sumsq_partials of the new acc in one pass. */
void hl_arith_accumulate_partials(float *partial, float *acc, const void *src,
                                  enum haul_dtype dtype, uint64_t n, int first, unsigned nthreads);

/* Add n partials in double, in order, to *sum; clears *finite when one of them is NaN. */
void hl_arith_sum_partials(const float *partial, uint64_t n, double *sum, int *finite);

/* Split and join whole arrays: bits = FP32 patterns. Not NaN-canonical: the codec alone. */
void hl_arith_split(uint16_t *hi, uint16_t *lo, const float *src, uint64_t n, unsigned nthreads);
void hl_arith_join(float *dst, const uint16_t *hi, const uint16_t *lo, uint64_t n,
                   unsigned nthreads);

#endif
