/* plan_report.h: what haul plan has worked out, and the two ways of saying it. */
#ifndef HL_PLAN_REPORT_H
#define HL_PLAN_REPORT_H

#include "bounds.h"

struct hl_plan_report {
    struct haul_plan_opts opts; /* resolved: nothing left to a default */
    struct haul_plan_row rows[HAUL_PLAN_ROWS];
    int best; /* index into rows; -1: none fits */
    struct hl_rates rates;
    double tokens;
    const char *profile;     /* whose rates they are, as it was given; NULL: none */
    int rates_given;         /* 1: at least one rate is not the default */
    struct hl_bounds bounds; /* of the best row */
};

const char *hl_plan_offload_name(enum haul_offload offload);
const char *hl_plan_dtype_name(enum haul_dtype dtype);

/* Why the best row is the best, or what lacks when none fits: one sentence. Returns buf. */
const char *hl_plan_why(const struct hl_plan_report *report, char *buf, size_t len);

/* On stdout. 0 or -ENOMEM. */
int hl_plan_print_json(const struct hl_plan_report *report);
void hl_plan_print_table(const struct hl_plan_report *report);

/* A page with sliders that begin at the report's values. 0 or -errno of the file. */
int hl_plan_write_html(const struct hl_plan_report *report, const char *path);

#endif
