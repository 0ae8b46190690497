/*
 * layout.h: where each tensor of a unit stands in its flat arrays, and how the arrays are cut by rank.
 *
 * A unit's tensors are sorted into four spans of one kind each. A span is a flat array in tensor order;
 * tensors start on HL_TENSOR_ALIGN_ELEMS boundaries, and the span is padded so that every rank's shard
 * is as long as any other's. Padding holds zeros, and takes no part in digest or checkpoint.
 *
 *     TRAIN16   16-bit parameters that are trained: gradient and record
 *     TRAIN32   FP32 parameters that are trained: gradient and record
 *     FROZEN16  no gradient, no record
 *     FROZEN32
 */
#ifndef HL_LAYOUT_H
#define HL_LAYOUT_H

#include "haul/engine.h"

enum hl_span_kind { HL_TRAIN16 = 0, HL_TRAIN32, HL_FROZEN16, HL_FROZEN32, HL_NSPANS };
#define HL_NTRAIN 2 /* the first two have gradients and records */

/* 64 bytes in 16 bits, 128 in FP32: enough for every vector load and for cuBLAS. */
#define HL_TENSOR_ALIGN_ELEMS 32

struct hl_span {
    uint64_t used_elems;  /* sum of the tensors, no padding */
    uint64_t elems;       /* padded, a multiple of nranks * HL_TENSOR_ALIGN_ELEMS */
    uint64_t shard_elems; /* elems / nranks */
};

struct hl_place {
    enum hl_span_kind span;
    uint64_t first_elem; /* in the span */
    uint64_t elems;
    uint64_t logical_elem; /* index of element 0 in the unit as declared: keys the digest */
};

struct hl_layout {
    struct hl_span span[HL_NSPANS];
    uint64_t elems; /* all tensors, no padding */
};

/**
 * Lay out a unit.
 *
 * @param tensors  [in]  (ntensors,)
 * @param nranks   [in]  >= 1
 * @param places   [out] (ntensors,)
 * @param layout   [out]
 *
 * Errors  0, -EOVERFLOW (text names the tensor)
 */
int hl_layout_make(const struct haul_tensor *tensors, uint32_t ntensors, uint32_t nranks,
                   struct hl_place *places, struct hl_layout *layout);

/* Bytes of one element of a span's parameter: 2 or 4. */
static inline uint64_t hl_span_param_bytes(unsigned span)
{
    return span == HL_TRAIN16 || span == HL_FROZEN16 ? 2 : 4;
}

/* Elements of a tensor; -EOVERFLOW past 2^62. */
int hl_tensor_elems(const struct haul_tensor *t, uint64_t *out);

#endif
