/*
 * bench_separate.c: the offloaded step as haul makes it, and as engines that keep FP32 gradients make it:
 * widen, norm, finite check, unscale, Adam on FP32 arrays, narrow. Each separate pass is written as well
 * as haul's own: the library's kernels where there is one, else the widest vectors, a prefetch 2 KiB
 * ahead, and streaming stores for what the next pass does not find in the cache anyway.
 */
#include <string.h>

#include "arith.h"
#include "bench_adam.h"
#include "optim_update.h"
#include "team.h"

#define AHEAD 2048

struct whole {
    const struct hl_bench_opts *opts;
    const struct hl_bench_arena *arena;
    const struct hl_bench_case *c;
    struct haul_optim_arrays fused, fp32;
    uint64_t step;
    uint64_t found; /* keeps the finite check's result alive */
};

#if defined(__x86_64__)
#include <immintrin.h>

#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))

TARGET static void widen_avx512(float *dst, const uint16_t *src, uint64_t n)
{
    for (uint64_t i = 0; i < n; i += 32) {
        __m512i h = _mm512_loadu_si512(src + i);
        __m512i a = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(h));
        __m512i b = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(h, 1));

        _mm_prefetch((const char *)(src + i) + AHEAD, _MM_HINT_T0);
        _mm512_stream_si512((void *)(dst + i), _mm512_slli_epi32(a, 16));
        _mm512_stream_si512((void *)(dst + i + 16), _mm512_slli_epi32(b, 16));
    }
    _mm_sfence();
}

TARGET static int finite_avx512(const float *src, uint64_t n)
{
    __m512i most = _mm512_setzero_si512(), mask = _mm512_set1_epi32(0x7fffffff);

    for (uint64_t i = 0; i < n; i += 16) {
        __m512i x = _mm512_loadu_si512(src + i);

        _mm_prefetch((const char *)(src + i) + AHEAD, _MM_HINT_T0);
        most = _mm512_max_epu32(most, _mm512_and_si512(x, mask));
    }
    return _mm512_reduce_max_epu32(most) < 0x7f800000u;
}

TARGET static void scale_avx512(float *x, float by, uint64_t n)
{
    __m512 factor = _mm512_set1_ps(by);

    for (uint64_t i = 0; i < n; i += 16) {
        _mm_prefetch((const char *)(x + i) + AHEAD, _MM_HINT_T0);
        _mm512_storeu_ps(x + i, _mm512_mul_ps(_mm512_loadu_ps(x + i), factor));
    }
}

TARGET static void narrow_avx512(uint16_t *dst, const float *src, uint64_t n)
{
    __m512i half = _mm512_set1_epi32(0x8000);

    for (uint64_t i = 0; i < n; i += 32) {
        __m512i a = _mm512_add_epi32(_mm512_loadu_si512(src + i), half);
        __m512i b = _mm512_add_epi32(_mm512_loadu_si512(src + i + 16), half);
        __m256i lo = _mm512_cvtepi32_epi16(_mm512_srli_epi32(a, 16));
        __m256i hi = _mm512_cvtepi32_epi16(_mm512_srli_epi32(b, 16));

        _mm_prefetch((const char *)(src + i) + AHEAD, _MM_HINT_T0);
        _mm_prefetch((const char *)(src + i) + AHEAD + 64, _MM_HINT_T0);
        _mm512_stream_si512((void *)(dst + i),
                            _mm512_inserti64x4(_mm512_castsi256_si512(lo), hi, 1));
    }
    _mm_sfence();
}
#endif

/* The same in plain C, for machines without AVX-512. */
static int finite_c(const float *src, uint64_t n)
{
    uint32_t most = 0;

    for (uint64_t i = 0; i < n; i++) {
        uint32_t bits = hl_float_bits(src[i]) & 0x7fffffffu;
        most = bits > most ? bits : most;
    }
    return most < 0x7f800000u;
}

static void scale_c(float *x, float by, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        x[i] *= by;
}

static int wide(const struct whole *w)
{
#if defined(__x86_64__)
    return hl_cpu_has(HL_ISA_AVX512) && w->c->grad == HAUL_BF16 && w->c->out == HAUL_BF16;
#else
    return 0;
#endif
}

static void widen_share(void *ctx, uint64_t begin, uint64_t end)
{
    struct whole *w = ctx;
    const char *src = w->arena->grad + begin * hl_dtype_bytes(w->c->grad);
    float *dst = (float *)(void *)w->arena->grad32 + begin;

#if defined(__x86_64__)
    if (wide(w)) {
        widen_avx512(dst, (const uint16_t *)(const void *)src, end - begin);
        return;
    }
#endif
    hl_kernels_of(w->c->isa)->convert[HL_GRAD_FP32][hl_grad_form_of(w->c->grad)](dst, src,
                                                                                 end - begin);
}

static void finite_share(void *ctx, uint64_t begin, uint64_t end)
{
    struct whole *w = ctx;
    const float *src = (const float *)(const void *)w->arena->grad32 + begin;
    int finite;

#if defined(__x86_64__)
    if (wide(w))
        finite = finite_avx512(src, end - begin);
    else
#endif
        finite = finite_c(src, end - begin);
    __atomic_fetch_add(&w->found, (uint64_t)finite, __ATOMIC_RELAXED);
}

static void scale_share(void *ctx, uint64_t begin, uint64_t end)
{
    struct whole *w = ctx;
    float *x = (float *)(void *)w->arena->grad32 + begin;

#if defined(__x86_64__)
    if (wide(w)) {
        scale_avx512(x, 0.5f, end - begin);
        return;
    }
#endif
    scale_c(x, 0.5f, end - begin);
}

static void narrow_share(void *ctx, uint64_t begin, uint64_t end)
{
    struct whole *w = ctx;
    const float *src = (const float *)(const void *)w->arena->master + begin;
    uint16_t *dst = (uint16_t *)(void *)w->arena->param + begin;

#if defined(__x86_64__)
    if (wide(w)) {
        narrow_avx512(dst, src, end - begin);
        return;
    }
#endif
    hl_kernels_of(w->c->isa)->convert[hl_grad_form_of(w->c->out)][HL_GRAD_FP32](dst, src,
                                                                                end - begin);
}

static struct haul_optim_step next_step(struct whole *w, double grad_scale)
{
    return (struct haul_optim_step){.struct_size = sizeof(struct haul_optim_step),
                                    .step = ++w->step,
                                    .lr = 1e-6,
                                    .weight_decay = 0.01,
                                    .grad_scale = grad_scale};
}

static int run_separate(void *ctx, unsigned which)
{
    struct whole *w = ctx;
    struct haul_optim_step s = next_step(w, 1);
    const unsigned threads = w->opts->threads;
    const uint64_t n = w->opts->elems;
    double sum;
    int finite, rc;

    hl_team_run(threads, n, widen_share, w);
    rc = haul_norm_sumsq(w->arena->grad32, HAUL_FP32, n, threads, &sum, &finite);
    if (rc < 0)
        return rc;
    hl_team_run(threads, n, finite_share, w);
    hl_team_run(threads, n, scale_share, w);
    rc = hl_optim_update_with(hl_kernels_of(w->c->isa), &w->c->opt, &w->fp32, &s, threads);
    if (rc < 0)
        return rc;
    hl_team_run(threads, n, narrow_share, w);
    return 0;
}

static int run_fused(void *ctx, unsigned which)
{
    struct whole *w = ctx;
    struct haul_optim_step s = next_step(w, 0.5);

    return hl_optim_update_with(hl_kernels_of(w->c->isa), &w->c->opt, &w->fused, &s,
                                w->opts->threads);
}

static int run_norm_and_fused(void *ctx, unsigned which)
{
    struct whole *w = ctx;
    double sum;
    int finite, rc = haul_norm_sumsq(w->arena->grad, w->c->grad, w->opts->elems, w->opts->threads,
                                     &sum, &finite);

    return rc < 0 ? rc : run_fused(ctx, which);
}

int hl_bench_whole_step(const struct hl_bench_opts *opts, const struct hl_bench_arena *arena,
                        const struct hl_bench_case *c, struct hl_whole_step *out)
{
    int (*const run[])(void *, unsigned) = {run_separate, run_fused, run_norm_and_fused};
    unsigned g = (unsigned)hl_dtype_bytes(c->grad);
    struct whole w = {.opts = opts, .arena = arena, .c = c};
    struct hl_bench_time time[3];
    double n = (double)opts->elems;
    int rc;

    w.fused = (struct haul_optim_arrays){.struct_size = sizeof w.fused,
                                         .n = opts->elems,
                                         .grad_dtype = c->grad,
                                         .param_dtype = c->out,
                                         .master_form = c->master,
                                         .grad = arena->grad,
                                         .master = arena->master,
                                         .m = arena->m,
                                         .v = arena->v,
                                         .param = arena->param};
    w.fp32 = w.fused;
    w.fp32.grad_dtype = HAUL_FP32;
    w.fp32.param_dtype = HAUL_DTYPE_NONE;
    w.fp32.master_form = HAUL_MASTER_FP32;
    w.fp32.grad = arena->grad32;
    rc = hl_bench_turns(opts, run, &w, 3, time);
    if (rc < 0)
        return rc;
    out->separate_ns_per_elem = time[0].median_ns / n;
    out->ns_per_elem = time[1].median_ns / n;
    out->with_norm_ns_per_elem = time[2].median_ns / n;
    out->speedup = time[0].median_ns / time[1].median_ns;
    out->speedup_with_norm = time[0].median_ns / time[2].median_ns;
    /* gradient; master, m, v read and written; the 16-bit parameter written, read too in split */
    out->bytes_per_elem = c->master == HAUL_MASTER_SPLIT ? g + 2 * (2 + 2 + 4 + 4) : g + 24 + 2;
    /* widen g + 4, norm 4, finite 4, unscale 8, Adam 28, narrow 4 + 2 */
    out->bytes_per_elem_separate = g + 4 + 4 + 4 + 8 + 28 + 6;
    return 0;
}
