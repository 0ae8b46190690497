/*
 * real.h: the number the model computes in, and the arithmetic on rows of it.
 *
 * The same source is compiled twice: in FP32 for training, and with GPT_DOUBLE in FP64 for the
 * finite-difference check of every gradient (tests/test_gpt_gradient.c).
 *
 * No sum here depends on the width of a vector register or on the number of threads: a sum over a row
 * has 16 interleaved lanes, combined pairwise.
 */
#ifndef GPT_REAL_H
#define GPT_REAL_H

#include <math.h>
#include <stdint.h>
#include <string.h>
#include <cblas.h>

#ifdef GPT_DOUBLE
typedef double real;
#define gpt_gemm cblas_dgemm
#else
typedef float real;
#define gpt_gemm cblas_sgemm
#endif

#define GPT_LANES 16

/* One body, compiled per instruction set and chosen when the program is loaded. Contraction is off, so
 * the variants give the same bits. Not under sanitizers: their run time is not up yet when the choice
 * is made. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) &&                             \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define GPT_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define GPT_CLONES
#endif

static inline real gpt_combine_lanes(real *lane)
{
    for (int half = GPT_LANES / 2; half > 0; half /= 2)
        for (int l = 0; l < half; l++)
            lane[l] += lane[l + half];
    return lane[0];
}

/* exp(x), x <= 88; below -87 the result of -87 (1.6e-38). NaN stays NaN. At most 2 ulp off in FP32. */
static inline real gpt_exp(real x)
{
#ifdef GPT_DOUBLE
    return exp(x);
#else
    const float shift = 12582912.0f; /* 1.5 * 2^23: adding it rounds to a whole number */
    float n, r, p, scale;
    uint32_t bits;

    x = x < -87.0f ? -87.0f : x;
    x = x > 88.0f ? 88.0f : x;
    n = x * 1.44269504f + shift;
    memcpy(&bits, &n, sizeof bits);
    n -= shift;
    r = x - n * 0.693359375f; /* ln 2 in two parts, the first exact in 10 bits (Cody and Waite) */
    r = r - n * -2.12194440e-4f;
    p = 1.0f / 5040.0f; /* the Taylor series: |r| <= ln(2) / 2 */
    p = p * r + 1.0f / 720.0f;
    p = p * r + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    bits = (bits << 23) + 0x3f800000u; /* 2^n: n is in the low bits of the shifted sum */
    memcpy(&scale, &bits, sizeof scale);
    return p * scale;
#endif
}

/* tanh(x) by exp of the negative half: no cancellation except near 0, where 1 - e is exact enough
 * for an activation. */
static inline real gpt_tanh(real x)
{
    real a = x < 0 ? -x : x;
    real e = gpt_exp(-2 * a);
    real t = (1 - e) / (1 + e);

    return x < 0 ? -t : t;
}

#endif
