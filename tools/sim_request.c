/* sim_request.c: from flags to options. */
#include "sim_request.h"

#include <math.h>
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
    if (q->mem_gbps > 0) {
        r->mem_bytes_per_s = r->optim_bytes_per_s = q->mem_gbps * 1e9;
        r->norm_bytes_per_s = r->accumulate_bytes_per_s = 0;
    }
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
