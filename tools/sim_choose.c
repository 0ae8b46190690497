/* sim_choose.c: which of several simulated configurations to take, what holds it up, and what to buy. */
#include "sim_choose.h"

#include <math.h>
#include <stdio.h>

#define CLOSE 1.05 /* as fast as the fastest, for who wants it cheap */

/* Whether a is the cheaper of two that are about as fast. */
static int cheaper(const struct hl_sim_choice *a, const struct hl_sim_choice *b)
{
    const struct hl_sim_result *x = &a->result, *y = &b->result;

    if (x->written_bytes != y->written_bytes)
        return x->written_bytes < y->written_bytes;
    if (x->tier_bytes[HAUL_TIER_HOST] != y->tier_bytes[HAUL_TIER_HOST])
        return x->tier_bytes[HAUL_TIER_HOST] < y->tier_bytes[HAUL_TIER_HOST];
    if (x->lane[HAUL_LANE_COMM].bytes != y->lane[HAUL_LANE_COMM].bytes)
        return x->lane[HAUL_LANE_COMM].bytes < y->lane[HAUL_LANE_COMM].bytes;
    return a->stage < b->stage;
}

int hl_sim_pick(const struct hl_sim_choice *choice, uint32_t n)
{
    double fastest = INFINITY;
    int best = -1;

    for (uint32_t i = 0; i < n; i++)
        if (choice[i].rc == 0 && choice[i].result.step_s < fastest)
            fastest = choice[i].result.step_s;
    for (uint32_t i = 0; i < n; i++)
        if (choice[i].rc == 0 && choice[i].result.step_s <= CLOSE * fastest &&
            (best < 0 || cheaper(&choice[i], &choice[best])))
            best = (int)i;
    return best;
}

int hl_sim_try(struct hl_sim_opts *o, uint32_t stage, enum haul_offload offload,
               struct hl_sim_choice *out)
{
    o->stage = stage;
    o->offload = offload;
    *out = (struct hl_sim_choice){.stage = stage, .offload = offload};
    out->rc = hl_sim_run(o, &out->result);
    if (out->rc < 0)
        snprintf(out->why, sizeof out->why, "%s", haul_last_error());
    return out->rc == HAUL_E_PLAN ? 0 : out->rc;
}

int hl_sim_choose(struct hl_sim_case *c, struct hl_sim_choice choice[HL_SIM_CHOICES],
                  uint32_t *nchoices, int *best)
{
    const struct hl_sim_request *q = &c->asked;
    uint32_t n = 0;
    int rc = 0;

    for (uint32_t stage = 0; rc == 0 && stage < 4; stage++)
        for (unsigned of = HAUL_OFFLOAD_NONE; rc == 0 && of <= HAUL_OFFLOAD_ALL; of++) {
            if (q->stage_given ? stage != q->stage : q->ranks == 1 && stage != 3)
                continue;
            if (q->offload_given && of != (unsigned)q->offload)
                continue;
            rc = hl_sim_try(&c->opts, stage, (enum haul_offload)of, &choice[n++]);
        }
    *nchoices = n;
    *best = hl_sim_pick(choice, n);
    if (rc == 0 && *best >= 0) {
        c->opts.stage = choice[*best].stage;
        c->opts.offload = choice[*best].offload;
    }
    return rc;
}

/* ---- what holds it up ---- */

enum haul_lane hl_sim_bottleneck(const struct hl_sim_result *r)
{
    enum haul_lane most = HAUL_LANE_COMPUTE;

    for (enum haul_lane l = HAUL_LANE_H2D; l < HAUL_NLANES; l++)
        if (r->lane[l].exposed_s > r->step_s / 50 &&
            (most == HAUL_LANE_COMPUTE || r->lane[l].exposed_s > r->lane[most].exposed_s))
            most = l;
    return most;
}

enum { DEVICES = 0, LINKS, MEMORY, DRIVES, FABRIC, ROOM, NUPGRADES };

static void upgrade(struct hl_sim_opts *o, int what)
{
    struct hl_sim_rates *r = &o->rates;

    switch (what) {
    case DEVICES:
        r->flops_per_s *= 2;
        break;
    case LINKS:
        r->h2d_bytes_per_s *= 2;
        r->d2h_bytes_per_s *= 2;
        break;
    case MEMORY:
        r->mem_bytes_per_s *= 2;
        r->optim_bytes_per_s *= 2;
        r->norm_bytes_per_s *= 2;
        r->accumulate_bytes_per_s *= 2;
        break;
    case DRIVES:
        r->drive_read_bytes_per_s *= 2;
        r->drive_write_bytes_per_s *= 2;
        r->drive_mixed_bytes_per_s *= 2;
        break;
    case FABRIC:
        r->comm_bytes_per_s *= 2;
        r->net_bytes_per_s *= 2;
        break;
    default:
        if (o->host_mem_bytes < HAUL_UNLIMITED / 2)
            o->host_mem_bytes *= 2;
        break;
    }
}

int hl_sim_upgrade(const struct hl_sim_opts *opts, double step_s, struct hl_sim_upgrade *out)
{
    static const char *const names[NUPGRADES] = {"devices twice as fast",
                                                 "links twice as fast",
                                                 "host memory (with its processor) twice as fast",
                                                 "twice the drives",
                                                 "collectives twice as fast",
                                                 "twice the host memory"};
    struct hl_sim_upgrade best = {NULL, step_s * 0.99};

    for (int i = 0; i < NUPGRADES; i++) {
        struct hl_sim_opts o = *opts;
        struct hl_sim_result r;

        o.events = NULL;
        upgrade(&o, i);
        int rc = hl_sim_run(&o, &r);
        if (rc < 0)
            return rc;
        if (r.step_s < best.step_s)
            best = (struct hl_sim_upgrade){names[i], r.step_s};
    }
    *out = best;
    return 0;
}
