#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arith.h"
#include "haul/device_cuda.h"
#include "toy_model.h"

#define LR     1e-2
#define DECAY  0.1
#define GROUPS 3

/* ---- the model's functions, the same for engine and twin ---- */

static uint64_t hash(uint64_t x)
{
    x = (x ^ (x >> 33)) * UINT64_C(0xff51afd7ed558ccd);
    x = (x ^ (x >> 33)) * UINT64_C(0xc4ceb9fe1a85ec53);
    return x ^ (x >> 33);
}

static float initial(uint32_t unit, uint32_t tensor, uint64_t i)
{
    return (float)(int64_t)(hash(unit * 1000003ull + tensor * 10007ull + i) % 20001) * 1e-4f - 1.0f;
}

/* Of the published parameter as the device sees it. */
static float gradient(float p, uint64_t i, uint64_t step, unsigned pass)
{
    float noise = (float)(hash(i * 31 + step * 7 + pass) % 1001) * 1e-3f - 0.5f;

    return p * 0.5f + noise;
}

static int is_frozen(const struct toy *t, uint32_t tensor)
{
    return t->cfg.frozen && tensor == 1;
}

static int is_fp32(const struct toy *t, uint32_t tensor)
{
    return t->cfg.all_fp32 || tensor == 2;
}

static uint32_t group_of(const struct toy *t, uint32_t tensor)
{
    return tensor % t->cfg.ngroups;
}

static void group_values(const struct toy *t, struct haul_group_step out[GROUPS])
{
    for (uint32_t g = 0; g < t->cfg.ngroups; g++)
        out[g] = (struct haul_group_step){LR / (g + 1), DECAY * g};
}

/* ---- through the engine ---- */

/* Room for the arguments of everything queued in a step. */
struct work {
    struct toy_unit *u;
    struct haul_view w, g;
    uint64_t step;
    unsigned pass;
    float scale;
    int plant;
    float sum; /* forward reads something of every tensor */
};
static struct work work[TOY_MAX_UNITS * 64];
static unsigned nwork;

static float load(const void *p, enum haul_dtype dtype, uint64_t i)
{
    if (dtype == HAUL_FP32)
        return ((const float *)p)[i];
    uint16_t h = ((const uint16_t *)p)[i];
    return dtype == HAUL_BF16 ? hl_bf16_to_float(h) : hl_fp16_to_float(h);
}

static void add(void *p, enum haul_dtype dtype, uint64_t i, float x)
{
    if (dtype == HAUL_FP32)
        ((float *)p)[i] += x;
    else if (dtype == HAUL_BF16)
        ((uint16_t *)p)[i] = hl_bf16_from_float(load(p, dtype, i) + x);
    else
        ((uint16_t *)p)[i] = hl_fp16_from_float(load(p, dtype, i) + x);
}

static void backward(void *arg)
{
    struct work *k = arg;
    const struct toy *t = k->u->toy;

    for (uint32_t a = 0; a < k->u->ntensors; a++) {
        enum haul_dtype pd = is_fp32(t, a) ? HAUL_FP32 : t->cfg.dtype;
        enum haul_dtype gd = is_fp32(t, a) ? HAUL_FP32 : t->cfg.buffer_dtype;
        void *g = haul_view_tensor(&k->g, a);
        if (!g)
            continue;
        for (uint64_t i = 0; i < k->u->elems[a]; i++)
            add(g, gd, i,
                gradient(load(haul_view_tensor(&k->w, a), pd, i), i, k->step, k->pass) * k->scale);
        if (k->plant && k->u->elems[a])
            add(g, gd, 0, INFINITY);
    }
}

static void forward(void *arg)
{
    struct work *k = arg;

    k->sum = 0;
    for (uint32_t a = 0; a < k->u->ntensors; a++)
        if (k->u->elems[a])
            k->sum += load(haul_view_tensor(&k->w, a), HAUL_BF16, 0);
}

static int fill(void *user, const char *unit, uint32_t tensor, uint64_t first, uint64_t n,
                float *out)
{
    (void)user;
    for (uint64_t i = 0; i < n; i++)
        out[i] = initial((uint32_t)atoi(unit + 1), tensor, first + i);
    return 0;
}

void toy_describe(struct toy *toy, uint32_t nunits, uint64_t scale)
{
    toy->nunits = nunits;
    for (uint32_t u = 0; u < nunits; u++) {
        struct toy_unit *x = &toy->units[u];
        const uint64_t size[TOY_MAX_TENSORS] = {
            scale * 37 + u, scale * 5 + 1, u % 3, 1, scale * 11 + 3, 64};
        x->toy = toy;
        x->index = u;
        x->ntensors = 1 + u % TOY_MAX_TENSORS + (u == 0 ? 5 : 0);
        memcpy(x->elems, size, sizeof size);
    }
}

static int add_units(struct toy *t)
{
    struct haul_unit *visits[TOY_MAX_UNITS + 1];
    static const char *const names[TOY_MAX_TENSORS] = {"a", "b", "c", "d", "e", "f"};

    for (uint32_t u = 0; u < t->nunits; u++) {
        struct toy_unit *x = &t->units[u];
        struct haul_tensor tensors[TOY_MAX_TENSORS];
        char name[16];
        snprintf(name, sizeof name, "u%u", u);
        for (uint32_t a = 0; a < x->ntensors; a++)
            tensors[a] = (struct haul_tensor){.name = names[a],
                                              .ndims = 1,
                                              .shape = {x->elems[a]},
                                              .dtype = is_fp32(t, a) ? HAUL_FP32 : t->cfg.dtype,
                                              .group = group_of(t, a),
                                              .frozen = is_frozen(t, a)};
        struct haul_unit_desc d = {.struct_size = sizeof d,
                                   .name = name,
                                   .tensors = tensors,
                                   .ntensors = x->ntensors,
                                   .grad_dtype = t->cfg.buffer_dtype};
        int rc = haul_engine_add_unit(t->engine, &d, &x->unit);
        if (rc < 0)
            return rc;
        visits[u] = x->unit;
    }
    visits[t->nunits] = visits[0];
    return haul_engine_visits(t->engine, visits, t->nunits + (t->cfg.tied != 0));
}

static void twin_open(struct toy *t)
{
    for (uint32_t u = 0; u < t->nunits; u++)
        for (uint32_t a = 0; a < t->units[u].ntensors; a++) {
            struct toy_tensor *w = &t->units[u].twin[a];
            w->n = t->units[u].elems[a];
            w->p = calloc(w->n + 1, 4), w->m = calloc(w->n + 1, 4);
            w->v = calloc(w->n + 1, 4), w->grad = calloc(w->n + 1, 4);
            for (uint64_t i = 0; i < w->n; i++) {
                w->p[i] = initial(u, a, i);
                if (is_frozen(t, a) && !is_fp32(t, a))
                    w->p[i] = hl_bf16_to_float(hl_bf16_from_float(w->p[i]));
            }
        }
}

static int engine_open(struct toy *t)
{
    struct haul_engine_opts o;
    const struct toy_config *c = &t->cfg;

    haul_engine_opts_init(&o);
    o.device = t->dev;
    o.offload = c->offload;
    o.master = c->master;
    o.grad_dtype = c->grad_dtype;
    o.passes = c->passes;
    o.window = c->window;
    o.max_held = c->max_held;
    o.nthreads = c->nthreads;
    o.trace_events = c->trace_events;
    o.loss_scale = c->loss_scale;
    o.loss_scale_window = c->loss_scale_window ? c->loss_scale_window : 2000;
    o.slots = c->slots;
    o.overlap = !c->no_overlap;
    o.ngroups = c->ngroups;
    o.device_mem_bytes = c->device_mem;
    o.host_mem_bytes = c->host_mem;
    o.nvme_dirs = &c->nvme_dir;
    o.nnvme_dirs = c->nvme_dir != NULL;
    o.nvme_mem_bytes = c->nvme_mem;
    o.slot_bytes = c->slot_bytes;
    o.io_method = c->io_method;
    return haul_engine_open(&o, &t->engine);
}

static void set_defaults(struct toy_config *c)
{
    c->grad_dtype = c->grad_dtype ? c->grad_dtype : HAUL_BF16;
    c->buffer_dtype = c->buffer_dtype ? c->buffer_dtype : HAUL_FP32;
    c->dtype = c->dtype ? c->dtype : HAUL_BF16;
    c->passes = c->passes ? c->passes : 1;
    c->max_held = c->max_held ? c->max_held : 1;
    c->slots = c->slots ? c->slots : 2;
    c->ngroups = c->ngroups ? c->ngroups : GROUPS;
}

/* Device, stream, engine and units; not built. */
static int describe(struct toy *t, const struct toy_config *cfg, uint32_t nunits, uint64_t scale)
{
    struct haul_device_host_opts d;
    int rc;

    memset(t, 0, sizeof *t);
    t->cfg = *cfg;
    set_defaults(&t->cfg);
    toy_describe(t, nunits, scale);
    haul_device_host_opts_init(&d);
    d.jitter_seed = cfg->jitter_seed;
    rc = cfg->cuda ? haul_device_cuda_open(NULL, &t->dev) : haul_device_host_open(&d, &t->dev);
    if (rc < 0)
        return rc;
    if ((rc = haul_device_stream_open(t->dev, &t->stream)) < 0 || (rc = engine_open(t)) < 0 ||
        (rc = add_units(t)) < 0)
        toy_close(t);
    return rc;
}

int toy_open(struct toy *t, const struct toy_config *cfg, uint32_t nunits, uint64_t scale)
{
    int rc = describe(t, cfg, nunits, scale);

    if (rc < 0)
        return rc;
    if ((rc = haul_engine_build(t->engine)) < 0 ||
        (rc = haul_engine_fill(t->engine, fill, t)) < 0) {
        toy_close(t);
        return rc;
    }
    twin_open(t);
    return 0;
}

int toy_ledger(const struct toy_config *cfg, uint32_t nunits, uint64_t scale,
               uint64_t sum[HAUL_NTIERS], const char *purpose, uint64_t of_purpose[HAUL_NTIERS])
{
    static struct toy t;
    struct haul_ledger_line line;
    int rc = describe(&t, cfg, nunits, scale);

    memset(sum, 0, HAUL_NTIERS * sizeof *sum);
    memset(of_purpose, 0, HAUL_NTIERS * sizeof *of_purpose);
    for (uint32_t i = 0; rc == 0 && haul_engine_ledger(t.engine, i, &line) == 0; i++) {
        sum[line.tier] += line.bytes;
        if (strcmp(line.purpose, purpose) == 0)
            of_purpose[line.tier] += line.bytes;
    }
    if (rc == 0)
        toy_close(&t);
    return rc;
}

void toy_close(struct toy *t)
{
    if (t->stream && haul_device_stream_sync(t->dev, t->stream) < 0)
        fprintf(stderr, "toy: %s\n", haul_last_error());
    haul_engine_close(t->engine);
    if (t->stream)
        haul_device_stream_close(t->dev, t->stream);
    int rc = haul_device_close(t->dev);
    if (rc < 0)
        fprintf(stderr, "toy: %s\n", haul_last_error());
    for (uint32_t u = 0; u < t->nunits; u++)
        for (uint32_t a = 0; a < TOY_MAX_TENSORS; a++) {
            struct toy_tensor *w = &t->units[u].twin[a];
            free(w->p), free(w->m), free(w->v), free(w->grad);
        }
    memset(t, 0, sizeof *t);
}

static int visit_forward(struct toy *t, struct toy_unit *x)
{
    struct work *k = &work[nwork++];
    int rc = haul_unit_acquire(x->unit, t->stream, &k->w);

    k->u = x;
    if (rc == 0)
        rc = haul_device_launch(t->dev, t->stream, forward, k);
    return rc < 0 ? rc : haul_unit_release(x->unit, t->stream);
}

static int visit_backward(struct toy *t, struct toy_unit *x, unsigned pass, int more_visits)
{
    struct work *k = &work[nwork++];
    int rc = haul_unit_acquire(x->unit, t->stream, &k->w);

    if (rc < 0 || t->skip_unit == x->index + 1)
        return rc < 0 ? rc : haul_unit_release(x->unit, t->stream);
    *k = (struct work){.u = x,
                       .scale = (float)haul_engine_loss_scale(t->engine),
                       .w = k->w,
                       .step = t->step,
                       .pass = pass,
                       .plant = t->plant_inf == t->step && x->index == t->nunits / 2};
    rc = haul_unit_grad(x->unit, t->stream, &k->g);
    if (rc == 0)
        rc = haul_device_launch(t->dev, t->stream, backward, k);
    if (rc == 0 && !more_visits)
        rc = haul_unit_reduce(x->unit, t->stream);
    return rc < 0 ? rc : haul_unit_release(x->unit, t->stream);
}

static int one_pass(struct toy *t, unsigned pass)
{
    int rc = 0, tied = t->cfg.tied != 0;

    for (uint32_t u = 0; rc == 0 && u < t->nunits; u++)
        rc = visit_forward(t, &t->units[u]);
    if (rc == 0 && tied)
        rc = visit_forward(t, &t->units[0]);
    if (rc == 0 && tied)
        rc = visit_backward(t, &t->units[0], pass, 1);
    for (uint32_t u = t->nunits; rc == 0 && u-- > 0;)
        rc = visit_backward(t, &t->units[u], pass, 0);
    return rc;
}

int toy_step(struct toy *t, struct haul_report *report)
{
    struct haul_group_step groups[GROUPS];
    struct haul_step step = {.struct_size = sizeof step,
                             .groups = groups,
                             .clip_norm = t->cfg.clip,
                             .grad_scale = 1.0 / t->cfg.passes};
    int rc = 0;

    nwork = 0;
    t->step++;
    group_values(t, groups);
    for (unsigned p = 0; rc == 0 && p < t->cfg.passes; p++)
        rc = one_pass(t, p);
    if (rc == 0)
        rc = haul_engine_step(t->engine, &step, report);
    /* What a failed step has queued still uses work[]. */
    if (rc < 0 && haul_device_stream_sync(t->dev, t->stream) < 0)
        fprintf(stderr, "toy: %s\n", haul_last_error());
    return rc;
}

/* ---- on plain arrays ---- */

static float published(const struct toy *t, uint32_t a, float p)
{
    if (is_fp32(t, a))
        return p;
    return t->cfg.dtype == HAUL_BF16 ? hl_bf16_to_float(hl_bf16_from_float(p))
                                     : hl_fp16_to_float(hl_fp16_from_float(p));
}

static float narrow(enum haul_dtype dtype, float x)
{
    if (dtype == HAUL_FP32)
        return x;
    return dtype == HAUL_BF16 ? hl_bf16_to_float(hl_bf16_from_float(x))
                              : hl_fp16_to_float(hl_fp16_from_float(x));
}

static void twin_gradient(struct toy *t, struct toy_unit *x, uint32_t a)
{
    enum haul_dtype travel = is_fp32(t, a) ? HAUL_FP32 : t->cfg.grad_dtype;
    enum haul_dtype buffer = is_fp32(t, a) ? HAUL_FP32 : t->cfg.buffer_dtype;
    unsigned visits = t->cfg.tied && x->index == 0 ? 2 : 1;
    struct toy_tensor *w = &x->twin[a];

    for (uint64_t i = 0; i < w->n; i++)
        for (unsigned p = 0; p < t->cfg.passes; p++) {
            float b = 0;
            for (unsigned k = 0; k < visits; k++)
                b = narrow(buffer, b + gradient(published(t, a, w->p[i]), i, t->step, p));
            b = narrow(travel, b);
            w->grad[i] = p ? w->grad[i] + b : b;
        }
}

static int takes_part(const struct toy *t, const struct toy_unit *x, uint32_t a)
{
    return t->skip_unit != x->index + 1 && !is_frozen(t, a);
}

static void twin_update(struct toy *t, struct toy_unit *x, uint32_t a, double scale)
{
    struct haul_group_step groups[GROUPS];
    struct toy_tensor *w = &x->twin[a];
    struct haul_optim adamw;

    group_values(t, groups);
    haul_optim_init(&adamw, HAUL_ADAMW);
    struct haul_optim_arrays arrays = {.struct_size = sizeof arrays,
                                       .n = w->n,
                                       .grad_dtype = HAUL_FP32,
                                       .grad = w->grad,
                                       .master = w->p,
                                       .m = w->m,
                                       .v = w->v};
    struct haul_optim_step s = {.struct_size = sizeof s,
                                .step = x->nsteps,
                                .lr = groups[group_of(t, a)].lr,
                                .weight_decay = groups[group_of(t, a)].weight_decay,
                                .grad_scale = scale};
    if (w->n && haul_optim_update(&adamw, &arrays, &s, 1) < 0)
        fprintf(stderr, "twin: %s\n", haul_last_error());
}

void toy_twin_step(struct toy *t)
{
    double sum = 0, scale = 1.0 / t->cfg.passes;

    for (uint32_t u = 0; u < t->nunits; u++)
        for (uint32_t a = 0; a < t->units[u].ntensors; a++)
            if (takes_part(t, &t->units[u], a)) {
                twin_gradient(t, &t->units[u], a);
                for (uint64_t i = 0; i < t->units[u].elems[a]; i++)
                    sum += (double)t->units[u].twin[a].grad[i] * t->units[u].twin[a].grad[i];
            }
    t->twin_norm = sqrt(sum) * scale;
    if (t->plant_inf == t->step)
        return;
    for (uint32_t u = 0; u < t->nunits; u++) {
        if (t->skip_unit != u + 1)
            t->units[u].nsteps++;
        for (uint32_t a = 0; a < t->units[u].ntensors; a++)
            if (takes_part(t, &t->units[u], a))
                twin_update(t, &t->units[u], a, scale);
    }
}

int64_t toy_compare(struct toy *t)
{
    int64_t bad = 0;

    for (uint32_t u = 0; u < t->nunits; u++)
        for (uint32_t a = 0; a < t->units[u].ntensors; a++) {
            struct toy_tensor *w = &t->units[u].twin[a];
            float *got = malloc((w->n + 1) * sizeof *got);
            if (haul_tensor_read(t->units[u].unit, a, 0, w->n, got) < 0)
                bad = -1;
            for (uint64_t i = 0; bad >= 0 && i < w->n; i++)
                bad += hl_float_bits(got[i]) != hl_float_bits(w->p[i]);
            free(got);
            if (bad < 0)
                return bad;
        }
    return bad;
}

uint64_t toy_digest(struct toy *t)
{
    uint64_t d = 0;

    return haul_engine_digest(t->engine, &d) < 0 ? 0 : d;
}
