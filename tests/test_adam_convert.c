/* Conversions and the split codec, against rounding worked in double or over every pattern. */
#include <math.h>

#include "adam_case.h"
#include "cpu.h"
#include "kernel_table.h"
#include "suite.h"

/* x rounded to digits significant bits by rule, with the least exponent emin of a unit. */
static double rounded(double x, int digits, int emin, double (*rule)(double))
{
    int e;

    frexp(x, &e);
    e -= digits;
    if (e < emin)
        e = emin;
    return ldexp(rule(ldexp(x, -e)), e);
}

static double half_value(uint16_t h)
{
    int e = h >> 10 & 31, f = h & 1023;
    double x = e == 31  ? (f ? (double)NAN : (double)INFINITY)
               : e == 0 ? ldexp(f, -24)
                        : ldexp(1024 + f, e - 25);

    return h & 0x8000 ? -x : x;
}

Test(adam_convert, every_fp16_pattern_widens_exactly_and_comes_back)
{
    for (uint32_t h = 0; h < 65536; h++) {
        double want = half_value((uint16_t)h);
        float got = hl_fp16_to_float((uint16_t)h);

        if (isnan(want)) {
            cr_assert_eq(hl_float_bits(got), 0x7fc00000u);
            cr_assert_eq(hl_fp16_from_float(got), 0x7e00);
            continue;
        }
        cr_assert_eq((double)got, want, "%04x", (unsigned)h);
        cr_assert_eq(hl_fp16_from_float(got), h, "%04x", (unsigned)h);
    }
}

Test(adam_convert, fp16_rounds_half_to_even_and_bf16_half_away_from_zero)
{
    for (uint64_t b = 0; b < UINT64_C(1) << 32; b += 4099) { /* a prime: every mix of low bits */
        float x = hl_float_from_bits((uint32_t)b);
        double half = rounded((double)x, 11, -24, nearbyint), brain;
        uint16_t h = hl_fp16_from_float(x), hi = hl_bf16_from_float(x);

        if (isnan(x)) {
            cr_assert_eq(h, 0x7e00);
            cr_assert_eq(hi, 0x7fc0);
            continue;
        }
        if (isinf(x))
            continue;
        if (fabs(half) > 65504)
            half = copysign((double)INFINITY, half);
        cr_assert_eq(half_value(h), half, "%08x", (unsigned)b);
        cr_assert_eq(h >> 15, (uint32_t)b >> 31);
        brain = rounded((double)x, 8, -133, round);
        if (fabs(brain) > 0x1.fep127)
            brain = copysign((double)INFINITY, brain);
        cr_assert_eq((double)hl_bf16_to_float(hi), brain, "%08x", (unsigned)b);
    }
}

Test(adam_convert, ties_go_where_the_rule_says)
{
    cr_assert_eq(hl_bf16_from_float(hl_float_from_bits(0x3f808000)),
                 0x3f81); /* even would be 3f80 */
    cr_assert_eq(hl_bf16_from_float(hl_float_from_bits(0xbf808000)), 0xbf81);
    cr_assert_eq(hl_bf16_from_float(hl_float_from_bits(0x7f7fffff)), 0x7f80);
    cr_assert_eq(hl_fp16_from_float(1 + 0x1p-11f), 0x3c00);
    cr_assert_eq(hl_fp16_from_float(1 + 3 * 0x1p-11f), 0x3c02);
    cr_assert_eq(hl_fp16_from_float(65519.996f), 0x7bff);
    cr_assert_eq(hl_fp16_from_float(65520), 0x7c00);
    cr_assert_eq(hl_fp16_from_float(0x1p-25f), 0);
    cr_assert_eq(hl_fp16_from_float(0x1.000002p-25f), 1);
}

Test(adam_convert, split_is_lossless_on_a_stride_of_all_patterns)
{
    for (uint64_t b = 0; b < UINT64_C(1) << 32; b += 251) {
        uint32_t bits = (uint32_t)b;
        cr_assert_eq(hl_split_join(hl_split_hi(bits), hl_split_lo(bits)), bits);
    }
    for (uint32_t hi = 0; hi < 65536; hi++) { /* around every boundary of the upper half */
        for (uint32_t lo = 0x7ffe; lo <= 0x8001; lo++) {
            uint32_t bits = hi << 16 | lo;
            cr_assert_eq(hl_split_join(hl_split_hi(bits), hl_split_lo(bits)), bits);
        }
    }
}

Test(adam_convert, the_upper_half_of_split_is_the_bf16_parameter)
{
    for (uint64_t b = 0; b < UINT64_C(1) << 32; b += 1021) {
        float x = hl_float_from_bits((uint32_t)b);

        if (!isnan(x))
            cr_assert_eq(hl_split_hi((uint32_t)b), hl_bf16_from_float(x));
    }
}

Test(adam_convert, arrays_split_and_join)
{
    enum { n = 9 * 4096 + 5 };
    static float src[n], back[n];
    static uint16_t hi[n], lo[n];
    uint64_t state = 1;

    for (int i = 0; i < n; i++)
        src[i] = adam_hostile(&state);
    hl_arith_split(hi, lo, src, n, 3);
    hl_arith_join(back, hi, lo, n, 2);
    cr_assert_eq(memcmp(src, back, sizeof src), 0);
}

static unsigned char src[4 * 9000 + 8], want[4 * 9000 + 8], got[4 * 9000 + 8];

static void same_conversion(const struct hl_kernels *k, int to, int from, uint64_t n,
                            unsigned misalign)
{
    memset(want, 0x5a, sizeof want);
    memset(got, 0x5a, sizeof got);
    hl_kernels_c.convert[to][from](want + misalign, src + misalign, n);
    k->convert[to][from](got + misalign, src + misalign, n);
    cr_assert_eq(memcmp(want, got, sizeof want), 0, "to %d from %d n %d", to, from, (int)n);
    k->accumulate[from]((float *)(void *)(want + misalign), src + misalign, n, to & 1);
    hl_kernels_c.accumulate[from]((float *)(void *)(got + misalign), src + misalign, n, to & 1);
    cr_assert_eq(memcmp(want, got, sizeof want), 0);
}

Test(adam_convert, every_variant_has_the_bits_of_c)
{
    static const enum hl_isa isas[] = {HL_ISA_NEON, HL_ISA_AVX2, HL_ISA_AVX512};
    static const uint64_t sizes[] = {0, 1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 9000};
    uint64_t state = 3;

    for (uint64_t i = 0; i + 4 <= sizeof src; i += 4) {
        float x = adam_hostile(&state);
        memcpy(src + i, &x, 4);
    }
    for (int i = 0; i < 3; i++) {
        const struct hl_kernels *k = hl_cpu_has(isas[i]) ? hl_kernels_of(isas[i]) : NULL;

        for (int pair = 0; k && pair < 9; pair++)
            for (unsigned s = 0; s < sizeof sizes / sizeof *sizes; s++)
                for (unsigned misalign = 0; misalign < 8; misalign += 2)
                    same_conversion(k, pair / 3, pair % 3, sizes[s], misalign);
    }
}

Test(adam_convert, arrays_convert_alike_with_any_team)
{
    enum { n = 9 * 4096 + 100 };
    static float from[n];
    static uint16_t one[n], three[n];
    uint64_t state = 1;

    for (int i = 0; i < n; i++)
        from[i] = adam_hostile(&state);
    hl_arith_convert(one, HAUL_BF16, from, HAUL_FP32, n, 1);
    hl_arith_convert(three, HAUL_BF16, from, HAUL_FP32, n, 3);
    cr_assert_eq(memcmp(one, three, sizeof one), 0);
    for (int i = 0; i < n; i++)
        cr_assert_eq(one[i], hl_bf16_from_float(from[i]));
}
