/* BF16 moments: stochastic rounding is unbiased, reproducible, and keeps v moving. */
#include <math.h>

#include "adam_case.h"
#include "kernel_table.h"
#include "suite.h"

#define N 65536

static uint16_t m[N], v[N];
static float grad[N], master[N];

static void update(uint64_t seed, uint64_t step, uint64_t first, double beta1, double beta2)
{
    struct haul_optim opt;
    struct haul_optim_arrays a = {.struct_size = sizeof a,
                                  .n = N,
                                  .grad_dtype = HAUL_FP32,
                                  .grad = grad,
                                  .master = master,
                                  .m = m,
                                  .v = v,
                                  .first = first};
    struct haul_optim_step s = {.struct_size = sizeof s, .step = step, .grad_scale = 1};

    haul_optim_init(&opt, HAUL_ADAMW);
    opt.moment_dtype = HAUL_BF16;
    opt.seed = seed;
    opt.beta1 = beta1;
    opt.beta2 = beta2;
    cr_assert_eq(haul_optim_update(&opt, &a, &s, 2), 0, "%s", haul_last_error());
}

/* How many of N elements of m are rounded away from zero when every one must hold 1 + part / 128, part
 * of the way from BF16's 1 to the next. beta1 = 0: m is the gradient. */
static double share_up(uint64_t seed, uint64_t step, double part)
{
    uint64_t up = 0;

    for (int i = 0; i < N; i++)
        grad[i] = (float)(1 + part / 128);
    memset(m, 0, sizeof m);
    memset(v, 0, sizeof v);
    update(seed, step, 0, 0, 0.999);
    for (int i = 0; i < N; i++) {
        cr_assert(m[i] == 0x3f80 || m[i] == 0x3f81, "%04x", m[i]);
        up += m[i] == 0x3f81;
    }
    return (double)up / N;
}

/*
 * Each of the 40 shares is a mean of N Bernoulli draws. |share - part| is held to 5.2 standard
 * deviations: 2e-7 for one, 8e-6 false alarms for the test, were the seeds drawn anew.
 */
Test(adam_rounding, is_unbiased)
{
    static const double parts[] = {1.0 / 65536, 0.1, 0.25, 0.5, 0.9};

    for (int p = 0; p < 5; p++)
        for (uint64_t seed = 0; seed < 8; seed++) {
            double part = parts[p], share = share_up(seed, seed + 1, part);
            double sigma = sqrt(part * (1 - part) / N);

            cr_assert_lt(fabs(share - part), 5.2 * sigma + 0.5 / N, "part %g: %g", part, share);
        }
}

Test(adam_rounding, values_that_bf16_holds_are_kept)
{
    cr_assert_eq(share_up(1, 1, 0), 0);
    cr_assert_eq(share_up(1, 1, 1), 1);
}

/* Draws of one element at successive steps, and of neighbours in one step, are not correlated: |r| of
 * N pairs is below 5.2 / sqrt(N), 2e-7 false alarms each. */
static double correlation(const uint16_t *a, const uint16_t *b, int n)
{
    double sum = 0;

    for (int i = 0; i < n; i++)
        sum += (a[i] == 0x3f81 ? 1.0 : -1.0) * (b[i] == 0x3f81 ? 1.0 : -1.0);
    return sum / n;
}

Test(adam_rounding, draws_of_steps_neighbours_moments_and_seeds_are_independent)
{
    static uint16_t before[N];
    const double limit = 5.2 / sqrt(N);

    for (uint64_t t = 1; t <= 8; t++) {
        share_up(3, t, 0.5);
        if (t > 1)
            cr_assert_lt(fabs(correlation(before, m, N)), limit);
        memcpy(before, m, sizeof m);
        cr_assert_lt(fabs(correlation(m, m + 1, N - 1)), limit);
        cr_assert_lt(fabs(correlation(m, m + 16, N - 16)), limit);
        share_up(4, t, 0.5);
        cr_assert_lt(fabs(correlation(before, m, N)), limit);
    }
}

Test(adam_rounding, the_same_key_gives_the_same_bits_and_another_does_not)
{
    static uint16_t first[N];

    share_up(3, 5, 0.5);
    memcpy(first, m, sizeof m);
    share_up(3, 5, 0.5);
    cr_assert_eq(memcmp(first, m, sizeof m), 0);
    share_up(3, 6, 0.5);
    cr_assert_neq(memcmp(first, m, sizeof m), 0);
}

/* beta2 = 0.999 and a gradient that has grown from 1 to 1.2: v should go from 1 to 1.44, by 4.4e-4 a step
 * at first. Half a BF16 step at 1 is 3.9e-3, so rounding to nearest never moves. After 2000 steps the
 * exact v is 1.44 - 0.44 * 0.999^2000 = 1.3805; the mean over N elements, each a walk with steps of at
 * most 2^-7, has a standard deviation below 1e-3. */
Test(adam_rounding, bf16_v_keeps_moving_where_rounding_to_nearest_stays)
{
    double mean = 0;
    float nearest = 1;

    for (int i = 0; i < N; i++) {
        grad[i] = 1.2f;
        m[i] = 0;
        v[i] = 0x3f80;
    }
    for (uint64_t t = 1; t <= 2000; t++) {
        update(11, t, 0, 0.9, 0.999);
        nearest = nearest + 0.001f * (1.44f - nearest);
        nearest = hl_bf16_to_float(hl_bf16_from_float(nearest));
    }
    for (int i = 0; i < N; i++)
        mean += (double)hl_bf16_to_float(v[i]) / N;
    cr_assert_eq(nearest, 1);
    cr_assert_float_eq(mean, 1.44 - 0.44 * pow(0.999, 2000), 5e-3, "mean %g", mean);
}

Test(adam_rounding, nan_and_infinity_survive_every_draw)
{
    for (int i = 0; i < N; i++)
        grad[i] = i % 2 ? NAN : i % 4 ? INFINITY : -INFINITY;
    memset(m, 0, sizeof m);
    memset(v, 0, sizeof v);
    update(1, 1, 0, 0, 0);
    for (int i = 0; i < N; i++) {
        cr_assert_eq(m[i], i % 2 ? 0x7fc0 : i % 4 ? 0x7f80 : 0xff80);
        cr_assert_eq(v[i], i % 2 ? 0x7fc0 : 0x7f80);
    }
}
