/* State that rests on nvme: the same bits, the promised bytes, and errors that end a run cleanly. */
#include <errno.h>
#include <math.h>
#include <unistd.h>

#include "engine_state.h"
#include "suite.h"
#include "toy_model.h"

/* Eight units of about 0.7 MB of records each. */
#define UNITS 8
#define SCALE 1500

static char dir[64];

static const char *scratch_dir(void)
{
    snprintf(dir, sizeof dir, "./paging.XXXXXX");
    cr_assert_not_null(mkdtemp(dir));
    return dir;
}

static void remove_dir(void)
{
    cr_assert_eq(rmdir(dir), 0, "%s is not empty: a scratch store leaves nothing", dir);
}

static void check(int rc)
{
    cr_assert_eq(rc, 0, "%s: %s", haul_strerror(rc), haul_last_error());
}

/* The least host budget, and what the records and parameters would add to it. */
static uint64_t host_floor(struct toy_config c, uint64_t *records, uint64_t *params)
{
    uint64_t sum[HAUL_NTIERS], of[HAUL_NTIERS];

    c.host_mem = 1;
    check(toy_ledger(&c, UNITS, SCALE, sum, "parameters", of));
    *params = of[HAUL_TIER_NVME];
    uint64_t least = sum[HAUL_TIER_HOST];
    check(toy_ledger(&c, UNITS, SCALE, sum, "records", of));
    *records = of[HAUL_TIER_NVME];
    return least + 2 * 4096;
}

static uint64_t train(const struct toy_config *c, unsigned nsteps, uint64_t rest[HAUL_NTIERS])
{
    static struct toy t;
    struct haul_ledger_line line;

    check(toy_open(&t, c, UNITS, SCALE));
    memset(rest, 0, HAUL_NTIERS * sizeof *rest);
    for (uint32_t i = 0; haul_engine_ledger(t.engine, i, &line) == 0; i++)
        if (strcmp(line.purpose, "records") == 0)
            rest[line.tier] += line.bytes;
    for (unsigned s = 0; s < nsteps; s++) {
        check(toy_step(&t, NULL));
        toy_twin_step(&t);
    }
    cr_assert_eq(toy_compare(&t), 0, "masters differ from the twin's");
    uint64_t digest = toy_digest(&t);
    for (int tier = 0; tier < HAUL_NTIERS; tier++) {
        uint64_t planned, peak;
        check(haul_engine_tier_bytes(t.engine, tier, &planned, &peak));
        cr_assert_eq(planned, peak, "tier %d: planned %llu, measured %llu", tier,
                     (unsigned long long)planned, (unsigned long long)peak);
    }
    toy_close(&t);
    return digest;
}

/* What the host holds when nothing is paged. */
static uint64_t host_all(struct toy_config c)
{
    uint64_t sum[HAUL_NTIERS], of[HAUL_NTIERS];

    c.nvme_dir = NULL;
    c.host_mem = 0;
    check(toy_ledger(&c, UNITS, SCALE, sum, "records", of));
    return sum[HAUL_TIER_HOST];
}

/* R1 over placements: budgets of the floor and 0, 10, 30, 60, 90 and 100% of the records. Holding
 * everything needs no slots, so what is not to hold everything gets at least a byte less than that. */
static void sweep(struct toy_config c)
{
    static const double share[] = {0, 0.1, 0.3, 0.6, 0.9, 1.0};
    uint64_t records, params, rest[HAUL_NTIERS], first;
    struct toy_config resident = c;

    resident.nvme_dir = NULL;
    first = train(&resident, 4, rest);
    c.nvme_dir = scratch_dir();
    c.slot_bytes = 300000;
    for (unsigned i = 0; i < sizeof share / sizeof *share; i++) {
        c.slots = 2 + i % 4;
        c.window = 1 + i % 4;
        c.jitter_seed = i;
        c.no_overlap = i == 4;
        c.io_method = i % 2 ? HAUL_IO_THREADS : HAUL_IO_AUTO;
        c.host_mem =
            host_floor(c, &records, &params) + params + (uint64_t)(share[i] * (double)records);
        if (share[i] < 1 && c.host_mem >= host_all(c))
            c.host_mem = host_all(c) - 1;
        cr_assert_eq(train(&c, 4, rest), first, "share %g", share[i]);
        cr_log_info("share %.1f: records host %llu nvme %llu", share[i],
                    (unsigned long long)rest[HAUL_TIER_HOST],
                    (unsigned long long)rest[HAUL_TIER_NVME]);
        cr_assert_eq(rest[HAUL_TIER_NVME] > 0, share[i] < 1, "share %g: %llu bytes paged", share[i],
                     (unsigned long long)rest[HAUL_TIER_NVME]);
        if (share[i] > 0.5)
            cr_assert_gt(rest[HAUL_TIER_HOST], 0, "share %g: nothing is resident", share[i]);
    }
    remove_dir();
}

Test(engine_paging, records_on_nvme_with_offload_optimizer_have_the_same_bits)
{
    sweep((struct toy_config){.offload = HAUL_OFFLOAD_OPTIMIZER, .tied = 1});
}

Test(engine_paging, records_on_nvme_with_offload_all_have_the_same_bits)
{
    sweep((struct toy_config){.offload = HAUL_OFFLOAD_ALL, .frozen = 1});
}

Test(engine_paging, records_on_nvme_with_a_split_master_have_the_same_bits)
{
    sweep((struct toy_config){.offload = HAUL_OFFLOAD_OPTIMIZER, .master = HAUL_MASTER_SPLIT});
    sweep(
        (struct toy_config){.offload = HAUL_OFFLOAD_ALL, .master = HAUL_MASTER_SPLIT, .passes = 2});
}

/* Budgets below the parameters' own size: they go to nvme too. */
Test(engine_paging, parameters_on_nvme_have_the_same_bits)
{
    for (int split = 0; split < 2; split++)
        for (int frozen = 0; frozen < 2; frozen++)
            for (unsigned i = 0; i < 3; i++) {
                struct toy_config c = {
                    .offload = HAUL_OFFLOAD_ALL, .master = split, .frozen = frozen, .tied = 1};
                uint64_t records, params, rest[HAUL_NTIERS], first = train(&c, 4, rest);
                uint64_t sum[HAUL_NTIERS], of[HAUL_NTIERS];
                c.nvme_dir = scratch_dir();
                c.slot_bytes = 300000;
                c.window = 1 + i;
                uint64_t least = host_floor(c, &records, &params);
                c.host_mem = 1;
                check(toy_ledger(&c, UNITS, SCALE, sum, "parameter slots", of));
                /* from the floor to where all parameters would come back, their slots gone */
                uint64_t range = params - of[HAUL_TIER_HOST];
                c.host_mem = least + (uint64_t)((double[]){0, 0.7, 0.95}[i] * (double)range);
                c.jitter_seed = 77 + i;
                check(toy_ledger(&c, UNITS, SCALE, sum, "parameters", of));
                cr_assert_gt(of[HAUL_TIER_NVME], 0);
                cr_assert_eq(of[HAUL_TIER_HOST] > 0, i > 0, "%u: %llu bytes in host", i,
                             (unsigned long long)of[HAUL_TIER_HOST]);
                cr_assert_eq(train(&c, 4, rest), first, "split %d frozen %d row %u", split, frozen,
                             i);
                remove_dir();
            }
}

Test(engine_paging, device_room_left_over_takes_whole_units_back)
{
    static const enum haul_offload offload[] = {HAUL_OFFLOAD_OPTIMIZER, HAUL_OFFLOAD_ALL};

    for (int o = 0; o < 2; o++) {
        struct toy_config c = {.offload = offload[o]};
        uint64_t sum[HAUL_NTIERS], of[HAUL_NTIERS], rest[HAUL_NTIERS], first = train(&c, 4, rest);
        cr_assert_eq(rest[HAUL_TIER_DEVICE], 0);
        check(toy_ledger(&c, UNITS, SCALE, sum, "records", of));
        c.device_mem = sum[HAUL_TIER_DEVICE] + of[HAUL_TIER_HOST] / 2;
        c.jitter_seed = 3;
        cr_assert_eq(train(&c, 4, rest), first);
        cr_assert_gt(rest[HAUL_TIER_DEVICE], 0);
        cr_assert_gt(rest[HAUL_TIER_HOST], 0);
        check(toy_ledger(&c, UNITS, SCALE, sum, "records", of));
        cr_assert_leq(sum[HAUL_TIER_DEVICE], c.device_mem);
    }
}

/* Sums over some steps: what the report says, and from the trace how long updates took, waits for the drive
 * and all. */
static void train_without_overlap(const struct toy_config *c,
                                  struct haul_lane_report sum[HAUL_NLANES], uint64_t *wall_ns,
                                  uint64_t *updates_ns)
{
    static struct haul_trace_event ev[1 << 15];
    static struct toy t;
    struct haul_report r = {.struct_size = sizeof r};
    uint64_t dropped;
    uint32_t n;

    check(toy_open(&t, c, UNITS, SCALE));
    check(haul_engine_trace(t.engine, ev, 1 << 15, &n, NULL));
    memset(sum, 0, HAUL_NLANES * sizeof *sum);
    *wall_ns = *updates_ns = 0;
    for (unsigned s = 0; s < 6; s++) {
        check(toy_step(&t, &r));
        *wall_ns += r.wall_ns;
        for (int lane = 0; lane < HAUL_NLANES; lane++) {
            sum[lane].busy_ns += r.lanes[lane].busy_ns;
            sum[lane].exposed_ns += r.lanes[lane].exposed_ns;
        }
    }
    check(haul_engine_trace(t.engine, ev, 1 << 15, &n, &dropped));
    cr_assert_eq(dropped, 0);
    for (uint32_t i = 0; i < n; i++)
        if (ev[i].kind == HAUL_TRACE_SPAN && ev[i].lane == HAUL_LANE_OPTIM)
            *updates_ns += ev[i].end_ns - ev[i].begin_ns;
    toy_close(&t);
}

Test(engine_paging, without_overlap_a_wait_for_the_drive_is_not_the_optimizers)
{
    struct toy_config c = {.offload = HAUL_OFFLOAD_OPTIMIZER,
                           .no_overlap = 1,
                           .slots = 2,
                           .slot_bytes = 300000,
                           .trace_events = 1 << 15};
    struct haul_lane_report sum[HAUL_NLANES];
    uint64_t records, params, wall_ns, updates_ns;

    train_without_overlap(&c, sum, &wall_ns, &updates_ns);
    cr_assert_gt(sum[HAUL_LANE_OPTIM].exposed_ns, 0);
    cr_assert_eq(sum[HAUL_LANE_IO_READ].exposed_ns + sum[HAUL_LANE_IO_WRITE].exposed_ns, 0);
    c.nvme_dir = scratch_dir();
    c.host_mem = host_floor(c, &records, &params);
    train_without_overlap(&c, sum, &wall_ns, &updates_ns);
    uint64_t io_ns = sum[HAUL_LANE_IO_READ].exposed_ns + sum[HAUL_LANE_IO_WRITE].exposed_ns;
    uint64_t waited_ns = updates_ns - sum[HAUL_LANE_OPTIM].busy_ns;
    cr_assert_gt(sum[HAUL_LANE_IO_READ].exposed_ns, 0);
    cr_assert_leq(io_ns, waited_ns + 1000000, "%llu ns exposed, optim waited %llu",
                  (unsigned long long)io_ns, (unsigned long long)waited_ns);
    cr_assert_leq(sum[HAUL_LANE_OPTIM].exposed_ns + io_ns, wall_ns);
    cr_log_info("exposed: read %llu write %llu optim %llu; busy %llu, updates %llu",
                (unsigned long long)sum[HAUL_LANE_IO_READ].exposed_ns,
                (unsigned long long)sum[HAUL_LANE_IO_WRITE].exposed_ns,
                (unsigned long long)sum[HAUL_LANE_OPTIM].exposed_ns,
                (unsigned long long)sum[HAUL_LANE_OPTIM].busy_ns, (unsigned long long)updates_ns);
    remove_dir();
}

static void assert_exposed(const struct haul_engine *e, uint64_t read, uint64_t write,
                           uint64_t optim)
{
    cr_assert_eq(e->exposed_ns[HAUL_LANE_IO_READ], read);
    cr_assert_eq(e->exposed_ns[HAUL_LANE_IO_WRITE], write);
    cr_assert_eq(e->exposed_ns[HAUL_LANE_OPTIM], optim);
}

/* Optim waited for a read from 100 to 250 and for a write from 300 to 340. */
Test(engine_paging, of_a_wait_for_updates_the_drive_has_what_optim_waited_for_it_in_just_that_time)
{
    static struct hl_io_wait ring[3];
    static struct haul_engine e = {.io_waits = ring, .io_waits_cap = 3};

    hl_io_wait_add(&e, false, 100, 200);
    hl_io_wait_add(&e, false, 200, 250); /* woken for something else */
    hl_io_wait_add(&e, true, 300, 340);
    cr_assert_eq(e.io_wait_ns, 190);
    hl_expose_updates(&e, 240, 320);
    assert_exposed(&e, 10, 20, 50);
    hl_expose_updates(&e, 20, 50); /* before all waits, between them, and behind them */
    hl_expose_updates(&e, 260, 290);
    hl_expose_updates(&e, 340, 370);
    hl_expose_updates(&e, 370, 360); /* compute went on first */
    assert_exposed(&e, 10, 20, 50 + 90);
    for (uint64_t at = 400; at < 700; at += 100) /* the ring has the newest three */
        hl_io_wait_add(&e, false, at, at + 10);
    hl_expose_updates(&e, 0, 1000);
    assert_exposed(&e, 10 + 30, 20, 140 + 970);
}

Test(engine_paging, a_skipped_step_leaves_the_records_on_nvme_alone)
{
    static struct toy t;
    struct toy_config c = {
        .offload = HAUL_OFFLOAD_OPTIMIZER, .nvme_dir = scratch_dir(), .slot_bytes = 300000};
    struct haul_report r = {.struct_size = sizeof r};
    uint64_t records, params;

    c.host_mem = host_floor(c, &records, &params);
    check(toy_open(&t, &c, UNITS, SCALE));
    check(toy_step(&t, &r));
    toy_twin_step(&t);
    cr_assert_neq(toy_digest(&t), 0); /* every write has arrived */
    uint64_t read_bytes = 0;
    for (int k = 0; k < 4; k++) {
        t.plant_inf = t.step + 1;
        check(toy_step(&t, &r));
        toy_twin_step(&t);
        cr_assert_eq(r.skipped, 1);
        if (k == 0) /* its report still covers the digest */
            continue;
        read_bytes += r.lanes[HAUL_LANE_IO_READ].bytes;
        cr_assert_eq(r.lanes[HAUL_LANE_IO_WRITE].bytes, 0, "a skipped step wrote %llu bytes",
                     (unsigned long long)r.lanes[HAUL_LANE_IO_WRITE].bytes);
    }
    /* Both slots are read ahead once at most, and what they hold stays valid. */
    cr_assert_leq(read_bytes, 2 * 400000, "%llu bytes read", (unsigned long long)read_bytes);
    check(toy_step(&t, NULL));
    toy_twin_step(&t);
    check(haul_engine_sync(t.engine));
    cr_assert_eq(toy_compare(&t), 0);
    toy_close(&t);
    remove_dir();
}

Test(engine_paging, units_without_gradient_keep_their_records_and_steps)
{
    static struct toy t;
    struct toy_config c = {
        .offload = HAUL_OFFLOAD_ALL, .nvme_dir = scratch_dir(), .slot_bytes = 300000};
    uint64_t records, params;

    c.host_mem = host_floor(c, &records, &params);
    check(toy_open(&t, &c, UNITS, SCALE));
    for (unsigned s = 0; s < 8; s++) {
        t.skip_unit = s % 3 ? 1 + s : 0;
        check(toy_step(&t, NULL));
        toy_twin_step(&t);
    }
    cr_assert_eq(toy_compare(&t), 0);
    toy_close(&t);
    remove_dir();
}

Test(engine_paging, a_budget_below_the_floor_is_refused_with_the_shortfall)
{
    static struct toy t;
    struct toy_config c = {.offload = HAUL_OFFLOAD_ALL, .nvme_dir = scratch_dir()};
    uint64_t records, params, least = host_floor(c, &records, &params);

    c.host_mem = least / 2;
    cr_assert_eq(toy_open(&t, &c, UNITS, SCALE), HAUL_E_PLAN);
    cr_assert_not_null(strstr(haul_last_error(), "host needs"), "%s", haul_last_error());
    c.host_mem = least;
    c.nvme_mem = 4096;
    cr_assert_eq(toy_open(&t, &c, UNITS, SCALE), HAUL_E_PLAN);
    cr_assert_not_null(strstr(haul_last_error(), "nvme needs"), "%s", haul_last_error());
    c.nvme_dir = "/nonexistent/dir";
    cr_assert_eq(toy_open(&t, &c, UNITS, SCALE), -ENOENT);
    cr_assert_not_null(strstr(haul_last_error(), "/nonexistent/dir"), "%s", haul_last_error());
    remove_dir();
}
