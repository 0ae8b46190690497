/*
 * kernel_body.inc.h: every vector kernel, written once over names that the including file defines:
 *
 *   VW                          lanes of a vector: 4, 8 or 16
 *   vf, vi, vp                  VW floats, VW 32-bit integers, twice VW 16-bit halves
 *   vf_set1 vf_load vf_store vf_add vf_mul vf_div vf_sqrt
 *   vf_fma(a, b, c)             a * b + c, one rounding
 *   vf_canon(x)                 NaN becomes 7fc00000
 *   vf_sign(x)                  1, -1, or x itself when it is 0 or NaN
 *   vf_bits vf_of_bits          between vf and vi
 *   vi_set1 vi_iota vi_add vi_xor vi_and vi_mul vi_srl
 *   vp_load vp_store            unaligned
 *   vp_sub vp_srl vp_zero
 *   vi_zip(lo, hi, a, b)        a = lo | hi << 16 of the first VW halves, b of the others
 *   vp_low(a, b), vp_high       lower, upper 16 bits of each lane of a, then of b
 *   vf_of_fp16(h, a, b), vp_fp16(a, b)   half to even
 *   vx_stream_line(dst, h)      32 halves (vp[16 / VW]) to a cache line, around the cache
 *   vx_prefetch(p), vx_fence()  the latter orders streamed stores
 *   KERNELS                     name of the table that this file defines
 *
 * Hot path: no calls but to the reference for what does not fill 32 elements.
 */
#include "kernel_table.h"

#define INLINE     static inline __attribute__((always_inline))
#define STEP       32   /* elements of one round: a cache line of halves */
#define AHEAD      2816 /* bytes; 1 KiB is up to 15% slower, none 7% (haul bench adam) */
#define STREAMS    2    /* of the norm: chains of fmaf that overlap */
#define NORM_AHEAD 4096
#define UNROLL     _Pragma("GCC unroll 8")

/* What the reference negates is negated here once; valgrind also gets the sign of zero wrong in fnma. */
struct consts {
    vf grad_scale, weight_decay, weight1, weight2, denom_scale, eps, momentum;
    vf neg_lr, neg_decay, neg_weight1, neg_weight2, neg_step_size;
    vi key0, key1;
};

struct state {
    vf p, m, v;
};

/* 2 * VW elements. Halves are packed and unpacked by pairs of vectors, which takes half the shuffles. */
struct pair {
    vf a, b;
};

INLINE struct pair load_form(enum hl_grad_form form, const void *src, uint64_t i)
{
    struct pair x;

    if (form == HL_GRAD_FP32) {
        x.a = vf_load((const char *)src + 4 * i);
        x.b = vf_load((const char *)src + 4 * (i + VW));
        return x;
    }
    vp h = vp_load((const char *)src + 2 * i);
    if (form == HL_GRAD_FP16) {
        vf_of_fp16(h, x.a, x.b);
        return x;
    }
    vi a, b;
    vi_zip(vp_zero(), h, a, b);
    x.a = vf_of_bits(a);
    x.b = vf_of_bits(b);
    return x;
}

INLINE struct pair canon(struct pair x)
{
    x.a = vf_canon(x.a);
    x.b = vf_canon(x.b);
    return x;
}

/* Upper halves of x, after adding below the last bit that is kept. */
INLINE vp upper(struct pair x, vi add_a, vi add_b)
{
    return vp_high(vi_add(vf_bits(x.a), add_a), vi_add(vf_bits(x.b), add_b));
}

/* x is canonical */
INLINE vp narrow(enum hl_grad_form form, struct pair x)
{
    if (form == HL_GRAD_FP16)
        return vp_fp16(x.a, x.b);
    return upper(x, vi_set1(0x8000), vi_set1(0x8000));
}

/* x is canonical */
INLINE void store_form(enum hl_grad_form form, void *dst, uint64_t i, struct pair x)
{
    if (form == HL_GRAD_FP32) {
        vf_store((char *)dst + 4 * i, x.a);
        vf_store((char *)dst + 4 * (i + VW), x.b);
    } else {
        vp_store((char *)dst + 2 * i, narrow(form, x));
    }
}

INLINE vf blend(vf old, vf weight, vf neg_weight, vf new)
{
    return vf_fma(weight, new, vf_fma(neg_weight, old, old));
}

INLINE vf blend_square(vf old, vf weight, vf neg_weight, vf new)
{
    return vf_fma(vf_mul(weight, new), new, vf_fma(neg_weight, old, old));
}

INLINE struct state step_lanes(enum hl_step_kind kind, int nesterov, const struct consts *k, vf g,
                               struct state s)
{
    vf x;

    g = vf_mul(g, k->grad_scale);
    if (kind == HL_STEP_ADAMW || kind == HL_STEP_LION)
        s.p = vf_fma(k->neg_decay, s.p, s.p);
    else
        g = vf_fma(k->weight_decay, s.p, g);
    switch (kind) {
    case HL_STEP_ADAMW:
    case HL_STEP_ADAM:
        s.m = blend(s.m, k->weight1, k->neg_weight1, g);
        s.v = blend_square(s.v, k->weight2, k->neg_weight2, g);
        x = vf_div(s.m, vf_fma(vf_sqrt(s.v), k->denom_scale, k->eps));
        s.p = vf_fma(k->neg_step_size, x, s.p);
        break;
    case HL_STEP_LION:
        s.p = vf_fma(k->neg_lr, vf_sign(blend(s.m, k->weight1, k->neg_weight1, g)), s.p);
        s.m = blend(s.m, k->weight2, k->neg_weight2, g);
        break;
    case HL_STEP_ADAGRAD:
        s.v = vf_fma(g, g, s.v);
        x = vf_div(g, vf_add(vf_sqrt(s.v), k->eps));
        s.p = vf_fma(k->neg_step_size, x, s.p);
        break;
    case HL_STEP_SGD_MOMENTUM:
        s.m = vf_fma(k->momentum, s.m, g);
        s.p = vf_fma(k->neg_lr, nesterov ? vf_fma(k->momentum, s.m, g) : s.m, s.p);
        break;
    default:
        s.p = vf_fma(k->neg_lr, g, s.p);
    }
    return s;
}

INLINE vi mix32(vi x)
{
    x = vi_xor(x, vi_srl(x, 16));
    x = vi_mul(x, vi_set1(0x7feb352d));
    x = vi_xor(x, vi_srl(x, 15));
    x = vi_mul(x, vi_set1((int)0x846ca68bu));
    return vi_xor(x, vi_srl(x, 16));
}

INLINE vi random_at(const struct consts *k, uint32_t element)
{
    vi x = vi_add(vi_set1((int)element), vi_iota());

    return mix32(vi_add(mix32(vi_xor(x, k->key0)), k->key1));
}

INLINE int has_m(enum hl_step_kind kind)
{
    return kind != HL_STEP_ADAGRAD && kind != HL_STEP_SGD;
}

INLINE int has_v(enum hl_step_kind kind)
{
    return kind == HL_STEP_ADAMW || kind == HL_STEP_ADAM || kind == HL_STEP_ADAGRAD;
}

INLINE struct pair load_master(enum hl_param_form form, const struct hl_step_range *r, uint64_t i)
{
    struct pair p;
    vi a, b;

    if (form != HL_PARAM_SPLIT)
        return load_form(HL_GRAD_FP32, r->master, i);
    vp hi = vp_load((char *)r->param + 2 * i), lo = vp_load((char *)r->master + 2 * i);
    vi_zip(lo, vp_sub(hi, vp_srl(lo, 15)), a, b);
    p.a = vf_of_bits(a);
    p.b = vf_of_bits(b);
    return p;
}

/* Store the master, lower half or whole; what is published beside it is returned. p is canonical. */
INLINE vp store_master(enum hl_param_form form, const struct hl_step_range *r, uint64_t i,
                       struct pair p)
{
    if (form == HL_PARAM_SPLIT)
        vp_store((char *)r->master + 2 * i, vp_low(vf_bits(p.a), vf_bits(p.b)));
    else
        store_form(HL_GRAD_FP32, r->master, i, p);
    return narrow(form == HL_PARAM_FP16 ? HL_GRAD_FP16 : HL_GRAD_BF16, p);
}

/* A whole line of published parameters at once: half a line streamed is a slow write. */
INLINE void publish(int stream, void *param, uint64_t at, const vp out[16 / VW])
{
    char *dst = (char *)param + 2 * at;

    if (stream) {
        vx_stream_line(dst, out);
        return;
    }
    UNROLL
    for (int j = 0; j < 16 / VW; j++)
        vp_store(dst + j * 4 * VW, out[j]);
}

INLINE struct pair load_moment(enum hl_moment_form form, const void *src, uint64_t i)
{
    return load_form(form == HL_MOMENT_FP32 ? HL_GRAD_FP32 : HL_GRAD_BF16, src, i);
}

/* shift: of the 32 random bits per element, which 16 are x's. x is canonical. */
INLINE void store_moment(enum hl_moment_form form, void *dst, uint64_t i, struct pair x,
                         const vi random[2], int shift)
{
    const vi mask = vi_set1(0xffff);

    if (form == HL_MOMENT_FP32)
        store_form(HL_GRAD_FP32, dst, i, x);
    else if (shift)
        vp_store((char *)dst + 2 * i, upper(x, vi_srl(random[0], 16), vi_srl(random[1], 16)));
    else
        vp_store((char *)dst + 2 * i, upper(x, vi_and(random[0], mask), vi_and(random[1], mask)));
}

/* Ask for the lines that lie distance past [p + at, p + at + bytes). */
INLINE void ahead(const void *p, uint64_t at, uint64_t bytes, uint64_t distance)
{
    UNROLL
    for (uint64_t line = 0; line < bytes; line += 64)
        vx_prefetch((const char *)p + at + distance + line);
}

INLINE void prefetch(enum hl_step_kind kind, enum hl_grad_form grad, enum hl_param_form param,
                     enum hl_moment_form moment, const struct hl_step_range *r, uint64_t i)
{
    uint64_t g = hl_grad_form_bytes(grad), s = hl_moment_bytes(moment);

    ahead(r->grad, g * i, g * STEP, AHEAD);
    if (has_m(kind))
        ahead(r->m, s * i, s * STEP, AHEAD);
    if (has_v(kind))
        ahead(r->v, s * i, s * STEP, AHEAD);
    if (param == HL_PARAM_SPLIT) {
        ahead(r->param, 2 * i, 2 * STEP, AHEAD);
        ahead(r->master, 2 * i, 2 * STEP, AHEAD);
    } else {
        ahead(r->master, 4 * i, 4 * STEP, AHEAD);
    }
}

INLINE struct consts widen_consts(const struct hl_step_consts *k, const struct hl_step_range *r)
{
    uint64_t key = hl_round_key_at(k->key, r->first);
    struct consts c = {
        .grad_scale = vf_set1(k->grad_scale),
        .weight_decay = vf_set1(k->weight_decay),
        .weight1 = vf_set1(k->weight1),
        .weight2 = vf_set1(k->weight2),
        .denom_scale = vf_set1(k->denom_scale),
        .eps = vf_set1(k->eps),
        .momentum = vf_set1(k->momentum),
        .neg_lr = vf_set1(-k->lr),
        .neg_decay = vf_set1(-k->decay),
        .neg_weight1 = vf_set1(-k->weight1),
        .neg_weight2 = vf_set1(-k->weight2),
        .neg_step_size = vf_set1(-k->step_size),
        .key0 = vi_set1((int)(uint32_t)key),
        .key1 = vi_set1((int)(uint32_t)(key >> 32)),
    };
    return c;
}

INLINE void step_32(enum hl_step_kind kind, enum hl_grad_form grad, enum hl_param_form param,
                    enum hl_moment_form moment, int stream, int nesterov, const struct consts *c,
                    const struct hl_step_range *r, uint64_t at)
{
    vp out[16 / VW];

    UNROLL
    for (int j = 0; j < 16 / VW; j++) {
        const uint64_t i = at + (uint64_t)j * 2 * VW;
        const uint32_t element = (uint32_t)(r->first + i);
        struct pair g = load_form(grad, r->grad, i), p = load_master(param, r, i), m = p, v = p;
        vi random[2];

        if (has_m(kind))
            m = load_moment(moment, r->m, i);
        if (has_v(kind))
            v = load_moment(moment, r->v, i);
        struct state a = step_lanes(kind, nesterov, c, g.a, (struct state){p.a, m.a, v.a});
        struct state b = step_lanes(kind, nesterov, c, g.b, (struct state){p.b, m.b, v.b});
        out[j] = store_master(param, r, i, canon((struct pair){a.p, b.p}));
        if (moment == HL_MOMENT_BF16) {
            random[0] = random_at(c, element);
            random[1] = random_at(c, element + VW);
        }
        if (has_m(kind))
            store_moment(moment, r->m, i, canon((struct pair){a.m, b.m}), random, 0);
        if (has_v(kind))
            store_moment(moment, r->v, i, canon((struct pair){a.v, b.v}), random, 16);
    }
    if (param != HL_PARAM_NONE)
        publish(stream, r->param, at, out);
}

/* Elements before param reaches a cache line; UINT64_MAX when it never does. */
INLINE uint64_t elems_to_line(const void *param)
{
    uint64_t past = (uintptr_t)param & 63;

    return past & 1 ? UINT64_MAX : past ? (64 - past) / 2 : 0;
}

INLINE void step_range(enum hl_step_kind kind, enum hl_grad_form grad, enum hl_param_form param,
                       enum hl_moment_form moment, const struct hl_step_consts *k,
                       const struct hl_step_range *range)
{
    const struct hl_step_range r = *range; /* stores cannot alias it */
    const struct consts c = widen_consts(k, &r);
    int stream = k->stream && (param == HL_PARAM_BF16 || param == HL_PARAM_FP16);
    int nesterov = k->nesterov;
    uint64_t i = stream ? elems_to_line(r.param) : 0;

    if (i > r.n) {
        stream = 0;
        i = 0;
    }
    if (i) {
        struct hl_step_range head = hl_step_part(k, &r, 0, i);
        hl_step_c(k, &head);
    }
    for (; r.n - i >= STEP; i += STEP) {
        prefetch(kind, grad, param, moment, &r, i);
        step_32(kind, grad, param, moment, stream, nesterov, &c, &r, i);
    }
    if (stream)
        vx_fence();
    if (i < r.n) {
        struct hl_step_range tail = hl_step_part(k, &r, i, r.n - i);
        hl_step_c(k, &tail);
    }
}

/* One block of each of nstreams streams, stride bytes apart, so that their chains of fmaf overlap. */
INLINE void sumsq_blocks(enum hl_grad_form form, float *const *partial, const char *src,
                         uint64_t stride, int nstreams, uint64_t n)
{
    /* A pair may be more than the 16 lanes of the sum: then its second half follows its first. */
    const uint64_t group = 2 * VW > 16 ? 2 * VW : 16, lanesets = 16 / VW;
    const uint64_t size = hl_grad_form_bytes(form);
    vf acc[STREAMS][16 / VW];
    float lanes[16];

    for (int s = 0; s < nstreams; s++)
        for (int j = 0; j < 16 / VW; j++)
            acc[s][j] = vf_set1(0);
    for (uint64_t i = 0; i + group <= n; i += group) {
        UNROLL
        for (int s = 0; s < nstreams; s++) {
            ahead(src + (uint64_t)s * stride, i * size, group * size, NORM_AHEAD);
            UNROLL
            for (uint64_t j = 0; j < group / VW; j += 2) {
                struct pair x = load_form(form, src + (uint64_t)s * stride, i + j * VW);
                vf *to = &acc[s][j % lanesets], *next = &acc[s][(j + 1) % lanesets];

                *to = vf_fma(x.a, x.a, *to);
                *next = vf_fma(x.b, x.b, *next);
            }
        }
    }
    for (int s = 0; s < nstreams; s++) {
        for (int j = 0; j < 16 / VW; j++)
            vf_store(lanes + j * VW, acc[s][j]);
        *partial[s] =
            hl_sumsq_finish(lanes, src + (uint64_t)s * stride, form, 0, n / group * group, n);
    }
}

/* Each stream is a stretch of blocks of its own: the hardware prefetches few long streams well, and many
 * short ones badly (haul bench adam --norm). */
INLINE void sumsq_range(enum hl_grad_form form, float *partial, const void *src, uint64_t n)
{
    const uint64_t block = HAUL_NORM_BLOCK, bytes = block * hl_grad_form_bytes(form);
    const uint64_t each = n / block / STREAMS;
    float *out[STREAMS];
    const char *at = src;

    for (int s = 0; s < STREAMS; s++)
        out[s] = partial + (uint64_t)s * each;
    for (uint64_t b = 0; b < each; b++, at += bytes) {
        sumsq_blocks(form, out, at, each * bytes, STREAMS, block);
        for (int s = 0; s < STREAMS; s++)
            out[s]++;
    }
    at = (const char *)src + STREAMS * each * bytes;
    out[0] = partial + STREAMS * each;
    for (n -= STREAMS * each * block; n; at += bytes, out[0]++) {
        uint64_t now = n < block ? n : block;

        sumsq_blocks(form, out, at, 0, 1, now);
        n -= now;
    }
}

INLINE void accumulate_range(enum hl_grad_form form, float *acc, const void *src, uint64_t n,
                             int first)
{
    uint64_t i = 0;

    for (; i + 2 * VW <= n; i += 2 * VW) {
        struct pair x = load_form(form, src, i);

        if (!first) {
            struct pair old = load_form(HL_GRAD_FP32, acc, i);
            x.a = vf_add(old.a, x.a);
            x.b = vf_add(old.b, x.b);
        }
        store_form(HL_GRAD_FP32, acc, i, canon(x));
    }
    hl_accumulate_c(acc + i, (const char *)src + i * hl_grad_form_bytes(form), form, n - i, first);
}

INLINE void convert_range(enum hl_grad_form to, enum hl_grad_form from, void *dst, const void *src,
                          uint64_t n)
{
    uint64_t i = 0;

    for (; i + 2 * VW <= n; i += 2 * VW)
        store_form(to, dst, i, canon(load_form(from, src, i)));
    hl_convert_c((char *)dst + i * hl_grad_form_bytes(to), to,
                 (const char *)src + i * hl_grad_form_bytes(from), from, n - i);
}

#define HL_DEFINE_STEP(kind, grad, param, moment)                                                  \
    static void step_##kind##_##grad##_##param##_##moment(const struct hl_step_consts *k,          \
                                                          const struct hl_step_range *r)           \
    {                                                                                              \
        step_range(HL_STEP_##kind, HL_GRAD_##grad, HL_PARAM_##param, HL_MOMENT_##moment, k, r);    \
    }
#define HL_DEFINE_PARAM(kind, grad, param) HL_MOMENT_FORMS(HL_DEFINE_STEP, kind, grad, param)
#define HL_DEFINE_GRAD(kind, grad)         HL_PARAM_FORMS(HL_DEFINE_PARAM, kind, grad)
#define HL_DEFINE_KIND(kind)               HL_GRAD_FORMS(HL_DEFINE_GRAD, kind)
HL_STEP_KINDS(HL_DEFINE_KIND)

#define HL_DEFINE_CONVERT(to, from)                                                                \
    static void convert_##to##_##from(void *dst, const void *src, uint64_t n)                      \
    {                                                                                              \
        convert_range(HL_GRAD_##to, HL_GRAD_##from, dst, src, n);                                  \
    }
#define HL_DEFINE_FORM(form)                                                                       \
    static void sumsq_##form(float *partial, const void *src, uint64_t n)                          \
    {                                                                                              \
        sumsq_range(HL_GRAD_##form, partial, src, n);                                              \
    }                                                                                              \
    static void accumulate_##form(float *acc, const void *src, uint64_t n, int first)              \
    {                                                                                              \
        accumulate_range(HL_GRAD_##form, acc, src, n, first);                                      \
    }                                                                                              \
    HL_DEFINE_CONVERT(FP32, form)                                                                  \
    HL_DEFINE_CONVERT(BF16, form)                                                                  \
    HL_DEFINE_CONVERT(FP16, form)
HL_DEFINE_FORM(FP32)
HL_DEFINE_FORM(BF16)
HL_DEFINE_FORM(FP16)

#define HL_ENTRY(kind, grad, param, moment)                                                        \
    [HL_STEP_##kind][HL_GRAD_##grad][HL_PARAM_##param][HL_MOMENT_##moment] =                       \
        step_##kind##_##grad##_##param##_##moment,
#define HL_ENTRY_PARAM(kind, grad, param) HL_MOMENT_FORMS(HL_ENTRY, kind, grad, param)
#define HL_ENTRY_GRAD(kind, grad)         HL_PARAM_FORMS(HL_ENTRY_PARAM, kind, grad)
#define HL_ENTRY_KIND(kind)               HL_GRAD_FORMS(HL_ENTRY_GRAD, kind)
#define HL_ROW(to)                                                                                 \
    {                                                                                              \
        convert_##to##_FP32, convert_##to##_BF16, convert_##to##_FP16                              \
    }

const struct hl_kernels KERNELS = {
    .step = {HL_STEP_KINDS(HL_ENTRY_KIND)},
    .sumsq = {sumsq_FP32, sumsq_BF16, sumsq_FP16},
    .accumulate = {accumulate_FP32, accumulate_BF16, accumulate_FP16},
    .convert = {HL_ROW(FP32), HL_ROW(BF16), HL_ROW(FP16)},
};
