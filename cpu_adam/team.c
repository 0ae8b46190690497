/* team.c: the OpenMP team. Hot path: no allocation, no log, no lock but OpenMP's own fork and join. */
#include <omp.h>
#include <stdatomic.h>
#include <string.h>

#include "fail.h"
#include "fp_env.h"
#include "haul/optim.h"
#include "team.h"
#include "topo.h"

unsigned haul_optim_threads(unsigned local_ranks)
{
    struct hl_topo *topo;
    unsigned n;

    if (hl_topo_open(NULL, &topo) < 0)
        return 1;
    n = hl_topo_team(topo, local_ranks ? local_ranks : 1);
    hl_topo_close(topo);
    return n;
}

/* Reading the topology takes milliseconds, so the answer is kept; two threads may both find it. */
static unsigned default_threads(void)
{
    static atomic_uint known;
    unsigned n = atomic_load_explicit(&known, memory_order_relaxed);

    if (!n) {
        n = haul_optim_threads(1);
        atomic_store_explicit(&known, n, memory_order_relaxed);
    }
    return n;
}

uint64_t hl_team_share(uint64_t n, unsigned nshares, unsigned i)
{
    uint64_t grains = n / HL_TEAM_GRAIN;

    if (i == nshares)
        return n;
    /* grains * i / nshares without overflow */
    return (grains / nshares * i + grains % nshares * i / nshares) * HL_TEAM_GRAIN;
}

/* ---- shares in pieces, which who is done takes from who is not ---- */

/* Larger teams keep to their shares. */
#define HELPING_MOST 256u
/* A share is so many pieces, each of no fewer and no more elements than this: 0.05 to 2 ms on a core. */
#define PIECES_OF_SHARE 8u
#define PIECE_LEAST     ((uint64_t)8 * HL_TEAM_GRAIN)
#define PIECE_MOST      ((uint64_t)256 * HL_TEAM_GRAIN)

/* Pieces taken of a share; a cache line of its own, since its owner takes nearly all. */
struct taken {
    _Alignas(64) _Atomic uint64_t n;
};

struct team_work {
    uint64_t n;
    hl_team_fn fn;
    void *ctx;
    struct taken *taken; /* (shares,); NULL: each thread its share, and no other */
};

static uint64_t piece_elems(uint64_t n, unsigned nshares)
{
    uint64_t piece = n / nshares / PIECES_OF_SHARE / HL_TEAM_GRAIN * HL_TEAM_GRAIN;

    return piece < PIECE_LEAST ? PIECE_LEAST : piece > PIECE_MOST ? PIECE_MOST : piece;
}

/* Share i, piece by piece, until none is left. */
static void run_pieces(const struct team_work *w, unsigned nshares, unsigned i)
{
    uint64_t at = hl_team_share(w->n, nshares, i), end = hl_team_share(w->n, nshares, i + 1);
    uint64_t piece = piece_elems(w->n, nshares), npieces = (end - at + piece - 1) / piece, k;

    while ((k = atomic_fetch_add_explicit(&w->taken[i].n, 1, memory_order_relaxed)) < npieces)
        w->fn(w->ctx, at + k * piece, k + 1 < npieces ? at + (k + 1) * piece : end);
}

static void run_share(const struct team_work *w, unsigned nshares, unsigned i)
{
    uint64_t begin = hl_team_share(w->n, nshares, i), end = hl_team_share(w->n, nshares, i + 1);

    if (begin < end)
        w->fn(w->ctx, begin, end);
}

/* What thread i of the team does: its share, then what is left of others'. */
static void run_member(const struct team_work *w, unsigned nshares, unsigned i)
{
    hl_fp_env env = hl_fp_env_enter();

    if (w->taken)
        for (unsigned k = 0; k < nshares; k++)
            run_pieces(w, nshares, (i + k) % nshares);
    else
        run_share(w, nshares, i);
    hl_fp_env_leave(env);
}

static void run_team(const struct team_work *w, unsigned nthreads)
{
    if (nthreads == 1) {
        run_member(w, 1, 0);
        return;
    }
#pragma omp parallel num_threads(nthreads)
    run_member(w, (unsigned)omp_get_num_threads(), (unsigned)omp_get_thread_num());
}

int hl_team_check(const char *call, unsigned nthreads)
{
    if (nthreads <= HL_TEAM_MOST || nthreads == HAUL_THREADS_OPENMP)
        return 0;
    return hl_fail(-EINVAL, "%s: nthreads is %u; use 0 to %u, or HAUL_THREADS_OPENMP", call,
                   nthreads, HL_TEAM_MOST);
}

static unsigned resolve(unsigned nthreads)
{
    if (nthreads == HAUL_THREADS_OPENMP)
        return (unsigned)omp_get_max_threads();
    return nthreads ? nthreads : default_threads();
}

void hl_team_run(unsigned nthreads, uint64_t n, hl_team_fn fn, void *ctx)
{
    struct taken taken[HELPING_MOST];
    struct team_work w = {.n = n, .fn = fn, .ctx = ctx};

    nthreads = n < HL_TEAM_ALONE ? 1 : resolve(nthreads);
    if (nthreads > 1 && nthreads <= HELPING_MOST) {
        memset(taken, 0, nthreads * sizeof *taken);
        w.taken = taken;
    }
    run_team(&w, nthreads);
}

void hl_team_run_apart(unsigned nthreads, uint64_t n, hl_team_fn fn, void *ctx)
{
    struct team_work w = {.n = n, .fn = fn, .ctx = ctx};

    run_team(&w, n < HL_TEAM_ALONE ? 1 : resolve(nthreads));
}

struct touch {
    char *array;
    uint64_t elem_bytes;
};

static void touch_share(void *ctx, uint64_t begin, uint64_t end)
{
    const struct touch *t = ctx;

    memset(t->array + begin * t->elem_bytes, 0, (end - begin) * t->elem_bytes);
}

int haul_optim_first_touch(void *array, uint64_t n, uint64_t elem_bytes, unsigned nthreads)
{
    struct touch t = {.array = array, .elem_bytes = elem_bytes};
    int rc = hl_team_check("haul_optim_first_touch", nthreads);

    if (rc < 0)
        return rc;
    if (!array && n)
        return hl_fail(-EINVAL, "haul_optim_first_touch: array is NULL");
    if (elem_bytes && n > PTRDIFF_MAX / elem_bytes)
        return hl_fail(-EINVAL, "haul_optim_first_touch: n is more than memory can hold");
    hl_team_run_apart(nthreads, n, touch_share, &t);
    return 0;
}

struct hl_team_seat hl_team_seat(const struct hl_topo *topo, unsigned local_rank,
                                 unsigned local_ranks, unsigned nthreads, unsigned i)
{
    uint64_t cores = hl_topo_cores(topo), first = cores * local_rank / local_ranks;
    uint64_t mine = cores * (local_rank + 1) / local_ranks - first, core;

    /* more ranks than cores: they share */
    core = first + (mine ? mine * i / nthreads : 0);
    return (struct hl_team_seat){.pu = hl_topo_core_pu(topo, (unsigned)core),
                                 .node = hl_topo_core_node(topo, (unsigned)core)};
}

int hl_team_bind(unsigned local_rank, unsigned local_ranks, unsigned nthreads)
{
    struct hl_topo *topo;
    int rc = hl_team_check("binding update threads", nthreads);

    if (rc == 0)
        rc = hl_topo_open(NULL, &topo);
    if (rc < 0)
        return rc;
    nthreads = resolve(nthreads);
#pragma omp parallel num_threads(nthreads) reduction(min : rc)
    {
        struct hl_team_seat seat =
            hl_team_seat(topo, local_rank, local_ranks, nthreads, (unsigned)omp_get_thread_num());
        rc = hl_topo_bind_thread(seat.pu);
    }
    hl_topo_close(topo);
    return rc < 0
               ? hl_fail(rc, "binding %u update threads to cores: %s", nthreads, haul_strerror(rc))
               : 0;
}
