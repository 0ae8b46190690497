/* tune_host.c: host memory, the optimizer's kernels on it, what drives take from them, and GPUs' links. */
#include <stdio.h>
#include <stdlib.h>

#include "bench_adam.h"
#include "bench_beside.h"
#include "bench_link.h"
#include "haul/device_cuda.h"
#include "kernel_table.h"
#include "tune.h"

#define MEMORY_ELEMS (32ull << 20)
#define UNIT_ELEMS   (2ull << 20)
#define REPEATS      3
#define COPY_BYTES   (UINT64_C(256) << 20)

static double middle(double a, double b, double c)
{
    return a > b ? (b > c ? b : a > c ? c : a) : (a > c ? a : b > c ? c : b);
}

static void set(struct hl_tune *t, const char *name, double rate)
{
    if (rate > 0)
        json_object_set_new(t->rates, name, json_real(rate));
}

/* ---- kernels ---- */

static const struct {
    const char *name;
    enum haul_optimizer kind;
    enum haul_master master;
    int norm;
} kernels[] = {{"adamw", HAUL_ADAMW, HAUL_MASTER_FP32, 0},
               {"adamw split", HAUL_ADAMW, HAUL_MASTER_SPLIT, 0},
               {"adam", HAUL_ADAM, HAUL_MASTER_FP32, 0},
               {"lion", HAUL_LION, HAUL_MASTER_FP32, 0},
               {"adagrad", HAUL_ADAGRAD, HAUL_MASTER_FP32, 0},
               {"sgd", HAUL_SGD, HAUL_MASTER_FP32, 0},
               {"norm", HAUL_ADAMW, HAUL_MASTER_FP32, 1}};
#define NKERNELS (sizeof kernels / sizeof *kernels)

_Static_assert(HL_TUNE_HOST_PASSES == NKERNELS + REPEATS, "what the total counts");

static int run_kernel(const struct hl_bench_opts *opts, const struct hl_bench_arena *arena,
                      unsigned i, struct hl_bench_result *out)
{
    struct hl_bench_case c = {.isa = hl_cpu_isa(),
                              .grad = HAUL_BF16,
                              .out = HAUL_BF16,
                              .master = kernels[i].master,
                              .norm = kernels[i].norm};

    haul_optim_init(&c.opt, kernels[i].kind);
    return hl_bench_run(opts, arena, &c, out);
}

static void run_kernels(struct hl_tune *t, json_t *list)
{
    struct hl_bench_opts opts = {
        .elems = MEMORY_ELEMS, .threads = haul_optim_threads(1), .repeats = 5};
    struct hl_bench_arena arena;
    struct hl_bench_result r;

    if (hl_bench_arena_open(&opts, &arena) < 0) {
        fprintf(stderr, "host memory is not measured: %s\n", haul_last_error());
        return;
    }
    for (unsigned i = 0; i < NKERNELS; i++) {
        int rc = run_kernel(&opts, &arena, i, &r);
        hl_tune_step(t);
        if (rc < 0) {
            fprintf(stderr, "%s is not measured: %s\n", kernels[i].name, haul_last_error());
            continue;
        }
        const double rate = (double)r.bytes_per_elem / r.ns_per_elem * 1e9;
        if (i == 0) {
            set(t, "mem_bytes_per_s", (double)r.bytes_per_elem / r.roof_ns_per_elem * 1e9);
            set(t, "optim_bytes_per_s", rate);
        } else if (kernels[i].norm) {
            set(t, "norm_bytes_per_s", rate);
        }
        json_array_append_new(list, json_pack("{s:s, s:f, s:f, s:f}", "kernel", kernels[i].name,
                                              "ns_per_elem", r.ns_per_elem, "gb_per_s", rate / 1e9,
                                              "ratio_to_roof", r.ratio_to_roof));
    }
    hl_bench_arena_close(&arena);
}

/* ---- beside each other ---- */

static int run_beside(struct hl_tune *t, struct hl_bench_io *io)
{
    struct hl_beside_rates r[REPEATS] = {{0}};
    double cost[REPEATS] = {0}, sums[REPEATS] = {0};
    struct hl_beside *b;
    int rc = hl_beside_open(HAUL_MASTER_FP32, 0, UNIT_ELEMS, &b);

    if (rc < 0)
        return rc;
    for (unsigned i = 0; rc == 0 && i < REPEATS; i++) {
        rc = hl_beside_take(b, io, &r[i]);
        cost[i] = hl_beside_cost(r[i].optim, r[i].optim_at_drive, r[i].drive_too);
        sums[i] = r[i].accumulate;
        hl_tune_step(t);
    }
    hl_beside_close(b);
    if (rc < 0)
        return rc;
    set(t, "accumulate_bytes_per_s", middle(sums[0], sums[1], sums[2]));
    set(t, "mem_per_drive_byte", middle(cost[0], cost[1], cost[2]));
    return 0;
}

void hl_tune_host(struct hl_tune *t, const char *dir, uint32_t block_bytes, json_t *list)
{
    struct hl_bench_io *io = NULL;

    if (dir && hl_tune_open(t, dir, block_bytes, 0, HAUL_VERIFY_ALWAYS, &io) < 0)
        fprintf(stderr, "what drives take from the optimizer is not measured: %s\n",
                haul_last_error());
    if (run_beside(t, io) < 0)
        fprintf(stderr, "what works beside the optimizer is not measured: %s\n", haul_last_error());
    if (io)
        hl_bench_io_close(io);
    run_kernels(t, list);
}

/* ---- links ---- */

static int link_rate(struct hl_bench_link *b, enum hl_link_way way, double *out)
{
    double v[REPEATS];

    for (unsigned i = 0; i < REPEATS; i++) {
        int rc = hl_bench_link_rate(b, HL_LINK_POOL, way, COPY_BYTES, &v[i]);
        if (rc < 0)
            return rc;
    }
    *out = middle(v[0], v[1], v[2]) * 1e9;
    return 0;
}

static int measure_link(struct hl_tune *t, struct haul_device *dev, json_t *root)
{
    struct haul_device_mem mem = {.struct_size = sizeof mem};
    double up, down, latency_ns;
    struct hl_bench_link *b;
    int rc = hl_bench_link_open(dev, COPY_BYTES, 1, &b);

    if (rc < 0)
        return rc;
    if ((rc = link_rate(b, HL_LINK_H2D, &up)) == 0 && (rc = link_rate(b, HL_LINK_D2H, &down)) == 0)
        rc = hl_bench_link_latency(b, HL_LINK_POOL, HL_LINK_H2D, &latency_ns);
    hl_bench_link_close(b);
    if (rc == 0)
        rc = haul_device_mem_info(dev, &mem);
    if (rc < 0)
        return rc;
    set(t, "h2d_bytes_per_s", up);
    set(t, "d2h_bytes_per_s", down);
    set(t, "link_latency_s", latency_ns * 1e-9);
    json_object_set_new(root, "device", json_string(haul_device_name(dev)));
    json_object_set_new(root, "device_mem_bytes", json_integer((json_int_t)mem.total_bytes));
    fprintf(stderr, "%s: h2d %.2f, d2h %.2f GB/s\n", haul_device_name(dev), up / 1e9, down / 1e9);
    return 0;
}

void hl_tune_links(struct hl_tune *t, json_t *root)
{
    struct haul_device_cuda_opts opts;
    struct haul_device *dev;
    int rc, closed;

    haul_device_cuda_opts_init(&opts);
    rc = haul_device_cuda_open(&opts, &dev);
    if (rc < 0) {
        fprintf(stderr, "links are not measured: %s\n", haul_last_error());
        return;
    }
    rc = measure_link(t, dev, root);
    if (rc < 0)
        fprintf(stderr, "links are not measured: %s\n", haul_last_error());
    closed = haul_device_close(dev);
    (void)closed; /* told already */
}
