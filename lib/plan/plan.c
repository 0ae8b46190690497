/* plan.c: every stage x offload against the budgets. */
#include <string.h>

#include "checked.h"
#include "fail.h"
#include "plan_tiers.h"
#include "state_bytes.h"
#include "working_set.h"

void haul_plan_opts_init(struct haul_plan_opts *opts)
{
    memset(opts, 0, sizeof *opts);
    opts->struct_size = sizeof *opts;
    opts->ranks = 1;
    opts->dtype = HAUL_BF16;
    opts->master = HAUL_MASTER_FP32;
    opts->device_mem_per_rank = HAUL_UNLIMITED;
    opts->host_mem_per_node = HAUL_UNLIMITED;
    opts->nvme_mem_per_node = HAUL_UNLIMITED;
    opts->shape.recompute = 1;
    opts->passes = 1;
}

uint32_t hl_plan_grad_bytes(const struct haul_plan_opts *opts)
{
    if (opts->dtype == HAUL_FP32 || opts->grad_dtype == HAUL_DTYPE_NONE)
        return hl_plan_dtype_bytes(opts->dtype);
    return hl_plan_dtype_bytes(opts->grad_dtype);
}

static int check_ranks(const struct haul_plan_opts *o)
{
    if (o->ranks == 0)
        return hl_fail(-EINVAL, "ranks is 0; give at least 1");
    if (o->ranks_per_node > o->ranks)
        return hl_fail(-EINVAL, "ranks_per_node %u is more than ranks %u", o->ranks_per_node,
                       o->ranks);
    return 0;
}

static int check_dtypes(const struct haul_plan_opts *o)
{
    if (hl_plan_dtype_bytes(o->dtype) == 0)
        return hl_fail(-EINVAL, "dtype %d: parameters are BF16, FP16 or FP32", (int)o->dtype);
    if (o->grad_dtype != HAUL_DTYPE_NONE && hl_plan_dtype_bytes(o->grad_dtype) == 0)
        return hl_fail(-EINVAL, "grad_dtype %d: gradients are BF16, FP16 or FP32",
                       (int)o->grad_dtype);
    if (o->master == HAUL_MASTER_SPLIT && o->dtype != HAUL_BF16)
        return hl_fail(-EINVAL, "master=split needs dtype bf16: only a BF16 parameter is the upper "
                                "half of an FP32 one");
    return 0;
}

int hl_plan_resolve(const struct haul_plan_opts *opts, struct haul_plan_opts *out)
{
    struct haul_plan_opts o;
    int rc;

    if (opts == NULL)
        return hl_fail(-EINVAL, "haul_plan_rows: opts must not be NULL");
    if (opts->struct_size != sizeof *opts)
        return hl_fail(HAUL_E_ABI,
                       "haul_plan_opts: struct_size %zu, this library knows %zu; call "
                       "haul_plan_opts_init() first",
                       opts->struct_size, sizeof *opts);
    o = *opts;
    rc = check_ranks(&o);
    if (rc == 0)
        rc = check_dtypes(&o);
    if (rc == 0 && o.shape.layers > 0)
        rc = hl_shape_check(&o.shape);
    if (rc < 0)
        return rc;
    if (o.params == 0 && o.shape.layers == 0)
        return hl_fail(-EINVAL, "params is 0 and no shape is given; give at least 1 parameter");
    if (o.params == 0)
        rc = haul_shape_params(&o.shape, &o.params);
    if (rc < 0)
        return rc;
    if (o.ranks_per_node == 0)
        o.ranks_per_node = o.ranks < 8 ? o.ranks : 8;
    if (o.grad_dtype == HAUL_DTYPE_NONE)
        o.grad_dtype = o.dtype;
    if (o.passes == 0)
        o.passes = 1;
    *out = o;
    return 0;
}

static uint64_t lacking(uint64_t need, uint64_t budget)
{
    return need > budget ? need - budget : 0;
}

static int add(uint64_t *acc, uint64_t bytes)
{
    if (hl_mul_add(acc, bytes, 1) < 0)
        return hl_fail(-EOVERFLOW, "the bytes of the plan do not fit 63 bits");
    return 0;
}

static int judge(const struct haul_plan_opts *o, struct haul_plan_row *row)
{
    const struct haul_working_set *w = &row->working_set;
    uint64_t device = row->device_bytes_per_rank, host = row->host_bytes_per_node, slots, sum = 0;
    int rc = add(&device, w->window_device_bytes);

    if (rc == 0)
        rc = add(&device, w->gradient_window_device_bytes);
    if (rc == 0)
        rc = add(&device, w->activations_device_bytes);
    if (rc < 0)
        return rc;
    if (hl_mul(w->slots_host_bytes, o->ranks_per_node, &slots) < 0)
        return hl_fail(-EOVERFLOW, "the slots of %u ranks do not fit 63 bits", o->ranks_per_node);
    rc = add(&host, slots);
    if (rc < 0)
        return rc;
    row->short_by_tier_bytes[HAUL_TIER_DEVICE] = lacking(device, o->device_mem_per_rank);
    row->short_by_tier_bytes[HAUL_TIER_HOST] = lacking(host, o->host_mem_per_node);
    row->short_by_tier_bytes[HAUL_TIER_NVME] =
        lacking(row->nvme_bytes_per_node, o->nvme_mem_per_node);
    for (int t = 0; t < HAUL_NTIERS; t++) {
        rc = add(&sum, row->short_by_tier_bytes[t]);
        if (rc < 0)
            return rc;
    }
    row->short_by_bytes = sum;
    row->fits = sum == 0;
    return 0;
}

static int fill_row(const struct haul_plan_opts *o, uint32_t stage, enum haul_offload offload,
                    struct haul_plan_row *row)
{
    struct hl_plan_tiers tiers;
    int rc = hl_plan_tiers(o, stage, offload, &tiers);

    if (rc < 0)
        return rc;
    memset(row, 0, sizeof *row);
    row->stage = stage;
    row->offload = offload;
    row->device_bytes_per_rank = tiers.device_bytes_per_rank;
    row->host_bytes_per_node = tiers.host_bytes_per_node;
    row->nvme_bytes_per_node = tiers.nvme_record_bytes + tiers.nvme_param_bytes;
    row->comm_elems_per_rank = (stage == 3 ? 3.0 : 2.0) * (double)o->params;
    row->comm_ratio = stage == 3 ? 1.5 : 1.0;
    row->working_set = tiers.working_set;
    return judge(o, row);
}

int haul_plan_rows(const struct haul_plan_opts *opts, struct haul_plan_row rows[HAUL_PLAN_ROWS])
{
    struct haul_plan_row made[HAUL_PLAN_ROWS];
    struct haul_plan_opts o;
    int rc = hl_plan_resolve(opts, &o);

    if (rc < 0)
        return rc;
    if (rows == NULL)
        return hl_fail(-EINVAL, "haul_plan_rows: rows must not be NULL");
    for (uint32_t i = 0; i < HAUL_PLAN_ROWS; i++) {
        rc = fill_row(&o, i / 3, (enum haul_offload)(i % 3), &made[i]);
        if (rc < 0)
            return rc;
    }
    memcpy(rows, made, sizeof made);
    return 0;
}
