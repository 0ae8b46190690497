/*
 * norm_tree.c: the norm of R1 over a whole range, without an allocation: partial sums of so many blocks
 * as fit the stack, then their sum in order, then the next blocks.
 */
#include "arith.h"
#include "fail.h"
#include "kernel_table.h"
#include "team.h"

#define CHUNK_BLOCKS 4096u /* 16 KiB of partial sums; 16 Mi elements a round */

static int check(const char *call, const void *src, enum haul_dtype dtype, uint64_t n,
                 unsigned nthreads)
{
    if (dtype != HAUL_FP32 && dtype != HAUL_BF16 && dtype != HAUL_FP16)
        return hl_fail(-EINVAL, "%s: dtype %d; use HAUL_FP32, HAUL_BF16 or HAUL_FP16", call,
                       (int)dtype);
    if (n > PTRDIFF_MAX / 4)
        return hl_fail(-EINVAL, "%s: n is more than memory can hold", call);
    if (!src && n)
        return hl_fail(-EINVAL, "%s: grad is NULL", call);
    return hl_team_check(call, nthreads);
}

static uint64_t chunk_elems(uint64_t left)
{
    uint64_t most = (uint64_t)CHUNK_BLOCKS * HAUL_NORM_BLOCK;

    return left < most ? left : most;
}

static uint64_t blocks_of(uint64_t n)
{
    return (n + HAUL_NORM_BLOCK - 1) / HAUL_NORM_BLOCK;
}

int haul_norm_sumsq(const void *grad, enum haul_dtype dtype, uint64_t n, unsigned nthreads,
                    double *sum, int *finite)
{
    float partial[CHUNK_BLOCKS];
    const char *src = grad;
    double total = 0;
    int ok = 1, rc = check("haul_norm_sumsq", grad, dtype, n, nthreads);

    if (rc < 0)
        return rc;
    if (!sum || !finite)
        return hl_fail(-EINVAL, "haul_norm_sumsq: %s is NULL", sum ? "finite" : "sum");
    for (uint64_t now; n; n -= now, src += now * hl_dtype_bytes(dtype)) {
        now = chunk_elems(n);
        hl_arith_sumsq_partials(partial, src, dtype, now, nthreads);
        hl_arith_sum_partials(partial, blocks_of(now), &total, &ok);
    }
    *sum = total;
    *finite = ok;
    return 0;
}

int haul_norm_accumulate(float *acc, const void *grad, enum haul_dtype dtype, uint64_t n, int first,
                         unsigned nthreads, double *sum, int *finite)
{
    float partial[CHUNK_BLOCKS];
    const char *src = grad;
    double total = 0;
    int ok = 1, rc = check("haul_norm_accumulate", grad, dtype, n, nthreads);

    if (rc < 0)
        return rc;
    if (!acc && n)
        return hl_fail(-EINVAL, "haul_norm_accumulate: acc is NULL");
    if (!sum != !finite)
        return hl_fail(-EINVAL, "haul_norm_accumulate: %s is NULL and the other is not",
                       sum ? "finite" : "sum");
    if (!sum) {
        hl_arith_accumulate(acc, grad, dtype, n, first, nthreads);
        return 0;
    }
    for (uint64_t now; n; n -= now, src += now * hl_dtype_bytes(dtype), acc += now) {
        now = chunk_elems(n);
        hl_arith_accumulate_partials(partial, acc, src, dtype, now, first, nthreads);
        hl_arith_sum_partials(partial, blocks_of(now), &total, &ok);
    }
    *sum = total;
    *finite = ok;
    return 0;
}
