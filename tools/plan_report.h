/* plan_report.h: what haul plan has worked out, and the two ways of saying it. */
#ifndef HL_PLAN_REPORT_H
#define HL_PLAN_REPORT_H

#include "bounds.h"
#include "sim_choose.h"

/* What the simulator says of the rows that fit. */
struct hl_plan_sim {
    int best; /* the cheapest row within 5% of the fastest; -1: none was simulated */
    struct hl_sim_result result; /* of that row */
    double fastest_s;            /* of all rows */
    struct hl_sim_upgrade upgrade;
    char why_not[200];
};

struct hl_plan_report {
    struct haul_plan_opts opts; /* resolved: nothing left to a default */
    struct haul_plan_row rows[HAUL_PLAN_ROWS];
    int best;          /* index into rows: the simulator's, else least_offload; -1: none fits */
    int least_offload; /* what keeps most on the device; -1: none fits */
    struct hl_plan_sim sim;
    struct hl_sim_rates sim_rates;
    struct hl_rates rates;
    double tokens;
    const char *profile;                   /* whose rates they are, as it was given; NULL: none */
    int rates_given;                       /* 1: at least one rate is not the default */
    struct hl_bounds bounds;               /* of the best row */
    struct hl_bounds least_offload_bounds; /* of that row */
};

/* rows, tokens and sim_rates are there. Never fails: what is not simulated has its why_not. */
void hl_plan_simulate(const struct hl_plan_report *report, struct hl_plan_sim *out);

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
