/* Several ranks in one process: one digest for every stage and place, and the twin's bits. */
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "random_model.h"
#include "suite.h"

enum { MOST_RANKS = 4 };

static char dir[64];

static void make_dir(void)
{
    snprintf(dir, sizeof dir, "./ranks.XXXXXX");
    cr_assert_not_null(mkdtemp(dir));
}

static void remove_dir(void)
{
    cr_assert_eq(rmdir(dir), 0, "%s is not empty: a scratch store leaves nothing", dir);
}

/* ---- all ranks of one run ---- */

struct rank {
    const struct random_shape *shape;
    struct random_place place;
    pthread_t thread;
    int rc;
    char text[512];
    uint64_t digest;
    int64_t differ;
    struct haul_report report[8];
    uint64_t planned[HAUL_NTIERS], peak[HAUL_NTIERS];
    double page_records, page_params; /* shares of them that go to nvme by budget; 0: unlimited */
    struct haul_comm_count counts[HAUL_COMM_NKINDS];
    const struct random_twin *twin; /* after the run; NULL: not compared */
    struct random_twin *steps;      /* rank 0: steps with the engine's clip */
};

static int train(struct rank *r)
{
    struct random_run run;
    int rc;

    /* budgets come from ledgers, which the ranks write together */
    if (r->page_records > 0 && !random_page_records(r->shape, &r->place, r->page_records))
        r->place.host_mem = 0;
    if (r->page_params > 0 && !random_page_params(r->shape, &r->place, r->page_params))
        r->place.host_mem = 0;
    rc = random_open(&run, r->shape, &r->place);
    if (rc < 0)
        return rc;
    for (unsigned s = 0; rc == 0 && s < r->shape->nsteps; s++) {
        rc = random_step(&run, &r->report[s]);
        if (rc == 0 && r->steps)
            random_twin_step(r->steps, r->report[s].clip);
    }
    if (rc == 0)
        rc = haul_engine_comm_counts(run.engine, r->counts);
    if (rc == 0)
        rc = haul_engine_digest(run.engine, &r->digest);
    if (rc == 0 && r->twin) {
        r->differ = random_compare(&run, r->twin);
        rc = r->differ < 0 ? (int)r->differ : 0;
    }
    for (int t = 0; rc == 0 && t < HAUL_NTIERS; t++)
        rc = haul_engine_tier_bytes(run.engine, t, &r->planned[t], &r->peak[t]);
    snprintf(r->text, sizeof r->text, "%s", rc < 0 ? haul_last_error() : "");
    int rc_close = random_close(&run);
    return rc < 0 ? rc : rc_close;
}

static void *rank_main(void *user)
{
    struct rank *r = user;

    r->rc = train(r);
    if (r->rc < 0 && !*r->text)
        snprintf(r->text, sizeof r->text, "%s", haul_last_error());
    return NULL;
}

/* place: of every rank. twin NULL: only digests. */
static void run_ranks(struct rank rank[], const struct random_shape *shape,
                      const struct random_place *place, const struct random_spot *spot,
                      struct random_twin *twin, const char *what)
{
    struct thread_world *world = thread_world_open(shape->nranks);

    random_watch(what, 100);
    for (unsigned i = 0; i < shape->nranks; i++) {
        rank[i] = (struct rank){.shape = shape, .place = *place, .twin = twin};
        rank[i].page_records = spot->records;
        rank[i].page_params = spot->params;
        rank[i].place.world = world;
        rank[i].place.rank = i;
        rank[i].place.jitter_seed = place->jitter_seed ? place->jitter_seed + i : 0;
        rank[i].steps = i == 0 ? twin : NULL;
        cr_assert_eq(pthread_create(&rank[i].thread, NULL, rank_main, &rank[i]), 0);
    }
    for (unsigned i = 0; i < shape->nranks; i++)
        pthread_join(rank[i].thread, NULL);
    thread_world_close(world);
    random_watch("", 0);
    for (unsigned i = 0; i < shape->nranks; i++)
        if (rank[i].rc < 0) /* the assertion shows one of them */
            fprintf(stderr, "%s, rank %u: %s\n", what, i, rank[i].text);
    for (unsigned i = 0; i < shape->nranks; i++) {
        cr_assert_eq(rank[i].rc, 0, "%s, rank %u: %s", what, i, rank[i].text);
        cr_assert_eq(rank[i].digest, rank[0].digest, "%s: rank %u has another digest", what, i);
        cr_assert_eq(rank[i].differ, 0, "%s, rank %u: %lld masters differ from the twin's", what, i,
                     (long long)rank[i].differ);
        for (int t = 0; t < HAUL_NTIERS; t++)
            cr_assert_eq(rank[i].planned[t], rank[i].peak[t],
                         "%s, rank %u, tier %d: planned %llu, measured %llu", what, i, t,
                         (unsigned long long)rank[i].planned[t],
                         (unsigned long long)rank[i].peak[t]);
    }
}

/* ---- places ---- */

static void draw(struct random_place *p, uint64_t *s)
{
    p->master = random_in(s, 0, 1) ? HAUL_MASTER_SPLIT : HAUL_MASTER_FP32;
    p->nthreads = 1;
    /* liburing maps its rings unseen by the thread sanitizer, which then takes one thread's ring for another's
     * that was at the same address before */
    p->io_method = HAUL_IO_THREADS;
    p->slots = (unsigned)random_in(s, 3, 8);
    p->window = (unsigned)random_in(s, 1, 4);
    p->no_overlap = random_in(s, 0, 3) == 0;
    p->slot_bytes = random_in(s, 1, 3) * 60000;
    p->jitter_seed = random_in(s, 0, 2) == 0 ? random_next(s) : 0;
}

/* What stages and spots must agree on. */
struct run {
    struct random_shape shape;
    uint64_t seed, draws, digest;
    uint64_t paged; /* runs that had something on nvme */
    bool delayed;   /* every rank's device works with random delays */
};

static void open_run(struct run *run, uint64_t seed, uint64_t elems)
{
    *run = (struct run){.seed = seed, .draws = seed};
    random_shape_make(&run->shape, seed, 8, elems);
    run->shape.nranks = (unsigned)random_in(&run->draws, 2, MOST_RANKS);
    run->shape.wander = 0;
}

static void run_spot(struct run *run, unsigned stage, const struct random_spot *spot)
{
    struct random_place place = {.offload = spot->offload,
                                 .stage = stage,
                                 .share = spot->share,
                                 .nvme_dir = spot->records + spot->params > 0 ? dir : NULL};
    struct random_twin twin;
    struct rank rank[MOST_RANKS];
    char what[128];

    draw(&place, &run->draws);
    if (run->delayed)
        place.jitter_seed = random_next(&run->draws) | 1;
    snprintf(what, sizeof what, "seed %llu, %u ranks, stage %u, %s", (unsigned long long)run->seed,
             run->shape.nranks, stage, spot->name);
    cr_assert_eq(random_twin_open(&twin, &run->shape), 0);
    run_ranks(rank, &run->shape, &place, spot, &twin, what);
    random_twin_close(&twin);
    if (run->digest == 0)
        run->digest = rank[0].digest;
    cr_assert_eq(rank[0].digest, run->digest, "%s: another digest", what);
    run->paged += rank[0].peak[HAUL_TIER_NVME] > 0;
}

Test(engine_ranks, one_digest_for_every_stage_and_offload)
{
    for (uint64_t seed = 1; seed <= 8; seed++) {
        struct run run;
        open_run(&run, seed, 60000);
        for (unsigned stage = 0; stage < 4; stage++)
            for (unsigned i = 0; i < 3; i++)
                run_spot(&run, stage, &random_spots[i]);
        random_shape_free(&run.shape);
    }
}

Test(engine_ranks, nvme_changes_no_bit_in_any_stage)
{
    uint64_t paged = 0;

    make_dir();
    for (uint64_t seed = 20; seed < 24; seed++) {
        struct run run;
        open_run(&run, seed, 400000);
        for (unsigned stage = 0; stage < 4; stage++)
            for (unsigned i = 2; i < RANDOM_SPOTS; i++)
                run_spot(&run, stage, &random_spots[i]);
        paged += run.paged;
        random_shape_free(&run.shape);
    }
    cr_assert_geq(paged, 20u, "only %llu runs had something on nvme", (unsigned long long)paged);
    remove_dir();
}

Test(engine_ranks, pulling_from_shared_memory_changes_no_bit)
{
    static const struct random_spot pulled[] = {
        {.name = "pulled", .offload = HAUL_OFFLOAD_ALL, .share = HAUL_SHARE_PULL},
        {.name = "pulled, records on nvme",
         .offload = HAUL_OFFLOAD_ALL,
         .records = 0.3,
         .share = HAUL_SHARE_PULL},
        {.name = "pulled, parameters on nvme",
         .offload = HAUL_OFFLOAD_ALL,
         .params = 0.3,
         .share = HAUL_SHARE_PULL}};

    make_dir();
    for (uint64_t seed = 42; seed < 46; seed++) {
        struct run run;
        open_run(&run, seed, 400000);
        run_spot(&run, 3, &random_spots[2]);
        for (unsigned i = 0; i < 3; i++)
            run_spot(&run, 3, &pulled[i]);
        random_shape_free(&run.shape);
    }
    remove_dir();
}

/* ---- figures of the papers ---- */

/* Units, tensors and steps alike, so that what comes too early or too late is another's. Run by mutants. */
Test(engine_ranks, random_delays_change_no_bit)
{
    static const struct random_spot delayed[] = {
        {.name = "none", .offload = HAUL_OFFLOAD_NONE},
        {.name = "optimizer", .offload = HAUL_OFFLOAD_OPTIMIZER},
        {.name = "all", .offload = HAUL_OFFLOAD_ALL},
        {.name = "pulled", .offload = HAUL_OFFLOAD_ALL, .share = HAUL_SHARE_PULL}};

    for (uint64_t seed = 1; seed <= 4; seed++) {
        struct run run = {.seed = seed, .draws = seed, .shape = random_even_shape(3)};
        run.shape.nsteps = 5;
        run.shape.passes = seed % 3 == 0 ? 2 : 1;
        run.delayed = true;
        for (unsigned stage = 0; stage < 4; stage++)
            for (unsigned i = 0; i < (stage == 3 ? 4u : 3u); i++)
                run_spot(&run, stage, &delayed[i]);
    }
}

/* Rajbhandari et al. 2020, figure 1, and ZeRO-Offload's split of it: bytes a parameter, by purpose. */
static double formula(unsigned stage, double n, enum haul_offload offload, enum haul_tier tier)
{
    double params = stage == 3 ? 2 / n : 2, grads = stage >= 2 ? 2 / n : 2;
    double records = stage >= 1 ? 12 / n : 12, device = 0, host = 0;

    *(offload == HAUL_OFFLOAD_ALL ? &host : &device) += params;
    *(offload == HAUL_OFFLOAD_NONE ? &device : &host) += grads + records;
    return tier == HAUL_TIER_DEVICE ? device : tier == HAUL_TIER_HOST ? host : 0;
}

/* What a rank's ledger says of model state; everything else has lines of its own. */
struct ledger_of {
    struct random_shape shape;
    struct random_place place;
    double state[HAUL_NTIERS];
    double padding;
    int rc;
};

static void *write_ledger(void *user)
{
    struct ledger_of *l = user;
    struct haul_ledger_line line;
    struct random_run run;

    l->rc = random_open(&run, &l->shape, &l->place);
    if (l->rc < 0)
        return NULL;
    for (uint32_t i = 0; haul_engine_ledger(run.engine, i, &line) == 0; i++) {
        bool is_state = strcmp(line.purpose, "parameters") == 0 ||
                        strcmp(line.purpose, "gradients") == 0 ||
                        strcmp(line.purpose, "records") == 0;
        l->state[line.tier] += is_state ? (double)line.bytes : 0;
        l->padding += strcmp(line.purpose, "padding") == 0 ? (double)line.bytes : 0;
    }
    l->rc = random_close(&run);
    return NULL;
}

Test(engine_ranks, state_takes_the_bytes_of_the_formulas)
{
    static const enum haul_offload offloads[] = {HAUL_OFFLOAD_NONE, HAUL_OFFLOAD_OPTIMIZER,
                                                 HAUL_OFFLOAD_ALL};

    for (unsigned n = 1; n <= 4; n *= 2)
        for (unsigned stage = 0; stage < 4; stage++)
            for (unsigned o = 0; o < 3; o++) {
                struct thread_world *world = thread_world_open(n);
                struct ledger_of of[MOST_RANKS];
                pthread_t thread[MOST_RANKS];
                for (unsigned r = 0; r < n; r++) {
                    of[r] = (struct ledger_of){
                        .shape = random_even_shape(n),
                        .place = {
                            .offload = offloads[o], .stage = stage, .world = world, .rank = r}};
                    cr_assert_eq(pthread_create(&thread[r], NULL, write_ledger, &of[r]), 0);
                }
                for (unsigned r = 0; r < n; r++)
                    pthread_join(thread[r], NULL);
                thread_world_close(world);
                for (unsigned r = 0; r < n; r++) {
                    cr_assert_eq(of[r].rc, 0);
                    for (enum haul_tier t = 0; t < HAUL_NTIERS; t++)
                        cr_assert_eq(of[r].state[t],
                                     formula(stage, n, offloads[o], t) * RANDOM_EVEN_UNITS *
                                         RANDOM_EVEN_ELEMS,
                                     "stage %u, rank %u of %u, offload %u, tier %u: %g bytes",
                                     stage, r, n, o, t, of[r].state[t]);
                    cr_assert_leq(of[r].padding, 3 * 4096.0, "whole pages only");
                }
            }
}

/* In elements sent, over parameters * (N - 1) / N: 2 in stages 0 to 2, 3 in stage 3, but that the units at the
 * turn from forward to backward are still in the window. */
Test(engine_ranks, traffic_is_that_of_the_formulas)
{
    static const struct random_spot spot = {.name = "all", .offload = HAUL_OFFLOAD_ALL};

    for (unsigned n = 2; n <= 4; n += 2)
        for (unsigned stage = 0; stage < 4; stage++)
            for (unsigned window = 1; window <= 2; window++) {
                struct random_shape shape = random_even_shape(n);
                struct random_place place = {
                    .offload = HAUL_OFFLOAD_ALL, .stage = stage, .window = window};
                struct rank rank[MOST_RANKS];
                double unit = (double)RANDOM_EVEN_ELEMS * (n - 1) / n;
                double kept = stage == 3 ? (double)window / RANDOM_EVEN_UNITS : 0, sent;
                run_ranks(rank, &shape, &place, &spot, NULL, "traffic");
                for (unsigned r = 0; r < n; r++) {
                    sent = (double)(rank[r].counts[HAUL_COMM_ALL_GATHER].sent_elems +
                                    rank[r].counts[HAUL_COMM_REDUCE_SCATTER].sent_elems);
                    sent /= unit * RANDOM_EVEN_UNITS * shape.nsteps;
                    /* the first step has nothing to bring together in stages 1 and 2 */
                    double first = stage == 1 || stage == 2 ? 1.0 / shape.nsteps : 0;
                    cr_assert_float_eq(sent, (stage == 3 ? 3 : 2) - kept - first, 1e-9,
                                       "stage %u, %u ranks, window %u: %g", stage, n, window, sent);
                }
            }
}

Test(engine_ranks, what_is_pulled_is_not_gathered)
{
    static const struct random_spot spot = {
        .name = "pulled", .offload = HAUL_OFFLOAD_ALL, .share = HAUL_SHARE_PULL};
    struct random_shape shape = random_even_shape(4);
    struct random_place place = {.offload = HAUL_OFFLOAD_ALL, .stage = 3, .share = HAUL_SHARE_PULL};
    struct rank rank[MOST_RANKS];

    run_ranks(rank, &shape, &place, &spot, NULL, "pulled");
    for (unsigned r = 0; r < 4; r++) {
        uint64_t lifted = rank[r].report[2].lanes[HAUL_LANE_H2D].bytes;
        cr_assert_eq(rank[r].counts[HAUL_COMM_ALL_GATHER].sent_elems, 0u);
        /* forward and backward, less what the window of two still holds; a fetch of the next step may be in */
        cr_assert_geq(lifted, 2u * RANDOM_EVEN_ELEMS * (2 * RANDOM_EVEN_UNITS - 2), "%llu bytes",
                      (unsigned long long)lifted);
    }
}
