/*
 * bench_step_predict.c: the simulator's word on a measured row.
 *
 * On the emulated device a copy over the link is a copy in host memory by a thread of this machine, and it is
 * no faster than such a thread. What copies and the drive take from the optimizer is measured. Compute is set, and
 * what a device does beside it (zeroing, narrowing) takes no time there.
 */
#include "bench_step.h"
#include "sim.h"

#define AT_ONCE 1e18 /* bytes per second of what takes no time */

/* Until a thread of the emulated device, or of the store, is awake: what a copy takes whose bytes take nothing
 * (haul bench step --params 1Mi --units 64 --placement host --no-compute, a unit's share). */
#define WAKE_S 50e-6

static double or_else(double rate, double otherwise)
{
    return rate > 0 ? rate : otherwise;
}

static double min_of(double a, double b)
{
    return a < b ? a : b;
}

/* Costs that came out as nothing: below what can be measured. */
#define NO_COST 1e-6

static struct hl_sim_rates rates_of(const struct hl_step_model_opts *o,
                                    const struct hl_step_row *row)
{
    const struct hl_step_rates *r = &row->rates;
    const double optim = or_else(r->optim_bytes_per_s, AT_ONCE);
    const double copy = or_else(r->copy_bytes_per_s, AT_ONCE);
    const double link = min_of(or_else(o->link_bytes_per_s, copy), copy);

    return (struct hl_sim_rates){.flops_per_s = 1,
                                 .device_mem_bytes_per_s =
                                     row->placement == HL_STEP_DEVICE ? optim : AT_ONCE,
                                 .h2d_bytes_per_s = link,
                                 .d2h_bytes_per_s = link,
                                 .mem_bytes_per_s = optim,
                                 .optim_bytes_per_s = optim,
                                 .drive_read_bytes_per_s = or_else(r->read_bytes_per_s, AT_ONCE),
                                 .drive_write_bytes_per_s = or_else(r->write_bytes_per_s, AT_ONCE),
                                 .drive_mixed_bytes_per_s = or_else(r->ring_bytes_per_s, AT_ONCE),
                                 .comm_bytes_per_s = AT_ONCE,
                                 .net_bytes_per_s = AT_ONCE,
                                 .link_latency_s = WAKE_S,
                                 .drive_latency_s = WAKE_S,
                                 .mem_per_link_byte = or_else(r->mem_per_copied_byte, NO_COST),
                                 .mem_per_drive_byte = or_else(r->mem_per_drive_byte, NO_COST),
                                 .norm_bytes_per_s = r->norm_bytes_per_s,
                                 .accumulate_bytes_per_s = r->accumulate_bytes_per_s,
                                 .optim_paged_bytes_per_s = r->paged_bytes_per_s,
                                 .optim_weight = r->optim_weight};
}

static void set_opts(const struct hl_step_model_opts *m, const struct hl_step_bench *b,
                     const struct hl_step_row *row, struct hl_sim_opts *o)
{
    o->rates = rates_of(m, row);
    o->offload = row->placement == HL_STEP_DEVICE ? HAUL_OFFLOAD_NONE : m->offload;
    o->master = m->master;
    o->overlap = row->overlap;
    o->forward_s = b->forward_s;
    o->backward_s = b->backward_s;
    if (m->slots)
        o->slots = m->slots;
    if (m->window)
        o->window = m->window;
    o->accum = m->passes ? m->passes : 1;
    o->batch_order = 1;
    o->slot_bytes = hl_step_slot_bytes(m, o->slots);
    o->place_exactly = hl_step_pages(row->placement);
    o->records_host_bytes = row->records_bytes[HAUL_TIER_HOST];
}

int hl_step_predict(const struct hl_step_model_opts *m, const struct hl_step_bench *b,
                    struct hl_step_row *row)
{
    static uint64_t elems[HL_SIM_MAX_UNITS];
    static struct hl_sim_visit visits[HL_SIM_MAX_UNITS];
    struct hl_sim_opts o;
    struct hl_sim_result r;
    int rc;

    hl_sim_opts_init(&o);
    set_opts(m, b, row, &o);
    rc = hl_sim_model_equal(m->params, m->units, elems, visits, &o.model);
    if (rc == 0)
        rc = hl_sim_run(&o, &r);
    if (rc < 0)
        return rc;
    row->predicted_s = r.step_s;
    row->predicted_h2d_s = r.lane[HAUL_LANE_H2D].exposed_s;
    row->predicted_d2h_s = r.lane[HAUL_LANE_D2H].exposed_s;
    row->predicted_optim_s = r.lane[HAUL_LANE_OPTIM].exposed_s;
    row->predicted_io_s =
        r.lane[HAUL_LANE_IO_READ].exposed_s + r.lane[HAUL_LANE_IO_WRITE].exposed_s;
    return 0;
}
