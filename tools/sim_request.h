/* sim_request.h: what haul sim was asked, as options of the simulator. */
#ifndef HL_SIM_REQUEST_H
#define HL_SIM_REQUEST_H

#include "flags.h"
#include "profile.h"

struct hl_sim_request {
    struct hl_flag_list model;
    const char *profile_name;
    uint64_t params, seq, tokens; /* 0: not given */
    uint32_t units, ranks, ranks_per_node, stage, accum, window, slots;
    int offload, master, order, overlap, share; /* indices of the words */
    int no_recompute, stash;
    uint64_t device_mem, host_mem, nvme_mem, slot_bytes, stash_host_mem;
    double tflops, link_gbps, mem_gbps, drive_gbps; /* 0: not given */
    int stage_given, offload_given;
};

struct hl_sim_case {
    struct hl_sim_request asked;
    struct hl_profile profile;
    struct hl_sim_shape shape; /* layers 0: equal units */
    uint64_t params;
    struct hl_sim_opts opts;
    uint64_t elems[HL_SIM_MAX_UNITS + 1];
    struct hl_sim_visit visits[HL_SIM_MAX_UNITS + 1];
};

void hl_sim_request_init(struct hl_sim_request *q);

/* Model, profile and options. HL_FLAGS_GO, or an exit code after a line on stderr. */
int hl_sim_case_make(const struct hl_command *cmd, const struct hl_sim_request *q,
                     struct hl_sim_case *out);

#endif
