/* arith.c: conversions, sums and partial norms over arrays, spread over a team. */
#include "arith.h"
#include "fp_env.h"
#include "kernel_table.h"
#include "team.h"

struct pass {
    const struct hl_kernels *kernels;
    void *dst;
    const void *src;
    enum hl_grad_form dst_form, src_form;
    float *partial;
    int first;
};

static void *at(void *base, enum hl_grad_form form, uint64_t i)
{
    return (char *)base + i * hl_grad_form_bytes(form);
}

static const void *at_const(const void *base, enum hl_grad_form form, uint64_t i)
{
    return (const char *)base + i * hl_grad_form_bytes(form);
}

static void convert_share(void *ctx, uint64_t begin, uint64_t end)
{
    struct pass *p = ctx;

    p->kernels->convert[p->dst_form][p->src_form](
        at(p->dst, p->dst_form, begin), at_const(p->src, p->src_form, begin), end - begin);
}

void hl_arith_convert(void *dst, enum haul_dtype dst_dtype, const void *src,
                      enum haul_dtype src_dtype, uint64_t n, unsigned nthreads)
{
    struct pass p = {.kernels = hl_kernels_best(),
                     .dst = dst,
                     .src = src,
                     .dst_form = hl_grad_form_of(dst_dtype),
                     .src_form = hl_grad_form_of(src_dtype)};

    hl_team_run(nthreads, n, convert_share, &p);
}

static void accumulate_share(void *ctx, uint64_t begin, uint64_t end)
{
    struct pass *p = ctx;

    p->kernels->accumulate[p->src_form](at(p->dst, HL_GRAD_FP32, begin),
                                        at_const(p->src, p->src_form, begin), end - begin,
                                        p->first);
}

void hl_arith_accumulate(float *acc, const void *src, enum haul_dtype dtype, uint64_t n, int first,
                         unsigned nthreads)
{
    struct pass p = {.kernels = hl_kernels_best(),
                     .dst = acc,
                     .src = src,
                     .src_form = hl_grad_form_of(dtype),
                     .first = first};

    hl_team_run(nthreads, n, accumulate_share, &p);
}

/* Shares begin on blocks: the team's grain is a block. */
_Static_assert(HL_TEAM_GRAIN % HAUL_NORM_BLOCK == 0, "shares must begin on blocks of the norm");

static void sumsq_share(void *ctx, uint64_t begin, uint64_t end)
{
    struct pass *p = ctx;

    p->kernels->sumsq[p->src_form](p->partial + begin / HAUL_NORM_BLOCK,
                                   at_const(p->src, p->src_form, begin), end - begin);
}

void hl_arith_sumsq_partials(float *partial, const void *src, enum haul_dtype dtype, uint64_t n,
                             unsigned nthreads)
{
    struct pass p = {.kernels = hl_kernels_best(),
                     .src = src,
                     .src_form = hl_grad_form_of(dtype),
                     .partial = partial};

    hl_team_run(nthreads, n, sumsq_share, &p);
}

/* A few blocks at a time, so that the sums are read from the cache. */
static void accumulate_sumsq_share(void *ctx, uint64_t begin, uint64_t end)
{
    const uint64_t most = 4 * HAUL_NORM_BLOCK;
    struct pass *p = ctx;

    for (uint64_t n; begin < end; begin += n) {
        n = end - begin < most ? end - begin : most;
        accumulate_share(p, begin, begin + n);
        p->kernels->sumsq[HL_GRAD_FP32](p->partial + begin / HAUL_NORM_BLOCK,
                                        at(p->dst, HL_GRAD_FP32, begin), n);
    }
}

void hl_arith_accumulate_partials(float *partial, float *acc, const void *src,
                                  enum haul_dtype dtype, uint64_t n, int first, unsigned nthreads)
{
    struct pass p = {.kernels = hl_kernels_best(),
                     .dst = acc,
                     .src = src,
                     .src_form = hl_grad_form_of(dtype),
                     .partial = partial,
                     .first = first};

    hl_team_run(nthreads, n, accumulate_sumsq_share, &p);
}

void hl_arith_sum_partials(const float *partial, uint64_t n, double *sum, int *finite)
{
    hl_fp_env env = hl_fp_env_enter();

    for (uint64_t i = 0; i < n; i++) {
        *sum += (double)partial[i];
        if (partial[i] != partial[i])
            *finite = 0;
    }
    hl_fp_env_leave(env);
}

struct halves {
    uint16_t *hi, *lo;
    const uint16_t *from_hi, *from_lo;
    const char *src;
    char *dst;
};

static void split_share(void *ctx, uint64_t begin, uint64_t end)
{
    struct halves *h = ctx;
    uint32_t bits;

    for (uint64_t i = begin; i < end; i++) {
        memcpy(&bits, h->src + 4 * i, 4);
        h->hi[i] = hl_split_hi(bits);
        h->lo[i] = hl_split_lo(bits);
    }
}

void hl_arith_split(uint16_t *hi, uint16_t *lo, const float *src, uint64_t n, unsigned nthreads)
{
    struct halves h = {.hi = hi, .lo = lo, .src = (const char *)src};

    hl_team_run(nthreads, n, split_share, &h);
}

static void join_share(void *ctx, uint64_t begin, uint64_t end)
{
    struct halves *h = ctx;
    uint32_t bits;

    for (uint64_t i = begin; i < end; i++) {
        bits = hl_split_join(h->from_hi[i], h->from_lo[i]);
        memcpy(h->dst + 4 * i, &bits, 4);
    }
}

void hl_arith_join(float *dst, const uint16_t *hi, const uint16_t *lo, uint64_t n,
                   unsigned nthreads)
{
    struct halves h = {.from_hi = hi, .from_lo = lo, .dst = (char *)dst};

    hl_team_run(nthreads, n, join_share, &h);
}
