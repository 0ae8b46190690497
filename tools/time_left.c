/* time_left.c: see time_left.h. */
#include "time_left.h"

#include <stdio.h>
#include <time.h>
#include <unistd.h>

#define FIRST_NS UINT64_C(2000000000)
#define NEXT_NS  UINT64_C(200000000)

static uint64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

void hl_time_left_begin(struct hl_time_left *t, const char *what, uint64_t total, int bytes)
{
    *t = (struct hl_time_left){.what = what,
                               .total = total,
                               .bytes = bytes,
                               .on = isatty(STDERR_FILENO),
                               .begun_ns = now_ns()};
}

const char *hl_time_left_line(const struct hl_time_left *t, uint64_t done, double elapsed_s,
                              char *buf, size_t len)
{
    const double part = t->total ? (double)done / (double)t->total : 0;
    const double left_s = part > 0 ? elapsed_s / part - elapsed_s : 0;
    char rate[32] = "";

    if (t->bytes && elapsed_s > 0)
        snprintf(rate, sizeof rate, ", %.2f GB/s", (double)done / elapsed_s / 1e9);
    if (part <= 0)
        snprintf(buf, len, "%s: begun", t->what);
    else if (left_s < 120)
        snprintf(buf, len, "%s: %.0f%%%s, %.0f s left", t->what, 100 * part, rate, left_s);
    else
        snprintf(buf, len, "%s: %.0f%%%s, %.0f min left", t->what, 100 * part, rate, left_s / 60);
    return buf;
}

void hl_time_left_at(struct hl_time_left *t, uint64_t done)
{
    const uint64_t now = t->on ? now_ns() : 0;
    char line[128];

    if (!t->on || now < t->begun_ns + FIRST_NS || now < t->shown_ns + NEXT_NS)
        return;
    fprintf(stderr, "\r\033[K%s",
            hl_time_left_line(t, done, (double)(now - t->begun_ns) * 1e-9, line, sizeof line));
    fflush(stderr);
    t->shown_ns = now;
    t->shown = 1;
}

void hl_time_left_end(struct hl_time_left *t)
{
    if (t->shown)
        fputs("\r\033[K", stderr);
    t->shown = 0;
}
