/*
 * norm_parts.c: the norm of each part beside the norm of all. Blocks that lie within one part are summed
 * once for both; a block that parts meet in is read again, piece by piece, while it is in the cache.
 */
#include "arith.h"
#include "fail.h"
#include "fp_env.h"
#include "kernel_table.h"
#include "team.h"

#define CALL         "haul_norm_by_part: "
#define CHUNK_BLOCKS 1024u

struct walk {
    const struct haul_norm_parts *parts;
    uint64_t part; /* that the next element belongs to */
    uint64_t end;  /* of that part, in elements of the whole */
};

static int check(const struct haul_norm_parts *p, const double *sum, const int *finite, uint64_t *n)
{
    if (!p || !sum || !finite)
        return hl_fail(-EINVAL, CALL "%s is NULL", !p ? "parts" : !sum ? "sum" : "finite");
    if (p->struct_size != sizeof *p)
        return hl_fail(HAUL_E_ABI, CALL "parts->struct_size is %zu, not %zu", p->struct_size,
                       sizeof *p);
    if (p->nparts && (!p->part_n || !p->part_sum))
        return hl_fail(-EINVAL, CALL "parts->%s is NULL", p->part_n ? "part_sum" : "part_n");
    if (p->dtype != HAUL_FP32 && p->dtype != HAUL_BF16 && p->dtype != HAUL_FP16)
        return hl_fail(-EINVAL, CALL "parts->dtype is %d; use HAUL_FP32, HAUL_BF16 or HAUL_FP16",
                       (int)p->dtype);
    *n = 0;
    for (uint64_t i = 0; i < p->nparts; i++) {
        if (p->part_n[i] > PTRDIFF_MAX / 4 - *n)
            return hl_fail(-EINVAL, CALL "parts->part_n add up to more than memory can hold");
        *n += p->part_n[i];
    }
    if (*n && !p->grad)
        return hl_fail(-EINVAL, CALL "parts->grad is NULL");
    return 0;
}

static void next_part(struct walk *w, uint64_t at)
{
    while (w->end <= at)
        w->end += w->parts->part_n[++w->part];
}

/* Block [at, end) of the whole, whose sum is known. */
static void add_block(struct walk *w, uint64_t at, uint64_t end, float partial)
{
    const struct haul_norm_parts *p = w->parts;
    const char *block = (const char *)p->grad + at * hl_dtype_bytes(p->dtype);
    uint64_t stop;

    next_part(w, at);
    if (end <= w->end) {
        p->part_sum[w->part] += (double)partial;
        return;
    }
    for (uint64_t from = at; from < end; from = stop) {
        next_part(w, from);
        stop = end < w->end ? end : w->end;
        p->part_sum[w->part] +=
            (double)hl_sumsq_piece(block, hl_grad_form_of(p->dtype), from - at, stop - at);
    }
}

static void add_chunk(struct walk *w, const float *partial, uint64_t at, uint64_t end)
{
    for (; at < end; at += HAUL_NORM_BLOCK)
        add_block(w, at, end - at < HAUL_NORM_BLOCK ? end : at + HAUL_NORM_BLOCK, *partial++);
}

int haul_norm_by_part(const struct haul_norm_parts *parts, unsigned nthreads, double *sum,
                      int *finite)
{
    float partial[CHUNK_BLOCKS];
    struct walk w = {.parts = parts};
    uint64_t n = 0, now;
    double total = 0;
    hl_fp_env env;
    int ok = 1, rc = check(parts, sum, finite, &n);

    if (rc == 0)
        rc = hl_team_check("haul_norm_by_part", nthreads);
    if (rc < 0)
        return rc;
    env = hl_fp_env_enter();
    for (uint64_t i = 0; i < parts->nparts; i++)
        parts->part_sum[i] = 0;
    w.end = parts->nparts ? parts->part_n[0] : 0;
    for (uint64_t at = 0; at < n; at += now) {
        now = n - at < sizeof partial / 4 * HAUL_NORM_BLOCK ? n - at
                                                            : sizeof partial / 4 * HAUL_NORM_BLOCK;
        hl_arith_sumsq_partials(partial,
                                (const char *)parts->grad + at * hl_dtype_bytes(parts->dtype),
                                parts->dtype, now, nthreads);
        hl_arith_sum_partials(partial, (now + HAUL_NORM_BLOCK - 1) / HAUL_NORM_BLOCK, &total, &ok);
        add_chunk(&w, partial, at, at + now);
    }
    hl_fp_env_leave(env);
    *sum = total;
    *finite = ok;
    return 0;
}
