/* report_held.c: what each tier held, step by step, beside its budget. */
#include <inttypes.h>
#include <math.h>

#include "report_charts.h"
#include "report_svg.h"

#define LINE_BINS 240 /* points of a curve */
#define ROWS      60  /* of the table */

static double budget_of(const struct hl_run *run, int tier)
{
    return json_number_value(
        json_object_get(hl_run_summary(run, "budgets"), hl_run_tier_keys[tier]));
}

/* What a tier's 100% are: its budget, else what was planned, else the most it ever held. */
static double whole_of(const struct hl_run *run, int tier)
{
    const double budget = budget_of(run, tier);
    const double planned =
        json_number_value(json_object_get(hl_run_summary(run, "planned"), hl_run_tier_keys[tier]));

    return budget > 0 ? budget : planned > 0 ? planned : run->steps[run->nsteps - 1].held[tier];
}

/* Held so far only grows: the last step of a bin has the most. */
static const struct hl_run_step *last_of(const struct hl_run *run, size_t nbins, size_t bin)
{
    size_t first, end;

    hl_bin(run->nsteps, nbins, bin, &first, &end);
    return &run->steps[end - 1];
}

static void curve(FILE *out, const struct hl_run *run, const struct hl_svg_axes *axes, int tier)
{
    const size_t nbins = run->nsteps < LINE_BINS ? run->nsteps : LINE_BINS;
    const double whole = whole_of(run, tier);
    const char *go = "M";

    if (!(whole > 0))
        return;
    fprintf(out, "<path class=\"curve\" style=\"stroke:var(--%s)\" d=\"", hl_run_tier_keys[tier]);
    for (size_t b = 0; b < nbins; b++) {
        const struct hl_run_step *s = last_of(run, nbins, b);

        if (isfinite(s->held[tier]))
            fprintf(out, "%s%.1f %.1f", go, hl_svg_x(axes, (double)s->step),
                    hl_svg_y(axes, 100 * s->held[tier] / whole));
        go = isfinite(s->held[tier]) ? "L" : "M";
    }
    fprintf(out, "\"><title>%s</title></path>\n", hl_run_tier_keys[tier]);
}

static void legend(FILE *out, const struct hl_run *run)
{
    fputs("<ul class=\"legend\">\n", out);
    for (int t = 0; t < HAUL_NTIERS; t++)
        if (whole_of(run, t) > 0)
            fprintf(out,
                    "<li><span class=\"swatch\" style=\"background:var(--%s)\"></span>%s, of its "
                    "%s</li>\n",
                    hl_run_tier_keys[t], hl_run_tier_keys[t],
                    budget_of(run, t) > 0 ? "budget" : "plan");
    fputs("</ul>\n", out);
}

static void table(FILE *out, const struct hl_run *run)
{
    const size_t nrows = run->nsteps < ROWS ? run->nsteps : ROWS;

    hl_svg_table(out, "Bytes in use at most, by step",
                 "<th scope=\"col\">up to step</th><th scope=\"col\">device</th><th "
                 "scope=\"col\">host</th><th scope=\"col\">nvme</th>");
    for (size_t r = 0; r < nrows; r++) {
        const struct hl_run_step *s = last_of(run, nrows, r);

        fprintf(out, "<tr><td>%" PRIu64 "</td>", s->step);
        for (int t = 0; t < HAUL_NTIERS; t++)
            fprintf(out, "<td>%.0f</td>", s->held[t] > 0 ? s->held[t] : 0);
        fputs("</tr>\n", out);
    }
    hl_svg_table_end(out);
}

void hl_report_held(FILE *out, const struct hl_run *run)
{
    struct hl_svg_axes axes = {.x_min = (double)run->steps[0].step,
                               .x_max = (double)run->steps[run->nsteps - 1].step,
                               .y_max = 100};

    if (!isfinite(run->steps[run->nsteps - 1].held[HAUL_TIER_DEVICE]))
        return;
    hl_svg_section(out, "Memory of the tiers over time (% of the budget)");
    hl_svg_open(out, "held", "What each tier held, in parts of its budget",
                "Curves; their numbers are in the table below.");
    hl_svg_axes_draw(out, &axes, "step");
    for (int t = 0; t < HAUL_NTIERS; t++)
        curve(out, run, &axes, t);
    fputs("</svg>\n", out);
    legend(out, run);
    table(out, run);
}
