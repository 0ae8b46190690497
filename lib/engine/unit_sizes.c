/* unit_sizes.c: how large the pieces of a unit are, and in which dtype. */
#include "engine_state.h"

enum haul_dtype hl_span_dtype(const struct haul_engine *e, unsigned span)
{
    return hl_span_param_bytes(span) == 4 ? HAUL_FP32 : e->dtype16;
}

enum haul_dtype hl_travel_dtype(const struct haul_engine *e, unsigned span)
{
    return span == HL_TRAIN32 ? HAUL_FP32 : e->opts.grad_dtype;
}

enum haul_dtype hl_rest_dtype(const struct haul_engine *e, unsigned span)
{
    return e->opts.passes > 1 ? HAUL_FP32 : hl_travel_dtype(e, span);
}

uint64_t hl_param_span_offset(const struct haul_unit *u, unsigned span)
{
    uint64_t off = 0;

    for (unsigned s = 0; s < span; s++)
        off += u->layout.span[s].elems * hl_span_param_bytes(s);
    return off;
}

uint64_t hl_grad_span_offset(const struct haul_unit *u, unsigned span)
{
    uint64_t each = hl_plan_dtype_bytes(u->buffer_dtype);

    return span == HL_TRAIN16 ? 0 : u->layout.span[HL_TRAIN16].elems * each;
}

uint64_t hl_rest_span_offset(const struct haul_unit *u, unsigned span)
{
    uint64_t off = 0;

    for (unsigned s = 0; s < span; s++)
        off += u->rest[s].elems * hl_span_param_bytes(s);
    return off;
}

uint64_t hl_grad_rest_elems(const struct haul_unit *u, unsigned span)
{
    const struct haul_engine *e = u->engine;

    return e->opts.stage == 1 && e->opts.passes == 1 ? u->layout.span[span].elems
                                                     : u->own[span].elems;
}

char *hl_shard_grads(const struct haul_unit *u, unsigned span)
{
    return u->rest_grads[span] + (u->shard[span].first - u->own[span].first) *
                                     hl_plan_dtype_bytes(hl_rest_dtype(u->engine, span));
}

char *hl_own_params(const struct haul_unit *u, unsigned span)
{
    char *rest = u->rest_params[span];

    return rest ? rest + (u->own[span].first - u->rest[span].first) * hl_span_param_bytes(span)
                : NULL;
}

uint64_t hl_land_span_offset(const struct haul_unit *u, unsigned span)
{
    uint64_t each = hl_plan_dtype_bytes(hl_travel_dtype(u->engine, HL_TRAIN16));

    return span == HL_TRAIN16 ? 0 : u->own[HL_TRAIN16].elems * each;
}

uint64_t hl_land_bytes(const struct haul_unit *u)
{
    return hl_land_span_offset(u, HL_TRAIN32) + u->own[HL_TRAIN32].elems * 4;
}

uint64_t hl_norm_blocks(const struct haul_unit *u, unsigned span)
{
    return (u->layout.span[span].shard_elems + HAUL_NORM_BLOCK - 1) / HAUL_NORM_BLOCK;
}

uint64_t hl_gathered_bytes(const struct haul_unit *u)
{
    return hl_param_span_offset(u, HL_NSPANS);
}

uint64_t hl_grad_bytes(const struct haul_unit *u)
{
    return hl_grad_span_offset(u, HL_TRAIN32) + u->layout.span[HL_TRAIN32].elems * 4;
}

uint64_t hl_param_rest_bytes(const struct haul_unit *u)
{
    return hl_rest_span_offset(u, HL_NSPANS);
}

uint64_t hl_record_master_bytes(const struct haul_unit *u, unsigned span)
{
    if (span == HL_TRAIN16)
        return hl_unit_split(u, span) ? 2 : 4;
    /* An FP32 parameter that rests beside its record is its own master. */
    return u->offload == HAUL_OFFLOAD_OPTIMIZER ? 4 : 0;
}

uint64_t hl_record_bytes(const struct haul_unit *u)
{
    uint64_t bytes = 0;

    for (unsigned s = 0; s < HL_NTRAIN; s++)
        bytes += u->own[s].elems * (8 + hl_record_master_bytes(u, s));
    return bytes;
}

uint64_t hl_publish_offset32(const struct haul_unit *u)
{
    return hl_unit_split(u, HL_TRAIN16) ? 0 : u->own[HL_TRAIN16].elems * 2;
}

uint64_t hl_publish_bytes(const struct haul_unit *u)
{
    if (u->offload != HAUL_OFFLOAD_OPTIMIZER)
        return 0;
    return hl_publish_offset32(u) + (u->record_paged ? u->own[HL_TRAIN32].elems * 4 : 0);
}
