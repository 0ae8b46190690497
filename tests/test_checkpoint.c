/* Checkpoints: a resumed run has the bits of one that never stopped, whoever saved and wherever it goes on. */
#include "checkpoint_case.h"

/* Slow tools see fewer. */
static uint64_t nseeds(uint64_t n)
{
    return UNDER_SANITIZER || under_valgrind() ? 1 : n;
}

/* ---- exact resume ---- */

/* Clipping in most steps, a step in the middle that is skipped, a unit left out now and then. */
static void make_shape(struct random_shape *shape, uint64_t seed, unsigned nranks)
{
    random_shape_make(shape, seed, 6, 60000);
    shape->wander = 0;
    shape->nranks = nranks;
    shape->nsteps = 8;
    shape->inf_step = 5;
    shape->leave_out = seed % 2 && shape->nunits > 1 ? 3 : 0;
    shape->clip = 1;
}

static void resume_exactly(uint64_t seed, unsigned nranks, unsigned stage, enum haul_master master,
                           const struct spot *spot)
{
    struct random_shape shape;
    char root[256], what[160];

    make_shape(&shape, seed, nranks);
    in_dir(root, "resume");
    snprintf(what, sizeof what, "seed %u, %u ranks, stage %u, %s, %s", (unsigned)seed, nranks,
             stage, master == HAUL_MASTER_SPLIT ? "split" : "fp32", spot->name);
    struct life straight = {
        .shape = &shape, .spot = spot, .master = master, .stage = stage, .until = shape.nsteps};
    struct life first = straight, second = straight;
    must_live(&straight, what);
    for (unsigned at = 3; at <= 6; at += 3) { /* before and after the step that is skipped */
        first.until = at;
        first.save = root;
        must_live(&first, what);
        second.load = root;
        must_live(&second, what);
        cr_assert_eq(second.info.step, at, "%s", what);
        cr_assert_eq(second.digest, straight.digest, "%s, saved after %u: another digest", what,
                     at);
        remove_tree(root);
    }
    random_shape_free(&shape);
}

Test(checkpoint, a_resumed_run_has_the_bits_of_one_that_never_stopped)
{
    make_dir();
    for (uint64_t seed = 1; seed <= nseeds(6); seed++)
        for (unsigned i = 0; i < NSPOTS; i++)
            resume_exactly(seed, 1, 3, (seed + i) % 2 ? HAUL_MASTER_SPLIT : HAUL_MASTER_FP32,
                           &spots[i]);
    remove_dir();
}

Test(checkpoint, several_ranks_resume_exactly_in_every_stage)
{
    make_dir();
    for (uint64_t seed = 1; seed <= nseeds(3); seed++)
        for (unsigned i = 0; i < NSPOTS; i++)
            resume_exactly(seed, 2 + seed % 2, (unsigned)(seed + i) % 4,
                           (seed + i) % 2 ? HAUL_MASTER_SPLIT : HAUL_MASTER_FP32, &spots[i]);
    remove_dir();
}

Test(checkpoint, clipping_and_skipping_happen_in_these_runs)
{
    unsigned nclipped = 0, nskipped = 0;

    make_dir();
    for (uint64_t seed = 1; seed <= 6; seed++) {
        struct random_shape shape;
        make_shape(&shape, seed, 1);
        struct life l = {.shape = &shape, .spot = &spots[2], .until = shape.nsteps};
        must_live(&l, "alone");
        nclipped += l.clip_least < 1;
        nskipped += l.nskipped;
        random_shape_free(&shape);
    }
    cr_assert_gt(nclipped, 3);
    cr_assert_gt(nskipped, 3);
    remove_dir();
}

/* ---- behind training ---- */

static void save_behind(uint64_t seed, unsigned nranks, unsigned stage, enum haul_master master,
                        const struct spot *spot)
{
    struct random_shape shape;
    char root[256], one[300], what[160];

    make_shape(&shape, seed, nranks);
    in_dir(root, "behind");
    snprintf(what, sizeof what, "behind: seed %u, %u ranks, stage %u, %s, %s", (unsigned)seed,
             nranks, stage, master == HAUL_MASTER_SPLIT ? "split" : "fp32", spot->name);
    struct life straight = {
        .shape = &shape, .spot = spot, .master = master, .stage = stage, .until = shape.nsteps};
    struct life saving = straight, second = straight;
    must_live(&straight, what);
    saving.save = root;
    saving.save_every = 2; /* each is under way while the next steps train */
    saving.opts.background = 1;
    must_live(&saving, what);
    cr_assert_eq(saving.digest, straight.digest, "%s: saving changes the digest", what);
    for (unsigned at = 2; at <= shape.nsteps; at += 2) {
        snprintf(one, sizeof one, "%s/step-%010u", root, at);
        second.load = one;
        must_live(&second, what);
        cr_assert_eq(second.info.step, at, "%s", what);
        cr_assert_eq(second.digest, straight.digest, "%s, saved after %u: another digest", what,
                     at);
    }
    remove_tree(root);
    random_shape_free(&shape);
}

Test(checkpoint, a_save_behind_training_is_of_one_instant)
{
    make_dir();
    for (uint64_t seed = 1; seed <= nseeds(6); seed++)
        for (unsigned i = 0; i < NSPOTS; i++)
            save_behind(seed, 1, 3, (seed + i) % 2 ? HAUL_MASTER_SPLIT : HAUL_MASTER_FP32,
                        &spots[i]);
    remove_dir();
}

Test(checkpoint, several_ranks_save_behind_training)
{
    make_dir();
    for (uint64_t seed = 1; seed <= nseeds(3); seed++)
        for (unsigned i = 0; i < NSPOTS; i++)
            save_behind(seed, 2 + seed % 2, (unsigned)(seed + i) % 4,
                        (seed + i) % 2 ? HAUL_MASTER_SPLIT : HAUL_MASTER_FP32, &spots[i]);
    remove_dir();
}

/* Where a directory costs nothing the snapshot begins while updates of the step before are under way, and
 * their records on the way to the drive. */
static void save_at_once(uint64_t seed, const struct spot *spot, const char *memory)
{
    struct random_shape shape;
    char one[300], what[160];

    random_shape_make(&shape, seed, 6, 3000000);
    shape.wander = 0;
    shape.nsteps = 3;
    snprintf(what, sizeof what, "at once: seed %u, %s", (unsigned)seed, spot->name);
    struct life saving = {.shape = &shape,
                          .spot = spot,
                          .master = seed % 2 ? HAUL_MASTER_SPLIT : HAUL_MASTER_FP32,
                          .until = shape.nsteps,
                          .save = memory,
                          .save_every = 1};
    struct life second = saving;
    second.save = NULL;
    saving.opts.background = 1;
    must_live(&saving, what);
    for (unsigned at = 1; at <= shape.nsteps; at++) {
        snprintf(one, sizeof one, "%s/step-%010u", memory, at);
        second.load = one;
        must_live(&second, what);
        cr_assert_eq(second.digest, saving.digest, "%s, saved after %u: another digest", what, at);
    }
    remove_tree(memory);
    random_shape_free(&shape);
}

Test(checkpoint, a_snapshot_waits_for_updates_and_writes_under_way)
{
    char memory[64] = "/dev/shm/haul-ckpt.XXXXXX";

    if (UNDER_SANITIZER || under_valgrind())
        SKIP("a machine at full speed");
    if (!mkdtemp(memory))
        SKIP("a file system in memory: /dev/shm");
    make_dir();
    for (uint64_t seed = 3; seed <= 5; seed++)
        for (unsigned i = 2; i < NSPOTS; i++)
            save_at_once(seed, &spots[i], memory);
    remove_dir();
}

/* ---- another number of ranks, stage, tier, form ---- */

Test(checkpoint, state_goes_to_any_number_of_ranks_stage_tier_and_form)
{
    static const unsigned counts[] = {1, 2, 4};
    unsigned turn = 0;

    make_dir();
    for (uint64_t seed = 7; seed < 7 + nseeds(3); seed++)
        for (unsigned from = 0; from < 3; from++) {
            struct random_shape saved, loaded;
            char root[256];
            make_shape(&saved, seed, counts[from]);
            in_dir(root, "reshard");
            struct life first = {.shape = &saved,
                                 .spot = &spots[(seed + from) % NSPOTS],
                                 .stage = (unsigned)(seed + from) % 4,
                                 .master = from % 2 ? HAUL_MASTER_SPLIT : HAUL_MASTER_FP32,
                                 .until = 4,
                                 .save = root};
            must_live(&first, "save");
            for (unsigned to = 0; to < 3; to++, turn++) {
                make_shape(&loaded, seed, counts[to]);
                struct life second = {.shape = &loaded,
                                      .spot = &spots[turn % NSPOTS],
                                      .stage = turn % 4,
                                      .master = turn % 2 ? HAUL_MASTER_FP32 : HAUL_MASTER_SPLIT,
                                      .until = 4,
                                      .load = root};
                must_live(&second, "load");
                cr_assert_eq(second.digest, first.digest,
                             "seed %u: saved by %u, loaded by %u at stage %u, %s: another digest",
                             (unsigned)seed, counts[from], counts[to], second.stage,
                             second.spot->name);
                cr_assert_eq(second.info.nranks, counts[from]);
                random_shape_free(&loaded);
            }
            random_shape_free(&saved);
            remove_tree(root);
        }
    remove_dir();
}
