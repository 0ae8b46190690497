/* report_svg.c: see report_svg.h. */
#include "report_svg.h"

#include <math.h>

void hl_svg_text(FILE *out, const char *text)
{
    for (; *text != '\0'; text++)
        switch (*text) {
        case '&':
            fputs("&amp;", out);
            break;
        case '<':
            fputs("&lt;", out);
            break;
        case '>':
            fputs("&gt;", out);
            break;
        case '"':
            fputs("&quot;", out);
            break;
        default:
            putc(*text, out);
        }
}

const char *hl_svg_number(double value, char *buf, size_t len)
{
    static const struct {
        double from;
        const char *unit;
    } units[] = {{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e4, "k"}};
    double size = fabs(value);

    if (!isfinite(value)) {
        snprintf(buf, len, "none");
        return buf;
    }
    for (unsigned i = 0; i < sizeof units / sizeof units[0]; i++)
        if (size >= units[i].from) {
            snprintf(buf, len, "%.4g%s", value / (units[i].from == 1e4 ? 1e3 : units[i].from),
                     units[i].unit);
            return buf;
        }
    snprintf(buf, len, "%.4g", value);
    return buf;
}

void hl_svg_open(FILE *out, const char *id, const char *title, const char *description)
{
    fprintf(out,
            "<svg viewBox=\"0 0 %d %d\" role=\"img\" aria-labelledby=\"%s-t %s-d\">\n<title "
            "id=\"%s-t\">",
            HL_SVG_WIDTH, HL_SVG_HEIGHT, id, id, id);
    hl_svg_text(out, title);
    fprintf(out, "</title><desc id=\"%s-d\">", id);
    hl_svg_text(out, description);
    fputs("</desc>\n", out);
}

double hl_svg_x(const struct hl_svg_axes *a, double x)
{
    double span = a->x_max > a->x_min ? a->x_max - a->x_min : 1;

    return HL_SVG_LEFT + (x - a->x_min) / span * (HL_SVG_RIGHT - HL_SVG_LEFT);
}

double hl_svg_y(const struct hl_svg_axes *a, double y)
{
    double span = a->y_max > a->y_min ? a->y_max - a->y_min : 1;

    return HL_SVG_BOTTOM - (y - a->y_min) / span * (HL_SVG_BOTTOM - HL_SVG_TOP);
}

/* 1, 2 or 5 times a power of ten: about four of them in span. */
static double tick_step(double span)
{
    double power = pow(10, floor(log10(span / 4))), times = span / 4 / power;

    return power * (times < 1.5 ? 1 : times < 3.5 ? 2 : times < 7.5 ? 5 : 10);
}

static void y_ticks(FILE *out, struct hl_svg_axes *a)
{
    double step;
    char text[32];

    if (!(a->y_max > a->y_min))
        a->y_max = a->y_min + (a->y_min != 0 ? fabs(a->y_min) : 1);
    step = tick_step(a->y_max - a->y_min);
    a->y_min = floor(a->y_min / step) * step;
    a->y_max = ceil(a->y_max / step) * step;
    for (int i = 0; a->y_min + i * step <= a->y_max + step / 2; i++) {
        double value = a->y_min + i * step, y = hl_svg_y(a, value);

        fprintf(out,
                "<line class=\"grid\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/>"
                "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n",
                HL_SVG_LEFT, HL_SVG_RIGHT, y, y, HL_SVG_LEFT - 6, y + 4,
                hl_svg_number(fabs(value) < step / 1e6 ? 0 : value, text, sizeof text));
    }
}

void hl_svg_axes_draw(FILE *out, struct hl_svg_axes *a, const char *x_label)
{
    char text[32];

    y_ticks(out, a);
    fprintf(out, "<text x=\"%d\" y=\"%d\">%s</text>\n", HL_SVG_LEFT, HL_SVG_BOTTOM + 18,
            hl_svg_number(a->x_min, text, sizeof text));
    fprintf(out, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">%s</text>\n",
            (HL_SVG_LEFT + HL_SVG_RIGHT) / 2, HL_SVG_BOTTOM + 18, x_label);
    fprintf(out, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">%s</text>\n", HL_SVG_RIGHT,
            HL_SVG_BOTTOM + 18, hl_svg_number(a->x_max, text, sizeof text));
}

void hl_bin(size_t n, size_t nbins, size_t bin, size_t *first, size_t *end)
{
    *first = (size_t)((double)n * (double)bin / (double)nbins);
    *end = (size_t)((double)n * (double)(bin + 1) / (double)nbins);
}

void hl_svg_section(FILE *out, const char *heading)
{
    fprintf(out, "<section>\n<h2>%s</h2>\n<figure>\n", heading);
}

void hl_svg_table(FILE *out, const char *caption, const char *heads)
{
    fprintf(out,
            "</figure>\n<details><summary>Table</summary><div class=\"scroll\" tabindex=\"0\" "
            "role=\"region\" aria-label=\"%s\"><table><caption>%s</caption><thead><tr>%s</tr>"
            "</thead><tbody>\n",
            caption, caption, heads);
}

void hl_svg_table_end(FILE *out)
{
    fputs("</tbody></table></div></details>\n</section>\n", out);
}
