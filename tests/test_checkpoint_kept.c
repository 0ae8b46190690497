/*
 * Checkpoints whose records stay on nvme: what they refer to is there until they are gone, wherever a process is
 * killed; what must stay longer is copied; and whoever finds something else says so.
 *
 * hl_sys_rename, hl_sys_unlink and hl_sys_fsync are wrapped: between two of them nothing on a drive changes its
 * meaning, so that a kill before each of them is a kill at every instant.
 */
#include <signal.h>
#include <stdatomic.h>

#include "checkpoint_case.h"
#include "ckpt_store.h"
#include "sys.h"

int __real_hl_sys_rename(int dirfd, const char *from, const char *to);
int __real_hl_sys_unlink(int dirfd, const char *path);
int __real_hl_sys_fsync(int fd);
int __wrap_hl_sys_rename(int dirfd, const char *from, const char *to);
int __wrap_hl_sys_unlink(int dirfd, const char *path);
int __wrap_hl_sys_fsync(int fd);

static _Atomic long until_end = -1; /* calls; -1: never */

static void count_down(void)
{
    if (atomic_load(&until_end) > 0 && atomic_fetch_sub(&until_end, 1) == 1)
        kill(getpid(), SIGKILL);
}

int __wrap_hl_sys_rename(int dirfd, const char *from, const char *to)
{
    count_down();
    return __real_hl_sys_rename(dirfd, from, to);
}

int __wrap_hl_sys_unlink(int dirfd, const char *path)
{
    count_down();
    return __real_hl_sys_unlink(dirfd, path);
}

int __wrap_hl_sys_fsync(int fd)
{
    count_down();
    return __real_hl_sys_fsync(fd);
}

/* ---- lives ---- */

static const struct random_spot stays = {
    .name = "stay, optimizer", .offload = HAUL_OFFLOAD_OPTIMIZER, .records = 0.1, .durable = 1};
static const struct random_spot stays_all = {
    .name = "stay, all", .offload = HAUL_OFFLOAD_ALL, .records = 0.1, .durable = 1};
static struct random_shape shape;
static char root[256];
static uint64_t straight[8]; /* digest after so many steps */

static struct life life_of(unsigned nranks, unsigned until)
{
    shape.nranks = nranks;
    return (struct life){.shape = &shape,
                         .spot = nranks % 2 ? &stays : &stays_all,
                         .master = nranks % 2 ? HAUL_MASTER_SPLIT : HAUL_MASTER_FP32,
                         .stage = nranks > 1 ? 2 : 3,
                         .slots = 2,
                         .until = until,
                         .opts.keep_last = 1};
}

static uint64_t ntrained(void)
{
    uint64_t n = 0;

    for (uint32_t u = 0; u < shape.nunits; u++)
        for (uint32_t t = 0; t < shape.unit[u].ntensors; t++)
            n += shape.unit[u].tensor[t].frozen ? 0 : shape.unit[u].tensor[t].elems;
    return n;
}

static void begin(unsigned nranks)
{
    go_where_it_is_fast();
    make_dir();
    for (uint64_t seed = 3;; seed++) {
        random_shape_make(&shape, seed, 4, 200000);
        shape.wander = 0;
        if (shape.nunits > 1 && ntrained() > 150000) /* so that some of it goes to nvme */
            break;
        random_shape_free(&shape);
    }
    in_dir(root, "root");
    for (unsigned steps = 0; steps < 8; steps++) {
        struct life l = life_of(nranks, steps);
        static const struct random_spot none = {.name = "none", .offload = HAUL_OFFLOAD_NONE};
        l.spot = &none;
        must_live(&l, "straight");
        straight[steps] = l.digest;
    }
}

static void end(void)
{
    random_shape_free(&shape);
    remove_dir();
}

static int exists(const char *folder, const char *name)
{
    char path[600];

    snprintf(path, sizeof path, "%s/%s", folder, name);
    return access(path, F_OK) == 0;
}

static void step_dir(unsigned step, char out[300])
{
    snprintf(out, 300, "%s/step-%010u", root, step);
}

/* The manifest's own word: it refers to records elsewhere. */
static void refers(const char *ckpt)
{
    char path[600], text[200] = "";

    snprintf(path, sizeof path, "%s/manifest.json", ckpt);
    FILE *f = fopen(path, "r");
    cr_assert_not_null(f, "%s", path);
    cr_assert_gt(fread(text, 1, sizeof text - 1, f), 0);
    fclose(f);
    cr_assert_not_null(strstr(text, "\"version\": 2"), "%s", text);
}

/* From the beginning, or from what there is, to `until`, saved at the end. */
static void save_at(unsigned nranks, unsigned until, int background)
{
    struct life l = life_of(nranks, until);
    char ckpt[300];

    l.load = exists(root, "latest") ? root : NULL;
    l.save = root;
    l.opts.background = background;
    must_live(&l, "save");
    cr_assert_eq(l.digest, straight[until], "saving changes the digest");
    step_dir(until, ckpt);
    refers(ckpt);
}

static void loads(unsigned nranks, const char *path, unsigned step)
{
    struct life l = life_of(nranks, 0);

    l.load = path;
    must_live(&l, path);
    cr_assert_eq(l.info.step, step, "%s: step %d", path, (int)l.info.step);
    cr_assert_eq(l.digest, straight[step], "%s: another digest", path);
}

/* By another engine, which has no nvme tier. */
static void loads_elsewhere(unsigned nranks, const char *path, unsigned step)
{
    static const struct random_spot all = {.name = "all", .offload = HAUL_OFFLOAD_ALL};
    struct life l = life_of(nranks, 0);

    l.spot = &all;
    l.master = HAUL_MASTER_FP32;
    l.load = path;
    must_live(&l, path);
    cr_assert_eq(l.info.step, step, "%s", path);
    cr_assert_eq(l.digest, straight[step], "%s: another digest", path);
}

Test(checkpoint_kept, the_newest_refers_to_records_that_are_nowhere_else)
{
    char ckpt[300];

    for (unsigned nranks = 1; nranks <= 3; nranks++) {
        begin(nranks);
        for (unsigned step = 2; step <= 6; step += 2) {
            save_at(nranks, step, step == 4);
            step_dir(step, ckpt);
            cr_assert(!exists(ckpt, "records-00000.bin"));
            loads(nranks, root, step);
            loads_elsewhere(nranks, root, step);
            shape.nranks = nranks;
        }
        step_dir(4, ckpt);
        cr_assert(!exists(ckpt, "manifest.json"));
        end();
    }
}

Test(checkpoint_kept, what_stays_longer_is_copied_out)
{
    char ckpt[300];

    for (int background = 0; background <= 1; background++) {
        begin(2);
        struct life l = life_of(2, 6);
        l.save = root;
        l.save_every = 1;
        l.opts.background = background;
        l.opts.keep_every = 3;
        l.opts.keep_last = 2;
        must_live(&l, "save");
        for (unsigned step = 1; step <= 6; step++) {
            step_dir(step, ckpt);
            cr_assert_eq(exists(ckpt, "manifest.json"), step == 3 || step >= 5, "%u", step);
            if (!exists(ckpt, "manifest.json"))
                continue;
            refers(ckpt);
            cr_assert(exists(ckpt, "records-00000.bin") && exists(ckpt, "records-00001.bin"));
            loads(2, ckpt, step);
            loads_elsewhere(2, ckpt, step);
        }
        loads(2, root, 6);
        end();
    }
}

Test(checkpoint_kept, a_checkpoint_of_another_root_is_copied_before_its_records_go)
{
    char first[300], other[256];

    begin(2);
    save_at(2, 2, 0);
    step_dir(2, first);
    cr_assert(!exists(first, "records-00001.bin"));
    in_dir(other, "other");
    struct life l = life_of(2, 3); /* a run of its own, in the same folder on nvme */
    l.save = other;
    must_live(&l, "another root");
    cr_assert(exists(first, "records-00001.bin"));
    loads(2, root, 2);
    loads_elsewhere(2, root, 2);
    loads(2, other, 3);
    end();
}

static void quiet(void *user, enum haul_log_level level, const char *text)
{
}

Test(checkpoint_kept, what_the_store_has_no_more_is_said_and_not_loaded)
{
    char ckpt[300], line[900];

    begin(1);
    save_at(1, 2, 0);
    step_dir(2, ckpt);
    snprintf(line, sizeof line, "cp -r %s %s/aside", ckpt, dir);
    cr_assert_eq(system(line), 0);
    save_at(1, 3, 0);
    snprintf(line, sizeof line, "%s/aside", dir);
    struct life l = life_of(1, 0);
    l.load = line;
    run_life(&l, "aside");
    cr_assert_eq(l.rc, -ESTALE, "%d: %s", l.rc, l.text);
    cr_assert_not_null(strstr(l.text, "generation 1 no more"), "%s", l.text);
    loads(1, root, 3);
    end();
}

/* The first name below dir that begins so. */
static void find_name(const char *folder, const char *begins, char out[600])
{
    DIR *d = opendir(folder);
    struct dirent *entry;

    cr_assert_not_null(d);
    *out = '\0';
    while (!*out && (entry = readdir(d)))
        if (strncmp(entry->d_name, begins, strlen(begins)) == 0)
            snprintf(out, 600, "%s/%s", folder, entry->d_name);
    closedir(d);
    cr_assert(*out, "%s/%s*", folder, begins);
}

static void flip_all(const char *path, long from, long n)
{
    FILE *f = fopen(path, "r+b");
    int byte;

    cr_assert_not_null(f, "%s", path);
    for (long at = from; at < from + n; at += 4096) {
        cr_assert_eq(fseek(f, at, SEEK_SET), 0);
        byte = fgetc(f);
        if (byte == EOF)
            break;
        cr_assert_eq(fseek(f, -1, SEEK_CUR), 0);
        fputc(byte ^ 1, f);
    }
    fclose(f);
}

static void damage_store(void)
{
    char store[600], data[700];
    struct stat st;

    find_name(dir, "haul-", store);
    snprintf(data, sizeof data, "%s/" HL_STORE_DATA_NAME, store);
    cr_assert_eq(stat(data, &st), 0);
    flip_all(data, 0, st.st_size);
}

Test(checkpoint_kept, damaged_records_are_refused_by_name)
{
    begin(1);
    haul_log_set(quiet, NULL, HAUL_LOG_ERROR);
    save_at(1, 2, 0);
    damage_store();
    struct life l = life_of(1, 0);
    l.load = root;
    run_life(&l, "damaged store");
    cr_assert_eq(l.rc, -ENOENT, "%d: %s", l.rc, l.text);
    cr_assert_not_null(strstr(l.text, HL_STORE_DATA_NAME ": bytes"), "%s", l.text);
    damage_store(); /* as it was */
    loads(1, root, 2);
    end();
}

Test(checkpoint_kept, past_damaged_records_the_older_checkpoint_is_loaded_and_goes_on)
{
    begin(1);
    haul_log_set(quiet, NULL, HAUL_LOG_ERROR);
    struct life l = life_of(1, 4);
    l.save = root;
    l.save_every = 3;
    l.opts.keep_every = 3;
    must_live(&l, "two");
    damage_store();
    loads(1, root, 3);
    l = life_of(1, 5);
    l.load = l.save = root;
    must_live(&l, "on");
    cr_assert_eq(l.info.nskipped, 1, "%s", l.info.skipped);
    cr_assert_not_null(strstr(l.info.skipped, HL_STORE_DATA_NAME), "%s", l.info.skipped);
    cr_assert_eq(l.digest, straight[5]);
    loads(1, root, 5);
    loads_elsewhere(1, root, 5);
    end();
}

Test(checkpoint_kept, damaged_copies_of_records_are_refused_by_name)
{
    char copy[400], ckpt[300];

    begin(1);
    haul_log_set(quiet, NULL, HAUL_LOG_ERROR);
    struct life l = life_of(1, 4);
    l.save = root;
    l.opts.keep_last = 2;
    l.save_every = 3;
    must_live(&l, "two");
    step_dir(4, ckpt);
    snprintf(copy, sizeof copy, "%s/records-00000.bin", ckpt);
    flip_all(copy, 0, 4096);
    l = life_of(1, 0);
    l.load = ckpt;
    run_life(&l, "damaged copy");
    cr_assert_eq(l.rc, HAUL_E_CHECKSUM, "%d: %s", l.rc, l.text);
    cr_assert_not_null(strstr(l.text, "records-00000.bin: bytes 0 +"), "%s", l.text);
    loads(1, root, 3); /* the one before */
    flip_all(copy, 0, 4096);
    cr_assert_eq(truncate(copy, 4096), 0);
    run_life(&l, "short copy");
    cr_assert_eq(l.rc, HAUL_E_SHORT_IO, "%d: %s", l.rc, l.text);
    end();
}

/* ---- killed ---- */

/* In a process of its own, which ends before the n-th call. True: it came to its end, and that was there. */
static bool saves_until(unsigned nranks, unsigned from, unsigned until, uint32_t keep, long n)
{
    int status;
    pid_t child = fork();

    if (child == 0) {
        struct life l = life_of(nranks, until);
        l.load = from ? root : NULL;
        l.save = root;
        l.opts.keep_last = keep;
        l.opts.background = n % 2 != 0;
        atomic_store(&until_end, n);
        run_life(&l, "killed");
        _exit(l.rc == 0 && l.digest == straight[until] ? 0 : 9);
    }
    cr_assert_eq(waitpid(child, &status, 0), child);
    if (WIFSIGNALED(status)) {
        cr_assert_eq(WTERMSIG(status), SIGKILL);
        return false;
    }
    cr_assert_eq(WEXITSTATUS(status), 0, "the run ended with %d", WEXITSTATUS(status));
    return true;
}

/* After each kill the run is at the step before or at this one, never further back, and whole; and it goes on from
 * there. keep 2: one that is kept for longer is whole too. */
static void kill_everywhere(unsigned nranks, uint32_t keep, long stride)
{
    char ckpt[300];
    long n = 1;

    if (UNDER_THREAD_SANITIZER)
        SKIP("it refuses threads after a fork");
    begin(nranks);
    save_at(nranks, 2, 0);
    for (bool through = false; !through; n += stride) {
        through = saves_until(nranks, 2, 3, keep, n);
        struct life l = life_of(nranks, 0);
        l.load = root;
        must_live(&l, "after a kill");
        cr_assert(l.info.step == 3 || (l.info.step == 2 && !through), "kill %ld: step %d", n,
                  (int)l.info.step);
        cr_assert_eq(l.digest, straight[l.info.step], "kill %ld: another digest", n);
        loads_elsewhere(nranks, root, (unsigned)l.info.step);
        step_dir(2, ckpt);
        if (keep > 1)
            loads_elsewhere(nranks, ckpt, 2);
        /* on, and back to where it was for the next kill */
        l = life_of(nranks, 4);
        l.load = l.save = root;
        must_live(&l, "on");
        cr_assert_eq(l.digest, straight[4], "kill %ld: another digest further on", n);
        remove_tree(root);
        save_at(nranks, 2, 0);
    }
    cr_assert_gt(n, 15, "%ld calls", n);
    end();
}

Test(checkpoint_kept, killed_before_any_call_one_rank_has_a_whole_checkpoint)
{
    kill_everywhere(1, 1, UNDER_SANITIZER || under_valgrind() ? 7 : 1);
}

Test(checkpoint_kept, killed_before_any_call_several_ranks_have_a_whole_checkpoint)
{
    kill_everywhere(2, 1, UNDER_SANITIZER || under_valgrind() ? 9 : 1);
}

Test(checkpoint_kept, killed_while_it_copies_what_is_kept_is_whole)
{
    kill_everywhere(2, 2, UNDER_SANITIZER || under_valgrind() ? 11 : 3);
}

/* ---- calls that fail ---- */

static int save_failing(struct random_run *run, const struct life *l, long n)
{
    struct haul_checkpoint_save_opts opts = l->opts;

    opts.struct_size = sizeof opts;
    opts.user = &run->step;
    opts.user_bytes = sizeof run->step;
    hl_sys_fail_nth(n, EIO);
    int rc = haul_checkpoint_save(run->engine, root, &opts);
    if (rc == 0 && opts.background)
        rc = haul_checkpoint_wait(run->engine);
    hl_sys_fail_nth(0, 0);
    return rc;
}

/* A save that fails leaves the one before, and training goes on; the next one is as if nothing had been. */
static void fail_everywhere(int background)
{
    begin(1);
    save_at(1, 2, 0);
    for (long n = 1;; n += UNDER_SANITIZER || under_valgrind() ? 9 : 2) {
        struct life l = life_of(1, 3);
        struct random_run run;
        struct random_place place = {.offload = l.spot->offload,
                                     .master = l.master,
                                     .nthreads = 1,
                                     .slots = 2,
                                     .window = 2,
                                     .slot_bytes = 60000,
                                     .io_method = HAUL_IO_THREADS,
                                     .nvme_durable = 1,
                                     .nvme_dir = dir,
                                     .stage = 3};
        struct haul_report report = {.struct_size = sizeof report};
        struct haul_checkpoint_load_opts load;
        unsigned step = 0;
        uint64_t digest, planned, peak;
        cr_assert(random_page_records(&shape, &place, l.spot->records));
        cr_assert_eq(random_open(&run, &shape, &place), 0, "%s", haul_last_error());
        haul_checkpoint_load_opts_init(&load);
        load.user = &step;
        load.user_capacity = sizeof step;
        cr_assert_eq(haul_checkpoint_load(run.engine, root, &load, NULL), 0, "%s",
                     haul_last_error());
        run.step = step;
        cr_assert_eq(run.step, 2);
        cr_assert_eq(haul_engine_tier_bytes(run.engine, HAUL_TIER_NVME, &planned, &peak), 0);
        cr_assert(planned == peak && planned > 0);
        cr_assert_eq(random_step(&run, &report), 0);
        l.opts.background = background;
        int rc = save_failing(&run, &l, n);
        bool delivered = hl_sys_failed();
        cr_assert_eq(random_step(&run, &report), 0, "call %ld: %s", n, haul_last_error());
        cr_assert_eq(haul_engine_digest(run.engine, &digest), 0, "call %ld: %s", n,
                     haul_last_error());
        cr_assert_eq(digest, straight[4], "call %ld (%d): another digest", n, rc);
        cr_assert_eq(random_close(&run), 0);
        struct life check = life_of(1, 0);
        check.load = root;
        must_live(&check, "after a failure");
        cr_assert(check.info.step == 3 || (check.info.step == 2 && rc < 0), "call %ld: %d, step %d",
                  n, rc, (int)check.info.step);
        cr_assert_eq(check.digest, straight[check.info.step], "call %ld", n);
        remove_tree(root);
        save_at(1, 2, 0);
        if (!delivered)
            break;
    }
    end();
}

Test(checkpoint_kept, a_save_whose_calls_fail_leaves_the_one_before_and_training_goes_on)
{
    haul_log_set(quiet, NULL, HAUL_LOG_ERROR);
    fail_everywhere(0);
}

Test(checkpoint_kept, and_so_does_one_behind_training)
{
    haul_log_set(quiet, NULL, HAUL_LOG_ERROR);
    fail_everywhere(1);
}
