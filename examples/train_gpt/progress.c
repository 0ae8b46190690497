/* progress.c: see progress.h. Progress goes to stderr, tables to stdout. */
#include "progress.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>

#include "run_summary.h"

static const char *const lane_names[HAUL_NLANES] = {
    [HAUL_LANE_COMPUTE] = "compute", [HAUL_LANE_H2D] = "h2d",           [HAUL_LANE_D2H] = "d2h",
    [HAUL_LANE_IO_READ] = "io_read", [HAUL_LANE_IO_WRITE] = "io_write", [HAUL_LANE_OPTIM] = "optim",
    [HAUL_LANE_COMM] = "comm"};

const char *progress_lane_name(enum haul_lane lane)
{
    return lane_names[lane];
}

int progress_open(const struct args *args, struct progress *out)
{
    *out = (struct progress){.args = args};
    if (args->jsonl == NULL)
        return EXIT_OK;
    out->jsonl = fopen(args->jsonl, "w");
    if (out->jsonl != NULL)
        return EXIT_OK;
    fprintf(stderr, "train_gpt: --jsonl %s: %s\n", args->jsonl, strerror(errno));
    return EXIT_FAILED;
}

void progress_close(struct progress *p)
{
    if (p->jsonl != NULL)
        fclose(p->jsonl);
}

/* Of all ranks. */
static double tokens_per_s(const struct args *args, uint64_t nsteps, uint64_t wall_ns)
{
    return wall_ns == 0
               ? 0
               : (double)(nsteps * args->batch * args->ranks * args->seq) * 1e9 / (double)wall_ns;
}

/* JSON has no Inf and no NaN. */
static void json_number(FILE *f, const char *key, double value)
{
    if (isfinite(value))
        fprintf(f, "\"%s\":%.9g,", key, value);
    else
        fprintf(f, "\"%s\":null,", key);
}

static int read_tiers(const struct trainer *t, struct tier_bytes out[HAUL_NTIERS])
{
    int rc = 0;

    for (int i = 0; rc == 0 && i < HAUL_NTIERS; i++)
        rc = haul_engine_tier_bytes(t->engine, (enum haul_tier)i, &out[i].planned, &out[i].peak);
    return rc;
}

static int json_step(const struct progress *p, const struct trainer *t, uint64_t step, double loss,
                     const struct haul_report *r)
{
    struct tier_bytes held[HAUL_NTIERS];
    FILE *f = p->jsonl;
    int rc = read_tiers(t, held);

    if (rc < 0)
        return rc;

    fprintf(f, "{\"step\":%" PRIu64 ",", step);
    json_number(f, "loss", loss);
    json_number(f, "grad_norm", r->grad_norm);
    json_number(f, "lr", trainer_lr(p->args, step));
    json_number(f, "clip", r->clip);
    fprintf(f, "\"skipped\":%s,", r->skipped ? "true" : "false");
    json_number(f, "ms", (double)r->wall_ns * 1e-6);
    json_number(f, "tokens_per_s", tokens_per_s(p->args, 1, r->wall_ns));
    json_number(f, "weight_passes", r->weight_passes);
    fputs("\"lanes\":{", f);
    for (int i = 0; i < HAUL_NLANES; i++)
        fprintf(f, "%s\"%s\":{\"busy_ms\":%.6f,\"exposed_ms\":%.6f,\"bytes\":%" PRIu64 "}",
                i > 0 ? "," : "", lane_names[i], (double)r->lanes[i].busy_ns * 1e-6,
                (double)r->lanes[i].exposed_ns * 1e-6, r->lanes[i].bytes);
    fprintf(f, "},\"held\":{\"device\":%" PRIu64 ",\"host\":%" PRIu64 ",\"nvme\":%" PRIu64 "}}\n",
            held[HAUL_TIER_DEVICE].peak, held[HAUL_TIER_HOST].peak, held[HAUL_TIER_NVME].peak);
    return 0;
}

static void print_step(const struct progress *p, uint64_t step, double loss,
                       const struct haul_report *r)
{
    fprintf(stderr,
            "step %*" PRIu64 "/%" PRIu64 "  loss %.4f  norm %.3f  lr %.2e  %.1f ms  %.0f tokens/s",
            snprintf(NULL, 0, "%" PRIu64, p->args->steps), step, p->args->steps, loss, r->grad_norm,
            trainer_lr(p->args, step), (double)r->wall_ns * 1e-6,
            tokens_per_s(p->args, 1, r->wall_ns));
    fputs(r->skipped ? "  skipped: gradient not finite\n" : "\n", stderr);
}

/* Flushed line by line: a disk that fills up is seen now, not when training is over. */
static int flush_step(const struct progress *p, uint64_t step)
{
    if (fflush(p->jsonl) == 0 && !ferror(p->jsonl))
        return EXIT_OK;
    fprintf(stderr,
            "train_gpt: --jsonl %s: the line of step %" PRIu64
            " could not be written: %s; training stops here\n",
            p->args->jsonl, step, strerror(errno));
    return EXIT_FAILED;
}

int progress_step(struct progress *p, const struct trainer *t, uint64_t step, double loss,
                  const struct haul_report *report)
{
    int rc = EXIT_OK;

    if (p->nsteps++ == 0)
        p->first_loss = loss;
    p->last_loss = loss;
    p->nskipped += report->skipped != 0;
    p->wall_ns += report->wall_ns;
    for (int i = 0; i < HAUL_NLANES; i++) {
        p->lanes[i].busy_ns += report->lanes[i].busy_ns;
        p->lanes[i].exposed_ns += report->lanes[i].exposed_ns;
        p->lanes[i].bytes += report->lanes[i].bytes;
    }
    if (p->jsonl != NULL) {
        if (json_step(p, t, step, loss, report) < 0) {
            trainer_complain(t, 0);
            return EXIT_FAILED;
        }
        rc = flush_step(p, step);
    }
    if (rc == EXIT_OK && !p->args->quiet)
        print_step(p, step, loss, report);
    return rc;
}

/* Lanes that did nothing are left out. */
static void print_lanes(const struct progress *p)
{
    double n = (double)p->nsteps;
    char size[32];

    printf("\n%-10s %14s %16s %14s %12s\n", "lane", "busy ms/step", "exposed ms/step",
           "moved /step", "GB/s");
    for (int i = 0; i < HAUL_NLANES; i++) {
        const struct haul_lane_report *lane = &p->lanes[i];

        if (lane->busy_ns == 0 && lane->bytes == 0)
            continue;
        printf("%-10s %14.2f %16.2f", lane_names[i], (double)lane->busy_ns * 1e-6 / n,
               (double)lane->exposed_ns * 1e-6 / n);
        if (lane->bytes > 0)
            printf(" %14s", haul_format_size(lane->bytes / p->nsteps, size, sizeof size));
        if (lane->bytes > 0 && lane->busy_ns > 0)
            printf(" %12.2f", (double)lane->bytes / (double)lane->busy_ns);
        putchar('\n');
    }
}

static void print_table(const struct progress *p, const struct trainer *t,
                        const struct tier_bytes tiers[HAUL_NTIERS])
{
    double wall_s = (double)p->wall_ns * 1e-9;

    printf("\ndevice     %s\n", haul_device_name(t->device));
    if (p->nsteps > 0) {
        printf("loss       first %.4f, last %.4f\n", p->first_loss, p->last_loss);
        printf("steps      %" PRIu64 " in %.2f s: %.1f ms each, %.0f tokens/s\n", p->nsteps, wall_s,
               wall_s * 1e3 / (double)p->nsteps, tokens_per_s(p->args, p->nsteps, p->wall_ns));
        if (p->nskipped > 0)
            printf("skipped    %" PRIu64 " steps: gradient not finite\n", p->nskipped);
        if (p->args->grad_dtype == HAUL_FP16)
            printf("loss scale %g in the end\n", haul_engine_loss_scale(t->engine));
        print_lanes(p);
    }
    printf("\n%-10s %16s %16s\n", "tier", "planned B", "peak B");
    for (int i = 0; i < HAUL_NTIERS; i++)
        if (tiers[i].planned > 0 || tiers[i].peak > 0)
            printf("%-10s %16" PRIu64 " %16" PRIu64 "\n", run_tier_names[i], tiers[i].planned,
                   tiers[i].peak);
}

int progress_end(struct progress *p, const struct trainer *t, uint64_t digest)
{
    struct tier_bytes tiers[HAUL_NTIERS];
    struct haul_comm_count comm[HAUL_COMM_NKINDS];
    FILE *f = p->jsonl;
    int failed;

    if (read_tiers(t, tiers) < 0 || haul_engine_comm_counts(t->engine, comm) < 0) {
        fprintf(stderr, "train_gpt: %s\n", haul_last_error());
        return EXIT_FAILED;
    }
    if (!p->args->quiet)
        print_table(p, t, tiers);
    if (f == NULL)
        return EXIT_OK;
    run_summary_write(f, t, tiers, comm, digest);
    failed = ferror(f) != 0;
    p->jsonl = NULL;
    if (fclose(f) == 0 && !failed)
        return EXIT_OK;
    fprintf(stderr, "train_gpt: --jsonl %s: could not be written: %s\n", p->args->jsonl,
            strerror(errno));
    return EXIT_FAILED;
}

int progress_plan(const struct trainer *t)
{
    const uint64_t budget[HAUL_NTIERS] = {t->args->device_mem_bytes, t->args->host_mem_bytes,
                                          t->args->nvme_mem_bytes};
    uint64_t sum[HAUL_NTIERS] = {0};
    struct haul_ledger_line line;
    int rc = EXIT_OK;

    rc = haul_engine_ledger(t->engine, 0, &line) < 0 ? EXIT_FAILED : EXIT_OK;
    if (rc != EXIT_OK)
        trainer_complain(t, 0);
    if (rc != EXIT_OK || t->args->rank != 0)
        return rc;
    if (t->args->ranks > 1)
        printf("each of %" PRIu64 " ranks, %u on a node:\n", t->args->ranks, t->ranks->nlocal);
    printf("%-8s %-20s %20s\n", "tier", "purpose", "bytes");
    for (uint32_t i = 0; haul_engine_ledger(t->engine, i, &line) == 0; i++) {
        printf("%-8s %-20s %20" PRIu64 "\n", run_tier_names[line.tier], line.purpose, line.bytes);
        sum[line.tier] += line.bytes;
    }
    for (int i = 0; i < HAUL_NTIERS; i++) {
        if (sum[i] > 0)
            printf("%-8s %-20s %20" PRIu64 "\n", run_tier_names[i], "in all", sum[i]);
        if (budget[i] > 0 && sum[i] > budget[i]) {
            fprintf(stderr, "train_gpt: short by %" PRIu64 " bytes of %s memory\n",
                    sum[i] - budget[i], run_tier_names[i]);
            rc = EXIT_FAILED;
        }
    }
    return rc;
}
