/* Several ranks that do not do the same: ranks that die, other models, other options, other calls, other budgets. */
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "random_model.h"
#include "suite.h"

/* ---- ranks that differ, and ranks that go ---- */

/* Ranks [0, n) at once: fn on each of n structs of so many bytes. */
static void run_together(const char *what, unsigned n, void *(*fn)(void *), void *ranks,
                         size_t bytes)
{
    pthread_t thread[3];

    random_watch(what, 60);
    for (unsigned r = 0; r < n; r++)
        cr_assert_eq(pthread_create(&thread[r], NULL, fn, (char *)ranks + r * bytes), 0);
    for (unsigned r = 0; r < n; r++)
        pthread_join(thread[r], NULL);
    random_watch("", 0);
}

struct odd {
    const struct random_shape *shape;
    struct random_place place;
    unsigned dies_at; /* step; 0: never */
    int rc;
    char text[512];
    uint64_t digest, host_bytes;
};

static void *odd_main(void *user)
{
    struct odd *o = user;
    struct random_run run;
    uint64_t planned;
    int rc = random_open(&run, o->shape, &o->place), rc_close;

    for (unsigned s = 1; rc == 0 && s <= o->shape->nsteps; s++) {
        if (s == o->dies_at)
            thread_comm_die(run.comm);
        rc = random_step(&run, NULL);
    }
    if (rc == 0)
        rc = haul_engine_digest(run.engine, &o->digest);
    if (rc == 0)
        rc = haul_engine_tier_bytes(run.engine, HAUL_TIER_HOST, &planned, &o->host_bytes);
    snprintf(o->text, sizeof o->text, "%s", rc < 0 ? haul_last_error() : "");
    rc_close = run.engine ? random_close(&run) : 0;
    o->rc = rc;
    if (rc_close < 0)
        o->rc = 1; /* nothing may be left behind */
    return NULL;
}

static void run_odd(struct odd odd[], unsigned n)
{
    struct thread_world *world = thread_world_open(n);

    for (unsigned r = 0; r < n; r++) {
        odd[r].place.world = world;
        odd[r].place.rank = r;
    }
    run_together("ranks that differ", n, odd_main, odd, sizeof *odd);
    thread_world_close(world);
}

Test(engine_ranks_differ, a_rank_that_dies_ends_the_others_with_an_error)
{
    for (unsigned i = 0; i < 12; i++) {
        struct random_shape shape = random_even_shape(3);
        struct odd odd[3];
        shape.nsteps = 5;
        for (unsigned r = 0; r < 3; r++)
            odd[r] = (struct odd){
                .shape = &shape,
                .place = {.offload = (enum haul_offload)(i % 3), .stage = i % 4, .timeout_s = 0.3},
                .dies_at = r == i % 3 ? 1 + i % 4 : 0};
        run_odd(odd, 3);
        for (unsigned r = 0; r < 3; r++)
            cr_assert_eq(odd[r].rc, HAUL_E_MPI, "run %u, rank %u: %d, %s", i, r, odd[r].rc,
                         odd[r].text);
    }
}

Test(engine_ranks_differ, other_models_and_options_are_refused_and_named)
{
    struct random_shape shape = random_even_shape(2), other = random_even_shape(2);
    struct random_unit units[RANDOM_EVEN_UNITS];
    struct odd odd[2] = {{.shape = &shape}, {.shape = &other}};

    memcpy(units, shape.unit, sizeof units);
    other.unit = units;
    units[3].tensor[0].frozen = 1;
    run_odd(odd, 2);
    for (unsigned r = 0; r < 2; r++) {
        cr_assert_eq(odd[r].rc, HAUL_E_PLAN);
        cr_assert_not_null(strstr(odd[r].text, "tensors"), "%s", odd[r].text);
    }
    units[3].tensor[0].frozen = 0;
    odd[1].place.stage = 2;
    run_odd(odd, 2);
    for (unsigned r = 0; r < 2; r++) {
        cr_assert_eq(odd[r].rc, HAUL_E_PLAN);
        cr_assert_not_null(strstr(odd[r].text, "opts.stage"), "%s", odd[r].text);
    }
}

/* What one rank gets wrong in step, all hear of, and the step can be taken again. */
struct stepper {
    struct random_run run;
    struct random_place place;
    const struct random_shape *shape;
    struct haul_step wrong;
    int rc_open, rc_wrong, rc_right;
    char text[256];
    uint64_t digest;
};

static void *step_wrongly(void *user)
{
    struct stepper *s = user;
    struct haul_step right = {.lr = 1e-3, .grad_scale = 1};

    s->rc_open = random_open(&s->run, s->shape, &s->place);
    if (s->rc_open < 0)
        return NULL;
    s->rc_wrong = haul_engine_step(s->run.engine, &s->wrong, NULL);
    snprintf(s->text, sizeof s->text, "%s", s->rc_wrong < 0 ? haul_last_error() : "");
    s->rc_right = haul_engine_step(s->run.engine, &right, NULL);
    if (s->rc_right == 0)
        s->rc_right = haul_engine_digest(s->run.engine, &s->digest);
    s->rc_open = random_close(&s->run);
    return NULL;
}

static void run_steppers(struct stepper s[2], struct haul_step wrong)
{
    static struct random_shape shape;
    struct thread_world *world = thread_world_open(2);

    shape = random_even_shape(2);
    for (unsigned r = 0; r < 2; r++) {
        s[r] = (struct stepper){.shape = &shape,
                                .place = {.offload = HAUL_OFFLOAD_ALL,
                                          .stage = 3,
                                          .world = world,
                                          .rank = r,
                                          .timeout_s = 20},
                                .wrong = r ? wrong : (struct haul_step){.lr = 1e-3}};
    }
    run_together("steps that differ", 2, step_wrongly, s, sizeof *s);
    thread_world_close(world);
    for (unsigned r = 0; r < 2; r++) {
        cr_assert_eq(s[r].rc_open, 0);
        cr_assert_eq(s[r].rc_right, 0, "the step can be taken after that");
    }
}

Test(engine_ranks_differ, a_step_that_one_rank_calls_wrongly_is_taken_by_none)
{
    struct stepper s[2];

    run_steppers(s, (struct haul_step){.lr = NAN});
    cr_assert_eq(s[1].rc_wrong, -EINVAL);
    cr_assert_not_null(strstr(s[1].text, "learning rate"), "%s", s[1].text);
    cr_assert_eq(s[0].rc_wrong, HAUL_E_STATE);
    cr_assert_not_null(strstr(s[0].text, "another rank"), "%s", s[0].text);
    run_steppers(s, (struct haul_step){.lr = 2e-3});
    for (unsigned r = 0; r < 2; r++) {
        cr_assert_eq(s[r].rc_wrong, HAUL_E_STATE);
        cr_assert_not_null(strstr(s[r].text, "different learning rates"), "%s", s[r].text);
    }
}

/* ---- calls that differ ---- */

enum differ { OTHER_CALL, STILL_HELD, BAD_RANGE, FILL_FAILS, OTHER_ORDER };

struct caller {
    enum differ how;
    struct random_place place;
    const struct random_shape *shape;
    int rc_open, rc, rc_after;
    char text[256];
    uint64_t digest;
};

static int failing_fill(void *user, const char *unit, uint32_t tensor, uint64_t first, uint64_t n,
                        float *out)
{
    memset(out, 0, n * sizeof *out);
    return *(const unsigned *)user == 1 ? -EIO : 0;
}

static int visit(struct random_run *run, unsigned unit)
{
    struct haul_view view;
    int rc = haul_unit_acquire(run->unit[unit], run->stream, &view);

    return rc < 0 ? rc : haul_unit_release(run->unit[unit], run->stream);
}

/* Rank 1 does otherwise than rank 0. */
static int call_otherwise(struct caller *c, struct random_run *run)
{
    struct haul_step step = {.lr = 1e-3};
    struct haul_view view;
    unsigned me = c->place.rank;
    uint64_t digest;
    float one;
    int rc;

    switch (c->how) {
    case OTHER_CALL:
        return me ? haul_tensor_read(run->unit[0], 0, 0, 1, &one)
                  : haul_engine_digest(run->engine, &digest);
    case STILL_HELD:
        if ((rc = haul_unit_acquire(run->unit[0], run->stream, &view)) < 0 ||
            (me == 0 && (rc = haul_unit_release(run->unit[0], run->stream)) < 0))
            return rc;
        rc = haul_engine_digest(run->engine, &digest);
        snprintf(c->text, sizeof c->text, "%s", haul_last_error());
        if (me == 1 && haul_unit_release(run->unit[0], run->stream) < 0)
            return 0;
        return rc;
    case BAD_RANGE:
        return haul_tensor_read(run->unit[0], me ? 77 : 0, 0, 1, &one);
    case FILL_FAILS:
        return haul_engine_fill(run->engine, failing_fill, &me);
    case OTHER_ORDER:
        if ((rc = visit(run, me)) < 0 || (rc = visit(run, !me)) < 0)
            return rc;
        return haul_engine_step(run->engine, &step, NULL);
    }
    return 0;
}

static void *caller_main(void *user)
{
    struct caller *c = user;
    struct random_run run;

    c->rc_open = random_open(&run, c->shape, &c->place);
    if (c->rc_open < 0)
        return NULL;
    c->rc = call_otherwise(c, &run);
    if (!*c->text)
        snprintf(c->text, sizeof c->text, "%s", c->rc < 0 ? haul_last_error() : "");
    c->rc_after = haul_engine_digest(run.engine, &c->digest);
    c->rc_open = random_close(&run);
    return NULL;
}

Test(engine_ranks_differ, calls_that_differ_are_refused_on_all_and_harm_nothing)
{
    static const struct {
        enum differ how;
        int rc[2];
        const char *text[2];
    } cases[] = {
        {OTHER_CALL, {HAUL_E_STATE, HAUL_E_STATE}, {"another call", "another call"}},
        {STILL_HELD, {HAUL_E_STATE, HAUL_E_STATE}, {"another rank's call", "are held"}},
        {BAD_RANGE, {HAUL_E_STATE, -EINVAL}, {"another rank's call", "tensor 77"}},
        {FILL_FAILS, {HAUL_E_STATE, -EIO}, {"failed on another rank", "callback failed"}},
        {OTHER_ORDER, {HAUL_E_STATE, HAUL_E_STATE}, {"different orders", "different orders"}},
    };
    struct random_shape shape = random_even_shape(2);

    for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct thread_world *world = thread_world_open(2);
        struct caller c[2];
        for (unsigned r = 0; r < 2; r++) {
            c[r] = (struct caller){.how = cases[i].how,
                                   .shape = &shape,
                                   .place = {.offload = HAUL_OFFLOAD_ALL,
                                             .stage = 3,
                                             .world = world,
                                             .rank = r,
                                             .timeout_s = 10}};
        }
        run_together("calls that differ", 2, caller_main, c, sizeof *c);
        thread_world_close(world);
        for (unsigned r = 0; r < 2; r++) {
            cr_assert_eq(c[r].rc_open, 0);
            cr_assert_eq(c[r].rc, cases[i].rc[r], "case %u, rank %u: %d, %s", i, r, c[r].rc,
                         c[r].text);
            cr_assert_not_null(strstr(c[r].text, cases[i].text[r]), "case %u, rank %u: %s", i, r,
                               c[r].text);
            cr_assert_eq(c[r].rc_after, 0, "case %u: the ranks go on together", i);
            cr_assert_eq(c[r].digest, c[0].digest);
        }
    }
}

Test(engine_ranks_differ, the_least_budget_places_for_all)
{
    struct random_shape shape = random_even_shape(2);
    struct random_place place = {.offload = HAUL_OFFLOAD_ALL, .stage = 3};
    struct odd odd[2], small[2];
    char dir[] = "./ranks.XXXXXX";

    cr_assert_not_null(mkdtemp(dir));
    for (unsigned r = 0; r < 2; r++)
        odd[r] = (struct odd){.shape = &shape, .place = place};
    run_odd(odd, 2);
    for (unsigned r = 0; r < 2; r++) {
        small[r] = (struct odd){.shape = &shape, .place = place};
        small[r].place.nvme_dir = dir;
        small[r].place.slot_bytes = 60000;
        small[r].place.host_mem = odd[0].host_bytes - (r ? 60000 : 0);
    }
    run_odd(small, 2);
    for (unsigned r = 0; r < 2; r++) {
        cr_assert_eq(odd[r].rc, 0, "%s", odd[r].text);
        cr_assert_eq(small[r].rc, 0, "%s", small[r].text);
        cr_assert_eq(small[r].digest, odd[0].digest);
        cr_assert_leq(small[r].host_bytes, small[1].place.host_mem);
    }
    cr_assert_eq(rmdir(dir), 0, "%s is not empty: a scratch store leaves nothing", dir);
}
