/* sim_sweep.c: haul sim over one or two lists of values. */
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fail.h"
#include "haul/size.h"
#include "plan_report.h"
#include "sim_report.h"
#include "time_left.h"

#define MAX_AXES   2
#define MAX_VALUES 16

struct axis {
    char key[24];
    const char *value[MAX_VALUES];
    uint32_t n;
};

struct point {
    double step_s; /* NAN: does not fit */
    enum haul_lane by;
    uint32_t stage;
    enum haul_offload offload;
};

/* ---- axes ---- */

/* "tokens=1M", "2M", "host-mem=64GB", "128GB": a word with = begins the next list. */
static int read_axes(const struct hl_command *cmd, const struct hl_flag_list *sweep,
                     struct axis axis[MAX_AXES], uint32_t *naxes)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < sweep->nitems; i++) {
        const char *item = sweep->item[i], *eq = strchr(item, '=');

        if (eq && (n == MAX_AXES || (size_t)(eq - item) >= sizeof axis->key))
            return hl_usage_error(cmd, "--sweep %s: one or two lists, KEY=VALUE,VALUE,...", item);
        if (eq) {
            axis[n] = (struct axis){.n = 0};
            memcpy(axis[n++].key, item, (size_t)(eq - item));
            item = eq + 1;
        }
        if (n == 0 || axis[n - 1].n == MAX_VALUES)
            return hl_usage_error(cmd,
                                  "--sweep %s: a list begins with KEY=, and has at most %d values",
                                  item, MAX_VALUES);
        axis[n - 1].value[axis[n - 1].n++] = item;
    }
    *naxes = n;
    return HL_FLAGS_GO;
}

static int set_count(const char *text, uint64_t *out)
{
    return haul_parse_count(text, out);
}

static int set_number(const char *text, uint32_t *out)
{
    uint64_t v;
    int rc = haul_parse_count(text, &v);

    if (rc == 0 && v > UINT32_MAX)
        rc = hl_fail(-ERANGE, "%s is too large", text);
    if (rc == 0)
        *out = (uint32_t)v;
    return rc;
}

static int set_real(const char *text, double *out)
{
    char *end;
    const double v = strtod(text, &end);

    if (*end || end == text || !(v > 0) || !isfinite(v))
        return hl_fail(-EINVAL, "\"%s\" is not a number above 0", text);
    *out = v;
    return 0;
}

static int set_value(struct hl_sim_request *q, const char *key, const char *text)
{
    const struct {
        const char *key;
        uint64_t *count, *size;
        uint32_t *number;
        double *real;
    } keys[] = {{"tokens", &q->tokens, NULL, NULL, NULL},
                {"seq", &q->seq, NULL, NULL, NULL},
                {"host-mem", NULL, &q->host_mem, NULL, NULL},
                {"device-mem", NULL, &q->device_mem, NULL, NULL},
                {"slot-bytes", NULL, &q->slot_bytes, NULL, NULL},
                {"ranks", NULL, NULL, &q->ranks, NULL},
                {"accum", NULL, NULL, &q->accum, NULL},
                {"slots", NULL, NULL, &q->slots, NULL},
                {"window", NULL, NULL, &q->window, NULL},
                {"tflops", NULL, NULL, NULL, &q->tflops},
                {"link-gbps", NULL, NULL, NULL, &q->link_gbps},
                {"mem-gbps", NULL, NULL, NULL, &q->mem_gbps},
                {"drive-gbps", NULL, NULL, NULL, &q->drive_gbps}};

    for (unsigned i = 0; i < sizeof keys / sizeof *keys; i++)
        if (strcmp(key, keys[i].key) == 0)
            return keys[i].count    ? set_count(text, keys[i].count)
                   : keys[i].size   ? haul_parse_size(text, keys[i].size)
                   : keys[i].number ? set_number(text, keys[i].number)
                                    : set_real(text, keys[i].real);
    return hl_fail(-EINVAL,
                   "no key %s: tokens, seq, host-mem, device-mem, slot-bytes, ranks, accum, slots, "
                   "window, tflops, link-gbps, mem-gbps, drive-gbps",
                   key);
}

/* ---- points ---- */

static int run_point(const struct hl_command *cmd, const struct hl_sim_request *q,
                     struct point *out, struct hl_time_left *left)
{
    static struct hl_sim_case made; /* large, and points come one after the other */
    struct hl_sim_choice choice[HL_SIM_CHOICES];
    uint32_t n;
    int best, rc = hl_sim_case_make(cmd, q, &made);

    if (rc != HL_FLAGS_GO)
        return rc;
    rc = hl_sim_choose(&made, choice, &n, &best);
    if (rc < 0) {
        hl_time_left_end(left);
        return hl_report_error(cmd, rc);
    }
    out->step_s = NAN;
    if (best >= 0)
        *out = (struct point){choice[best].result.step_s, hl_sim_bottleneck(&choice[best].result),
                              choice[best].stage, choice[best].offload};
    return HL_FLAGS_GO;
}

static int run_all(const struct hl_command *cmd, const struct hl_sim_request *q,
                   const struct axis axis[MAX_AXES], struct point point[MAX_VALUES][MAX_VALUES])
{
    struct hl_time_left left;

    hl_time_left_begin(&left, "sweep", (uint64_t)axis[0].n * axis[1].n, 0);
    for (uint32_t i = 0; i < axis[0].n; i++)
        for (uint32_t j = 0; j < axis[1].n; j++) {
            struct hl_sim_request at = *q;
            hl_time_left_at(&left, i * axis[1].n + j);
            int rc = set_value(&at, axis[0].key, axis[0].value[i]);
            if (rc == 0 && axis[1].key[0])
                rc = set_value(&at, axis[1].key, axis[1].value[j]);
            if (rc < 0) {
                hl_time_left_end(&left);
                return hl_usage_error(cmd, "--sweep: %s", haul_last_error());
            }
            if ((rc = run_point(cmd, &at, &point[i][j], &left)) != HL_FLAGS_GO)
                return rc;
        }
    hl_time_left_end(&left);
    return HL_FLAGS_GO;
}

/* ---- out ---- */

static void print_table(const struct axis axis[MAX_AXES],
                        struct point point[MAX_VALUES][MAX_VALUES])
{
    printf("%-12s %-12s %10s %-9s %-5s %-9s\n", axis[0].key, axis[1].key, "step s", "bottleneck",
           "stage", "offload");
    for (uint32_t i = 0; i < axis[0].n; i++)
        for (uint32_t j = 0; j < axis[1].n; j++) {
            const struct point *p = &point[i][j];
            printf("%-12s %-12s ", axis[0].value[i], axis[1].value[j]);
            if (isnan(p->step_s))
                printf("%10s\n", "no fit");
            else
                printf("%10.4g %-10s %-5u %-9s\n", p->step_s, hl_sim_lane_name(p->by), p->stage,
                       hl_plan_offload_name(p->offload));
        }
}

static int print_json(const struct axis axis[MAX_AXES], struct point point[MAX_VALUES][MAX_VALUES])
{
    json_t *points = json_array();
    int failed = !points;

    for (uint32_t i = 0; i < axis[0].n; i++)
        for (uint32_t j = 0; j < axis[1].n; j++) {
            const struct point *p = &point[i][j];
            json_t *o = json_pack("{s:s}", axis[0].key, axis[0].value[i]);
            if (axis[1].key[0])
                json_object_set_new(o, axis[1].key, json_string(axis[1].value[j]));
            json_object_set_new(o, "step_s", isnan(p->step_s) ? json_null() : json_real(p->step_s));
            if (!isnan(p->step_s)) {
                json_object_set_new(o, "bottleneck", json_string(hl_sim_lane_name(p->by)));
                json_object_set_new(o, "stage", json_integer(p->stage));
                json_object_set_new(o, "offload", json_string(hl_plan_offload_name(p->offload)));
            }
            failed |= json_array_append_new(points, o) < 0;
        }
    failed |= json_dumpf(points, stdout, JSON_INDENT(2)) < 0;
    json_decref(points);
    putchar('\n');
    return failed ? -ENOMEM : 0;
}

/* Script and data go to gnuplot's standard input. */
static int draw(const char *path, const struct axis axis[MAX_AXES],
                struct point point[MAX_VALUES][MAX_VALUES])
{
    FILE *f;

    if (strpbrk(path, "'\n\\"))
        return hl_fail(-EINVAL, "--plot %s: no quotes or backslashes in the name", path);
    f = popen("gnuplot", "we");
    if (!f)
        return hl_fail(-errno, "gnuplot: %s", haul_strerror(-errno));
    fprintf(
        f,
        "set terminal svg size 720,480\nset output '%s'\nset xlabel '%s'\nset ylabel 'step, s'\n"
        "set yrange [0:*]\nset key top left\nplot ",
        path, axis[0].key);
    for (uint32_t j = 0; j < axis[1].n; j++)
        fprintf(f, "%s'-' using 1:3:xtic(2) with linespoints title '%s %s'", j ? ", " : "",
                axis[1].key, axis[1].value[j]);
    fprintf(f, "\n");
    for (uint32_t j = 0; j < axis[1].n; j++) {
        for (uint32_t i = 0; i < axis[0].n; i++)
            if (!isnan(point[i][j].step_s))
                fprintf(f, "%u %s %g\n", i, axis[0].value[i], point[i][j].step_s);
        fprintf(f, "e\n");
    }
    return pclose(f) == 0 ? 0 : hl_fail(-EIO, "--plot %s: gnuplot failed; is it installed?", path);
}

int hl_sim_sweep(const struct hl_command *cmd, const struct hl_sim_request *q,
                 const struct hl_flag_list *sweep, int json, const char *plot)
{
    static struct point point[MAX_VALUES][MAX_VALUES];
    struct axis axis[MAX_AXES] = {{.n = 0}, {.value = {""}, .n = 1}};
    uint32_t naxes;
    int rc = read_axes(cmd, sweep, axis, &naxes);

    if (rc == HL_FLAGS_GO)
        rc = run_all(cmd, q, axis, point);
    if (rc != HL_FLAGS_GO)
        return rc;
    rc = 0;
    if (json)
        rc = print_json(axis, point);
    else
        print_table(axis, point);
    if (rc == 0 && plot)
        rc = draw(plot, axis, point);
    return rc < 0 ? hl_report_error(cmd, rc) : HL_EXIT_OK;
}
