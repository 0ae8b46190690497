/* cmd_tune.c: haul tune. Measures drives and memory, and writes what it found as a profile. */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>

#include "bench_adam.h"
#include "bench_io.h"
#include "commands.h"
#include "flags.h"
#include "kernel_table.h"
#include "store.h"

#define PROFILE_VERSION 1
#define MAX_DEPTH       32u
#define REPEATS         3
/* The least depth within this of the best is taken: depth is memory, and latency for others. */
#define GOOD_ENOUGH  0.98
#define MEMORY_ELEMS (32ull << 20)

struct request {
    struct hl_flag_list dirs;
    uint64_t bytes;
    const char *output;
    int no_memory, json;
};

struct setting {
    uint32_t block_bytes, read_depth, write_depth;
    double read, write, mixed; /* GB/s */
    int direct;
    char method[16], device[32], model[64];
};

static const uint32_t blocks[] = {512u << 10, 1u << 20, 2u << 20, 4u << 20, 8u << 20};
#define LEAST_BYTES (576ull << 20) /* what a trial with the largest of them takes */
static const uint32_t depths[] = {2, 4, 8, 12, 16, 24, 32};
#define NDEPTHS (sizeof depths / sizeof *depths)

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

static int median_pass(struct hl_bench_io *io, enum hl_io_pattern pattern, double *gb_per_s)
{
    double speeds[REPEATS];

    for (int i = 0; i < REPEATS; i++) {
        struct hl_io_pass pass;
        int rc = hl_bench_io_pass(io, pattern, &pass);

        if (rc < 0)
            return rc;
        speeds[i] = pass.gb_per_s;
    }
    qsort(speeds, REPEATS, sizeof *speeds, ascending);
    *gb_per_s = speeds[REPEATS / 2];
    return 0;
}

/* All depths of one direction; the least that is good enough. */
static int tune_depth(struct hl_bench_io *io, enum hl_io_pattern pattern, uint32_t *depth,
                      double *gb_per_s)
{
    double speeds[NDEPTHS], best = 0;
    unsigned pick = 0;

    for (unsigned i = 0; i < NDEPTHS; i++) {
        int rc;

        hl_bench_io_set_depths(io, depths[i], depths[i]);
        rc = median_pass(io, pattern, &speeds[i]);
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

static int tune_block(const char *dir, uint64_t bytes, uint32_t block, struct setting *out)
{
    struct hl_bench_io_opts opts = {.bytes = bytes};
    struct hl_bench_io *io;
    int rc;

    haul_store_opts_init(&opts.store);
    opts.store.dirs = &dir;
    opts.store.ndirs = 1;
    opts.store.block_bytes = out->block_bytes = block;
    opts.store.read_depth = opts.store.write_depth = MAX_DEPTH;
    opts.store.verify = HAUL_VERIFY_OFF; /* the drive is measured, not the processor */
    rc = hl_bench_io_open(&opts, &io);
    if (rc < 0)
        return rc;
    rc = tune_depth(io, HL_IO_WRITE, &out->write_depth, &out->write);
    if (rc == 0)
        rc = tune_depth(io, HL_IO_READ, &out->read_depth, &out->read);
    hl_bench_io_set_depths(io, out->read_depth, out->write_depth);
    if (rc == 0)
        rc = median_pass(io, HL_IO_MIXED, &out->mixed);
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

static int tune_dir(const struct request *req, const char *dir, struct setting *best)
{
    for (unsigned i = 0; i < sizeof blocks / sizeof *blocks; i++) {
        struct setting s = {0};
        int rc = tune_block(dir, req->bytes, blocks[i], &s);

        if (rc < 0)
            return rc;
        fprintf(stderr,
                "%s: blocks of %u KiB: read %.2f at depth %u, write %.2f at %u, mixed %.2f GB/s\n",
                dir, s.block_bytes >> 10, s.read, s.read_depth, s.write, s.write_depth, s.mixed);
        if (i == 0 || better(&s, best))
            *best = s;
    }
    return 0;
}

static json_t *drive_json(const char *dir, const struct setting *s)
{
    return json_pack("{s:s, s:s, s:s, s:s, s:b, s:i, s:i, s:i, s:f, s:f, s:f}", "dir", dir,
                     "device", s->device, "model", s->model, "method", s->method, "direct",
                     s->direct, "block_bytes", (int)s->block_bytes, "read_depth",
                     (int)s->read_depth, "write_depth", (int)s->write_depth, "read_gb_per_s",
                     s->read, "write_gb_per_s", s->write, "mixed_gb_per_s", s->mixed);
}

/* How fast host memory moves an update's bytes, and how fast the optimizer does; both 0 when they could not
 * be measured. */
static void measure_memory(double *roof, double *optim)
{
    struct hl_bench_opts opts = {
        .elems = MEMORY_ELEMS, .threads = haul_optim_threads(1), .repeats = 5};
    struct hl_bench_case c = {.isa = hl_cpu_isa(), .grad = HAUL_BF16, .out = HAUL_BF16};
    struct hl_bench_arena arena;
    struct hl_bench_result r;

    *roof = *optim = 0;
    haul_optim_init(&c.opt, HAUL_ADAMW);
    if (hl_bench_arena_open(&opts, &arena) < 0)
        return;
    int rc = hl_bench_run(&opts, &arena, &c, &r);
    hl_bench_arena_close(&arena);
    if (rc < 0)
        return;
    *roof = (double)r.bytes_per_elem / r.roof_ns_per_elem * 1e9;
    *optim = (double)r.bytes_per_elem / r.ns_per_elem * 1e9;
}

static void tune_memory(json_t *rates)
{
    double roof, optim;

    measure_memory(&roof, &optim);
    if (roof <= 0)
        return;
    json_object_set_new(rates, "mem_bytes_per_s", json_real(roof));
    json_object_set_new(rates, "optim_bytes_per_s", json_real(optim));
}

static int tune_drives(const struct request *req, json_t *drives, json_t *rates)
{
    double read = 0, write = 0, mixed = 0;

    for (uint32_t i = 0; i < req->dirs.nitems; i++) {
        struct setting best;
        int rc = tune_dir(req, req->dirs.item[i], &best);

        if (rc < 0)
            return rc;
        read += best.read;
        write += best.write;
        mixed += best.mixed;
        json_array_append_new(drives, drive_json(req->dirs.item[i], &best));
    }
    json_object_set_new(rates, "drive_read_bytes_per_s", json_real(read * 1e9));
    json_object_set_new(rates, "drive_write_bytes_per_s", json_real(write * 1e9));
    json_object_set_new(rates, "drive_mixed_bytes_per_s", json_real(mixed * 1e9));
    return 0;
}

/* Where and when. */
static void describe_run(json_t *root)
{
    struct utsname u;
    struct tm day;
    time_t now = time(NULL);
    char date[32];

    if (uname(&u) == 0)
        json_object_set_new(root, "about",
                            json_sprintf("%s, %s %s", u.nodename, u.sysname, u.release));
    if (gmtime_r(&now, &day) && strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", &day))
        json_object_set_new(root, "date", json_string(date));
}

static int save(const struct request *req, const json_t *root)
{
    const size_t flags = JSON_INDENT(2) | JSON_REAL_PRECISION(6);

    if (json_dump_file(root, req->output, flags) < 0) {
        fprintf(stderr, "haul tune: cannot write %s: %s\n", req->output, strerror(errno));
        return HL_EXIT_FAILED;
    }
    if (req->json) {
        json_dumpf(root, stdout, flags);
        putchar('\n');
    } else {
        printf("%s\n", req->output);
    }
    return HL_EXIT_OK;
}

static int run(const struct hl_command *cmd, const struct request *req)
{
    json_t *drives = json_array(), *rates = json_object();
    json_t *root = json_pack("{s:i, s:s, s:o, s:o}", "version", PROFILE_VERSION, "haul",
                             haul_version(), "drives", drives, "rates", rates);
    int rc;

    if (!root)
        return HL_EXIT_FAILED;
    describe_run(root);
    rc = tune_drives(req, drives, rates);
    if (rc < 0) {
        json_decref(root);
        return hl_report_error(cmd, rc);
    }
    /* Last: it binds this thread to a core. */
    if (!req->no_memory)
        tune_memory(rates);
    rc = save(req, root);
    json_decref(root);
    return rc;
}

int hl_cmd_tune(int argc, char **argv)
{
    static struct request req = {.bytes = 2ull << 30, .output = "profile.json"};
    static char long_output[] = "--output";
    const struct hl_flag flags[] = {
        {"dir", HL_FLAG_LIST, &req.dirs, "DIR", "a drive's directory; may be given again", NULL},
        {"bytes", HL_FLAG_SIZE, &req.bytes, "SIZE", "of each trial file (default 2GiB)", NULL},
        {"output", HL_FLAG_TEXT, &req.output, "FILE", "or -o FILE; default profile.json", NULL},
        {"no-memory", HL_FLAG_SWITCH, &req.no_memory, NULL, "leave host memory out", NULL},
        {"json", HL_FLAG_SWITCH, &req.json, NULL, "the profile on stdout too", NULL},
    };
    const struct hl_command cmd = {
        "tune", "Measure drives and memory, and write a profile.", flags,
        sizeof flags / sizeof *flags,
        "Block sizes and depths are tried per drive; the smallest within 2% of the best is taken.\n"
        "haul bench io --profile, haul sim --profile and haul_store_opts_profile() read the "
        "result."};
    int rc;

    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], "-o"))
            argv[i] = long_output;
    rc = hl_flags_parse(&cmd, argc, argv);
    if (rc != HL_FLAGS_GO)
        return rc;
    if (!req.dirs.nitems)
        return hl_usage_error(&cmd, "--dir is missing");
    if (req.bytes < LEAST_BYTES)
        return hl_usage_error(&cmd, "--bytes: give at least 576MiB, for 8 MiB blocks in flight");
    return run(&cmd, &req);
}
