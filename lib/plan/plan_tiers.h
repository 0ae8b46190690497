/* plan_tiers.h: one stage and offload with its records and parameters placed by budget. */
#ifndef HL_PLAN_TIERS_H
#define HL_PLAN_TIERS_H

#include "haul/plan.h"

/* Model state by tier; host and nvme per node. */
struct hl_plan_tiers {
    uint64_t device_bytes_per_rank;
    uint64_t host_bytes_per_node;
    uint64_t nvme_record_bytes;
    uint64_t nvme_param_bytes;
    uint64_t grad_bytes_per_rank;  /* at rest on the host: what comes down the link in a pass */
    uint64_t updated_elems;        /* parameters that one node's host updates in a step */
    uint64_t param_bytes_per_rank; /* at rest, wherever */
    struct haul_working_set working_set;
};

/* Check and fill in what was left to a default. Errors as haul_plan_rows(). */
int hl_plan_resolve(const struct haul_plan_opts *opts, struct haul_plan_opts *out);

/* opts: resolved. Errors 0, -EOVERFLOW */
int hl_plan_tiers(const struct haul_plan_opts *opts, uint32_t stage, enum haul_offload offload,
                  struct hl_plan_tiers *out);

#endif
