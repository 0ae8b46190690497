/* bench_step_rates.c: the rates that bound a step, measured alone and beside each other. */
#include "bench_step_rates.h"

#include <stdlib.h>

#include "bench_io.h"
#include "placement.h"

/* The optimizer's rate is taken on at most so much. */
#define OPTIM_PARAMS (UINT64_C(64) << 20)
/* Records of the drive's roof: more than a ring of slots has under way. */
#define ROOF_RECORD_BLOCKS 16u
#define SLOTS_DEFAULT      4 /* the engine's */
#define RECORDS_ALONE      16

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

/* Of one slot, as the engine cuts it. */
static uint64_t slot_bytes(const struct hl_step_model_opts *opts, const struct hl_rate_meter *m,
                           uint64_t record)
{
    const uint64_t most = hl_step_slot_bytes(opts, m->slots), block = m->block_bytes;

    return ((record < most ? record : most) + block - 1) / block * block;
}

static int open_roof(const struct hl_step_model_opts *opts, struct hl_rate_meter *m)
{
    const uint64_t record = hl_step_record_bytes(opts, opts->params / opts->units);
    struct hl_bench_io_opts o = {.pages = HL_PAGES_HUGE};

    m->slots = opts->slots ? opts->slots : SLOTS_DEFAULT;
    m->block_bytes = hl_block_for(record);
    m->roof_bytes = hl_step_record_bytes(opts, opts->params);
    m->slot_bytes = slot_bytes(opts, m, record);
    m->record_bytes = m->block_bytes * ROOF_RECORD_BLOCKS;
    if (m->record_bytes < m->slot_bytes)
        m->record_bytes = m->slot_bytes;
    o.record_bytes = m->record_bytes;
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
    if (rc == 0)
        rc = hl_beside_open(opts->master, opts->nthreads, opts->params / opts->units, &out->beside);
    return rc < 0 || !paging ? rc : open_roof(opts, out);
}

void hl_rate_meter_close(struct hl_rate_meter *m)
{
    if (m->model)
        hl_step_model_close(m->model);
    hl_beside_close(m->beside);
    if (m->roof)
        hl_bench_io_close(m->roof);
}

static void add(struct hl_rate_meter *m, enum hl_rate which, double v)
{
    hl_samples_add(&m->got[which], v);
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
    add(m, HL_METER_OPTIM_S, (double)lane->exposed_ns * 1e-9);
    add(m, HL_METER_OPTIM, (double)lane->bytes / ((double)lane->exposed_ns * 1e-9));
    return 0;
}

static int take_beside(struct hl_rate_meter *m)
{
    struct hl_beside_rates r = {0};
    int rc = hl_beside_take(m->beside, m->roof, &r);

    if (rc < 0)
        return rc;
    const double cost = hl_beside_cost(r.optim, r.optim_at_copy, r.copy_too);
    add(m, HL_METER_NORM, r.norm);
    add(m, HL_METER_ACCUMULATE, r.accumulate);
    add(m, HL_METER_COPY, r.copy);
    add(m, HL_METER_COPY_COST, cost);
    add(m, HL_METER_DRIVE_COST, hl_beside_cost(r.optim, r.optim_at_drive, r.drive_too));
    if (cost > 0)
        add(m, HL_METER_WEIGHT, r.optim_at_copy / (cost * r.copy_too));
    return 0;
}

static int take_drive(struct hl_rate_meter *m)
{
    struct hl_io_pass pass;
    double read, write, ring, paged;
    int rc;

    hl_bench_io_set_record_bytes(m->roof, m->record_bytes);
    rc = hl_bench_io_pass(m->roof, HL_IO_MIXED, &pass);
    if (rc < 0)
        return rc;
    hl_bench_io_set_record_bytes(m->roof, m->slot_bytes);
    if ((rc = hl_bench_io_alone(m->roof, 0, m->slots, RECORDS_ALONE, &read)) < 0 ||
        (rc = hl_bench_io_alone(m->roof, 1, m->slots, RECORDS_ALONE, &write)) < 0 ||
        (rc = hl_bench_io_ring(m->roof, m->slots, &ring)) < 0 ||
        (rc = hl_beside_paged(m->beside, m->roof, m->slots, m->slot_bytes, &paged)) < 0)
        return rc;
    add(m, HL_METER_MIXED, pass.gb_per_s * 1e9);
    add(m, HL_METER_READ, read);
    add(m, HL_METER_WRITE, write);
    add(m, HL_METER_RING, ring);
    add(m, HL_METER_PAGED, paged);
    return 0;
}

int hl_rate_meter_take(struct hl_rate_meter *m)
{
    int rc = take_optim(m);

    if (rc == 0)
        rc = take_beside(m);
    return rc < 0 || !m->roof ? rc : take_drive(m);
}

void hl_rate_meter_read(struct hl_rate_meter *m, struct hl_step_rates *out)
{
    double v[HL_METER_NRATES];

    for (unsigned i = 0; i < HL_METER_NRATES; i++)
        v[i] = hl_samples_median(&m->got[i]);
    *out = (struct hl_step_rates){.optim_s_per_elem = v[HL_METER_OPTIM_S] / (double)m->params,
                                  .optim_spread = hl_samples_spread(&m->got[HL_METER_OPTIM_S]),
                                  .optim_bytes_per_s = v[HL_METER_OPTIM],
                                  .read_bytes_per_s = v[HL_METER_READ],
                                  .write_bytes_per_s = v[HL_METER_WRITE],
                                  .mixed_bytes_per_s = v[HL_METER_MIXED],
                                  .mixed_spread = hl_samples_spread(&m->got[HL_METER_MIXED]),
                                  .ring_bytes_per_s = v[HL_METER_RING],
                                  .paged_bytes_per_s = v[HL_METER_PAGED],
                                  .norm_bytes_per_s = v[HL_METER_NORM],
                                  .accumulate_bytes_per_s = v[HL_METER_ACCUMULATE],
                                  .copy_bytes_per_s = v[HL_METER_COPY],
                                  .mem_per_copied_byte = v[HL_METER_COPY_COST],
                                  .mem_per_drive_byte = v[HL_METER_DRIVE_COST],
                                  .optim_weight = v[HL_METER_WEIGHT]};
}

void hl_rate_meter_reset(struct hl_rate_meter *m)
{
    for (unsigned i = 0; i < HL_METER_NRATES; i++)
        m->got[i].n = 0;
}
