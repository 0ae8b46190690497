/* bench_plot.h: --plot of the benches: bars, each beside what bounds it, drawn by gnuplot. */
#ifndef HL_BENCH_PLOT_H
#define HL_BENCH_PLOT_H

#include <stdint.h>

#include "haul/error.h"

#define HL_PLOT_MOST_BARS 64

struct hl_bench_plot {
    const char *path;          /* of the SVG; NULL: nothing is drawn */
    const char *title, *unit;  /* of the drawing; of the values */
    const char *value, *bound; /* what the bars are, and what stands beside them */
    uint32_t nbars;
    struct {
        char label[48];
        double value, bound; /* bound NaN: none */
    } bar[HL_PLOT_MOST_BARS];
};

/* Bars past the last are left out. */
void hl_bench_plot_add(struct hl_bench_plot *plot, double value, double bound, const char *fmt, ...)
    HAUL_PRINTF(4, 5);

/* 0, or a negative code: gnuplot is missing, or could not write. */
int hl_bench_plot_draw(const struct hl_bench_plot *plot);

#endif
