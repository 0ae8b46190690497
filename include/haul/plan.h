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
    uint64_t batch; /* sequences per rank and micro-batch */
    int recompute;  /* 1: activations are recomputed per block in backward */
};

/**
 * Parameters of a GPT-2-style transformer of this shape: 12 L h^2 + 13 L h + (V + s) h + 2 h.
 *
 * Every linear layer has a bias, position embeddings are learned, the head is tied to the embedding.
 *
 * @param out  [out] parameters; written only on success
 *
 * Errors     0, -EINVAL (text names the field), -EOVERFLOW
 */
HAUL_API
HAUL_MUST_USE
int haul_shape_params(const struct haul_shape *shape, uint64_t *out);

struct haul_plan_opts {
    size_t struct_size;
    uint64_t params;         /* Ψ; 0 (default): what haul_shape_params() says of the shape */
    uint32_t ranks;          /* N >= 1; default 1 */
    uint32_t ranks_per_node; /* 0 (default): min(N, 8) */
    enum haul_dtype dtype;   /* parameters and gradients: BF16 (default), FP16, FP32 */
    enum haul_master master; /* default HAUL_MASTER_FP32; SPLIT: BF16 only */
    uint64_t device_mem_per_rank, host_mem_per_node, nvme_mem_per_node; /* default HAUL_UNLIMITED */
    struct haul_shape shape;    /* default: layers 0, recompute 1 */
    enum haul_dtype grad_dtype; /* gradients at rest; NONE (default): as dtype */
    uint32_t passes; /* reduces of one unit in a step, default 1; over 1: FP32 accumulators */
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
    double
        comm_elems_per_rank; /* elements per step: 2Ψ or 3Ψ, as the ZeRO paper counts for many ranks;
                                   a ring sends (N-1)/N of it, nothing when N = 1 */
    double comm_ratio;       /* to plain data parallel: 1 or 1.5 */
    struct haul_working_set working_set;
    int fits;                /* working set counted in */
    uint64_t short_by_bytes; /* 0 when it fits; else the sum of short_by_tier_bytes */
    uint64_t short_by_tier_bytes[HAUL_NTIERS]; /* device per rank, host and nvme per node */
};

#define HAUL_PLAN_ROWS 12

/**
 * Every stage x offload, in the order stage 0 none, optimizer, all, stage 1 none, ...
 *
 * Counted per parameter: 16-bit parameter 2, 16-bit gradient 2, record 12 (split 10, and 2 more on the
 * host where the parameters rest on the device). FP32: parameter 4, gradient 4, m 4, v 4 and no second
 * master, except where parameter and record rest in different tiers (offload optimizer): 4 more on the
 * host. Scratch space is counted on nvme; a durable store takes twice as much.
 *
 * Records, and with `all` parameter shards, that the host budget cannot hold go to nvme; gradients,
 * the host copy of upper halves and slots stay.
 *
 * @param opts  [in]  what to plan
 * @param rows  [out] HAUL_PLAN_ROWS rows; written only on success
 *
 * Threads    any
 * Blocks     no
 * Errors     0, -EINVAL (text names the argument), -EOVERFLOW (a product does not fit 63 bits),
 *            HAUL_E_ABI
 * Source     Rajbhandari et al. 2020 (ZeRO), table 1; Korthikanti et al. 2022 (activations)
 */
HAUL_API
HAUL_MUST_USE
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
