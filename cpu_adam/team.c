/* team.c: the OpenMP team. Hot path: no allocation, no log, no lock but OpenMP's own fork and join. */
#include <omp.h>
#include <stdatomic.h>

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

static void run_share(uint64_t n, unsigned nshares, unsigned i, hl_team_fn fn, void *ctx)
{
    uint64_t begin = hl_team_share(n, nshares, i), end = hl_team_share(n, nshares, i + 1);
    hl_fp_env env = hl_fp_env_enter();

    if (begin < end)
        fn(ctx, begin, end);
    hl_fp_env_leave(env);
}

void hl_team_run(unsigned nthreads, uint64_t n, hl_team_fn fn, void *ctx)
{
    uint64_t grains = n / HL_TEAM_GRAIN;

    if (nthreads == HAUL_THREADS_OPENMP)
        nthreads = (unsigned)omp_get_max_threads();
    else if (!nthreads)
        nthreads = default_threads();
    if (nthreads > grains)
        nthreads = grains ? (unsigned)grains : 1;
    if (nthreads == 1) {
        run_share(n, 1, 0, fn, ctx);
        return;
    }
#pragma omp parallel num_threads(nthreads)
    run_share(n, (unsigned)omp_get_num_threads(), (unsigned)omp_get_thread_num(), fn, ctx);
}
