/* profile.h: what a machine can do, as a table of rates with the source of each: built in, or a file that
 * haul tune wrote. */
#ifndef HL_PROFILE_H
#define HL_PROFILE_H

#include "sim.h"

enum hl_profile_rate_id {
    HL_RATE_FLOPS = 0,
    HL_RATE_DEVICE_MEM,
    HL_RATE_H2D,
    HL_RATE_D2H,
    HL_RATE_MEM,
    HL_RATE_OPTIM,
    HL_RATE_DRIVE_READ,
    HL_RATE_DRIVE_WRITE,
    HL_RATE_DRIVE_MIXED,
    HL_RATE_COMM,
    HL_RATE_NET,
    HL_RATE_LINK_LATENCY,
    HL_RATE_DRIVE_LATENCY,
    HL_RATE_COMM_LATENCY,
    HL_RATE_MEM_PER_LINK_BYTE,
    HL_RATE_MEM_PER_DRIVE_BYTE,
    HL_PROFILE_RATES
};

struct hl_profile {
    char name[128], about[160];
    struct hl_sim_rates rates;
    char source[HL_PROFILE_RATES][192];        /* by hl_profile_rate_id */
    uint64_t ranks_per_node;                   /* devices of a node; 0: not known */
    uint64_t device_mem_bytes, host_mem_bytes; /* of a device, of a node; 0: not known */
    double written_bytes_rated; /* what the maker says the drives of a node endure; 0: not known */
};

/* The i-th built-in profile; its name is NULL past the last. */
const char *hl_profile_name(unsigned i);
const char *hl_profile_about(unsigned i);
void hl_profile_builtin(unsigned i, struct hl_profile *out);

const char *hl_profile_rate_name(unsigned i);
double *hl_profile_rate(struct hl_sim_rates *rates, unsigned i);

/* A built-in name, else a file. Rates that a file leaves out are those of the first built-in one, and their
 * source says so. Errors 0, HAUL_E_CONFIG (text names file, line and key), -ENOENT and its like */
int hl_profile_load(const char *name, struct hl_profile *out);

#endif
