/*
 * offload_rows.h: --bench: the same model with nothing, its optimizer, or everything off the device, in one
 * run, each beside the first.
 *
 * A turn of a row: a step that leaves its updates to be done, the measured step, and a wait until nothing is
 * left; what it hides is its own. Rows take turns where device and host have room for all of them at once,
 * else each has its turns before the next begins. Every row sees the same batches and must end with the
 * same digest.
 */
#ifndef TRAIN_GPT_OFFLOAD_ROWS_H
#define TRAIN_GPT_OFFLOAD_ROWS_H

#include "data.h"
#include "ranks.h"
#include "trainer.h"

#define OFFLOAD_ROWS      3
#define OFFLOAD_MAX_STEPS 1000
#define OFFLOAD_LANES     5

extern const char *const offload_row_names[OFFLOAD_ROWS];
/* Those that compute can wait for. */
extern const enum haul_lane offload_lanes[OFFLOAD_LANES];

struct offload_row {
    struct args args;
    struct trainer trainer;
    bool fits, open;
    uint64_t planned[HAUL_NTIERS], peak[HAUL_NTIERS];
    uint64_t nturns, digest;
    double ms[OFFLOAD_MAX_STEPS]; /* by step, as all that follows */
    double exposed_ms[OFFLOAD_LANES][OFFLOAD_MAX_STEPS];
    double busy_ms[OFFLOAD_LANES][OFFLOAD_MAX_STEPS];
    uint64_t bytes[OFFLOAD_LANES]; /* of the last one */
};

struct offload_rows {
    const struct args *args;
    const struct data *data;
    struct ranks *ranks; /* one */
    bool interleaved;
    char device[128];
    uint64_t device_bytes; /* that the device has; UINT64_MAX: no cap */
    struct offload_row row[OFFLOAD_ROWS];
};

/* Prints a table, or with --json one object, on stdout. EXIT_OK, or another code after one line on stderr. */
int offload_rows_run(const struct args *args, const struct data *data, struct ranks *ranks);

/* offload_report.c: the end of it. */
void offload_rows_print(struct offload_rows *b);

#endif
