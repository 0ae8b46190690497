/*
 * working_set.c: parameters, units and activations of a decoder-only transformer.
 *
 * Activations after Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer
 * Models", with s sequence, b micro-batch, h hidden, a heads, L layers, v vocabulary, in 16 bits:
 *     a layer, everything kept      s b h (34 + 5 a s / h)            equation 2
 *     a layer, recomputed           2 s b h                           section 5
 *     input, output and logits      s b h + 4 s b h (1 + v / h)       section 4.3
 * Of the 34 and the 5, the dropout masks are 2 and 1 and stay one byte each in FP32; the rest doubles.
 * The logits are FP32 in the paper already.
 */
#include "working_set.h"
#include "checked.h"
#include "fail.h"
#include "state_bytes.h"

int hl_shape_check(const struct haul_shape *s)
{
    const struct {
        const char *name;
        uint64_t value;
    } fields[] = {{"layers", s->layers}, {"hidden", s->hidden}, {"heads", s->heads},
                  {"vocab", s->vocab},   {"seq", s->seq},       {"batch", s->batch}};

    for (unsigned i = 0; i < sizeof fields / sizeof fields[0]; i++)
        if (fields[i].value == 0)
            return hl_fail(-EINVAL, "shape: %s is 0; give at least 1", fields[i].name);
    if (s->hidden % s->heads != 0)
        return hl_fail(-EINVAL, "shape: hidden %llu is not a multiple of heads %llu",
                       (unsigned long long)s->hidden, (unsigned long long)s->heads);
    return 0;
}

static int too_large(void)
{
    return hl_fail(-EOVERFLOW, "shape: a product does not fit 63 bits; make it smaller");
}

/* 12 h^2 + 13 h: attention 4 h^2 + 4 h, MLP 8 h^2 + 5 h, two norms 4 h. */
static int block_params(uint64_t h, uint64_t *out)
{
    uint64_t hh = 0, n = 0;

    if (hl_mul(h, h, &hh) < 0 || hl_mul_add(&n, 12, hh) < 0 || hl_mul_add(&n, 13, h) < 0)
        return too_large();
    *out = n;
    return 0;
}

static int embedding_params(const struct haul_shape *s, uint64_t *out)
{
    uint64_t n = 0;

    if (hl_mul_add(&n, s->vocab, s->hidden) < 0 || hl_mul_add(&n, s->seq, s->hidden) < 0)
        return too_large();
    *out = n;
    return 0;
}

int haul_shape_params(const struct haul_shape *shape, uint64_t *out)
{
    uint64_t block = 0, n = 0;
    int rc;

    if (shape == NULL || out == NULL)
        return hl_fail(-EINVAL, "haul_shape_params: shape and out must not be NULL");
    rc = hl_shape_check(shape);
    if (rc == 0)
        rc = block_params(shape->hidden, &block);
    if (rc == 0)
        rc = embedding_params(shape, &n);
    if (rc < 0)
        return rc;
    if (hl_mul_add(&n, shape->layers, block) < 0 || hl_mul_add(&n, 2, shape->hidden) < 0)
        return too_large();
    *out = n;
    return 0;
}

int hl_shape_largest_unit(const struct haul_shape *shape, uint64_t *out)
{
    uint64_t block = 0, embedding = 0;
    int rc = block_params(shape->hidden, &block);

    if (rc == 0)
        rc = embedding_params(shape, &embedding);
    if (rc < 0)
        return rc;
    *out = block > embedding ? block : embedding;
    return 0;
}

int hl_shape_activations(const struct haul_shape *s, enum haul_dtype dtype, int recompute,
                         uint64_t *out)
{
    const int wide = dtype == HAUL_FP32;
    uint64_t sb, sbh, scores, layer = 0, total = 0;

    if (hl_mul(s->seq, s->batch, &sb) < 0 || hl_mul(sb, s->hidden, &sbh) < 0 ||
        hl_mul(sb, s->heads, &scores) < 0 || hl_mul(scores, s->seq, &scores) < 0)
        return too_large();
    if (hl_mul_add(&layer, wide ? 66 : 34, sbh) < 0 || hl_mul_add(&layer, wide ? 9 : 5, scores) < 0)
        return too_large();
    if (hl_mul_add(&total, recompute ? 1 : s->layers, layer) < 0)
        return too_large();
    if (recompute) {
        uint64_t input;

        if (hl_mul(sbh, wide ? 4 : 2, &input) < 0 || hl_mul_add(&total, s->layers, input) < 0)
            return too_large();
    }
    uint64_t logits;

    if (hl_mul_add(&total, wide ? 9 : 5, sbh) < 0 || hl_mul(sb, s->vocab, &logits) < 0 ||
        hl_mul_add(&total, 4, logits) < 0)
        return too_large();
    *out = total;
    return 0;
}

/* Bytes of host buffers per element of the largest shard: what is on its way. */
static uint64_t slot_bytes(const struct haul_plan_opts *o, enum haul_offload offload,
                           uint64_t pages)
{
    uint64_t bytes = HL_RING_SLOTS * pages;

    if (offload == HAUL_OFFLOAD_NONE)
        return 0;
    /* split publishes from the host copy of upper halves, FP32 from the record */
    if (offload == HAUL_OFFLOAD_OPTIMIZER && o->dtype != HAUL_FP32 && o->master == HAUL_MASTER_FP32)
        bytes += HL_PUBLISH_SLOTS * hl_plan_dtype_bytes(o->dtype);
    if (o->passes > 1)
        bytes += HL_LANDING_SLOTS * hl_plan_grad_bytes(o);
    return bytes;
}

/* Per element of the largest unit: buffers the trainer adds into, and one in the dtype that travels
 * where that is another. */
static uint64_t gradient_bytes(const struct haul_plan_opts *o)
{
    const uint64_t travels = hl_plan_grad_bytes(o);

    return HL_GRADIENT_BUFFERS * 4 + (travels != 4 ? travels : 0);
}

int hl_working_set(const struct haul_plan_opts *o, uint32_t stage, enum haul_offload offload,
                   uint64_t pages, struct haul_working_set *out)
{
    const int rests_whole = offload != HAUL_OFFLOAD_ALL && (stage < 3 || o->ranks == 1);
    struct haul_working_set w = {0};
    uint64_t unit = 0, shard;
    int rc = hl_shape_largest_unit(&o->shape, &unit);

    if (rc == 0)
        rc = hl_shape_activations(&o->shape, o->dtype, 0, &w.activations_full_device_bytes);
    if (rc == 0)
        rc = hl_shape_activations(&o->shape, o->dtype, 1, &w.activations_recompute_device_bytes);
    if (rc < 0)
        return rc;
    shard = stage == 0 ? unit : hl_div_up(unit, o->ranks);
    if (hl_mul(shard, slot_bytes(o, offload, pages), &w.slots_host_bytes) < 0 ||
        hl_mul(unit, gradient_bytes(o), &w.gradient_window_device_bytes) < 0)
        return too_large();
    if (!rests_whole &&
        hl_mul(unit, HL_WINDOW_BUFFERS * hl_plan_dtype_bytes(o->dtype), &w.window_device_bytes) < 0)
        return too_large();
    w.activations_device_bytes =
        o->shape.recompute ? w.activations_recompute_device_bytes : w.activations_full_device_bytes;
    *out = w;
    return 0;
}
