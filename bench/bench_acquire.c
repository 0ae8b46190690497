/*
 * bench_acquire.c: what acquire and release cost the trainer's thread when nothing has to be waited for.
 *
 * 32 units of 4096 parameters, everything where it is needed: offload none, and offload all with a window
 * that holds every unit. Each repeat times 32 * 500 acquire + release pairs; prints the median and the
 * spread of at least 7 repeats, interleaved over the rows. Emulated device: the cost is the host's own.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "haul/haul.h"

#define UNITS   32
#define ROUNDS  500
#define REPEATS 15

struct row {
    const char *name;
    enum haul_offload offload;
    struct haul_device *dev;
    void *stream;
    struct haul_engine *engine;
    struct haul_unit *unit[UNITS];
    double acquire_ns[REPEATS], release_ns[REPEATS];
};

static void must(int rc, const char *what)
{
    if (rc == 0)
        return;
    fprintf(stderr, "bench_acquire: %s: %s: %s\n", what, haul_strerror(rc), haul_last_error());
    exit(1);
}

static double now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void open_row(struct row *r)
{
    struct haul_tensor w = {.name = "w", .ndims = 1, .shape = {4096}, .dtype = HAUL_BF16};
    struct haul_engine_opts o;

    must(haul_device_host_open(NULL, &r->dev), "device");
    must(haul_device_stream_open(r->dev, &r->stream), "stream");
    haul_engine_opts_init(&o);
    o.device = r->dev;
    o.offload = r->offload;
    o.window = UNITS;
    must(haul_engine_open(&o, &r->engine), "engine");
    for (int i = 0; i < UNITS; i++) {
        char name[16];
        snprintf(name, sizeof name, "u%d", i);
        struct haul_unit_desc d = {
            .struct_size = sizeof d, .name = name, .tensors = &w, .ntensors = 1};
        must(haul_engine_add_unit(r->engine, &d, &r->unit[i]), "unit");
    }
    must(haul_engine_build(r->engine), "build");
    must(haul_engine_pass(r->engine, HAUL_PASS_EVAL), "pass");
}

static void close_row(struct row *r)
{
    must(haul_device_stream_sync(r->dev, r->stream), "sync");
    haul_engine_close(r->engine);
    haul_device_stream_close(r->dev, r->stream);
    must(haul_device_close(r->dev), "device");
}

static void measure(struct row *r, int repeat)
{
    double acquire = 0, release = 0;
    struct haul_view v;

    for (int k = 0; k < ROUNDS; k++) {
        for (int i = 0; i < UNITS; i++) {
            double a = now_ns();
            must(haul_unit_acquire(r->unit[i], r->stream, &v), "acquire");
            double b = now_ns();
            must(haul_unit_release(r->unit[i], r->stream), "release");
            acquire += b - a;
            release += now_ns() - b;
        }
        must(haul_engine_pass(r->engine, HAUL_PASS_EVAL), "pass");
        must(haul_device_stream_sync(r->dev, r->stream), "sync");
    }
    r->acquire_ns[repeat] = acquire / (ROUNDS * UNITS);
    r->release_ns[repeat] = release / (ROUNDS * UNITS);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void print(const char *name, const char *call, double *ns)
{
    qsort(ns, REPEATS, sizeof *ns, by_value);
    printf("%-14s %-8s median %7.0f ns   spread %.0f to %.0f ns   (clock included)\n", name, call,
           ns[REPEATS / 2], ns[0], ns[REPEATS - 1]);
}

int main(void)
{
    static struct row rows[] = {{.name = "offload none", .offload = HAUL_OFFLOAD_NONE},
                                {.name = "offload all", .offload = HAUL_OFFLOAD_ALL}};

    for (int i = 0; i < 2; i++)
        open_row(&rows[i]);
    for (int k = 0; k < REPEATS; k++)
        for (int i = 0; i < 2; i++)
            measure(&rows[i], k);
    for (int i = 0; i < 2; i++) {
        print(rows[i].name, "acquire", rows[i].acquire_ns);
        print(rows[i].name, "release", rows[i].release_ns);
        close_row(&rows[i]);
    }
    return 0;
}
