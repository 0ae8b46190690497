/* profile.h: what a machine can do, as a table of rates with the source of each: built in, or a file that
 * haul tune wrote. */
#ifndef HL_PROFILE_H
#define HL_PROFILE_H

#include "sim.h"

#define HL_PROFILE_RATES 14

struct hl_profile {
    char name[128], about[160];
    struct hl_sim_rates rates;
    char source[HL_PROFILE_RATES][192];        /* in the order of hl_profile_rate_name() */
    uint64_t ranks_per_node;                   /* devices of a node; 0: not known */
    uint64_t device_mem_bytes, host_mem_bytes; /* of a device, of a node; 0: not known */
    double written_bytes_rated; /* what the maker says the drives of a node endure; 0: not known */
};

/* The i-th built-in profile; NULL past the last. */
const struct hl_profile *hl_profile_builtin(unsigned i);

const char *hl_profile_rate_name(unsigned i);
double *hl_profile_rate(struct hl_sim_rates *rates, unsigned i);

/* A built-in name, else a file. Rates that a file leaves out are those of the first built-in one, and their
 * source says so. Errors 0, HAUL_E_CONFIG (text names file, line and key), -ENOENT and its like */
int hl_profile_load(const char *name, struct hl_profile *out);

#endif
