/* report_run.h: a run as train_gpt --jsonl wrote it, and its trace. */
#ifndef HL_REPORT_RUN_H
#define HL_REPORT_RUN_H

#include <jansson.h>
#include <stdint.h>

#include "haul/engine.h"

struct hl_run_lane {
    double busy_ms, exposed_ms, bytes;
};

struct hl_run_step {
    uint64_t step;
    double loss, grad_norm, ms, tokens_per_s; /* NaN: the run had none */
    int skipped;
    struct hl_run_lane lanes[HAUL_NLANES];
    double held[HAUL_NTIERS]; /* the most that was in use so far, bytes; NaN: the run had none */
};

struct hl_run {
    struct hl_run_step *steps;
    size_t nsteps;
    json_t *summary; /* NULL: the run ended before its last line */
    json_t *trace;   /* array of events, or NULL */
};

/* As in the file, and for people. */
extern const char *const hl_run_lane_keys[HAUL_NLANES];
extern const char *const hl_run_lane_names[HAUL_NLANES];
extern const char *const hl_run_tier_keys[HAUL_NTIERS];

/* Read the lines of a run. 0, or a negative code; haul_last_error() has the text. End with hl_run_close(). */
int hl_run_read(const char *path, struct hl_run *out);
int hl_run_read_trace(const char *path, struct hl_run *run);
void hl_run_close(struct hl_run *run);

/* A key of the summary: its object, or NULL. */
const json_t *hl_run_summary(const struct hl_run *run, const char *key);

#endif
