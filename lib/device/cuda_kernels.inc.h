/*
 * cuda_kernels.inc.h: every kernel, written once. The including file defines, for nvcc or for the host:
 *
 *   KERNEL(name, args, threads)   makes name##_body a kernel of that name
 *   DEVICE                        what stands before a function that kernels call
 *   UNROLL                        before a loop that must be unrolled
 *   f32_fma f32_mul f32_add f32_div f32_sqrt    one rounding each, to nearest, denormals are zero
 *   f32_bits f32_of_bits f32_of_half half_of_f32
 *   struct vec16 {x, y, z, w}, load16, store16  16 bytes at a 16-byte boundary
 *
 * A body is run for every block and thread. The operations and their order are those of
 * cpu_adam/kernel_c.c, which defines the bits (R1); a NaN that is stored becomes 7fc00000.
 */

DEVICE uint64_t bytes_of(enum hl_cuda_form form)
{
    return form == HL_CUDA_FP32 ? 4 : 2;
}

DEVICE float canon(float f)
{
    return f != f ? f32_of_bits(0x7fc00000u) : f;
}

DEVICE float widen(enum hl_cuda_form form, uint32_t half)
{
    return canon(form == HL_CUDA_BF16 ? f32_of_bits(half << 16) : f32_of_half((uint16_t)half));
}

/* BF16 is rounded half away from zero, FP16 half to even. */
DEVICE uint32_t narrow(enum hl_cuda_form form, float f)
{
    f = canon(f);
    if (form == HL_CUDA_BF16)
        return (f32_bits(f) + 0x8000u) >> 16;
    return f != f ? 0x7e00u : half_of_f32(f);
}

DEVICE uint32_t split_join(uint32_t hi, uint32_t lo)
{
    return (hi - (lo >> 15)) << 16 | lo;
}

/* ---- one element ---- */

DEVICE float load1(enum hl_cuda_form form, const void *src, uint64_t i)
{
    return form == HL_CUDA_FP32 ? ((const float *)src)[i] : widen(form, ((const uint16_t *)src)[i]);
}

DEVICE void store1(enum hl_cuda_form form, void *dst, uint64_t i, float f)
{
    if (form == HL_CUDA_FP32)
        ((float *)dst)[i] = canon(f);
    else
        ((uint16_t *)dst)[i] = (uint16_t)narrow(form, f);
}

/* ---- eight elements from i on, at a 16-byte boundary ---- */

DEVICE void unpack4(struct vec16 v, float out[4])
{
    out[0] = f32_of_bits(v.x);
    out[1] = f32_of_bits(v.y);
    out[2] = f32_of_bits(v.z);
    out[3] = f32_of_bits(v.w);
}

DEVICE struct vec16 pack4(const float in[4])
{
    struct vec16 v;

    v.x = f32_bits(canon(in[0]));
    v.y = f32_bits(canon(in[1]));
    v.z = f32_bits(canon(in[2]));
    v.w = f32_bits(canon(in[3]));
    return v;
}

/* Halves of eight elements, two in a word. */
DEVICE void unpack_halves(struct vec16 v, uint32_t out[8])
{
    const uint32_t word[4] = {v.x, v.y, v.z, v.w};

    UNROLL
    for (int k = 0; k < 8; k++)
        out[k] = k % 2 ? word[k / 2] >> 16 : word[k / 2] & 0xffffu;
}

DEVICE struct vec16 pack_halves(const uint32_t in[8])
{
    struct vec16 v;

    v.x = in[0] | in[1] << 16;
    v.y = in[2] | in[3] << 16;
    v.z = in[4] | in[5] << 16;
    v.w = in[6] | in[7] << 16;
    return v;
}

DEVICE void load8(enum hl_cuda_form form, const void *src, uint64_t i, float out[8])
{
    const char *at = (const char *)src + i * bytes_of(form);
    uint32_t half[8];

    if (form == HL_CUDA_FP32) {
        unpack4(load16(at), out);
        unpack4(load16(at + 16), out + 4);
        return;
    }
    unpack_halves(load16(at), half);
    UNROLL
    for (int k = 0; k < 8; k++)
        out[k] = widen(form, half[k]);
}

DEVICE void store8(enum hl_cuda_form form, void *dst, uint64_t i, const float in[8])
{
    char *at = (char *)dst + i * bytes_of(form);
    uint32_t half[8];

    if (form == HL_CUDA_FP32) {
        store16(at, pack4(in));
        store16(at + 16, pack4(in + 4));
        return;
    }
    UNROLL
    for (int k = 0; k < 8; k++)
        half[k] = narrow(form, in[k]);
    store16(at, pack_halves(half));
}

/* ---- convert and accumulate ---- */

DEVICE void convert(enum hl_cuda_form to, enum hl_cuda_form from, const struct hl_cuda_array *a,
                    uint64_t block, uint32_t thread)
{
    uint64_t begin = block * HL_CUDA_ELEMS, i;
    float x[8];

    if (a->aligned && begin + HL_CUDA_ELEMS <= a->n) {
        i = begin + 8 * thread;
        load8(from, a->src, i, x);
        store8(to, a->dst, i, x);
        return;
    }
    for (i = begin + thread; i < begin + HL_CUDA_ELEMS && i < a->n; i += HL_CUDA_THREADS)
        store1(to, a->dst, i, load1(from, a->src, i));
}

DEVICE void accumulate(enum hl_cuda_form from, const struct hl_cuda_array *a, uint64_t block,
                       uint32_t thread)
{
    uint64_t begin = block * HL_CUDA_ELEMS, i;
    float *acc = (float *)a->dst, x[8], sum[8];

    if (a->aligned && begin + HL_CUDA_ELEMS <= a->n) {
        i = begin + 8 * thread;
        load8(from, a->src, i, x);
        if (!a->first) {
            load8(HL_CUDA_FP32, acc, i, sum);
            UNROLL
            for (int k = 0; k < 8; k++)
                x[k] = f32_add(sum[k], x[k]);
        }
        store8(HL_CUDA_FP32, acc, i, x);
        return;
    }
    for (i = begin + thread; i < begin + HL_CUDA_ELEMS && i < a->n; i += HL_CUDA_THREADS) {
        x[0] = load1(from, a->src, i);
        store1(HL_CUDA_FP32, acc, i, a->first ? x[0] : f32_add(acc[i], x[0]));
    }
}

/* ---- what several ranks have sent ---- */

/* Half to even. */
DEVICE uint32_t narrow_even(enum hl_cuda_form form, float f)
{
    uint32_t bits = f32_bits(canon(f));

    return form == HL_CUDA_BF16 ? (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16 : narrow(form, f);
}

DEVICE void store8_even(enum hl_cuda_form form, void *dst, uint64_t i, const float in[8])
{
    uint32_t half[8];

    if (form == HL_CUDA_FP32) {
        store8(form, dst, i, in);
        return;
    }
    UNROLL
    for (int k = 0; k < 8; k++)
        half[k] = narrow_even(form, in[k]);
    store16((char *)dst + i * 2, pack_halves(half));
}

DEVICE void sum(enum hl_cuda_form form, const struct hl_cuda_array *a, uint64_t block,
                uint32_t thread)
{
    uint64_t begin = block * HL_CUDA_ELEMS, i;
    float all[8], x[8];

    if (a->aligned && begin + HL_CUDA_ELEMS <= a->n) {
        i = begin + 8 * thread;
        load8(form, a->src, i, all);
        for (int32_t r = 1; r < a->nparts; r++) {
            load8(form, a->src, (uint64_t)r * a->n + i, x);
            UNROLL
            for (int k = 0; k < 8; k++)
                all[k] = f32_add(all[k], x[k]);
        }
        store8_even(form, a->dst, i, all);
        return;
    }
    for (i = begin + thread; i < begin + HL_CUDA_ELEMS && i < a->n; i += HL_CUDA_THREADS) {
        all[0] = load1(form, a->src, i);
        for (int32_t r = 1; r < a->nparts; r++)
            all[0] = f32_add(all[0], load1(form, a->src, (uint64_t)r * a->n + i));
        if (form == HL_CUDA_FP32)
            store1(form, a->dst, i, all[0]);
        else
            ((uint16_t *)a->dst)[i] = (uint16_t)narrow_even(form, all[0]);
    }
}

/* ---- sum of squares ---- */

DEVICE int is_finite(float f)
{
    return (f32_bits(f) & 0x7f800000u) != 0x7f800000u;
}

DEVICE void square16(enum hl_cuda_form form, const void *src, uint64_t i, int aligned,
                     float lanes[16])
{
    float x[16];

    if (aligned) {
        load8(form, src, i, x);
        load8(form, src, i + 8, x + 8);
    } else {
        UNROLL
        for (int k = 0; k < 16; k++)
            x[k] = load1(form, src, i + (uint64_t)k);
    }
    UNROLL
    for (int k = 0; k < 16; k++)
        lanes[k] = f32_fma(x[k], x[k], lanes[k]);
}

/* Sixteen lanes, then pairs 8, 4, 2 and 1 apart (R1). */
DEVICE float sum_lanes(float lanes[16])
{
    UNROLL
    for (int k = 0; k < 8; k++)
        lanes[k] = f32_add(lanes[k], lanes[k + 8]);
    UNROLL
    for (int k = 0; k < 4; k++)
        lanes[k] = f32_add(lanes[k], lanes[k + 4]);
    lanes[0] = f32_add(lanes[0], lanes[2]);
    lanes[1] = f32_add(lanes[1], lanes[3]);
    return f32_add(lanes[0], lanes[1]);
}

DEVICE void sumsq(enum hl_cuda_form form, const struct hl_cuda_array *a, uint64_t block,
                  uint32_t thread)
{
    uint64_t b = block * HL_CUDA_SUMSQ_THREADS + thread, begin = b * HL_CUDA_NORM_BLOCK;
    uint64_t end = begin + HL_CUDA_NORM_BLOCK < a->n ? begin + HL_CUDA_NORM_BLOCK : a->n;
    float lanes[16], sum;
    uint64_t i = begin;
    int bad = 0;

    if (begin >= a->n)
        return;
    UNROLL
    for (int k = 0; k < 16; k++)
        lanes[k] = 0;
    for (; i + 16 <= end; i += 16)
        square16(form, a->src, i, a->aligned, lanes);
    UNROLL
    for (int k = 0; k < 16; k++)
        if (i + (uint64_t)k < end) {
            float x = load1(form, a->src, i + (uint64_t)k);
            lanes[k] = f32_fma(x, x, lanes[k]);
        }
    sum = sum_lanes(lanes);
    /* An Inf or NaN always shows in the sum, so only such a sum needs the second look. */
    if (!is_finite(sum))
        for (i = begin; i < end; i++)
            bad |= !is_finite(load1(form, a->src, i));
    ((float *)a->dst)[b] = bad ? f32_of_bits(0x7fc00000u) : sum;
}

/* ---- the optimizer ---- */

DEVICE float blend(float old, float weight, float x)
{
    return f32_fma(weight, x, f32_fma(-weight, old, old));
}

DEVICE void step_one(const struct hl_cuda_optim *a, float g, float *p, float *m, float *v)
{
    float denom;

    g = f32_mul(g, a->grad_scale);
    if (a->decoupled)
        *p = f32_fma(-a->decay, *p, *p);
    else
        g = f32_fma(a->weight_decay, *p, g);
    *m = blend(*m, a->weight1, g);
    *v = f32_fma(f32_mul(a->weight2, g), g, f32_fma(-a->weight2, *v, *v));
    denom = f32_fma(f32_sqrt(*v), a->denom_scale, a->eps);
    *p = f32_fma(-a->step_size, f32_div(*m, denom), *p);
}

DEVICE void load_master8(enum hl_cuda_param param, const struct hl_cuda_optim *a, uint64_t i,
                         float p[8])
{
    uint32_t hi[8], lo[8];

    if (param != HL_CUDA_PARAM_SPLIT) {
        load8(HL_CUDA_FP32, a->master, i, p);
        return;
    }
    unpack_halves(load16((const char *)a->param + 2 * i), hi);
    unpack_halves(load16((const char *)a->master + 2 * i), lo);
    UNROLL
    for (int k = 0; k < 8; k++)
        p[k] = f32_of_bits(split_join(hi[k], lo[k]));
}

DEVICE void store_master8(enum hl_cuda_param param, const struct hl_cuda_optim *a, uint64_t i,
                          const float p[8])
{
    uint32_t lo[8];

    if (param == HL_CUDA_PARAM_SPLIT) {
        UNROLL
        for (int k = 0; k < 8; k++)
            lo[k] = f32_bits(canon(p[k])) & 0xffffu;
        store16((char *)a->master + 2 * i, pack_halves(lo));
    } else {
        store8(HL_CUDA_FP32, a->master, i, p);
    }
    if (param != HL_CUDA_PARAM_NONE)
        store8(param == HL_CUDA_PARAM_FP16 ? HL_CUDA_FP16 : HL_CUDA_BF16, a->param, i, p);
}

DEVICE void step8(enum hl_cuda_form grad, enum hl_cuda_param param, const struct hl_cuda_optim *a,
                  uint64_t i)
{
    float g[8], p[8], m[8], v[8];

    load8(grad, a->grad, i, g);
    load_master8(param, a, i, p);
    load8(HL_CUDA_FP32, a->m, i, m);
    load8(HL_CUDA_FP32, a->v, i, v);
    UNROLL
    for (int k = 0; k < 8; k++)
        step_one(a, g[k], &p[k], &m[k], &v[k]);
    store_master8(param, a, i, p);
    store8(HL_CUDA_FP32, a->m, i, m);
    store8(HL_CUDA_FP32, a->v, i, v);
}

DEVICE void step1(enum hl_cuda_form grad, enum hl_cuda_param param, const struct hl_cuda_optim *a,
                  uint64_t i)
{
    float p, m = ((float *)a->m)[i], v = ((float *)a->v)[i];

    if (param == HL_CUDA_PARAM_SPLIT)
        p = f32_of_bits(split_join(((uint16_t *)a->param)[i], ((uint16_t *)a->master)[i]));
    else
        p = ((float *)a->master)[i];
    step_one(a, load1(grad, a->grad, i), &p, &m, &v);
    if (param == HL_CUDA_PARAM_SPLIT)
        ((uint16_t *)a->master)[i] = (uint16_t)f32_bits(canon(p));
    else
        store1(HL_CUDA_FP32, a->master, i, p);
    if (param != HL_CUDA_PARAM_NONE)
        store1(param == HL_CUDA_PARAM_FP16 ? HL_CUDA_FP16 : HL_CUDA_BF16, a->param, i, p);
    store1(HL_CUDA_FP32, a->m, i, m);
    store1(HL_CUDA_FP32, a->v, i, v);
}

DEVICE void optim(enum hl_cuda_form grad, enum hl_cuda_param param, const struct hl_cuda_optim *a,
                  uint64_t block, uint32_t thread)
{
    uint64_t begin = block * HL_CUDA_ELEMS, i;

    if (a->aligned && begin + HL_CUDA_ELEMS <= a->n) {
        step8(grad, param, a, begin + 8 * thread);
        return;
    }
    for (i = begin + thread; i < begin + HL_CUDA_ELEMS && i < a->n; i += HL_CUDA_THREADS)
        step1(grad, param, a, i);
}

/* ---- one kernel for each combination of forms ---- */

#define HL_X_CONVERT(to, from)                                                                     \
    DEVICE void hl_convert_##to##_##from##_body(const struct hl_cuda_array *a, uint64_t block,     \
                                                uint32_t thread)                                   \
    {                                                                                              \
        convert(HL_CUDA_##to, HL_CUDA_##from, a, block, thread);                                   \
    }                                                                                              \
    KERNEL(hl_convert_##to##_##from, struct hl_cuda_array, HL_CUDA_THREADS)
HL_CUDA_CONVERTS(HL_X_CONVERT)

#define HL_X_ACCUMULATE(kind, from)                                                                \
    DEVICE void hl_##kind##_##from##_body(const struct hl_cuda_array *a, uint64_t block,           \
                                          uint32_t thread)                                         \
    {                                                                                              \
        kind(HL_CUDA_##from, a, block, thread);                                                    \
    }                                                                                              \
    KERNEL(hl_##kind##_##from, struct hl_cuda_array, HL_CUDA_THREADS)
HL_CUDA_FORMS(HL_X_ACCUMULATE, accumulate)
HL_CUDA_FORMS(HL_X_ACCUMULATE, sum)

#define HL_X_SUMSQ(kind, from)                                                                     \
    DEVICE void hl_##kind##_##from##_body(const struct hl_cuda_array *a, uint64_t block,           \
                                          uint32_t thread)                                         \
    {                                                                                              \
        kind(HL_CUDA_##from, a, block, thread);                                                    \
    }                                                                                              \
    KERNEL(hl_##kind##_##from, struct hl_cuda_array, HL_CUDA_SUMSQ_THREADS)
HL_CUDA_FORMS(HL_X_SUMSQ, sumsq)

#define HL_X_OPTIM(grad, form)                                                                     \
    DEVICE void hl_optim_##grad##_##form##_body(const struct hl_cuda_optim *a, uint64_t block,     \
                                                uint32_t thread)                                   \
    {                                                                                              \
        optim(HL_CUDA_##grad, HL_CUDA_PARAM_##form, a, block, thread);                             \
    }                                                                                              \
    KERNEL(hl_optim_##grad##_##form, struct hl_cuda_optim, HL_CUDA_THREADS)
HL_CUDA_OPTIMS(HL_X_OPTIM)
