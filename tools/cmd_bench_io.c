/* cmd_bench_io.c: haul bench io. */
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench_io.h"
#include "bench_plot.h"
#include "commands.h"
#include "flags.h"
#include "haul/size.h"
#include "time_left.h"

#define MAX_REPEATS 64
#define SWEEP_BYTES (2ull << 30) /* fio's configurations are told apart on this much */

struct request {
    struct hl_flag_list dirs;
    uint64_t bytes, block;
    uint32_t read_depth, write_depth, repeats;
    int depth_given, write_depth_given, block_given;
    int method, verify, pages, vs_fio, page_rows, json;
    const char *profile, *plot;
};

/* One kind of run, over all repeats. */
struct runs {
    double gb_per_s[HL_IO_NPATTERNS][MAX_REPEATS];
    double cpu[HL_IO_NPATTERNS][MAX_REPEATS];
    uint32_t n;
};

struct bench {
    const struct request *req;
    struct hl_bench_io *io;
    struct runs ours, unchecked, fio;
    struct hl_fio_job best[HL_IO_NPATTERNS];
    int64_t nhuge; /* pages asked for fio */
    json_t *rows;
    struct hl_time_left left;
    uint64_t done_bytes;
};

static const char *const pattern_names[HL_IO_NPATTERNS] = {"read", "write", "mixed"};

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

static double median(const double *values, uint32_t n)
{
    double sorted[MAX_REPEATS];

    if (!n)
        return 0;
    memcpy(sorted, values, n * sizeof *values);
    qsort(sorted, n, sizeof *sorted, ascending);
    return n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

/* ---- measuring ---- */

/* A pass over so many bytes is done; mixed moves them both ways. */
static void tell(struct bench *b, enum hl_io_pattern pattern, uint64_t bytes)
{
    b->done_bytes += pattern == HL_IO_MIXED ? 2 * bytes : bytes;
    hl_time_left_at(&b->left, b->done_bytes);
}

static void tell_store(void *user, uint64_t done_bytes, uint64_t total_bytes)
{
    struct bench *b = user;

    if (b->left.what == NULL)
        hl_time_left_begin(&b->left, "making the store", total_bytes, 1);
    hl_time_left_at(&b->left, done_bytes);
}

/* Write first: the reads that follow find what was written. */
static const enum hl_io_pattern pass_order[] = {HL_IO_WRITE, HL_IO_READ, HL_IO_MIXED};

static int run_ours(struct bench *b, enum haul_verify verify, struct runs *r)
{
    int rc = 0;

    hl_bench_io_verify(b->io, verify);
    for (unsigned i = 0; rc == 0 && i < HL_IO_NPATTERNS; i++) {
        struct hl_io_pass pass;

        rc = hl_bench_io_pass(b->io, pass_order[i], &pass);
        r->gb_per_s[pass_order[i]][r->n] = pass.gb_per_s;
        r->cpu[pass_order[i]][r->n] = pass.cpu_s_per_gb;
        tell(b, pass_order[i], hl_bench_io_bytes(b->io));
    }
    r->n++;
    return rc;
}

/* 8 MiB x 64, and a little. */
#define FIO_HUGE_PAGES 280

/* Someone else's pool may have taken the huge pages that were meant for fio: then more are asked for,
 * once. */
static int fio_pass(struct bench *b, uint64_t bytes, const struct hl_fio_job *job,
                    enum hl_io_pattern pattern, struct hl_io_pass *out)
{
    struct haul_store *store = hl_bench_io_store(b->io);
    int rc = hl_fio_pass(store, bytes, job, pattern, out);

    if (rc == 0 || strcmp(job->mem, "mmaphuge") || b->nhuge >= 4 * FIO_HUGE_PAGES)
        return rc;
    b->nhuge += FIO_HUGE_PAGES;
    hl_fio_hugepages(b->nhuge);
    return hl_fio_pass(store, bytes, job, pattern, out);
}

static int run_fio(struct bench *b)
{
    int rc = 0;

    for (unsigned i = 0; rc == 0 && i < HL_IO_NPATTERNS; i++) {
        enum hl_io_pattern p = pass_order[i];
        struct hl_io_pass pass;

        rc = fio_pass(b, hl_bench_io_bytes(b->io), &b->best[p], p, &pass);
        b->fio.gb_per_s[p][b->fio.n] = pass.gb_per_s;
        b->fio.cpu[p][b->fio.n] = pass.cpu_s_per_gb;
        tell(b, p, hl_bench_io_bytes(b->io));
    }
    b->fio.n++;
    return rc;
}

static const struct hl_fio_job sweep[] = {
    {512u << 10, 32, "io_uring", "mmaphuge"}, {1u << 20, 32, "io_uring", "mmaphuge"},
    {2u << 20, 16, "io_uring", "mmaphuge"},   {4u << 20, 8, "io_uring", "mmaphuge"},
    {4u << 20, 16, "io_uring", "mmaphuge"},   {8u << 20, 8, "io_uring", "mmaphuge"},
    {8u << 20, 64, "io_uring", "mmaphuge"},   {4u << 20, 16, "io_uring", "malloc"},
};

static int try_job(struct bench *b, const struct hl_fio_job *job, double *best)
{
    uint64_t all = hl_bench_io_bytes(b->io), bytes = all < SWEEP_BYTES ? all : SWEEP_BYTES;

    for (unsigned p = 0; p < HL_IO_NPATTERNS; p++) {
        struct hl_io_pass pass;
        int rc = fio_pass(b, bytes, job, (enum hl_io_pattern)p, &pass);

        if (rc < 0)
            return rc;
        tell(b, (enum hl_io_pattern)p, bytes);
        if (pass.gb_per_s <= best[p])
            continue;
        best[p] = pass.gb_per_s;
        b->best[p] = *job;
    }
    return 0;
}

/* Jobs of the sweep, those on plain pages too. */
static unsigned count_jobs(void)
{
    unsigned n = 0;

    for (unsigned i = 0; i < sizeof sweep / sizeof *sweep; i++)
        n += strcmp(sweep[i].mem, "malloc") ? 2 : 1;
    return n;
}

/* Where fio gets no huge pages (others may hold them), the job runs on plain ones. */
static int find_best(struct bench *b)
{
    double best[HL_IO_NPATTERNS] = {0};
    int rc = 0;

    for (unsigned i = 0; rc == 0 && i < sizeof sweep / sizeof *sweep; i++) {
        struct hl_fio_job job = sweep[i];

        rc = try_job(b, &job, best);
        if (rc == 0 || !strcmp(job.mem, "malloc"))
            continue;
        job.mem = "malloc";
        rc = try_job(b, &job, best);
    }
    return rc;
}

/* fio, ours unchecked, ours as asked for. */
static int run_one(struct bench *b, uint32_t who)
{
    if (who == 0)
        return run_fio(b);
    if (who == 1)
        return run_ours(b, HAUL_VERIFY_OFF, &b->unchecked);
    return run_ours(b, (enum haul_verify)b->req->verify, &b->ours);
}

/* Who goes first changes, so that a drive that tires, or digests the writes before, favours none. */
static int compare(struct bench *b)
{
    int64_t before = hl_fio_hugepages(FIO_HUGE_PAGES);
    int rc;

    b->nhuge = FIO_HUGE_PAGES;
    rc = find_best(b);

    for (uint32_t i = 0; i < b->req->repeats; i++)
        for (uint32_t k = 0; rc == 0 && k < 3; k++)
            rc = run_one(b, (i + k) % 3);
    if (before >= 0)
        hl_fio_hugepages(before);
    return rc;
}

/* Of all passes: read, write, and mixed both ways. */
static uint64_t bytes_to_move(const struct bench *b)
{
    uint64_t all = hl_bench_io_bytes(b->io), swept = all < SWEEP_BYTES ? all : SWEEP_BYTES;

    return b->req->vs_fio ? 4 * (3 * b->req->repeats * all + count_jobs() * swept)
                          : 4 * b->req->repeats * all;
}

static int measure(struct bench *b)
{
    int rc = 0;

    hl_time_left_end(&b->left);
    hl_time_left_begin(&b->left, "bench io", bytes_to_move(b), 1);
    if (b->req->vs_fio)
        rc = compare(b);
    for (uint32_t i = 0; rc == 0 && !b->req->vs_fio && i < b->req->repeats; i++)
        rc = run_ours(b, (enum haul_verify)b->req->verify, &b->ours);
    hl_time_left_end(&b->left);
    return rc;
}

/* ---- saying ---- */

static int print(const struct bench *b, json_t *root)
{
    int rc = 0;

    if (!root)
        return -ENOMEM;
    if (b->req->json) {
        rc = json_dumpf(root, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(5)) < 0 ? -EIO : 0;
        putchar('\n');
        return rc;
    }
    printf("%-10s %10s %12s %12s %10s\n", "", "GB/s", "CPU ms/GB", "fio GB/s", "ratio");
    for (unsigned p = 0; p < HL_IO_NPATTERNS; p++) {
        double ours = median(b->ours.gb_per_s[p], b->ours.n);
        double fio = median(b->fio.gb_per_s[p], b->fio.n);

        printf("%-10s %10.2f %12.2f", pattern_names[p], ours,
               1e3 * median(b->ours.cpu[p], b->ours.n));
        if (b->fio.n)
            printf(" %12.2f %10.3f", fio, ours / fio);
        putchar('\n');
    }
    return 0;
}

static json_t *list(const double *values, uint32_t n)
{
    json_t *a = json_array();

    for (uint32_t i = 0; i < n; i++)
        json_array_append_new(a, json_real(values[i]));
    return a;
}

/* Medians as PREFIX_read_gb_per_s and so on; the CPU over all three. */
static void add_runs(json_t *root, const char *prefix, const struct runs *r)
{
    double cpu = 0;
    char key[64];

    if (!r->n)
        return;
    for (unsigned p = 0; p < HL_IO_NPATTERNS; p++) {
        snprintf(key, sizeof key, "%s%s_gb_per_s", prefix, pattern_names[p]);
        json_object_set_new(root, key, json_real(median(r->gb_per_s[p], r->n)));
        snprintf(key, sizeof key, "%s%s_cpu_s_per_gb", prefix, pattern_names[p]);
        json_object_set_new(root, key, json_real(median(r->cpu[p], r->n)));
        snprintf(key, sizeof key, "%s%s_runs_gb_per_s", prefix, pattern_names[p]);
        json_object_set_new(root, key, list(r->gb_per_s[p], r->n));
        /* A mixed pass moves twice as much as the others. */
        cpu += median(r->cpu[p], r->n) * (p == HL_IO_MIXED ? 2 : 1) / 4;
    }
    snprintf(key, sizeof key, "%scpu_s_per_gb", prefix);
    json_object_set_new(root, key, json_real(cpu));
}

static json_t *ratios(const struct runs *a, const struct runs *b)
{
    json_t *o = json_object();

    for (unsigned p = 0; p < HL_IO_NPATTERNS; p++)
        json_object_set_new(o, pattern_names[p],
                            json_real(median(a->gb_per_s[p], a->n) / median(b->gb_per_s[p], b->n)));
    return o;
}

static void add_fio(const struct bench *b, json_t *root)
{
    json_t *jobs = json_object();

    for (unsigned p = 0; p < HL_IO_NPATTERNS; p++)
        json_object_set_new(jobs, pattern_names[p],
                            json_pack("{s:i, s:i, s:s, s:s}", "block_bytes",
                                      (int)b->best[p].block_bytes, "depth", (int)b->best[p].depth,
                                      "engine", b->best[p].engine, "mem", b->best[p].mem));
    add_runs(root, "fio_", &b->fio);
    add_runs(root, "unchecked_", &b->unchecked);
    json_object_set_new(root, "fio_version", json_string(hl_fio_version()));
    json_object_set_new(root, "fio_best", jobs);
    json_object_set_new(root, "ratio_to_fio", ratios(&b->ours, &b->fio));
    json_object_set_new(root, "unchecked_ratio_to_fio", ratios(&b->unchecked, &b->fio));
    json_object_set_new(root, "ratio_to_unchecked", ratios(&b->ours, &b->unchecked));
}

static json_t *describe(const struct bench *b)
{
    static const char *const verify_names[] = {"always", "sample", "off"};
    static const char *const page_names[] = {"huge", "fresh", "scattered"};
    struct haul_store_info info = {.struct_size = sizeof info};
    struct haul_wear wear = {.struct_size = sizeof wear};
    json_t *root = json_object();

    if (haul_store_get_info(hl_bench_io_store(b->io), &info) < 0 ||
        haul_store_wear(hl_bench_io_store(b->io), 0, &wear) < 0) {
        json_decref(root);
        return NULL;
    }
    add_runs(root, "", &b->ours);
    json_object_set_new(root, "method", json_string(info.method));
    json_object_set_new(root, "method_note", json_string(info.method_note));
    json_object_set_new(root, "direct", json_boolean(info.direct));
    json_object_set_new(root, "fixed_buffers", json_boolean(info.fixed_buffers));
    json_object_set_new(root, "huge_fraction", json_real(hl_bench_io_huge_fraction(b->io)));
    json_object_set_new(root, "block_bytes", json_integer(info.block_bytes));
    json_object_set_new(root, "depth", json_integer(info.read_depth));
    json_object_set_new(root, "write_depth", json_integer(info.write_depth));
    json_object_set_new(root, "bytes", json_integer((json_int_t)info.capacity_bytes));
    json_object_set_new(root, "repeats", json_integer(b->req->repeats));
    json_object_set_new(root, "verify", json_string(verify_names[b->req->verify]));
    json_object_set_new(root, "pages", json_string(page_names[b->req->pages]));
    json_object_set_new(root, "device", json_string(wear.device));
    json_object_set_new(root, "model", json_string(wear.model));
    if (b->fio.n)
        add_fio(b, root);
    if (b->rows)
        json_object_set(root, "page_rows", b->rows);
    return root;
}

/* ---- rows: the same run on three kinds of pages, and libaio at its users' defaults ---- */

static int add_row(json_t *rows, const char *engine, const char *pages, double huge,
                   const struct hl_io_pass *pass)
{
    return json_array_append_new(rows,
                                 json_pack("{s:s, s:s, s:f, s:f, s:f}", "engine", engine, "pages",
                                           pages, "huge_fraction", huge, "read_gb_per_s",
                                           pass->gb_per_s, "cpu_s_per_gb", pass->cpu_s_per_gb));
}

static int median_reads(const struct hl_bench_io_opts *opts, uint32_t repeats,
                        struct hl_io_pass *out, double *huge)
{
    double speed[MAX_REPEATS], cpu[MAX_REPEATS];
    struct hl_bench_io *io;
    int rc = hl_bench_io_open(opts, &io);

    if (rc < 0)
        return rc;
    for (uint32_t i = 0; rc == 0 && i < repeats; i++) {
        rc = hl_bench_io_pass(io, HL_IO_READ, out);
        speed[i] = out->gb_per_s;
        cpu[i] = out->cpu_s_per_gb;
    }
    *huge = hl_bench_io_huge_fraction(io);
    hl_bench_io_close(io);
    if (rc < 0)
        return rc;
    out->gb_per_s = median(speed, repeats);
    out->cpu_s_per_gb = median(cpu, repeats);
    return 0;
}

static int libaio_rows(struct bench *b)
{
    static const char path[] = "/dev/shm/haul-bench-pages";
    struct hl_fio_job fresh = {1u << 20, 8, "libaio", "malloc"};
    struct hl_fio_job scattered = {1u << 20, 8, "libaio", "mmapshared:/dev/shm/haul-bench-pages"};
    struct hl_io_pass pass;
    int rc = hl_scattered_file(path, 64u << 20);

    if (rc == 0)
        rc = hl_fio_pass(hl_bench_io_store(b->io), hl_bench_io_bytes(b->io), &scattered, HL_IO_READ,
                         &pass);
    unlink(path);
    if (rc == 0)
        rc = add_row(b->rows, "libaio 1 MiB x 8", "scattered", 0, &pass);
    if (rc == 0)
        rc = hl_fio_pass(hl_bench_io_store(b->io), hl_bench_io_bytes(b->io), &fresh, HL_IO_READ,
                         &pass);
    return rc == 0 ? add_row(b->rows, "libaio 1 MiB x 8", "fresh", 0, &pass) : rc;
}

static int measure_rows(struct bench *b, const struct hl_bench_io_opts *opts)
{
    static const char *const names[] = {"huge", "fresh", "scattered"};
    int rc = 0;

    b->rows = json_array();
    for (int pages = 0; rc == 0 && pages < 3; pages++) {
        struct hl_bench_io_opts o = *opts;
        struct hl_io_pass pass;
        double huge = 0;

        o.pages = (enum hl_bench_pages)pages;
        o.store.verify = HAUL_VERIFY_OFF;
        rc = median_reads(&o, b->req->repeats, &pass, &huge);
        if (rc == 0)
            rc = add_row(b->rows, "haul", names[pages], huge, &pass);
    }
    return rc;
}

/* ---- the command ---- */

static int fill_opts(const struct request *req, double *weights, struct hl_bench_io_opts *o)
{
    int rc = 0;

    *o = (struct hl_bench_io_opts){.bytes = req->bytes, .pages = (enum hl_bench_pages)req->pages};
    haul_store_opts_init(&o->store);
    o->store.dirs = req->dirs.item;
    o->store.ndirs = req->dirs.nitems;
    if (req->profile)
        rc = haul_store_opts_profile(&o->store, req->profile, weights);
    o->store.method = (enum haul_io_method)req->method;
    o->store.verify = (enum haul_verify)req->verify;
    if (req->block_given)
        o->store.block_bytes = (uint32_t)req->block;
    if (req->depth_given)
        o->store.read_depth = o->store.write_depth = req->read_depth;
    if (req->write_depth_given)
        o->store.write_depth = req->write_depth;
    return rc;
}

/* The store's own bounds, before anything is divided by them. */
#define BLOCK_MOST (1ull << 30)
#define DEPTH_MOST 1024

static int check_request(const struct hl_command *cmd, const struct request *req)
{
    if (!req->dirs.nitems)
        return hl_usage_error(cmd, "--dir is missing");
    if (!req->block || req->block % 4096 || req->block > BLOCK_MOST)
        return hl_usage_error(cmd, "--block must be a multiple of 4096, from 4096 to 1GiB");
    if (!req->read_depth || req->read_depth > DEPTH_MOST)
        return hl_usage_error(cmd, "--depth must be from 1 to %d", DEPTH_MOST);
    if (!req->write_depth || req->write_depth > DEPTH_MOST)
        return hl_usage_error(cmd, "--write-depth must be from 1 to %d", DEPTH_MOST);
    if (!req->repeats || req->repeats > MAX_REPEATS)
        return hl_usage_error(cmd, "--repeats takes 1 to %d", MAX_REPEATS);
    return HL_FLAGS_GO;
}

static int draw(const struct bench *b)
{
    struct hl_bench_plot plot = {.path = b->req->plot,
                                 .title = "A store, median",
                                 .unit = "GB/s",
                                 .value = "haul",
                                 .bound = "fio, the best of a sweep"};

    for (unsigned p = 0; p < HL_IO_NPATTERNS; p++)
        hl_bench_plot_add(&plot, median(b->ours.gb_per_s[p], b->ours.n),
                          b->fio.n ? median(b->fio.gb_per_s[p], b->fio.n) : NAN, "%s",
                          pattern_names[p]);
    return hl_bench_plot_draw(&plot);
}

static int run(const struct request *req)
{
    double weights[HL_FLAG_LIST_MAX];
    struct bench b = {.req = req};
    struct hl_bench_io_opts opts;
    json_t *root;
    int rc = fill_opts(req, weights, &opts);

    if (rc == 0 && req->page_rows)
        rc = measure_rows(&b, &opts);
    opts.store.progress = tell_store;
    opts.store.progress_user = &b;
    if (rc == 0)
        rc = hl_bench_io_open(&opts, &b.io);
    if (rc < 0)
        goto drop_rows;
    rc = measure(&b);
    if (rc == 0 && req->page_rows && hl_fio_version())
        rc = libaio_rows(&b);
    if (rc == 0) {
        root = describe(&b);
        rc = print(&b, root);
        json_decref(root);
        if (rc == 0)
            rc = draw(&b);
    }
    hl_bench_io_close(b.io);
drop_rows:
    json_decref(b.rows);
    return rc;
}

int hl_cmd_bench_io(int argc, char **argv)
{
    static struct request req = {
        .bytes = 2ull << 30, .block = 4u << 20, .read_depth = 12, .write_depth = 12, .repeats = 3};
    const struct hl_flag flags[] = {
        {"dir", HL_FLAG_LIST, &req.dirs, "DIR", "where to; may be given again", NULL},
        {"bytes", HL_FLAG_SIZE, &req.bytes, "SIZE", "of the file (default 2GiB)", NULL},
        {"block", HL_FLAG_SIZE, &req.block, "SIZE", "block (default 4MiB)", &req.block_given},
        {"depth", HL_FLAG_NUMBER, &req.read_depth, "N", "blocks in flight each way (default 12)",
         &req.depth_given},
        {"write-depth", HL_FLAG_NUMBER, &req.write_depth, "N", "for writes alone",
         &req.write_depth_given},
        {"profile", HL_FLAG_TEXT, &req.profile, "FILE", "block and depths from haul tune", NULL},
        {"method", HL_FLAG_CHOICE, &req.method, "auto|uring|threads", "how to move", NULL},
        {"verify", HL_FLAG_CHOICE, &req.verify, "always|sample|off", "checksums on read", NULL},
        {"pages", HL_FLAG_CHOICE, &req.pages, "huge|fresh|scattered", "under the buffers", NULL},
        {"repeats", HL_FLAG_NUMBER, &req.repeats, "N", "medians are shown (default 3)", NULL},
        {"vs-fio", HL_FLAG_SWITCH, &req.vs_fio, NULL, "interleaved with fio's best of a sweep",
         NULL},
        {"page-rows", HL_FLAG_SWITCH, &req.page_rows, NULL,
         "also reads on each kind of pages, beside libaio", NULL},
        {"plot", HL_FLAG_TEXT, &req.plot, "FILE.svg", "the same drawn by gnuplot", NULL},
        {"json", HL_FLAG_SWITCH, &req.json, NULL, "one object on stdout", NULL},
    };
    const struct hl_command cmd = {
        "bench io", "Read, write and page on drives, and compare with fio.", flags,
        sizeof flags / sizeof *flags,
        "Mixed is the engine's pattern: record i + 2 is read while record i - 1 is written.\n"
        "GB/s count bytes both ways. --vs-fio reserves huge pages for fio for a moment (root)."};
    int rc = hl_flags_parse(&cmd, argc, argv);

    if (rc == HL_FLAGS_GO)
        rc = check_request(&cmd, &req);
    if (rc != HL_FLAGS_GO)
        return rc;
    if (req.vs_fio && !hl_fio_version()) {
        fprintf(stderr, "haul bench io: fio is not installed\n");
        return HL_EXIT_ENVIRONMENT;
    }
    rc = run(&req);
    return rc < 0 ? hl_report_error(&cmd, rc) : HL_EXIT_OK;
}
