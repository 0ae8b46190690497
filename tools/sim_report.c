/* sim_report.c: an answer of haul sim as a table, as JSON and as a trace. */
#include "sim_report.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "fail.h"
#include "plan_report.h"

const char *hl_sim_lane_name(enum haul_lane lane)
{
    static const char *const names[HAUL_NLANES] = {"compute",  "h2d",   "d2h", "io-read",
                                                   "io-write", "optim", "comm"};

    return names[lane];
}

static const struct hl_sim_result *best_of(const struct hl_sim_answer *a)
{
    return &a->choice[a->best].result;
}

/* Days until a node's drives have taken what they are rated for; 0: not known. */
static double drive_days(const struct hl_sim_answer *a)
{
    const double rated = a->made->profile.written_bytes_rated;
    const double a_day = best_of(a)->written_bytes_per_day;

    return rated > 0 && a_day > 0 ? rated / a_day : 0;
}

/* ---- as a table ---- */

static void print_choices(const struct hl_sim_answer *a)
{
    printf("%-5s %-9s %10s %12s %12s %12s %14s\n", "stage", "offload", "step s", "device GB",
           "host GB", "nvme GB", "written GB");
    for (uint32_t i = 0; i < a->nchoices; i++) {
        const struct hl_sim_choice *c = &a->choice[i];

        printf("%-5u %-9s ", c->stage, hl_plan_offload_name(c->offload));
        if (c->rc < 0)
            printf("%s\n", "does not fit");
        else
            printf("%10.4g %12.4g %12.4g %12.4g %14.4g%s\n", c->result.step_s,
                   (double)c->result.tier_bytes[HAUL_TIER_DEVICE] / 1e9,
                   (double)c->result.tier_bytes[HAUL_TIER_HOST] / 1e9,
                   (double)c->result.tier_bytes[HAUL_TIER_NVME] / 1e9,
                   c->result.written_bytes / 1e9,
                   (int)i == a->best && a->nchoices > 1 ? "  <- recommended" : "");
    }
    putchar('\n');
}

static void print_lanes(const struct hl_sim_result *r)
{
    printf("%-9s %10s %10s %12s\n", "lane", "busy s", "exposed s", "moved GB");
    for (enum haul_lane l = 0; l < HAUL_NLANES; l++)
        printf("%-9s %10.4g %10.4g %12.4g\n", hl_sim_lane_name(l), r->lane[l].busy_s,
               r->lane[l].exposed_s, r->lane[l].bytes / 1e9);
    putchar('\n');
}

static void print_wear(const struct hl_sim_answer *a)
{
    const struct hl_sim_result *r = best_of(a);

    if (r->written_bytes <= 0)
        return;
    printf(
        "drives: %.3g%% of the records%s; %.4g GB read, %.4g GB written a step and node, %.4g TB a "
        "day\n",
        100 * r->records_paged, r->params_paged > 0 ? " and parameters" : "", r->read_bytes / 1e9,
        r->written_bytes / 1e9, r->written_bytes_per_day / 1e12);
    if (drive_days(a) > 0)
        printf("rated for %.4g TB written: %.3g days of training\n",
               a->made->profile.written_bytes_rated / 1e12, drive_days(a));
}

static void print_verdict(const struct hl_sim_answer *a)
{
    const struct hl_sim_result *r = best_of(a);
    const struct hl_sim_opts *o = &a->made->opts;
    const enum haul_lane by = hl_sim_bottleneck(r);

    printf("step %.4g s: %.4g tokens/s, %.3g useful TFLOP/s a device; compute alone %.4g s\n",
           r->step_s, o->tokens / r->step_s,
           (r->forward_s + r->backward_s) / r->step_s * o->rates.flops_per_s / 1e12,
           r->forward_s + r->backward_s);
    printf("bottleneck: %s", hl_sim_lane_name(by));
    if (by != HAUL_LANE_COMPUTE)
        printf(", compute waits %.3g%% of the step for it",
               100 * r->lane[by].exposed_s / r->step_s);
    printf("\n");
    if (a->upgrade.what)
        printf("most helps: %s, %.4g s (%.3g times as fast)\n", a->upgrade.what, a->upgrade.step_s,
               r->step_s / a->upgrade.step_s);
    print_wear(a);
}

void hl_sim_print_table(const struct hl_sim_answer *a)
{
    const struct hl_sim_case *c = a->made;
    const struct hl_sim_opts *o = &c->opts;

    printf(
        "simulated, not measured: %.4g parameters in %u units, %u rank%s, %u a node, %.4g tokens a "
        "step in %u micro-batch%s, order %s, updates %s\nprofile %s: %s\n\n",
        (double)c->params, o->model.nunits, o->ranks, o->ranks == 1 ? "" : "s", o->ranks_per_node,
        o->tokens, o->accum, o->accum == 1 ? "" : "es", o->batch_order ? "batch" : "layer",
        o->overlap ? "deferred" : "not deferred", c->profile.name, c->profile.about);
    if (a->nchoices > 1)
        print_choices(a);
    if (a->best < 0) {
        printf("nothing fits; %s%s\n", a->choice[a->nchoices - 1].why,
               o->stash || c->shape.layers == 0 ? ""
                                                : ", or take activations off the device: --stash, "
                                                  "--order batch");
        return;
    }
    printf("stage %u, offload %s: device %.4g GB a rank, host %.4g GB and nvme %.4g GB a node\n\n",
           o->stage, hl_plan_offload_name(o->offload),
           (double)best_of(a)->tier_bytes[HAUL_TIER_DEVICE] / 1e9,
           (double)best_of(a)->tier_bytes[HAUL_TIER_HOST] / 1e9,
           (double)best_of(a)->tier_bytes[HAUL_TIER_NVME] / 1e9);
    print_lanes(best_of(a));
    print_verdict(a);
}

/* ---- as JSON: key names are a contract, append only ---- */

static json_t *lanes_json(const struct hl_sim_result *r)
{
    json_t *lanes = json_object();

    for (enum haul_lane l = 0; lanes && l < HAUL_NLANES; l++)
        json_object_set_new(lanes, hl_sim_lane_name(l),
                            json_pack("{s:f, s:f, s:f}", "busy_s", r->lane[l].busy_s, "exposed_s",
                                      r->lane[l].exposed_s, "bytes", r->lane[l].bytes));
    return lanes;
}

static json_t *choice_json(const struct hl_sim_choice *c)
{
    const struct hl_sim_result *r = &c->result;

    if (c->rc < 0)
        return json_pack("{s:I, s:s, s:b, s:s}", "stage", (json_int_t)c->stage, "offload",
                         hl_plan_offload_name(c->offload), "fits", 0, "why", c->why);
    return json_pack("{s:I, s:s, s:b, s:f, s:I, s:I, s:I, s:f}", "stage", (json_int_t)c->stage,
                     "offload", hl_plan_offload_name(c->offload), "fits", 1, "step_s", r->step_s,
                     "device_bytes_per_rank", (json_int_t)r->tier_bytes[HAUL_TIER_DEVICE],
                     "host_bytes_per_node", (json_int_t)r->tier_bytes[HAUL_TIER_HOST],
                     "nvme_bytes_per_node", (json_int_t)r->tier_bytes[HAUL_TIER_NVME],
                     "written_bytes", r->written_bytes);
}

static json_t *best_json(const struct hl_sim_answer *a)
{
    const struct hl_sim_result *r = best_of(a);
    const struct hl_sim_opts *o = &a->made->opts;
    json_t *best = choice_json(&a->choice[a->best]);
    json_t *more = json_pack(
        "{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:I, s:I, s:I, s:s, s:o}", "forward_s",
        r->forward_s, "backward_s", r->backward_s, "tokens_per_s", o->tokens / r->step_s,
        "useful_flops_per_s", (r->forward_s + r->backward_s) / r->step_s * o->rates.flops_per_s,
        "records_paged", r->records_paged, "params_paged", r->params_paged, "read_bytes",
        r->read_bytes, "written_bytes_per_day", r->written_bytes_per_day, "drive_days",
        drive_days(a), "most_slots", (json_int_t)r->most_slots, "most_stashed",
        (json_int_t)r->most_stashed, "most_flight_bytes_per_rank", (json_int_t)r->most_flight_bytes,
        "bottleneck", hl_sim_lane_name(hl_sim_bottleneck(r)), "lanes", lanes_json(r));

    if (best && more)
        json_object_update(best, more);
    json_decref(more);
    if (best && a->upgrade.what)
        json_object_set_new(
            best, "upgrade",
            json_pack("{s:s, s:f}", "what", a->upgrade.what, "step_s", a->upgrade.step_s));
    return best;
}

int hl_sim_print_json(const struct hl_sim_answer *a)
{
    const struct hl_sim_opts *o = &a->made->opts;
    json_t *choices = json_array(), *root;
    int failed = !choices;

    for (uint32_t i = 0; i < a->nchoices; i++)
        failed |= json_array_append_new(choices, choice_json(&a->choice[i])) < 0;
    root =
        json_pack("{s:b, s:s, s:I, s:I, s:I, s:I, s:f, s:I, s:s, s:b, s:O, s:o}", "simulated", 1,
                  "profile", a->made->profile.name, "params", (json_int_t)a->made->params, "units",
                  (json_int_t)o->model.nunits, "ranks", (json_int_t)o->ranks, "ranks_per_node",
                  (json_int_t)o->ranks_per_node, "tokens", o->tokens, "accum", (json_int_t)o->accum,
                  "order", o->batch_order ? "batch" : "layer", "deferred", o->overlap, "choices",
                  choices, "step", a->best < 0 ? json_null() : best_json(a));
    failed |= !root || json_dumpf(root, stdout, JSON_INDENT(2)) < 0;
    json_decref(root);
    json_decref(choices);
    putchar('\n');
    return failed ? -ENOMEM : 0;
}

/* ---- as a trace ---- */

static void trace_names(FILE *f)
{
    for (enum haul_lane l = 0; l < HAUL_NLANES; l++)
        fprintf(
            f,
            "{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":0,\"tid\":%d,\"args\":{\"name\":\"%s\"}"
            "},\n",
            (int)l, hl_sim_lane_name(l));
}

static void trace_events(FILE *f, const struct hl_sim_opts *o, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        const struct hl_sim_event *e = &o->events[i];

        fprintf(f,
                "{\"name\":\"u%d\",\"ph\":\"X\",\"pid\":0,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f,"
                "\"args\":{\"bytes\":%llu}},\n",
                e->unit, (int)e->lane, e->begin_s * 1e6, (e->end_s - e->begin_s) * 1e6,
                (unsigned long long)e->bytes);
    }
}

int hl_sim_write_trace(const struct hl_sim_answer *a, const char *path)
{
    FILE *f = fopen(path, "we");
    int rc = f ? 0 : -errno;

    if (rc < 0)
        return hl_fail(rc, "trace %s: %s", path, haul_strerror(rc));
    fprintf(f, "{\"traceEvents\":[\n");
    trace_names(f);
    trace_events(f, &a->made->opts, best_of(a)->nevents);
    fprintf(f, "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":0,\"args\":{\"name\":\"simulated "
               "step\"}}\n]}\n");
    rc = ferror(f) ? -EIO : 0;
    if (fclose(f) != 0)
        rc = -EIO;
    return rc < 0 ? hl_fail(rc, "trace %s: writing failed", path) : 0;
}
