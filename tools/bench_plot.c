/* bench_plot.c: see bench_plot.h. Script and data go to gnuplot's standard input. */
#include "bench_plot.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "fail.h"

void hl_bench_plot_add(struct hl_bench_plot *plot, double value, double bound, const char *fmt, ...)
{
    va_list args;

    if (plot->nbars == HL_PLOT_MOST_BARS)
        return;
    va_start(args, fmt);
    vsnprintf(plot->bar[plot->nbars].label, sizeof plot->bar[0].label, fmt, args);
    va_end(args);
    plot->bar[plot->nbars].value = value;
    plot->bar[plot->nbars++].bound = bound;
}

static int has_bounds(const struct hl_bench_plot *plot)
{
    for (uint32_t i = 0; i < plot->nbars; i++)
        if (isfinite(plot->bar[i].bound))
            return 1;
    return 0;
}

static void write_script(FILE *f, const struct hl_bench_plot *plot)
{
    fprintf(f, "set terminal svg size 760,460 dynamic background rgb 'white'\nset output '%s'\n",
            plot->path);
    fprintf(f,
            "set title \"%s\" noenhanced\nset ylabel '%s' noenhanced\nset yrange [0:*]\n"
            "set grid ytics\nset key top left reverse Left\nset style data histograms\n"
            "set style histogram clustered gap 1\nset style fill solid 1 noborder\n"
            "set xtics rotate by -30 noenhanced\nset datafile missing 'NaN'\n$bars << EOD\n",
            plot->title, plot->unit);
    for (uint32_t i = 0; i < plot->nbars; i++)
        if (isfinite(plot->bar[i].bound))
            fprintf(f, "\"%s\" %.6g %.6g\n", plot->bar[i].label, plot->bar[i].value,
                    plot->bar[i].bound);
        else
            fprintf(f, "\"%s\" %.6g NaN\n", plot->bar[i].label, plot->bar[i].value);
    fprintf(f, "EOD\nplot $bars using 2:xtic(1) title '%s' linecolor rgb '#2a78d6'", plot->value);
    if (has_bounds(plot))
        fprintf(f, ", '' using 3 title '%s' linecolor rgb '#8a8880'", plot->bound);
    putc('\n', f);
}

int hl_bench_plot_draw(const struct hl_bench_plot *plot)
{
    FILE *f;

    if (plot->path == NULL)
        return 0;
    if (strpbrk(plot->path, "'\n\\") != NULL)
        return hl_fail(-EINVAL, "--plot %s: no quotes or backslashes in the name", plot->path);
    signal(SIGPIPE, SIG_IGN); /* no gnuplot: its exit code says so */
    f = popen("gnuplot", "we");
    if (f == NULL)
        return hl_fail(-errno, "gnuplot: %s", haul_strerror(-errno));
    write_script(f, plot);
    return pclose(f) == 0
               ? 0
               : hl_fail(-EIO, "--plot %s: gnuplot failed; is it installed?", plot->path);
}
