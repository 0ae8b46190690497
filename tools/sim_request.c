/* sim_request.c: from flags to options; which configuration to take; what to buy. */
#include "sim_request.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "haul/size.h"

/* Llama 2 (Touvron et al. 2023): blocks of 4 h^2 (70B: 2 h^2 and 2 h 1024 for its grouped keys and values),
 * 3 h f and two norms, f 11008, 13824, 28672; head and embedding apart. */
static const struct {
    const char *name;
    struct hl_sim_shape shape;
} models[] = {
    {"7b", {32, 4096, 32000, 4096, 202383360, 0}},
    {"13b", {40, 5120, 32000, 4096, 317204480, 0}},
    {"70b", {80, 8192, 32000, 4096, 855654400, 0}},
};

#define CLOSE 1.05 /* as fast as the fastest, for who wants it cheap */

void hl_sim_request_init(struct hl_sim_request *q)
{
    memset(q, 0, sizeof *q);
    q->profile_name = hl_profile_name(0);
    q->units = 32;
    q->ranks = 1;
    q->window = 2;
    q->slots = 4;
    q->device_mem = q->host_mem = q->nvme_mem = q->stash_host_mem = HAUL_UNLIMITED;
}

/* ---- the model ---- */

static int set_shape(const struct hl_command *cmd, const char *item, struct hl_sim_shape *s)
{
    const char *value = strchr(item, '=');
    const struct {
        const char *key;
        uint64_t *dest;
    } keys[] = {{"layers", &s->layers},
                {"hidden", &s->hidden},
                {"vocab", &s->vocab},
                {"seq", &s->seq},
                {"block", &s->block_elems}};

    for (unsigned i = 0; value && i < sizeof keys / sizeof *keys; i++)
        if (strlen(keys[i].key) == (size_t)(value - item) &&
            strncmp(item, keys[i].key, strlen(keys[i].key)) == 0)
            return haul_parse_count(value + 1, keys[i].dest) < 0
                       ? hl_usage_error(cmd, "--model %s: %s", item, haul_last_error())
                       : HL_FLAGS_GO;
    return hl_usage_error(cmd,
                          "--model %s: 7b, 13b, 70b, or layers=, hidden=, vocab=, seq=, block= "
                          "(parameters of one) with commas between",
                          item);
}

static int find_shape(const struct hl_command *cmd, const struct hl_sim_request *q,
                      struct hl_sim_shape *out)
{
    struct hl_sim_shape s = {.vocab = 50257, .seq = 2048, .tied = 1};
    int rc = HL_FLAGS_GO;

    for (uint32_t k = 0; rc == HL_FLAGS_GO && k < q->model.nitems; k++) {
        unsigned i = 0;
        while (i < sizeof models / sizeof *models && strcmp(q->model.item[k], models[i].name) != 0)
            i++;
        if (i < sizeof models / sizeof *models)
            s = models[i].shape;
        else
            rc = set_shape(cmd, q->model.item[k], &s);
    }
    if (rc == HL_FLAGS_GO && q->model.nitems && (s.layers == 0 || s.hidden == 0))
        return hl_usage_error(cmd, "--model needs layers= and hidden=, or a name");
    if (q->seq)
        s.seq = q->seq;
    *out = s;
    return rc;
}

static int make_model(const struct hl_command *cmd, struct hl_sim_case *c)
{
    const struct hl_sim_request *q = &c->asked;
    int rc = find_shape(cmd, q, &c->shape);

    if (rc != HL_FLAGS_GO)
        return rc;
    if (!q->model.nitems && !q->params)
        return hl_usage_error(cmd, "--model is missing (or --params)");
    if (q->model.nitems && q->params)
        return hl_usage_error(cmd, "--model and --params: give one");
    rc = q->params ? hl_sim_model_equal(q->params, q->units, c->elems, c->visits, &c->opts.model)
                   : hl_sim_model_decoder(&c->shape, c->elems, c->visits, &c->opts.model);
    if (rc < 0)
        return hl_report_error(cmd, rc);
    for (uint32_t i = 0; i < c->opts.model.nunits; i++)
        c->params += c->elems[i];
    return HL_FLAGS_GO;
}

/* ---- the machine, and the rest ---- */

static void set_rates(struct hl_sim_case *c)
{
    const struct hl_sim_request *q = &c->asked;
    struct hl_sim_rates *r = &c->profile.rates;

    if (q->tflops > 0)
        r->flops_per_s = q->tflops * 1e12;
    if (q->link_gbps > 0)
        r->h2d_bytes_per_s = r->d2h_bytes_per_s = q->link_gbps * 1e9;
    if (q->mem_gbps > 0)
        r->mem_bytes_per_s = r->optim_bytes_per_s = q->mem_gbps * 1e9;
    if (q->drive_gbps > 0)
        r->drive_read_bytes_per_s = r->drive_write_bytes_per_s = r->drive_mixed_bytes_per_s =
            q->drive_gbps * 1e9;
    c->opts.rates = *r;
}

static uint64_t budget(uint64_t asked, uint64_t profile)
{
    return asked != HAUL_UNLIMITED || profile == 0 ? asked : profile;
}

/* One sequence a rank and micro-batch, unless told otherwise. */
static void set_batch(struct hl_sim_case *c)
{
    const struct hl_sim_request *q = &c->asked;
    const double sequence = c->shape.seq ? (double)c->shape.seq : 2048;
    struct hl_sim_opts *o = &c->opts;

    o->tokens = q->tokens ? (double)q->tokens : sequence * q->ranks * (q->accum ? q->accum : 1);
    o->accum = q->accum;
    if (!o->accum) {
        double n = ceil(o->tokens / q->ranks / sequence - 1e-9);
        o->accum = n < 1 ? 1 : n > 1024 ? 1024 : (uint32_t)n;
    }
}

static uint64_t activations(const struct hl_sim_case *c)
{
    const struct hl_sim_opts *o = &c->opts;
    const double mine = o->tokens / o->ranks, micro = mine / o->accum;

    if (c->shape.layers == 0)
        return 0;
    return hl_sim_activation_bytes(&c->shape, micro,
                                   o->stash         ? 0
                                   : o->batch_order ? micro
                                                    : mine,
                                   o->recompute);
}

static void set_opts(struct hl_sim_case *c)
{
    const struct hl_sim_request *q = &c->asked;
    struct hl_sim_opts *o = &c->opts;
    uint32_t per_node = q->ranks_per_node;

    if (!per_node)
        per_node = c->profile.ranks_per_node ? (uint32_t)c->profile.ranks_per_node : 8;
    o->ranks = q->ranks;
    o->ranks_per_node = per_node < q->ranks ? per_node : q->ranks;
    o->stage = q->stage_given ? q->stage : 3;
    o->offload = (enum haul_offload)q->offload;
    o->master = q->master ? HAUL_MASTER_SPLIT : HAUL_MASTER_FP32;
    o->pull = q->share;
    o->batch_order = q->order;
    o->overlap = !q->overlap;
    o->recompute = !q->no_recompute;
    o->stash = q->stash;
    o->stash_host_bytes = q->stash_host_mem;
    o->window = q->window;
    o->slots = q->slots;
    o->slot_bytes = q->slot_bytes;
    o->device_mem_bytes = budget(q->device_mem, c->profile.device_mem_bytes);
    o->host_mem_bytes = budget(q->host_mem, c->profile.host_mem_bytes);
    o->nvme_mem_bytes = q->nvme_mem;
}

int hl_sim_case_make(const struct hl_command *cmd, const struct hl_sim_request *q,
                     struct hl_sim_case *c)
{
    int rc;

    memset(c, 0, sizeof *c);
    c->asked = *q;
    hl_sim_opts_init(&c->opts);
    if (q->ranks < 1)
        return hl_usage_error(cmd, "--ranks 0: give at least 1");
    if (q->stage > 3)
        return hl_usage_error(cmd, "--stage %u: stages are 0 to 3", q->stage);
    if ((rc = make_model(cmd, c)) != HL_FLAGS_GO)
        return rc;
    if ((rc = hl_profile_load(q->profile_name, &c->profile)) < 0)
        return hl_report_error(cmd, rc);
    set_rates(c);
    set_opts(c);
    set_batch(c);
    c->opts.trainer_device_bytes = activations(c);
    return HL_FLAGS_GO;
}

/* ---- which configuration ---- */

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

static int pick(const struct hl_sim_choice *choice, uint32_t n)
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

static int try_one(struct hl_sim_case *c, uint32_t stage, enum haul_offload offload,
                   struct hl_sim_choice *out)
{
    c->opts.stage = stage;
    c->opts.offload = offload;
    *out = (struct hl_sim_choice){.stage = stage, .offload = offload};
    out->rc = hl_sim_run(&c->opts, &out->result);
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
            rc = try_one(c, stage, (enum haul_offload)of, &choice[n++]);
        }
    *nchoices = n;
    *best = pick(choice, n);
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

int hl_sim_upgrade(const struct hl_sim_case *c, double step_s, struct hl_sim_upgrade *out)
{
    static const char *const names[NUPGRADES] = {"devices twice as fast",
                                                 "links twice as fast",
                                                 "host memory (with its processor) twice as fast",
                                                 "twice the drives",
                                                 "collectives twice as fast",
                                                 "twice the host memory"};
    struct hl_sim_upgrade best = {NULL, step_s * 0.99};

    for (int i = 0; i < NUPGRADES; i++) {
        struct hl_sim_opts o = c->opts;
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
