/* digest.c: a fingerprint of all state that no placement changes (R1). */
#include "access.h"
#include "arith.h"

/* The finalizer of splitmix64 (Steele, Lea & Flood 2014): a bijection that spreads every bit. */
static uint64_t mix64(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

static uint64_t mix(uint64_t unit, uint64_t i, uint32_t p, uint32_t m, uint32_t v)
{
    uint64_t x = mix64((unit + 1) * UINT64_C(0x9e3779b97f4a7c15));

    x = mix64(x + i);
    x = mix64(x ^ ((uint64_t)m << 32 | p));
    return mix64(x + v);
}

static int add_piece(const struct hl_piece *pc, uint64_t logical, uint64_t *sum)
{
    struct hl_scratch s = hl_scratch_of(pc->unit->engine);
    int rc = hl_piece_read(pc, s.p);

    if (rc == 0)
        rc = hl_piece_read_moments(pc, s.m, s.v);
    for (uint64_t i = 0; rc == 0 && i < pc->n; i++)
        *sum += mix(pc->unit->index, logical + i, hl_float_bits(s.p[i]), hl_float_bits(s.m[i]),
                    hl_float_bits(s.v[i]));
    return rc;
}

static int add_tensor(struct haul_unit *u, uint32_t t, uint64_t *sum)
{
    int rc = 0;

    for (uint64_t done = 0; rc == 0 && done < u->places[t].elems;) {
        struct hl_piece pc = hl_piece_of(u, t, done, u->places[t].elems - done);
        rc = pc.mine ? add_piece(&pc, u->places[t].logical_elem + done, sum) : 0;
        done += pc.n;
    }
    return rc;
}

int haul_engine_digest(struct haul_engine *e, uint64_t *out)
{
    uint64_t sum = 0;
    int rc, rc_resume;

    if ((rc = hl_need("haul_engine_digest", "engine", e)) < 0 ||
        (rc = hl_need("haul_engine_digest", "out", out)) < 0)
        return rc;
    if (!e->built)
        return hl_fail(HAUL_E_STATE, "digest: the engine is not built");
    if ((rc = hl_ranks_enter(e, "haul_engine_digest", 0, hl_check_not_held(e))) < 0)
        return rc;
    uint64_t pos = e->pos;
    rc = hl_engine_quiesce(e);
    for (uint32_t i = 0; rc == 0 && i < e->nunits; i++)
        for (uint32_t t = 0; rc == 0 && t < e->units[i]->ntensors; t++)
            rc = add_tensor(e->units[i], t, &sum);
    rc_resume = hl_engine_resume(e, pos);
    rc = rc < 0 ? rc : rc_resume;
    if (rc == 0 && e->comm)
        rc = hl_comm_all_reduce(e->comm, e->comm_counts, HAUL_COMM_SUM_U64, &sum, 1);
    if (rc < 0 && e->comm)
        return hl_ranks_failed(e, rc);
    if (rc == 0)
        *out = sum;
    return rc;
}
