/* run_summary.h: the last line of --jsonl: what was planned and measured, of what run, where. */
#ifndef TRAIN_GPT_RUN_SUMMARY_H
#define TRAIN_GPT_RUN_SUMMARY_H

#include <stdio.h>
#include "trainer.h"

struct tier_bytes {
    uint64_t planned, peak;
};

/* As in tables and in JSON. */
extern const char *const run_tier_names[HAUL_NTIERS];

/* Key names are a contract: append only. comm: (HAUL_COMM_NKINDS,). */
void run_summary_write(FILE *f, const struct trainer *t, const struct tier_bytes tiers[HAUL_NTIERS],
                       const struct haul_comm_count *comm, uint64_t digest);

#endif
