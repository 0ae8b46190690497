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

#define HL_SIM_CHOICES 12

struct hl_sim_choice {
    uint32_t stage;
    enum haul_offload offload;
    int rc; /* HAUL_E_PLAN: does not fit */
    char why[256];
    struct hl_sim_result result;
};

/* What can be chosen is: each stage and offload that was not asked for. *best: the cheapest of those within 5%
 * of the fastest; cheapest: least written to drives, then least host memory, least sent between ranks, lowest
 * stage; -1 when none fits. Errors other than HAUL_E_PLAN end it. */
int hl_sim_choose(struct hl_sim_case *c, struct hl_sim_choice choice[HL_SIM_CHOICES],
                  uint32_t *nchoices, int *best);

struct hl_sim_upgrade {
    const char *what;
    double step_s;
};

/* The lane that compute waits for most; COMPUTE when that is under a fiftieth of the step. */
enum haul_lane hl_sim_bottleneck(const struct hl_sim_result *r);
/* Which single thing, doubled, makes the chosen configuration fastest; what is NULL: none by a hundredth. */
int hl_sim_upgrade(const struct hl_sim_case *c, double step_s, struct hl_sim_upgrade *out);

#endif
