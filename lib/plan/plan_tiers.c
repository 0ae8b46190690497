/* plan_tiers.c: what rests where, when the host has only so much room. */
#include <string.h>

#include "checked.h"
#include "fail.h"
#include "plan_tiers.h"
#include "state_bytes.h"
#include "working_set.h"

static int too_large(const struct haul_plan_opts *o)
{
    return hl_fail(-EOVERFLOW,
                   "%llu parameters on %u ranks of one node: the bytes do not fit 63 bits",
                   (unsigned long long)o->params, o->ranks_per_node);
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Move records, then parameters, from host to nvme until the host fits or nothing movable is left. */
static void spill(uint64_t over, const struct hl_state_bytes *node_host, struct hl_plan_tiers *t)
{
    t->nvme_record_bytes = least(over, node_host->records);
    t->nvme_param_bytes = least(over - t->nvme_record_bytes, node_host->params);
    t->host_bytes_per_node -= t->nvme_record_bytes + t->nvme_param_bytes;
}

static uint64_t over_budget(const struct haul_plan_opts *o, uint64_t host, uint64_t slots)
{
    const uint64_t room = o->host_mem_per_node > slots ? o->host_mem_per_node - slots : 0;

    return host > room ? host - room : 0;
}

/* Bytes per element that ride the ring: the record, and the parameter where that is paged too. */
static uint64_t paged_bytes(const struct hl_state_form *form, const struct hl_plan_tiers *t)
{
    return (t->nvme_record_bytes > 0 ? hl_state_record_bytes(form) : 0) +
           (t->nvme_param_bytes > 0 ? hl_plan_dtype_bytes(form->dtype) : 0);
}

/* The ring that carries what is paged takes host room itself and so pages more: at most three rounds,
 * since it grows only when records, then parameters, begin to be paged. */
static int place(const struct haul_plan_opts *o, const struct hl_state_form *form,
                 const struct hl_state_bytes *node_host, struct hl_plan_tiers *t)
{
    const uint64_t whole = t->host_bytes_per_node;
    uint64_t pages = 0;

    for (;;) {
        uint64_t slots, next;

        if (o->shape.layers > 0) {
            int rc = hl_working_set(o, form->stage, form->offload, pages, &t->working_set);
            if (rc < 0)
                return rc;
        }
        if (hl_mul(t->working_set.slots_host_bytes, o->ranks_per_node, &slots) < 0)
            return too_large(o);
        t->host_bytes_per_node = whole;
        spill(over_budget(o, whole, slots), node_host, t);
        next = paged_bytes(form, t);
        if (next <= pages)
            return 0;
        pages = next;
    }
}

int hl_plan_tiers(const struct haul_plan_opts *o, uint32_t stage, enum haul_offload offload,
                  struct hl_plan_tiers *out)
{
    const struct hl_state_form form = {.stage = stage,
                                       .offload = offload,
                                       .dtype = o->dtype,
                                       .master = o->master,
                                       .grad_dtype = o->grad_dtype,
                                       .passes = o->passes};
    const uint64_t shard = hl_div_up(o->params, o->ranks), r = o->ranks_per_node;
    struct hl_state_bytes state[HAUL_NTIERS], node_host = {0};
    const struct hl_state_bytes *host = &state[HAUL_TIER_HOST];
    struct hl_plan_tiers t;
    uint64_t host_bytes;
    int rc = hl_state_bytes(&form, o->params, shard, state);

    memset(&t, 0, sizeof t);
    if (rc == 0)
        rc = hl_state_sum(&state[HAUL_TIER_DEVICE], &t.device_bytes_per_rank);
    if (rc == 0)
        rc = hl_state_sum(host, &host_bytes);
    if (rc < 0)
        return rc;
    if (hl_mul(host_bytes, r, &t.host_bytes_per_node) < 0 ||
        hl_mul(stage == 0 ? o->params : shard, r, &t.updated_elems) < 0)
        return too_large(o);
    node_host.records = host->records * r; /* parts of a product that fits */
    node_host.params = host->params * r;
    t.param_bytes_per_rank = state[HAUL_TIER_DEVICE].params + host->params;
    rc = hl_mul(stage <= 1 ? o->params : shard, hl_plan_grad_bytes(o), &t.grad_bytes_per_rank);
    if (rc < 0)
        return too_large(o);
    rc = place(o, &form, &node_host, &t);
    if (rc < 0)
        return rc;
    if (offload == HAUL_OFFLOAD_NONE)
        t.grad_bytes_per_rank = t.updated_elems = 0;
    *out = t;
    return 0;
}
