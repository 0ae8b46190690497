/* The engine against a plain twin, and against itself in every placement. */
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <string.h>

#include "device_ops.h"
#include "engine_state.h"
#include "suite.h"
#include "toy_model.h"

static void check(int rc)
{
    cr_assert_eq(rc, 0, "%s: %s", haul_strerror(rc), haul_last_error());
}

/* Train nsteps through the engine and on the twin; every master must be the same. */
static uint64_t train_and_compare(const struct toy_config *cfg, unsigned nunits, unsigned nsteps)
{
    static struct toy t;
    struct haul_report r;

    check(toy_open(&t, cfg, nunits, 97));
    for (unsigned s = 0; s < nsteps; s++) {
        r.struct_size = sizeof r;
        check(toy_step(&t, &r));
        toy_twin_step(&t);
        cr_assert_eq(r.skipped, 0);
        cr_assert_eq(r.order_misses, 0, "%llu acquires out of order",
                     (unsigned long long)r.order_misses);
        cr_assert_float_eq(r.grad_norm, t.twin_norm, 1e-5 * t.twin_norm, "norm %.9g, twin %.9g",
                           r.grad_norm, t.twin_norm);
    }
    int64_t bad = toy_compare(&t);
    cr_assert_eq(bad, 0, "%lld masters differ from the twin's", (long long)bad);
    uint64_t digest = toy_digest(&t);
    cr_assert_neq(digest, 0);
    toy_close(&t);
    return digest;
}

Test(engine, offload_none_equals_the_twin)
{
    train_and_compare(&(struct toy_config){.offload = HAUL_OFFLOAD_NONE}, 6, 5);
}

Test(engine, offload_optimizer_equals_the_twin)
{
    train_and_compare(&(struct toy_config){.offload = HAUL_OFFLOAD_OPTIMIZER}, 6, 5);
}

Test(engine, offload_all_equals_the_twin)
{
    train_and_compare(&(struct toy_config){.offload = HAUL_OFFLOAD_ALL}, 6, 5);
}

Test(engine, gradients_travel_in_fp32_when_asked)
{
    uint64_t d[3];

    for (int o = 0; o < 3; o++)
        d[o] = train_and_compare(&(struct toy_config){.offload = o, .grad_dtype = HAUL_FP32}, 5, 3);
    cr_assert_eq(d[0], d[1]);
    cr_assert_eq(d[0], d[2]);
}

Test(engine, the_trainers_buffer_may_be_16_bit)
{
    uint64_t d[3];

    for (int o = 0; o < 3; o++)
        d[o] =
            train_and_compare(&(struct toy_config){.offload = o, .buffer_dtype = HAUL_BF16}, 5, 3);
    cr_assert_eq(d[0], d[1]);
    cr_assert_eq(d[0], d[2]);
}

Test(engine, fp32_and_fp16_models_train)
{
    for (int o = 0; o < 3; o++) {
        train_and_compare(&(struct toy_config){.offload = o, .all_fp32 = 1}, 5, 3);
        train_and_compare(
            &(struct toy_config){.offload = o, .dtype = HAUL_FP16, .grad_dtype = HAUL_FP16}, 5, 3);
    }
}

Test(engine, several_passes_are_summed_in_call_order)
{
    uint64_t d[3];

    for (int o = 0; o < 3; o++)
        d[o] = train_and_compare(&(struct toy_config){.offload = o, .passes = 3}, 5, 4);
    cr_assert_eq(d[0], d[1]);
    cr_assert_eq(d[0], d[2]);
}

Test(engine, a_tied_unit_has_one_gradient_from_two_visits)
{
    for (int o = 0; o < 3; o++)
        train_and_compare(&(struct toy_config){.offload = o, .tied = 1}, 4, 4);
}

/* R1: one digest, whatever the placement, form, window, threads, overlap, with queued work delayed at
 * random to bring out missing waits. */
Test(engine, every_placement_has_one_digest)
{
    static const struct toy_config row[] = {
        {.offload = HAUL_OFFLOAD_NONE},
        {.offload = HAUL_OFFLOAD_OPTIMIZER},
        {.offload = HAUL_OFFLOAD_ALL},
        {.offload = HAUL_OFFLOAD_NONE, .no_overlap = 1},
        {.offload = HAUL_OFFLOAD_OPTIMIZER, .no_overlap = 1, .slots = 3},
        {.offload = HAUL_OFFLOAD_ALL, .no_overlap = 1},
        {.offload = HAUL_OFFLOAD_ALL, .window = 1},
        {.offload = HAUL_OFFLOAD_ALL, .window = 4, .nthreads = 2},
        {.offload = HAUL_OFFLOAD_ALL, .window = 3, .max_held = 2, .nthreads = 3},
        {.offload = HAUL_OFFLOAD_OPTIMIZER, .nthreads = 1, .slots = 5},
        {.offload = HAUL_OFFLOAD_NONE, .master = HAUL_MASTER_SPLIT},
        {.offload = HAUL_OFFLOAD_OPTIMIZER, .master = HAUL_MASTER_SPLIT},
        {.offload = HAUL_OFFLOAD_ALL, .master = HAUL_MASTER_SPLIT},
    };
    uint64_t first = 0;

    for (unsigned i = 0; i < sizeof row / sizeof *row; i++)
        for (unsigned seed = 0; seed < 2; seed++) {
            struct toy_config c = row[i];
            c.jitter_seed = seed ? 1000 + i : 0;
            c.tied = 1;
            c.frozen = 1;
            uint64_t d = train_and_compare(&c, 7, 6);
            first = first ? first : d;
            cr_assert_eq(d, first, "row %u: digest %016llx, not %016llx", i, (unsigned long long)d,
                         (unsigned long long)first);
        }
}

static void run(struct toy *t, const struct toy_config *c, unsigned nsteps)
{
    check(toy_open(t, c, 5, 50));
    for (unsigned i = 0; i < nsteps; i++)
        check(toy_step(t, NULL));
}

Test(engine, clipping_is_exact_in_every_placement)
{
    static struct toy t;
    uint64_t d[3][2], loose = 0;

    for (int o = 0; o < 3; o++)
        for (int lazy = 0; lazy < 2; lazy++) {
            struct toy_config c = {.offload = o, .no_overlap = lazy, .clip = 0.05};
            run(&t, &c, 4);
            d[o][lazy] = toy_digest(&t);
            cr_assert_eq(d[o][lazy], d[0][0], "offload %d", o);
            toy_close(&t);
        }
    run(&t, &(struct toy_config){.clip = 1e9}, 4);
    loose = toy_digest(&t);
    toy_close(&t);
    cr_assert_neq(loose, d[0][0], "clipping changed nothing");
}

Test(engine, report_names_the_clip_factor)
{
    static struct toy t;
    struct haul_report r = {.struct_size = sizeof r};

    check(toy_open(&t, &(struct toy_config){.clip = 0.25}, 3, 20));
    check(toy_step(&t, &r));
    toy_twin_step(&t);
    cr_assert_float_eq(r.clip, 0.25 / t.twin_norm, 1e-6, "clip %g", r.clip);
    toy_close(&t);
}

Test(engine, an_infinite_gradient_skips_the_step_and_changes_nothing)
{
    static struct toy t;
    struct haul_report r = {.struct_size = sizeof r};

    for (int o = 0; o < 3; o++)
        for (unsigned passes = 1; passes < 3; passes++) {
            check(toy_open(&t, &(struct toy_config){.offload = o, .passes = passes}, 5, 30));
            check(toy_step(&t, &r));
            toy_twin_step(&t);
            uint64_t before = toy_digest(&t);
            t.plant_inf = t.step + 1;
            check(toy_step(&t, &r));
            toy_twin_step(&t);
            cr_assert_eq(r.skipped, 1);
            cr_assert_eq(r.clip, 0.0);
            cr_assert(!isfinite(r.grad_norm));
            cr_assert_eq(toy_digest(&t), before);
            check(toy_step(&t, &r)); /* the step number did not advance: the twin agrees */
            toy_twin_step(&t);
            cr_assert_eq(r.skipped, 0);
            cr_assert_eq(toy_compare(&t), 0);
            toy_close(&t);
        }
}

Test(engine, a_unit_without_gradient_is_untouched_and_keeps_its_step)
{
    static struct toy t;

    for (int o = 0; o < 3; o++) {
        check(toy_open(&t, &(struct toy_config){.offload = o}, 5, 30));
        for (unsigned s = 0; s < 6; s++) {
            t.skip_unit = s % 2 ? 3 : 0;
            check(toy_step(&t, NULL));
            toy_twin_step(&t);
        }
        cr_assert_eq(toy_compare(&t), 0);
        toy_close(&t);
    }
}

Test(engine, every_trained_tensor_changes_and_no_frozen_one)
{
    static struct toy t;
    static float before[TOY_MAX_UNITS][TOY_MAX_TENSORS], after;

    check(toy_open(&t, &(struct toy_config){.frozen = 1}, 6, 10));
    for (int pass = 0; pass < 2; pass++) {
        for (unsigned u = 0; u < t.nunits; u++)
            for (unsigned a = 0; a < t.units[u].ntensors; a++) {
                if (t.units[u].elems[a] == 0)
                    continue;
                check(haul_tensor_read(t.units[u].unit, a, 0, 1, &after));
                if (pass)
                    cr_assert_eq(after == before[u][a], a == 1, "unit %u tensor %u", u, a);
                before[u][a] = after;
            }
        check(toy_step(&t, NULL));
    }
    toy_close(&t);
}

Test(engine, a_value_written_is_the_value_read_and_trained)
{
    static struct toy t;
    float in[3] = {1.5f, -0.25f, 3.0000002f}, out[3];

    for (int o = 0; o < 3; o++)
        for (int split = 0; split < 2; split++) {
            check(toy_open(&t, &(struct toy_config){.offload = o, .master = split}, 3, 10));
            check(toy_step(&t, NULL));
            check(haul_tensor_write(t.units[1].unit, 0, 4, 3, in));
            check(haul_tensor_read(t.units[1].unit, 0, 4, 3, out));
            cr_assert_eq(memcmp(in, out, sizeof in), 0);
            toy_twin_step(&t);
            memcpy(t.units[1].twin[0].p + 4, in, sizeof in);
            check(toy_step(&t, NULL));
            toy_twin_step(&t);
            cr_assert_eq(toy_compare(&t), 0);
            toy_close(&t);
        }
}

Test(engine, peaks_equal_the_plan_to_the_byte)
{
    static struct toy t;

    for (int o = 0; o < 3; o++)
        for (unsigned passes = 1; passes < 3; passes++)
            for (int split = 0; split < 2; split++) {
                uint64_t planned, peak, sum[HAUL_NTIERS] = {0};
                struct haul_ledger_line line;
                struct toy_config c = {.offload = o, .passes = passes, .master = split, .tied = 1};
                run(&t, &c, 2);
                for (uint32_t i = 0; haul_engine_ledger(t.engine, i, &line) == 0; i++)
                    sum[line.tier] += line.bytes;
                for (int tier = 0; tier < HAUL_NTIERS; tier++) {
                    check(haul_engine_tier_bytes(t.engine, tier, &planned, &peak));
                    cr_assert_eq(planned, peak, "offload %d tier %d: planned %llu, measured %llu",
                                 o, tier, (unsigned long long)planned, (unsigned long long)peak);
                    cr_assert_eq(planned, sum[tier]);
                }
                toy_close(&t);
            }
}

/* DESIGN section 4 for one rank: what rests where, per parameter, BF16 with FP32 master. */
Test(engine, ledger_holds_the_bytes_per_parameter_of_the_design)
{
    static const struct {
        enum haul_offload offload;
        enum haul_tier tier;
        const char *purpose;
        unsigned bytes_per_param;
    } want[] = {
        {HAUL_OFFLOAD_NONE, HAUL_TIER_DEVICE, "parameters", 2},
        {HAUL_OFFLOAD_NONE, HAUL_TIER_DEVICE, "gradients", 2},
        {HAUL_OFFLOAD_NONE, HAUL_TIER_DEVICE, "records", 12},
        {HAUL_OFFLOAD_OPTIMIZER, HAUL_TIER_DEVICE, "parameters", 2},
        {HAUL_OFFLOAD_OPTIMIZER, HAUL_TIER_HOST, "gradients", 2},
        {HAUL_OFFLOAD_OPTIMIZER, HAUL_TIER_HOST, "records", 12},
        {HAUL_OFFLOAD_ALL, HAUL_TIER_HOST, "parameters", 2},
        {HAUL_OFFLOAD_ALL, HAUL_TIER_HOST, "gradients", 2},
        {HAUL_OFFLOAD_ALL, HAUL_TIER_HOST, "records", 12},
    };
    struct haul_tensor tensor = {.name = "w", .ndims = 2, .shape = {100, 33}, .dtype = HAUL_BF16};
    struct haul_unit_desc d = {
        .struct_size = sizeof d, .name = "u", .tensors = &tensor, .ntensors = 1};
    struct haul_device *dev;
    check(haul_device_host_open(NULL, &dev));
    for (unsigned w = 0; w < sizeof want / sizeof *want; w++) {
        struct haul_engine_opts o;
        struct haul_engine *e;
        struct haul_unit *u;
        struct haul_ledger_line line;
        uint64_t found = 0;
        haul_engine_opts_init(&o);
        o.device = dev;
        o.offload = want[w].offload;
        check(haul_engine_open(&o, &e));
        check(haul_engine_add_unit(e, &d, &u));
        for (uint32_t i = 0; haul_engine_ledger(e, i, &line) == 0; i++)
            if (line.tier == want[w].tier && strcmp(line.purpose, want[w].purpose) == 0)
                found = line.bytes;
        cr_assert_eq(found, want[w].bytes_per_param * 3300ull, "row %u: %llu bytes", w,
                     (unsigned long long)found);
        haul_engine_close(e);
    }
    cr_assert_eq(haul_device_close(dev), 0);
}

Test(engine, a_budget_too_small_is_refused_with_the_ledger_before_reserving)
{
    static struct toy t;
    struct toy_config c = {.offload = HAUL_OFFLOAD_ALL, .host_mem = 10000};

    cr_assert_eq(toy_open(&t, &c, 5, 100), HAUL_E_PLAN);
    cr_assert_not_null(strstr(haul_last_error(), "records"), "%s", haul_last_error());
    cr_assert_not_null(strstr(haul_last_error(), "short by"), "%s", haul_last_error());
    c = (struct toy_config){.offload = HAUL_OFFLOAD_NONE, .device_mem = 10000};
    cr_assert_eq(toy_open(&t, &c, 5, 100), HAUL_E_PLAN);
    cr_assert_not_null(strstr(haul_last_error(), "device needs"), "%s", haul_last_error());
}

Test(engine, evaluation_passes_leave_everything_alone)
{
    static struct toy t;
    struct haul_view v;

    check(toy_open(&t, &(struct toy_config){.window = 3}, 6, 40));
    check(toy_step(&t, NULL));
    toy_twin_step(&t);
    for (int pass = 0; pass < 3; pass++) {
        check(haul_engine_pass(t.engine, HAUL_PASS_EVAL));
        for (unsigned u = 0; u < t.nunits; u++) {
            check(haul_unit_acquire(t.units[u].unit, t.stream, &v));
            cr_assert_eq(haul_unit_grad(t.units[u].unit, t.stream, &v), HAUL_E_STATE);
            check(haul_unit_release(t.units[u].unit, t.stream));
        }
    }
    check(haul_engine_pass(t.engine, HAUL_PASS_TRAIN));
    check(toy_step(&t, NULL));
    toy_twin_step(&t);
    cr_assert_eq(toy_compare(&t), 0);
    toy_close(&t);
}

Test(engine, an_order_that_was_not_declared_is_counted_and_right)
{
    static struct toy t;
    struct haul_report r = {.struct_size = sizeof r};
    struct haul_view v;

    check(toy_open(&t, &(struct toy_config){.window = 2}, 6, 40));
    for (int s = 0; s < 4; s++) {
        static const unsigned odd[] = {5, 1, 4, 0, 3, 3, 2};
        for (unsigned i = 0; i < 7; i++) {
            check(haul_unit_acquire(t.units[odd[i]].unit, t.stream, &v));
            check(haul_unit_release(t.units[odd[i]].unit, t.stream));
        }
        check(toy_step(&t, &r));
        toy_twin_step(&t);
        cr_assert_gt(r.order_misses, 0);
    }
    cr_assert_eq(toy_compare(&t), 0);
    toy_close(&t);
}

Test(engine, misuse_is_an_error_that_names_the_unit)
{
    static struct toy t;
    struct haul_view v;

    check(toy_open(&t, &(struct toy_config){.offload = HAUL_OFFLOAD_ALL}, 4, 10));
    struct haul_unit *a = t.units[0].unit, *b = t.units[1].unit;
    cr_assert_eq(haul_unit_release(a, t.stream), HAUL_E_STATE);
    cr_assert_eq(haul_unit_grad(a, t.stream, &v), HAUL_E_STATE);
    cr_assert_eq(haul_unit_reduce(a, t.stream), HAUL_E_STATE);
    cr_assert_not_null(strstr(haul_last_error(), "u0"), "%s", haul_last_error());
    check(haul_unit_acquire(a, t.stream, &v));
    check(haul_unit_acquire(a, t.stream, &v)); /* again: allowed */
    cr_assert_eq(haul_unit_acquire(b, t.stream, &v), HAUL_E_STATE);
    cr_assert_not_null(strstr(haul_last_error(), "max_held"), "%s", haul_last_error());
    cr_assert_eq(haul_engine_step(t.engine, &(struct haul_step){.lr = 1}, NULL), HAUL_E_STATE);
    check(haul_unit_grad(a, t.stream, &v));
    check(haul_unit_release(a, t.stream));
    check(haul_unit_release(a, t.stream));
    cr_assert_eq(haul_engine_step(t.engine, &(struct haul_step){.lr = 1}, NULL), HAUL_E_STATE);
    cr_assert_not_null(strstr(haul_last_error(), "reduced"), "%s", haul_last_error());
    check(haul_unit_reduce(a, t.stream));
    check(haul_unit_acquire(a, t.stream, &v));
    cr_assert_eq(haul_unit_grad(a, t.stream, &v), HAUL_E_STATE, "one reduce was declared");
    check(haul_unit_release(a, t.stream));
    cr_assert_eq(haul_engine_step(t.engine, &(struct haul_step){.lr = NAN}, NULL), -EINVAL);
    check(haul_engine_step(t.engine, &(struct haul_step){.lr = 1e-3}, NULL));
    toy_close(&t);
}

Test(engine, forty_units_with_a_small_window_train)
{
    train_and_compare(&(struct toy_config){.window = 2, .jitter_seed = 9}, 40, 3);
}

Test(engine, fewer_reduces_than_declared_are_summed_at_the_step)
{
    static struct toy t;
    uint64_t d[3];

    for (int o = 0; o < 3; o++) {
        check(toy_open(&t, &(struct toy_config){.offload = o, .passes = 2}, 4, 30));
        t.cfg.passes = 1; /* the trainer stops after one */
        for (int s = 0; s < 3; s++) {
            check(toy_step(&t, NULL));
            toy_twin_step(&t);
        }
        cr_assert_eq(toy_compare(&t), 0);
        d[o] = toy_digest(&t);
        cr_assert_eq(d[o], d[0]);
        toy_close(&t);
    }
}

/* The scale is a power of two: with FP32 gradients nothing rounds differently. */
Test(engine, a_loss_scale_changes_no_bit)
{
    uint64_t plain = train_and_compare(&(struct toy_config){.grad_dtype = HAUL_FP32}, 4, 4);
    struct toy_config c = {.grad_dtype = HAUL_FP32, .loss_scale = 1024, .loss_scale_window = 2};
    static struct toy t;

    check(toy_open(&t, &c, 4, 97));
    for (int s = 0; s < 4; s++)
        check(toy_step(&t, NULL));
    cr_assert_eq(haul_engine_loss_scale(t.engine), 4096.0, "doubled every second step");
    cr_assert_eq(toy_digest(&t), plain);
    toy_close(&t);
}

Test(engine, an_overflow_halves_the_loss_scale_down_to_one)
{
    static struct toy t;
    struct haul_report r = {.struct_size = sizeof r};

    check(toy_open(
        &t, &(struct toy_config){.dtype = HAUL_FP16, .grad_dtype = HAUL_FP16, .loss_scale = 4}, 4,
        20));
    static const double want[] = {2, 1, 1};
    for (int s = 0; s < 3; s++) {
        t.plant_inf = t.step + 1;
        check(toy_step(&t, &r));
        cr_assert_eq(r.skipped, 1);
        cr_assert_eq(haul_engine_loss_scale(t.engine), want[s]);
    }
    toy_close(&t);
    cr_assert_eq(toy_open(&t, &(struct toy_config){.loss_scale = 3}, 4, 20), -EINVAL);
}

/* FP16 gradients that only overflow because of the scale: the scaler finds one that fits. */
Test(engine, the_loss_scale_comes_down_until_fp16_gradients_fit)
{
    static struct toy t;
    struct haul_report r = {.struct_size = sizeof r};
    unsigned skipped = 0;

    check(toy_open(
        &t, &(struct toy_config){.dtype = HAUL_FP16, .grad_dtype = HAUL_FP16, .loss_scale = 0x1p20},
        4, 20));
    for (int s = 0; s < 12; s++) {
        check(toy_step(&t, &r));
        skipped += (unsigned)r.skipped;
    }
    cr_assert_gt(skipped, 0);
    cr_assert_eq(r.skipped, 0);
    cr_assert_eq(haul_engine_loss_scale(t.engine), ldexp(1.0, 20 - (int)skipped));
    toy_close(&t);
}

/* A trace holds what the report adds up. */
Test(engine, the_trace_has_each_update_and_every_byte_copied)
{
    static struct toy t;
    static struct haul_trace_event ev[4096];
    struct haul_report r = {.struct_size = sizeof r};
    uint32_t n, updates = 0;
    uint64_t dropped, h2d = 0;

    check(toy_open(&t, &(struct toy_config){.offload = HAUL_OFFLOAD_ALL, .trace_events = 4096}, 6,
                   40));
    cr_assert_eq(haul_engine_sync(t.engine), 0);
    check(haul_engine_trace(t.engine, ev, 4096, &n, &dropped)); /* what build and fill did */
    for (int s = 0; s < 3; s++)
        check(toy_step(&t, &r));
    cr_assert_neq(toy_digest(&t), 0);
    check(haul_engine_trace(t.engine, ev, 4096, &n, &dropped));
    cr_assert_eq(dropped, 0);
    for (uint32_t i = 0; i < n; i++) {
        cr_assert_leq(ev[i].begin_ns, ev[i].end_ns);
        if (ev[i].kind != HAUL_TRACE_SPAN)
            continue;
        if (ev[i].lane == HAUL_LANE_OPTIM) {
            cr_assert_eq((uint32_t)ev[i].unit, updates % 6, "updates run in forward order");
            updates++;
        }
        if (ev[i].lane == HAUL_LANE_H2D && ev[i].step == 2)
            h2d += ev[i].value;
    }
    cr_assert_eq(updates, 18);
    cr_assert_gt(h2d, 0);
    toy_close(&t);
}

#define NTHREADS 16
#define COUNTS   50000

static void *count_into_trace(void *engine)
{
    for (uint64_t i = 0; i < COUNTS; i++)
        hl_trace_counter(engine, HAUL_TRACE_QUEUE, i);
    return NULL;
}

Test(engine, a_trace_with_room_loses_nothing_of_many_threads)
{
    static struct toy t;
    static struct haul_trace_event ev[NTHREADS * COUNTS + 1000];
    pthread_t thread[NTHREADS];
    uint32_t n, counters = 0;
    uint64_t dropped;

    check(toy_open(&t, &(struct toy_config){.trace_events = NTHREADS * COUNTS + 1000}, 2, 4));
    check(haul_engine_sync(t.engine));
    check(haul_engine_trace(t.engine, ev, NTHREADS * COUNTS + 1000, &n, &dropped));
    for (int i = 0; i < NTHREADS; i++)
        cr_assert_eq(pthread_create(&thread[i], NULL, count_into_trace, t.engine), 0);
    for (int i = 0; i < NTHREADS; i++)
        cr_assert_eq(pthread_join(thread[i], NULL), 0);
    check(haul_engine_trace(t.engine, ev, NTHREADS * COUNTS + 1000, &n, &dropped));
    for (uint32_t i = 0; i < n; i++)
        counters += ev[i].kind == HAUL_TRACE_QUEUE;
    cr_assert_eq(dropped, 0, "%llu dropped", (unsigned long long)dropped);
    cr_assert_eq(counters, NTHREADS * COUNTS);
    toy_close(&t);
}

Test(engine, a_full_trace_drops_and_counts)
{
    static struct toy t;
    static struct haul_trace_event ev[64];
    uint32_t n;
    uint64_t dropped;

    check(toy_open(&t, &(struct toy_config){.trace_events = 8}, 6, 40));
    for (int s = 0; s < 2; s++)
        check(toy_step(&t, NULL));
    check(haul_engine_sync(t.engine));
    check(haul_engine_trace(t.engine, ev, 64, &n, &dropped));
    cr_assert_eq(n, 8);
    cr_assert_gt(dropped, 0);
    toy_close(&t);
    check(toy_open(&t, &(struct toy_config){0}, 2, 4));
    cr_assert_eq(haul_engine_trace(t.engine, ev, 64, &n, &dropped), HAUL_E_STATE);
    toy_close(&t);
}

static int far_node(struct haul_device *dev)
{
    (void)dev;
    return 99;
}

Test(engine, the_pool_is_placed_where_the_device_is)
{
    struct haul_tensor tensor = {.name = "w", .ndims = 1, .shape = {1000}, .dtype = HAUL_BF16};
    struct haul_unit_desc desc = {.struct_size = sizeof desc,
                                  .name = "u",
                                  .tensors = &tensor,
                                  .ntensors = 1,
                                  .grad_dtype = HAUL_BF16};
    struct haul_device_host_opts d;
    struct haul_engine_opts o;
    struct hl_device_ops ops;
    struct haul_engine *engine;
    struct haul_device *dev;
    struct haul_unit *unit;

    haul_device_host_opts_init(&d);
    check(haul_device_host_open(&d, &dev));
    ops = *dev->ops;
    ops.numa_node = far_node;
    dev->ops = &ops;
    haul_engine_opts_init(&o);
    o.device = dev;
    o.offload = HAUL_OFFLOAD_ALL;
    check(haul_engine_open(&o, &engine));
    check(haul_engine_add_unit(engine, &desc, &unit));
    cr_assert_eq(haul_engine_build(engine), -EINVAL); /* the node is asked for, and is not there */
    cr_assert_not_null(strstr(haul_last_error(), "NUMA node 99"), "%s", haul_last_error());
    haul_engine_close(engine);
    check(haul_device_close(dev));
}
