/* report_charts.c: loss, time and rates over the steps. Long runs are drawn in bins, each a mean. */
#include "report_charts.h"

#include <inttypes.h>
#include <math.h>

#include "report_svg.h"

#define LINE_BINS 240 /* points of a curve */
#define BAR_BINS  60  /* bars, and rows of a table */

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Of a bin of steps. */
struct mean {
    uint64_t first, last;
    double loss, grad_norm, ms;
    size_t nloss; /* steps with a finite loss */
    struct hl_run_lane lanes[HAUL_NLANES];
};

static struct mean mean_of(const struct hl_run *run, size_t nbins, size_t bin)
{
    struct mean m = {0};
    size_t first, end;

    hl_bin(run->nsteps, nbins, bin, &first, &end);
    m.first = run->steps[first].step;
    m.last = run->steps[end - 1].step;
    for (size_t i = first; i < end; i++) {
        const struct hl_run_step *s = &run->steps[i];

        if (isfinite(s->loss)) {
            m.loss += s->loss;
            m.nloss++;
        }
        m.grad_norm += s->grad_norm / (double)(end - first);
        m.ms += s->ms / (double)(end - first);
        for (int k = 0; k < HAUL_NLANES; k++) {
            m.lanes[k].busy_ms += s->lanes[k].busy_ms / (double)(end - first);
            m.lanes[k].exposed_ms += s->lanes[k].exposed_ms / (double)(end - first);
            m.lanes[k].bytes += s->lanes[k].bytes / (double)(end - first);
        }
    }
    m.loss = m.nloss > 0 ? m.loss / (double)m.nloss : NAN;
    return m;
}

static double middle(const struct mean *m)
{
    return ((double)m->first + (double)m->last) / 2;
}

static void steps_cell(FILE *out, const struct mean *m)
{
    fprintf(out, "<tr><td>%" PRIu64, m->first);
    if (m->last > m->first)
        fprintf(out, " to %" PRIu64, m->last);
    fputs("</td>", out);
}

static void cell(FILE *out, double value)
{
    char text[32];

    fprintf(out, "<td>%s</td>", hl_svg_number(value, text, sizeof text));
}

static void legend_entry(FILE *out, int lane, const char *name)
{
    fprintf(out, "<li><span class=\"swatch\" style=\"background:var(--%s)\"></span>%s</li>\n",
            hl_run_lane_keys[lane], name);
}

static struct hl_svg_axes axes_of_steps(const struct hl_run *run)
{
    return (struct hl_svg_axes){.x_min = (double)run->steps[0].step,
                                .x_max = (double)run->steps[run->nsteps - 1].step,
                                .y_min = INFINITY,
                                .y_max = -INFINITY};
}

void hl_report_loss(FILE *out, const struct hl_run *run)
{
    const size_t nbins = least(run->nsteps, LINE_BINS), nrows = least(run->nsteps, BAR_BINS);
    struct hl_svg_axes axes = axes_of_steps(run);
    const char *go = "M";

    for (size_t b = 0; b < nbins; b++) {
        struct mean m = mean_of(run, nbins, b);

        axes.y_min = fmin(axes.y_min, m.loss);
        axes.y_max = fmax(axes.y_max, m.loss);
    }
    if (!(axes.y_max >= axes.y_min))
        axes.y_min = 0, axes.y_max = 1;
    hl_svg_section(out, "Loss");
    hl_svg_open(out, "loss", "Loss by step", "A curve; its numbers are in the table below.");
    hl_svg_axes_draw(out, &axes, "step");
    fputs("<path class=\"curve\" style=\"stroke:var(--h2d)\" d=\"", out);
    for (size_t b = 0; b < nbins; b++) {
        struct mean m = mean_of(run, nbins, b);

        if (m.nloss > 0) /* a gap where no loss was a number */
            fprintf(out, "%s%.1f %.1f", go, hl_svg_x(&axes, middle(&m)), hl_svg_y(&axes, m.loss));
        go = m.nloss > 0 ? "L" : "M";
    }
    fputs("\"/>\n</svg>\n", out);
    hl_svg_table(out, "Loss by step",
                 "<th scope=\"col\">steps</th><th scope=\"col\">loss</th><th "
                 "scope=\"col\">gradient norm</th>");
    for (size_t b = 0; b < nrows; b++) {
        struct mean m = mean_of(run, nrows, b);

        steps_cell(out, &m);
        cell(out, m.loss);
        cell(out, m.grad_norm);
        fputs("</tr>\n", out);
    }
    hl_svg_table_end(out);
}

/* What compute waited for, by lane, and in [HAUL_LANE_COMPUTE] the rest of the step. */
static void parts_of(const struct mean *m, double part[HAUL_NLANES])
{
    double rest = m->ms;

    for (int k = 0; k < HAUL_NLANES; k++)
        if (k != HAUL_LANE_COMPUTE)
            rest -= part[k] = m->lanes[k].exposed_ms;
    part[HAUL_LANE_COMPUTE] = rest > 0 ? rest : 0;
}

static void stacked_bar(FILE *out, const struct hl_svg_axes *axes, const struct mean *m,
                        double left, double width)
{
    double part[HAUL_NLANES], below = 0;

    parts_of(m, part);
    for (int k = 0; k < HAUL_NLANES; k++) {
        double top = hl_svg_y(axes, below + part[k]), bottom = hl_svg_y(axes, below);

        if (part[k] <= 0)
            continue;
        fprintf(out,
                "<rect class=\"bar\" style=\"fill:var(--%s)\" x=\"%.2f\" y=\"%.2f\" "
                "width=\"%.2f\" height=\"%.2f\"><title>step %" PRIu64
                ": %s %.3g ms</title></rect>\n",
                hl_run_lane_keys[k], left, top, width, bottom - top, m->first,
                k == HAUL_LANE_COMPUTE ? "compute and the rest" : hl_run_lane_names[k], part[k]);
        below += part[k];
    }
}

static void step_time_table(FILE *out, const struct hl_run *run, size_t nrows)
{
    hl_svg_table(
        out, "Milliseconds of a step",
        "<th scope=\"col\">steps</th><th scope=\"col\">whole step</th><th scope=\"col\">"
        "compute and the rest</th><th scope=\"col\">host to device</th><th scope=\"col\">"
        "device to host</th><th scope=\"col\">nvme read</th><th scope=\"col\">nvme write</th>"
        "<th scope=\"col\">optimizer</th><th scope=\"col\">ranks</th>");
    for (size_t b = 0; b < nrows; b++) {
        struct mean m = mean_of(run, nrows, b);
        double part[HAUL_NLANES];

        parts_of(&m, part);
        steps_cell(out, &m);
        cell(out, m.ms);
        for (int k = 0; k < HAUL_NLANES; k++)
            cell(out, part[k]);
        fputs("</tr>\n", out);
    }
    hl_svg_table_end(out);
}

void hl_report_step_time(FILE *out, const struct hl_run *run)
{
    const size_t nbins = least(run->nsteps, BAR_BINS);
    const double width = (double)(HL_SVG_RIGHT - HL_SVG_LEFT) / (double)nbins;
    struct hl_svg_axes axes = axes_of_steps(run);

    axes.y_min = axes.y_max = 0;
    for (size_t b = 0; b < nbins; b++) {
        struct mean m = mean_of(run, nbins, b);
        double part[HAUL_NLANES], sum = 0;

        parts_of(&m, part);
        for (int k = 0; k < HAUL_NLANES; k++)
            sum += part[k];
        axes.y_max = fmax(axes.y_max, sum);
    }
    hl_svg_section(out, "Step time, by what compute waited for (ms)");
    hl_svg_open(out, "time", "Time of a step, stacked by lane",
                "Bars; their numbers are in the table below.");
    hl_svg_axes_draw(out, &axes, "step");
    for (size_t b = 0; b < nbins; b++) {
        struct mean m = mean_of(run, nbins, b);

        stacked_bar(out, &axes, &m, HL_SVG_LEFT + width * (double)b, width);
    }
    fputs("</svg>\n<ul class=\"legend\">\n", out);
    for (int k = 0; k < HAUL_NLANES; k++)
        legend_entry(out, k,
                     k == HAUL_LANE_COMPUTE ? "compute and the rest" : hl_run_lane_names[k]);
    fputs("</ul>\n", out);
    step_time_table(out, run, nbins);
}

/* GB/s while the lane works; NaN when it does not. */
static double rate(const struct mean *m, int lane)
{
    return m->lanes[lane].busy_ms > 0 && m->lanes[lane].bytes > 0
               ? m->lanes[lane].bytes / m->lanes[lane].busy_ms * 1e-6
               : NAN;
}

static const int rated[] = {HAUL_LANE_H2D, HAUL_LANE_D2H, HAUL_LANE_IO_READ, HAUL_LANE_IO_WRITE,
                            HAUL_LANE_COMM};

#define NRATED (sizeof rated / sizeof rated[0])

static void rate_curve(FILE *out, const struct hl_run *run, const struct hl_svg_axes *axes,
                       int lane, size_t nbins)
{
    const char *go = "M";

    fprintf(out, "<path class=\"curve\" style=\"stroke:var(--%s)\" d=\"", hl_run_lane_keys[lane]);
    for (size_t b = 0; b < nbins; b++) {
        struct mean m = mean_of(run, nbins, b);
        double y = rate(&m, lane);

        if (isfinite(y))
            fprintf(out, "%s%.1f %.1f", go, hl_svg_x(axes, middle(&m)), hl_svg_y(axes, y));
        go = isfinite(y) ? "L" : "M";
    }
    fprintf(out, "\"><title>%s</title></path>\n", hl_run_lane_names[lane]);
}

static void rates_table(FILE *out, const struct hl_run *run)
{
    struct mean all = mean_of(run, 1, 0);
    char text[32];

    hl_svg_table(
        out, "Lanes, mean of a step",
        "<th scope=\"col\">lane</th><th scope=\"col\">busy ms</th><th scope=\"col\">compute "
        "waited ms</th><th scope=\"col\">bytes</th><th scope=\"col\">GB/s</th>");
    for (int k = 0; k < HAUL_NLANES; k++) {
        fprintf(out, "<tr><td>%s</td>", hl_run_lane_names[k]);
        cell(out, all.lanes[k].busy_ms);
        cell(out, all.lanes[k].exposed_ms);
        cell(out, all.lanes[k].bytes);
        fprintf(out, "<td>%s</td></tr>\n", hl_svg_number(rate(&all, k), text, sizeof text));
    }
    hl_svg_table_end(out);
}

void hl_report_rates(FILE *out, const struct hl_run *run)
{
    const size_t nbins = least(run->nsteps, BAR_BINS);
    struct mean all = mean_of(run, 1, 0);
    struct hl_svg_axes axes = axes_of_steps(run);

    axes.y_min = axes.y_max = 0;
    for (size_t b = 0; b < nbins; b++)
        for (size_t i = 0; i < NRATED; i++) {
            struct mean m = mean_of(run, nbins, b);

            axes.y_max = fmax(axes.y_max, rate(&m, rated[i]));
        }
    hl_svg_section(out, "Rates of links and drives while they work (GB/s)");
    hl_svg_open(out, "rates", "Bytes per second of each lane",
                "Curves; their means are in the table below.");
    hl_svg_axes_draw(out, &axes, "step");
    for (size_t i = 0; i < NRATED; i++)
        rate_curve(out, run, &axes, rated[i], nbins);
    fputs("</svg>\n<ul class=\"legend\">\n", out);
    for (size_t i = 0; i < NRATED; i++)
        if (all.lanes[rated[i]].bytes > 0)
            legend_entry(out, rated[i], hl_run_lane_names[rated[i]]);
    fputs("</ul>\n", out);
    rates_table(out, run);
}
