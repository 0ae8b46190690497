/*
 * The simulator against steps worked by hand: a model of equal units and rates chosen so that one lane
 * decides. Seconds below are those of the formulas in the comments, not what the simulator printed.
 */
#include <errno.h>
#include <stdint.h>
#include <string.h>

#include "sim_case.h"

Test(sim, with_everything_on_the_device_a_step_is_its_compute)
{
    struct hl_sim_opts o = fast();

    o.offload = HAUL_OFFLOAD_NONE;
    struct hl_sim_result r = run(&o);
    cr_assert_float_eq(r.forward_s, 0.8, 1e-9);
    cr_assert_float_eq(r.backward_s, 1.6, 1e-9);
    cr_assert_float_eq(r.step_s, 2.4, 1e-4, "%g", r.step_s);
    cr_assert_eq(r.tier_bytes[HAUL_TIER_HOST], 0);
    cr_assert_eq(r.tier_bytes[HAUL_TIER_NVME], 0);
}

Test(sim, recomputation_makes_backward_three_times_forward)
{
    struct hl_sim_opts o = fast();

    o.offload = HAUL_OFFLOAD_NONE;
    o.recompute = 1;
    cr_assert_float_eq(run(&o).step_s, 3.2, 1e-4);
}

Test(sim, fast_lanes_hide_behind_compute)
{
    struct hl_sim_opts o = fast();
    struct hl_sim_result r = run(&o);

    cr_assert_float_eq(r.step_s, 2.4, 0.01, "%g", r.step_s);
    /* parameters come up twice but for what two frames still hold where the passes meet; gradients down */
    cr_assert_geq(r.lane[HAUL_LANE_H2D].bytes, 2 * 2.0 * PARAMS * (UNITS - 2) / UNITS);
    cr_assert_leq(r.lane[HAUL_LANE_H2D].bytes, 2 * 2.0 * PARAMS);
    cr_assert_float_eq(r.lane[HAUL_LANE_D2H].bytes, 2.0 * PARAMS, 1);
}

/* Two frames: while compute has one, the other, whose compute has ended, is filled. Only the first unit of
 * forward has nothing to hide behind. */
Test(sim, parameters_come_up_behind_compute_in_backward_too)
{
    struct hl_sim_opts o = fast();

    o.rates.h2d_bytes_per_s = 4e9; /* 0.2 GB a unit: 0.05 s, half of its forward */
    struct hl_sim_result r = run(&o);
    cr_assert_float_eq(r.lane[HAUL_LANE_H2D].exposed_s, 0.05, 0.005, "%g",
                       r.lane[HAUL_LANE_H2D].exposed_s);
    cr_assert_float_eq(r.step_s, 2.4 + 0.05, 0.01, "%g", r.step_s);
}

Test(sim, a_slow_link_decides_the_step)
{
    struct hl_sim_opts o = fast();

    /* 1.6 GB up in forward and, but for two units that are still there, in backward: 1.6 s and 1.2 s */
    o.rates.h2d_bytes_per_s = 1e9;
    o.rates.flops_per_s = 1e16;
    struct hl_sim_result r = run(&o);
    cr_assert_float_eq(r.step_s, 2.8, 0.02, "%g", r.step_s);
    cr_assert_float_eq(r.lane[HAUL_LANE_H2D].busy_s, 2.8, 0.02);
    cr_assert_float_eq(r.lane[HAUL_LANE_H2D].exposed_s, r.step_s, 0.05);
}

Test(sim, a_slow_way_down_decides_the_step)
{
    struct hl_sim_opts o = fast();

    o.rates.d2h_bytes_per_s = 0.5e9; /* 1.6 GB of gradients: 3.2 s, after a forward of 0.8 s */
    struct hl_sim_result r = run(&o);
    /* the first gradient is there after one unit's backward, 0.2 s */
    cr_assert_float_eq(r.step_s, 0.8 + 0.2 + 3.2, 0.01, "%g", r.step_s);
    cr_assert_float_eq(r.lane[HAUL_LANE_D2H].busy_s, 3.2, 1e-6);
}

Test(sim, a_deferred_update_hides_behind_forward)
{
    struct hl_sim_opts o = fast();

    /* 28 B a parameter (gradient 2, state read and written 24, parameter 2): 0.4 s, half of forward; the
     * norm reads 2 B more */
    o.rates.optim_bytes_per_s = 28 * (double)PARAMS / 0.4;
    struct hl_sim_result deferred = run(&o);
    /* only the first unit's update, an eighth, has nothing to hide behind */
    cr_assert_float_eq(deferred.step_s, 2.4 + 0.05, 0.01, "%g", deferred.step_s);
    o.overlap = 0;
    struct hl_sim_result off = run(&o);
    cr_assert_float_eq(off.step_s, 2.4 + 0.4, 0.01, "%g", off.step_s);
    cr_assert_float_eq(off.lane[HAUL_LANE_OPTIM].exposed_s, 0.4, 0.01);
}

Test(sim, a_slow_optimizer_takes_the_place_of_forward)
{
    struct hl_sim_opts o = fast();

    /* max(forward, optimizer) + backward, and the last unit's forward, 0.1 s, which must wait for its update */
    o.rates.optim_bytes_per_s = 28 * (double)PARAMS / 2.0;
    struct hl_sim_result r = run(&o);
    cr_assert_float_eq(r.step_s, 2.0 + 0.1 + 1.6, 0.03, "%g", r.step_s);
    cr_assert_gt(r.lane[HAUL_LANE_OPTIM].exposed_s, 1.0);
}

Test(sim, a_slow_drive_takes_the_place_of_forward)
{
    struct hl_sim_opts o = fast();

    /* all records paged, 12 B: 9.6 GB read and written, at 4 GB/s both together: 4.8 s. What the slots hold is
     * read before and written after: an eighth of it at most. */
    o.place_exactly = 1;
    o.rates.drive_read_bytes_per_s = o.rates.drive_write_bytes_per_s = 4e9;
    o.rates.drive_mixed_bytes_per_s = 4e9;
    struct hl_sim_result r = run(&o);
    cr_assert_float_eq(r.records_paged, 1, 0);
    cr_assert_float_eq(r.read_bytes, 12.0 * PARAMS, 12.0 * PARAMS / 50, "%g", r.read_bytes);
    cr_assert_float_eq(r.written_bytes, r.read_bytes, 1);
    cr_assert_geq(r.step_s, 4.8 * 0.97 + 1.6);
    cr_assert_leq(r.step_s, 4.8 * 1.06 + 1.6 + 0.1);
    cr_assert_float_eq(r.written_bytes_per_day, r.written_bytes / r.step_s * 86400, 1);
    cr_assert_eq(r.most_slots, 4);
}

Test(sim, what_stays_in_host_memory_does_not_move)
{
    struct hl_sim_opts o = fast();

    o.place_exactly = 1;
    o.records_host_bytes = 12 * PARAMS / 2;
    struct hl_sim_result r = run(&o);
    cr_assert_float_eq(r.records_paged, 0.5, 1e-9);
    cr_assert_float_eq(r.read_bytes, 6.0 * PARAMS, 6.0 * PARAMS / 50);
}

Test(sim, a_budget_pages_and_a_smaller_one_refuses)
{
    struct hl_sim_opts o = fast();
    struct hl_sim_result r;

    o.host_mem_bytes = UINT64_C(8000000000); /* of 16 B a parameter, 12.8 GB */
    r = run(&o);
    cr_assert_gt(r.records_paged, 0.3);
    cr_assert_leq(r.tier_bytes[HAUL_TIER_HOST], o.host_mem_bytes);
    o.nvme_mem_bytes = 0;
    cr_assert_eq(hl_sim_run(&o, &r), HAUL_E_PLAN);
    cr_assert_not_null(strstr(haul_last_error(), "host"), "%s", haul_last_error());
}

Test(sim, ranks_gather_all_but_their_own_part)
{
    struct hl_sim_opts o = fast();

    o.ranks = o.ranks_per_node = 4;
    o.tokens *= 4;
    o.offload = HAUL_OFFLOAD_OPTIMIZER;
    struct hl_sim_result r = run(&o);
    /* ZeRO, stage 3: parameters twice, gradients once, (N - 1) / N of each; less what two frames keep */
    cr_assert_leq(r.lane[HAUL_LANE_COMM].bytes, 3 * 2.0 * PARAMS * 3 / 4 + 1);
    cr_assert_geq(r.lane[HAUL_LANE_COMM].bytes, 2.7 * 2.0 * PARAMS * 3 / 4);
    o.stage = 2;
    r = run(&o);
    cr_assert_float_eq(r.lane[HAUL_LANE_COMM].bytes, 2 * 2.0 * PARAMS * 3 / 4, 100);
    cr_assert_float_eq(r.lane[HAUL_LANE_H2D].bytes, 2.0 * PARAMS / 4, 100);
}

Test(sim, slow_collectives_decide_the_step)
{
    struct hl_sim_opts o = fast();

    o.ranks = o.ranks_per_node = 4;
    o.stage = 2;
    o.offload = HAUL_OFFLOAD_OPTIMIZER;
    o.rates.flops_per_s = 1e16;
    o.rates.comm_bytes_per_s = 1e9; /* 2.4 GB */
    struct hl_sim_result r = run(&o);
    cr_assert_float_eq(r.step_s, 2.4, 0.02, "%g", r.step_s);
}

Test(sim, weights_move_twice_a_pass_in_order_batch)
{
    struct hl_sim_opts o = fast();

    o.accum = 3;
    double layer = run(&o).lane[HAUL_LANE_H2D].bytes;
    o.batch_order = 1;
    struct hl_sim_result r = run(&o);
    cr_assert_geq(r.lane[HAUL_LANE_H2D].bytes, 2.6 * layer);
    cr_assert_float_eq(r.lane[HAUL_LANE_D2H].bytes, 3 * 2.0 * PARAMS, 1);
    cr_assert_float_eq(r.forward_s, 0.8, 1e-9, "the same tokens");
}

Test(sim, a_stash_goes_down_in_forward_and_comes_back_in_backward)
{
    struct hl_sim_opts o = fast();

    for (unsigned i = 0; i < UNITS; i++)
        visits[i].stash_bytes = 1000;
    double without = run(&o).lane[HAUL_LANE_D2H].bytes;
    o.stash = 1;
    struct hl_sim_result r = run(&o);
    cr_assert_float_eq(r.lane[HAUL_LANE_D2H].bytes - without, 1000.0 * UNITS * o.tokens, 1);
    cr_assert_eq(r.most_stashed, UNITS);
    cr_assert_float_eq(r.written_bytes, 0, 0);
    o.stash_host_bytes = 1; /* three entries at least: the other five go on to nvme */
    r = run(&o);
    cr_assert_gt(r.written_bytes, 0);
    cr_assert_float_eq(r.written_bytes, r.read_bytes, 1);
}

/* All that a rate can be, in one array. */
static double *rate_at(struct hl_sim_rates *r, unsigned i)
{
    double *const all[] = {&r->flops_per_s,
                           &r->device_mem_bytes_per_s,
                           &r->h2d_bytes_per_s,
                           &r->d2h_bytes_per_s,
                           &r->mem_bytes_per_s,
                           &r->optim_bytes_per_s,
                           &r->drive_read_bytes_per_s,
                           &r->drive_write_bytes_per_s,
                           &r->drive_mixed_bytes_per_s,
                           &r->comm_bytes_per_s,
                           &r->net_bytes_per_s};

    return i < sizeof all / sizeof *all ? all[i] : NULL;
}

/* Lanes that weigh about alike, so that every rate matters. */
static struct hl_sim_opts balanced(uint32_t ranks)
{
    struct hl_sim_opts o = fast();

    o.ranks = ranks;
    o.ranks_per_node = ranks > 1 ? ranks / 2 : 1;
    o.tokens *= ranks;
    o.rates.device_mem_bytes_per_s = 1e11;
    o.rates.h2d_bytes_per_s = o.rates.d2h_bytes_per_s = 4e9;
    o.rates.mem_bytes_per_s = 60e9;
    o.rates.optim_bytes_per_s = 40e9;
    o.rates.drive_read_bytes_per_s = o.rates.drive_write_bytes_per_s = 4.5e9;
    o.rates.drive_mixed_bytes_per_s = 9e9; /* directions that do not slow each other */
    o.rates.comm_bytes_per_s = 8e9;
    o.rates.net_bytes_per_s = 6e9;
    o.place_exactly = 1;
    o.records_host_bytes = 12 * PARAMS / ranks / 2;
    return o;
}

/* Where directions do slow each other, an update that is ready sooner can have its write slow the read that all
 * wait for: there a faster optimizer may cost some percent. */
Test(sim, a_faster_lane_never_makes_a_step_slower)
{
    for (uint32_t ranks = 1; ranks <= 4; ranks += 3)
        for (unsigned i = 0; i < 11; i++) {
            struct hl_sim_opts o = balanced(ranks);
            double before = run(&o).step_s;
            for (unsigned k = 0; k < 6; k++) {
                *rate_at(&o.rates, i) *= 1.5;
                double now = run(&o).step_s;
                cr_assert_leq(now, before * 1.001, "%g after %g: ranks %u, rate %u, x 1.5^%u", now,
                              before, ranks, i, k + 1);
                before = now;
            }
        }
}

Test(sim, equal_input_gives_equal_output)
{
    struct hl_sim_opts o = balanced(4);
    struct hl_sim_event a[4096], b[4096];
    struct hl_sim_result x, y;

    memset(a, 0, sizeof a);
    memset(b, 0, sizeof b);
    o.max_events = 4096;
    o.events = a;
    x = run(&o);
    o.events = b;
    y = run(&o);
    cr_assert_eq(x.step_s, y.step_s);
    cr_assert_eq(x.nevents, y.nevents);
    cr_assert_gt(x.nevents, 4 * UNITS);
    for (uint32_t i = 0; i < x.nevents; i++) {
        cr_assert_eq(a[i].begin_s, b[i].begin_s);
        cr_assert_eq(a[i].end_s, b[i].end_s);
        cr_assert_leq(a[i].end_s, x.step_s * (1 + 1e-9));
    }
}

Test(sim, what_compute_does_and_waits_for_is_the_step)
{
    struct hl_sim_opts o = balanced(4);
    struct hl_sim_result r = run(&o);
    double sum = r.lane[HAUL_LANE_COMPUTE].busy_s;

    for (unsigned i = 0; i < HAUL_NLANES; i++)
        sum += r.lane[i].exposed_s;
    cr_assert_float_eq(sum, r.step_s, 1e-9 * r.step_s);
}

Test(sim, every_stage_offload_and_order_comes_to_an_end)
{
    for (unsigned i = 0; i < 4 * 3 * 2 * 2 * 3 * 2; i++) {
        struct hl_sim_opts o = balanced(i / 2 % 2 ? 4 : 1);
        o.batch_order = i % 2;
        o.accum = 2;
        o.stage = i / 4 % 4;
        o.offload = (enum haul_offload)(i / 16 % 3);
        o.overlap = (int)(i / 48 % 2);
        o.master = i / 96 % 2 ? HAUL_MASTER_SPLIT : HAUL_MASTER_FP32;
        o.place_exactly = i / 192 % 2;
        o.host_mem_bytes = i / 192 % 3 == 2 ? 9 * PARAMS : HAUL_UNLIMITED;
        struct hl_sim_result r;
        int rc = hl_sim_run(&o, &r);
        cr_assert(rc == 0 || rc == HAUL_E_PLAN, "case %u: %s", i, haul_last_error());
        if (rc == 0)
            cr_assert_geq(r.step_s, (r.forward_s + r.backward_s) * (1 - 1e-9));
    }
}

Test(sim, wrong_numbers_are_named)
{
    struct hl_sim_opts o = fast();
    struct hl_sim_result r;

    o.rates.optim_bytes_per_s = 0;
    cr_assert_eq(hl_sim_run(&o, &r), -EINVAL);
    cr_assert_not_null(strstr(haul_last_error(), "optim_bytes_per_s"), "%s", haul_last_error());
    o = fast();
    o.stage = 4;
    cr_assert_eq(hl_sim_run(&o, &r), -EINVAL);
    cr_assert_eq(hl_sim_model_equal(3, 4, elems, visits, &o.model), -EINVAL);
}

Test(sim, named_shapes_have_their_published_sizes)
{
    /* Llama 2 7B, as its authors' files hold it: 6738415616 parameters */
    const struct hl_sim_shape s = {32, 4096, 32000, 4096, 202383360, 0};
    struct hl_sim_model m;
    uint64_t sum = 0;

    cr_assert_eq(hl_sim_model_decoder(&s, elems, visits, &m), 0);
    for (uint32_t i = 0; i < m.nunits; i++)
        sum += m.elems[i];
    cr_assert_eq(sum, UINT64_C(6738415616));
}
