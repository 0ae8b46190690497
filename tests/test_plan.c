/*
 * The planner's arithmetic against figures published elsewhere: Rajbhandari et al. 2020 (ZeRO), figure
 * 1 and table 1; GPT-2's parameter counts as its model cards give them; Korthikanti et al. 2022.
 */
#include <errno.h>
#include <stddef.h>

#include "haul/plan.h"
#include "state_bytes.h"
#include "suite.h"
#include "working_set.h"

#define G UINT64_C(1000000000)

static struct haul_plan_opts plan_of(uint64_t params, uint32_t ranks)
{
    struct haul_plan_opts o;

    haul_plan_opts_init(&o);
    o.params = params;
    o.ranks = ranks;
    return o;
}

static const struct haul_plan_row *row_of(const struct haul_plan_opts *o, uint32_t stage,
                                          enum haul_offload offload)
{
    static struct haul_plan_row rows[HAUL_PLAN_ROWS];
    int rc = haul_plan_rows(o, rows);

    cr_assert_eq(rc, 0, "haul_plan_rows: %d %s", rc, haul_last_error());
    for (int i = 0; i < HAUL_PLAN_ROWS; i++)
        if (rows[i].stage == stage && rows[i].offload == offload)
            return &rows[i];
    cr_assert(0, "no row for stage %u offload %d", stage, (int)offload);
    return NULL;
}

Test(plan, device_bytes_without_offload_are_those_of_the_zero_paper)
{
    static const struct {
        uint64_t params, ranks, bytes[4];
    } cases[] = {
        {7500000000, 64, {120000000000, 31406250000, 16640625000, 1875000000}},
        {70000000000, 16, {1120000000000, 332500000000, 201250000000, 70000000000}},
        {13000000000, 4, {208000000000, 91000000000, 71500000000, 52000000000}},
    };

    for (unsigned c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        struct haul_plan_opts o = plan_of(cases[c].params, (uint32_t)cases[c].ranks);
        for (uint32_t stage = 0; stage < 4; stage++) {
            const struct haul_plan_row *row = row_of(&o, stage, HAUL_OFFLOAD_NONE);
            cr_assert_eq(row->device_bytes_per_rank, cases[c].bytes[stage], "case %u stage %u", c,
                         stage);
            cr_assert_eq(row->host_bytes_per_node, 0);
            cr_assert_eq(row->nvme_bytes_per_node, 0);
        }
    }
}

Test(plan, traffic_is_two_psi_and_in_stage_3_three)
{
    struct haul_plan_opts o = plan_of(7500000000, 64);

    for (uint32_t stage = 0; stage < 4; stage++)
        for (int off = 0; off < 3; off++) {
            const struct haul_plan_row *row = row_of(&o, stage, (enum haul_offload)off);
            cr_assert_float_eq(row->comm_elems_per_rank, stage == 3 ? 22.5e9 : 15e9, 0);
            cr_assert_float_eq(row->comm_ratio, stage == 3 ? 1.5 : 1.0, 0);
        }
}

Test(plan, stage_0_does_not_depend_on_ranks)
{
    static const uint32_t ranks[] = {1, 2, 16, 1000};

    for (unsigned i = 0; i < 4; i++) {
        struct haul_plan_opts o = plan_of(70 * G, ranks[i]);
        cr_assert_eq(row_of(&o, 0, HAUL_OFFLOAD_NONE)->device_bytes_per_rank, 1120 * G);
    }
}

Test(plan, rows_come_in_order_of_stage_then_offload)
{
    struct haul_plan_opts o = plan_of(1000, 1);
    struct haul_plan_row rows[HAUL_PLAN_ROWS];

    cr_assert_eq(haul_plan_rows(&o, rows), 0);
    for (uint32_t i = 0; i < HAUL_PLAN_ROWS; i++) {
        cr_assert_eq(rows[i].stage, i / 3);
        cr_assert_eq((uint32_t)rows[i].offload, i % 3);
    }
}

Test(plan, offloaded_bytes_are_those_of_the_offload_table)
{
    /* multiples of Ψ/N per rank, N = 4 on one node: device, host */
    static const uint64_t want[4][3][2] = {
        {{64, 0}, {8, 56}, {0, 64}},
        {{28, 0}, {8, 20}, {0, 28}},
        {{22, 0}, {8, 14}, {0, 22}},
        {{16, 0}, {2, 14}, {0, 16}},
    };
    struct haul_plan_opts o = plan_of(4 * G, 4);

    for (uint32_t stage = 0; stage < 4; stage++)
        for (int off = 0; off < 3; off++) {
            const struct haul_plan_row *row = row_of(&o, stage, (enum haul_offload)off);
            cr_assert_eq(row->device_bytes_per_rank, want[stage][off][0] * G, "stage %u offload %d",
                         stage, off);
            cr_assert_eq(row->host_bytes_per_node, 4 * want[stage][off][1] * G,
                         "stage %u offload %d", stage, off);
        }
}

Test(plan, a_13b_model_fits_four_24_gb_cards_only_with_stage_3_offload)
{
    struct haul_plan_opts o = plan_of(13 * G, 4);
    const struct haul_plan_row *row;

    o.device_mem_per_rank = 24 * G;
    for (uint32_t stage = 0; stage < 4; stage++) {
        static const uint64_t short_by[4] = {184000000000, 67000000000, 47500000000, 28000000000};
        row = row_of(&o, stage, HAUL_OFFLOAD_NONE);
        cr_assert_eq(row->fits, 0);
        cr_assert_eq(row->short_by_bytes, short_by[stage]);
    }
    row = row_of(&o, 2, HAUL_OFFLOAD_OPTIMIZER);
    cr_assert_eq(row->device_bytes_per_rank, 26 * G);
    cr_assert_eq(row->fits, 0);
    cr_assert_eq(row->short_by_bytes, 2 * G);
    row = row_of(&o, 3, HAUL_OFFLOAD_OPTIMIZER);
    cr_assert_eq(row->device_bytes_per_rank, 6500000000);
    cr_assert_eq(row->fits, 1);
    cr_assert_eq(row->short_by_bytes, 0);
}

Test(plan, seventy_billion_on_eight_ranks_keep_a_17_5_gb_shard_on_the_device)
{
    struct haul_plan_opts o = plan_of(70 * G, 8);

    cr_assert_eq(row_of(&o, 3, HAUL_OFFLOAD_OPTIMIZER)->device_bytes_per_rank, 17500000000);
}

Test(plan, the_fullest_rank_counts_when_parameters_do_not_divide)
{
    struct haul_plan_opts o = plan_of(10, 3);

    cr_assert_eq(row_of(&o, 3, HAUL_OFFLOAD_NONE)->device_bytes_per_rank, 64); /* 16 * 4 */
    cr_assert_eq(row_of(&o, 1, HAUL_OFFLOAD_NONE)->device_bytes_per_rank, 88); /* 40 + 12 * 4 */
    o.ranks = 1000;
    cr_assert_eq(row_of(&o, 3, HAUL_OFFLOAD_NONE)->device_bytes_per_rank, 16);
}

Test(plan, ranks_per_node_defaults_to_eight_at_most)
{
    struct haul_plan_opts o = plan_of(16 * G, 16);

    cr_assert_eq(row_of(&o, 3, HAUL_OFFLOAD_OPTIMIZER)->host_bytes_per_node, 8 * 14 * G);
    o.ranks_per_node = 2;
    cr_assert_eq(row_of(&o, 3, HAUL_OFFLOAD_OPTIMIZER)->host_bytes_per_node, 2 * 14 * G);
}

Test(plan, split_records_are_ten_bytes_and_a_host_copy_of_upper_halves)
{
    struct haul_plan_opts o = plan_of(4 * G, 4);

    o.master = HAUL_MASTER_SPLIT;
    cr_assert_eq(row_of(&o, 3, HAUL_OFFLOAD_NONE)->device_bytes_per_rank, 14 * G);
    cr_assert_eq(row_of(&o, 3, HAUL_OFFLOAD_OPTIMIZER)->host_bytes_per_node, 4 * 14 * G);
    cr_assert_eq(row_of(&o, 3, HAUL_OFFLOAD_ALL)->host_bytes_per_node, 4 * 14 * G);
    /* with no room at all the 10-byte records go, gradients and upper halves stay */
    o.host_mem_per_node = 0;
    const struct haul_plan_row *row = row_of(&o, 3, HAUL_OFFLOAD_OPTIMIZER);
    cr_assert_eq(row->nvme_bytes_per_node, 4 * 10 * G);
    cr_assert_eq(row->host_bytes_per_node, 4 * 4 * G);
    cr_assert_eq(row->short_by_bytes, 4 * 4 * G);
}

Test(plan, pure_fp32_training_takes_sixteen_bytes)
{
    struct haul_plan_opts o = plan_of(G, 1);

    o.dtype = HAUL_FP32;
    cr_assert_eq(row_of(&o, 0, HAUL_OFFLOAD_NONE)->device_bytes_per_rank, 16 * G);
    cr_assert_eq(row_of(&o, 3, HAUL_OFFLOAD_ALL)->host_bytes_per_node, 16 * G);
    /* apart, the host needs the parameter too */
    const struct haul_plan_row *row = row_of(&o, 3, HAUL_OFFLOAD_OPTIMIZER);
    cr_assert_eq(row->device_bytes_per_rank, 4 * G);
    cr_assert_eq(row->host_bytes_per_node, 16 * G);
}

Test(plan, fp32_gradients_of_16_bit_parameters_cost_two_bytes_more)
{
    struct haul_plan_opts o = plan_of(G, 1);

    o.grad_dtype = HAUL_FP32;
    cr_assert_eq(row_of(&o, 3, HAUL_OFFLOAD_NONE)->device_bytes_per_rank, 18 * G);
}

Test(plan, accumulators_take_the_place_of_gradients)
{
    struct haul_plan_opts o = plan_of(4 * G, 4);

    o.passes = 3;
    cr_assert_eq(row_of(&o, 3, HAUL_OFFLOAD_NONE)->device_bytes_per_rank, 18 * G);
    cr_assert_eq(row_of(&o, 3, HAUL_OFFLOAD_OPTIMIZER)->host_bytes_per_node, 4 * 16 * G);
}

Test(plan, records_go_to_nvme_when_the_host_is_full_and_gradients_never_do)
{
    struct haul_plan_opts o = plan_of(13 * G, 1);
    const struct haul_plan_row *row;

    o.host_mem_per_node = 100 * G;
    row = row_of(&o, 3, HAUL_OFFLOAD_OPTIMIZER);
    cr_assert_eq(row->host_bytes_per_node, 100 * G);
    cr_assert_eq(row->nvme_bytes_per_node, 82 * G);
    cr_assert_eq(row->fits, 1);

    o.host_mem_per_node = 10 * G;
    row = row_of(&o, 3, HAUL_OFFLOAD_OPTIMIZER);
    cr_assert_eq(row->nvme_bytes_per_node, 156 * G);
    cr_assert_eq(row->host_bytes_per_node, 26 * G);
    cr_assert_eq(row->short_by_tier_bytes[HAUL_TIER_HOST], 16 * G);
    cr_assert_eq(row->fits, 0);
}

Test(plan, parameters_follow_the_records_to_nvme_only_with_offload_all)
{
    struct haul_plan_opts o = plan_of(13 * G, 1);
    const struct haul_plan_row *row;

    o.host_mem_per_node = 30 * G;
    row = row_of(&o, 3, HAUL_OFFLOAD_ALL);
    cr_assert_eq(row->nvme_bytes_per_node, 178 * G); /* 208 - 30 */
    cr_assert_eq(row->host_bytes_per_node, 30 * G);
    cr_assert_eq(row->fits, 1);
}

Test(plan, shortfalls_of_all_tiers_add_up)
{
    struct haul_plan_opts o = plan_of(13 * G, 1);
    const struct haul_plan_row *row;

    o.device_mem_per_rank = 20 * G;
    o.host_mem_per_node = 20 * G;
    o.nvme_mem_per_node = 100 * G;
    row = row_of(&o, 3, HAUL_OFFLOAD_OPTIMIZER);
    cr_assert_eq(row->short_by_tier_bytes[HAUL_TIER_DEVICE], 6 * G);
    cr_assert_eq(row->short_by_tier_bytes[HAUL_TIER_HOST], 6 * G);
    cr_assert_eq(row->short_by_tier_bytes[HAUL_TIER_NVME], 56 * G);
    cr_assert_eq(row->short_by_bytes, 68 * G);
    cr_assert_eq(row->fits, 0);
}

Test(plan, a_budget_met_to_the_byte_fits_and_one_byte_less_does_not)
{
    struct haul_plan_opts o = plan_of(1000, 1);

    o.device_mem_per_rank = 16000;
    cr_assert_eq(row_of(&o, 3, HAUL_OFFLOAD_NONE)->fits, 1);
    o.device_mem_per_rank = 15999;
    cr_assert_eq(row_of(&o, 3, HAUL_OFFLOAD_NONE)->fits, 0);
    cr_assert_eq(row_of(&o, 3, HAUL_OFFLOAD_NONE)->short_by_bytes, 1);
}

static void refused(const struct haul_plan_opts *o, int want, const char *word)
{
    struct haul_plan_row rows[HAUL_PLAN_ROWS];
    unsigned char before[sizeof rows];

    memset(rows, 0x5a, sizeof rows);
    memcpy(before, rows, sizeof rows);
    cr_assert_eq(haul_plan_rows(o, rows), want, "%s", word);
    cr_assert_not_null(strstr(haul_last_error(), word), "\"%s\" lacks %s", haul_last_error(), word);
    cr_assert_eq(memcmp(before, rows, sizeof rows), 0, "rows were touched");
}

Test(plan, nonsense_is_refused_by_name_and_writes_nothing)
{
    struct haul_plan_opts o = plan_of(1000, 0);

    refused(&o, -EINVAL, "ranks");
    o = plan_of(0, 1);
    refused(&o, -EINVAL, "params");
    o = plan_of(1000, 4);
    o.ranks_per_node = 5;
    refused(&o, -EINVAL, "ranks_per_node");
    o = plan_of(1000, 4);
    o.dtype = HAUL_DTYPE_NONE;
    refused(&o, -EINVAL, "dtype");
    o = plan_of(1000, 4);
    o.dtype = HAUL_FP16;
    o.master = HAUL_MASTER_SPLIT;
    refused(&o, -EINVAL, "split");
    o = plan_of(1000, 4);
    o.struct_size = 0;
    refused(&o, HAUL_E_ABI, "struct_size");
    refused(NULL, -EINVAL, "opts");
    o = plan_of(1000, 1);
    o.shape = (struct haul_shape){
        .layers = 2, .hidden = 10, .heads = 3, .vocab = 5, .seq = 4, .batch = 1};
    refused(&o, -EINVAL, "heads");
    o.shape.heads = 0;
    refused(&o, -EINVAL, "heads");
}

Test(plan, products_past_63_bits_are_an_error_not_a_small_number)
{
    struct haul_plan_opts o = plan_of(UINT64_C(1) << 62, 1);

    refused(&o, -EOVERFLOW, "63 bits");
    o = plan_of(UINT64_C(1) << 58, 4000000000u);
    o.ranks_per_node = 4000000000u;
    refused(&o, -EOVERFLOW, "63 bits");
    o = plan_of(1000, 1);
    o.shape = (struct haul_shape){.layers = UINT64_C(1) << 40,
                                  .hidden = UINT64_C(1) << 30,
                                  .heads = 1,
                                  .vocab = 1,
                                  .seq = 1,
                                  .batch = 1};
    refused(&o, -EOVERFLOW, "63 bits");
    /* the largest that still fits */
    o = plan_of(INT64_MAX / 16, 1);
    cr_assert_eq(row_of(&o, 0, HAUL_OFFLOAD_NONE)->device_bytes_per_rank, INT64_MAX / 16 * 16);
}

Test(plan, gpt2_shapes_have_the_published_parameter_counts)
{
    static const struct {
        uint64_t layers, hidden, params;
    } gpt2[] = {
        {12, 768, 124439808}, {24, 1024, 354823168}, {36, 1280, 774030080}, {48, 1600, 1557611200}};

    for (unsigned i = 0; i < 4; i++) {
        struct haul_shape s = {.layers = gpt2[i].layers,
                               .hidden = gpt2[i].hidden,
                               .heads = gpt2[i].hidden / 64,
                               .vocab = 50257,
                               .seq = 1024,
                               .batch = 1};
        uint64_t params = 0;
        cr_assert_eq(haul_shape_params(&s, &params), 0);
        cr_assert_eq(params, gpt2[i].params);
    }
}

Test(plan, activations_are_those_of_korthikanti_et_al)
{
    /* Their 22B model: 5as/h is 320/3, so a layer is 2048 * 4 * 6144 * (34 + 320/3) bytes. */
    struct haul_shape s = {
        .layers = 48, .hidden = 6144, .heads = 64, .vocab = 51200, .seq = 2048, .batch = 4};
    const uint64_t sbh = UINT64_C(2048) * 4 * 6144;
    const uint64_t layer = (34 * 3 + 320) * sbh / 3;
    const uint64_t ends = sbh + 4 * sbh + UINT64_C(4) * 2048 * 4 * 51200;
    uint64_t full, recompute;

    cr_assert_eq(hl_shape_activations(&s, HAUL_BF16, 0, &full), 0);
    cr_assert_eq(hl_shape_activations(&s, HAUL_BF16, 1, &recompute), 0);
    cr_assert_eq(full, 48 * layer + ends);
    cr_assert_eq(recompute, 48 * 2 * sbh + layer + ends);
}

Test(plan, the_working_set_is_counted_in_the_verdict)
{
    struct haul_plan_opts o = plan_of(0, 4);
    const struct haul_plan_row *row;
    const uint64_t block = UINT64_C(12) * 5120 * 5120 + 13 * 5120;

    o.shape = (struct haul_shape){.layers = 40,
                                  .hidden = 5120,
                                  .heads = 40,
                                  .vocab = 50257,
                                  .seq = 2048,
                                  .batch = 1,
                                  .recompute = 1};
    row = row_of(&o, 3, HAUL_OFFLOAD_OPTIMIZER);
    cr_assert_eq(row->working_set.window_device_bytes, 2 * 2 * block);
    cr_assert_eq(row->working_set.gradient_window_device_bytes, (2 * 4 + 2) * block);
    cr_assert_eq(row->working_set.activations_device_bytes,
                 row->working_set.activations_recompute_device_bytes);
    cr_assert_eq(row->working_set.slots_host_bytes, 2 * 2 * block / 4);
    const uint64_t need = row->device_bytes_per_rank + row->working_set.window_device_bytes +
                          row->working_set.gradient_window_device_bytes +
                          row->working_set.activations_device_bytes;
    o.device_mem_per_rank = need;
    cr_assert_eq(row_of(&o, 3, HAUL_OFFLOAD_OPTIMIZER)->fits, 1);
    o.device_mem_per_rank = need - 1;
    cr_assert_eq(row_of(&o, 3, HAUL_OFFLOAD_OPTIMIZER)->short_by_bytes, 1);
    cr_assert_lt(need, 24 * G, "a 13B model must fit 24 GB cards this way");
    /* whole parameters on the device need no window */
    cr_assert_eq(row_of(&o, 2, HAUL_OFFLOAD_OPTIMIZER)->working_set.window_device_bytes, 0);
    /* nor does split need slots: it publishes from the host copy */
    o.master = HAUL_MASTER_SPLIT;
    cr_assert_eq(row_of(&o, 3, HAUL_OFFLOAD_OPTIMIZER)->working_set.slots_host_bytes, 0);
    o.passes = 2;
    cr_assert_eq(row_of(&o, 3, HAUL_OFFLOAD_OPTIMIZER)->working_set.slots_host_bytes,
                 3 * 2 * block / 4);
    o.grad_dtype = HAUL_FP32;
    cr_assert_eq(row_of(&o, 3, HAUL_OFFLOAD_ALL)->working_set.gradient_window_device_bytes,
                 2 * 4 * block);
    o.shape.recompute = 0;
    row = row_of(&o, 3, HAUL_OFFLOAD_OPTIMIZER);
    cr_assert_eq(row->working_set.activations_device_bytes,
                 row->working_set.activations_full_device_bytes);
}

Test(plan, the_ring_of_paged_records_takes_host_room_and_pages_more)
{
    struct haul_plan_opts o = plan_of(G, 1);
    const struct haul_plan_row *row;
    const uint64_t block = UINT64_C(12) * 1024 * 1024 + 13 * 1024;
    const uint64_t slots = (2 * 2 + 4 * 12) * block; /* two of parameters, four of records */

    o.shape = (struct haul_shape){
        .layers = 80, .hidden = 1024, .heads = 16, .vocab = 1000, .seq = 128, .batch = 1};
    o.host_mem_per_node = 8 * G;
    row = row_of(&o, 3, HAUL_OFFLOAD_OPTIMIZER);
    cr_assert_eq(row->working_set.slots_host_bytes, slots);
    cr_assert_eq(row->host_bytes_per_node, 8 * G - slots);
    cr_assert_eq(row->nvme_bytes_per_node, 6 * G + slots);
    cr_assert_eq(row->fits, 1);
}

Test(plan, tiers_hold_everything_exactly_once)
{
    static const uint64_t hosts[] = {0, 1, 999, 5000, 14000, 16000, 1000000};

    for (unsigned h = 0; h < sizeof hosts / sizeof hosts[0]; h++)
        for (uint32_t stage = 0; stage < 4; stage++)
            for (int off = 0; off < 3; off++) {
                struct haul_plan_opts o = plan_of(1000, 1);
                o.host_mem_per_node = hosts[h];
                const struct haul_plan_row *row = row_of(&o, stage, (enum haul_offload)off);
                cr_assert_eq(row->device_bytes_per_rank + row->host_bytes_per_node +
                                 row->nvme_bytes_per_node,
                             16000, "host %llu stage %u offload %d", (unsigned long long)hosts[h],
                             stage, off);
            }
}

Test(plan, struct_layouts_are_pinned)
{
    cr_assert_eq(sizeof(struct haul_shape), 56);
    cr_assert_eq(sizeof(struct haul_plan_opts), 120);
    cr_assert_eq(offsetof(struct haul_plan_opts, params), 8);
    cr_assert_eq(offsetof(struct haul_plan_opts, device_mem_per_rank), 32);
    cr_assert_eq(offsetof(struct haul_plan_opts, shape), 56);
    cr_assert_eq(offsetof(struct haul_plan_opts, passes), 116);
    cr_assert_eq(sizeof(struct haul_working_set), 48);
    cr_assert_eq(sizeof(struct haul_plan_row), 136);
    cr_assert_eq(offsetof(struct haul_plan_row, working_set), 48);
    cr_assert_eq(offsetof(struct haul_plan_row, short_by_tier_bytes), 112);
}

Test(state_bytes, units_add_up_to_the_model)
{
    /* what the engine sums over its units is what the planner says of their total */
    const struct hl_state_form form = {.stage = 3,
                                       .offload = HAUL_OFFLOAD_OPTIMIZER,
                                       .dtype = HAUL_BF16,
                                       .master = HAUL_MASTER_SPLIT,
                                       .grad_dtype = HAUL_BF16,
                                       .passes = 1};
    struct hl_state_bytes t[HAUL_NTIERS];
    uint64_t device = 0, host = 0, n;

    for (unsigned u = 1; u <= 10; u++) {
        cr_assert_eq(hl_state_bytes(&form, 100 * u, 100 * u, t), 0);
        cr_assert_eq(hl_state_sum(&t[HAUL_TIER_DEVICE], &n), 0);
        device += n;
        cr_assert_eq(hl_state_sum(&t[HAUL_TIER_HOST], &n), 0);
        host += n;
        cr_assert_eq(hl_state_sum(&t[HAUL_TIER_NVME], &n), 0);
        cr_assert_eq(n, 0);
    }
    struct haul_plan_opts o = plan_of(5500, 1);
    o.master = HAUL_MASTER_SPLIT;
    const struct haul_plan_row *row = row_of(&o, 3, HAUL_OFFLOAD_OPTIMIZER);
    cr_assert_eq(device, row->device_bytes_per_rank);
    cr_assert_eq(host, row->host_bytes_per_node);
}

Test(state_bytes, frozen_parameters_have_neither_gradient_nor_record)
{
    const struct hl_state_form form = {.stage = 3,
                                       .offload = HAUL_OFFLOAD_ALL,
                                       .dtype = HAUL_BF16,
                                       .master = HAUL_MASTER_SPLIT,
                                       .frozen = 1};
    struct hl_state_bytes t[HAUL_NTIERS];
    uint64_t n;

    cr_assert_eq(hl_state_bytes(&form, 1000, 500, t), 0);
    cr_assert_eq(t[HAUL_TIER_HOST].params, 1000);
    cr_assert_eq(hl_state_sum(&t[HAUL_TIER_HOST], &n), 0);
    cr_assert_eq(n, 1000);
    cr_assert_eq(hl_state_record_bytes(&form), 0);
}

Test(state_bytes, an_fp32_parameter_beside_its_record_is_its_own_master)
{
    struct hl_state_form form = {.stage = 3,
                                 .offload = HAUL_OFFLOAD_ALL,
                                 .dtype = HAUL_FP32,
                                 .master = HAUL_MASTER_SPLIT,
                                 .grad_dtype = HAUL_BF16,
                                 .passes = 1};
    struct hl_state_bytes t[HAUL_NTIERS];

    cr_assert_eq(hl_state_bytes(&form, 10, 10, t), 0);
    cr_assert_eq(t[HAUL_TIER_HOST].params, 40);
    cr_assert_eq(t[HAUL_TIER_HOST].grads, 40);
    cr_assert_eq(t[HAUL_TIER_HOST].records, 80);
    cr_assert_eq(t[HAUL_TIER_HOST].hi, 0);
    form.offload = HAUL_OFFLOAD_OPTIMIZER;
    cr_assert_eq(hl_state_record_bytes(&form), 12);
}

Test(state_bytes, bad_forms_are_refused)
{
    struct hl_state_form form = {.stage = 4, .dtype = HAUL_BF16, .grad_dtype = HAUL_BF16};
    struct hl_state_bytes t[HAUL_NTIERS];

    cr_assert_eq(hl_state_bytes(&form, 1, 1, t), -EINVAL);
    form.stage = 0;
    form.grad_dtype = HAUL_DTYPE_NONE;
    cr_assert_eq(hl_state_bytes(&form, 1, 1, t), -EINVAL);
    form.grad_dtype = HAUL_BF16;
    cr_assert_eq(hl_state_bytes(&form, UINT64_MAX, 1, t), -EOVERFLOW);
}
