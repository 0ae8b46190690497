/*
 * progress.h: what people and programs see of a run: a line per step, the closing table, JSON lines.
 */
#ifndef TRAIN_GPT_PROGRESS_H
#define TRAIN_GPT_PROGRESS_H

#include <stdio.h>
#include "trainer.h"

struct progress {
    const struct args *args;
    FILE *jsonl; /* NULL: none */
    uint64_t nsteps, nskipped;
    double first_loss, last_loss;
    uint64_t wall_ns;
    struct haul_lane_report lanes[HAUL_NLANES]; /* sums over the steps */
};

/* As in the table and in JSON. */
const char *progress_lane_name(enum haul_lane lane);

/* Returns EXIT_OK, or EXIT_FAILED after one line on stderr. */
int progress_open(const struct args *args, struct progress *out);

/* A step has ended. EXIT_OK, or EXIT_FAILED after one line on stderr: its JSON line is not written. */
int progress_step(struct progress *p, const struct trainer *t, uint64_t step, double loss,
                  const struct haul_report *report);

/* The closing table on stdout, unless quiet, and the summary line. EXIT_OK or EXIT_FAILED. */
int progress_end(struct progress *p, const struct trainer *t, uint64_t digest);
void progress_close(struct progress *p);

/* The ledger on stdout. EXIT_OK, or EXIT_FAILED when it does not fit the budgets that were given. */
int progress_plan(const struct trainer *t);

#endif
