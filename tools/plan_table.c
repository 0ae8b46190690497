/* plan_table.c: haul plan for people. */
#include <stdio.h>
#include <string.h>

#include "haul/size.h"
#include "plan_report.h"
#include "sim_report.h"

const char *hl_plan_offload_name(enum haul_offload offload)
{
    static const char *const names[] = {"none", "optimizer", "all"};

    return names[offload];
}

const char *hl_plan_dtype_name(enum haul_dtype dtype)
{
    static const char *const names[] = {"none", "fp32", "bf16", "fp16"};

    return names[dtype];
}

static const char *const tier_names[HAUL_NTIERS] = {"device", "host", "nvme"};

/* "13B", "124.4M", "300" */
static const char *count(double n, char *buf, size_t len)
{
    static const char *const suffixes[] = {"", "K", "M", "B", "T"};
    unsigned i = 0;

    for (; n >= 999.95 && i < 4; i++)
        n /= 1000;
    snprintf(buf, len, "%.4g%s", n, suffixes[i]);
    return buf;
}

/* "unlimited", or the size. */
static const char *budget(uint64_t bytes, char *buf, size_t len)
{
    return bytes == HAUL_UNLIMITED ? "unlimited" : haul_format_size(bytes, buf, len);
}

static const char *cell(uint64_t bytes, char *buf, size_t len)
{
    return bytes == 0 ? "-" : haul_format_size(bytes, buf, len);
}

/* "device 6.00 GB, nvme 1.00 GB" */
static const char *lacks(const struct haul_plan_row *row, char *buf, size_t len)
{
    size_t used = 0;

    buf[0] = '\0';
    for (int t = 0; t < HAUL_NTIERS; t++) {
        char size[32];
        if (row->short_by_tier_bytes[t] == 0 || used >= len)
            continue;
        used +=
            (size_t)snprintf(buf + used, len - used, "%s%s %s", used > 0 ? ", " : "", tier_names[t],
                             haul_format_size(row->short_by_tier_bytes[t], size, sizeof size));
    }
    return buf;
}

const char *hl_plan_why(const struct hl_plan_report *r, char *buf, size_t len)
{
    static const char *const because[] = {
        "fits with nothing off the device; the lowest such stage",
        "nothing fits without offload; this keeps the parameters on the device",
        "parameters do not fit the device either; only a window of layers does",
    };
    const struct haul_plan_row *row;
    char what[128];

    if (r->sim.best >= 0 && r->best == r->sim.best) {
        snprintf(
            buf, len,
            "%.4g s a step simulated, the cheapest within 5%% of the fastest, which takes %.4g s",
            r->sim.result.step_s, r->sim.fastest_s);
        return buf;
    }
    if (r->best < 0) {
        row = &r->rows[hl_plan_nearest(r->rows)];
        snprintf(buf, len, "nothing fits; nearest is stage %u, offload %s, which lacks %s",
                 row->stage, hl_plan_offload_name(row->offload), lacks(row, what, sizeof what));
        return buf;
    }
    row = &r->rows[r->best];
    snprintf(buf, len, "%s%s%s", because[row->offload],
             row->nvme_bytes_per_node > 0 ? ", and what the host cannot hold goes to nvme" : "",
             row->stage == 3 && r->opts.ranks > 1 ? "; costs 1.5 x the traffic between ranks" : "");
    return buf;
}

static void print_head(const struct hl_plan_report *r)
{
    const struct haul_plan_opts *o = &r->opts;
    char device[32], host[32], nvme[32], params[32];

    printf("%s parameters (%s, records %s), %u rank%s, %u per node\n",
           count((double)o->params, params, sizeof params), hl_plan_dtype_name(o->dtype),
           o->master == HAUL_MASTER_SPLIT ? "split" : "fp32", o->ranks, o->ranks == 1 ? "" : "s",
           o->ranks_per_node);
    printf("budgets: device %s per rank; host %s, nvme %s per node\n\n",
           budget(o->device_mem_per_rank, device, sizeof device),
           budget(o->host_mem_per_node, host, sizeof host),
           budget(o->nvme_mem_per_node, nvme, sizeof nvme));
}

static void print_row(const struct hl_plan_report *r, int i)
{
    const struct haul_plan_row *row = &r->rows[i];
    char device[32], host[32], nvme[32], what[128];

    printf("%5u  %-9s  %11s  %11s  %11s  %6.1f x  %s%s%s\n", row->stage,
           hl_plan_offload_name(row->offload),
           cell(row->device_bytes_per_rank, device, sizeof device),
           cell(row->host_bytes_per_node, host, sizeof host),
           cell(row->nvme_bytes_per_node, nvme, sizeof nvme), row->comm_ratio,
           row->fits ? "fits" : "short: ", row->fits ? "" : lacks(row, what, sizeof what),
           i == r->best ? "  <- recommended" : "");
}

static void print_rows(const struct hl_plan_report *r)
{
    char elems[32];

    printf("%5s  %-9s  %11s  %11s  %11s  %8s  %s\n", "stage", "offload", "device/rank", "host/node",
           "nvme/node", "traffic", "verdict");
    for (int i = 0; i < HAUL_PLAN_ROWS; i++)
        print_row(r, i);
    printf("\nBytes are model state. Traffic between ranks: 1 x is %s elements per rank and "
           "step%s.\n",
           count(r->rows[0].comm_elems_per_rank, elems, sizeof elems),
           r->opts.ranks == 1 ? " (with one rank: none)" : "");
}

static void print_working_set(const struct hl_plan_report *r)
{
    const struct haul_shape *s = &r->opts.shape;
    const struct haul_plan_row *row = &r->rows[r->best >= 0 ? r->best : HAUL_PLAN_ROWS - 1];
    const struct haul_working_set *w = &row->working_set;
    char a[32], b[32], c[32], d[32], e[32];

    if (s->layers == 0) {
        printf("The verdict counts no window and no activations: give --layers, --hidden and "
               "--seq.\n");
        return;
    }
    printf("Shape: %llu layers, hidden %llu, %llu heads, vocabulary %llu, sequence %llu, "
           "micro-batch %llu.\n",
           (unsigned long long)s->layers, (unsigned long long)s->hidden,
           (unsigned long long)s->heads, (unsigned long long)s->vocab, (unsigned long long)s->seq,
           (unsigned long long)s->batch);
    printf("The verdict counts, per rank at stage %u, offload %s: window %s, gradient buffers %s,\n"
           "activations %s (all kept %s, recomputed %s), ",
           row->stage, hl_plan_offload_name(row->offload),
           cell(w->window_device_bytes, a, sizeof a),
           cell(w->gradient_window_device_bytes, b, sizeof b),
           s->recompute ? "recomputed" : "all kept",
           cell(w->activations_full_device_bytes, c, sizeof c),
           cell(w->activations_recompute_device_bytes, d, sizeof d));
    printf("host slots %s.\n", cell(w->slots_host_bytes, e, sizeof e));
}

static void print_bounds(const struct hl_plan_report *r)
{
    const struct hl_bounds *b = &r->bounds;
    char written[32];

    printf(
        "\nLower bounds of a step of %.0f tokens if the device takes back nothing that the row has "
        "off it (seconds):\n",
        r->tokens);
    printf("  forward %.3g, backward %.3g, h2d %.3g, d2h %.3g, optimizer %.3g, host memory %.3g, "
           "nvme %.3g\n",
           b->forward_s, b->backward_s, b->h2d_s, b->d2h_s, b->optim_s, b->mem_s, b->nvme_s);
    printf("  step >= %.3g, at most %.4g tokens/s; bound by %s\n", b->step_s, r->tokens / b->step_s,
           hl_bound_name(b->by));
    if (b->nvme_written_bytes > 0)
        printf("  nvme: writes %s per node and step\n",
               haul_format_size((uint64_t)b->nvme_written_bytes, written, sizeof written));
    printf(
        "  assuming%s: %.4g TFLOP/s per device; GB/s: link %.4g, host memory %.4g, drives %.4g;\n"
        "  no time for collectives. Set --tokens, --tflops, --link-gbps, --mem-gbps, "
        "--drive-gbps.\n",
        r->rates_given ? "" : " (defaults)", r->rates.flops_per_s / 1e12,
        r->rates.link_bytes_per_s / 1e9, r->rates.mem_bytes_per_s / 1e9,
        r->rates.drive_read_bytes_per_s / 1e9);
}

static void print_sim(const struct hl_plan_report *r)
{
    const struct hl_sim_result *s = &r->sim.result;
    const enum haul_lane by = hl_sim_bottleneck(s);
    char device[32], host[32], nvme[32];

    if (r->sim.best < 0) {
        printf("Not simulated: %s.\n", r->sim.why_not);
        return;
    }
    printf(
        "Simulated with whole units, of which the device takes as many back as it has room for:\n"
        "device %s per rank, host %s and nvme %s per node.\n",
        haul_format_size(s->tier_bytes[HAUL_TIER_DEVICE], device, sizeof device),
        haul_format_size(s->tier_bytes[HAUL_TIER_HOST], host, sizeof host),
        haul_format_size(s->tier_bytes[HAUL_TIER_NVME], nvme, sizeof nvme));
    printf("Bottleneck: %s", hl_sim_lane_name(by));
    if (by != HAUL_LANE_COMPUTE)
        printf(", compute waits %.3g%% of the step for it",
               100 * s->lane[by].exposed_s / s->step_s);
    if (r->sim.upgrade.what)
        printf("; most helps: %s, %.4g s a step", r->sim.upgrade.what, r->sim.upgrade.step_s);
    printf(".\n");
    if (s->written_bytes > 0)
        printf("Drives: %.4g TB written a day and node.\n", s->written_bytes_per_day / 1e12);
}

void hl_plan_print_table(const struct hl_plan_report *r)
{
    char why[256];

    print_head(r);
    print_rows(r);
    print_working_set(r);
    if (r->best < 0) {
        printf("\nRecommended: none. %s.\n", hl_plan_why(r, why, sizeof why));
        return;
    }
    printf("\nRecommended: stage %u, offload %s: %s.\n", r->rows[r->best].stage,
           hl_plan_offload_name(r->rows[r->best].offload), hl_plan_why(r, why, sizeof why));
    print_sim(r);
    print_bounds(r);
}
