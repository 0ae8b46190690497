/* How lanes of the simulator share what they share: steps worked by hand. */
#include <stdint.h>

#include "sim_case.h"

/* All records paged and nothing to hide behind: 9.6 GB each way at 6 GB/s both together, 3.2 s, whatever each
 * direction reaches alone; what four slots hold, an eighth of it at most, moves outside of that. */
Test(sim_rates, a_drive_reaches_its_mixed_rate_in_both_directions)
{
    const double alone[][2] = {{4e9, 8e9}, {8e9, 4e9}, {6e9, 6e9}, {3e9, 3e9}, {3e9, 9e9}};

    for (unsigned i = 0; i < sizeof alone / sizeof *alone; i++) {
        struct hl_sim_opts o = fast();
        o.place_exactly = 1;
        o.rates.flops_per_s = 1e16;
        o.rates.drive_read_bytes_per_s = alone[i][0];
        o.rates.drive_write_bytes_per_s = alone[i][1];
        o.rates.drive_mixed_bytes_per_s = 6e9;
        struct hl_sim_result r = run(&o);
        cr_assert_geq(r.step_s, 3.2 * 0.97, "%u: %g", i, r.step_s);
        cr_assert_leq(r.step_s, 3.2 * 1.06, "%u: %g", i, r.step_s);
    }
}

/* An update of all takes 2 s, of a unit 0.25 s; a unit's way up takes 0.25 s. */
static struct hl_sim_opts slow_updates(void)
{
    struct hl_sim_opts o = fast();

    o.offload = HAUL_OFFLOAD_OPTIMIZER;
    o.rates.optim_bytes_per_s = o.rates.mem_bytes_per_s = 28 * (double)PARAMS / 2.0;
    o.rates.norm_bytes_per_s = 1e14;
    o.rates.h2d_bytes_per_s = 0.8e9;
    return o;
}

Test(sim_rates, copies_that_cost_memory_slow_the_updates_beside_them)
{
    struct hl_sim_opts o = slow_updates();

    o.rates.mem_per_link_byte = 1e-6;
    /* updates, the last unit's way up, its forward, and backward */
    cr_assert_float_eq(run(&o).step_s, 2.0 + 0.25 + 0.1 + 1.6, 0.01);
    /* 0.8 GB/s cost half of the memory: an update gets half done beside its predecessor's way up; and the last
     * gradient's way down, of which nothing is hidden, takes 1.4e9 of 11.2e9 */
    o.rates.mem_per_link_byte = 7;
    struct hl_sim_result r = run(&o);
    cr_assert_float_eq(r.step_s, 0.25 + 7 * 0.375 + 0.25 + 0.1 + 1.6 + 0.125, 0.01, "%g", r.step_s);
}

Test(sim_rates, the_optimizer_s_due_of_what_is_short_is_its_weight)
{
    struct hl_sim_opts o = slow_updates();

    o.rates.mem_per_link_byte = 7;
    o.rates.h2d_bytes_per_s = 1e13; /* as much as there is */
    /* a half each: 1.4e9 of 11.2e9 in 0.25 s, the last alone in 0.125 s */
    cr_assert_float_eq(run(&o).lane[HAUL_LANE_H2D].busy_s, 7 * 0.25 + 0.125, 0.01);
    /* a quarter of it: copies are never done, until memory has moved 8 * (2.8e9 + 1.4e9) in 3 s */
    o.rates.optim_weight = 3;
    cr_assert_float_eq(run(&o).lane[HAUL_LANE_H2D].busy_s, 3.0 - 0.25, 0.01);
}

Test(sim_rates, a_slow_norm_of_arriving_gradients_decides_the_step)
{
    struct hl_sim_opts o = fast();

    o.rates.norm_bytes_per_s = 0.5e9; /* 1.6 GB: 3.2 s, after forward and one unit's backward */
    cr_assert_float_eq(run(&o).step_s, 0.8 + 0.2 + 3.2, 0.01);
    o = fast();
    o.accum = 2;
    o.batch_order = 1;
    o.rates.accumulate_bytes_per_s = 20e9; /* 6 B first, then 10 B a parameter: 0.24 and 0.4 s */
    struct hl_sim_result r = run(&o);
    cr_assert_float_eq(r.lane[HAUL_LANE_OPTIM].busy_s, 0.64, 0.01, "%g",
                       r.lane[HAUL_LANE_OPTIM].busy_s);
}

Test(sim_rates, records_from_the_drive_are_updated_at_a_rate_of_their_own)
{
    struct hl_sim_opts o = fast();

    o.rates.norm_bytes_per_s = 1e14;
    o.rates.optim_bytes_per_s = 28 * (double)PARAMS / 1.0;
    o.rates.optim_paged_bytes_per_s = 28 * (double)PARAMS / 0.5;
    o.place_exactly = 1;
    o.records_host_bytes = 12 * PARAMS / 2; /* four of eight units: 0.5 s, and the others 0.25 s */
    struct hl_sim_result r = run(&o);
    cr_assert_float_eq(r.records_paged, 0.5, 1e-9);
    cr_assert_float_eq(r.lane[HAUL_LANE_OPTIM].busy_s, 0.75, 0.01, "%g",
                       r.lane[HAUL_LANE_OPTIM].busy_s);
}
