/* report_tiers.c: what each tier held, beside plan and budget. */
#include <inttypes.h>
#include <math.h>

#include "haul/size.h"
#include "report_charts.h"
#include "report_svg.h"

struct tier {
    const char *key;
    double planned, peak, budget; /* budget 0: none */
};

/* All of them this rank's. */
static uint32_t read_tiers(const struct hl_run *run, struct tier out[HAUL_NTIERS])
{
    uint32_t n = 0;

    for (int i = 0; i < HAUL_NTIERS; i++) {
        double budget =
            json_number_value(json_object_get(hl_run_summary(run, "budgets"), hl_run_tier_keys[i]));
        double planned =
            json_number_value(json_object_get(hl_run_summary(run, "planned"), hl_run_tier_keys[i]));
        double peak =
            json_number_value(json_object_get(hl_run_summary(run, "peaks"), hl_run_tier_keys[i]));

        if (planned > 0 || peak > 0 || budget > 0)
            out[n++] = (struct tier){hl_run_tier_keys[i], planned, peak, budget};
    }
    return n;
}

static const char *size(double bytes, char *buf, size_t len)
{
    return haul_format_size((uint64_t)bytes, buf, len);
}

/* A bar of what was used at most, in a frame as wide as the budget; the plan is a stroke. */
static void draw(FILE *out, const struct tier *t, int row)
{
    const double whole = fmax(fmax(t->budget, t->planned), t->peak);
    const double scale = (HL_SVG_WIDTH - 20) / (whole > 0 ? whole : 1);
    const int y = 26 + 66 * row;
    char peak[32], budget[32];

    fprintf(out, "<text x=\"10\" y=\"%d\">%s: %s", y - 6, t->key, size(t->peak, peak, sizeof peak));
    if (t->budget > 0)
        fprintf(out, " of %s (%.0f%%)", size(t->budget, budget, sizeof budget),
                100 * t->peak / t->budget);
    fprintf(out,
            "</text>\n<rect x=\"10\" y=\"%d\" width=\"%.1f\" height=\"22\" fill=\"none\" "
            "class=\"grid\"/>\n",
            y, (t->budget > 0 ? t->budget : whole) * scale);
    fprintf(out,
            "<rect x=\"10\" y=\"%d\" width=\"%.1f\" height=\"22\" style=\"fill:var(--%s)\">"
            "<title>%s: %s at most</title></rect>\n",
            y, t->peak * scale, t->key, t->key, size(t->peak, peak, sizeof peak));
    fprintf(out, "<line class=\"mark\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\"/>\n",
            10 + t->planned * scale, 10 + t->planned * scale, y - 3, y + 25);
}

static void table_row(FILE *out, const struct tier *t)
{
    fprintf(out, "<tr><td>%s</td><td>%.0f</td><td>%.0f</td><td>", t->key, t->planned, t->peak);
    if (t->budget > 0)
        fprintf(out, "%.0f</td></tr>\n", t->budget);
    else
        fputs("none given</td></tr>\n", out);
}

void hl_report_tiers(FILE *out, const struct hl_run *run)
{
    struct tier tiers[HAUL_NTIERS];
    uint32_t n = read_tiers(run, tiers);

    if (n == 0)
        return;
    fputs("<section>\n<h2>Memory of the tiers, beside plan and budget</h2>\n<figure>\n", out);
    hl_svg_open(out, "tiers", "Bytes that each tier held at most",
                "Bars in frames as wide as the budgets; strokes are the plan. The numbers are in "
                "the table below.");
    for (uint32_t i = 0; i < n; i++)
        draw(out, &tiers[i], (int)i);
    fputs("</svg>\n</figure>\n<p class=\"quiet\">Bar: the most that was ever in use. Stroke: what "
          "was planned. Frame: the budget (this rank's part of the node's).</p>\n"
          "<details><summary>Table</summary><div class=\"scroll\" tabindex=\"0\" role=\"region\" "
          "aria-label=\"Bytes of the tiers\"><table><caption>Bytes of the tiers</caption><thead>"
          "<tr><th scope=\"col\">tier</th><th scope=\"col\">planned</th><th scope=\"col\">at most"
          "</th><th scope=\"col\">budget</th></tr></thead><tbody>\n",
          out);
    for (uint32_t i = 0; i < n; i++)
        table_row(out, &tiers[i]);
    fputs("</tbody></table></div></details>\n</section>\n", out);
}
