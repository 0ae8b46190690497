/* plan_sim.c: a plan's rows as steps of the simulator, and which of them to recommend. */
#include <math.h>
#include <stdio.h>

#include "plan_report.h"

#define UNITS_DEFAULT 32 /* without a shape, as haul sim's --params */

static uint64_t elems[HL_SIM_MAX_UNITS];
static struct hl_sim_visit visits[HL_SIM_MAX_UNITS];

/* Equal units, whose operations are those of the bounds: attention is left out in both. */
static int make_model(const struct haul_plan_opts *o, struct hl_sim_model *out)
{
    uint64_t n = o->shape.layers ? o->shape.layers : UNITS_DEFAULT;

    n = n < HL_SIM_MAX_UNITS ? n : HL_SIM_MAX_UNITS;
    n = n < o->params ? n : o->params;
    return hl_sim_model_equal(o->params, (uint32_t)n, elems, visits, out);
}

static void set_opts(const struct hl_plan_report *r, struct hl_sim_opts *o)
{
    const struct haul_plan_opts *p = &r->opts;

    o->rates = r->sim_rates;
    o->ranks = p->ranks;
    o->ranks_per_node = p->ranks_per_node;
    o->master = p->master;
    o->grad_bytes = p->grad_dtype == HAUL_FP32 ? 4 : 2;
    o->device_mem_bytes = p->device_mem_per_rank;
    o->host_mem_bytes = p->host_mem_per_node;
    o->nvme_mem_bytes = p->nvme_mem_per_node;
    o->trainer_device_bytes = r->rows[0].working_set.activations_device_bytes;
    o->tokens = r->tokens;
    o->accum = p->passes;
    o->batch_order = p->passes > 1;
    o->recompute = p->shape.recompute;
}

static double fastest(const struct hl_sim_choice *choice)
{
    double s = INFINITY;

    for (int i = 0; i < HAUL_PLAN_ROWS; i++)
        s = choice[i].rc == 0 ? fmin(s, choice[i].result.step_s) : s;
    return s;
}

static int choose(const struct hl_plan_report *r, struct hl_sim_opts *o, struct hl_plan_sim *out)
{
    static struct hl_sim_choice choice[HAUL_PLAN_ROWS];
    int rc = make_model(&r->opts, &o->model);

    for (int i = 0; rc == 0 && i < HAUL_PLAN_ROWS; i++) {
        choice[i].rc = HAUL_E_PLAN;
        if (r->rows[i].fits)
            rc = hl_sim_try(o, r->rows[i].stage, r->rows[i].offload, &choice[i]);
    }
    if (rc < 0)
        return rc;
    out->best = hl_sim_pick(choice, HAUL_PLAN_ROWS);
    if (out->best < 0) {
        snprintf(out->why_not, sizeof out->why_not,
                 "whole units and their buffers do not fit where bytes do");
        return 0;
    }
    out->result = choice[out->best].result;
    out->fastest_s = fastest(choice);
    o->stage = choice[out->best].stage;
    o->offload = choice[out->best].offload;
    return hl_sim_upgrade(o, out->result.step_s, &out->upgrade);
}

void hl_plan_simulate(const struct hl_plan_report *r, struct hl_plan_sim *out)
{
    struct hl_sim_opts o;

    *out = (struct hl_plan_sim){.best = -1};
    if (r->opts.dtype == HAUL_FP32) {
        snprintf(out->why_not, sizeof out->why_not, "the simulator has 16-bit parameters only");
        return;
    }
    hl_sim_opts_init(&o);
    set_opts(r, &o);
    if (choose(r, &o, out) < 0) {
        out->best = -1;
        snprintf(out->why_not, sizeof out->why_not, "%s", haul_last_error());
    }
}
