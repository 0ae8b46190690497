/* cmd_bench_link.c: haul bench link. */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench_link.h"
#include "bench_plot.h"
#include "commands.h"
#include "flags.h"
#include "haul/device_cuda.h"
#include "haul/size.h"
#include "time_left.h"

#define MAX_REPEATS 33
#define MAX_SIZES   16
#define LEAST_BYTES (UINT64_C(64) << 10)

enum { ON_HOST = 0, ON_CUDA };

struct request {
    uint64_t bytes;
    double link_gbps;
    uint32_t repeats, ordinal;
    int device, ordinal_given, json;
    const char *plot;
};

/* Medians of one size and kind of memory. */
struct row {
    uint64_t bytes;
    enum hl_link_memory memory;
    double gb_per_s[HL_LINK_NWAYS];
};

struct result {
    struct row row[MAX_SIZES * HL_LINK_NMEMORIES];
    unsigned nrows;
    double latency_ns[2];                     /* pool, h2d and d2h */
    double ratio_to_hostalloc[HL_LINK_NWAYS]; /* of the largest size; 0: none */
};

static const char *const memory_names[HL_LINK_NMEMORIES] = {"pool", "hostalloc", "pageable"};

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

static double median(double *values, unsigned n)
{
    qsort(values, n, sizeof *values, ascending);
    return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

/* ---- measuring ---- */

/* How far it is: of so many rounds of a size, so many. */
struct rounds {
    struct hl_time_left left;
    uint64_t ndone;
};

typedef double samples[HL_LINK_NMEMORIES][HL_LINK_NWAYS][MAX_REPEATS];

/* Kinds of memory in turn within each repeat, so that they meet the same machine. */
static int measure_size(struct hl_bench_link *b, uint64_t bytes, uint32_t repeats, samples got,
                        struct rounds *rounds)
{
    double warm;
    int rc = hl_bench_link_rate(b, HL_LINK_POOL, HL_LINK_DUPLEX, bytes, &warm);

    for (uint32_t r = 0; rc == 0 && r < repeats; r++) {
        for (int way = 0; way < HL_LINK_NWAYS; way++)
            for (int m = 0; rc == 0 && m < HL_LINK_NMEMORIES; m++)
                if (hl_bench_link_has(b, m))
                    rc = hl_bench_link_rate(b, m, way, bytes, &got[m][way][r]);
        hl_time_left_at(&rounds->left, ++rounds->ndone);
    }
    return rc;
}

static double ratio_of(samples got, int way, uint32_t repeats)
{
    double ratio[MAX_REPEATS];

    for (uint32_t r = 0; r < repeats; r++)
        ratio[r] = got[HL_LINK_POOL][way][r] / got[HL_LINK_HOSTALLOC][way][r];
    return median(ratio, repeats);
}

static uint64_t count_sizes(uint64_t most)
{
    uint64_t n = 1;

    for (uint64_t bytes = LEAST_BYTES; bytes < most; bytes *= 4)
        n++;
    return n;
}

static int measure_all(struct hl_bench_link *b, const struct request *req, struct result *res,
                       struct rounds *rounds)
{
    static samples got;
    uint64_t bytes = req->bytes < LEAST_BYTES ? req->bytes : LEAST_BYTES;
    int rc = 0;

    for (; rc == 0; bytes = 4 * bytes < req->bytes ? 4 * bytes : req->bytes) {
        rc = measure_size(b, bytes, req->repeats, got, rounds);
        for (int way = 0; rc == 0 && way < HL_LINK_NWAYS; way++)
            if (hl_bench_link_has(b, HL_LINK_HOSTALLOC))
                res->ratio_to_hostalloc[way] = ratio_of(got, way, req->repeats);
        for (int m = 0; rc == 0 && m < HL_LINK_NMEMORIES; m++) {
            struct row *row = &res->row[res->nrows];

            if (!hl_bench_link_has(b, m))
                continue;
            *row = (struct row){.bytes = bytes, .memory = m};
            for (int way = 0; way < HL_LINK_NWAYS; way++)
                row->gb_per_s[way] = median(got[m][way], req->repeats);
            res->nrows++;
        }
        if (bytes == req->bytes)
            break;
    }
    if (rc == 0)
        rc = hl_bench_link_latency(b, HL_LINK_POOL, HL_LINK_H2D, &res->latency_ns[0]);
    return rc < 0 ? rc : hl_bench_link_latency(b, HL_LINK_POOL, HL_LINK_D2H, &res->latency_ns[1]);
}

static int measure(struct hl_bench_link *b, const struct request *req, struct result *res)
{
    struct rounds rounds = {.ndone = 0};
    int rc;

    hl_time_left_begin(&rounds.left, "bench link", count_sizes(req->bytes) * req->repeats, 0);
    rc = measure_all(b, req, res, &rounds);
    hl_time_left_end(&rounds.left);
    return rc;
}

/* The pool's largest size: what the keys at the top of the report speak of. */
static const struct row *best_row(const struct result *res)
{
    const struct row *best = &res->row[0];

    for (unsigned i = 0; i < res->nrows; i++)
        if (res->row[i].memory == HL_LINK_POOL)
            best = &res->row[i];
    return best;
}

/* ---- saying it ---- */

static void print_text(const struct haul_device *dev, const struct request *req,
                       const struct result *res)
{
    char size[32];

    printf("device  %s%s\n", haul_device_name(dev),
           req->device == ON_HOST ? ": the figures are emulated" : "");
    printf("\n%10s  %-9s  %8s  %8s  %8s  GB/s, median of %u\n", "copy", "memory", "h2d", "d2h",
           "duplex", req->repeats);
    for (unsigned i = 0; i < res->nrows; i++) {
        const struct row *r = &res->row[i];

        printf("%10s  %-9s  %8.2f  %8.2f  %8.2f\n", haul_format_size(r->bytes, size, sizeof size),
               memory_names[r->memory], r->gb_per_s[HL_LINK_H2D], r->gb_per_s[HL_LINK_D2H],
               r->gb_per_s[HL_LINK_DUPLEX]);
    }
    printf("\n4 KiB queued and waited for, pool: h2d %.1f us, d2h %.1f us\n",
           res->latency_ns[0] * 1e-3, res->latency_ns[1] * 1e-3);
    if (res->ratio_to_hostalloc[HL_LINK_H2D] > 0)
        printf("pool to cuMemHostAlloc: h2d %.3f, d2h %.3f, duplex %.3f\n",
               res->ratio_to_hostalloc[HL_LINK_H2D], res->ratio_to_hostalloc[HL_LINK_D2H],
               res->ratio_to_hostalloc[HL_LINK_DUPLEX]);
}

static json_t *real_or_null(double value)
{
    return value > 0 ? json_real(value) : json_null();
}

static int print_json(const struct haul_device *dev, const struct request *req,
                      const struct result *res)
{
    const struct row *best = best_row(res);
    double worst = res->ratio_to_hostalloc[HL_LINK_H2D];
    json_t *rows = json_array(), *root;
    int rc;

    if (res->ratio_to_hostalloc[HL_LINK_D2H] < worst)
        worst = res->ratio_to_hostalloc[HL_LINK_D2H];
    for (unsigned i = 0; i < res->nrows; i++) {
        const struct row *r = &res->row[i];

        (void)json_array_append_new(
            rows, json_pack("{s:I, s:s, s:f, s:f, s:f}", "bytes", (json_int_t)r->bytes, "memory",
                            memory_names[r->memory], "h2d_gb_per_s", r->gb_per_s[HL_LINK_H2D],
                            "d2h_gb_per_s", r->gb_per_s[HL_LINK_D2H], "duplex_gb_per_s",
                            r->gb_per_s[HL_LINK_DUPLEX]));
    }
    root = json_pack("{s:s, s:b, s:f, s:f, s:f, s:o, s:f, s:f, s:i, s:o}", "device",
                     haul_device_name(dev), "emulated", req->device == ON_HOST, "h2d_gb_per_s",
                     best->gb_per_s[HL_LINK_H2D], "d2h_gb_per_s", best->gb_per_s[HL_LINK_D2H],
                     "duplex_gb_per_s", best->gb_per_s[HL_LINK_DUPLEX], "ratio_to_hostalloc",
                     real_or_null(worst), "h2d_latency_us", res->latency_ns[0] * 1e-3,
                     "d2h_latency_us", res->latency_ns[1] * 1e-3, "repeats", (int)req->repeats,
                     "rows", rows);
    if (!root)
        return -ENOMEM;
    rc = json_dumpf(root, stdout, JSON_INDENT(2)) < 0 ? -ENOMEM : 0;
    json_decref(root);
    putchar('\n');
    return rc;
}

static int draw(const struct haul_device *dev, const struct request *req, const struct result *res)
{
    char title[96], size[32];
    struct hl_bench_plot plot = {
        .path = req->plot, .title = title, .unit = "GB/s", .value = "h2d", .bound = "d2h"};

    snprintf(title, sizeof title, "Copies of the link, %s", haul_device_name(dev));
    for (unsigned i = 0; i < res->nrows; i++)
        hl_bench_plot_add(&plot, res->row[i].gb_per_s[HL_LINK_H2D],
                          res->row[i].gb_per_s[HL_LINK_D2H], "%s %s",
                          haul_format_size(res->row[i].bytes, size, sizeof size),
                          memory_names[res->row[i].memory]);
    return hl_bench_plot_draw(&plot);
}

/* ---- the command ---- */

static int open_device(const struct request *req, struct haul_device **out)
{
    struct haul_device_host_opts host;
    struct haul_device_cuda_opts cuda;

    if (req->device == ON_CUDA) {
        haul_device_cuda_opts_init(&cuda);
        cuda.ordinal = req->ordinal_given ? (int32_t)req->ordinal : -1;
        return haul_device_cuda_open(&cuda, out);
    }
    haul_device_host_opts_init(&host);
    host.h2d_bytes_per_s = host.d2h_bytes_per_s = req->link_gbps * 1e9;
    return haul_device_host_open(&host, out);
}

static int run(const struct request *req)
{
    static struct result res;
    struct haul_device *dev;
    struct hl_bench_link *b;
    int rc = open_device(req, &dev), closed;

    if (rc < 0)
        return rc;
    rc = hl_bench_link_open(dev, req->bytes, req->device == ON_CUDA, &b);
    if (rc == 0) {
        rc = measure(b, req, &res);
        hl_bench_link_close(b);
    }
    if (rc == 0 && req->json)
        rc = print_json(dev, req, &res);
    else if (rc == 0)
        print_text(dev, req, &res);
    if (rc == 0)
        rc = draw(dev, req, &res);
    closed = haul_device_close(dev);
    return rc < 0 ? rc : closed;
}

int hl_cmd_bench_link(int argc, char **argv)
{
    struct request req = {.bytes = UINT64_C(256) << 20, .repeats = 7};
    const struct hl_flag flags[] = {
        {"device", HL_FLAG_CHOICE, &req.device, "host|cuda", "the emulated device, or a GPU", NULL},
        {"ordinal", HL_FLAG_NUMBER, &req.ordinal, "N", "which GPU (default: the first)",
         &req.ordinal_given},
        {"size", HL_FLAG_SIZE, &req.bytes, "SIZE", "the largest copy (default 256MiB)", NULL},
        {"repeats", HL_FLAG_NUMBER, &req.repeats, "N", "of everything (default 7)", NULL},
        {"link-gbps", HL_FLAG_REAL, &req.link_gbps, "G",
         "host: GB/s of the emulated link (default: as fast as memcpy)", NULL},
        {"plot", HL_FLAG_TEXT, &req.plot, "FILE.svg", "the same drawn by gnuplot", NULL},
        {"json", HL_FLAG_SWITCH, &req.json, NULL, "machine-readable", NULL},
    };
    const struct hl_command cmd = {
        "bench link",
        "What the link between host and device carries: h2d, d2h and both at once, by size.", flags,
        sizeof flags / sizeof flags[0],
        "Host memory is haul's registered pool, cuMemHostAlloc'd (a GPU only) and pageable."};
    int rc = hl_flags_parse(&cmd, argc, argv);

    if (rc != HL_FLAGS_GO)
        return rc;
    if (req.bytes == 0 || req.bytes > UINT64_C(1) << 40)
        return hl_usage_error(&cmd, "--size is 1 to 1TiB");
    if (req.repeats == 0 || req.repeats > MAX_REPEATS)
        return hl_usage_error(&cmd, "--repeats is 1 to %d", MAX_REPEATS);
    rc = run(&req);
    return rc < 0 ? hl_report_error(&cmd, rc) : HL_EXIT_OK;
}
