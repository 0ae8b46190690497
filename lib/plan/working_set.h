/*
 * working_set.h: what a transformer's shape needs beside the model state, per rank.
 */
#ifndef HL_WORKING_SET_H
#define HL_WORKING_SET_H

#include "haul/plan.h"

/* Buffers of one unit each that the planner counts: what an engine with the default options keeps. */
enum {
    HL_WINDOW_BUFFERS = 2,   /* one held, one on its way */
    HL_GRADIENT_BUFFERS = 2, /* FP32: one being added to, one on its way out */
    HL_PUBLISH_SLOTS = 2,    /* new parameters on their way up (offload optimizer) */
    HL_LANDING_SLOTS = 3,    /* gradients waiting to be added to accumulators */
    HL_RING_SLOTS = 4        /* records on their way from and to nvme */
};

/* Bytes per element of a gradient at rest or on its way. */
uint32_t hl_plan_grad_bytes(const struct haul_plan_opts *opts);

/* 0, or -EINVAL with a text that names the field. layers must not be 0. */
int hl_shape_check(const struct haul_shape *shape);

/* Parameters of the largest unit: a block or the embedding. */
int hl_shape_largest_unit(const struct haul_shape *shape, uint64_t *out);

/* Bytes of activations on one rank in one micro-batch. */
int hl_shape_activations(const struct haul_shape *shape, enum haul_dtype dtype, int recompute,
                         uint64_t *out);

/**
 * The working set of one stage and offload.
 *
 * @param opts    [in]  checked options with a shape
 * @param stage   [in]  0..3
 * @param pages   [in]  bytes per element of a shard that are paged to nvme; 0: nothing is
 * @param out     [out] written only on success
 *
 * Errors     0, -EOVERFLOW
 */
int hl_working_set(const struct haul_plan_opts *opts, uint32_t stage, enum haul_offload offload,
                   uint64_t pages, struct haul_working_set *out);

#endif
