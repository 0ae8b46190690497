/*
 * bounds.h: what a step cannot be faster than, and which configuration to take.
 *
 * Lower bounds, from bytes and operations over rates (the deferred step, which hides updates and paging
 * behind the forward pass only):
 *
 *     step >= max( max(forward, optimizer, nvme) + backward, h2d, d2h, host memory )
 *
 * Collectives between ranks are not in it, nor latencies: a real step is slower.
 */
#ifndef HL_BOUNDS_H
#define HL_BOUNDS_H

#include "haul/plan.h"

struct hl_rates {
    double flops_per_s;            /* useful, per rank */
    double link_bytes_per_s;       /* per rank and direction */
    double mem_bytes_per_s;        /* host memory, per node, with the copies running */
    double drive_read_bytes_per_s; /* all drives of a node together */
    double drive_write_bytes_per_s;
};

/* 140 TFLOP/s, 25 GB/s, 160 GB/s, 6 GB/s, 6 GB/s: where each comes from stands in bounds.c. */
void hl_rates_init(struct hl_rates *rates);

enum hl_bound {
    HL_BOUND_COMPUTE = 0,
    HL_BOUND_OPTIM,
    HL_BOUND_NVME,
    HL_BOUND_H2D,
    HL_BOUND_D2H,
    HL_BOUND_MEM,
    HL_NBOUNDS
};

const char *hl_bound_name(enum hl_bound bound);

struct hl_bounds {
    double forward_s, backward_s;
    double h2d_s, d2h_s;
    double optim_s;
    double mem_s; /* host memory altogether */
    double nvme_s;
    double step_s;
    enum hl_bound by;                           /* which term sets step_s */
    double nvme_read_bytes, nvme_written_bytes; /* per node and step */
};

/**
 * @param opts    [in]  as for haul_plan_rows()
 * @param row     [in]  one of its rows: stage and offload are read
 * @param tokens  [in]  per step, all ranks together; > 0
 * @param rates   [in]  each > 0
 *
 * Errors     0, -EINVAL, and those of haul_plan_rows()
 */
int hl_plan_bounds(const struct haul_plan_opts *opts, const struct haul_plan_row *row,
                   double tokens, const struct hl_rates *rates, struct hl_bounds *out);

/**
 * The row to take, or -1 when none fits.
 *
 * In this order: least offload; no nvme before nvme; least traffic between ranks; least to hold, page
 * and update off the device; lowest stage.
 */
int hl_plan_recommend(const struct haul_plan_row rows[HAUL_PLAN_ROWS]);

/* The row that lacks least: what to say when none fits. */
int hl_plan_nearest(const struct haul_plan_row rows[HAUL_PLAN_ROWS]);

#endif
