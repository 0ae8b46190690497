/* report_svg.h: what the drawings of a report share: axes, escapes, numbers. */
#ifndef HL_REPORT_SVG_H
#define HL_REPORT_SVG_H

#include <stdint.h>
#include <stdio.h>

/* Of a drawing, in its own units: what a phone shows at about 0.8, a desk at about 1.3. */
enum { HL_SVG_WIDTH = 420, HL_SVG_HEIGHT = 220 };

/* The part with data. */
enum { HL_SVG_LEFT = 48, HL_SVG_RIGHT = 408, HL_SVG_TOP = 12, HL_SVG_BOTTOM = 192 };

/* Values that the data's part shows, y upwards. */
struct hl_svg_axes {
    double x_min, x_max, y_min, y_max;
};

/* Text with &, <, > and " escaped. */
void hl_svg_text(FILE *out, const char *text);

/* "1.5e+06" as people write it: 1.5M. Returns buf. */
const char *hl_svg_number(double value, char *buf, size_t len);

/* The opening tag, with a title and a description that screen readers say. id is unique in the page. */
void hl_svg_open(FILE *out, const char *id, const char *title, const char *description);

/* Widen the axes to round numbers, draw grid and labels. */
void hl_svg_axes_draw(FILE *out, struct hl_svg_axes *axes, const char *x_label);

double hl_svg_x(const struct hl_svg_axes *axes, double x);
double hl_svg_y(const struct hl_svg_axes *axes, double y);

/* A section with a figure; then its table, folded away: heads are the cells of its first row; then its end. */
void hl_svg_section(FILE *out, const char *heading);
void hl_svg_table(FILE *out, const char *caption, const char *heads);
void hl_svg_table_end(FILE *out);

/* [*first, *end) of n items, as part `bin` of nbins. */
void hl_bin(size_t n, size_t nbins, size_t bin, size_t *first, size_t *end);

#endif
