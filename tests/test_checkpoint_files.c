/* What a checkpoint's files may look like: damage is refused by name, failures leave what was there. */
#include "checkpoint_case.h"
#include "sys.h"

#include <sys/file.h>

/* Of several units. */
static void make_shape(struct random_shape *shape)
{
    for (uint64_t seed = 3;; seed++) {
        random_shape_make(shape, seed, 4, 30000);
        shape->wander = 0;
        if (shape->nunits > 1 && shape->unit[0].ntensors > 1)
            return;
        random_shape_free(shape);
    }
}

/* A model of a few blocks, and a root with checkpoints after steps 1 and 2 of it. */
struct saved {
    struct random_shape shape;
    struct life life;
    char root[256], newest[300];
    uint64_t digest[2];
};

static void make_saved(struct saved *s)
{
    make_shape(&s->shape);
    s->shape.nranks = 2;
    in_dir(s->root, "root");
    for (unsigned step = 1; step <= 2; step++) {
        s->life = (struct life){.shape = &s->shape,
                                .spot = &random_spots[2],
                                .stage = 3,
                                .until = step,
                                .save = s->root};
        s->life.load = step == 2 ? s->root : NULL;
        must_live(&s->life, "save");
        s->digest[step - 1] = s->life.digest;
    }
    snprintf(s->newest, sizeof s->newest, "%s/step-0000000002", s->root);
    s->life.save = NULL;
}

/* Load a path; nothing is trained. */
static void load_path(struct saved *s, const char *path)
{
    s->life.load = path;
    s->life.until = 0;
    run_life(&s->life, path);
}

static void file_of(const struct saved *s, const char *name, char out[320])
{
    snprintf(out, 320, "%s/%s", s->newest, name);
}

static void flip(const char *path, long at)
{
    FILE *f = fopen(path, "r+b");
    int byte;

    cr_assert_not_null(f);
    cr_assert_eq(fseek(f, at, at < 0 ? SEEK_END : SEEK_SET), 0);
    byte = fgetc(f);
    cr_assert_eq(fseek(f, -1, SEEK_CUR), 0);
    fputc(byte ^ 1, f);
    fclose(f);
}

/* The newest is refused by the file's name, and from the root the older one is taken. */
static void refused(struct saved *s, const char *what, const char *file)
{
    load_path(s, s->newest);
    cr_assert_lt(s->life.rc, 0, "%s: loaded", what);
    cr_assert_not_null(strstr(s->life.text, file), "%s: %s", what, s->life.text);
    load_path(s, s->root);
    cr_assert_eq(s->life.rc, 0, "%s: %s", what, s->life.text);
    cr_assert_eq(s->life.info.step, 1, "%s: step %d", what, (int)s->life.info.step);
    cr_assert_eq(s->life.info.nskipped, 1, "%s", what);
    cr_assert_not_null(strstr(s->life.info.skipped, "step-0000000002: "), "%s: %s", what,
                       s->life.info.skipped);
    cr_assert_eq(s->life.digest, s->digest[0], "%s: another digest", what);
}

static void quiet(void *user, enum haul_log_level level, const char *text)
{
}

static void accepted(struct saved *s, const char *what)
{
    load_path(s, s->root);
    cr_assert_eq(s->life.rc, 0, "%s: %s", what, s->life.text);
    cr_assert_eq(s->life.digest, s->digest[1], "%s: another digest", what);
    cr_assert_eq(s->life.info.nskipped, 0, "%s", what);
}

Test(checkpoint_files, damage_is_refused_by_name_and_the_older_one_taken)
{
    char zero[320], one[320], manifest[320], user[320], aside[320];
    struct saved s;
    struct stat st;

    make_dir();
    haul_log_set(quiet, NULL, HAUL_LOG_ERROR);
    make_saved(&s);
    accepted(&s, "untouched");
    file_of(&s, "rank-00000.bin", zero);
    file_of(&s, "rank-00001.bin", one);
    file_of(&s, "manifest.json", manifest);
    file_of(&s, "user.bin", user);
    file_of(&s, "aside", aside);

    cr_assert_eq(stat(one, &st), 0);
    for (long at = 0; at < st.st_size; at += at < 64 ? 9 : st.st_size / 7) {
        flip(one, at);
        refused(&s, "a bit of a data file", "rank-00001.bin");
        flip(one, at);
    }
    flip(one, -1);
    refused(&s, "a bit of its end", "rank-00001.bin");
    flip(one, -1);
    for (long at = 3; at < 400; at += 37) {
        flip(manifest, at);
        refused(&s, "a bit of the manifest", "manifest.json");
        flip(manifest, at);
    }
    flip(user, 0);
    refused(&s, "a bit of the caller's bytes", "user.bin");
    flip(user, 0);
    accepted(&s, "mended");

    cr_assert_eq(rename(one, aside), 0);
    refused(&s, "missing", "rank-00001.bin");
    cr_assert_eq(rename(aside, one), 0);
    cr_assert_eq(rename(zero, aside) + rename(one, zero) + rename(aside, one), 0);
    refused(&s, "swapped", "rank-00000.bin");
    cr_assert_eq(rename(zero, aside) + rename(one, zero) + rename(aside, one), 0);
    accepted(&s, "swapped back");

    char other[400];
    snprintf(other, sizeof other, "%s/step-0000000001/rank-00001.bin", s.root);
    cr_assert_eq(rename(one, aside) + link(other, one), 0);
    refused(&s, "of another checkpoint", "rank-00001.bin");
    cr_assert_eq(unlink(one) + rename(aside, one), 0);

    cr_assert_eq(rename(user, aside), 0);
    refused(&s, "the caller's bytes are missing", "user.bin");
    cr_assert_eq(rename(aside, user), 0);
    accepted(&s, "as before");

    cr_assert_eq(truncate(one, st.st_size - 1), 0);
    refused(&s, "cut short", "rank-00001.bin");
    cr_assert_eq(rename(manifest, aside), 0);
    load_path(&s, s.root);
    cr_assert_not_null(strstr(s.life.info.skipped, "step-0000000002: "), "%s", s.life.info.skipped);
    random_shape_free(&s.shape);
    remove_dir();
}

Test(checkpoint_files, another_model_is_refused_by_unit_and_tensor)
{
    struct saved s;

    make_dir();
    make_saved(&s);
    struct random_unit *u = &s.shape.unit[0];
    uint32_t t = 0;
    while (t < u->ntensors && u->tensor[t].elems == 0)
        t++;
    struct random_tensor before = u->tensor[t];
    u->tensor[t].elems++;
    load_path(&s, s.root);
    cr_assert_eq(s.life.rc, HAUL_E_CONFIG, "%s", s.life.text);
    cr_assert_not_null(strstr(s.life.text, "unit u0, tensor"), "%s", s.life.text);
    u->tensor[t] = before;
    u->tensor[t].fp32 = !before.fp32;
    load_path(&s, s.root);
    cr_assert_eq(s.life.rc, HAUL_E_CONFIG, "%s", s.life.text);
    u->tensor[t] = before;
    u->tensor[t].frozen = !before.frozen;
    load_path(&s, s.root);
    cr_assert_eq(s.life.rc, HAUL_E_CONFIG, "%s", s.life.text);
    cr_assert_not_null(strstr(s.life.text, "frozen"), "%s", s.life.text);
    u->tensor[t] = before;
    s.shape.nunits--;
    load_path(&s, s.root);
    cr_assert_eq(s.life.rc, HAUL_E_CONFIG, "%s", s.life.text);
    cr_assert_not_null(strstr(s.life.text, "units"), "%s", s.life.text);
    s.shape.nunits++;
    random_shape_free(&s.shape);
    remove_dir();
}

/* ---- one engine, one rank ---- */

static struct random_shape shape;
static struct random_run run;
static char root[256];

static void open_run(void)
{
    struct random_place place = {.offload = HAUL_OFFLOAD_ALL, .nthreads = 1, .window = 2};

    make_dir();
    in_dir(root, "root");
    make_shape(&shape);
    cr_assert_eq(random_open(&run, &shape, &place), 0, "%s", haul_last_error());
}

static void close_run(void)
{
    cr_assert_eq(random_close(&run), 0, "%s", haul_last_error());
    random_shape_free(&shape);
    remove_dir();
}

static unsigned count_names(const char *path, const char *prefix)
{
    DIR *d = opendir(path);
    unsigned n = 0;

    for (struct dirent *e; d && (e = readdir(d));)
        n += strncmp(e->d_name, prefix, strlen(prefix)) == 0;
    if (d)
        closedir(d);
    return n;
}

static uint64_t digest(void)
{
    uint64_t out = 0;

    cr_assert_eq(haul_engine_digest(run.engine, &out), 0, "%s", haul_last_error());
    return out;
}

static int save(uint32_t keep_last, uint64_t keep_every, int background)
{
    struct haul_checkpoint_save_opts o;

    haul_checkpoint_save_opts_init(&o);
    o.keep_last = keep_last;
    o.keep_every = keep_every;
    o.background = background;
    int rc = haul_checkpoint_save(run.engine, root, &o);
    return rc < 0 || !background ? rc : haul_checkpoint_wait(run.engine);
}

/* Every fallible call of a save fails in turn: the checkpoint before it is still there, whole, nothing of this one
 * is, unless it is complete; and the engine trains on to the same bits. */
static void sweep(int background)
{
    int64_t files = hl_sys_live(HL_SYS_FD), memory, threads = hl_sys_live(HL_SYS_THREAD);
    int rc = -1;

    cr_assert_eq(random_step(&run, NULL), 0, "%s", haul_last_error());
    cr_assert_eq(save(0, 0, background), 0, "%s", haul_last_error());
    memory = hl_sys_live(HL_SYS_MEM);
    uint64_t before = digest();
    for (int64_t n = 1; rc < 0 && n < 4000; n++) {
        struct haul_checkpoint_info info = {.struct_size = sizeof info};
        hl_sys_fail_nth(n, ENOSPC);
        rc = save(0, 0, background);
        bool hit = hl_sys_failed();
        hl_sys_fail_nth(0, 0);
        if (!hit)
            break;
        cr_assert_eq(hl_sys_live(HL_SYS_FD), files, "call %d: descriptors", (int)n);
        cr_assert_eq(hl_sys_live(HL_SYS_MEM), memory, "call %d: memory", (int)n);
        cr_assert_eq(hl_sys_live(HL_SYS_THREAD), threads, "call %d: threads", (int)n);
        if (rc < 0)
            cr_assert(strlen(haul_last_error()) > 0);
        rc = -1;
        cr_assert_eq(haul_checkpoint_load(run.engine, root, NULL, &info), 0, "call %d: %s", (int)n,
                     haul_last_error());
        cr_assert_eq(info.nskipped, 0, "call %d: left: %s", (int)n, info.skipped);
        cr_assert_eq(digest(), before, "call %d", (int)n);
        remove_tree(root);
        cr_assert_eq(save(0, 0, 0), 0, "%s", haul_last_error());
    }
    cr_assert_eq(rc, 0, "%s", haul_last_error());
}

Test(checkpoint_files, a_save_unwinds_from_every_failure)
{
    open_run();
    haul_log_set(quiet, NULL, HAUL_LOG_ERROR);
    sweep(0);
    close_run();
}

Test(checkpoint_files, a_save_behind_training_unwinds_from_every_failure)
{
    open_run();
    haul_log_set(quiet, NULL, HAUL_LOG_ERROR);
    sweep(1);
    close_run();
}

Test(checkpoint_files, a_load_unwinds_from_every_failure)
{
    int rc = -1;

    open_run();
    haul_log_set(quiet, NULL, HAUL_LOG_ERROR);
    cr_assert_eq(random_step(&run, NULL), 0, "%s", haul_last_error());
    uint64_t before = digest();
    cr_assert_eq(save(0, 0, 0), 0, "%s", haul_last_error());
    int64_t files = hl_sys_live(HL_SYS_FD), memory = hl_sys_live(HL_SYS_MEM);
    for (int64_t n = 1; n < 4000; n++) {
        hl_sys_fail_nth(n, EIO);
        rc = haul_checkpoint_load(run.engine, root, NULL, NULL);
        bool hit = hl_sys_failed();
        hl_sys_fail_nth(0, 0);
        cr_assert_eq(hl_sys_live(HL_SYS_FD), files, "call %d: descriptors", (int)n);
        cr_assert_eq(hl_sys_live(HL_SYS_MEM), memory, "call %d: memory", (int)n);
        if (!hit)
            break;
        cr_assert_eq(haul_checkpoint_load(run.engine, root, NULL, NULL), 0, "call %d: %s", (int)n,
                     haul_last_error());
        cr_assert_eq(digest(), before, "call %d", (int)n);
    }
    cr_assert_eq(rc, 0, "%s", haul_last_error());
    close_run();
}

Test(checkpoint_files, the_newest_and_every_mth_stay)
{
    open_run();
    for (unsigned step = 1; step <= 9; step++) {
        cr_assert_eq(random_step(&run, NULL), 0, "%s", haul_last_error());
        cr_assert_eq(save(2, 4, step % 2), 0, "%s", haul_last_error());
        cr_assert_leq(count_names(root, "step-"), 4);
    }
    cr_assert_eq(count_names(root, "step-"), 3); /* 4, 8 and 9 */
    close_run();
}

Test(checkpoint_files, a_step_that_is_saved_again_is_the_newest)
{
    struct haul_checkpoint_info info = {.struct_size = sizeof info};

    open_run();
    for (unsigned i = 0; i < 3; i++)
        cr_assert_eq(save(0, 0, 0), 0, "%s", haul_last_error());
    cr_assert_eq(count_names(root, "step-"), 3);
    cr_assert_eq(haul_checkpoint_load(run.engine, root, NULL, &info), 0);
    cr_assert_not_null(strstr(info.path, "/step-0000000000.3"), "%s", info.path);
    close_run();
}

Test(checkpoint_files, a_save_is_between_steps_and_the_only_one_in_its_root)
{
    struct haul_view view;
    int fd;

    open_run();
    cr_assert_eq(haul_unit_acquire(run.unit[0], run.stream, &view), 0);
    cr_assert_eq(save(0, 0, 0), HAUL_E_STATE);
    cr_assert_eq(save(0, 0, 1), HAUL_E_STATE);
    cr_assert_eq(haul_unit_release(run.unit[0], run.stream), 0);
    cr_assert_eq(save(0, 4, 0), -EINVAL);
    cr_assert_eq(save(0, 0, 0), 0, "%s", haul_last_error());
    fd = open(root, O_RDONLY);
    cr_assert_eq(flock(fd, LOCK_EX), 0);
    cr_assert_eq(save(0, 0, 0), -EBUSY);
    close(fd);
    cr_assert_eq(save(0, 0, 0), 0, "%s", haul_last_error());
    cr_assert_eq(haul_checkpoint_load(NULL, root, NULL, NULL), -EINVAL);
    cr_assert_eq(haul_checkpoint_save(run.engine, NULL, NULL), -EINVAL);
    close_run();
}

Test(checkpoint_files, closing_gives_up_what_is_not_complete)
{
    struct haul_checkpoint_save_opts o;
    int64_t files = hl_sys_live(HL_SYS_FD);

    open_run();
    haul_checkpoint_save_opts_init(&o);
    o.background = 1;
    cr_assert_eq(random_step(&run, NULL), 0, "%s", haul_last_error());
    cr_assert_eq(haul_checkpoint_save(run.engine, root, &o), 0, "%s", haul_last_error());
    cr_assert_leq(files, hl_sys_live(HL_SYS_FD));
    close_run();
}
