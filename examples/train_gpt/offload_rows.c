/* offload_rows.c: see offload_rows.h. */
#include "offload_rows.h"

#include <inttypes.h>
#include <stdio.h>
#include "compute.h"

const char *const offload_row_names[OFFLOAD_ROWS] = {"none", "optimizer", "all"};
static const unsigned row_offloads[OFFLOAD_ROWS] = {HAUL_OFFLOAD_NONE, HAUL_OFFLOAD_OPTIMIZER,
                                                    HAUL_OFFLOAD_ALL};

const enum haul_lane offload_lanes[OFFLOAD_LANES] = {HAUL_LANE_H2D, HAUL_LANE_D2H, HAUL_LANE_OPTIM,
                                                     HAUL_LANE_IO_READ, HAUL_LANE_IO_WRITE};

/* ---- rows ---- */

/* The reference has all it wants; budgets are for what stands beside it. */
static struct args row_args(const struct args *args, int i)
{
    struct args a = *args;

    a.offload = row_offloads[i];
    a.quiet = true;
    if (a.offload != HAUL_OFFLOAD_ALL)
        a.window = 0;
    if (a.offload != HAUL_OFFLOAD_NONE)
        return a;
    a.device_mem_bytes = a.host_mem_bytes = a.nvme_mem_bytes = a.stash_mem_bytes = 0;
    a.nnvme_dirs = 0;
    a.slots = a.slot_bytes = 0;
    a.stash = false;
    return a;
}

/* What the row will reserve, and whether the device has as much: only the reference may lack it, the others
 * are told by the engine what they are short of. */
static int plan_row(struct offload_rows *b, int i)
{
    struct offload_row *row = &b->row[i];
    struct haul_device_mem mem = {.struct_size = sizeof mem};
    struct haul_ledger_line line;
    int rc;

    row->args.plan_only = true;
    rc = trainer_open(&row->args, b->ranks, &row->trainer);
    row->args.plan_only = false;
    if (rc != EXIT_OK)
        return rc;
    for (uint32_t k = 0; haul_engine_ledger(row->trainer.engine, k, &line) == 0; k++)
        row->planned[line.tier] += line.bytes;
    if (haul_device_mem_info(row->trainer.device, &mem) < 0)
        rc = EXIT_FAILED;
    row->fits = i > 0 || row->planned[HAUL_TIER_DEVICE] <= mem.total_bytes;
    if (i == 0)
        b->device_bytes = mem.total_bytes;
    snprintf(b->device, sizeof b->device, "%s", haul_device_name(row->trainer.device));
    trainer_close(&row->trainer);
    return rc;
}

/* Host memory that can be had; 0: unknown. */
static uint64_t available_bytes(void)
{
    FILE *f = fopen("/proc/meminfo", "r");
    uint64_t kib = 0;
    char line[128];

    while (f != NULL && kib == 0 && fgets(line, sizeof line, f) != NULL)
        if (sscanf(line, "MemAvailable: %" SCNu64, &kib) != 1)
            kib = 0;
    if (f != NULL)
        fclose(f);
    return kib * 1024;
}

/* All rows at once in three quarters of what there is. An emulated device's memory is the host's. */
static bool all_fit(const struct offload_rows *b)
{
    uint64_t host = 0, device = 0;

    for (int i = 0; i < OFFLOAD_ROWS; i++) {
        if (!b->row[i].fits)
            continue;
        device += b->row[i].planned[HAUL_TIER_DEVICE];
        host += b->row[i].planned[HAUL_TIER_HOST];
    }
    if (compute_device == DEVICE_HOST)
        host += device;
    return device <= b->device_bytes / 4 * 3 && host <= available_bytes() / 4 * 3;
}

static int open_row(const struct offload_rows *b, struct offload_row *row)
{
    int rc = trainer_open(&row->args, b->ranks, &row->trainer);

    row->open = rc == EXIT_OK;
    return rc;
}

static void close_row(struct offload_row *row)
{
    if (row->open)
        trainer_close(&row->trainer);
    row->open = false;
}

/* ---- turns ---- */

static int failed(const struct offload_row *row)
{
    trainer_complain(&row->trainer, 0);
    return EXIT_FAILED;
}

static int step(const struct offload_rows *b, struct offload_row *row, uint64_t n,
                struct haul_report *report)
{
    const struct args *a = &row->args;
    struct data_part part = {a->seed, n, 0, a->batch, a->seq};
    double loss;

    *report = (struct haul_report){.struct_size = sizeof *report};
    if (data_read_step(b->data, &part, row->trainer.tokens) < 0)
        return EXIT_FAILED;
    return trainer_step(&row->trainer, n, false, &loss, report) < 0 ? failed(row) : EXIT_OK;
}

static void note(struct offload_row *row, uint64_t at, const struct haul_report *r)
{
    row->ms[at] = (double)r->wall_ns * 1e-6;
    for (size_t l = 0; l < OFFLOAD_LANES; l++) {
        const struct haul_lane_report *lane = &r->lanes[offload_lanes[l]];

        row->exposed_ms[l][at] = (double)lane->exposed_ns * 1e-6;
        row->busy_ms[l][at] = (double)lane->busy_ns * 1e-6;
        row->bytes[l] = lane->bytes;
    }
}

/* The first turn of a row is not counted: memory and code are touched in it. */
static int turn(const struct offload_rows *b, struct offload_row *row)
{
    struct haul_report report;
    uint64_t n = 2 * row->nturns;
    int rc = step(b, row, n + 1, &report);

    if (rc == EXIT_OK)
        rc = step(b, row, n + 2, &report);
    if (rc != EXIT_OK)
        return rc;
    if (row->nturns++ > 0)
        note(row, row->nturns - 2, &report);
    return haul_engine_sync(row->trainer.engine) < 0 ? failed(row) : EXIT_OK;
}

static int finish_row(struct offload_row *row)
{
    if (haul_engine_digest(row->trainer.engine, &row->digest) < 0)
        return failed(row);
    for (int t = 0; t < HAUL_NTIERS; t++)
        if (haul_engine_tier_bytes(row->trainer.engine, (enum haul_tier)t, &row->planned[t],
                                   &row->peak[t]) < 0)
            return failed(row);
    return EXIT_OK;
}

static int run_interleaved(struct offload_rows *b)
{
    int rc = EXIT_OK;

    for (int i = 0; rc == EXIT_OK && i < OFFLOAD_ROWS; i++)
        if (b->row[i].fits)
            rc = open_row(b, &b->row[i]);
    for (uint64_t k = 0; rc == EXIT_OK && k <= b->args->steps; k++)
        for (int i = 0; rc == EXIT_OK && i < OFFLOAD_ROWS; i++)
            if (b->row[i].fits)
                rc = turn(b, &b->row[i]);
    for (int i = 0; rc == EXIT_OK && i < OFFLOAD_ROWS; i++)
        if (b->row[i].fits)
            rc = finish_row(&b->row[i]);
    return rc;
}

static int run_in_sequence(struct offload_rows *b)
{
    int rc = EXIT_OK;

    for (int i = 0; rc == EXIT_OK && i < OFFLOAD_ROWS; i++) {
        if (!b->row[i].fits)
            continue;
        rc = open_row(b, &b->row[i]);
        for (uint64_t k = 0; rc == EXIT_OK && k <= b->args->steps; k++)
            rc = turn(b, &b->row[i]);
        if (rc == EXIT_OK)
            rc = finish_row(&b->row[i]);
        close_row(&b->row[i]);
    }
    return rc;
}

static int compare_digests(const struct offload_rows *b)
{
    for (int i = 0; i < OFFLOAD_ROWS - 1; i++)
        if (b->row[i].fits && b->row[i].digest != b->row[OFFLOAD_ROWS - 1].digest) {
            fprintf(stderr,
                    "train_gpt: --offload %s ends with digest %016" PRIx64
                    ", --offload all with %016" PRIx64
                    ": a defect, or memory or a drive that loses bits\n",
                    offload_row_names[i], b->row[i].digest, b->row[OFFLOAD_ROWS - 1].digest);
            return EXIT_FAILED;
        }
    return EXIT_OK;
}

/* ---- the bench ---- */

int offload_rows_run(const struct args *args, const struct data *data, struct ranks *ranks)
{
    static struct offload_rows rows; /* large, and a program runs one */
    struct offload_rows *b = &rows;
    int rc = EXIT_OK;

    if (ranks->nranks > 1) {
        fprintf(stderr, "train_gpt: --bench compares on one rank: start it without mpirun\n");
        return EXIT_USAGE;
    }
    *b = (struct offload_rows){.args = args, .data = data, .ranks = ranks};
    for (int i = 0; rc == EXIT_OK && i < OFFLOAD_ROWS; i++) {
        b->row[i].args = row_args(args, i);
        rc = plan_row(b, i);
    }
    if (rc != EXIT_OK)
        return rc;
    b->interleaved = all_fit(b);
    rc = b->interleaved ? run_interleaved(b) : run_in_sequence(b);
    for (int i = 0; i < OFFLOAD_ROWS; i++)
        close_row(&b->row[i]);
    if (rc == EXIT_OK)
        rc = compare_digests(b);
    if (rc != EXIT_OK)
        return rc;
    offload_rows_print(b);
    return EXIT_OK;
}
