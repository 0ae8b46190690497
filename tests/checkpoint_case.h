/*
 * checkpoint_case.h: ranks of a random model that load, train, save and tell their digest, as a case asks.
 */
#ifndef HAUL_TESTS_CHECKPOINT_CASE_H
#define HAUL_TESTS_CHECKPOINT_CASE_H

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "haul/checkpoint.h"
#include "random_model.h"
#include "suite.h"

enum { MOST_RANKS = 4 };

static const struct random_spot staying[] = {
    {.name = "records that stay on nvme, optimizer",
     .offload = HAUL_OFFLOAD_OPTIMIZER,
     .records = 0.3,
     .durable = 1},
    {.name = "records that stay on nvme, all",
     .offload = HAUL_OFFLOAD_ALL,
     .records = 0.3,
     .durable = 1},
    {.name = "records that stay on nvme, and parameters that do not",
     .offload = HAUL_OFFLOAD_ALL,
     .params = 0.3,
     .durable = 1},
};
enum { NSTAYING = sizeof staying / sizeof staying[0] };

/* What one process life does: load, steps up to `until`, save. */
struct life {
    const struct random_shape *shape; /* nranks of it */
    const struct random_spot *spot;
    enum haul_master master;
    unsigned stage, slots;
    unsigned until;      /* steps of the run so far, at the end of this life */
    const char *load;    /* path; NULL: from the beginning */
    const char *save;    /* root; NULL: not saved */
    unsigned save_every; /* and so often on the way; 0: at the end alone */
    struct haul_checkpoint_save_opts opts;
    /* results */
    int rc;
    char text[1024];
    uint64_t digest;
    struct haul_checkpoint_info info;
    double clip_least; /* of its steps: below 1 when some were clipped */
    unsigned nskipped;
};

static char dir[64];

static void make_dir(void)
{
    snprintf(dir, sizeof dir, "./ckpt.XXXXXX");
    cr_assert_not_null(mkdtemp(dir));
}

/* Where a flush costs nothing, if there is such a place: a killed process loses nothing that the kernel has. */
static inline void go_where_it_is_fast(void)
{
    if (access("/dev/shm", W_OK) == 0)
        cr_assert_eq(chdir("/dev/shm"), 0);
}

static void remove_tree(const char *path)
{
    char line[512];

    snprintf(line, sizeof line, "rm -rf '%s'", path);
    cr_assert_eq(system(line), 0);
}

static void remove_dir(void)
{
    remove_tree(dir);
}

static void in_dir(char out[256], const char *name)
{
    snprintf(out, 256, "%s/%s", dir, name);
}

struct rank {
    struct life *life;
    struct random_place place;
    pthread_t thread;
    int rc;
    char text[1024];
    uint64_t digest;
    struct haul_checkpoint_info info;
    double clip_least;
    unsigned nskipped;
};

static int save_now(struct rank *r, struct random_run *run)
{
    struct haul_checkpoint_save_opts opts = r->life->opts;

    opts.struct_size = sizeof opts;
    if (!opts.user) {
        opts.user = &run->step;
        opts.user_bytes = sizeof run->step;
    }
    return haul_checkpoint_save(run->engine, r->life->save, &opts);
}

static int live(struct rank *r, struct random_run *run)
{
    const struct life *l = r->life;
    struct haul_report report = {.struct_size = sizeof report};
    int rc = 0;

    if (l->load) {
        struct haul_checkpoint_load_opts opts;
        unsigned step = 0;
        haul_checkpoint_load_opts_init(&opts);
        opts.user = &step;
        opts.user_capacity = sizeof step;
        rc = haul_checkpoint_load(run->engine, l->load, &opts, &r->info);
        run->step = step;
    }
    while (rc == 0 && run->step < l->until) {
        rc = random_step(run, &report);
        r->clip_least = fmin(r->clip_least, report.skipped ? 1 : report.clip);
        r->nskipped += report.skipped != 0;
        if (rc == 0 && report.step != run->step)
            rc = -EILSEQ;
        if (rc == 0 && l->save && l->save_every && run->step % l->save_every == 0 &&
            run->step < l->until)
            rc = save_now(r, run);
    }
    if (rc == 0 && l->save)
        rc = save_now(r, run);
    if (rc == 0)
        rc = haul_checkpoint_wait(run->engine);
    return rc < 0 ? rc : haul_engine_digest(run->engine, &r->digest);
}

static void *rank_main(void *user)
{
    struct rank *r = user;
    struct random_run run;

    if (r->life->spot->records > 0 &&
        !random_page_records(r->life->shape, &r->place, r->life->spot->records))
        r->place.host_mem = 0;
    if (r->life->spot->params > 0 &&
        !random_page_params(r->life->shape, &r->place, r->life->spot->params))
        r->place.host_mem = 0;
    r->rc = random_open(&run, r->life->shape, &r->place);
    if (r->rc == 0) {
        r->rc = live(r, &run);
        snprintf(r->text, sizeof r->text, "%s", r->rc < 0 ? haul_last_error() : "");
        int rc = random_close(&run);
        r->rc = r->rc < 0 ? r->rc : rc;
    } else {
        snprintf(r->text, sizeof r->text, "%s", haul_last_error());
    }
    return NULL;
}

/* All ranks; they must say the same. */
static void run_life(struct life *l, const char *what)
{
    unsigned n = l->shape->nranks ? l->shape->nranks : 1;
    struct thread_world *world = n > 1 ? thread_world_open(n) : NULL;
    static struct rank rank[MOST_RANKS];

    random_watch(what, 100);
    for (unsigned i = 0; i < n; i++) {
        rank[i] = (struct rank){.life = l, .clip_least = 1};
        rank[i].place =
            (struct random_place){.offload = l->spot->offload,
                                  .master = l->master,
                                  .nthreads = 1,
                                  .slots = l->slots ? l->slots : 4,
                                  .window = 2,
                                  .slot_bytes = 60000,
                                  .io_method = UNDER_SANITIZER ? HAUL_IO_THREADS : HAUL_IO_AUTO,
                                  .nvme_durable = l->spot->durable,
                                  .nvme_dir = l->spot->records + l->spot->params > 0 ? dir : NULL,
                                  .stage = l->stage,
                                  .world = world,
                                  .rank = i};
        cr_assert_eq(pthread_create(&rank[i].thread, NULL, rank_main, &rank[i]), 0);
    }
    for (unsigned i = 0; i < n; i++)
        pthread_join(rank[i].thread, NULL);
    random_watch("", 0);
    if (world)
        thread_world_close(world);
    for (unsigned i = 1; i < n; i++) {
        cr_assert_eq(rank[i].rc < 0, rank[0].rc < 0, "%s: rank %u: %s; rank 0: %s", what, i,
                     rank[i].text, rank[0].text);
        if (rank[0].rc == 0)
            cr_assert_eq(rank[i].digest, rank[0].digest, "%s: rank %u has another digest", what, i);
    }
    l->rc = rank[0].rc;
    snprintf(l->text, sizeof l->text, "%s", rank[0].text);
    l->digest = rank[0].digest;
    l->info = rank[0].info;
    l->clip_least = rank[0].clip_least;
    l->nskipped = rank[0].nskipped;
}

static inline void must_live(struct life *l, const char *what)
{
    run_life(l, what);
    cr_assert_eq(l->rc, 0, "%s: %d: %s", what, l->rc, l->text);
}

#endif
