/* cmd_bench_step.c: haul bench step. */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bench_plot.h"
#include "bench_step.h"
#include "commands.h"
#include "fail.h"
#include "flags.h"

#define TFLOPS_DEFAULT 140.0 /* as haul plan */

struct request {
    uint64_t params, slot_bytes, host_mem_bytes;
    uint32_t units, slots, threads, steps, window, passes;
    double tokens, tflops, forward_ms, link_gbps;
    int params_given, tokens_given, tflops_given, forward_given;
    int slots_given, threads_given;
    int placement, overlap, offload, master; /* indices of the words below */
    int no_recompute, no_compute, json;
    const char *plot;
    struct hl_flag_list dirs;
};

static const char *overlap_name(const struct hl_step_row *row)
{
    return row->overlap ? "deferred" : "off";
}

static double penalty(const struct hl_step_row *row)
{
    return row->step_s / row->compute_s - 1;
}

/* Of the set compute; those that were given, or that the chosen forward time amounts to. */
static double tokens_of(const struct request *q, const struct hl_step_bench *r)
{
    return q->tokens_given ? q->tokens : r->forward_s * q->tflops * 1e12 / (2 * (double)r->params);
}

/* ---- as a table ---- */

static void print_table(const struct request *q, const struct hl_step_bench *r)
{
    const struct hl_step_rates *rates = &r->row[r->nrows - 1].rates;

    printf("emulated device: compute is timed waits, links have a set speed; optimizer, memory and "
           "drive are real\n");
    printf("%" PRIu64 " parameters in %u units, forward %.4g s, backward %.4g s", r->params,
           q->units, r->forward_s, r->backward_s);
    if (r->forward_s > 0)
        printf(" (%.4g tokens at %g TFLOP/s)", tokens_of(q, r), q->tflops);
    printf("\noptimizer alone %.2f GB/s (spread %.2f)", rates->optim_bytes_per_s / 1e9,
           rates->optim_spread);
    if (r->roof_bytes)
        printf(", drive both ways %.2f GB/s (spread %.2f)", rates->mixed_bytes_per_s / 1e9,
               rates->mixed_spread);
    printf("; median of %u steps, rows %s\n\n", q->steps,
           r->interleaved ? "took turns" : "one after the other");
    printf("%-9s %-8s %8s %8s %8s %8s %8s %8s %8s %8s %7s %7s %8s\n", "placement", "overlap",
           "step s", "compute", "penalty", "exp h2d", "exp d2h", "exp opt", "exp io", "bound s",
           "ratio", "spread", "sim s");
    for (uint32_t i = 0; i < r->nrows; i++) {
        const struct hl_step_row *x = &r->row[i];

        printf("%-9s %-8s %8.4f %8.4f ", hl_step_placement_name(x->placement), overlap_name(x),
               x->step_s, x->compute_s);
        if (x->compute_s > 0)
            printf("%7.2f%%", 100 * penalty(x));
        else
            printf("%8s", "-");
        printf(" %8.4f %8.4f %8.4f %8.4f %8.4f %7.3f %7.3f %8.4f\n", x->exposed_h2d_s,
               x->exposed_d2h_s, x->exposed_optim_s, x->exposed_io_s, x->bound_s,
               x->step_s / x->bound_s, (x->slowest_s - x->fastest_s) / x->step_s, x->predicted_s);
    }
}

/* ---- as JSON ---- */

static json_t *row_json(const struct hl_step_row *x)
{
    json_t *o =
        json_pack("{s:s, s:s, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "placement",
                  hl_step_placement_name(x->placement), "overlap", overlap_name(x), "step_s",
                  x->step_s, "fastest_s", x->fastest_s, "slowest_s", x->slowest_s, "compute_s",
                  x->compute_s, "exposed_h2d_s", x->exposed_h2d_s, "exposed_d2h_s",
                  x->exposed_d2h_s, "exposed_optim_s", x->exposed_optim_s, "exposed_io_s",
                  x->exposed_io_s, "bound_s", x->bound_s, "ratio_to_bound", x->step_s / x->bound_s);
    json_t *more = json_pack(
        "{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:I, s:I, s:I, s:I}",
        "optim_s", x->optim_s, "cores_s", x->cores_s, "nvme_s", x->nvme_s, "nvme_all_s",
        x->nvme_all_s, "h2d_s", x->h2d_s, "d2h_s", x->d2h_s, "h2d_bytes", x->h2d_bytes, "d2h_bytes",
        x->d2h_bytes, "io_bytes", x->io_bytes, "optim_bytes_per_s", x->rates.optim_bytes_per_s,
        "mixed_bytes_per_s", x->rates.mixed_bytes_per_s, "mixed_spread", x->rates.mixed_spread,
        "records_device_bytes", (json_int_t)x->records_bytes[HAUL_TIER_DEVICE],
        "records_host_bytes", (json_int_t)x->records_bytes[HAUL_TIER_HOST], "records_nvme_bytes",
        (json_int_t)x->records_bytes[HAUL_TIER_NVME], "host_bytes", (json_int_t)x->host_bytes);

    if (o && more)
        json_object_update(o, more);
    json_decref(more);
    json_t *predicted =
        json_pack("{s:f, s:f, s:f, s:f, s:f}", "predicted_s", x->predicted_s,
                  "predicted_exposed_h2d_s", x->predicted_h2d_s, "predicted_exposed_d2h_s",
                  x->predicted_d2h_s, "predicted_exposed_optim_s", x->predicted_optim_s,
                  "predicted_exposed_io_s", x->predicted_io_s);
    json_t *rates = json_pack(
        "{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "norm_bytes_per_s",
        x->rates.norm_bytes_per_s, "accumulate_bytes_per_s", x->rates.accumulate_bytes_per_s,
        "read_bytes_per_s", x->rates.read_bytes_per_s, "write_bytes_per_s",
        x->rates.write_bytes_per_s, "ring_bytes_per_s", x->rates.ring_bytes_per_s,
        "copy_bytes_per_s", x->rates.copy_bytes_per_s, "mem_per_copied_byte",
        x->rates.mem_per_copied_byte, "mem_per_drive_byte", x->rates.mem_per_drive_byte,
        "optim_weight", x->rates.optim_weight, "paged_bytes_per_s", x->rates.paged_bytes_per_s);

    if (o && rates)
        json_object_update(o, rates);
    json_decref(rates);
    if (o && predicted)
        json_object_update(o, predicted);
    json_decref(predicted);
    if (o)
        json_object_set_new(o, "penalty", x->compute_s > 0 ? json_real(penalty(x)) : json_null());
    return o;
}

static int print_json(const struct request *q, const struct hl_step_bench *r)
{
    const struct hl_step_rates *rates = &r->row[r->nrows - 1].rates;
    json_t *rows = json_array(), *root;
    char digest[17];
    int failed = !rows;

    for (uint32_t i = 0; i < r->nrows; i++)
        failed |= json_array_append_new(rows, row_json(&r->row[i])) < 0;
    snprintf(digest, sizeof digest, "%016" PRIx64, r->row[0].digest);
    root = json_pack("{s:b, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:s, s:s, s:I, s:b, s:f, s:f, s:I, "
                     "s:I, s:s, s:O}",
                     "emulated", 1, "params", (json_int_t)r->params, "units", (json_int_t)q->units,
                     "tokens", tokens_of(q, r), "tflops", q->tflops, "forward_s", r->forward_s,
                     "backward_s", r->backward_s, "link_gbps", q->link_gbps, "offload",
                     q->offload ? "optimizer" : "all", "master", q->master ? "fp32" : "split",
                     "steps", (json_int_t)q->steps, "interleaved", r->interleaved,
                     "optim_bytes_per_s", rates->optim_bytes_per_s, "mixed_bytes_per_s",
                     rates->mixed_bytes_per_s, "block_bytes", (json_int_t)r->block_bytes,
                     "roof_bytes", (json_int_t)r->roof_bytes, "digest", digest, "rows", rows);
    failed |= !root || json_dumpf(root, stdout, JSON_INDENT(2)) < 0;
    json_decref(root);
    json_decref(rows);
    if (!failed)
        putchar('\n');
    return failed ? -ENOMEM : 0;
}

/* ---- the command ---- */

static int check_request(const struct hl_command *cmd, const struct request *q)
{
    if (q->units < 1 || q->units > 4096)
        return hl_usage_error(cmd, "--units must be from 1 to 4096");
    if (q->params_given && q->params / q->units < 4096)
        return hl_usage_error(cmd, "--params must be at least 4096 for each of the %u --units",
                              q->units);
    if (q->steps < 1 || q->steps > HL_STEP_MAX_REPEATS)
        return hl_usage_error(cmd, "--steps must be from 1 to %d", HL_STEP_MAX_REPEATS);
    if (q->slots_given && (q->slots < 2 || q->slots > 1024))
        return hl_usage_error(cmd, "--slots must be from 2 to 1024");
    if (q->window > 1024 || q->passes > 64)
        return hl_usage_error(cmd, "--window must be at most 1024, --passes at most 64");
    if (q->threads_given && (q->threads < 1 || q->threads > 4096))
        return hl_usage_error(cmd, "--threads must be from 1 to 4096");
    if (q->forward_given && (q->tokens_given || q->tflops_given))
        return hl_usage_error(cmd, "--forward-ms sets what --tokens and --tflops would");
    if (q->no_compute && (q->forward_given || q->tokens_given || q->no_recompute))
        return hl_usage_error(cmd, "--no-compute leaves nothing for --forward-ms, --tokens or "
                                   "--no-recompute to set");
    if (q->host_mem_bytes && q->placement != 1 + HL_STEP_NVME)
        return hl_usage_error(cmd, "--host-mem needs --placement nvme");
    return HL_FLAGS_GO;
}

static struct hl_step_bench_opts bench_opts(const struct request *q)
{
    return (struct hl_step_bench_opts){
        .model = {.params = q->params,
                  .units = q->units,
                  .offload = q->offload ? HAUL_OFFLOAD_OPTIMIZER : HAUL_OFFLOAD_ALL,
                  .master = q->master ? HAUL_MASTER_FP32 : HAUL_MASTER_SPLIT,
                  .link_bytes_per_s = q->link_gbps * 1e9,
                  .dirs = q->dirs.item,
                  .ndirs = q->dirs.nitems,
                  .slots = q->slots,
                  .slot_bytes = q->slot_bytes,
                  .host_mem_bytes = q->host_mem_bytes,
                  .nthreads = q->threads,
                  .window = q->window,
                  .passes = q->passes},
        .placement = q->placement - 1,
        .overlap = q->overlap - 1,
        .repeats = q->steps,
        .forward_s = q->forward_ms * 1e-3,
        .forward_s_per_elem = q->tokens_given ? 2 * q->tokens / (q->tflops * 1e12) : 0,
        .backward_ratio = q->no_recompute ? 2 : 3,
        .no_compute = q->no_compute};
}

/* A store would make the folder, and a typing error would be measured on another drive. */
static int check_dirs(const struct hl_command *cmd, const struct request *q)
{
    for (uint32_t i = 0; i < q->dirs.nitems; i++) {
        struct stat st;
        int rc = stat(q->dirs.item[i], &st) < 0 ? errno : S_ISDIR(st.st_mode) ? 0 : ENOTDIR;

        if (rc) {
            fprintf(stderr, "haul %s: --nvme %s: %s; name a folder that exists\n", cmd->name,
                    q->dirs.item[i], strerror(rc));
            return HL_EXIT_ENVIRONMENT;
        }
    }
    return HL_FLAGS_GO;
}

/* Here for the signal handler. Its files have no names, so that it can go at any time. */
static char scratch[] = "./haul-bench-step.XXXXXX";

static void remove_scratch(void)
{
    (void)rmdir(scratch);
}

static void on_end_signal(int sig)
{
    remove_scratch();
    (void)raise(sig); /* with its usual effect: the handler serves once */
}

/* Goes when the command ends, also where OpenMP ends the process. */
static int make_scratch(struct request *q)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    const struct sigaction action = {.sa_handler = on_end_signal, .sa_flags = (int)SA_RESETHAND};
    struct sigaction before;
    int rc;

    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        if (sigaction(signals[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN)
            (void)sigaction(signals[i], &action, NULL);
    if (atexit(remove_scratch) || !mkdtemp(scratch)) {
        rc = errno ? -errno : -ENOMEM;
        return hl_fail(rc, "no scratch directory here: %s; name one with --nvme",
                       haul_strerror(rc));
    }
    q->dirs = (struct hl_flag_list){.item = {scratch}, .nitems = 1};
    return 0;
}

static int draw(const struct request *q, const struct hl_step_bench *r)
{
    struct hl_bench_plot plot = {.path = q->plot,
                                 .title = "Steps on the emulated device, median",
                                 .unit = "seconds",
                                 .value = "step",
                                 .bound = "bound"};

    for (uint32_t i = 0; i < r->nrows; i++)
        hl_bench_plot_add(&plot, r->row[i].step_s, r->row[i].bound_s, "%s %s",
                          hl_step_placement_name(r->row[i].placement), overlap_name(&r->row[i]));
    return hl_bench_plot_draw(&plot);
}

static int run(struct request *q)
{
    struct hl_step_bench_opts opts;
    struct hl_step_bench result;
    int rc = q->dirs.nitems ? 0 : make_scratch(q);

    if (rc < 0)
        return rc;
    opts = bench_opts(q);
    rc = hl_bench_step(&opts, &result);
    if (rc == 0 && q->json)
        rc = print_json(q, &result);
    else if (rc == 0)
        print_table(q, &result);
    if (rc == 0)
        rc = draw(q, &result);
    return rc;
}

int hl_cmd_bench_step(int argc, char **argv)
{
    static struct request q = {.units = 32, .steps = 7, .tflops = TFLOPS_DEFAULT, .link_gbps = 8};
    const struct hl_flag flags[] = {
        {"params", HL_FLAG_COUNT, &q.params, "N",
         "of the model (default 32Mi, fewer where that would take over 75 s)", &q.params_given},
        {"units", HL_FLAG_NUMBER, &q.units, "N", "of equal size (default 32)", NULL},
        {"placement", HL_FLAG_CHOICE, &q.placement, "all|device|host|nvme|mixed", "of the records",
         NULL},
        {"overlap", HL_FLAG_CHOICE, &q.overlap, "both|off|deferred", "of the updates", NULL},
        {"offload", HL_FLAG_CHOICE, &q.offload, "all|optimizer",
         "in every placement but device (default all)", NULL},
        {"master", HL_FLAG_CHOICE, &q.master, "split|fp32", "10 or 12 bytes a record element",
         NULL},
        {"tokens", HL_FLAG_REAL, &q.tokens, "T", "of a step: forward takes 2 P T / F",
         &q.tokens_given},
        {"tflops", HL_FLAG_REAL, &q.tflops, "F", "of the emulated device (default 140)",
         &q.tflops_given},
        {"forward-ms", HL_FLAG_REAL, &q.forward_ms, "MS",
         "of forward (default 1.3 times the longer of optimizer and drive)", &q.forward_given},
        {"no-recompute", HL_FLAG_SWITCH, &q.no_recompute, NULL,
         "backward is twice forward, not three times", NULL},
        {"no-compute", HL_FLAG_SWITCH, &q.no_compute, NULL, "what is left when compute is nothing",
         NULL},
        {"link-gbps", HL_FLAG_REAL, &q.link_gbps, "GB/s", "each way (default 8)", NULL},
        {"nvme", HL_FLAG_LIST, &q.dirs, "DIR", "that exists (default: a scratch directory here)",
         NULL},
        {"slots", HL_FLAG_NUMBER, &q.slots, "N", "for paged records (default: the engine's)",
         &q.slots_given},
        {"slot-bytes", HL_FLAG_SIZE, &q.slot_bytes, "SIZE",
         "of one (default 32MiB, less for few records)", NULL},
        {"window", HL_FLAG_NUMBER, &q.window, "N", "units on the device (default: the engine's)",
         NULL},
        {"passes", HL_FLAG_NUMBER, &q.passes, "N",
         "over the model in a step, compute shared among them (default 1)", NULL},
        {"host-mem", HL_FLAG_SIZE, &q.host_mem_bytes, "SIZE",
         "budget of placement nvme (default: the least)", NULL},
        {"threads", HL_FLAG_NUMBER, &q.threads, "N", "of the optimizer (default: cores allowed)",
         &q.threads_given},
        {"steps", HL_FLAG_NUMBER, &q.steps, "N", "measured of each row (default 7)", NULL},
        {"plot", HL_FLAG_TEXT, &q.plot, "FILE.svg", "the same drawn by gnuplot", NULL},
        {"json", HL_FLAG_SWITCH, &q.json, NULL, "one object on stdout", NULL},
    };
    const struct hl_command cmd = {
        "bench step",
        "Whole training steps of a synthetic model on the emulated device, beside their bound.",
        flags, sizeof flags / sizeof *flags,
        "device: everything rests on the device. host: everything but a window in host memory. "
        "nvme: "
        "records\non the drive, with the least host budget. mixed: half of them in host memory.\n"
        "penalty: step / compute - 1. bound: max(forward, optimizer and the copies beside it, "
        "drive)\n"
        "+ backward, and each link, from rates measured in turns with the steps. sim: what haul "
        "sim's\n"
        "simulator says from the same rates. Figures are emulated."};
    int rc = hl_flags_parse(&cmd, argc, argv);

    if (rc == HL_FLAGS_GO)
        rc = check_request(&cmd, &q);
    if (rc == HL_FLAGS_GO)
        rc = check_dirs(&cmd, &q);
    if (rc != HL_FLAGS_GO)
        return rc;
    rc = run(&q);
    return rc < 0 ? hl_report_error(&cmd, rc) : HL_EXIT_OK;
}
