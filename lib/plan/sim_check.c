/* sim_check.c: the options of a simulation, and what they may be. */
#include <math.h>
#include <string.h>

#include "fail.h"
#include "sim_state.h"

void hl_sim_opts_init(struct hl_sim_opts *o)
{
    memset(o, 0, sizeof *o);
    o->ranks = o->ranks_per_node = 1;
    o->stage = 3;
    o->offload = HAUL_OFFLOAD_ALL;
    o->grad_bytes = 2;
    o->device_mem_bytes = o->host_mem_bytes = o->nvme_mem_bytes = HAUL_UNLIMITED;
    o->accum = 1;
    o->recompute = 1;
    o->stash_host_bytes = HAUL_UNLIMITED;
    o->overlap = 1;
    o->window = 2;
    o->slots = 4;
}

static int check_rates(const struct hl_sim_rates *r)
{
    const struct {
        const char *name;
        double value;
    } all[] = {{"flops_per_s", r->flops_per_s},
               {"device_mem_bytes_per_s", r->device_mem_bytes_per_s},
               {"h2d_bytes_per_s", r->h2d_bytes_per_s},
               {"d2h_bytes_per_s", r->d2h_bytes_per_s},
               {"mem_bytes_per_s", r->mem_bytes_per_s},
               {"optim_bytes_per_s", r->optim_bytes_per_s},
               {"drive_read_bytes_per_s", r->drive_read_bytes_per_s},
               {"drive_write_bytes_per_s", r->drive_write_bytes_per_s},
               {"drive_mixed_bytes_per_s", r->drive_mixed_bytes_per_s},
               {"comm_bytes_per_s", r->comm_bytes_per_s},
               {"net_bytes_per_s", r->net_bytes_per_s},
               {"mem_per_link_byte", r->mem_per_link_byte},
               {"mem_per_drive_byte", r->mem_per_drive_byte}};
    const double latency[] = {r->link_latency_s, r->drive_latency_s, r->comm_latency_s};

    for (unsigned i = 0; i < sizeof all / sizeof *all; i++)
        if (!(all[i].value > 0) || !isfinite(all[i].value))
            return hl_fail(-EINVAL, "sim: rate %s is %g; it must be above 0", all[i].name,
                           all[i].value);
    for (unsigned i = 0; i < sizeof latency / sizeof *latency; i++)
        if (!(latency[i] >= 0) || !isfinite(latency[i]))
            return hl_fail(-EINVAL, "sim: a latency is %g s; it must not be below 0", latency[i]);
    return 0;
}

static int check_model(const struct hl_sim_model *m)
{
    if (m->nunits < 1 || m->nunits > HL_SIM_MAX_UNITS || m->nvisits < 1 ||
        m->nvisits > 2 * HL_SIM_MAX_UNITS)
        return hl_fail(-EINVAL, "sim: a model of %u units and %u visits", m->nunits, m->nvisits);
    for (uint32_t i = 0; i < m->nunits; i++)
        if (m->elems[i] > UINT64_C(1) << 50)
            return hl_fail(-EOVERFLOW, "sim: unit %u has more than 2^50 parameters", i);
    for (uint32_t i = 0; i < m->nvisits; i++)
        if (m->visits[i].unit >= m->nunits)
            return hl_fail(-EINVAL, "sim: visit %u is of unit %u of %u", i, m->visits[i].unit,
                           m->nunits);
    return 0;
}

int hl_sim_check(const struct hl_sim_opts *o)
{
    int rc = check_model(&o->model);

    if (rc == 0)
        rc = check_rates(&o->rates);
    if (rc < 0)
        return rc;
    if (o->ranks < 1 || o->ranks > 1u << 20 || o->ranks_per_node < 1 ||
        o->ranks_per_node > o->ranks)
        return hl_fail(-EINVAL, "sim: %u ranks, %u to a node", o->ranks, o->ranks_per_node);
    if (o->stage > 3 || (unsigned)o->offload > HAUL_OFFLOAD_ALL)
        return hl_fail(-EINVAL, "sim: stage %u, offload %d", o->stage, (int)o->offload);
    if (o->grad_bytes != 2 && o->grad_bytes != 4)
        return hl_fail(-EINVAL, "sim: grad_bytes %u; 2 or 4", o->grad_bytes);
    if (o->window < 1 || o->slots < 2 || o->slots > 4096)
        return hl_fail(-EINVAL, "sim: window %u, slots %u; at least 1, and 2 to 4096", o->window,
                       o->slots);
    if (o->accum < 1 || o->accum > 1024)
        return hl_fail(-EINVAL, "sim: accum %u; 1 to 1024", o->accum);
    if (!(o->tokens >= 0) || !isfinite(o->tokens) || !(o->forward_s >= 0) || !(o->backward_s >= 0))
        return hl_fail(-EINVAL, "sim: tokens and times must not be below 0");
    return 0;
}
