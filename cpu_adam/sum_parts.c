/* sum_parts.c: what several ranks have sent, added in their order and rounded once. */
#include <string.h>

#include "arith.h"
#include "fp_env.h"
#include "kernel_table.h"
#include "team.h"

/* Sums held at once, in cache. */
enum { SOME = 1024 };

struct parts {
    const struct hl_kernels *kernels;
    enum hl_grad_form form;
    char *dst;
    const char *src;
    uint64_t n;
    uint32_t nparts;
};

/* sum is canonical: its only NaN is 7fc00000, which stays one. */
static void round_to_even(uint16_t *dst, const float *sum, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        uint32_t bits = hl_float_bits(sum[i]);
        dst[i] = (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
    }
}

static void store(const struct parts *p, uint64_t at, const float *sum, uint64_t n)
{
    char *dst = p->dst + at * hl_grad_form_bytes(p->form);

    if (p->form == HL_GRAD_FP32)
        memcpy(dst, sum, n * sizeof *sum);
    else if (p->form == HL_GRAD_BF16)
        round_to_even((uint16_t *)(void *)dst, sum, n);
    else
        p->kernels->convert[p->form][HL_GRAD_FP32](dst, sum, n);
}

static void sum_share(void *ctx, uint64_t begin, uint64_t end)
{
    const struct parts *p = ctx;
    uint64_t each = hl_grad_form_bytes(p->form);
    float sum[SOME];

    for (uint64_t at = begin; at < end; at += SOME) {
        uint64_t n = end - at < SOME ? end - at : SOME;
        for (uint32_t r = 0; r < p->nparts; r++)
            p->kernels->accumulate[p->form](sum, p->src + (r * p->n + at) * each, n, r == 0);
        store(p, at, sum, n);
    }
}

void hl_arith_sum(void *dst, const void *parts, enum haul_dtype dtype, uint32_t nparts, uint64_t n,
                  unsigned nthreads)
{
    struct parts p = {.kernels = hl_kernels_best(),
                      .form = hl_grad_form_of(dtype),
                      .dst = dst,
                      .src = parts,
                      .n = n,
                      .nparts = nparts};

    hl_team_run(nthreads, n, sum_share, &p);
}
