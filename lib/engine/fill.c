/* fill.c: every parameter gets a value, and a run begins. Everything is quiescent meanwhile. */
#include <string.h>

#include "access.h"

static int zero_moments(const struct hl_piece *pc)
{
    struct hl_scratch s = hl_scratch_of(pc->unit->engine);

    memset(s.m, 0, pc->n * sizeof *s.m);
    return hl_piece_write_moments(pc, s.m, s.m);
}

struct filling {
    haul_fill_fn fn;
    void *user;
    uint64_t done_elems, nelems;
};

static uint64_t count_elems(const struct haul_engine *e)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < e->nunits; i++)
        for (uint32_t t = 0; t < e->units[i]->ntensors; t++)
            n += e->units[i]->places[t].elems;
    return n;
}

static void tell_filled(const struct haul_engine *e, struct filling *f, uint64_t n)
{
    f->done_elems += n;
    if (e->opts.work)
        e->opts.work(e->opts.work_user, HAUL_WORK_FILL, f->done_elems * sizeof(float),
                     f->nelems * sizeof(float));
}

static int fill_tensor(struct haul_unit *u, uint32_t tensor, struct filling *f)
{
    uint64_t n = u->places[tensor].elems;
    float *value = hl_scratch_of(u->engine).value;
    int rc = 0;

    for (uint64_t done = 0; rc == 0 && done < n;) {
        struct hl_piece pc = hl_piece_of(u, tensor, done, n - done);
        if (!pc.own && !pc.rest) {
            done += pc.n;
            continue;
        }
        rc = f->fn(f->user, u->name, tensor, done, pc.n, value);
        if (rc < 0)
            return hl_fail(rc, "fill: the callback failed on unit %s, tensor %s, element %llu",
                           u->name, u->tensors[tensor].name, (unsigned long long)done);
        rc = hl_piece_write(&pc, value);
        if (rc == 0)
            rc = zero_moments(&pc);
        done += pc.n;
    }
    tell_filled(u->engine, f, n);
    return rc;
}

int haul_engine_fill(struct haul_engine *e, haul_fill_fn fn, void *user)
{
    int rc;

    if ((rc = hl_need("haul_engine_fill", "engine", e)) < 0)
        return rc;
    if (!e->built)
        return hl_fail(HAUL_E_STATE, "fill: the engine is not built");
    rc = fn ? hl_check_not_held(e) : hl_fail(-EINVAL, "haul_engine_fill: fn is NULL");
    if ((rc = hl_ranks_enter(e, "haul_engine_fill", 0, rc)) < 0)
        return rc;
    struct filling filling = {fn, user, 0, count_elems(e)};
    rc = hl_engine_quiesce(e);
    e->overwrites = true;
    for (uint32_t i = 0; rc == 0 && i < e->nunits; i++) {
        struct haul_unit *u = e->units[i];
        for (uint32_t t = 0; rc == 0 && t < u->ntensors; t++)
            rc = fill_tensor(u, t, &filling);
        u->nsteps = 0;
        u->apart = false;
    }
    int rc_resume = hl_engine_resume(e, 0);
    rc = hl_ranks_leave(e, "haul_engine_fill", rc < 0 ? rc : rc_resume);
    if (rc == 0)
        hl_report_rebase(e); /* a fill is no part of the first step */
    return rc;
}
