/*
 * bench_step.h: whole training steps of a synthetic model, every placement with and without deferring,
 * beside the bound that rates measured in the same run set.
 *
 * A turn of a row: a step without compute that leaves updates to be done, one like the measured step, the
 * measured step, and a wait until nothing is left. Rows take turns, and so do the measurements of the rates, when memory has room
 * for all of them at once; else a row has all its turns, with the rates', before the next.
 */
#ifndef HL_BENCH_STEP_H
#define HL_BENCH_STEP_H

#include "bench_step_rates.h"

#define HL_STEP_PLACEMENTS  4
#define HL_STEP_ROWS        (2 * HL_STEP_PLACEMENTS)
#define HL_STEP_MAX_REPEATS 64

struct hl_step_bench_opts {
    struct hl_step_model_opts model; /* placement and overlap are the rows'; params 0: choose */
    int placement;                   /* -1: all */
    int overlap;                     /* -1: both */
    uint32_t repeats;                /* measured steps of a row */
    double forward_s;                /* 0: 1.3 times the longer of optimizer and drive */
    double forward_s_per_elem;       /* instead of forward_s; 0: not given */
    double backward_ratio;           /* backward / forward */
    int no_compute;
};

struct hl_step_row {
    enum hl_step_placement placement;
    int overlap;
    double step_s, fastest_s, slowest_s;                                /* step_s: the median */
    double compute_s;                                                   /* the timed waits */
    double exposed_h2d_s, exposed_d2h_s, exposed_optim_s, exposed_io_s; /* medians */
    double h2d_bytes, d2h_bytes, io_bytes;                              /* moved in a step */
    uint64_t records_bytes[HAUL_NTIERS];                                /* where they rest */
    uint64_t host_bytes;                                                /* of all purposes */
    struct hl_step_rates rates; /* taken in turns with this row's steps */
    /* What the step cannot be faster than: max(forward, cores, nvme) + backward, and each of the rest.
     * cores: updates, and the copies that this device makes meanwhile on the cores that update; nvme: what
     * must move before the last update; nvme_all: in a whole step. */
    double optim_s, cores_s, nvme_s, nvme_all_s, h2d_s, d2h_s, bound_s;
    /* What the simulator says, from the same rates and where the records rest. */
    double predicted_s, predicted_h2d_s, predicted_d2h_s, predicted_optim_s, predicted_io_s;
    uint64_t digest;
};

struct hl_step_bench {
    uint64_t params;
    double forward_s, backward_s;
    uint64_t block_bytes,
        roof_bytes; /* of the store that the mixed rate is of; 0: nothing is paged */
    int interleaved;
    uint32_t nrows;
    struct hl_step_row row[HL_STEP_ROWS];
};

/* Fill what is predicted of a row whose rates and tiers are known. opts: the row's model. */
int hl_step_predict(const struct hl_step_model_opts *opts, const struct hl_step_bench *b,
                    struct hl_step_row *row);

const char *hl_step_placement_name(enum hl_step_placement placement);

/* Also compares the digests of all rows: they saw the same calls, so they must hold the same bits. */
int hl_bench_step(const struct hl_step_bench_opts *opts, struct hl_step_bench *out);

#endif
