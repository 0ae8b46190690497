/* Lower bounds and the recommendation, against hand-worked figures. */
#include <errno.h>

#include "bounds.h"
#include "suite.h"

#define G UINT64_C(1000000000)

static struct haul_plan_opts plan_13b(void)
{
    struct haul_plan_opts o;

    haul_plan_opts_init(&o);
    o.params = 13 * G;
    o.ranks = 4;
    return o;
}

static struct hl_bounds bounds_of(const struct haul_plan_opts *o, uint32_t stage,
                                  enum haul_offload offload, double tokens)
{
    const struct haul_plan_row row = {.stage = stage, .offload = offload};
    struct hl_rates rates;
    struct hl_bounds b;
    int rc;

    hl_rates_init(&rates);
    rc = hl_plan_bounds(o, &row, tokens, &rates, &b);
    cr_assert_eq(rc, 0, "%s", haul_last_error());
    return b;
}

Test(bounds, forward_and_optimizer_meet_at_the_host_ridge)
{
    /* T = 13 N F / B_m, worked for 4 x 140 TFLOP/s and 160 GB/s: 45500 tokens */
    struct haul_plan_opts o = plan_13b();
    struct hl_bounds b = bounds_of(&o, 3, HAUL_OFFLOAD_OPTIMIZER, 45500);

    cr_assert_float_eq(b.forward_s, b.optim_s, 1e-9 * b.forward_s);
    cr_assert_float_eq(b.optim_s, 26.0 * 13e9 / 160e9, 1e-9);
    cr_assert_float_eq(b.mem_s, 32.0 * 13e9 / 160e9, 1e-9);
}

Test(bounds, compute_bounds_a_long_step_and_memory_a_short_one)
{
    struct haul_plan_opts o = plan_13b();
    struct hl_bounds b = bounds_of(&o, 3, HAUL_OFFLOAD_OPTIMIZER, 1e6);

    /* recomputing: 8 operations per parameter and token */
    cr_assert_eq((int)b.by, HL_BOUND_COMPUTE);
    cr_assert_float_eq(b.step_s, 8.0 * 13e9 * 1e6 / (4 * 140e12), 1e-6);
    b = bounds_of(&o, 3, HAUL_OFFLOAD_OPTIMIZER, 100);
    cr_assert_eq((int)b.by, HL_BOUND_MEM);
    cr_assert_float_eq(b.step_s, 2.6, 1e-9);
    b = bounds_of(&o, 3, HAUL_OFFLOAD_OPTIMIZER, 20000);
    cr_assert_eq((int)b.by, HL_BOUND_OPTIM);
    cr_assert_float_eq(b.step_s, 2.1125 + b.backward_s, 1e-9);
}

Test(bounds, the_link_carries_shards_or_whole_models)
{
    struct haul_plan_opts o = plan_13b();

    /* stage 3: 4 P / (N B_l) up, 2 P / (N B_l) down */
    struct hl_bounds b = bounds_of(&o, 3, HAUL_OFFLOAD_ALL, 100);
    cr_assert_float_eq(b.h2d_s, 4 * 13e9 / 4 / 25e9, 1e-9);
    cr_assert_float_eq(b.d2h_s, 2 * 13e9 / 4 / 25e9, 1e-9);
    /* stages 0 to 2: every rank pulls whole units */
    b = bounds_of(&o, 2, HAUL_OFFLOAD_ALL, 100);
    cr_assert_float_eq(b.h2d_s, 4 * 13e9 / 25e9, 1e-9);
    /* parameters on the device: only the updated shard goes up */
    b = bounds_of(&o, 3, HAUL_OFFLOAD_OPTIMIZER, 100);
    cr_assert_float_eq(b.h2d_s, 2 * 13e9 / 4 / 25e9, 1e-9);
    b = bounds_of(&o, 3, HAUL_OFFLOAD_NONE, 100);
    cr_assert_float_eq(b.h2d_s + b.d2h_s + b.optim_s + b.mem_s + b.nvme_s, 0, 0);
}

Test(bounds, records_on_nvme_are_read_and_written_once_a_step)
{
    struct haul_plan_opts o = plan_13b();
    struct hl_bounds b;

    o.host_mem_per_node = 26 * G; /* gradients only */
    b = bounds_of(&o, 3, HAUL_OFFLOAD_OPTIMIZER, 100);
    cr_assert_float_eq(b.nvme_written_bytes, 156e9, 0);
    cr_assert_float_eq(b.nvme_read_bytes, 156e9, 0);
    cr_assert_float_eq(b.nvme_s, 2 * 156e9 / 6e9, 1e-9);
    cr_assert_eq((int)b.by, HL_BOUND_NVME);
    /* parameters too: read in forward and backward */
    b = bounds_of(&o, 3, HAUL_OFFLOAD_ALL, 100);
    cr_assert_float_eq(b.nvme_read_bytes, 156e9 + 2 * 26e9, 0);
    cr_assert_float_eq(b.nvme_written_bytes, 156e9 + 26e9, 0);
}

Test(bounds, split_moves_two_bytes_less_through_host_memory)
{
    struct haul_plan_opts o = plan_13b();

    o.master = HAUL_MASTER_SPLIT;
    struct hl_bounds b = bounds_of(&o, 3, HAUL_OFFLOAD_OPTIMIZER, 100);
    cr_assert_float_eq(b.mem_s, 30.0 * 13e9 / 160e9, 1e-9);
}

Test(bounds, rates_of_zero_and_endless_steps_are_refused)
{
    struct haul_plan_opts o = plan_13b();
    const struct haul_plan_row row = {.stage = 3};
    struct hl_rates rates;
    struct hl_bounds b;

    hl_rates_init(&rates);
    cr_assert_eq(hl_plan_bounds(&o, &row, 0, &rates, &b), -EINVAL);
    cr_assert_eq(hl_plan_bounds(&o, &row, 1e300, &rates, &b), -EOVERFLOW);
    rates.link_bytes_per_s = 0;
    cr_assert_eq(hl_plan_bounds(&o, &row, 1, &rates, &b), -EINVAL);
}

static const struct haul_plan_row *recommended(const struct haul_plan_opts *o)
{
    static struct haul_plan_row rows[HAUL_PLAN_ROWS];
    int best;

    cr_assert_eq(haul_plan_rows(o, rows), 0, "%s", haul_last_error());
    best = hl_plan_recommend(rows);
    return best < 0 ? NULL : &rows[best];
}

Test(recommend, the_lowest_stage_that_fits_without_offload)
{
    struct haul_plan_opts o = plan_13b();

    o.params = 7500000000;
    o.ranks = 64;
    o.device_mem_per_rank = 80 * G;
    const struct haul_plan_row *row = recommended(&o);
    cr_assert_not_null(row);
    cr_assert_eq(row->stage, 1);
    cr_assert_eq((int)row->offload, HAUL_OFFLOAD_NONE);
}

Test(recommend, stage_3_with_the_optimizer_on_the_host_for_13b_on_four_24_gb_cards)
{
    struct haul_plan_opts o = plan_13b();

    o.device_mem_per_rank = 24 * G;
    const struct haul_plan_row *row = recommended(&o);
    cr_assert_not_null(row);
    cr_assert_eq(row->stage, 3);
    cr_assert_eq((int)row->offload, HAUL_OFFLOAD_OPTIMIZER);
}

Test(recommend, nothing_on_nvme_where_a_higher_stage_fits_the_host)
{
    struct haul_plan_opts o = plan_13b();

    o.device_mem_per_rank = 40 * G;
    o.host_mem_per_node = 200 * G; /* 14 P = 182 GB when sharded, 728 GB when not */
    const struct haul_plan_row *row = recommended(&o);
    cr_assert_not_null(row);
    cr_assert_eq(row->stage, 2);
    cr_assert_eq((int)row->offload, HAUL_OFFLOAD_OPTIMIZER);
    cr_assert_eq(row->nvme_bytes_per_node, 0);
}

Test(recommend, none_when_none_fits_and_the_nearest_lacks_least)
{
    struct haul_plan_opts o = plan_13b();
    struct haul_plan_row rows[HAUL_PLAN_ROWS];

    o.device_mem_per_rank = 1 * G;
    o.host_mem_per_node = 20 * G;
    cr_assert_null(recommended(&o));
    cr_assert_eq(haul_plan_rows(&o, rows), 0);
    /* offload all, stage 2 or 3: gradients of 26 GB are all that cannot go to nvme */
    cr_assert_eq(rows[hl_plan_nearest(rows)].short_by_bytes, 6 * G);
}
