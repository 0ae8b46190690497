/* report_run.c: see report_run.h. */
#include "report_run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fail.h"

const char *const hl_run_lane_keys[HAUL_NLANES] = {"compute",  "h2d",   "d2h", "io_read",
                                                   "io_write", "optim", "comm"};
const char *const hl_run_lane_names[HAUL_NLANES] = {
    "compute", "host to device", "device to host", "nvme read", "nvme write", "optimizer", "ranks"};

const char *const hl_run_tier_keys[HAUL_NTIERS] = {"device", "host", "nvme"};

/* A number, or NaN where there is none. */
static double number(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);

    return json_is_number(value) ? json_number_value(value) : NAN;
}

static double number_or_zero(const json_t *object, const char *key)
{
    const double value = number(object, key);

    return value > 0 ? value : 0;
}

static void read_step(const json_t *line, struct hl_run_step *out)
{
    const json_t *lanes = json_object_get(line, "lanes"), *held = json_object_get(line, "held");

    out->step = (uint64_t)json_integer_value(json_object_get(line, "step"));
    out->loss = number(line, "loss");
    out->grad_norm = number(line, "grad_norm");
    out->ms = number_or_zero(line, "ms");
    out->tokens_per_s = number_or_zero(line, "tokens_per_s");
    out->skipped = json_is_true(json_object_get(line, "skipped"));
    for (int i = 0; i < HAUL_NTIERS; i++)
        out->held[i] = number(held, hl_run_tier_keys[i]);
    for (int i = 0; i < HAUL_NLANES; i++) {
        const json_t *lane = json_object_get(lanes, hl_run_lane_keys[i]);

        out->lanes[i] =
            (struct hl_run_lane){number_or_zero(lane, "busy_ms"),
                                 number_or_zero(lane, "exposed_ms"), number_or_zero(lane, "bytes")};
    }
}

static int add_step(const json_t *line, struct hl_run *run, size_t *room)
{
    if (run->nsteps == *room) {
        const size_t more = *room ? 2 * *room : 256;
        struct hl_run_step *steps = realloc(run->steps, more * sizeof *steps);

        if (steps == NULL)
            return hl_fail(-ENOMEM, "no memory for %zu steps", more);
        run->steps = steps;
        *room = more;
    }
    read_step(line, &run->steps[run->nsteps++]);
    return 0;
}

static int add_line(const char *path, size_t number, const char *text, struct hl_run *run,
                    size_t *room)
{
    json_error_t error;
    json_t *line = json_loads(text, 0, &error);
    int rc = 0;

    if (line == NULL)
        return hl_fail(HAUL_E_FORMAT, "%s, line %zu: %s; is it what train_gpt --jsonl wrote?", path,
                       number, error.text);
    if (json_is_true(json_object_get(line, "summary"))) {
        json_decref(run->summary);
        run->summary = line;
        return 0;
    }
    if (json_is_integer(json_object_get(line, "step")))
        rc = add_step(line, run, room);
    else
        rc = hl_fail(HAUL_E_FORMAT,
                     "%s, line %zu: neither a step nor a summary; is it what train_gpt --jsonl "
                     "wrote?",
                     path, number);
    json_decref(line);
    return rc;
}

/* A line without an end is what a killed run was about to write: it is left out. */
static int read_lines(const char *path, FILE *f, struct hl_run *run)
{
    char *text = NULL;
    size_t size = 0, room = 0, number = 0;
    ssize_t n;
    int rc = 0;

    while (rc == 0 && (n = getline(&text, &size, f)) > 0) {
        number++;
        if (text[n - 1] == '\n')
            rc = add_line(path, number, text, run, &room);
    }
    free(text);
    if (rc == 0 && ferror(f))
        rc = hl_fail(-EIO, "%s: cannot be read", path);
    if (rc == 0 && run->nsteps == 0)
        rc =
            hl_fail(HAUL_E_FORMAT, "%s: no step in it; was it written by train_gpt --jsonl?", path);
    return rc;
}

int hl_run_read(const char *path, struct hl_run *out)
{
    struct hl_run run = {0};
    FILE *f = fopen(path, "r");
    int rc;

    if (f == NULL)
        return hl_fail(-errno, "%s: %s", path, strerror(errno));
    rc = read_lines(path, f, &run);
    fclose(f);
    if (rc < 0)
        hl_run_close(&run);
    else
        *out = run;
    return rc;
}

int hl_run_read_trace(const char *path, struct hl_run *run)
{
    json_error_t error;
    json_t *trace = json_load_file(path, 0, &error);

    if (trace == NULL)
        return hl_fail(HAUL_E_FORMAT, "%s, line %d: %s; is it what train_gpt --trace wrote?", path,
                       error.line, error.text);
    if (!json_is_array(trace)) {
        json_decref(trace);
        return hl_fail(HAUL_E_FORMAT,
                       "%s: not a list of events; is it what train_gpt --trace "
                       "wrote?",
                       path);
    }
    run->trace = trace;
    return 0;
}

void hl_run_close(struct hl_run *run)
{
    free(run->steps);
    json_decref(run->summary);
    json_decref(run->trace);
    *run = (struct hl_run){0};
}

const json_t *hl_run_summary(const struct hl_run *run, const char *key)
{
    return json_object_get(run->summary, key);
}
