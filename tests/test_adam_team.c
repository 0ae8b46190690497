/* The team: shares, seats on recorded and synthetic machines, sizes, first touch. */
#include <errno.h>
#include <hwloc.h>
#include <omp.h>
#include <sched.h>
#include <stdatomic.h>

#include "clock.h"
#include "haul/optim.h"
#include "recorded_tree.h"
#include "suite.h"
#include "sys.h"
#include "team.h"
#include "topo.h"

Test(adam_team, shares_cover_a_range_once_in_whole_grains)
{
    static const uint64_t sizes[] = {
        0, 1, 4095, 4096, 40960, 1234567, UINT64_C(1) << 40, UINT64_C(1) << 60};

    for (unsigned s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (unsigned n = 1; n <= 70; n++) {
            uint64_t at = 0,
                     most = sizes[s] / n / HL_TEAM_GRAIN * HL_TEAM_GRAIN + 2 * HL_TEAM_GRAIN;

            for (unsigned i = 0; i < n; i++) {
                uint64_t begin = hl_team_share(sizes[s], n, i),
                         end = hl_team_share(sizes[s], n, i + 1);

                cr_assert_eq(begin, at);
                cr_assert_geq(end, begin);
                cr_assert_leq(end - begin, most);
                cr_assert_eq(begin % HL_TEAM_GRAIN, 0);
                at = end;
            }
            cr_assert_eq(at, sizes[s]);
        }
}

static void seats(const char *synthetic, const char *affinity, unsigned rank, unsigned ranks,
                  unsigned nthreads, const char *want_pus, const char *want_nodes)
{
    struct hl_topo_opts opts = {.synthetic = synthetic, .affinity = affinity};
    char pus[256] = "", nodes[256] = "";
    struct hl_topo *topo;

    cr_assert_eq(hl_topo_open(&opts, &topo), 0, "%s", haul_last_error());
    for (unsigned i = 0; i < nthreads; i++) {
        struct hl_team_seat seat = hl_team_seat(topo, rank, ranks, nthreads, i);

        sprintf(pus + strlen(pus), " %d", seat.pu);
        sprintf(nodes + strlen(nodes), " %d", seat.node);
    }
    cr_assert_str_eq(pus, want_pus);
    cr_assert_str_eq(nodes, want_nodes);
    hl_topo_close(topo);
}

#define TWO_NODES "numa:2 core:8 pu:1"
#define SMT       "numa:2 core:4 pu:2"
#define ONE_NODE  "numa:1 core:6 pu:1"

Test(adam_team, seats_fill_nodes_in_the_order_of_shares)
{
    seats(TWO_NODES, NULL, 0, 1, 16, " 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15",
          " 0 0 0 0 0 0 0 0 1 1 1 1 1 1 1 1");
    seats(TWO_NODES, NULL, 0, 1, 4, " 0 4 8 12", " 0 0 1 1");
    seats(TWO_NODES, NULL, 0, 1, 2, " 0 8", " 0 1");
    seats(TWO_NODES, NULL, 0, 1, 1, " 0", " 0");
    seats(ONE_NODE, NULL, 0, 1, 3, " 0 2 4", " 0 0 0");
}

Test(adam_team, smt_siblings_are_one_seat)
{
    seats(SMT, NULL, 0, 1, 8, " 0 2 4 6 8 10 12 14", " 0 0 0 0 1 1 1 1");
}

Test(adam_team, ranks_of_a_machine_sit_apart)
{
    seats(TWO_NODES, NULL, 0, 2, 8, " 0 1 2 3 4 5 6 7", " 0 0 0 0 0 0 0 0");
    seats(TWO_NODES, NULL, 1, 2, 8, " 8 9 10 11 12 13 14 15", " 1 1 1 1 1 1 1 1");
    seats(TWO_NODES, NULL, 3, 4, 2, " 12 14", " 1 1");
    seats(ONE_NODE, NULL, 1, 4, 1, " 1", " 0");
}

Test(adam_team, seats_stay_within_the_affinity)
{
    seats(TWO_NODES, "2,3,9-11", 0, 1, 5, " 2 3 9 10 11", " 0 0 1 1 1");
    seats(SMT, "1,3,5,13", 0, 1, 4, " 1 3 5 13", " 0 0 0 1");
}

/* Two nodes of eight cores of which 2 to 5 and 15 are offline, recorded as a machine would record itself. */
static void record_offline(const char *path)
{
    hwloc_bitmap_t online = hwloc_bitmap_alloc();
    hwloc_topology_t hw;

    cr_assert_eq(hwloc_bitmap_list_sscanf(online, "0-1,6-14"), 0);
    cr_assert_eq(hwloc_topology_init(&hw), 0);
    cr_assert_eq(hwloc_topology_set_synthetic(hw, TWO_NODES), 0);
    cr_assert_eq(hwloc_topology_load(hw), 0);
    cr_assert_eq(hwloc_topology_restrict(hw, online, 0), 0);
    cr_assert_eq(hwloc_topology_export_xml(hw, path, 0), 0);
    hwloc_topology_destroy(hw);
    hwloc_bitmap_free(online);
}

Test(adam_team, offline_cores_of_a_recorded_machine_are_no_seats)
{
    struct tree tree = tree_make();
    const char *path = tree_path(&tree, "offline.xml");
    static const int want[11][2] = {{0, 0},  {1, 0},  {6, 0},  {7, 0},  {8, 1}, {9, 1},
                                    {10, 1}, {11, 1}, {12, 1}, {13, 1}, {14, 1}};
    struct hl_topo_opts opts = {.xml_path = path};
    struct hl_topo *topo;

    record_offline(path);
    cr_assert_eq(hl_topo_open(&opts, &topo), 0, "%s", haul_last_error());
    for (unsigned i = 0; i < 11; i++) {
        struct hl_team_seat seat = hl_team_seat(topo, 0, 1, 11, i);

        cr_assert_eq(seat.pu, want[i][0]);
        cr_assert_eq(seat.node, want[i][1]);
    }
    cr_assert_eq(hl_team_seat(topo, 0, 1, 2, 1).pu, 9); /* half of eleven, rounded down */
    hl_topo_close(topo);
    tree_remove(&tree);
}

Test(adam_team, more_threads_or_ranks_than_cores_share_seats)
{
    seats(ONE_NODE, NULL, 0, 1, 8, " 0 0 1 2 3 3 4 5", " 0 0 0 0 0 0 0 0");
    seats(ONE_NODE, "4", 1, 3, 1, " 4", " 0");
}

#define ELEMS (1 << 20)

/* Threads meet in their first pieces, so that none does another's work before that one has come. */
struct meeting {
    unsigned nwanted;
    atomic_uint nthere, team; /* team: what OpenMP says of it, if anybody came */
    atomic_int seen[HL_TEAM_MOST];
};

static void meet(void *ctx, uint64_t begin, uint64_t end)
{
    struct meeting *m = ctx;
    uint64_t late_ns = hl_clock_ns() + UINT64_C(5000000000);

    if (end == begin || atomic_exchange(&m->seen[omp_get_thread_num()], 1))
        return;
    m->team = (unsigned)omp_get_num_threads();
    atomic_fetch_add(&m->nthere, 1);
    while (m->nthere < m->nwanted && hl_clock_ns() < late_ns)
        sched_yield();
}

/* So many threads, no more and no fewer, are a team for n elements, and each of them works. */
static void check_team(unsigned nthreads, uint64_t n, unsigned nwanted)
{
    struct meeting m = {.nwanted = nwanted};

    hl_team_run(nthreads, n, meet, &m);
    cr_assert_eq(m.team, nwanted, "a team of %u, not %u", m.team, nwanted);
    cr_assert_eq(m.nthere, nwanted, "%u of %u threads work", m.nthere, nwanted);
}

Test(adam_team, the_callers_size_counts_and_small_ranges_stay_alone)
{
    check_team(3, ELEMS, 3);
    check_team(5, ELEMS, 5);
    check_team(5, HL_TEAM_ALONE - 1, 1);
    check_team(1, ELEMS, 1);
    check_team(4, 0, 0);
}

Test(adam_team, omp_num_threads_is_followed_only_when_asked)
{
    unsigned own = haul_optim_threads(1);

    omp_set_num_threads(7);
    check_team(HAUL_THREADS_OPENMP, ELEMS, 7);
    check_team(0, ELEMS, own);
}

struct coverage {
    _Atomic uint64_t ndone;
    uint64_t n;
    int stalls; /* thread 0, in its first piece, until all else is done */
    atomic_int stalled, waited_in_vain;
    atomic_uchar times[300]; /* that a grain was worked on */
};

static void cover(void *ctx, uint64_t begin, uint64_t end)
{
    struct coverage *c = ctx;
    uint64_t late_ns = hl_clock_ns() + UINT64_C(5000000000);

    if (c->stalls && omp_get_thread_num() == 0 && !atomic_exchange(&c->stalled, 1))
        while (c->ndone < c->n - (end - begin) && !c->waited_in_vain) {
            sched_yield();
            c->waited_in_vain = hl_clock_ns() > late_ns;
        }
    for (uint64_t at = begin; at < end; at += HL_TEAM_GRAIN)
        atomic_fetch_add(&c->times[at / HL_TEAM_GRAIN], 1);
    atomic_fetch_add(&c->ndone, end - begin);
}

static void check_coverage(unsigned nthreads, uint64_t n, int stalls)
{
    struct coverage c = {.n = n, .stalls = stalls};

    hl_team_run(nthreads, n, cover, &c);
    cr_assert_eq(c.ndone, n);
    for (uint64_t g = 0; g < sizeof c.times; g++)
        cr_assert_eq(c.times[g], g * HL_TEAM_GRAIN < n, "grain %u of %llu elements", (unsigned)g,
                     (unsigned long long)n);
    cr_assert_eq(c.waited_in_vain, 0, "nobody helped");
}

Test(adam_team, every_piece_is_worked_on_once)
{
    static const uint64_t sizes[] = {0, 1, 32767, 32768, 32769, 524288, 1048577, 1228800};

    for (unsigned s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (unsigned nthreads = 1; nthreads <= 5; nthreads++)
            check_coverage(nthreads, sizes[s], 0);
}

Test(adam_team, who_is_done_helps_a_thread_that_is_held_up)
{
    check_coverage(2, ELEMS, 1);
    check_coverage(4, ELEMS + 5, 1);
}

static void count(void *ctx, uint64_t begin, uint64_t end)
{
    atomic_fetch_add((atomic_uint *)ctx, end > begin);
}

Test(adam_team, shares_are_left_to_their_owners_where_that_is_asked)
{
    atomic_uint calls = 0;

    hl_team_run_apart(3, ELEMS, count, &calls);
    cr_assert_eq(calls, 3);
}

Test(adam_team, ranks_divide_the_cores)
{
    unsigned all = haul_optim_threads(1);

    cr_assert_geq(all, 1);
    cr_assert_eq(haul_optim_threads(0), all);
    cr_assert_eq(haul_optim_threads(2), all > 1 ? all / 2 : 1);
    cr_assert_eq(haul_optim_threads(100000), 1);
}

struct bound {
    atomic_uint wrong;
    unsigned nthreads;
    struct hl_topo *topo;
};

static void check_bound(void *ctx, uint64_t begin, uint64_t end)
{
    struct bound *b = ctx;
    struct hl_team_seat seat =
        hl_team_seat(b->topo, 0, 1, b->nthreads, (unsigned)omp_get_thread_num());
    cpu_set_t set;

    (void)begin;
    (void)end;
    sched_getaffinity(0, sizeof set, &set);
    if (CPU_COUNT(&set) != 1 || !CPU_ISSET((unsigned)seat.pu, &set))
        atomic_fetch_add(&b->wrong, 1);
}

Test(adam_team, a_bound_team_stays_bound)
{
    struct bound b = {.nthreads = haul_optim_threads(1)};

    if (b.nthreads < 2)
        SKIP("a second core");
    cr_assert_eq(hl_topo_open(NULL, &b.topo), 0);
    cr_assert_eq(hl_team_bind(0, 1, b.nthreads), 0, "%s", haul_last_error());
    for (int round = 0; round < 3; round++) {
        hl_team_run(b.nthreads, 1 << 20, check_bound, &b);
        check_team(b.nthreads, 100, 1);
    }
    cr_assert_eq(b.wrong, 0);
    hl_topo_close(b.topo);
}

Test(adam_team, binding_reports_every_failure)
{
    for (int64_t nth = 1; nth < 100; nth++) {
        int64_t mem = hl_sys_live(HL_SYS_MEM);
        int rc;

        if (hl_sys_fail_nth(nth, EPERM) < 0)
            SKIP("the failure switch of sys.h");
        rc = hl_team_bind(0, 1, 1);
        if (!hl_sys_failed()) {
            hl_sys_fail_nth(0, 0);
            cr_assert_eq(rc, 0);
            return;
        }
        hl_sys_fail_nth(0, 0);
        cr_assert_eq(rc, -EPERM, "call %d: %d", (int)nth, rc);
        cr_assert_eq(hl_sys_live(HL_SYS_MEM), mem);
    }
    cr_assert(0, "never passed");
}

Test(adam_team, first_touch_zeroes_and_refuses_nonsense)
{
    static unsigned char array[3 * 40000];

    memset(array, 7, sizeof array);
    cr_assert_eq(haul_optim_first_touch(array, 40000, 3, 2), 0);
    for (unsigned i = 0; i < sizeof array; i++)
        cr_assert_eq(array[i], 0);
    cr_assert_eq(haul_optim_first_touch(NULL, 1, 4, 1), -EINVAL);
    cr_assert_eq(haul_optim_first_touch(array, UINT64_MAX, 4, 1), -EINVAL);
    cr_assert_eq(haul_optim_first_touch(NULL, 0, 4, 1), 0);
    cr_assert_eq(haul_optim_first_touch(array, 40000, 3, 4097), -EINVAL);
    cr_assert_eq(hl_team_bind(0, 1, 4097), -EINVAL);
}
