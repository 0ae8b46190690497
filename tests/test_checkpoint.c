/* Checkpoints: a resumed run has the bits of one that never stopped, whoever saved and wherever it goes on. */
#include "checkpoint_case.h"

/* Slow tools see fewer. */
static uint64_t nseeds(uint64_t n)
{
    return UNDER_SANITIZER || under_valgrind() ? 1 : n;
}

typedef void (*run_fn)(uint64_t seed, unsigned nranks, unsigned stage, enum haul_master master,
                       const struct random_spot *spot);

/* One rank and several, in every spot, stage and form. */
static void in_spots(const struct random_spot *list, unsigned n, run_fn run)
{
    make_dir();
    for (uint64_t seed = 1; seed <= nseeds(6); seed++)
        for (unsigned i = 0; i < n; i++) {
            enum haul_master master = (seed + i) % 2 ? HAUL_MASTER_SPLIT : HAUL_MASTER_FP32;
            run(seed, 1, 3, master, &list[i]);
            if (seed <= nseeds(3))
                run(seed, 2 + seed % 2, (unsigned)(seed + i) % 4, master, &list[i]);
        }
    remove_dir();
}

static void everywhere(run_fn run)
{
    in_spots(random_spots, RANDOM_SPOTS, run);
}

static void where_records_stay(run_fn run)
{
    go_where_it_is_fast();
    in_spots(staying, NSTAYING, run);
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
                           const struct random_spot *spot)
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
    first.opts.keep_last = (uint32_t)seed % 2; /* 1: what stays on nvme is only there */
    for (unsigned at = 3; at <= 6; at += 3) {  /* before and after the step that is skipped */
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
    everywhere(resume_exactly);
}

Test(checkpoint, nor_does_one_whose_records_stay_on_nvme_have_others)
{
    where_records_stay(resume_exactly);
}

Test(checkpoint, clipping_and_skipping_happen_in_these_runs)
{
    unsigned nclipped = 0, nskipped = 0;

    make_dir();
    for (uint64_t seed = 1; seed <= 6; seed++) {
        struct random_shape shape;
        make_shape(&shape, seed, 1);
        struct life l = {.shape = &shape, .spot = &random_spots[2], .until = shape.nsteps};
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
                        const struct random_spot *spot)
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
    everywhere(save_behind);
}

Test(checkpoint, a_save_behind_training_of_records_that_stay_is_of_one_instant)
{
    where_records_stay(save_behind);
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
                                 .spot = &random_spots[(seed + from) % RANDOM_SPOTS],
                                 .stage = (unsigned)(seed + from) % 4,
                                 .master = from % 2 ? HAUL_MASTER_SPLIT : HAUL_MASTER_FP32,
                                 .until = 4,
                                 .save = root};
            must_live(&first, "save");
            for (unsigned to = 0; to < 3; to++, turn++) {
                make_shape(&loaded, seed, counts[to]);
                struct life second = {.shape = &loaded,
                                      .spot = &random_spots[turn % RANDOM_SPOTS],
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
