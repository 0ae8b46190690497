/*
 * bounds.c: lower bounds of a step (docs/plan.md has them in prose).
 *
 * P parameters, T tokens, N ranks, F operations per second and rank, r 1 when activations are recomputed:
 *     forward    2 P T / (N F)
 *     backward   (4 + 2 r) P T / (N F)
 *     h2d        offload optimizer: updated parameters, once; all: weights at rest, in forward and backward
 *     d2h        gradients
 *     optimizer  reads gradient and 12 B of state per parameter, writes 12 B: 26 P / B_mem in 16 bits
 *     memory     and what arrives and leaves beside it: 32 P, split 30 P
 *     nvme       records read and written once, parameters read twice and written once
 * A node's memory and drives serve all its ranks.
 */
#include <math.h>

#include "bounds.h"
#include "fail.h"
#include "plan_tiers.h"
#include "state_bytes.h"
#include "working_set.h"

void hl_rates_init(struct hl_rates *rates)
{
    /* 140e12: a little under half of the 312e12 that an A100 is rated for in BF16.
     * 25e9: PCIe 4.0 x16 (31.5e9 raw) as copies reach it.
     * 160e9: eight channels of DDR4-3200 (204.8e9 raw) as streaming kernels reach it.
     * 6e9: one PCIe 4.0 x4 drive. */
    *rates = (struct hl_rates){140e12, 25e9, 160e9, 6e9, 6e9};
}

const char *hl_bound_name(enum hl_bound bound)
{
    static const char *const names[HL_NBOUNDS] = {"compute", "optimizer", "nvme",
                                                  "h2d",     "d2h",       "host memory"};

    return names[bound];
}

static int rates_check(const struct hl_rates *r, double tokens)
{
    const double all[] = {r->flops_per_s,
                          r->link_bytes_per_s,
                          r->mem_bytes_per_s,
                          r->drive_read_bytes_per_s,
                          r->drive_write_bytes_per_s,
                          tokens};

    for (unsigned i = 0; i < sizeof all / sizeof all[0]; i++)
        if (!(all[i] > 0) || all[i] > 1e300)
            return hl_fail(-EINVAL, "a rate (or the number of tokens) is %g; each must be above 0",
                           all[i]);
    return 0;
}

static void choose_bound(struct hl_bounds *b)
{
    const double hidden[] = {b->forward_s, b->optim_s, b->nvme_s};
    const double whole[] = {b->h2d_s, b->d2h_s, b->mem_s};
    int first = 0;

    for (int i = 1; i < 3; i++)
        if (hidden[i] > hidden[first])
            first = i;
    b->by = (enum hl_bound)(HL_BOUND_COMPUTE + first);
    b->step_s = hidden[first] + b->backward_s;
    for (int i = 0; i < 3; i++)
        if (whole[i] > b->step_s) {
            b->step_s = whole[i];
            b->by = (enum hl_bound)(HL_BOUND_H2D + i);
        }
}

static void host_terms(const struct haul_plan_opts *o, const struct hl_plan_tiers *t,
                       const struct hl_rates *rates, struct hl_bounds *b)
{
    const double param = hl_plan_dtype_bytes(o->dtype), grad = hl_plan_grad_bytes(o);
    const double n = (double)t->updated_elems;
    /* split writes the parameter as the upper half of the master; FP32 has no other parameter */
    const double published = o->dtype != HAUL_FP32 && o->master == HAUL_MASTER_FP32 ? param : 0;

    b->optim_s = n * (grad + 24) / rates->mem_bytes_per_s;
    b->mem_s = n * (grad + 24 + published + grad + param) / rates->mem_bytes_per_s;
}

int hl_plan_bounds(const struct haul_plan_opts *opts, const struct haul_plan_row *row,
                   double tokens, const struct hl_rates *rates, struct hl_bounds *out)
{
    struct haul_plan_opts o;
    struct hl_plan_tiers t;
    struct hl_bounds b = {0};
    int rc = rates_check(rates, tokens);

    if (rc == 0)
        rc = hl_plan_resolve(opts, &o);
    if (rc == 0)
        rc = hl_plan_tiers(&o, row->stage, row->offload, &t);
    if (rc < 0)
        return rc;
    const double pass_s = (double)o.params * tokens / (o.ranks * rates->flops_per_s);
    const double own_params =
        (double)t.updated_elems / o.ranks_per_node * hl_plan_dtype_bytes(o.dtype);
    double up = 0;

    b.forward_s = 2 * pass_s;
    b.backward_s = (o.shape.recompute ? 6 : 4) * pass_s;
    if (row->offload == HAUL_OFFLOAD_OPTIMIZER)
        up = own_params;
    else if (row->offload == HAUL_OFFLOAD_ALL)
        up = 2.0 * (double)t.param_bytes_per_rank * o.passes;
    b.h2d_s = up / rates->link_bytes_per_s;
    b.d2h_s = (double)t.grad_bytes_per_rank * o.passes / rates->link_bytes_per_s;
    host_terms(&o, &t, rates, &b);
    b.nvme_read_bytes = (double)t.nvme_record_bytes + 2.0 * (double)t.nvme_param_bytes;
    b.nvme_written_bytes = (double)t.nvme_record_bytes + (double)t.nvme_param_bytes;
    b.nvme_s = b.nvme_read_bytes / rates->drive_read_bytes_per_s +
               b.nvme_written_bytes / rates->drive_write_bytes_per_s;
    choose_bound(&b);
    if (!isfinite(b.step_s))
        return hl_fail(-EOVERFLOW,
                       "a step of %g tokens at these rates takes longer than a double "
                       "can say",
                       tokens);
    *out = b;
    return 0;
}

/* Negative when a is the better choice. */
static int compare(const struct haul_plan_row *a, const struct haul_plan_row *b)
{
    const uint64_t off_a = a->host_bytes_per_node + a->nvme_bytes_per_node;
    const uint64_t off_b = b->host_bytes_per_node + b->nvme_bytes_per_node;

    if (a->offload != b->offload)
        return a->offload < b->offload ? -1 : 1;
    if ((a->nvme_bytes_per_node > 0) != (b->nvme_bytes_per_node > 0))
        return a->nvme_bytes_per_node > 0 ? 1 : -1;
    if (a->comm_ratio != b->comm_ratio)
        return a->comm_ratio < b->comm_ratio ? -1 : 1;
    if (off_a != off_b)
        return off_a < off_b ? -1 : 1;
    return a->stage < b->stage ? -1 : a->stage > b->stage;
}

int hl_plan_recommend(const struct haul_plan_row rows[HAUL_PLAN_ROWS])
{
    int best = -1;

    for (int i = 0; i < HAUL_PLAN_ROWS; i++)
        if (rows[i].fits && (best < 0 || compare(&rows[i], &rows[best]) < 0))
            best = i;
    return best;
}

int hl_plan_nearest(const struct haul_plan_row rows[HAUL_PLAN_ROWS])
{
    int best = 0;

    for (int i = 1; i < HAUL_PLAN_ROWS; i++)
        if (rows[i].short_by_bytes < rows[best].short_by_bytes)
            best = i;
    return best;
}
