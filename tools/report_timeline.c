/* report_timeline.c: one step of a trace, a row for each lane. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "fail.h"
#include "report_charts.h"
#include "report_svg.h"

enum { WIDTH = 900, LEFT = 110, ROW = 30, TOP = 8 };

/* Spans that would be closer than this, in the drawing's units, are drawn as one. */
#define CLOSEST 0.4

struct window {
    double begin_us, end_us;
    uint64_t step;
};

struct lane_sum {
    uint64_t nspans;
    double busy_us, bytes;
};

static double of(const json_t *event, const char *key)
{
    return json_number_value(json_object_get(event, key));
}

static int is_span(const json_t *event)
{
    const char *phase = json_string_value(json_object_get(event, "ph"));

    return phase != NULL && strcmp(phase, "X") == 0;
}

static uint64_t step_of(const json_t *event)
{
    return (uint64_t)json_integer_value(json_object_get(json_object_get(event, "args"), "step"));
}

static uint64_t last_step(const json_t *trace)
{
    uint64_t last = 0;
    size_t i;
    json_t *event;

    json_array_foreach (trace, i, event)
        if (is_span(event) && step_of(event) > last)
            last = step_of(event);
    return last;
}

/* From the step's first span to its last. */
static int find_window(const json_t *trace, uint64_t step, struct window *out)
{
    struct window w = {INFINITY, -INFINITY, step};
    size_t i;
    json_t *event;

    json_array_foreach (trace, i, event) {
        if (!is_span(event) || step_of(event) != step)
            continue;
        w.begin_us = fmin(w.begin_us, of(event, "ts"));
        w.end_us = fmax(w.end_us, of(event, "ts") + of(event, "dur"));
    }
    if (!(w.end_us > w.begin_us))
        return hl_fail(-ENOENT, "step %" PRIu64 " is not in the trace", step);
    *out = w;
    return 0;
}

static double x_of(const struct window *w, double us)
{
    return LEFT + (us - w->begin_us) / (w->end_us - w->begin_us) * (WIDTH - LEFT - 10);
}

/* What is drawn next: one span, or several that touch. */
struct block {
    double left, right, ms;
    unsigned nspans;
    char name[48];
};

static void draw_block(FILE *out, const struct block *b, int lane)
{
    if (b->nspans == 0)
        return;
    fprintf(out,
            "<rect style=\"fill:var(--%s)\" x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\">"
            "<title>",
            hl_run_lane_keys[lane], b->left, TOP + ROW * lane + 4,
            b->right - b->left > CLOSEST ? b->right - b->left : CLOSEST, ROW - 8);
    if (b->nspans == 1)
        hl_svg_text(out, b->name);
    else
        fprintf(out, "%u spans", b->nspans);
    fprintf(out, ", %.3g ms</title></rect>\n", b->ms);
}

static void add_span(FILE *out, const struct window *w, const json_t *event, int lane,
                     struct block *b)
{
    const char *name = json_string_value(json_object_get(event, "name"));
    const double begin = fmax(of(event, "ts"), w->begin_us);
    const double end = fmin(of(event, "ts") + of(event, "dur"), w->end_us);
    const double left = x_of(w, begin), right = x_of(w, end);

    if (b->nspans > 0 && left - b->right >= CLOSEST) {
        draw_block(out, b, lane);
        b->nspans = 0;
    }
    if (b->nspans == 0) {
        *b = (struct block){.left = left, .right = right};
        snprintf(b->name, sizeof b->name, "%s", name != NULL ? name : "");
    }
    b->right = fmax(b->right, right);
    b->ms += (end - begin) * 1e-3;
    b->nspans++;
}

static void draw_lane(FILE *out, const json_t *trace, const struct window *w, int lane,
                      struct lane_sum *sum)
{
    struct block block = {0};
    size_t i;
    json_t *event;

    fprintf(out, "<text x=\"0\" y=\"%d\">%s</text>\n", TOP + ROW * lane + 19,
            hl_run_lane_names[lane]);
    json_array_foreach (trace, i, event) {
        const double begin = of(event, "ts"), dur = of(event, "dur");

        if (!is_span(event) || json_integer_value(json_object_get(event, "tid")) != lane + 1 ||
            begin >= w->end_us || begin + dur <= w->begin_us)
            continue;
        add_span(out, w, event, lane, &block);
        sum->nspans++;
        sum->busy_us += fmin(begin + dur, w->end_us) - fmax(begin, w->begin_us);
        sum->bytes += of(json_object_get(event, "args"), "bytes");
    }
    draw_block(out, &block, lane);
}

static void print_table(FILE *out, const struct lane_sum sums[HAUL_NLANES])
{
    char bytes[32];

    fputs("<details><summary>Table</summary><div class=\"scroll\" tabindex=\"0\" role=\"region\" "
          "aria-label=\"The step by lane\"><table><caption>The step by lane</caption><thead><tr>"
          "<th scope=\"col\">lane</th><th scope=\"col\">spans</th><th scope=\"col\">busy ms</th>"
          "<th scope=\"col\">bytes</th></tr></thead><tbody>\n",
          out);
    for (int k = 0; k < HAUL_NLANES; k++)
        fprintf(out, "<tr><td>%s</td><td>%" PRIu64 "</td><td>%.3f</td><td>%s</td></tr>\n",
                hl_run_lane_names[k], sums[k].nspans, sums[k].busy_us * 1e-3,
                hl_svg_number(sums[k].bytes, bytes, sizeof bytes));
    fputs("</tbody></table></div></details>\n</section>\n", out);
}

int hl_report_timeline(FILE *out, const struct hl_run *run, uint64_t step)
{
    struct lane_sum sums[HAUL_NLANES] = {{0}};
    struct window w = {0};
    int rc = 0, height = TOP + ROW * HAUL_NLANES;

    if (run->trace == NULL)
        return 0;
    if (step == 0 && (step = last_step(run->trace)) > 1)
        step--;
    rc = find_window(run->trace, step, &w);
    if (rc < 0)
        return rc;
    fprintf(out,
            "<section class=\"wide\">\n<h2>Step %" PRIu64 ", lane by lane (%.2f ms)</h2>\n"
            "<figure class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Timeline\">\n"
            "<svg viewBox=\"0 0 %d %d\" role=\"img\" aria-labelledby=\"line-t line-d\">\n<title "
            "id=\"line-t\">What each lane did when in step %" PRIu64 "</title><desc id=\"line-d\">"
            "A row for each lane; its sums are in the table below.</desc>\n",
            step, (w.end_us - w.begin_us) * 1e-3, WIDTH, height + 22, step);
    for (int k = 0; k <= HAUL_NLANES; k++)
        fprintf(out, "<line class=\"grid\" x1=\"%d\" x2=\"%d\" y1=\"%d\" y2=\"%d\"/>\n", LEFT,
                WIDTH - 10, TOP + ROW * k, TOP + ROW * k);
    for (int k = 0; k < HAUL_NLANES; k++)
        draw_lane(out, run->trace, &w, k, &sums[k]);
    fprintf(out,
            "<text x=\"%d\" y=\"%d\">0 ms</text><text x=\"%d\" y=\"%d\" text-anchor=\"end\">"
            "%.2f ms</text>\n</svg>\n</figure>\n",
            LEFT, height + 18, WIDTH - 10, height + 18, (w.end_us - w.begin_us) * 1e-3);
    print_table(out, sums);
    return 0;
}
