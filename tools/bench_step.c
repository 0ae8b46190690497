/* bench_step.c: rows, their turns, and the bound. */
#include "bench_step.h"

#include <string.h>

#include "fail.h"
#include "hostmem.h"
#include "time_left.h"

/* When the caller leaves the size open: so many parameters, or what about 75 s are enough for. */
#define PARAMS_DEFAULT  (UINT64_C(32) << 20)
#define PARAMS_LEAST    (UINT64_C(1) << 20)
#define SECONDS_DEFAULT 75.0
#define RIDGE_FACTOR    1.3
#define RATES_FIRST     5

/* Of one row, by step. */
struct series {
    struct hl_samples step_s, h2d, d2h, optim, io, h2d_bytes, d2h_bytes, io_bytes;
};

struct bench {
    const struct hl_step_bench_opts *opts;
    struct hl_step_bench *out;
    struct hl_rate_meter meter;
    struct hl_step_model *model[HL_STEP_ROWS];
    struct series series[HL_STEP_ROWS];
    struct hl_time_left left;
    uint64_t nturns;
};

const char *hl_step_placement_name(enum hl_step_placement placement)
{
    static const char *const names[] = {"device", "host", "nvme", "mixed"};

    return names[placement];
}

static double max_of(double a, double b)
{
    return a > b ? a : b;
}

static double over(double bytes, double bytes_per_s)
{
    return bytes_per_s > 0 ? bytes / bytes_per_s : 0;
}

/* ---- size of the model, length of the compute ---- */

/* Seconds per parameter of forward at which the slower of optimizer and drive is just hidden. */
static double ridge_s_per_elem(const struct bench *b, const struct hl_step_rates *r)
{
    double both_ways = 2 * (double)hl_step_record_bytes(&b->opts->model, 1);

    return max_of(over(both_ways, r->mixed_bytes_per_s), r->optim_s_per_elem);
}

static void choose_params(struct bench *b, double ridge)
{
    const struct hl_step_bench_opts *o = b->opts;
    double per_elem = ridge * (2 * RIDGE_FACTOR * (1 + o->backward_ratio) + 2);
    double most = SECONDS_DEFAULT / per_elem / o->repeats / b->out->nrows;

    b->out->params = o->model.params ? o->model.params : PARAMS_DEFAULT;
    if (!o->model.params && (double)b->out->params > most)
        b->out->params = (uint64_t)max_of(most, (double)PARAMS_LEAST);
}

static void choose_compute(struct bench *b, double ridge)
{
    const struct hl_step_bench_opts *o = b->opts;
    double n = (double)b->out->params;

    b->out->forward_s = o->no_compute               ? 0
                        : o->forward_s_per_elem > 0 ? o->forward_s_per_elem * n
                        : o->forward_s > 0          ? o->forward_s
                                                    : RIDGE_FACTOR * ridge * n;
    b->out->backward_s = b->out->forward_s * o->backward_ratio;
}

static int open_meter(struct bench *b)
{
    struct hl_step_model_opts o = b->opts->model;
    struct hl_step_rates rates;
    int paging = 0, rc;

    if (!o.params)
        o.params = PARAMS_DEFAULT;
    for (uint32_t i = 0; i < b->out->nrows; i++)
        paging |= hl_step_pages(b->out->row[i].placement);
    rc = hl_rate_meter_open(&o, paging, &b->meter);
    for (uint32_t i = 0; rc == 0 && i < RATES_FIRST; i++)
        rc = hl_rate_meter_take(&b->meter);
    if (rc < 0)
        return rc;
    b->out->block_bytes = b->meter.block_bytes;
    b->out->roof_bytes = b->meter.roof_bytes;
    hl_rate_meter_read(&b->meter, &rates);
    double ridge = ridge_s_per_elem(b, &rates);
    choose_params(b, ridge);
    choose_compute(b, ridge);
    return 0;
}

/* ---- rows ---- */

static void list_rows(struct bench *b)
{
    for (int p = 0; p < HL_STEP_PLACEMENTS; p++)
        for (int overlap = 0; overlap < 2; overlap++)
            if ((b->opts->placement < 0 || b->opts->placement == p) &&
                (b->opts->overlap < 0 || b->opts->overlap == overlap))
                b->out->row[b->out->nrows++] = (struct hl_step_row){
                    .placement = (enum hl_step_placement)p, .overlap = overlap};
}

static struct hl_step_model_opts row_opts(const struct bench *b, uint32_t i)
{
    struct hl_step_model_opts o = b->opts->model;

    o.params = b->out->params;
    o.placement = b->out->row[i].placement;
    o.overlap = b->out->row[i].overlap;
    return o;
}

static int open_row(struct bench *b, uint32_t i)
{
    struct hl_step_model_opts o = row_opts(b, i);
    struct hl_step_row *row = &b->out->row[i];
    int rc = hl_step_model_open(&o, &b->model[i]);

    for (unsigned t = 0; rc == 0 && t < HAUL_NTIERS; t++)
        rc = hl_step_model_bytes(b->model[i], (enum haul_tier)t, "records", &row->records_bytes[t]);
    return rc < 0 ? rc : hl_step_model_bytes(b->model[i], HAUL_TIER_HOST, NULL, &row->host_bytes);
}

static void close_row(struct bench *b, uint32_t i)
{
    if (b->model[i])
        hl_step_model_close(b->model[i]);
    b->model[i] = NULL;
}

/* What is open already has been taken off what is available. */
static int find_interleaved(struct bench *b)
{
    uint64_t need = 0, bytes[HAUL_NTIERS];
    struct hl_hostmem mem;
    int rc = hl_hostmem_read(NULL, NULL, &mem);

    for (uint32_t i = 0; rc == 0 && i < b->out->nrows; i++) {
        struct hl_step_model_opts o = row_opts(b, i);

        rc = hl_step_model_plan(&o, bytes);
        need += bytes[HAUL_TIER_DEVICE] + bytes[HAUL_TIER_HOST];
    }
    b->out->interleaved = rc == 0 && need < mem.avail_bytes / 4 * 3;
    return rc;
}

/* ---- turns ---- */

static double exposed_s(const struct haul_report *r, enum haul_lane lane)
{
    return (double)r->lanes[lane].exposed_ns * 1e-9;
}

static double moved(const struct haul_report *r, enum haul_lane lane)
{
    return (double)r->lanes[lane].bytes;
}

static void add_step(struct series *s, double wall_s, const struct haul_report *r)
{
    hl_samples_add(&s->step_s, wall_s);
    hl_samples_add(&s->h2d, exposed_s(r, HAUL_LANE_H2D));
    hl_samples_add(&s->d2h, exposed_s(r, HAUL_LANE_D2H));
    hl_samples_add(&s->optim, exposed_s(r, HAUL_LANE_OPTIM));
    hl_samples_add(&s->io, exposed_s(r, HAUL_LANE_IO_READ) + exposed_s(r, HAUL_LANE_IO_WRITE));
    hl_samples_add(&s->h2d_bytes, moved(r, HAUL_LANE_H2D));
    hl_samples_add(&s->d2h_bytes, moved(r, HAUL_LANE_D2H));
    hl_samples_add(&s->io_bytes, moved(r, HAUL_LANE_IO_READ) + moved(r, HAUL_LANE_IO_WRITE));
}

/* The step before the measured one is like it: in a run the slots are full of records read ahead during its
 * backward, and its writes may still be under way. */
static int turn(struct bench *b, uint32_t i)
{
    struct hl_step_compute lead = {.grads = 1}, timed = {b->out->forward_s, b->out->backward_s, 0};
    struct haul_report report = {.struct_size = sizeof report};
    struct hl_step_model *m = b->model[i];
    double wall_s;
    int rc = hl_step_model_run(m, &lead, &wall_s, NULL);

    if (rc == 0)
        rc = hl_step_model_run(m, &timed, &wall_s, NULL);
    if (rc == 0)
        rc = hl_step_model_run(m, &timed, &wall_s, &report);
    if (rc == 0)
        add_step(&b->series[i], wall_s, &report);
    hl_time_left_at(&b->left, ++b->nturns);
    return rc < 0 ? rc : hl_step_model_sync(m);
}

/* And a turn that does not count: memory and code are touched. */
static int open_warm(struct bench *b, uint32_t i)
{
    int rc = open_row(b, i);

    if (rc == 0)
        rc = turn(b, i);
    memset(&b->series[i], 0, sizeof b->series[i]);
    return rc;
}

/* ---- what came out ---- */

/* Bytes on nvme in a step, and of these what must move before the last update: the slots are full when
 * updates begin, and may still have to be written when they end. Parameters are read once more, for the
 * backward pass. */
static int nvme_terms(struct bench *b, uint32_t i)
{
    struct hl_step_row *row = &b->out->row[i];
    uint64_t all, slots, params;
    int rc;

    if ((rc = hl_step_model_bytes(b->model[i], HAUL_TIER_NVME, NULL, &all)) < 0 ||
        (rc = hl_step_model_bytes(b->model[i], HAUL_TIER_NVME, "parameters", &params)) < 0 ||
        (rc = hl_step_model_bytes(b->model[i], HAUL_TIER_HOST, "record slots", &slots)) < 0)
        return rc;
    row->nvme_s = over(2 * max_of((double)all - (double)slots, 0), row->rates.mixed_bytes_per_s);
    row->nvme_all_s = over(2 * (double)all + (double)params, row->rates.mixed_bytes_per_s);
    return 0;
}

/* Parameters go up while later units are updated: all but the last unit's. A copy over the emulated link is a
 * thread's work; where the team has every core, it takes its time from one of them. */
static double copies_s(const struct bench *b, const struct hl_step_row *row)
{
    const struct hl_step_model_opts *o = &b->opts->model;
    const double up = 2.0 * (double)b->out->params * (o->units - 1) / o->units;
    const unsigned cores = haul_optim_threads(1), team = o->nthreads ? o->nthreads : cores;

    if (!row->overlap || row->placement == HL_STEP_DEVICE || team < cores)
        return 0;
    return over(up, row->rates.copy_bytes_per_s) / cores;
}

static int finish_row(struct bench *b, uint32_t i)
{
    struct hl_step_row *row = &b->out->row[i];
    struct series *s = &b->series[i];
    int rc;

    row->step_s = hl_samples_median(&s->step_s); /* sorted now */
    row->fastest_s = s->step_s.v[0];
    row->slowest_s = s->step_s.v[s->step_s.n - 1];
    row->compute_s = b->out->forward_s + b->out->backward_s;
    row->exposed_h2d_s = hl_samples_median(&s->h2d);
    row->exposed_d2h_s = hl_samples_median(&s->d2h);
    row->exposed_optim_s = hl_samples_median(&s->optim);
    row->exposed_io_s = hl_samples_median(&s->io);
    row->h2d_bytes = hl_samples_median(&s->h2d_bytes);
    row->d2h_bytes = hl_samples_median(&s->d2h_bytes);
    row->io_bytes = hl_samples_median(&s->io_bytes);
    hl_rate_meter_read(&b->meter, &row->rates);
    row->optim_s = row->rates.optim_s_per_elem * (double)b->out->params;
    row->cores_s = row->optim_s + copies_s(b, row);
    row->h2d_s = over(row->h2d_bytes, b->opts->model.link_bytes_per_s);
    row->d2h_s = over(row->d2h_bytes, b->opts->model.link_bytes_per_s);
    if ((rc = nvme_terms(b, i)) < 0)
        return rc;
    row->bound_s =
        max_of(b->out->forward_s, max_of(row->cores_s, row->nvme_s)) + b->out->backward_s;
    row->bound_s = max_of(row->bound_s, max_of(row->nvme_all_s, max_of(row->h2d_s, row->d2h_s)));
    const struct hl_step_model_opts o = row_opts(b, i);
    if ((rc = hl_step_predict(&o, b->out, row)) < 0)
        return rc;
    return hl_step_model_digest(b->model[i], &row->digest);
}

static int run_interleaved(struct bench *b)
{
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < b->out->nrows; i++)
        rc = open_warm(b, i);
    hl_rate_meter_reset(&b->meter);
    for (uint32_t k = 0; rc == 0 && k < b->opts->repeats; k++) {
        rc = hl_rate_meter_take(&b->meter);
        for (uint32_t i = 0; rc == 0 && i < b->out->nrows; i++)
            rc = turn(b, i);
    }
    for (uint32_t i = 0; rc == 0 && i < b->out->nrows; i++)
        rc = finish_row(b, i);
    return rc;
}

static int run_in_sequence(struct bench *b)
{
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < b->out->nrows; i++) {
        rc = open_warm(b, i);
        hl_rate_meter_reset(&b->meter);
        for (uint32_t k = 0; rc == 0 && k < b->opts->repeats; k++)
            if ((rc = hl_rate_meter_take(&b->meter)) == 0)
                rc = turn(b, i);
        if (rc == 0)
            rc = finish_row(b, i);
        close_row(b, i);
    }
    return rc;
}

static int compare_digests(const struct hl_step_bench *out)
{
    for (uint32_t i = 1; i < out->nrows; i++)
        if (out->row[i].digest != out->row[0].digest)
            return hl_fail(HAUL_E_STATE,
                           "placement %s, overlap %s ends with digest %016llx, the first row with "
                           "%016llx: a defect, or memory or drive that loses bits",
                           hl_step_placement_name(out->row[i].placement),
                           out->row[i].overlap ? "deferred" : "off",
                           (unsigned long long)out->row[i].digest,
                           (unsigned long long)out->row[0].digest);
    return 0;
}

int hl_bench_step(const struct hl_step_bench_opts *opts, struct hl_step_bench *out)
{
    static struct bench bench; /* large, and a command runs once */
    struct bench *b = &bench;
    int rc;

    *b = (struct bench){.opts = opts, .out = out};
    *out = (struct hl_step_bench){0};
    list_rows(b);
    rc = open_meter(b);
    if (rc == 0)
        rc = find_interleaved(b);
    hl_time_left_begin(&b->left, "bench step", (uint64_t)out->nrows * (opts->repeats + 1), 0);
    if (rc == 0)
        rc = out->interleaved ? run_interleaved(b) : run_in_sequence(b);
    hl_time_left_end(&b->left);
    for (uint32_t i = 0; i < out->nrows; i++)
        close_row(b, i);
    hl_rate_meter_close(&b->meter);
    return rc < 0 ? rc : compare_digests(out);
}
