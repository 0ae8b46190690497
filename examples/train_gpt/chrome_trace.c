/* chrome_trace.c: see chrome_trace.h. The format: an array of events, times in microseconds. */
#include "chrome_trace.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <time.h>
#include "progress.h"

/* Ends the array; the next step is written over it. */
static const char footer[] = "\n]\n";

static uint64_t clock_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static double us(const struct chrome_trace *c, uint64_t ns)
{
    return (double)(ns - c->start_ns) * 1e-3;
}

static void write_counter(const struct chrome_trace *c, enum haul_trace_kind kind, uint64_t at_ns,
                          uint64_t value)
{
    static const char *const name[] = {[HAUL_TRACE_SLOTS] = "slots",
                                       [HAUL_TRACE_QUEUE] = "queue depth",
                                       [HAUL_TRACE_IN_FLIGHT] = "bytes in flight"};

    fprintf(c->file,
            ",\n{\"ph\":\"C\",\"pid\":1,\"name\":\"%s\",\"ts\":%.3f,\"args\":{\"value\":%" PRIu64
            "}}",
            name[kind], us(c, at_ns), value);
}

static void write_span(struct chrome_trace *c, const struct trainer *t,
                       const struct haul_trace_event *event)
{
    uint64_t *lane_end_ns = &c->lane_end_ns[event->lane], begin_ns = event->begin_ns;
    char name[32];

    if (begin_ns < *lane_end_ns)
        begin_ns = *lane_end_ns < event->end_ns ? *lane_end_ns : event->end_ns;
    if (*lane_end_ns < event->end_ns)
        *lane_end_ns = event->end_ns;
    if (event->unit >= 0)
        trainer_unit_name(t, (uint32_t)event->unit, name, sizeof name);
    else
        snprintf(name, sizeof name, "%s", progress_lane_name(event->lane));
    fprintf(c->file,
            ",\n{\"ph\":\"X\",\"pid\":1,\"tid\":%d,\"name\":\"%s\",\"ts\":%.3f,\"dur\":%.3f,"
            "\"args\":{\"step\":%" PRIu32 ",\"bytes\":%" PRIu64 "}}",
            (int)event->lane + 1, name, us(c, begin_ns), (double)(event->end_ns - begin_ns) * 1e-3,
            event->step, event->value);
}

/* Counters that changed before the start keep their last value from there on. */
static void write_event(struct chrome_trace *c, const struct trainer *t,
                        const struct haul_trace_event *event)
{
    uint64_t at_ns = event->begin_ns > c->start_ns ? event->begin_ns : c->start_ns;

    if (event->kind != HAUL_TRACE_SPAN)
        write_counter(c, event->kind, at_ns, event->value);
    else if (event->end_ns > c->start_ns)
        write_span(c, t, event);
}

static void write_header(struct chrome_trace *c)
{
    fputs("[\n{\"ph\":\"M\",\"pid\":1,\"name\":\"process_name\",\"args\":{\"name\":\"train_gpt\"}}",
          c->file);
    for (int i = 0; i < HAUL_NLANES; i++)
        fprintf(c->file,
                ",\n{\"ph\":\"M\",\"pid\":1,\"tid\":%d,\"name\":\"thread_name\",\"args\":"
                "{\"name\":\"%s\"}}"
                ",\n{\"ph\":\"M\",\"pid\":1,\"tid\":%d,\"name\":\"thread_sort_index\",\"args\":"
                "{\"sort_index\":%d}}",
                i + 1, progress_lane_name((enum haul_lane)i), i + 1, i);
    for (int kind = HAUL_TRACE_SLOTS; kind <= HAUL_TRACE_IN_FLIGHT; kind++)
        write_counter(c, (enum haul_trace_kind)kind, c->start_ns, 0);
}

static void write_footer(struct chrome_trace *c)
{
    fputs(footer, c->file);
    if (fflush(c->file) != 0)
        c->error = errno;
}

static int report(const struct chrome_trace *c, const char *text)
{
    fprintf(stderr, "train_gpt: --trace %s: %s\n", c->path, text);
    return EXIT_FAILED;
}

int chrome_trace_open(const char *path, struct chrome_trace *out)
{
    struct chrome_trace *c = out;

    *c = (struct chrome_trace){.path = path, .start_ns = clock_ns()};
    if (path == NULL)
        return EXIT_OK;
    for (int i = 0; i < HAUL_NLANES; i++)
        c->lane_end_ns[i] = c->start_ns;
    c->file = fopen(path, "w");
    if (c->file == NULL)
        return report(c, strerror(errno));
    if (fseek(c->file, 0, SEEK_END) != 0)
        c->error = errno;
    if (c->error == 0) {
        write_header(c);
        write_footer(c);
    }
    if (c->error == 0)
        return EXIT_OK;
    report(c, strerror(c->error));
    fclose(c->file);
    c->file = NULL;
    return EXIT_FAILED;
}

int chrome_trace_step(struct chrome_trace *c, const struct trainer *t)
{
    struct haul_trace_event events[256];
    uint32_t n = sizeof events / sizeof *events;
    uint64_t ndropped;
    int rc = 0;

    if (c->file == NULL)
        return 0;
    if (c->error == 0 && fseek(c->file, -(long)(sizeof footer - 1), SEEK_CUR) != 0)
        c->error = errno;
    while (rc == 0 && n == sizeof events / sizeof *events) {
        rc = haul_engine_trace(t->engine, events, n, &n, &ndropped);
        if (rc < 0)
            break;
        c->ndropped += ndropped;
        for (uint32_t i = 0; c->error == 0 && i < n; i++)
            write_event(c, t, &events[i]);
    }
    if (c->error == 0)
        write_footer(c);
    return rc;
}

int chrome_trace_close(struct chrome_trace *c)
{
    char text[120];

    if (c->file == NULL)
        return EXIT_OK;
    if (fclose(c->file) != 0 && c->error == 0)
        c->error = errno;
    c->file = NULL;
    if (c->error != 0) {
        snprintf(text, sizeof text, "could not be written: %s", strerror(c->error));
        return report(c, text);
    }
    if (c->ndropped == 0)
        return EXIT_OK;
    snprintf(text, sizeof text, "%" PRIu64 " events are missing: more in a step than are kept",
             c->ndropped);
    return report(c, text);
}
