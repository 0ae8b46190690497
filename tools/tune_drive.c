/* tune_drive.c: a drive's block size and depths: each tried, and the least within 2% of the best taken. */
#include <stdio.h>
#include <stdlib.h>

#include "bench_io.h"
#include "clock.h"
#include "store.h"
#include "tune.h"

#define MAX_DEPTH 32u
#define REPEATS   3
/* The least depth within this of the best is taken: depth is memory, and latency for others. */
#define GOOD_ENOUGH 0.98
#define MOST_PASSES 4096

struct setting {
    uint32_t block_bytes, read_depth, write_depth;
    double read, write, mixed; /* GB/s */
    double sustained_s;        /* write and mixed are what was reached after so long; 0: at once */
    int direct;
    char method[16], device[32], model[64];
};

static const uint32_t blocks[] = {512u << 10, 1u << 20, 2u << 20, 4u << 20, 8u << 20};
static const uint32_t depths[] = {2, 4, 8, 12, 16, 24, 32};
#define NBLOCKS (sizeof blocks / sizeof *blocks)
#define NDEPTHS (sizeof depths / sizeof *depths)

uint64_t hl_tune_drive_passes(const struct hl_tune *t)
{
    return NBLOCKS * (2 * NDEPTHS + 1) * REPEATS + (t->thorough_s > 0 ? 2 : 0);
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

static double median(double *v, uint32_t n)
{
    qsort(v, n, sizeof *v, ascending);
    return v[n / 2];
}

static int median_pass(struct hl_tune *t, struct hl_bench_io *io, enum hl_io_pattern pattern,
                       double *gb_per_s)
{
    double speeds[REPEATS];

    for (int i = 0; i < REPEATS; i++) {
        struct hl_io_pass pass;
        int rc = hl_bench_io_pass(io, pattern, &pass);

        if (rc < 0)
            return rc;
        speeds[i] = pass.gb_per_s;
        hl_tune_step(t);
    }
    *gb_per_s = median(speeds, REPEATS);
    return 0;
}

/* All depths of one direction; the least that is good enough. */
static int tune_depth(struct hl_tune *t, struct hl_bench_io *io, enum hl_io_pattern pattern,
                      uint32_t *depth, double *gb_per_s)
{
    double speeds[NDEPTHS], best = 0;
    unsigned pick = 0;

    for (unsigned i = 0; i < NDEPTHS; i++) {
        int rc;

        hl_bench_io_set_depths(io, depths[i], depths[i]);
        rc = median_pass(t, io, pattern, &speeds[i]);
        if (rc < 0)
            return rc;
        best = speeds[i] > best ? speeds[i] : best;
    }
    while (speeds[pick] < GOOD_ENOUGH * best)
        pick++;
    *depth = depths[pick];
    *gb_per_s = speeds[pick];
    return 0;
}

static int describe(struct hl_bench_io *io, struct setting *out)
{
    struct haul_store_info info = {.struct_size = sizeof info};
    struct haul_wear wear = {.struct_size = sizeof wear};
    int rc = haul_store_get_info(hl_bench_io_store(io), &info);

    if (rc == 0)
        rc = haul_store_wear(hl_bench_io_store(io), 0, &wear);
    if (rc < 0)
        return rc;
    out->direct = info.direct;
    snprintf(out->method, sizeof out->method, "%s", info.method);
    snprintf(out->device, sizeof out->device, "%s", wear.device);
    snprintf(out->model, sizeof out->model, "%s", wear.model);
    return 0;
}

int hl_tune_open(const struct hl_tune *t, const char *dir, uint32_t block_bytes, uint32_t depth,
                 enum haul_verify verify, struct hl_bench_io **out)
{
    struct hl_bench_io_opts opts = {.bytes = t->bytes};

    haul_store_opts_init(&opts.store);
    opts.store.dirs = &dir;
    opts.store.ndirs = 1;
    opts.store.block_bytes = block_bytes;
    if (depth)
        opts.store.read_depth = opts.store.write_depth = depth;
    opts.store.verify = verify;
    return hl_bench_io_open(&opts, out);
}

/* The drive is measured, not the processor. */
static int open_trial(const struct hl_tune *t, const char *dir, uint32_t block,
                      struct hl_bench_io **out)
{
    return hl_tune_open(t, dir, block, MAX_DEPTH, HAUL_VERIFY_OFF, out);
}

static int tune_block(struct hl_tune *t, const char *dir, uint32_t block, struct setting *out)
{
    struct hl_bench_io *io;
    int rc = open_trial(t, dir, block, &io);

    if (rc < 0)
        return rc;
    out->block_bytes = block;
    rc = tune_depth(t, io, HL_IO_WRITE, &out->write_depth, &out->write);
    if (rc == 0)
        rc = tune_depth(t, io, HL_IO_READ, &out->read_depth, &out->read);
    if (rc == 0) {
        hl_bench_io_set_depths(io, out->read_depth, out->write_depth);
        rc = median_pass(t, io, HL_IO_MIXED, &out->mixed);
    }
    if (rc == 0)
        rc = describe(io, out);
    hl_bench_io_close(io);
    return rc;
}

/* Smaller blocks cost less when only a part is wanted: a larger one must earn its place. */
static int better(const struct setting *a, const struct setting *b)
{
    return a->mixed * GOOD_ENOUGH > b->mixed;
}

/* Pass after pass for so long: the median of the last quarter, when a drive's cache is full if it ever is. */
static int sustain(struct hl_tune *t, struct hl_bench_io *io, enum hl_io_pattern pattern,
                   double *gb_per_s)
{
    static double speeds[MOST_PASSES];
    const uint64_t end_ns = hl_clock_ns() + (uint64_t)(t->thorough_s * 1e9);
    uint32_t n = 0;

    do {
        struct hl_io_pass pass;
        int rc = hl_bench_io_pass(io, pattern, &pass);
        if (rc < 0)
            return rc;
        speeds[n++] = pass.gb_per_s;
        hl_time_left_at(&t->left, t->done);
    } while (hl_clock_ns() < end_ns && n < MOST_PASSES);
    *gb_per_s = median(speeds + n - (n + 3) / 4, (n + 3) / 4);
    hl_tune_step(t);
    return 0;
}

static int sustain_both(struct hl_tune *t, const char *dir, struct setting *s)
{
    struct hl_bench_io *io;
    int rc = open_trial(t, dir, s->block_bytes, &io);

    if (rc < 0)
        return rc;
    hl_bench_io_set_depths(io, s->read_depth, s->write_depth);
    rc = sustain(t, io, HL_IO_WRITE, &s->write);
    if (rc == 0)
        rc = sustain(t, io, HL_IO_MIXED, &s->mixed);
    s->sustained_s = t->thorough_s;
    hl_bench_io_close(io);
    return rc;
}

static void tell(struct hl_tune *t, const char *dir, const struct setting *s)
{
    hl_time_left_end(&t->left);
    fprintf(stderr,
            "%s: blocks of %u KiB: read %.2f at depth %u, write %.2f at %u, mixed %.2f GB/s", dir,
            s->block_bytes >> 10, s->read, s->read_depth, s->write, s->write_depth, s->mixed);
    if (s->sustained_s > 0)
        fprintf(stderr, " after %.0f s each", s->sustained_s);
    fputc('\n', stderr);
}

static void add(json_t *rates, const char *name, double gb_per_s)
{
    const double before = json_number_value(json_object_get(rates, name));

    json_object_set_new(rates, name, json_real(before + gb_per_s * 1e9));
}

int hl_tune_drive(struct hl_tune *t, const char *dir, json_t *out)
{
    struct setting best = {0};
    int rc = 0;

    for (unsigned i = 0; rc == 0 && i < NBLOCKS; i++) {
        struct setting s = {0};
        rc = tune_block(t, dir, blocks[i], &s);
        if (rc == 0)
            tell(t, dir, &s);
        if (i == 0 || better(&s, &best))
            best = s;
    }
    if (rc == 0 && t->thorough_s > 0) {
        rc = sustain_both(t, dir, &best);
        if (rc == 0)
            tell(t, dir, &best);
    }
    if (rc < 0)
        return rc;
    add(t->rates, "drive_read_bytes_per_s", best.read);
    add(t->rates, "drive_write_bytes_per_s", best.write);
    add(t->rates, "drive_mixed_bytes_per_s", best.mixed);
    json_t *line = json_pack(
        "{s:s, s:s, s:s, s:s, s:b, s:i, s:i, s:i, s:f, s:f, s:f, s:f}", "dir", dir, "device",
        best.device, "model", best.model, "method", best.method, "direct", best.direct,
        "block_bytes", (int)best.block_bytes, "read_depth", (int)best.read_depth, "write_depth",
        (int)best.write_depth, "read_gb_per_s", best.read, "write_gb_per_s", best.write,
        "mixed_gb_per_s", best.mixed, "sustained_s", best.sustained_s);
    json_object_update(out, line);
    json_decref(line);
    return 0;
}
