#include <string.h>

#include "fail.h"
#include "layout.h"

#define HL_MAX_ELEMS (UINT64_C(1) << 58)

int hl_tensor_elems(const struct haul_tensor *t, uint64_t *out)
{
    uint64_t n = 1;

    for (uint32_t i = 0; i < t->ndims; i++)
        if (__builtin_mul_overflow(n, t->shape[i], &n) || n > HL_MAX_ELEMS)
            return hl_fail(-EOVERFLOW, "tensor %s: its shape has more than 2^58 elements", t->name);
    *out = n;
    return 0;
}

static enum hl_span_kind span_of(const struct haul_tensor *t)
{
    if (t->dtype == HAUL_FP32)
        return t->frozen ? HL_FROZEN32 : HL_TRAIN32;
    return t->frozen ? HL_FROZEN16 : HL_TRAIN16;
}

static uint64_t round_up(uint64_t n, uint64_t step)
{
    return (n + step - 1) / step * step;
}

int hl_layout_make(const struct haul_tensor *tensors, uint32_t ntensors, uint32_t nranks,
                   struct hl_place *places, struct hl_layout *layout)
{
    struct hl_layout lay;

    memset(&lay, 0, sizeof lay);
    for (uint32_t i = 0; i < ntensors; i++) {
        struct hl_place *pl = &places[i];
        int rc = hl_tensor_elems(&tensors[i], &pl->elems);
        if (rc < 0)
            return rc;
        pl->span = span_of(&tensors[i]);
        struct hl_span *sp = &lay.span[pl->span];
        pl->first_elem = sp->elems;
        pl->logical_elem = lay.elems;
        sp->used_elems += pl->elems;
        sp->elems += round_up(pl->elems, HL_TENSOR_ALIGN_ELEMS);
        lay.elems += pl->elems;
        if (lay.elems > HL_MAX_ELEMS)
            return hl_fail(-EOVERFLOW, "tensor %s: its unit has more than 2^58 elements",
                           tensors[i].name);
    }
    for (unsigned s = 0; s < HL_NSPANS; s++) {
        struct hl_span *sp = &lay.span[s];
        sp->elems = round_up(sp->elems, (uint64_t)nranks * HL_TENSOR_ALIGN_ELEMS);
        sp->shard_elems = sp->elems / nranks;
    }
    *layout = lay;
    return 0;
}
