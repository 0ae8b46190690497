/* sim_choose.h: several configurations simulated: which to take, what holds it up, what to buy. */
#ifndef HL_SIM_CHOOSE_H
#define HL_SIM_CHOOSE_H

#include "sim_request.h"

#define HL_SIM_CHOICES 12

struct hl_sim_choice {
    uint32_t stage;
    enum haul_offload offload;
    int rc; /* HAUL_E_PLAN: does not fit */
    char why[256];
    struct hl_sim_result result;
};

/* One. 0, also when it does not fit; other errors. */
int hl_sim_try(struct hl_sim_opts *o, uint32_t stage, enum haul_offload offload,
               struct hl_sim_choice *out);

/* The cheapest of those within 5% of the fastest; cheapest: least written to drives, then least host memory,
 * least sent between ranks, lowest stage; -1 when none fits. */
int hl_sim_pick(const struct hl_sim_choice *choice, uint32_t n);

/* What can be chosen is: each stage and offload that was not asked for. */
int hl_sim_choose(struct hl_sim_case *c, struct hl_sim_choice choice[HL_SIM_CHOICES],
                  uint32_t *nchoices, int *best);

struct hl_sim_upgrade {
    const char *what;
    double step_s;
};

/* The lane that compute waits for most; COMPUTE when that is under a fiftieth of the step. */
enum haul_lane hl_sim_bottleneck(const struct hl_sim_result *r);
/* Which single thing, doubled, makes a configuration fastest; what is NULL: none by a hundredth. */
int hl_sim_upgrade(const struct hl_sim_opts *opts, double step_s, struct hl_sim_upgrade *out);

#endif
