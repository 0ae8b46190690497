/* state_bytes.c: DESIGN's section 4 as code. */
#include "state_bytes.h"
#include "checked.h"
#include "fail.h"

uint32_t hl_plan_dtype_bytes(enum haul_dtype dtype)
{
    switch (dtype) {
    case HAUL_FP32:
        return 4;
    case HAUL_BF16:
    case HAUL_FP16:
        return 2;
    case HAUL_DTYPE_NONE:
        break;
    }
    return 0;
}

/* Parameters on the device, records on the host: what the update needs of the parameter is kept twice. */
static int kept_apart(const struct hl_state_form *form)
{
    return form->offload == HAUL_OFFLOAD_OPTIMIZER;
}

uint32_t hl_state_record_bytes(const struct hl_state_form *form)
{
    if (form->frozen)
        return 0;
    if (form->dtype == HAUL_FP32)
        return kept_apart(form) ? 12 : 8;
    return form->master == HAUL_MASTER_SPLIT ? 10 : 12;
}

static int form_check(const struct hl_state_form *form)
{
    if (form->stage > 3)
        return hl_fail(-EINVAL, "stage %u: stages are 0 to 3", form->stage);
    if ((unsigned)form->offload > HAUL_OFFLOAD_ALL)
        return hl_fail(-EINVAL, "offload %d: not an enum haul_offload", (int)form->offload);
    if (hl_plan_dtype_bytes(form->dtype) == 0)
        return hl_fail(-EINVAL, "dtype %d: parameters are BF16, FP16 or FP32", (int)form->dtype);
    if (!form->frozen && hl_plan_dtype_bytes(form->grad_dtype) == 0)
        return hl_fail(-EINVAL, "grad_dtype %d: gradients are BF16, FP16 or FP32",
                       (int)form->grad_dtype);
    if ((unsigned)form->master > HAUL_MASTER_SPLIT)
        return hl_fail(-EINVAL, "master %d: not an enum haul_master", (int)form->master);
    if (form->master == HAUL_MASTER_SPLIT && form->dtype == HAUL_FP16)
        return hl_fail(-EINVAL, "master=split needs BF16 parameters: an FP16 parameter is not the "
                                "upper half of an FP32 one");
    return 0;
}

int hl_state_bytes(const struct hl_state_form *form, uint64_t full_elems, uint64_t shard_elems,
                   struct hl_state_bytes out[HAUL_NTIERS])
{
    struct hl_state_bytes b = {0};
    const enum haul_tier params_tier =
        form->offload == HAUL_OFFLOAD_ALL ? HAUL_TIER_HOST : HAUL_TIER_DEVICE;
    const enum haul_tier update_tier =
        form->offload == HAUL_OFFLOAD_NONE ? HAUL_TIER_DEVICE : HAUL_TIER_HOST;
    const uint64_t owned = form->stage == 0 ? full_elems : shard_elems;
    const uint64_t grads = form->stage <= 1 ? full_elems : shard_elems;
    const enum haul_dtype grad_dtype = form->dtype == HAUL_FP32 ? HAUL_FP32 : form->grad_dtype;
    int rc = form_check(form);

    if (rc < 0)
        return rc;
    rc = hl_mul(form->stage == 3 ? shard_elems : full_elems, hl_plan_dtype_bytes(form->dtype),
                &b.params);
    if (rc == 0 && !form->frozen) {
        rc = hl_mul(owned, hl_state_record_bytes(form), &b.records);
        if (rc == 0 && form->passes > 1)
            rc = hl_mul(owned, 4, &b.accumulators);
        else if (rc == 0)
            rc = hl_mul(grads, hl_plan_dtype_bytes(grad_dtype), &b.grads);
        if (rc == 0 && form->dtype == HAUL_BF16 && form->master == HAUL_MASTER_SPLIT &&
            kept_apart(form))
            rc = hl_mul(owned, 2, &b.hi);
    }
    if (rc < 0)
        return hl_fail(rc, "%llu parameters: the bytes of their state do not fit 63 bits",
                       (unsigned long long)full_elems);
    for (int t = 0; t < HAUL_NTIERS; t++)
        out[t] = (struct hl_state_bytes){0};
    out[params_tier].params = b.params;
    out[update_tier].grads = b.grads;
    out[update_tier].accumulators = b.accumulators;
    out[update_tier].records = b.records;
    out[update_tier].hi = b.hi;
    return 0;
}

int hl_state_sum(const struct hl_state_bytes *bytes, uint64_t *out)
{
    const uint64_t parts[] = {bytes->params, bytes->grads, bytes->accumulators, bytes->records,
                              bytes->hi};
    uint64_t sum = 0;

    for (unsigned i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (hl_mul_add(&sum, parts[i], 1) < 0)
            return hl_fail(-EOVERFLOW, "the bytes of the model state do not fit 63 bits");
    *out = sum;
    return 0;
}
