/*
 * engine_schedules.h: seeded fault schedules over the engine. Included by test_engine_schedules.c (few) and
 * test_engine_schedules_long.c (many), which define NSEEDS.
 *
 * A seed gives a small model, where its state rests, and what goes wrong and when: in the transfers of its
 * store, which runs through the faulty method, or in the n-th system call. Then either every step succeeds
 * and the digest is that of a run in host memory without faults, or an error is returned and the engine
 * refuses what comes after it. Faults that a store must hide may not be noticed at all. In the end
 * everything is given back.
 *
 * HAUL_SEEDS=17 or HAUL_SEEDS=1000-1999 in the environment: these seeds instead.
 */
#include <errno.h>
#include <unistd.h>

#include "method_fault.h"
#include "random_model.h"
#include "store.h"
#include "suite.h"
#include "sys.h"

/* The linker puts this in the place of haul_store_open(): engines get a store that can fail. */
int __wrap_haul_store_open(const struct haul_store_opts *opts, struct haul_store **out);
int __wrap_haul_store_open(const struct haul_store_opts *opts, struct haul_store **out)
{
    return hl_store_open_with(opts, &hl_method_fault, out);
}

/* ---- a schedule ---- */

enum trouble {
    SOFT = 0, /* the store must hide all of it */
    HARD,     /* transfers fail */
    SILENT,   /* transfers lie; soft and hard faults too */
    FULL,     /* from some write on the drive is full */
    CALL,     /* one system call fails */
    NTROUBLES
};
static const char *const trouble_name[NTROUBLES] = {"soft", "hard", "silent", "full", "call"};

struct schedule {
    uint64_t seed;
    enum trouble trouble;
    struct random_shape shape;
    struct random_place place;
    struct hl_fault_plan plan;
    int64_t call; /* CALL: which one fails, and how */
    int err;
    unsigned armed_at; /* 0: before open; s: before step s */
    int armed_while_closing;
    int paged, params_paged; /* what the model is large enough for */
};

/* What became of all seeds together. */
static struct tally {
    unsigned nseeds, nright[NTROUBLES], nerrors[NTROUBLES], npaged, nparams_paged, nstashes;
    uint64_t delivered[HL_NFAULTS];
} tally;

static const struct hl_method_ops *inner_method(enum haul_io_method method)
{
#ifdef HL_TEST_URING
    if (method == HAUL_IO_URING)
        return &hl_method_uring;
#endif
    (void)method;
    return &hl_method_threads;
}

static void draw_rates(struct schedule *sc, uint64_t *s)
{
    static const uint32_t most[] = {2, 8, 30};

    sc->plan.reorder = (int)random_in(s, 0, 1);
    for (int k = HL_FAULT_SHORT_ALIGNED; sc->trouble != CALL && k <= HL_FAULT_STALE; k++)
        sc->plan.rate[k] = (uint32_t)random_in(s, 0, 80);
    if (sc->trouble == HARD || sc->trouble == SILENT)
        for (int k = HL_FAULT_EIO; k <= HL_FAULT_TORN; k++)
            sc->plan.rate[k] = (uint32_t)random_in(s, 0, most[random_in(s, 0, 2)]);
    if (sc->trouble == SILENT)
        for (int k = HL_FAULT_LOST; k <= HL_FAULT_FLIP; k++)
            sc->plan.rate[k] = (uint32_t)random_in(s, 0, most[random_in(s, 0, 2)]);
    if (sc->trouble == FULL)
        sc->plan.enospc_after_writes = random_in(s, 1, 150);
}

static void draw_place(struct schedule *sc, const char *dir, int want_params, uint64_t *s)
{
    static const double share[] = {0, 0.3, 0.6, 0.9};
    struct random_place *p = &sc->place;

    p->offload = want_params || random_in(s, 0, 1) ? HAUL_OFFLOAD_ALL : HAUL_OFFLOAD_OPTIMIZER;
    p->master = random_in(s, 0, 1) ? HAUL_MASTER_SPLIT : HAUL_MASTER_FP32;
    p->nthreads = (unsigned)random_in(s, 1, 2);
    p->slots = (unsigned)random_in(s, 2, 6);
    p->window = (unsigned)random_in(s, 1, 4);
    p->no_overlap = random_in(s, 0, 3) == 0;
    p->slot_bytes = random_in(s, 1, 3) * 60000;
    p->nvme_dir = dir;
    /* of the two, only the threads make system calls that can be told to fail */
    p->io_method = random_in(s, 0, 1) && sc->trouble != CALL ? HAUL_IO_URING : HAUL_IO_THREADS;
    p->jitter_seed = random_in(s, 0, 3) == 0 ? random_next(s) : 0;
    p->stash_bytes = random_in(s, 0, 3) == 0 ? 4 * random_in(s, 1, 15000) : 0;
    double part = share[random_in(s, 0, 3)];
    sc->params_paged = want_params && random_page_params(&sc->shape, p, part);
    sc->paged = sc->params_paged || random_page_records(&sc->shape, p, part);
    if (!sc->paged)
        p->host_mem = 0;
}

/* The first of a few shapes that is large enough for what the seed wants to page. */
static void draw_model(struct schedule *sc, const char *dir, uint64_t *s)
{
    int want_params = random_in(s, 0, 2) == 0;

    for (unsigned attempt = 0; attempt < 12; attempt++) {
        random_shape_free(&sc->shape);
        random_shape_make(&sc->shape, sc->seed + attempt * 1000000007ull, 10,
                          120000 + random_in(s, 0, 100000));
        draw_place(sc, dir, want_params, s);
        if (sc->paged && sc->params_paged == want_params)
            break;
    }
}

static void draw(struct schedule *sc, uint64_t seed, const char *dir)
{
    static const int errs[] = {EIO, ENOSPC, ENOMEM, EAGAIN, EINTR};
    uint64_t s = seed * 1000003 + 17;

    *sc = (struct schedule){.seed = seed, .trouble = (enum trouble)(seed % NTROUBLES)};
    draw_model(sc, dir, &s);
    draw_rates(sc, &s);
    sc->plan.seed = random_next(&s);
    sc->plan.inner = inner_method(sc->place.io_method);
    sc->armed_at = (unsigned)random_in(&s, 0, sc->shape.nsteps);
    sc->armed_while_closing = (int)random_in(&s, 0, 1);
    sc->call = (int64_t)random_in(&s, 1, sc->armed_at ? 40 : 400);
    sc->err = errs[random_in(&s, 0, 4)];
}

static void arm(const struct schedule *sc)
{
    hl_fault_arm(&sc->plan);
    if (sc->trouble == CALL)
        cr_assert_eq(hl_sys_fail_nth(sc->call, sc->err), 0);
}

static void disarm(void)
{
    for (int k = 0; k < HL_NFAULTS; k++)
        tally.delivered[k] += hl_fault_count((enum hl_fault_kind)k);
    hl_fault_disarm();
    (void)hl_sys_fail_nth(0, 0);
}

/* ---- running one ---- */

/* Where a run ended. */
struct end {
    int rc;
    int in_step; /* the error came from a step: the engine's own, and it stays */
    uint64_t digest;
};

static int train(struct random_run *run, const struct schedule *sc, struct end *end)
{
    for (unsigned step = 1; step <= sc->shape.nsteps; step++) {
        if (sc->armed_at == step)
            arm(sc);
        end->rc = random_step(run, NULL);
        end->in_step = end->rc < 0;
        if (end->rc < 0)
            return end->rc;
    }
    end->rc = haul_device_stream_sync(run->dev, run->stream);
    if (end->rc == 0)
        end->rc = haul_engine_sync(run->engine);
    end->in_step = end->rc < 0;
    if (end->rc == 0)
        end->rc = haul_engine_digest(run->engine, &end->digest);
    return end->rc;
}

/* After an error: the engine says the same again, whatever it is asked. */
static const char *goes_on(struct random_run *run, const struct end *end)
{
    struct haul_view view;
    uint64_t digest;

    if (random_step(run, NULL) != end->rc)
        return "a step after the error did not return it";
    if (haul_unit_acquire(run->unit[0], run->stream, &view) != end->rc)
        return "acquire after the error did not return it";
    if (haul_engine_sync(run->engine) != end->rc)
        return "sync after the error did not return it";
    if (haul_engine_digest(run->engine, &digest) >= 0)
        return "digest after the error gave a digest";
    return NULL;
}

/* The state could not be read, but is what it was: read it again, with a drive that works. */
static const char *read_again(struct random_run *run, const struct schedule *sc, uint64_t right)
{
    uint64_t digest = 0;

    disarm();
    if (haul_engine_digest(run->engine, &digest) == 0 && digest != right)
        return "the digest of the second attempt is wrong";
    if (sc->armed_while_closing)
        arm(sc);
    return NULL;
}

static const char *judge(struct random_run *run, const struct schedule *sc, const struct end *end,
                         uint64_t right)
{
    if (run->nstash_wrong)
        return "what was stashed came back changed";
    if (end->rc == 0)
        return end->digest == right ? NULL : "wrong digest";
    if (sc->trouble == SOFT)
        return "a fault that the store must hide was noticed";
    if (strlen(haul_last_error()) < 10)
        return "an error without a text";
    return end->in_step ? goes_on(run, end) : read_again(run, sc, right);
}

static const char *run_faulty(const struct schedule *sc, uint64_t right, struct end *end)
{
    struct random_run run;
    const char *wrong = NULL;

    hl_fault_arm(&(struct hl_fault_plan){.inner = sc->plan.inner});
    if (sc->armed_at == 0)
        arm(sc);
    end->rc = random_open(&run, &sc->shape, &sc->place);
    if (end->rc < 0) {
        if (sc->trouble == SOFT)
            wrong = "open failed over a fault that the store must hide";
        disarm();
        return wrong;
    }
    train(&run, sc, end);
    wrong = judge(&run, sc, end, right);
    if (!sc->armed_while_closing)
        disarm();
    int rc = random_close(&run);
    disarm();
    return wrong ? wrong : rc < 0 ? "the device was closed with something open on it" : NULL;
}

static const char *run_right(const struct schedule *sc, uint64_t *digest)
{
    struct random_place host = {.offload = HAUL_OFFLOAD_ALL, .nthreads = 1, .window = 2};
    struct schedule calm = {.shape = sc->shape, .armed_at = UINT32_MAX};
    struct random_run run;
    struct end end = {0};

    if (random_open(&run, &sc->shape, &host) < 0)
        return "the run in host memory did not open";
    (void)train(&run, &calm, &end);
    *digest = end.digest;
    int rc = random_close(&run);
    return end.rc < 0 || rc < 0 ? "the run in host memory failed" : NULL;
}

/* ---- all of them ---- */

static char alive[HL_SYS_NKINDS][16] = {"heap blocks", "mappings", "descriptors", "threads"};

static const char *something_alive(const int64_t before[HL_SYS_NKINDS])
{
    static char text[64];

    for (int k = 0; k < HL_SYS_NKINDS; k++)
        if (hl_sys_live(k) != before[k]) {
            snprintf(text, sizeof text, "%s: %lld alive, %lld before", alive[k],
                     (long long)hl_sys_live(k), (long long)before[k]);
            return text;
        }
    return NULL;
}

/* No seed takes longer than this by far. */
static void watch(uint64_t seed)
{
    char name[64];

    snprintf(name, sizeof name, "HAUL_SEEDS=%llu", (unsigned long long)seed);
    random_watch(name, 60);
}

static const char *place_of(uint64_t seed, char dir[64])
{
    snprintf(dir, 64, "%s/schedule.XXXXXX", seed / NTROUBLES % 2 ? "/dev/shm" : ".");
    return mkdtemp(dir);
}

static const char *run_seed(uint64_t seed, struct end *end, const char **what)
{
    int64_t before[HL_SYS_NKINDS];
    struct schedule sc;
    uint64_t right = 0;
    char dir[64];

    cr_assert_not_null(place_of(seed, dir));
    for (int k = 0; k < HL_SYS_NKINDS; k++)
        before[k] = hl_sys_live(k);
    draw(&sc, seed, dir);
    *what = trouble_name[sc.trouble];
    const char *wrong = run_right(&sc, &right);
    if (!wrong)
        wrong = run_faulty(&sc, right, end);
    if (!wrong)
        wrong = something_alive(before);
    random_shape_free(&sc.shape);
    if (rmdir(dir) < 0 && !wrong)
        wrong = "a scratch store left a file";
    tally.nseeds++;
    tally.npaged += (unsigned)sc.paged;
    tally.nparams_paged += (unsigned)sc.params_paged;
    tally.nstashes += sc.place.stash_bytes != 0;
    (end->rc < 0 ? tally.nerrors : tally.nright)[sc.trouble]++;
    return wrong;
}

static void seeds_to_run(uint64_t *from, uint64_t *to)
{
    const char *asked = getenv("HAUL_SEEDS");
    char *rest;

    *from = 0;
    *to = NSEEDS - 1;
    if (!asked)
        return;
    *from = *to = strtoull(asked, &rest, 0);
    if (*rest == '-')
        *to = strtoull(rest + 1, NULL, 0);
}

/* What is set up once per process (topology, team) is no seed's. */
static void warm_up(void)
{
    struct schedule sc = {.seed = 0};
    uint64_t digest;

    random_shape_make(&sc.shape, 0, 4, 10000);
    cr_assert_null(run_right(&sc, &digest), "%s", haul_last_error());
    random_shape_free(&sc.shape);
}

/* A schedule that never fails, or always does, tests little. */
static void check_tally(void)
{
    unsigned nerrors = 0;

    for (int t = 0; t < NTROUBLES; t++) {
        fprintf(stderr, "%-6s %5u right, %5u errors\n", trouble_name[t], tally.nright[t],
                tally.nerrors[t]);
        nerrors += tally.nerrors[t];
    }
    fprintf(stderr,
            "%u seeds, %u with records on nvme, %u with parameters there, %u with a stash\n",
            tally.nseeds, tally.npaged, tally.nparams_paged, tally.nstashes);
    if (tally.nseeds < 100)
        return;
    cr_assert_gt(nerrors, tally.nseeds / 5, "%u errors in %u seeds", nerrors, tally.nseeds);
    cr_assert_lt(nerrors, tally.nseeds * 4 / 5, "%u errors in %u seeds", nerrors, tally.nseeds);
    cr_assert_gt(tally.npaged, tally.nseeds * 4 / 5);
    cr_assert_gt(tally.nparams_paged, tally.nseeds / 8);
    cr_assert_gt(tally.nstashes, tally.nseeds / 8);
    for (int k = HL_FAULT_SHORT_ALIGNED; k < HL_NFAULTS; k++)
        cr_assert_gt(tally.delivered[k], 0, "fault %d never came", k);
}

Test(engine_schedules, every_schedule_of_faults_ends_in_the_right_bits_or_an_error)
{
    uint64_t from, to;

    seeds_to_run(&from, &to);
    warm_up();
    for (uint64_t seed = from; seed <= to; seed++) {
        struct end end = {0};
        const char *what = "";

        watch(seed);
        const char *wrong = run_seed(seed, &end, &what);
        cr_assert_null(wrong, "HAUL_SEEDS=%llu (%s): %s; %d, %s", (unsigned long long)seed, what,
                       wrong, end.rc, haul_last_error());
    }
    random_watch("", 0);
    check_tally();
}
