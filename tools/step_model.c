/* step_model.c: units, their order, and compute that is a wait. */
#include "step_model.h"

#include <stdio.h>
#include <string.h>

#include "clock.h"
#include "device_ops.h"
#include "fail.h"
#include "sys.h"

#define PATTERN_ELEMS   (UINT64_C(1) << 20)
#define SLOT_BYTES_MOST (UINT64_C(32) << 20) /* the engine's own limit */
/* What placing rounds up in a budget: whole pages for a few regions. */
#define PAGE_SLACK (UINT64_C(16) * 4096)

/* The writing of one gradient; lives until the step is over. */
struct work {
    struct hl_step_model *model;
    uint64_t elems;
    uint16_t *grad;
};

struct hl_step_model {
    struct hl_step_model_opts opts;
    struct haul_device *dev;
    void *stream;
    struct haul_engine *engine;
    struct haul_unit **unit;
    struct work *work; /* (passes, units) */
    uint16_t *pattern; /* (PATTERN_ELEMS,) small BF16 numbers */
};

/* ---- queued on the device ---- */

static uint32_t passes_of(const struct hl_step_model_opts *o)
{
    return o->passes ? o->passes : 1;
}

static void write_gradient(void *user)
{
    const struct work *w = user;

    for (uint64_t at = 0; at < w->elems; at += PATTERN_ELEMS) {
        uint64_t n = w->elems - at < PATTERN_ELEMS ? w->elems - at : PATTERN_ELEMS;

        memcpy(w->grad + at, w->model->pattern, n * sizeof *w->grad);
    }
}

/* A unit's part of what a pass over all units takes. */
static int compute(struct hl_step_model *m, double all_s)
{
    double s = all_s / m->opts.units / passes_of(&m->opts);

    return s > 0 ? hl_device_host_occupy(m->dev, m->stream, (uint64_t)(s * 1e9)) : 0;
}

/* ---- a step ---- */

uint64_t hl_step_record_bytes(const struct hl_step_model_opts *opts, uint64_t params)
{
    return params * (opts->master == HAUL_MASTER_SPLIT ? 10 : 12);
}

static uint64_t unit_elems(const struct hl_step_model_opts *o, uint32_t unit)
{
    return o->params / o->units + (unit < o->params % o->units);
}

static int forward(struct hl_step_model *m, uint32_t i, const struct hl_step_compute *c)
{
    struct haul_view view;
    int rc = haul_unit_acquire(m->unit[i], m->stream, &view);

    if (rc == 0)
        rc = compute(m, c->forward_s);
    return rc < 0 ? rc : haul_unit_release(m->unit[i], m->stream);
}

static int backward(struct hl_step_model *m, struct work *w, uint32_t i,
                    const struct hl_step_compute *c)
{
    struct haul_view view, grad;
    int rc;

    if ((rc = haul_unit_acquire(m->unit[i], m->stream, &view)) < 0 ||
        (rc = haul_unit_grad(m->unit[i], m->stream, &grad)) < 0)
        return rc;
    *w = (struct work){m, unit_elems(&m->opts, i), haul_view_tensor(&grad, 0)};
    if ((c->grads && (rc = haul_device_launch(m->dev, m->stream, write_gradient, w)) < 0) ||
        (rc = compute(m, c->backward_s)) < 0 || (rc = haul_unit_reduce(m->unit[i], m->stream)) < 0)
        return rc;
    return haul_unit_release(m->unit[i], m->stream);
}

/* Forward and backward over the model. work: (units,) */
static int run_pass(struct hl_step_model *m, struct work *work, const struct hl_step_compute *c)
{
    uint32_t n = m->opts.units;
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < n; i++)
        rc = forward(m, i, c);
    for (uint32_t i = n; rc == 0 && i-- > 0;)
        rc = backward(m, &work[i], i, c);
    return rc;
}

int hl_step_model_run(struct hl_step_model *m, const struct hl_step_compute *c, double *wall_s,
                      struct haul_report *report)
{
    struct haul_step step = {.lr = 1e-4, .weight_decay = 0.01, .clip_norm = 1};
    uint64_t begin = hl_clock_ns();
    int rc = 0;

    for (uint32_t p = 0; rc == 0 && p < passes_of(&m->opts); p++)
        rc = run_pass(m, &m->work[(uint64_t)m->opts.units * p], c);
    if (rc == 0)
        rc = haul_engine_step(m->engine, &step, report);
    *wall_s = (double)(hl_clock_ns() - begin) * 1e-9;
    return rc;
}

int hl_step_model_sync(struct hl_step_model *m)
{
    return haul_engine_sync(m->engine);
}

int hl_step_model_digest(struct hl_step_model *m, uint64_t *out)
{
    return haul_engine_digest(m->engine, out);
}

/* ---- opening ---- */

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* Signs and mantissas at random, magnitudes from 2^-13 to 2^-6. */
static void make_pattern(uint16_t *out)
{
    uint64_t state = 0x9e3779b97f4a7c15;

    for (uint64_t i = 0; i < PATTERN_ELEMS; i++) {
        uint64_t x = next_random(&state);

        out[i] = (uint16_t)((x & 0x807f) | (114 + (x >> 32) % 8) << 7);
    }
}

/* Values of an element's index alone: the engine asks in pieces. */
static int fill_params(void *user, const char *unit, uint32_t tensor, uint64_t first, uint64_t n,
                       float *out)
{
    const struct hl_step_model *m = user;

    for (uint64_t i = 0; i < n; i++) {
        uint64_t at = first + i;
        uint32_t bits = (uint32_t)m->pattern[at % PATTERN_ELEMS] << 16 | (uint32_t)(at % 7);

        memcpy(&out[i], &bits, sizeof bits);
    }
    return 0;
}

static int open_device(struct hl_step_model *m)
{
    struct haul_device_host_opts o;

    haul_device_host_opts_init(&o);
    o.h2d_bytes_per_s = o.d2h_bytes_per_s = m->opts.link_bytes_per_s;
    int rc = haul_device_host_open(&o, &m->dev);
    return rc < 0 ? rc : haul_device_stream_open(m->dev, &m->stream);
}

static int add_units(struct hl_step_model *m)
{
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < m->opts.units; i++) {
        struct haul_tensor w = {
            .name = "w", .ndims = 1, .shape = {unit_elems(&m->opts, i)}, .dtype = HAUL_BF16};
        char name[16];

        snprintf(name, sizeof name, "u%u", i);
        struct haul_unit_desc d = {.struct_size = sizeof d,
                                   .name = name,
                                   .tensors = &w,
                                   .ntensors = 1,
                                   .grad_dtype = HAUL_BF16};
        rc = haul_engine_add_unit(m->engine, &d, &m->unit[i]);
    }
    return rc;
}

/* A few units would make slots that hold most of the records: together they take an eighth at most. */
uint64_t hl_step_slot_bytes(const struct hl_step_model_opts *s, uint32_t slots)
{
    if (s->slot_bytes)
        return s->slot_bytes;
    uint64_t bytes = hl_step_record_bytes(s, s->params) / 8 / slots;

    return bytes < SLOT_BYTES_MOST ? bytes + 1 : SLOT_BYTES_MOST;
}

/* An engine with its units, not built. */
static int open_engine(struct hl_step_model *m, uint64_t host_mem_bytes)
{
    const struct hl_step_model_opts *s = &m->opts;
    struct haul_engine_opts o;

    haul_engine_opts_init(&o);
    o.device = m->dev;
    o.offload = s->placement == HL_STEP_DEVICE ? HAUL_OFFLOAD_NONE : s->offload;
    o.master = s->master;
    o.overlap = s->overlap;
    o.nthreads = s->nthreads;
    o.host_mem_bytes = host_mem_bytes;
    if (s->slots)
        o.slots = s->slots;
    if (s->window)
        o.window = s->window;
    o.passes = passes_of(s);
    o.slot_bytes = hl_step_slot_bytes(s, o.slots);
    if (hl_step_pages(s->placement)) {
        o.nvme_dirs = s->dirs;
        o.nnvme_dirs = s->ndirs;
    }
    int rc = haul_engine_open(&o, &m->engine);
    return rc < 0 ? rc : add_units(m);
}

int hl_step_model_bytes(struct hl_step_model *m, enum haul_tier tier, const char *purpose,
                        uint64_t *out)
{
    struct haul_ledger_line line;
    uint32_t i = 0;
    int rc;

    for (*out = 0; (rc = haul_engine_ledger(m->engine, i, &line)) == 0; i++)
        if (line.tier == tier && (!purpose || strcmp(line.purpose, purpose) == 0))
            *out += line.bytes;
    return rc == -EINVAL && i ? 0 : rc;
}

/* The budget that the placement means: a plan with no budget at all pages everything that can be; host
 * memory then holds the floor, and gets the parameters back. */
static int find_budget(struct hl_step_model *m, uint64_t *out)
{
    uint64_t all, slots, params, records;
    int rc;

    *out = HAUL_UNLIMITED;
    if (!hl_step_pages(m->opts.placement))
        return 0;
    *out = m->opts.host_mem_bytes;
    if (*out)
        return 0;
    if ((rc = open_engine(m, 1)) == 0 &&
        (rc = hl_step_model_bytes(m, HAUL_TIER_HOST, NULL, &all)) == 0 &&
        (rc = hl_step_model_bytes(m, HAUL_TIER_HOST, "parameter slots", &slots)) == 0 &&
        (rc = hl_step_model_bytes(m, HAUL_TIER_NVME, "parameters", &params)) == 0)
        rc = hl_step_model_bytes(m, HAUL_TIER_NVME, "records", &records);
    haul_engine_close(m->engine);
    m->engine = NULL;
    if (rc == 0)
        *out = all - slots + params + PAGE_SLACK +
               (m->opts.placement == HL_STEP_MIXED ? records / 2 : 0);
    return rc;
}

static int prepare(struct hl_step_model *m)
{
    uint64_t budget;
    int rc;

    if ((rc = hl_sys_alloc_array(m->opts.units, sizeof *m->unit, (void **)&m->unit)) < 0 ||
        (rc = hl_sys_alloc_array((uint64_t)m->opts.units * passes_of(&m->opts), sizeof *m->work,
                                 (void **)&m->work)) < 0 ||
        (rc = hl_sys_alloc_array(PATTERN_ELEMS, sizeof *m->pattern, (void **)&m->pattern)) < 0 ||
        (rc = open_device(m)) < 0 || (rc = find_budget(m, &budget)) < 0)
        return rc;
    make_pattern(m->pattern);
    return open_engine(m, budget);
}

static int make(const struct hl_step_model_opts *opts, struct hl_step_model **out)
{
    void *mem;
    int rc = hl_sys_alloc(sizeof **out, &mem);

    if (rc < 0)
        return rc;
    *out = mem;
    (*out)->opts = *opts;
    rc = prepare(*out);
    if (rc < 0)
        hl_step_model_close(*out);
    return rc;
}

int hl_step_model_open(const struct hl_step_model_opts *opts, struct hl_step_model **out)
{
    struct hl_step_model *m;
    int rc = make(opts, &m);

    if (rc < 0)
        return rc;
    rc = haul_engine_build(m->engine);
    if (rc == 0)
        rc = haul_engine_fill(m->engine, fill_params, m);
    if (rc < 0)
        hl_step_model_close(m);
    else
        *out = m;
    return rc;
}

int hl_step_model_plan(const struct hl_step_model_opts *opts, uint64_t bytes[HAUL_NTIERS])
{
    struct hl_step_model *m;
    int rc = make(opts, &m);

    if (rc < 0)
        return rc;
    for (unsigned t = 0; rc == 0 && t < HAUL_NTIERS; t++)
        rc = hl_step_model_bytes(m, (enum haul_tier)t, NULL, &bytes[t]);
    hl_step_model_close(m);
    return rc;
}

void hl_step_model_close(struct hl_step_model *m)
{
    int idle = m->stream ? haul_device_stream_sync(m->dev, m->stream) : 0;

    (void)idle; /* an error has been told already */
    haul_engine_close(m->engine);
    if (m->stream)
        haul_device_stream_close(m->dev, m->stream);
    (void)haul_device_close(m->dev);
    hl_sys_free(m->pattern);
    hl_sys_free(m->work);
    hl_sys_free(m->unit);
    hl_sys_free(m);
}
