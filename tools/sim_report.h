/* sim_report.h: what haul sim says: a table, JSON, a trace, a sweep. */
#ifndef HL_SIM_REPORT_H
#define HL_SIM_REPORT_H

#include "sim_choose.h"

struct hl_sim_answer {
    struct hl_sim_case *made;
    struct hl_sim_choice choice[HL_SIM_CHOICES];
    uint32_t nchoices;
    int best;
    struct hl_sim_upgrade upgrade;
};

const char *hl_sim_lane_name(enum haul_lane lane);
void hl_sim_print_table(const struct hl_sim_answer *a);
/* On stdout. 0 or -ENOMEM. */
int hl_sim_print_json(const struct hl_sim_answer *a);
/* For Perfetto and chrome://tracing. 0, or an error with a text. */
int hl_sim_write_trace(const struct hl_sim_answer *a, const char *path);

/* One step for each combination of up to two lists of values, "tokens=1M,2M,host-mem=64GB,128GB": a table
 * or JSON on stdout; plot: an SVG through gnuplot, or NULL. HL_EXIT_OK or an exit code. */
int hl_sim_sweep(const struct hl_command *cmd, const struct hl_sim_request *q,
                 const struct hl_flag_list *sweep, int json, const char *plot);

#endif
