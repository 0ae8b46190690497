/* report_charts.h: the sections of a report that draw. Each has a table with the drawing's numbers. */
#ifndef HL_REPORT_CHARTS_H
#define HL_REPORT_CHARTS_H

#include <stdio.h>

#include "report_run.h"

void hl_report_loss(FILE *out, const struct hl_run *run);
void hl_report_step_time(FILE *out, const struct hl_run *run);
void hl_report_rates(FILE *out, const struct hl_run *run);

/* What each tier held over the steps, in parts of its budget. Nothing when the run does not say. */
void hl_report_held(FILE *out, const struct hl_run *run);

/* Planned and measured beside the budgets. Nothing without a summary. */
void hl_report_tiers(FILE *out, const struct hl_run *run);

/* One step of the trace: step, or with 0 the one before the last. Nothing without a trace.
 * 0, or -ENOENT: no such step in it. */
int hl_report_timeline(FILE *out, const struct hl_run *run, uint64_t step);

#endif
