/*
 * A snapshot behind training waits for the update under way, and for what is on its way to the drive. Here the
 * drive stands still when the snapshot begins, so that a wait that is missing always shows: as a read of what
 * has not arrived, or as another digest. And updates wait for a drive that stands still only when what has been read
 * fills the memory there is for it.
 */
#include <stdatomic.h>

#include "checkpoint_case.h"

enum { UNITS = 24, MOST_HELD = 64, PATIENCE_MS = 400 };

enum extents { RECORDS = 0, PARAMS = 1 }; /* by parity of the extent's number: paging_open.c */

static struct {
    pthread_mutex_t lock;
    bool wanted, on;
    int write; /* which transfers of the engine stand still */
    enum extents extents;
    struct haul_store *store;
    struct haul_io held[MOST_HELD];
    unsigned nheld, ntoo_early;
    _Atomic int file; /* blocks of a checkpoint's file stand still */
    _Atomic int nblocks;
} still = {.lock = PTHREAD_MUTEX_INITIALIZER};

int __real_haul_store_submit(struct haul_store *store, const struct haul_io *io, uint64_t *token);
int __wrap_haul_store_submit(struct haul_store *store, const struct haul_io *io, uint64_t *token);
int __real_haul_store_read(struct haul_store *store, uint32_t extent, uint64_t offset, void *buf,
                           uint64_t bytes);
int __wrap_haul_store_read(struct haul_store *store, uint32_t extent, uint64_t offset, void *buf,
                           uint64_t bytes);
int __real_haul_engine_fill(struct haul_engine *engine, haul_fill_fn fn, void *user);
int __wrap_haul_engine_fill(struct haul_engine *engine, haul_fill_fn fn, void *user);
int __real_haul_checkpoint_save(struct haul_engine *engine, const char *root,
                                const struct haul_checkpoint_save_opts *opts);
int __wrap_haul_checkpoint_save(struct haul_engine *engine, const char *root,
                                const struct haul_checkpoint_save_opts *opts);

int __real_hl_sys_pwrite_all(int fd, const void *buf, size_t bytes, off_t at);
int __wrap_hl_sys_pwrite_all(int fd, const void *buf, size_t bytes, off_t at);

int __wrap_haul_store_submit(struct haul_store *store, const struct haul_io *io, uint64_t *token)
{
    bool hold;

    pthread_mutex_lock(&still.lock);
    hold =
        still.on && io->fn && io->write == still.write && io->extent % 2 == (uint32_t)still.extents;
    if (hold) {
        cr_assert_lt(still.nheld, MOST_HELD);
        still.store = store;
        still.held[still.nheld++] = *io;
    }
    pthread_mutex_unlock(&still.lock);
    return hold ? 0 : __real_haul_store_submit(store, io, token);
}

int __wrap_haul_store_read(struct haul_store *store, uint32_t extent, uint64_t offset, void *buf,
                           uint64_t bytes)
{
    pthread_mutex_lock(&still.lock);
    for (unsigned i = 0; still.on && i < still.nheld; i++) {
        const struct haul_io *io = &still.held[i];
        still.ntoo_early +=
            io->extent == extent && offset < io->offset + io->bytes && io->offset < offset + bytes;
    }
    pthread_mutex_unlock(&still.lock);
    return __real_haul_store_read(store, extent, offset, buf, bytes);
}

/* Training begins. */
int __wrap_haul_engine_fill(struct haul_engine *engine, haul_fill_fn fn, void *user)
{
    int rc = __real_haul_engine_fill(engine, fn, user);

    pthread_mutex_lock(&still.lock);
    still.on = still.wanted;
    pthread_mutex_unlock(&still.lock);
    return rc;
}

static unsigned look(unsigned *nheld)
{
    pthread_mutex_lock(&still.lock);
    unsigned n = still.ntoo_early;
    *nheld = still.nheld;
    pthread_mutex_unlock(&still.lock);
    return n;
}

static void go_on(void)
{
    pthread_mutex_lock(&still.lock);
    still.on = still.wanted = false;
    for (unsigned i = 0; i < still.nheld; i++)
        cr_assert_eq(__real_haul_store_submit(still.store, &still.held[i], NULL), 0);
    still.nheld = 0;
    pthread_mutex_unlock(&still.lock);
}

/* From when a transfer is held, the snapshot's thread has time to read what it must not. */
int __wrap_haul_checkpoint_save(struct haul_engine *engine, const char *root,
                                const struct haul_checkpoint_save_opts *opts)
{
    int rc = __real_haul_checkpoint_save(engine, root, opts);
    unsigned nheld = 0;

    if (!still.wanted)
        return rc;
    for (unsigned ms = 0; rc == 0 && ms < PATIENCE_MS && look(&nheld) == 0; ms += nheld > 0)
        usleep(1000);
    go_on();
    return rc;
}

static void save_while_still(const struct random_spot *spot, uint64_t elems, int write,
                             enum extents extents)
{
    struct random_unit units[UNITS];
    struct random_shape shape = random_shape_of(units, UNITS, elems);
    char root[256], one[300];

    make_dir();
    in_dir(root, "still");
    snprintf(one, sizeof one, "%s/step-%010u", root, 1);
    struct life straight = {.shape = &shape, .spot = spot, .master = HAUL_MASTER_SPLIT, .until = 1};
    struct life saving = straight, loading = straight;
    must_live(&straight, "straight");
    saving.until = shape.nsteps;
    saving.save = root;
    saving.save_every = 1;
    saving.opts.background = 1;
    still.write = write;
    still.extents = extents;
    still.wanted = true; /* until the first save */
    must_live(&saving, "saving");
    cr_assert_eq(still.ntoo_early, 0, "%u reads of what was not there yet", still.ntoo_early);
    loading.load = one;
    must_live(&loading, "loading");
    cr_assert_eq(loading.digest, straight.digest, "what was saved is not of one instant");
    remove_dir();
}

Test(checkpoint_waits, a_snapshot_waits_for_the_update_under_way)
{
    save_while_still(&random_spots[4], 4000, 0, RECORDS);
}

Test(checkpoint_waits, a_snapshot_waits_for_records_on_their_way_to_the_drive)
{
    save_while_still(&random_spots[4], 4000, 1, RECORDS);
}

Test(checkpoint_waits, a_snapshot_waits_for_parameters_on_their_way_to_the_drive)
{
    save_while_still(&random_spots[5], 100000, 1, PARAMS);
}

/* ---- the checkpoint's own drive ---- */

/* Of the thread that writes blocks. */
int __wrap_hl_sys_pwrite_all(int fd, const void *buf, size_t bytes, off_t at)
{
    char name[16] = "";

    pthread_getname_np(pthread_self(), name, sizeof name);
    if (strcmp(name, "haul-save-write") == 0) {
        atomic_fetch_add(&still.nblocks, 1);
        while (atomic_load(&still.file))
            usleep(1000);
    }
    return __real_hl_sys_pwrite_all(fd, buf, bytes, at);
}

static void *go_on_later(void *user)
{
    usleep(PATIENCE_MS * 1000);
    atomic_store(&still.file, 0);
    return user;
}

/* Save after step 1 to a drive that stands still, train to the end. Whether that took until the drive went on. */
static bool train_while_still(uint64_t elems)
{
    struct random_unit units[UNITS];
    struct random_shape shape = random_shape_of(units, UNITS, elems);
    struct random_place place = {.offload = HAUL_OFFLOAD_ALL, .nthreads = 1, .window = 2};
    struct haul_checkpoint_save_opts opts;
    struct random_run run;
    pthread_t timer;
    uint64_t digest[2];
    char root[256];

    make_dir();
    in_dir(root, "still");
    random_watch("train while still", 100);
    cr_assert_eq(random_open(&run, &shape, &place), 0, "%s", haul_last_error());
    cr_assert_eq(random_step(&run, NULL), 0, "%s", haul_last_error());
    cr_assert_eq(haul_engine_digest(run.engine, &digest[0]), 0);
    haul_checkpoint_save_opts_init(&opts);
    opts.background = 1;
    atomic_store(&still.file, 1);
    cr_assert_eq(haul_checkpoint_save(run.engine, root, &opts), 0, "%s", haul_last_error());
    if (elems > 4000)
        cr_assert_eq(pthread_create(&timer, NULL, go_on_later, NULL), 0);
    while (run.step < shape.nsteps)
        cr_assert_eq(random_step(&run, NULL), 0, "%s", haul_last_error());
    cr_assert_eq(haul_engine_sync(run.engine), 0, "%s", haul_last_error());
    bool waited = !atomic_load(&still.file);
    atomic_store(&still.file, 0);
    if (elems > 4000)
        pthread_join(timer, NULL);
    cr_assert_eq(haul_checkpoint_wait(run.engine), 0, "%s", haul_last_error());
    cr_assert_gt(atomic_exchange(&still.nblocks, 0), 0);
    cr_assert_eq(haul_checkpoint_load(run.engine, root, NULL, NULL), 0, "%s", haul_last_error());
    cr_assert_eq(haul_engine_digest(run.engine, &digest[1]), 0);
    cr_assert_eq(digest[1], digest[0], "what was saved is not of one instant");
    cr_assert_eq(random_close(&run), 0);
    random_watch("", 0);
    remove_dir();
    return waited;
}

Test(checkpoint_waits, updates_do_not_wait_for_the_drive_while_there_is_room)
{
    cr_assert_not(train_while_still(4000)); /* 1.1 MB of state */
}

Test(checkpoint_waits, updates_wait_for_the_drive_when_there_is_none)
{
    cr_assert(train_while_still(150000)); /* 43 MB */
}
