/*
 * haul/plan.h: the arithmetic of memory and traffic, before anything is bought or reserved.
 *
 * Counts are exact integers. A division that does not come out even (parameters by ranks) is rounded
 * up: the fullest rank counts.
 */
#ifndef HAUL_PLAN_H
#define HAUL_PLAN_H

#include "haul/error.h"
#include "haul/optim.h"

#ifdef __cplusplus
extern "C" {
#endif

enum haul_offload { HAUL_OFFLOAD_NONE = 0, HAUL_OFFLOAD_OPTIMIZER, HAUL_OFFLOAD_ALL };

enum haul_tier { HAUL_TIER_DEVICE = 0, HAUL_TIER_HOST, HAUL_TIER_NVME, HAUL_NTIERS };

/* A budget without bound. */
#define HAUL_UNLIMITED UINT64_MAX

/* A decoder-only transformer. layers = 0: shape not given, model state only. */
struct haul_shape {
    uint64_t layers, hidden, heads, vocab, seq;
    uint64_t batch;    /* sequences per rank and micro-batch */
    int recompute;     /* 1: activations are recomputed per block in backward */
};

struct haul_plan_opts {
    size_t struct_size;
    uint64_t params; /* Ψ */
    uint32_t ranks;  /* N >= 1 */
    uint32_t ranks_per_node; /* 0: min(N, 8) */
    enum haul_dtype dtype; /* parameters and gradients: BF16 (default), FP16, FP32 */
    enum haul_master master;
    uint64_t device_mem_per_rank, host_mem_per_node, nvme_mem_per_node; /* default HAUL_UNLIMITED */
    struct haul_shape shape;
};

HAUL_API
void haul_plan_opts_init(struct haul_plan_opts *opts);

/* Bytes beside the model state; all zero when no shape was given. Per rank. */
struct haul_working_set {
    uint64_t window_device_bytes;
    uint64_t gradient_window_device_bytes;
    uint64_t activations_device_bytes;           /* as chosen by shape.recompute */
    uint64_t activations_full_device_bytes;      /* nothing recomputed */
    uint64_t activations_recompute_device_bytes; /* each block recomputed */
    uint64_t slots_host_bytes;
};

struct haul_plan_row {
    uint32_t stage; /* 0..3 */
    enum haul_offload offload;
    uint64_t device_bytes_per_rank; /* model state only */
    uint64_t host_bytes_per_node;
    uint64_t nvme_bytes_per_node;
    double comm_elems_per_rank; /* elements per step: 2Ψ or 3Ψ */
    double comm_ratio;          /* to plain data parallel: 1 or 1.5 */
    struct haul_working_set working_set;
    int fits;                   /* working set counted in */
    uint64_t short_by_bytes;    /* 0 when it fits; else the sum of what lacks per tier */
};

#define HAUL_PLAN_ROWS 12

/**
 * Every stage x offload, in the order stage 0 none, optimizer, all, stage 1 none, ...
 *
 * Records, and with `all` parameter shards, that the host budget cannot hold go to nvme.
 *
 * @param opts  [in]  what to plan
 * @param rows  [out] HAUL_PLAN_ROWS rows; written only on success
 *
 * Threads    any
 * Blocks     no
 * Errors     0, -EINVAL (text names the argument), -EOVERFLOW (a product does not fit 64 bits)
 * Source     Rajbhandari et al. 2020 (ZeRO), table 1; Korthikanti et al. 2022 (activations)
 */
HAUL_API HAUL_MUST_USE
int haul_plan_rows(const struct haul_plan_opts *opts, struct haul_plan_row rows[HAUL_PLAN_ROWS]);

/* One line of a ledger: so many bytes in that tier for that purpose, per rank. */
struct haul_ledger_line {
    enum haul_tier tier;
    char purpose[32];
    uint64_t bytes;
};

#ifdef __cplusplus
}
#endif
#endif
