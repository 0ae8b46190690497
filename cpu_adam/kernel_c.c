/*
 * kernel_c.c: the reference. What is written here, operation by operation, is what every variant
 * computes: a rounding after each operator and each fmaf, none elsewhere.
 */
#include <math.h>

#include "kernel_table.h"

static float load(const void *src, enum hl_grad_form form, uint64_t i)
{
    uint16_t half;
    float f;

    if (form == HL_GRAD_FP32) {
        memcpy(&f, (const char *)src + 4 * i, 4);
        return f;
    }
    memcpy(&half, (const char *)src + 2 * i, 2);
    return form == HL_GRAD_BF16 ? hl_bf16_to_float(half) : hl_fp16_to_float(half);
}

static void store(void *dst, enum hl_grad_form form, uint64_t i, float value)
{
    uint16_t half;

    value = hl_float_canon(value);
    if (form == HL_GRAD_FP32) {
        memcpy((char *)dst + 4 * i, &value, 4);
        return;
    }
    half = form == HL_GRAD_BF16 ? hl_bf16_from_float(value) : hl_fp16_from_float(value);
    memcpy((char *)dst + 2 * i, &half, 2);
}

/* old + weight * (new - old), so that a steady input is a fixed point whatever weight rounds to. */
static float blend(float old, float weight, float new)
{
    return fmaf(weight, new, fmaf(-weight, old, old));
}

static float blend_square(float old, float weight, float new)
{
    return fmaf(weight * new, new, fmaf(-weight, old, old));
}

static float sign(float x)
{
    return x > 0 ? 1.0f : x < 0 ? -1.0f : x;
}

static void adam(const struct hl_step_consts *k, float g, float *p, float *m, float *v)
{
    *m = blend(*m, k->weight1, g);
    *v = blend_square(*v, k->weight2, g);
    *p = fmaf(-k->step_size, *m / fmaf(sqrtf(*v), k->denom_scale, k->eps), *p);
}

static void lion(const struct hl_step_consts *k, float g, float *p, float *m)
{
    *p = fmaf(-k->lr, sign(blend(*m, k->weight1, g)), *p);
    *m = blend(*m, k->weight2, g);
}

static void adagrad(const struct hl_step_consts *k, float g, float *p, float *v)
{
    *v = fmaf(g, g, *v);
    *p = fmaf(-k->step_size, g / (sqrtf(*v) + k->eps), *p);
}

static void sgd_momentum(const struct hl_step_consts *k, float g, float *p, float *m)
{
    *m = fmaf(k->momentum, *m, g);
    *p = fmaf(-k->lr, k->nesterov ? fmaf(k->momentum, *m, g) : *m, *p);
}

static void step_one(const struct hl_step_consts *k, float g, float *p, float *m, float *v)
{
    g *= k->grad_scale;
    if (k->kind == HL_STEP_ADAMW || k->kind == HL_STEP_LION)
        *p = fmaf(-k->decay, *p, *p);
    else
        g = fmaf(k->weight_decay, *p, g);
    switch (k->kind) {
    case HL_STEP_ADAMW:
    case HL_STEP_ADAM:
        adam(k, g, p, m, v);
        break;
    case HL_STEP_LION:
        lion(k, g, p, m);
        break;
    case HL_STEP_ADAGRAD:
        adagrad(k, g, p, v);
        break;
    case HL_STEP_SGD_MOMENTUM:
        sgd_momentum(k, g, p, m);
        break;
    default:
        *p = fmaf(-k->lr, g, *p);
    }
}

static float load_master(const struct hl_step_consts *k, const struct hl_step_range *r, uint64_t i)
{
    uint16_t hi, lo;

    if (k->param != HL_PARAM_SPLIT)
        return load(r->master, HL_GRAD_FP32, i);
    memcpy(&hi, (char *)r->param + 2 * i, 2);
    memcpy(&lo, (char *)r->master + 2 * i, 2);
    return hl_float_from_bits(hl_split_join(hi, lo));
}

static void store_master(const struct hl_step_consts *k, const struct hl_step_range *r, uint64_t i,
                         float p)
{
    uint16_t lo = hl_split_lo(hl_float_bits(hl_float_canon(p)));

    if (k->param == HL_PARAM_SPLIT)
        memcpy((char *)r->master + 2 * i, &lo, 2);
    else
        store(r->master, HL_GRAD_FP32, i, p);
    if (k->param == HL_PARAM_FP16)
        store(r->param, HL_GRAD_FP16, i, p);
    else if (k->param != HL_PARAM_NONE)
        store(r->param, HL_GRAD_BF16, i, p); /* hi of split is the BF16 parameter */
}

static float load_moment(const struct hl_step_consts *k, const void *src, uint64_t i)
{
    if (!src)
        return 0;
    return load(src, k->moment == HL_MOMENT_FP32 ? HL_GRAD_FP32 : HL_GRAD_BF16, i);
}

/* random: 16 bits, added below the last bit that is kept. */
static void store_moment(const struct hl_step_consts *k, void *dst, uint64_t i, float x,
                         uint32_t random)
{
    uint16_t half;

    if (!dst)
        return;
    if (k->moment == HL_MOMENT_FP32) {
        store(dst, HL_GRAD_FP32, i, x);
        return;
    }
    half = (uint16_t)((hl_float_bits(hl_float_canon(x)) + random) >> 16);
    memcpy((char *)dst + 2 * i, &half, 2);
}

void hl_step_c(const struct hl_step_consts *k, const struct hl_step_range *r)
{
    uint64_t key = k->moment == HL_MOMENT_BF16 ? hl_round_key_at(k->key, r->first) : 0;

    for (uint64_t i = 0; i < r->n; i++) {
        float p = load_master(k, r, i), m = load_moment(k, r->m, i), v = load_moment(k, r->v, i);
        uint32_t random = hl_round_bits(key, (uint32_t)(r->first + i));

        step_one(k, load(r->grad, k->grad, i), &p, &m, &v);
        store_master(k, r, i, p);
        store_moment(k, r->m, i, m, random & 0xffffu);
        store_moment(k, r->v, i, v, random >> 16);
    }
}

static int all_finite(const void *src, enum hl_grad_form form, uint64_t i, uint64_t end)
{
    for (; i < end; i++)
        if (!isfinite(load(src, form, i)))
            return 0;
    return 1;
}

float hl_sumsq_piece(const void *src, enum hl_grad_form form, uint64_t begin, uint64_t end)
{
    float lanes[16] = {0};

    return hl_sumsq_finish(lanes, src, form, begin, begin, end);
}

float hl_sumsq_finish(float lanes[16], const void *src, enum hl_grad_form form, uint64_t begin,
                      uint64_t done, uint64_t end)
{
    for (; done < end; done++) {
        float x = load(src, form, done);
        lanes[done % 16] = fmaf(x, x, lanes[done % 16]);
    }
    for (int apart = 8; apart; apart /= 2)
        for (int i = 0; i < apart; i++)
            lanes[i] += lanes[i + apart];
    /* An Inf or NaN always shows in the sum, so only such a sum needs the second look. */
    if (!isfinite(lanes[0]) && !all_finite(src, form, begin, end))
        return hl_float_from_bits(HL_NAN_FP32);
    return lanes[0];
}

void hl_sumsq_c(float *partial, const void *src, enum hl_grad_form form, uint64_t n)
{
    uint64_t size = HAUL_NORM_BLOCK;

    for (uint64_t at = 0; at < n; at += size) {
        *partial++ = hl_sumsq_piece((const char *)src + at * hl_grad_form_bytes(form), form, 0,
                                    n - at < size ? n - at : size);
    }
}

void hl_accumulate_c(float *acc, const void *src, enum hl_grad_form form, uint64_t n, int first)
{
    for (uint64_t i = 0; i < n; i++) {
        float x = load(src, form, i);
        store(acc, HL_GRAD_FP32, i, first ? x : load(acc, HL_GRAD_FP32, i) + x);
    }
}

void hl_convert_c(void *dst, enum hl_grad_form dst_form, const void *src,
                  enum hl_grad_form src_form, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        store(dst, dst_form, i, load(src, src_form, i));
}

#define HL_X_GRAD(form)                                                                            \
    static void sumsq_##form(float *partial, const void *src, uint64_t n)                          \
    {                                                                                              \
        hl_sumsq_c(partial, src, HL_GRAD_##form, n);                                               \
    }                                                                                              \
    static void accumulate_##form(float *acc, const void *src, uint64_t n, int first)              \
    {                                                                                              \
        hl_accumulate_c(acc, src, HL_GRAD_##form, n, first);                                       \
    }                                                                                              \
    static void convert_FP32_##form(void *dst, const void *src, uint64_t n)                        \
    {                                                                                              \
        hl_convert_c(dst, HL_GRAD_FP32, src, HL_GRAD_##form, n);                                   \
    }                                                                                              \
    static void convert_BF16_##form(void *dst, const void *src, uint64_t n)                        \
    {                                                                                              \
        hl_convert_c(dst, HL_GRAD_BF16, src, HL_GRAD_##form, n);                                   \
    }                                                                                              \
    static void convert_FP16_##form(void *dst, const void *src, uint64_t n)                        \
    {                                                                                              \
        hl_convert_c(dst, HL_GRAD_FP16, src, HL_GRAD_##form, n);                                   \
    }
HL_X_GRAD(FP32)
HL_X_GRAD(BF16)
HL_X_GRAD(FP16)

#define HL_X_STEP(kind, grad, param, moment)                                                       \
    [HL_STEP_##kind][HL_GRAD_##grad][HL_PARAM_##param][HL_MOMENT_##moment] = hl_step_c,
#define HL_X_PARAM(kind, grad, param) HL_MOMENT_FORMS(HL_X_STEP, kind, grad, param)
#define HL_X_KIND(kind, grad)         HL_PARAM_FORMS(HL_X_PARAM, kind, grad)
#define HL_X(kind)                    HL_GRAD_FORMS(HL_X_KIND, kind)
#define HL_ROW(dst)                                                                                \
    {                                                                                              \
        convert_##dst##_FP32, convert_##dst##_BF16, convert_##dst##_FP16                           \
    }

const struct hl_kernels hl_kernels_c = {
    .step = {HL_STEP_KINDS(HL_X)},
    .sumsq = {sumsq_FP32, sumsq_BF16, sumsq_FP16},
    .accumulate = {accumulate_FP32, accumulate_BF16, accumulate_FP16},
    .convert = {HL_ROW(FP32), HL_ROW(BF16), HL_ROW(FP16)},
};
