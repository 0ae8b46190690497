/*
 * The simulator reserves and pages what the engine does: both plan the same model under the same budgets, the
 * engine's ledger is the oracle. Padding, pages and the bounce buffer are what may differ.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "haul/device.h"
#include "haul/engine.h"
#include "sim.h"
#include "suite.h"

#define UNITS  12
#define PARAMS UINT64_C(192000000)
#define SLACK  (UINT64_C(6) << 20)

struct planned {
    uint64_t tier[HAUL_NTIERS], paged;
    int rc;
};

static uint64_t elems[HL_SIM_MAX_UNITS];
static struct hl_sim_visit visits[HL_SIM_MAX_UNITS];

static void add_units(struct haul_engine *e)
{
    for (unsigned i = 0; i < UNITS; i++) {
        struct haul_tensor w = {
            .name = "w", .ndims = 1, .shape = {PARAMS / UNITS}, .dtype = HAUL_BF16};
        struct haul_unit *unit;
        char name[8];
        snprintf(name, sizeof name, "u%u", i);
        struct haul_unit_desc d = {
            .struct_size = sizeof d, .name = name, .tensors = &w, .ntensors = 1};
        cr_assert_eq(haul_engine_add_unit(e, &d, &unit), 0, "%s", haul_last_error());
    }
}

static void read_ledger(struct haul_engine *e, struct planned *p)
{
    struct haul_ledger_line line;

    for (uint32_t i = 0; haul_engine_ledger(e, i, &line) == 0; i++) {
        p->tier[line.tier] += line.bytes;
        if (line.tier == HAUL_TIER_NVME && strcmp(line.purpose, "records") == 0)
            p->paged = line.bytes;
    }
}

static struct planned by_engine(const struct hl_sim_opts *o, uint32_t passes)
{
    struct planned p = {.tier = {0}};
    struct haul_device_host_opts dev_opts;
    struct haul_engine_opts opts;
    struct haul_device *dev;
    struct haul_engine *e;

    haul_device_host_opts_init(&dev_opts);
    cr_assert_eq(haul_device_host_open(&dev_opts, &dev), 0, "%s", haul_last_error());
    haul_engine_opts_init(&opts);
    opts.device = dev;
    opts.offload = o->offload;
    opts.master = o->master;
    opts.passes = passes;
    opts.slots = o->slots;
    opts.window = o->window;
    opts.host_mem_bytes = o->host_mem_bytes;
    opts.nvme_mem_bytes = UINT64_C(1) << 40;
    opts.plan_only = 1;
    cr_assert_eq(haul_engine_open(&opts, &e), 0, "%s", haul_last_error());
    add_units(e);
    read_ledger(e, &p);
    haul_engine_close(e);
    cr_assert_eq(haul_device_close(dev), 0);
    return p;
}

static struct planned by_sim(const struct hl_sim_opts *o)
{
    struct planned p = {.tier = {0}};
    struct hl_sim_result r;

    p.rc = hl_sim_run(o, &r);
    if (p.rc == 0) {
        memcpy(p.tier, r.tier_bytes, sizeof p.tier);
        p.paged = (uint64_t)(r.records_paged * (double)PARAMS *
                                 (o->master == HAUL_MASTER_SPLIT ? 10 : 12) +
                             0.5);
    }
    return p;
}

static struct hl_sim_opts model(enum haul_offload offload, enum haul_master master,
                                uint64_t host_mem)
{
    struct hl_sim_opts o;

    hl_sim_opts_init(&o);
    cr_assert_eq(hl_sim_model_equal(PARAMS, UNITS, elems, visits, &o.model), 0);
    o.rates = (struct hl_sim_rates){.flops_per_s = 1e12,
                                    .device_mem_bytes_per_s = 1e12,
                                    .h2d_bytes_per_s = 1e10,
                                    .d2h_bytes_per_s = 1e10,
                                    .mem_bytes_per_s = 1e11,
                                    .optim_bytes_per_s = 1e11,
                                    .drive_read_bytes_per_s = 1e9,
                                    .drive_write_bytes_per_s = 1e9,
                                    .drive_mixed_bytes_per_s = 1e9,
                                    .comm_bytes_per_s = 1e10,
                                    .net_bytes_per_s = 1e10,
                                    .mem_per_link_byte = 1,
                                    .mem_per_drive_byte = 1};
    o.tokens = 1000;
    o.offload = offload;
    o.master = master;
    o.host_mem_bytes = host_mem;
    return o;
}

static uint64_t apart(uint64_t a, uint64_t b)
{
    return a > b ? a - b : b - a;
}

static void compare(const struct hl_sim_opts *o, uint32_t passes)
{
    struct planned engine = by_engine(o, passes), sim = by_sim(o);
    bool fits = engine.tier[HAUL_TIER_HOST] <= o->host_mem_bytes;

    if (!fits && engine.tier[HAUL_TIER_HOST] - o->host_mem_bytes < SLACK)
        return; /* by what may differ */
    cr_assert_eq(sim.rc, fits ? 0 : HAUL_E_PLAN, "offload %d, host %llu: %s", (int)o->offload,
                 (unsigned long long)o->host_mem_bytes, haul_last_error());
    if (!fits)
        return;
    cr_assert_eq(sim.paged, engine.paged, "offload %d, master %d, host %llu: %llu and %llu paged",
                 (int)o->offload, (int)o->master, (unsigned long long)o->host_mem_bytes,
                 (unsigned long long)sim.paged, (unsigned long long)engine.paged);
    for (unsigned t = 0; t < HAUL_NTIERS; t++)
        cr_assert_leq(apart(sim.tier[t], engine.tier[t]), SLACK,
                      "offload %d, master %d, host %llu, tier %u: %llu, the engine %llu",
                      (int)o->offload, (int)o->master, (unsigned long long)o->host_mem_bytes, t,
                      (unsigned long long)sim.tier[t], (unsigned long long)engine.tier[t]);
}

Test(sim_place, tiers_and_paged_records_are_the_engines)
{
    for (unsigned offload = HAUL_OFFLOAD_NONE; offload <= HAUL_OFFLOAD_ALL; offload++)
        for (unsigned master = HAUL_MASTER_FP32; master <= HAUL_MASTER_SPLIT; master++)
            for (uint64_t mb = 600; mb <= 3600; mb += 333) {
                struct hl_sim_opts o = model((enum haul_offload)offload, (enum haul_master)master,
                                             mb * UINT64_C(1000000));
                compare(&o, 1);
            }
}

Test(sim_place, passes_and_slots_too)
{
    for (uint64_t mb = 1200; mb <= 3600; mb += 400)
        for (unsigned offload = HAUL_OFFLOAD_OPTIMIZER; offload <= HAUL_OFFLOAD_ALL; offload++) {
            struct hl_sim_opts o =
                model((enum haul_offload)offload, HAUL_MASTER_FP32, mb * UINT64_C(1000000));
            o.accum = 3;
            o.batch_order = 1;
            o.slots = 7;
            o.window = 3;
            compare(&o, 3);
        }
}
