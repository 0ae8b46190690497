/* offload_report.c: what came out of --bench: medians, a table, JSON. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include "compute.h"
#include "offload_rows.h"
#include "progress.h"

struct figures {
    double ms, fastest_ms, slowest_ms, tokens_per_s;
    double penalty; /* step over the reference's, less 1; NAN without one */
    double exposed_ms[OFFLOAD_LANES], busy_ms[OFFLOAD_LANES];
};

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Sorts them. */
static double median(double *x, uint64_t n)
{
    qsort(x, n, sizeof *x, ascending);
    return n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2;
}

static void figure(struct offload_rows *b, struct figures out[OFFLOAD_ROWS])
{
    uint64_t n = b->args->steps;

    for (int i = 0; i < OFFLOAD_ROWS; i++) {
        struct offload_row *row = &b->row[i];
        struct figures *f = &out[i];

        if (!row->fits)
            continue;
        f->ms = median(row->ms, n);
        f->fastest_ms = row->ms[0];
        f->slowest_ms = row->ms[n - 1];
        f->tokens_per_s = (double)(b->args->batch * b->args->seq) * 1e3 / f->ms;
        f->penalty = i > 0 && b->row[0].fits ? f->ms / out[0].ms - 1 : NAN;
        for (size_t l = 0; l < OFFLOAD_LANES; l++) {
            f->exposed_ms[l] = median(row->exposed_ms[l], n);
            f->busy_ms[l] = median(row->busy_ms[l], n);
        }
    }
}

static uint64_t params_of(const struct args *args)
{
    struct gpt_shape s = {.layers = args->layers,
                          .dim = args->dim,
                          .heads = args->heads,
                          .seq = args->seq,
                          .vocab = args->vocab};

    return gpt_unit_elems(&s, GPT_EMBED) + s.layers * gpt_unit_elems(&s, GPT_BLOCK) +
           gpt_unit_elems(&s, GPT_FINAL);
}

static void print_row(const struct offload_rows *b, int i, const struct figures *f)
{
    const struct offload_row *row = &b->row[i];
    char size[2][32];

    printf("%-10s ", offload_row_names[i]);
    if (!row->fits) {
        printf("does not fit: %s of device memory\n",
               haul_format_size(row->planned[HAUL_TIER_DEVICE], size[0], sizeof size[0]));
        return;
    }
    printf("%9.2f %9.2f %10.0f", f->ms, f->fastest_ms, f->tokens_per_s);
    if (isfinite(f->penalty))
        printf(" %7.1f%%", 1e2 * f->penalty);
    else
        printf(" %8s", "");
    for (size_t l = 0; l < OFFLOAD_LANES; l++)
        printf(" %8.2f", f->exposed_ms[l]);
    printf(" %10s %10s\n", haul_format_size(row->peak[HAUL_TIER_DEVICE], size[0], sizeof size[0]),
           haul_format_size(row->peak[HAUL_TIER_HOST], size[1], sizeof size[1]));
}

static void print_table(const struct offload_rows *b, const struct figures f[OFFLOAD_ROWS])
{
    printf("device     %s%s\n", b->device,
           compute_device == DEVICE_HOST ? ": the figures are emulated" : "");
    printf("model      %" PRIu64 " parameters, %" PRIu64 " tokens a step\n", params_of(b->args),
           b->args->batch * b->args->seq);
    printf("rows       medians of %" PRIu64 " steps, %s\n\n", b->args->steps,
           b->interleaved ? "in turns" : "one after the other: no room for all at once");
    printf("%-10s %9s %9s %10s %8s", "offload", "ms/step", "fastest", "tokens/s", "penalty");
    for (size_t l = 0; l < OFFLOAD_LANES; l++)
        printf(" %8s", progress_lane_name(offload_lanes[l]));
    printf(" %10s %10s\n%49s  exposed ms/step\n", "device", "host", "");
    for (int i = 0; i < OFFLOAD_ROWS; i++)
        print_row(b, i, &f[i]);
}

/* A key and a number, which JSON has no Inf and no NaN for. */
static void json_number(const char *key, double value)
{
    if (isfinite(value))
        printf("\"%s\":%.9g", key, value);
    else
        printf("\"%s\":null", key);
}

static void json_lanes(const char *key, const double value[OFFLOAD_LANES])
{
    printf(",\"%s\":{", key);
    for (size_t l = 0; l < OFFLOAD_LANES; l++) {
        fputs(l > 0 ? "," : "", stdout);
        json_number(progress_lane_name(offload_lanes[l]), value[l]);
    }
    putchar('}');
}

static void json_tiers(const char *key, const uint64_t bytes[HAUL_NTIERS])
{
    printf(",\"%s\":{\"device\":%" PRIu64 ",\"host\":%" PRIu64 ",\"nvme\":%" PRIu64 "}", key,
           bytes[HAUL_TIER_DEVICE], bytes[HAUL_TIER_HOST], bytes[HAUL_TIER_NVME]);
}

/* The part of a lane's time that compute did not wait for; NAN where it did nothing. */
static double hidden(const struct figures *f, size_t l)
{
    return f->busy_ms[l] > 0 ? fmax(0, 1 - f->exposed_ms[l] / f->busy_ms[l]) : NAN;
}

static void json_row(const struct offload_rows *b, int i, const struct figures *f)
{
    const struct offload_row *row = &b->row[i];
    double part[OFFLOAD_LANES], bytes[OFFLOAD_LANES];

    printf("{\"offload\":\"%s\",\"fits\":%s", offload_row_names[i], row->fits ? "true" : "false");
    json_tiers("planned", row->planned);
    if (row->fits) {
        for (size_t l = 0; l < OFFLOAD_LANES; l++) {
            part[l] = hidden(f, l);
            bytes[l] = (double)row->bytes[l];
        }
        putchar(',');
        json_number("step_ms", f->ms), putchar(',');
        json_number("fastest_ms", f->fastest_ms), putchar(',');
        json_number("slowest_ms", f->slowest_ms), putchar(',');
        json_number("tokens_per_s", f->tokens_per_s), putchar(',');
        json_number("penalty", f->penalty);
        json_lanes("exposed_ms", f->exposed_ms);
        json_lanes("busy_ms", f->busy_ms);
        json_lanes("hidden", part);
        json_lanes("bytes", bytes);
        json_tiers("peaks", row->peak);
    }
    putchar('}');
}

static void print_json(const struct offload_rows *b, const struct figures f[OFFLOAD_ROWS])
{
    printf("{\"bench\":\"train_gpt\",\"device\":\"%s\",\"emulated\":%s,\"params\":%" PRIu64
           ",\"state_bytes\":%" PRIu64 ",\"tokens_per_step\":%" PRIu64 ",\"steps\":%" PRIu64
           ",\"interleaved\":%s,\"digest\":\"%016" PRIx64 "\",\"rows\":[",
           b->device, compute_device == DEVICE_HOST ? "true" : "false", params_of(b->args),
           16 * params_of(b->args), b->args->batch * b->args->seq, b->args->steps,
           b->interleaved ? "true" : "false", b->row[OFFLOAD_ROWS - 1].digest);
    for (int i = 0; i < OFFLOAD_ROWS; i++) {
        fputs(i > 0 ? "," : "", stdout);
        json_row(b, i, &f[i]);
    }
    puts("]}");
}

void offload_rows_print(struct offload_rows *b)
{
    struct figures f[OFFLOAD_ROWS] = {0};

    figure(b, f);
    if (b->args->json)
        print_json(b, f);
    else
        print_table(b, f);
}
