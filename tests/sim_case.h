/* sim_case.h: a model of equal units on a machine whose every lane but compute is far faster than it need be. */
#ifndef HL_SIM_CASE_H
#define HL_SIM_CASE_H

#include "sim.h"
#include "suite.h"

#define UNITS  8
#define PARAMS UINT64_C(800000000)

static uint64_t elems[HL_SIM_MAX_UNITS + 1];
static struct hl_sim_visit visits[HL_SIM_MAX_UNITS + 1];

/* Forward 0.8 s, backward 1.6 s; every other lane a thousand times faster than it need be. */
static struct hl_sim_opts fast(void)
{
    struct hl_sim_opts o;

    hl_sim_opts_init(&o);
    cr_assert_eq(hl_sim_model_equal(PARAMS, UNITS, elems, visits, &o.model), 0);
    o.rates = (struct hl_sim_rates){.flops_per_s = 1e12,
                                    .device_mem_bytes_per_s = 1e18,
                                    .h2d_bytes_per_s = 1e13,
                                    .d2h_bytes_per_s = 1e13,
                                    .mem_bytes_per_s = 1e18,
                                    .optim_bytes_per_s = 1e14,
                                    .drive_read_bytes_per_s = 1e14,
                                    .drive_write_bytes_per_s = 1e14,
                                    .drive_mixed_bytes_per_s = 1e14,
                                    .comm_bytes_per_s = 1e14,
                                    .net_bytes_per_s = 1e14,
                                    .mem_per_link_byte = 1,
                                    .mem_per_drive_byte = 1};
    o.tokens = 500; /* 2 P T / F = 0.8 s */
    o.recompute = 0;
    return o;
}

static struct hl_sim_result run(const struct hl_sim_opts *o)
{
    struct hl_sim_result r;
    int rc = hl_sim_run(o, &r);

    cr_assert_eq(rc, 0, "%s", haul_last_error());
    return r;
}

#endif
