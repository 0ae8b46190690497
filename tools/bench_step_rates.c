/* bench_step_rates.c: the two rates that bound a step, measured alone. */
#include "bench_step_rates.h"

#include <stdlib.h>

#include "bench_io.h"
#include "placement.h"

/* The optimizer's rate is taken on at most so much. */
#define OPTIM_PARAMS (UINT64_C(64) << 20)
/* Records of the drive's roof: about what a ring of slots holds. */
#define ROOF_RECORD_BLOCKS 16u

void hl_samples_add(struct hl_samples *s, double v)
{
    s->v[s->n++] = v;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

double hl_samples_median(struct hl_samples *s)
{
    if (!s->n)
        return 0;
    qsort(s->v, s->n, sizeof *s->v, ascending);
    return (s->v[(s->n - 1) / 2] + s->v[s->n / 2]) / 2;
}

double hl_samples_spread(struct hl_samples *s)
{
    double mid = hl_samples_median(s);

    return mid > 0 ? (s->v[s->n - 1] - s->v[0]) / mid : 0;
}

static int open_model(const struct hl_step_model_opts *opts, struct hl_rate_meter *m)
{
    struct hl_step_model_opts o = *opts;
    uint64_t unit = o.params / o.units;

    o.placement = HL_STEP_HOST;
    o.offload = HAUL_OFFLOAD_ALL; /* offload optimizer would wait for the link as well */
    o.overlap = 0;
    if (o.params > OPTIM_PARAMS)
        o.units = (uint32_t)(OPTIM_PARAMS / unit ? OPTIM_PARAMS / unit : 1);
    o.params = unit * o.units;
    m->params = o.params;
    return hl_step_model_open(&o, &m->model);
}

static int open_roof(const struct hl_step_model_opts *opts, struct hl_rate_meter *m)
{
    struct hl_bench_io_opts o = {.pages = HL_PAGES_HUGE};

    m->block_bytes = hl_block_for(hl_step_record_bytes(opts, opts->params / opts->units));
    m->roof_bytes = hl_step_record_bytes(opts, opts->params);
    o.record_bytes = m->block_bytes * ROOF_RECORD_BLOCKS;
    if (m->roof_bytes < HL_BENCH_IO_LEAST(o.record_bytes))
        m->roof_bytes = HL_BENCH_IO_LEAST(o.record_bytes);
    haul_store_opts_init(&o.store);
    o.store.dirs = opts->dirs;
    o.store.ndirs = opts->ndirs;
    o.store.block_bytes = (uint32_t)m->block_bytes;
    o.bytes = m->roof_bytes;
    return hl_bench_io_open(&o, &m->roof);
}

int hl_rate_meter_open(const struct hl_step_model_opts *opts, int paging, struct hl_rate_meter *out)
{
    *out = (struct hl_rate_meter){0};
    int rc = open_model(opts, out);
    return rc < 0 || !paging ? rc : open_roof(opts, out);
}

void hl_rate_meter_close(struct hl_rate_meter *m)
{
    if (m->model)
        hl_step_model_close(m->model);
    if (m->roof)
        hl_bench_io_close(m->roof);
}

static int take_optim(struct hl_rate_meter *m)
{
    struct hl_step_compute none = {.grads = 1};
    struct haul_report r = {.struct_size = sizeof r};
    double wall_s;
    int rc = hl_step_model_run(m->model, &none, &wall_s, &r);
    const struct haul_lane_report *lane = &r.lanes[HAUL_LANE_OPTIM];

    if (rc < 0)
        return rc;
    /* Without overlap this is what step() waited for the updates, and for nothing else. */
    hl_samples_add(&m->optim_s, (double)lane->exposed_ns * 1e-9);
    hl_samples_add(&m->optim_bytes_per_s, (double)lane->bytes / ((double)lane->exposed_ns * 1e-9));
    return 0;
}

int hl_rate_meter_take(struct hl_rate_meter *m)
{
    struct hl_io_pass pass;
    int rc = take_optim(m);

    if (rc < 0 || !m->roof)
        return rc;
    rc = hl_bench_io_pass(m->roof, HL_IO_MIXED, &pass);
    if (rc == 0)
        hl_samples_add(&m->mixed_bytes_per_s, pass.gb_per_s * 1e9);
    return rc;
}

void hl_rate_meter_read(struct hl_rate_meter *m, struct hl_step_rates *out)
{
    out->optim_s_per_elem = hl_samples_median(&m->optim_s) / (double)m->params;
    out->optim_spread = hl_samples_spread(&m->optim_s);
    out->optim_bytes_per_s = hl_samples_median(&m->optim_bytes_per_s);
    out->mixed_bytes_per_s = hl_samples_median(&m->mixed_bytes_per_s);
    out->mixed_spread = hl_samples_spread(&m->mixed_bytes_per_s);
}

void hl_rate_meter_reset(struct hl_rate_meter *m)
{
    m->optim_s.n = m->optim_bytes_per_s.n = m->mixed_bytes_per_s.n = 0;
}
