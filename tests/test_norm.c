/* The norm's fixed tree, written again here from the rule (R1) and not from the library. */
#include <errno.h>
#include <math.h>

#include "adam_case.h"
#include "cpu.h"
#include "kernel_table.h"
#include "suite.h"

#define MOST (9 * HAUL_NORM_BLOCK + 77)

static const enum haul_dtype dtypes[] = {HAUL_FP32, HAUL_BF16, HAUL_FP16};

static float values[MOST];
static unsigned char memory[4 * MOST + 64];

static double ldexp_half(uint16_t h)
{
    int e = h >> 10 & 31, f = h & 1023;
    double x = e == 31  ? (f ? (double)NAN : (double)INFINITY)
               : e == 0 ? ldexp(f, -24)
                        : ldexp(1024 + f, e - 25);

    return h & 0x8000 ? -x : x;
}

static double value_at(const void *p, enum haul_dtype dtype, uint64_t i)
{
    uint32_t bits = 0;
    uint16_t h;
    float f;

    if (dtype == HAUL_FP32) {
        memcpy(&f, (const char *)p + 4 * i, 4);
        return (double)f;
    }
    memcpy(&h, (const char *)p + 2 * i, 2);
    if (dtype == HAUL_FP16)
        return ldexp_half(h);
    bits = (uint32_t)h << 16;
    memcpy(&f, &bits, 4);
    return (double)f;
}

static double tree(const void *p, enum haul_dtype dtype, uint64_t n)
{
    double sum = 0;

    for (uint64_t b = 0; b < n; b += 4096) {
        float lane[16] = {0};

        for (uint64_t i = b; i < n && i < b + 4096; i++) {
            float x = (float)value_at(p, dtype, i);
            lane[i % 16] = fmaf(x, x, lane[i % 16]);
        }
        for (int i = 0; i < 8; i++)
            lane[i] = lane[i] + lane[i + 8];
        for (int i = 0; i < 4; i++)
            lane[i] = lane[i] + lane[i + 4];
        lane[0] = lane[0] + lane[2];
        lane[1] = lane[1] + lane[3];
        sum += (double)(lane[0] + lane[1]);
    }
    return sum;
}

static void *fill(enum haul_dtype dtype, uint64_t n, unsigned misalign, float scale)
{
    uint64_t state = n + misalign;

    for (uint64_t i = 0; i < n; i++)
        adam_put(memory + misalign, dtype, i, values[i] = adam_uniform(&state) * scale);
    return memory + misalign;
}

static const uint64_t sizes[] = {0,    1,    15,   16,   17,   31,    33,
                                 1000, 4095, 4096, 4097, 8192, 16384, MOST};
#define NSIZES (sizeof sizes / sizeof *sizes)

Test(norm, is_the_fixed_tree_at_any_size_alignment_and_team)
{
    static const unsigned misalign[] = {0, 1, 6};

    for (int d = 0; d < 3; d++)
        for (unsigned s = 0; s < NSIZES; s++)
            for (int a = 0; a < 3; a++) {
                void *g = fill(dtypes[d], sizes[s], misalign[a], 3);
                double want = tree(g, dtypes[d], sizes[s]), sum;
                int finite;

                for (unsigned nthreads = 1; nthreads <= 5; nthreads++) {
                    cr_assert_eq(haul_norm_sumsq(g, dtypes[d], sizes[s], nthreads, &sum, &finite),
                                 0);
                    cr_assert_eq(sum, want, "dtype %d n %d: %a not %a", dtypes[d], (int)sizes[s],
                                 sum, want);
                    cr_assert_eq(finite, 1);
                }
            }
}

Test(norm, is_near_the_sum_in_double)
{
    for (int d = 0; d < 3; d++) {
        void *g = fill(dtypes[d], MOST, 0, 3);
        double want = 0, sum;
        int finite;

        for (uint64_t i = 0; i < MOST; i++)
            want += value_at(g, dtypes[d], i) * value_at(g, dtypes[d], i);
        cr_assert_eq(haul_norm_sumsq(g, dtypes[d], MOST, 1, &sum, &finite), 0);
        /* 256 fmaf and 4 additions per lane, all of one sign: docs/numerics.md section 5 */
        cr_assert_float_eq(sum, want, want * 260 * 0x1p-24);
    }
}

Test(norm, every_variant_has_the_bits_of_c)
{
    static const enum hl_isa isas[] = {HL_ISA_NEON, HL_ISA_AVX2, HL_ISA_AVX512};
    float want[10], got[11];

    for (unsigned i = 0; i < 3; i++) {
        const struct hl_kernels *k = hl_cpu_has(isas[i]) ? hl_kernels_of(isas[i]) : NULL;

        for (int f = 0; k && f < HL_NGRADS; f++)
            for (unsigned s = 0; s < NSIZES; s++) {
                uint64_t blocks = (sizes[s] + 4095) / 4096, state = 9;

                for (uint64_t e = 0; e < sizes[s]; e++)
                    adam_put(memory + 2, dtypes[f], e,
                             e % 5000 == 4999 ? adam_hostile(&state) : adam_uniform(&state));
                memset(got, 0x5a, sizeof got);
                hl_kernels_c.sumsq[f](want, memory + 2, sizes[s]);
                k->sumsq[f](got, memory + 2, sizes[s]);
                cr_assert_eq(memcmp(want, got, 4 * blocks), 0);
                cr_assert_eq(hl_float_bits(got[blocks]), 0x5a5a5a5au);
            }
    }
}

static int finite_with(enum haul_dtype dtype, uint64_t at, float planted, double *sum)
{
    void *g = fill(dtype, MOST, 0, 1);
    int finite;

    adam_put(g, dtype, at, planted);
    cr_assert_eq(haul_norm_sumsq(g, dtype, MOST, 2, sum, &finite), 0);
    return finite;
}

Test(norm, one_inf_or_nan_anywhere_is_found)
{
    static const uint64_t places[] = {0, 17, 4095, 4096, 3 * 4096 + 1, MOST - 1};
    double sum;

    for (int d = 0; d < 3; d++)
        for (int p = 0; p < 6; p++) {
            cr_assert_eq(finite_with(dtypes[d], places[p], INFINITY, &sum), 0);
            cr_assert_eq(finite_with(dtypes[d], places[p], -INFINITY, &sum), 0);
            cr_assert_eq(finite_with(dtypes[d], places[p], NAN, &sum), 0);
            cr_assert_eq(finite_with(dtypes[d], places[p], -NAN, &sum), 0);
            cr_assert_eq(finite_with(dtypes[d], places[p], 1, &sum), 1);
        }
}

Test(norm, a_sum_that_overflows_is_infinite_yet_every_element_finite)
{
    double sum;

    cr_assert_eq(finite_with(HAUL_FP32, 5, 3e38f, &sum), 1);
    cr_assert(isinf(sum));
    cr_assert_eq(finite_with(HAUL_BF16, 5, 3e38f, &sum), 1);
    cr_assert(isinf(sum));
    cr_assert_eq(finite_with(HAUL_FP16, 5, 65504, &sum), 1);
    cr_assert(isfinite(sum)); /* FP16's largest, squared, is far from FP32's */
}

Test(norm, more_elements_than_one_round_of_partial_sums)
{
    const uint64_t n = 17 * 1024 * 1024 + 5;
    uint16_t *g = calloc(n, 2);
    double sum;
    int finite;

    if (!g)
        SKIP("memory for %d elements", (int)n);
    g[n - 1] = 0x4000; /* 2 */
    g[0] = 0x3f80;     /* 1 */
    cr_assert_eq(haul_norm_sumsq(g, HAUL_BF16, n, 2, &sum, &finite), 0);
    cr_assert_eq(sum, 5);
    cr_assert_eq(finite, 1);
    free(g);
}

/* The tree with every element outside [begin, end) read as 0. */
static double tree_of_part(const void *p, enum haul_dtype dtype, uint64_t begin, uint64_t end)
{
    static float part[MOST];

    memset(part, 0, sizeof part);
    for (uint64_t i = begin; i < end; i++)
        part[i] = (float)value_at(p, dtype, i);
    return tree(part, HAUL_FP32, MOST);
}

Test(norm, parts_have_sums_of_their_own_on_the_blocks_of_the_whole)
{
    const uint64_t part_n[] = {0, 5, 4091, 1000, 0, 20000, 3, MOST - 25099, 0};
    enum { nparts = sizeof part_n / sizeof *part_n };
    double part_sum[nparts], sum;
    struct haul_norm_parts parts = {
        .struct_size = sizeof parts, .part_n = part_n, .nparts = nparts, .part_sum = part_sum};
    int finite;

    for (int d = 0; d < 3; d++) {
        uint64_t at = 0;

        parts.dtype = dtypes[d];
        parts.grad = fill(dtypes[d], MOST, 2, 3);
        cr_assert_eq(haul_norm_by_part(&parts, 2, &sum, &finite), 0, "%s", haul_last_error());
        cr_assert_eq(sum, tree(parts.grad, dtypes[d], MOST));
        cr_assert_eq(finite, 1);
        for (int i = 0; i < nparts; at += part_n[i++])
            cr_assert_eq(part_sum[i], tree_of_part(parts.grad, dtypes[d], at, at + part_n[i]),
                         "part %d", i);
    }
}

Test(norm, a_part_is_nan_when_an_element_of_it_is_not_finite)
{
    const uint64_t part_n[] = {100, 10, 5000};
    double part_sum[3], sum;
    struct haul_norm_parts parts = {.struct_size = sizeof parts,
                                    .grad = fill(HAUL_BF16, 5110, 0, 1),
                                    .dtype = HAUL_BF16,
                                    .part_n = part_n,
                                    .nparts = 3,
                                    .part_sum = part_sum};
    int finite;

    adam_put(memory, HAUL_BF16, 105, -INFINITY);
    cr_assert_eq(haul_norm_by_part(&parts, 1, &sum, &finite), 0);
    cr_assert_eq(finite, 0);
    cr_assert(isfinite(part_sum[0]) && isnan(part_sum[1]) && isfinite(part_sum[2]));
    parts.nparts = 0;
    cr_assert_eq(haul_norm_by_part(&parts, 1, &sum, &finite), 0);
    cr_assert_eq(sum, 0);
    parts.part_n = NULL;
    parts.nparts = 1;
    cr_assert_eq(haul_norm_by_part(&parts, 1, &sum, &finite), -EINVAL);
    cr_assert_not_null(strstr(haul_last_error(), "part_n"));
    cr_assert_eq(haul_norm_by_part(NULL, 1, &sum, &finite), -EINVAL);
    parts.struct_size = 1;
    cr_assert_eq(haul_norm_by_part(&parts, 1, &sum, &finite), HAUL_E_ABI);
}

static float acc[MOST], want_acc[MOST];

static void accumulate(enum haul_dtype dtype, uint64_t n, unsigned nthreads)
{
    double sum, want;
    int finite;

    for (int pass = 0; pass < 3; pass++) {
        void *g = fill(dtype, n, 2, (float)(pass + 1));

        for (uint64_t i = 0; i < n; i++) {
            float x = (float)value_at(g, dtype, i);
            want_acc[i] = pass ? want_acc[i] + x : x;
        }
        cr_assert_eq(haul_norm_accumulate(acc, g, dtype, n, !pass, nthreads, &sum, &finite), 0);
        cr_assert_eq(memcmp(acc, want_acc, 4 * n), 0);
        want = tree(acc, HAUL_FP32, n);
        cr_assert_eq(sum, want);
        cr_assert_eq(finite, 1);
    }
    cr_assert_eq(haul_norm_accumulate(acc, memory + 2, dtype, n, 0, nthreads, NULL, NULL), 0);
    for (uint64_t i = 0; i < n; i++)
        want_acc[i] += (float)value_at(memory + 2, dtype, i);
    cr_assert_eq(memcmp(acc, want_acc, 4 * n), 0);
}

Test(norm, accumulate_adds_and_sums_in_one_pass)
{
    for (int d = 0; d < 3; d++)
        for (unsigned s = 0; s < NSIZES; s++)
            for (unsigned nthreads = 1; nthreads <= 3; nthreads++)
                accumulate(dtypes[d], sizes[s], nthreads);
}

Test(norm, accumulate_sees_inf_and_stores_one_nan)
{
    double sum;
    int finite;

    fill(HAUL_BF16, 100, 0, 1);
    adam_put(memory, HAUL_BF16, 50, INFINITY);
    cr_assert_eq(haul_norm_accumulate(acc, memory, HAUL_BF16, 100, 1, 1, &sum, &finite), 0);
    cr_assert_eq(finite, 0);
    adam_put(memory, HAUL_BF16, 50, -INFINITY);
    cr_assert_eq(haul_norm_accumulate(acc, memory, HAUL_BF16, 100, 0, 1, &sum, &finite), 0);
    cr_assert_eq(hl_float_bits(acc[50]), 0x7fc00000u);
    cr_assert_eq(finite, 0);
}

Test(norm, refuses_more_threads_than_a_machine_has)
{
    static float grad[8], held[8] = {5};
    const uint64_t part_n[1] = {8};
    double sum = 77, part_sum[1] = {77};
    int finite = 77;
    struct haul_norm_parts parts = {.struct_size = sizeof parts,
                                    .grad = grad,
                                    .dtype = HAUL_FP32,
                                    .part_n = part_n,
                                    .nparts = 1,
                                    .part_sum = part_sum};

    for (unsigned n = 4097; n != HAUL_THREADS_OPENMP; n = n == 4097 ? UINT_MAX - 1 : n + 1) {
        cr_assert_eq(haul_norm_sumsq(grad, HAUL_FP32, 8, n, &sum, &finite), -EINVAL);
        cr_assert_not_null(strstr(haul_last_error(), "nthreads"), "%s", haul_last_error());
        cr_assert_eq(haul_norm_by_part(&parts, n, &sum, &finite), -EINVAL);
        cr_assert_not_null(strstr(haul_last_error(), "nthreads"), "%s", haul_last_error());
        cr_assert_eq(haul_norm_accumulate(held, grad, HAUL_FP32, 8, 1, n, &sum, &finite), -EINVAL);
        cr_assert_not_null(strstr(haul_last_error(), "nthreads"), "%s", haul_last_error());
        cr_assert_eq(haul_norm_accumulate(held, grad, HAUL_FP32, 8, 1, n, NULL, NULL), -EINVAL);
    }
    cr_assert(sum == 77 && finite == 77 && part_sum[0] == 77 && held[0] == 5);
    cr_assert_eq(haul_norm_sumsq(grad, HAUL_FP32, 8, HAUL_THREADS_OPENMP, &sum, &finite), 0);
    cr_assert_eq(haul_norm_sumsq(grad, HAUL_FP32, 8, 4096, &sum, &finite), 0);
}

Test(norm, refuses_what_it_cannot_do)
{
    double sum = 3;
    int finite = 3;

    cr_assert_eq(haul_norm_sumsq(NULL, HAUL_FP32, 1, 1, &sum, &finite), -EINVAL);
    cr_assert_not_null(strstr(haul_last_error(), "grad"));
    cr_assert_eq(haul_norm_sumsq(memory, HAUL_DTYPE_NONE, 1, 1, &sum, &finite), -EINVAL);
    cr_assert_not_null(strstr(haul_last_error(), "dtype"));
    cr_assert_eq(haul_norm_sumsq(memory, HAUL_FP32, UINT64_MAX, 1, &sum, &finite), -EINVAL);
    cr_assert_eq(haul_norm_sumsq(memory, HAUL_FP32, 1, 1, NULL, &finite), -EINVAL);
    cr_assert_eq(haul_norm_sumsq(memory, HAUL_FP32, 1, 1, &sum, NULL), -EINVAL);
    cr_assert_eq(haul_norm_accumulate(NULL, memory, HAUL_FP32, 1, 1, 1, NULL, NULL), -EINVAL);
    cr_assert_not_null(strstr(haul_last_error(), "acc"));
    cr_assert_eq(haul_norm_accumulate(acc, memory, HAUL_FP32, 1, 1, 1, &sum, NULL), -EINVAL);
    cr_assert_eq(sum, 3);
    cr_assert_eq(finite, 3);
    cr_assert_eq(haul_norm_sumsq(NULL, HAUL_FP32, 0, 1, &sum, &finite), 0);
    cr_assert_eq(sum, 0);
    cr_assert_eq(finite, 1);
}
