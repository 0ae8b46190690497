/*
 * state_bytes.h: how many bytes of model state a rank holds, per tier and purpose.
 *
 * The one place where DESIGN's section 4 is written as code: the planner sums it over the model, the
 * engine over its units, so that the plan is the truth (R3).
 *
 * Bytes per element, by dtype of the parameter:
 *
 *                  params  grads           records                    hi
 *     BF16, FP16        2  2 (FP32: 4)     12: p 4, m 4, v 4          -
 *     BF16, split       2  2 (FP32: 4)     10: lo 2, m 4, v 4         2, where params rest on the device
 *                                                                     and records do not
 *     FP32              4  4               8: m 4, v 4; 12: p 4, m 4, v 4, where params rest on the
 *                                          device and records do not
 *
 * An FP32 parameter is its own master, so it needs no second p in the tier where it rests.
 * With passes > 1 FP32 accumulators take the place of the gradients at rest.
 */
#ifndef HL_STATE_BYTES_H
#define HL_STATE_BYTES_H

#include "haul/plan.h"

/* How one range of parameters is kept. */
struct hl_state_form {
    uint32_t stage; /* 0..3 */
    enum haul_offload offload;
    enum haul_dtype dtype;      /* of the parameters: BF16, FP16 or FP32 */
    enum haul_master master;    /* SPLIT: BF16 only; FP32 parameters ignore it */
    enum haul_dtype grad_dtype; /* of gradients at rest; FP32 parameters: always FP32 */
    uint32_t passes;            /* reduces in a step; 0 is read as 1 */
    int frozen;                 /* parameters only: no gradient, no record */
};

/* Bytes of one tier, by purpose. */
struct hl_state_bytes {
    uint64_t params;       /* whole in stages 0 to 2, the shard in stage 3 */
    uint64_t grads;        /* at rest between reduce and update; whole in stages 0 and 1 */
    uint64_t accumulators; /* FP32 sums over the passes; whole in stage 0 */
    uint64_t records;      /* whole in stage 0 */
    uint64_t hi;           /* host copy of the upper halves; whole in stage 0 */
};

/* Bytes per element of a dtype; 0 for NONE. */
uint32_t hl_plan_dtype_bytes(enum haul_dtype dtype);

/* Bytes of record per element in this form: 12, 10 or 8; 0 when frozen. */
uint32_t hl_state_record_bytes(const struct hl_state_form *form);

/**
 * Bytes of model state for a range of parameters, before anything goes to nvme.
 *
 * @param form         [in]  how it is kept
 * @param full_elems   [in]  elements of the range over all ranks
 * @param shard_elems  [in]  elements of it that this rank owns; full_elems when there is one rank
 * @param out          [out] (HAUL_NTIERS,) by enum haul_tier; nvme is all 0
 *
 * Errors     0, -EINVAL (text names the field), -EOVERFLOW (a product does not fit 63 bits)
 */
int hl_state_bytes(const struct hl_state_form *form, uint64_t full_elems, uint64_t shard_elems,
                   struct hl_state_bytes out[HAUL_NTIERS]);

/* Sum over the purposes. -EOVERFLOW past 63 bits. */
int hl_state_sum(const struct hl_state_bytes *bytes, uint64_t *out);

#endif
