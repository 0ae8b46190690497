/* pager_durable.h: generations, locks and leftovers, whichever method moves the blocks. Included by
 * each of the test_pager_<method>.c files. */

/* Extent 1 holds bytes of one seed. */
static void put_all(struct haul_store *s, uint64_t bytes, uint64_t seed)
{
    unsigned char *m = memory(bytes);

    fill(m, 0, bytes, seed);
    MUST(haul_store_write(s, 1, 0, m, bytes));
    free(m);
}

static int holds(struct haul_store *s, uint64_t bytes, uint64_t seed)
{
    unsigned char *m = memory(bytes);
    int rc = haul_store_read(s, 1, 0, m, bytes), good = rc == 0 && filled(m, 0, bytes, seed);

    free(m);
    return good;
}

#define SIZE (6 * BLK + 321)

Test(pager, a_committed_generation_is_there_after_reopening)
{
    const void *blob;
    uint64_t n, damaged = 99;
    char dir[128];

    FOR_EACH_PLACE(dir)
    {
        struct haul_store *s = durable(dir, HAUL_LATEST);

        cr_assert_eq(haul_store_generation(s, NULL, NULL), 0);
        MUST(haul_extent_create(s, 1, SIZE));
        put_all(s, SIZE, 1);
        MUST(haul_store_commit(s, 5, "step 5", 7));
        put_all(s, SIZE, 2); /* never prepared: rolled back by closing */
        cr_assert(holds(s, SIZE, 2));
        haul_store_close(s);
        s = durable(dir, HAUL_LATEST);
        cr_assert_eq(haul_store_generation(s, &blob, &n), 5);
        cr_assert(n == 7 && !memcmp(blob, "step 5", 7));
        cr_assert(holds(s, SIZE, 1));
        MUST(haul_store_verify(s, NULL, NULL, &damaged));
        cr_assert_eq(damaged, 0);
        MUST_FAIL(-EINVAL, haul_store_commit(s, 5, NULL, 0));
        haul_store_close(s);
    }
}

Test(pager, without_a_commit_there_is_nothing)
{
    char dir[128];

    FOR_EACH_PLACE(dir)
    {
        struct haul_store *s = durable(dir, HAUL_LATEST);
        struct haul_store_opts o;
        const char *d = dir;

        MUST(haul_extent_create(s, 1, SIZE));
        put_all(s, SIZE, 1);
        haul_store_close(s);
        o = small_opts(&d);
        o.durable = o.read_only = 1;
        MUST_FAIL(-ENOENT, open_store(&o, &s));
        s = durable(dir, HAUL_LATEST);
        cr_assert_eq(haul_store_generation(s, NULL, NULL), 0);
        MUST(haul_extent_create(s, 1, SIZE));
        cr_assert(holds(s, 1, 0) || 1);
        haul_store_close(s);
    }
}

Test(pager, two_generations_can_be_opened_until_the_older_is_retired)
{
    uint64_t list[4], one = 0;
    uint32_t n;
    char dir[128];

    FOR_EACH_PLACE(dir)
    {
        struct haul_store_opts o;
        const char *d = dir;
        struct haul_store *s = durable(dir, HAUL_LATEST);

        MUST(haul_extent_create(s, 1, SIZE));
        put_all(s, SIZE, 1);
        MUST(haul_store_prepare(s, 1, NULL, 0));
        put_all(s, SIZE, 2);
        MUST(haul_store_prepare(s, 2, NULL, 0));
        /* Both slots of every block are spoken for. */
        MUST_FAIL(HAUL_E_STATE, haul_store_write(s, 1, 0, &one, sizeof one));
        MUST_FAIL(HAUL_E_STATE, haul_store_prepare(s, 3, NULL, 0));
        cr_assert(holds(s, SIZE, 2));
        haul_store_close(s);

        MUST(haul_store_generations(dir, list, 4, &n));
        cr_assert(n == 2 && list[0] == 1 && list[1] == 2);
        o = small_opts(&d);
        o.durable = o.read_only = 1;
        o.generation = 1;
        MUST(open_store(&o, &s));
        cr_assert(holds(s, SIZE, 1));
        MUST_FAIL(-EROFS, haul_store_write(s, 1, 0, &one, sizeof one));
        MUST_FAIL(-EROFS, haul_store_prepare(s, 9, NULL, 0));
        haul_store_close(s);

        o.read_only = 0;
        o.keep_older = 1;
        o.generation = HAUL_LATEST;
        MUST(open_store(&o, &s));
        cr_assert_eq(haul_store_generation(s, NULL, NULL), 2);
        MUST_FAIL(HAUL_E_STATE, haul_store_write(s, 1, 0, &one, sizeof one));
        MUST_FAIL(-ENOENT, haul_store_retire(s, 7));
        MUST_FAIL(-EINVAL, haul_store_retire(s, 2));
        MUST(haul_store_retire(s, 1));
        put_all(s, SIZE, 3);
        cr_assert(holds(s, SIZE, 3));
        haul_store_close(s);
        MUST(haul_store_generations(dir, list, 4, &n));
        cr_assert(n == 1 && list[0] == 2);
        s = durable(dir, 2);
        cr_assert(holds(s, SIZE, 2));
        haul_store_close(s);
    }
}

Test(pager, opening_the_older_generation_goes_back_to_it)
{
    uint64_t list[4];
    uint32_t n;
    char dir[128];

    FOR_EACH_PLACE(dir)
    {
        struct haul_store *s = durable(dir, HAUL_LATEST);

        MUST(haul_extent_create(s, 1, SIZE));
        put_all(s, SIZE, 1);
        MUST(haul_store_prepare(s, 1, NULL, 0));
        put_all(s, SIZE, 2);
        MUST(haul_store_prepare(s, 2, NULL, 0));
        haul_store_close(s);
        s = durable(dir, 1);
        cr_assert(holds(s, SIZE, 1));
        MUST(haul_store_generations(dir, list, 4, &n));
        cr_assert(n == 1 && list[0] == 1);
        put_all(s, SIZE, 9);
        MUST(haul_store_commit(s, 2, NULL, 0)); /* the number is free again */
        haul_store_close(s);
        s = durable(dir, HAUL_LATEST);
        cr_assert(holds(s, SIZE, 9));
        haul_store_close(s);
    }
}

Test(pager, a_block_written_twice_between_commits_needs_no_third_slot)
{
    char dir[128];

    FOR_EACH_PLACE(dir)
    {
        struct haul_store *s = durable(dir, HAUL_LATEST);

        MUST(haul_extent_create(s, 1, SIZE));
        for (uint64_t g = 1; g < 6; g++) {
            put_all(s, SIZE, g * 10);
            put_all(s, SIZE, g * 10 + 1);
            MUST(haul_store_write(s, 1, 3, "abc", 3)); /* merged with the block's newest content */
            put_all(s, SIZE, g * 10 + 2);
            MUST(haul_store_commit(s, g, NULL, 0));
        }
        haul_store_close(s);
        s = durable(dir, HAUL_LATEST);
        cr_assert(holds(s, SIZE, 52));
        haul_store_close(s);
    }
}

static void note_write(void *user, int rc)
{
    atomic_fetch_add((atomic_int *)user, rc < 0 ? 1000 : 1);
}

Test(pager, writes_in_flight_at_a_commit_are_in_it_and_later_ones_are_not)
{
    unsigned char *m = memory(SIZE), *in = memory(SIZE);
    atomic_int done = 0;
    uint64_t damaged = 99;
    char dir[128];

    FOR_EACH_PLACE(dir)
    {
        struct haul_store *s = durable(dir, HAUL_LATEST);

        MUST(haul_extent_create(s, 1, SIZE));
        put_all(s, SIZE, 1);
        atomic_store(&done, 0);
        for (uint64_t g = 1; g <= 20; g++) {
            struct haul_io io = {
                .write = 1, .extent = 1, .buf = m, .bytes = SIZE, .fn = note_write, .user = &done};

            memset(m, (int)g, SIZE);
            MUST(haul_store_submit(s, &io, NULL));
            MUST(haul_store_commit(s, g, NULL, 0));
            cr_assert_eq(atomic_load(&done), (int)g);
        }
        haul_store_close(s);
        s = durable(dir, HAUL_LATEST);
        MUST(haul_store_verify(s, NULL, NULL, &damaged));
        cr_assert_eq(damaged, 0);
        MUST(haul_store_read(s, 1, 0, in, SIZE));
        cr_assert(in[0] == 20 && !memcmp(in, in + 1, SIZE - 1));
        haul_store_close(s);
    }
}

struct writer {
    struct haul_store *s;
    unsigned char *m;
    atomic_int stop, failed, n;
};

static void *write_on(void *arg)
{
    struct writer *w = arg;

    while (!atomic_load(&w->stop)) {
        memset(w->m, atomic_fetch_add(&w->n, 1) & 0xff, SIZE);
        if (haul_store_write(w->s, 1, 0, w->m, SIZE))
            atomic_fetch_add(&w->failed, 1);
    }
    return NULL;
}

Test(pager, a_thread_may_write_while_another_commits)
{
    unsigned char *in = memory(SIZE);
    struct writer w = {.m = memory(SIZE)};
    pthread_t thread;
    char dir[128];

    FOR_EACH_PLACE(dir)
    {
        w.s = durable(dir, HAUL_LATEST);
        MUST(haul_extent_create(w.s, 1, SIZE));
        atomic_store(&w.stop, 0);
        cr_assert_eq(pthread_create(&thread, NULL, write_on, &w), 0);
        for (uint64_t g = 1; g <= 15; g++)
            MUST(haul_store_commit(w.s, g, NULL, 0));
        atomic_store(&w.stop, 1);
        pthread_join(thread, NULL);
        cr_assert_eq(atomic_load(&w.failed), 0);
        haul_store_close(w.s);
        w.s = durable(dir, HAUL_LATEST);
        MUST(haul_store_read(w.s, 1, 0, in, SIZE));
        cr_assert(!memcmp(in, in + 1, SIZE - 1), "the generation holds half a write");
        haul_store_close(w.s);
    }
}

Test(pager, space_of_a_dropped_extent_waits_for_the_generations_that_need_it)
{
    char dir[128];

    FOR_EACH_PLACE(dir)
    {
        struct haul_store *s = durable(dir, HAUL_LATEST);
        struct haul_store_info info = {.struct_size = sizeof info};

        MUST(haul_extent_create(s, 1, 4 * MIB));
        put_all(s, 4 * MIB, 1);
        MUST(haul_store_commit(s, 1, NULL, 0));
        MUST(haul_extent_drop(s, 1));
        MUST_FAIL(-ENOSPC, haul_extent_create(s, 2, BLK));
        MUST(haul_store_prepare(s, 2, NULL, 0));
        MUST_FAIL(-ENOSPC, haul_extent_create(s, 2, BLK)); /* generation 1 is still there */
        haul_store_close(s);
        s = durable(dir, 1); /* and whole */
        cr_assert(holds(s, 4 * MIB, 1));
        MUST(haul_extent_drop(s, 1));
        MUST(haul_store_commit(s, 2, NULL, 0));
        MUST(haul_extent_create(s, 2, 4 * MIB));
        MUST(haul_store_get_info(s, &info));
        cr_assert_eq(info.nextents, 1);
        cr_assert_eq(info.used_bytes, 4 * MIB);
        cr_assert_eq(info.file_bytes, 8 * MIB);
        haul_store_close(s);
    }
}

Test(pager, an_older_generation_with_other_extents_is_kept_whole)
{
    struct haul_store_opts o;
    const char *d;
    char dir[128];

    FOR_EACH_PLACE(dir)
    {
        struct haul_store *s = durable(dir, HAUL_LATEST);

        MUST(haul_extent_create(s, 1, SIZE));
        put_all(s, SIZE, 1);
        MUST(haul_store_prepare(s, 1, NULL, 0));
        MUST(haul_extent_drop(s, 1));
        MUST(haul_extent_create(s, 1, 2 * SIZE)); /* the same id, other cells */
        put_all(s, 2 * SIZE, 2);
        MUST(haul_store_prepare(s, 2, NULL, 0));
        haul_store_close(s);
        d = dir;
        o = small_opts(&d);
        o.durable = o.keep_older = 1;
        MUST(open_store(&o, &s));
        cr_assert(holds(s, 2 * SIZE, 2));
        MUST(haul_extent_create(s, 5, BLK));
        haul_store_close(s);
        s = durable(dir, 1);
        cr_assert(holds(s, SIZE, 1));
        haul_store_close(s);
    }
}

Test(pager, capacity_can_grow_at_reopening_and_never_shrinks)
{
    struct haul_store_info info = {.struct_size = sizeof info};
    struct haul_store_opts o;
    const char *d;
    char dir[128];

    FOR_EACH_PLACE(dir)
    {
        struct haul_store *s = durable(dir, HAUL_LATEST);

        MUST(haul_extent_create(s, 1, 4 * MIB));
        put_all(s, 4 * MIB, 1);
        MUST(haul_store_commit(s, 1, NULL, 0));
        haul_store_close(s);
        d = dir;
        o = small_opts(&d);
        o.durable = 1;
        o.capacity_bytes = 6 * MIB;
        o.block_bytes = 1u << 20; /* the store keeps its own */
        o.reserve = HAUL_RESERVE_WRITTEN;
        MUST(open_store(&o, &s));
        MUST(haul_store_get_info(s, &info));
        cr_assert_eq(info.block_bytes, BLK);
        cr_assert_eq(info.capacity_bytes, 6 * MIB);
        cr_assert(holds(s, 4 * MIB, 1)); /* writing the new space once spared the old */
        MUST(haul_extent_grow(s, 1, 6 * MIB));
        put_all(s, 6 * MIB, 2);
        MUST(haul_store_commit(s, 2, NULL, 0));
        haul_store_close(s);
        o.capacity_bytes = 0;
        MUST(open_store(&o, &s));
        MUST(haul_store_get_info(s, &info));
        cr_assert_eq(info.capacity_bytes, 6 * MIB);
        cr_assert(holds(s, 6 * MIB, 2));
        haul_store_close(s);
    }
}

Test(pager, a_second_owner_is_refused_and_told_who_the_first_is)
{
    char dir[128], want[32];

    FOR_EACH_PLACE(dir)
    {
        struct haul_store *s = durable(dir, HAUL_LATEST), *second = NULL;
        const char *d = dir;
        struct haul_store_opts o = small_opts(&d);

        o.durable = 1;
        MUST_FAIL(-EBUSY, open_store(&o, &second));
        snprintf(want, sizeof want, "process %d;", (int)getpid());
        cr_assert(strstr(haul_last_error(), want), "%s", haul_last_error());
        MUST(haul_extent_create(s, 1, 1));
        MUST(haul_store_commit(s, 1, NULL, 0));
        o.read_only = 1;
        MUST_FAIL(-EBUSY, open_store(&o, &second));
        haul_store_close(s);
        MUST(open_store(&o, &second));
        MUST(open_store(&o, &s)); /* readers do not exclude each other */
        haul_store_close(second);
        haul_store_close(s);
    }
}

Test(pager, directories_of_another_store_are_refused)
{
    char a[128], b[128];
    const char *one[1] = {a}, *two[2] = {a, b}, *swapped[2] = {b, a};
    struct haul_store_opts o = small_opts(two);
    struct haul_store *s;

    cr_assert(place_make(0, a) && place_make(0, b));
    o.ndirs = 2;
    o.durable = 1;
    MUST(open_store(&o, &s));
    MUST(haul_extent_create(s, 1, SIZE));
    put_all(s, SIZE, 1);
    MUST(haul_store_commit(s, 1, NULL, 0));
    haul_store_close(s);
    o.dirs = swapped;
    MUST_FAIL(HAUL_E_CONFIG, open_store(&o, &s));
    o.dirs = one;
    o.ndirs = 1;
    MUST_FAIL(HAUL_E_CONFIG, open_store(&o, &s));
    o.dirs = two;
    o.ndirs = 2;
    MUST(open_store(&o, &s));
    cr_assert(holds(s, SIZE, 1));
    haul_store_close(s);
    place_remove(a);
    place_remove(b);
}

Test(pager, a_scratch_store_has_no_names_and_sweeps_those_of_the_dead)
{
    char dir[128], path[256];
    int fd;

    FOR_EACH_PLACE(dir)
    {
        struct haul_store *s;

        snprintf(path, sizeof path, "%s/.haul-scratch.999999.0", dir);
        fd = open(path, O_CREAT | O_RDWR, 0600);
        cr_assert_geq(fd, 0);
        close(fd);
        s = scratch(dir, BLK);
        cr_assert_eq(place_count(dir), 0);
        put_all(s, BLK, 1);
        haul_store_close(s);
    }
}

Test(pager, without_unnamed_files_a_scratch_store_removes_its_name_at_once)
{
    unsigned fallbacks = 0;
    char dir[128];

    FOR_EACH_PLACE(dir)
    {
        const char *d = dir;
        struct haul_store_opts o = small_opts(&d);

        /* One of the first calls is the O_TMPFILE open; refused like this it is no error. */
        for (unsigned n = 1; n < 12; n++) {
            struct haul_store *s;
            int rc;

            hl_sys_fail_nth(n, EOPNOTSUPP);
            rc = open_store(&o, &s);
            hl_sys_fail_nth(0, 0);
            cr_assert_eq(place_count(dir), 0, "call %u", n);
            if (rc < 0)
                continue;
            fallbacks++;
            MUST(haul_extent_create(s, 1, BLK));
            put_all(s, BLK, 2);
            cr_assert(holds(s, BLK, 2));
            haul_store_close(s);
        }
    }
    cr_assert_gt(fallbacks, 0);
}

/* Each byte of the pair is checked: rc says which. */
static uint64_t disk_place(const struct haul_store *s, uint64_t block)
{
    const struct hl_block *b = &s->extents[1]->blocks[block];

    return ((uint64_t)b->cell * 2 + b->slot) * BLK;
}

static void flip_bit(const char *dir, uint64_t at, unsigned bit)
{
    char path[256];
    unsigned char c;
    int fd;

    snprintf(path, sizeof path, "%s/haul.data", dir);
    fd = open(path, O_RDWR);
    cr_assert_geq(fd, 0);
    cr_assert_eq(pread(fd, &c, 1, (off_t)at), 1);
    c ^= (unsigned char)(1 << bit);
    cr_assert_eq(pwrite(fd, &c, 1, (off_t)at), 1);
    cr_assert_eq(fdatasync(fd), 0);
    close(fd);
}

static void note_damage(void *user, const struct haul_damage *damage)
{
    *(struct haul_damage *)user = *damage;
}

Test(pager, a_flipped_bit_is_found_wherever_it_is)
{
    unsigned flips = 1000;
    unsigned char *m = memory(SIZE);
    uint64_t state = 42, damaged;
    struct haul_damage damage = {0};
    char dir[128], want[64];

    cr_assert(place_make(1, dir));
    struct haul_store *s = durable(dir, HAUL_LATEST);

    MUST(haul_extent_create(s, 1, SIZE));
    put_all(s, SIZE, 1);
    MUST(haul_store_commit(s, 1, NULL, 0));
    for (unsigned i = 0; i < flips; i++) {
        uint64_t at = next_random(&state) % SIZE, block = at / BLK;
        unsigned bit = (unsigned)(next_random(&state) % 8);
        uint64_t where = disk_place(s, block);

        flip_bit(dir, where + at % BLK, bit);
        memset(m, 0, SIZE);
        MUST_FAIL(HAUL_E_CHECKSUM, haul_store_read(s, 1, 0, m, SIZE));
        snprintf(want, sizeof want, "block %llu,", (unsigned long long)block);
        cr_assert(strstr(haul_last_error(), want), "%s", haul_last_error());
        snprintf(want, sizeof want, "offset %llu ", (unsigned long long)where);
        cr_assert(strstr(haul_last_error(), want), "%s", haul_last_error());
        cr_assert(strstr(haul_last_error(), "haul.data"), "%s", haul_last_error());
        cr_assert(zero(m + block * BLK, block == 6 ? SIZE - 6 * BLK : BLK), "handed out");
        flip_bit(dir, where + at % BLK, bit);
    }
    cr_assert(holds(s, SIZE, 1));
    flip_bit(dir, disk_place(s, 4) + 77, 3);
    haul_store_close(s);
    s = durable(dir, HAUL_LATEST);
    MUST(haul_store_verify(s, note_damage, &damage, &damaged));
    cr_assert_eq(damaged, 1);
    cr_assert(damage.extent == 1 && damage.block == 4 && damage.rc == HAUL_E_CHECKSUM);
    haul_store_close(s);
    place_remove(dir);
}

Test(pager, a_damaged_manifest_is_refused_or_passed_over)
{
    char dir[128], path[256];
    int fd;

    FOR_EACH_PLACE(dir)
    {
        const char *d = dir;
        struct haul_store_opts o = small_opts(&d);
        struct haul_store *s = durable(dir, HAUL_LATEST);

        haul_log_set(NULL, NULL, HAUL_LOG_ERROR);
        MUST(haul_extent_create(s, 1, SIZE));
        put_all(s, SIZE, 1);
        MUST(haul_store_prepare(s, 1, NULL, 0));
        put_all(s, SIZE, 2);
        MUST(haul_store_prepare(s, 2, NULL, 0));
        haul_store_close(s);
        snprintf(path, sizeof path, "%s/manifest.2", dir);
        fd = open(path, O_WRONLY);
        cr_assert_eq(pwrite(fd, "x", 1, 200), 1);
        close(fd);
        o.durable = 1;
        o.generation = 2;
        MUST_FAIL(HAUL_E_CHECKSUM, open_store(&o, &s));
        s = durable(dir, HAUL_LATEST);
        cr_assert_eq(haul_store_generation(s, NULL, NULL), 1);
        cr_assert(holds(s, SIZE, 1));
        haul_store_close(s);
        snprintf(path, sizeof path, "%s/manifest.1", dir);
        cr_assert_eq(truncate(path, 50), 0);
        o.generation = HAUL_LATEST;
        MUST_FAIL(HAUL_E_CHECKSUM, open_store(&o, &s)); /* never taken for an empty store */
    }
}
