/* pager_errors.h: opening and working where things are refused. Included by each of the
 * test_pager_<method>.c files. */
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#define NO_STORE ((struct haul_store *)1)

static void sweep_open(const char *dir, int is_durable)
{
    struct haul_store_opts o = small_opts(&dir);
    int64_t before[HL_SYS_NKINDS];
    unsigned n, failures = 0;

    o.durable = is_durable;
    haul_log_set(NULL, NULL, HAUL_LOG_ERROR);
    for (int k = 0; k < HL_SYS_NKINDS; k++)
        before[k] = hl_sys_live((enum hl_sys_kind)k);
    for (n = 1; n < 2000; n++) {
        struct haul_store *s = NO_STORE;
        int rc;

        hl_sys_fail_nth(n, EIO);
        rc = open_store(&o, &s);
        if (!hl_sys_failed()) {
            hl_sys_fail_nth(0, 0);
            MUST(rc);
            haul_store_close(s);
            break;
        }
        hl_sys_fail_nth(0, 0);
        if (rc == 0) { /* some failures only cost a fallback */
            haul_store_close(s);
        } else {
            failures++;
            cr_assert_eq(s, NO_STORE, "call %u", n);
            cr_assert(haul_last_error()[0]);
        }
        for (int k = 0; k < HL_SYS_NKINDS; k++)
            cr_assert_eq(hl_sys_live((enum hl_sys_kind)k), before[k], "call %u, kind %d", n, k);
    }
    cr_assert(n > 10 && n < 2000 && failures > 10, "%u calls, %u failures", n, failures);
}

Test(pager, open_unwinds_from_every_failure)
{
    char dir[128];

    FOR_EACH_PLACE(dir)
    {
        sweep_open(dir, 0);
        cr_assert_eq(place_count(dir), 0);
        sweep_open(dir, 1);
    }
}

Test(pager, creating_and_growing_unwind_from_every_failure)
{
    unsigned char *m = memory(BLK);
    char dir[128];

    cr_assert(place_make(1, dir));
    struct haul_store *s = scratch(dir, 4 * BLK);

    fill(m, 0, BLK, 1);
    MUST(haul_store_write(s, 1, 0, m, BLK));
    MUST(haul_extent_drop(s, 1));
    for (unsigned n = 1;; n++) {
        int64_t before = hl_sys_live(HL_SYS_MEM);
        uint64_t bytes;
        int rc;

        hl_sys_fail_nth(n, ENOMEM);
        rc = haul_extent_create(s, 9000, BLK);
        if (rc == 0)
            rc = haul_extent_grow(s, 9000, 4 * BLK);
        if (!hl_sys_failed())
            break;
        hl_sys_fail_nth(0, 0);
        cr_assert_eq(rc, -ENOMEM);
        if (haul_extent_size(s, 9000, &bytes) == 0) {
            cr_assert_eq(bytes, BLK);
            MUST(haul_extent_drop(s, 9000));
        }
        cr_assert(hl_sys_live(HL_SYS_MEM) <= before + 1, "call %u", n); /* the table stays */
    }
    hl_sys_fail_nth(0, 0);
    haul_store_close(s);
    cr_assert_eq(hl_sys_live(HL_SYS_MEM), 0);
    place_remove(dir);
}

Test(pager, a_commit_that_fails_anywhere_leaves_a_whole_generation)
{
    char dir[128];

    FOR_EACH_PLACE(dir)
    {
        struct haul_store *s = durable(dir, HAUL_LATEST);
        uint64_t g = 1;
        int failed = 1;

        MUST(haul_extent_create(s, 1, SIZE));
        put_all(s, SIZE, 1);
        MUST(haul_store_commit(s, 1, NULL, 0));
        for (unsigned n = 1; failed && n < 200; n++) {
            int rc;

            put_all(s, SIZE, g + 1);
            hl_sys_fail_nth(n, ENOSPC);
            rc = haul_store_commit(s, g + 1, "blob", 4);
            failed = hl_sys_failed();
            hl_sys_fail_nth(0, 0);
            cr_assert_eq(rc, failed ? -ENOSPC : 0, "call %u: %d", n, rc);
            haul_store_close(s);
            s = durable(dir, HAUL_LATEST);
            /* Either the new one (only retiring the old failed) or the old one, never a mixture. */
            cr_assert(haul_store_generation(s, NULL, NULL) == g ||
                          haul_store_generation(s, NULL, NULL) == g + 1,
                      "call %u", n);
            g = haul_store_generation(s, NULL, NULL);
            cr_assert(holds(s, SIZE, g), "call %u, generation %d", n, (int)g);
        }
        cr_assert_eq(failed, 0);
        haul_store_close(s);
    }
}

Test(pager, after_a_refused_manifest_the_store_goes_on)
{
    char dir[128];

    FOR_EACH_PLACE(dir)
    {
        struct haul_store *s = durable(dir, HAUL_LATEST);
        unsigned n = 1;
        int rc;

        MUST(haul_extent_create(s, 1, SIZE));
        put_all(s, SIZE, 1);
        /* The first call is the flush: after that failure the store must be reopened. */
        do {
            hl_sys_fail_nth(++n, ENOSPC);
            rc = haul_store_prepare(s, 1, NULL, 0);
        } while (rc < 0 && n < 50);
        hl_sys_fail_nth(0, 0);
        cr_assert(n > 3 && n < 50, "%u", n);
        put_all(s, SIZE, 2);
        MUST(haul_store_commit(s, 2, NULL, 0));
        cr_assert(holds(s, SIZE, 2));
        haul_store_close(s);
    }
}

Test(pager, a_failed_flush_asks_for_reopening)
{
    char dir[128];

    FOR_EACH_PLACE(dir)
    {
        struct haul_store *s = durable(dir, HAUL_LATEST);

        MUST(haul_extent_create(s, 1, SIZE));
        put_all(s, SIZE, 1);
        MUST(haul_store_commit(s, 1, NULL, 0));
        put_all(s, SIZE, 2);
        hl_sys_fail_nth(1, EIO);
        MUST_FAIL(-EIO, haul_store_prepare(s, 2, NULL, 0));
        hl_sys_fail_nth(0, 0);
        MUST_FAIL(HAUL_E_STATE, haul_store_prepare(s, 2, NULL, 0));
        haul_store_close(s);
        s = durable(dir, HAUL_LATEST);
        cr_assert(holds(s, SIZE, 1));
        haul_store_close(s);
    }
}

Test(pager, lack_of_space_is_found_at_open)
{
    char dir[128];

    FOR_EACH_PLACE(dir)
    {
        const char *d = dir;
        struct haul_store_opts o = small_opts(&d);
        struct haul_store *s = NO_STORE;

        for (int i = 0; i < 4; i++) {
            o.durable = i & 1;
            o.reserve = i & 2 ? HAUL_RESERVE_WRITTEN : HAUL_RESERVE_ALLOCATED;
            o.capacity_bytes = 1ull << 46;
            o.block_bytes = 1u << 20;
            MUST_FAIL(-ENOSPC, open_store(&o, &s));
            cr_assert(strstr(haul_last_error(), "are free"), "%s", haul_last_error());
            cr_assert_eq(s, NO_STORE);
        }
    }
}

Test(pager, a_disk_that_fills_up_later_fails_the_write_and_loses_nothing)
{
    char dir[128], path[256];
    unsigned char *m = memory(MIB);
    struct haul_store_opts o;
    struct haul_store *s;
    const char *d = dir;
    int fd;

    cr_assert(place_make(0, dir));
    if (mount("none", dir, "tmpfs", 0, "size=3m") < 0) {
        place_remove(dir);
        SKIP("mounting a small tmpfs: %s", strerror(errno));
    }
    o = small_opts(&d);
    o.capacity_bytes = 8 * MIB;
    o.durable = 1;
    MUST_FAIL(-ENOSPC, open_store(&o, &s)); /* reserved: found at open */
    place_empty(dir);
    o.reserve = HAUL_RESERVE_NONE;
    MUST(open_store(&o, &s));
    MUST(haul_extent_create(s, 1, MIB));
    put_all(s, MIB, 1);
    MUST(haul_store_commit(s, 1, NULL, 0));
    /* Someone else fills the disk. */
    snprintf(path, sizeof path, "%s/other", dir);
    fd = open(path, O_CREAT | O_WRONLY, 0600);
    while (write(fd, m, 4096) == 4096)
        ;
    fill(m, 0, MIB, 2);
    MUST_FAIL(-ENOSPC, haul_store_write(s, 1, 0, m, MIB));
    cr_assert(strstr(haul_last_error(), "haul.data"), "%s", haul_last_error());
    cr_assert(strstr(haul_last_error(), "free some space"), "%s", haul_last_error());
    haul_store_close(s);
    s = durable(dir, HAUL_LATEST);
    cr_assert(holds(s, MIB, 1)); /* what was committed is whole */
    unlink(path);
    close(fd);
    put_all(s, MIB, 2);
    MUST(haul_store_commit(s, 2, NULL, 0));
    cr_assert(holds(s, MIB, 2));
    haul_store_close(s);
    umount2(dir, MNT_DETACH);
    place_remove(dir);
}

static void count_log(void *user, enum haul_log_level level, const char *text)
{
    (void)level;
    *(unsigned *)user += strstr(text, "io_uring is not used") != NULL;
}

Test(pager, a_full_disk_is_named_at_open_with_what_is_free)
{
    char dir[128], path[256], page[4096] = {0};
    struct haul_store *s = NO_STORE;
    const char *d = dir;
    unsigned blamed = 0, refused = 0;
    int fd;

    cr_assert(place_make(0, dir));
    struct haul_store_opts any = small_opts(&d);
    haul_log_set(count_log, &refused, HAUL_LOG_WARN); /* here io_uring may be refused for good */
    MUST(haul_store_open(&any, &s));
    haul_store_close(s);
    s = NO_STORE;
    if (mount("none", dir, "tmpfs", 0, "size=64k") < 0) {
        place_remove(dir);
        SKIP("mounting a small tmpfs: %s", strerror(errno));
    }
    snprintf(path, sizeof path, "%s/other", dir);
    fd = open(path, O_CREAT | O_WRONLY, 0600);
    while (write(fd, page, sizeof page) == sizeof page)
        ;
    close(fd);
    haul_log_set(count_log, &blamed, HAUL_LOG_WARN);
    for (int i = 0; i < 4; i++) {
        struct haul_store_opts o = small_opts(&d);

        o.reserve = HAUL_RESERVE_NONE;
        o.method = i & 1 ? HAUL_IO_THREADS : HAUL_IO_AUTO;
        o.durable = i / 2;
        MUST_FAIL(-ENOSPC, haul_store_open(&o, &s));
        cr_assert_eq(s, NO_STORE);
        cr_assert(strstr(haul_last_error(), dir), "%s", haul_last_error());
        cr_assert(strstr(haul_last_error(), " 0 bytes are free"), "%s", haul_last_error());
    }
    /* where io_uring is refused for good, the one that gets as far as asking for it says so, and no other */
    cr_assert_eq(blamed, refused ? 1 : 0, "%u warnings: a full disk is no fault of io_uring",
                 blamed);
    umount2(dir, MNT_DETACH);
    place_remove(dir);
}

Test(pager, options_out_of_range_are_named)
{
    char dir[128];
    const char *d = dir;
    struct haul_store_opts good = small_opts(&d), o;
    struct haul_store *s = NO_STORE;

    cr_assert(place_make(0, dir));
#define REFUSED(field, value, code)                                                                \
    o = good;                                                                                      \
    o.field = value;                                                                               \
    MUST_FAIL(code, open_store(&o, &s))
    REFUSED(struct_size, 1, HAUL_E_ABI);
    REFUSED(ndirs, 0, -EINVAL);
    REFUSED(ndirs, HAUL_MAX_DIRS + 1, -EINVAL);
    REFUSED(block_bytes, 4095, -EINVAL);
    REFUSED(block_bytes, 4096 + 512, -EINVAL);
    REFUSED(read_depth, 0, -EINVAL);
    REFUSED(write_depth, 1025, -EINVAL);
    REFUSED(max_requests, 0, -EINVAL);
    REFUSED(bounce_blocks, 0, -EINVAL);
    REFUSED(verify, 9, -EINVAL);
    REFUSED(verify_every, 0, -EINVAL);
    REFUSED(capacity_bytes, 0, -EINVAL);
    REFUSED(read_only, 1, -EINVAL);
    REFUSED(dirs, NULL, -EINVAL);
    cr_assert(strstr(haul_last_error(), "dirs"));
    d = "./no/such/parent";
    MUST_FAIL(-ENOENT, open_store(&good, &s));
    place_remove(dir);
}

#define NULL_NAMED(name, call)                                                                     \
    do {                                                                                           \
        MUST_FAIL(-EINVAL, call);                                                                  \
        cr_assert(strstr(haul_last_error(), name), "%s: %s", #call, haul_last_error());            \
    } while (0)

Test(pager, a_null_argument_is_refused_by_name)
{
    struct haul_store_stats stats = {.struct_size = sizeof stats};
    struct haul_store_info info = {.struct_size = sizeof info};
    struct haul_wear wear = {.struct_size = sizeof wear};
    unsigned char *m = memory(BLK);
    uint64_t token = 0, tokens[2] = {0}, n;
    uint32_t index;
    int done;
    char dir[128];
    const char *d[2] = {dir, NULL};
    struct haul_store_opts o = small_opts(d);
    struct haul_io io = {.extent = 1, .buf = m, .bytes = BLK};

    cr_assert(place_make(1, dir));
    NULL_NAMED("out", haul_store_open(&o, NULL));
    cr_assert_eq(place_count(dir), 0);
    o.ndirs = 2;
    struct haul_store *s = NO_STORE;
    NULL_NAMED("dirs[1]", open_store(&o, &s));
    NULL_NAMED("opts", open_store(NULL, &s));
    NULL_NAMED("opts", haul_store_opts_profile(NULL, "p", &(double){0}));
    NULL_NAMED("path", haul_store_opts_profile(&o, NULL, &(double){0}));
    NULL_NAMED("weights", haul_store_opts_profile(&o, "p", NULL));
    cr_assert_eq(s, NO_STORE);

    NULL_NAMED("store", haul_extent_create(NULL, 1, BLK));
    NULL_NAMED("store", haul_extent_grow(NULL, 1, BLK));
    NULL_NAMED("store", haul_extent_drop(NULL, 1));
    NULL_NAMED("store", haul_extent_size(NULL, 1, &n));
    NULL_NAMED("store", haul_store_read(NULL, 1, 0, m, 1));
    NULL_NAMED("store", haul_store_write(NULL, 1, 0, m, 1));
    NULL_NAMED("store", haul_store_submit(NULL, &io, &token));
    NULL_NAMED("store", haul_store_wait(NULL, 1));
    NULL_NAMED("store", haul_store_wait_any(NULL, tokens, 2, &index));
    NULL_NAMED("store", haul_store_poll(NULL, 1, &done));
    NULL_NAMED("store", haul_store_prepare(NULL, 1, NULL, 0));
    NULL_NAMED("store", haul_store_commit(NULL, 1, NULL, 0));
    NULL_NAMED("store", haul_store_retire(NULL, 1));
    NULL_NAMED("store", haul_store_verify(NULL, NULL, NULL, &n));
    NULL_NAMED("store", haul_store_stat(NULL, &stats));
    NULL_NAMED("store", haul_store_get_info(NULL, &info));
    NULL_NAMED("store", haul_store_wear(NULL, 0, &wear));
    cr_assert_eq(haul_store_generation(NULL, NULL, NULL), 0);
    haul_store_drain(NULL);
    NULL_NAMED("dir", haul_store_generations(NULL, &n, 1, &index));
    NULL_NAMED("out", haul_store_generations(dir, NULL, 1, &index));
    NULL_NAMED("n is", haul_store_generations(dir, &n, 1, NULL));

    s = durable(dir, HAUL_LATEST);
    MUST(haul_extent_create(s, 1, BLK));
    NULL_NAMED("bytes", haul_extent_size(s, 1, NULL));
    NULL_NAMED("buf", haul_store_read(s, 1, 0, NULL, 1));
    NULL_NAMED("buf", haul_store_write(s, 1, 0, NULL, 1));
    NULL_NAMED("io", haul_store_submit(s, NULL, &token));
    io.nsegs = 2;
    NULL_NAMED("segs", haul_store_submit(s, &io, &token));
    io.nsegs = 0;
    MUST(haul_store_submit(s, &io, &token));
    NULL_NAMED("done", haul_store_poll(s, token, NULL));
    NULL_NAMED("index", haul_store_wait_any(s, &token, 1, NULL));
    NULL_NAMED("tokens", haul_store_wait_any(s, NULL, 1, &index));
    MUST(haul_store_wait(s, token));
    NULL_NAMED("blob", haul_store_prepare(s, 1, NULL, 4));
    NULL_NAMED("blob", haul_store_commit(s, 1, NULL, 4));
    MUST(haul_store_commit(s, 1, NULL, 0));
    NULL_NAMED("ndamaged", haul_store_verify(s, NULL, NULL, NULL));
    NULL_NAMED("stats", haul_store_stat(s, NULL));
    NULL_NAMED("info", haul_store_get_info(s, NULL));
    NULL_NAMED("out", haul_store_wear(s, 0, NULL));
    haul_store_close(s);
    place_remove(dir);
}

Test(pager, a_directory_named_twice_is_refused_and_left_empty)
{
    char dir[128], again[160], link[160];

    FOR_EACH_PLACE(dir)
    {
        const char *d[3] = {dir, NULL, NULL};
        struct haul_store_opts o = small_opts(d);
        struct haul_store *s = NO_STORE;

        snprintf(again, sizeof again, "%s/.", dir);
        snprintf(link, sizeof link, "%s.link", dir);
        cr_assert_eq(symlink(strrchr(dir, '/') + 1, link), 0);
        o.ndirs = 2;
        for (int i = 0; i < 6; i++) {
            d[1] = i % 3 == 0 ? dir : i % 3 == 1 ? again : link;
            o.durable = i / 3;
            MUST_FAIL(-EINVAL, open_store(&o, &s));
            cr_assert_eq(s, NO_STORE);
            cr_assert(strstr(haul_last_error(), d[1]), "%s", haul_last_error());
            cr_assert(strstr(haul_last_error(), "dirs[1]"), "%s", haul_last_error());
            cr_assert(strstr(haul_last_error(), "dirs[0]"), "%s", haul_last_error());
            cr_assert_eq(place_count(dir), 0, "%s", o.durable ? "durable" : "scratch");
        }
        unlink(link);
    }
}

Test(pager, reads_and_writes_work_with_verification_sampled_or_off)
{
    static const enum haul_verify modes[] = {HAUL_VERIFY_SAMPLE, HAUL_VERIFY_OFF};
    unsigned char *m = memory(SIZE);
    char dir[128];

    FOR_EACH_PLACE(dir)
    {
        for (int i = 0; i < 4; i++) {
            const char *d = dir;
            struct haul_store_opts o = small_opts(&d);
            struct haul_store *s;

            o.verify = modes[i & 1];
            o.verify_every = 3;
            o.direct = i & 2 ? HAUL_DIRECT_OFF : HAUL_DIRECT_AUTO;
            MUST(open_store(&o, &s));
            MUST(haul_extent_create(s, 1, SIZE));
            put_all(s, SIZE, 1);
            MUST(haul_store_read(s, 1, BLK + 4096, m, 8192)); /* an aligned part, unchecked */
            cr_assert(filled(m, BLK + 4096, 8192, 1));
            MUST(haul_store_read(s, 1, 5, m, SIZE - 5));
            cr_assert(filled(m, 5, SIZE - 5, 1));
            MUST(haul_store_write(s, 1, 5, m, SIZE - 5));
            cr_assert(holds(s, SIZE, 1));
            haul_store_close(s);
        }
    }
}

Test(pager, sampling_finds_damage_in_the_end)
{
    unsigned char *m = memory(SIZE);
    char dir[128];
    const char *d = dir;
    struct haul_store_opts o = small_opts(&d);
    struct haul_store *s;
    int found = 0;

    cr_assert(place_make(1, dir));
    o.durable = 1;
    o.verify = HAUL_VERIFY_SAMPLE;
    o.verify_every = 5;
    MUST(open_store(&o, &s));
    MUST(haul_extent_create(s, 1, SIZE));
    put_all(s, SIZE, 1);
    flip_bit(dir, disk_place(s, 2) + 9, 1);
    for (unsigned i = 0; i < 5; i++) /* 7 blocks, every fifth: all residues come by */
        found += haul_store_read(s, 1, 0, m, SIZE) == HAUL_E_CHECKSUM;
    cr_assert_eq(found, 1);
    haul_store_close(s);
    place_remove(dir);
}

Test(pager, the_pool_of_the_caller_serves_without_a_copy)
{
    struct haul_pool_segment seg = {.bytes = 16 * BLK, .fd = -1};
    struct haul_store_stats st = {.struct_size = sizeof st};
    struct haul_pool_opts po;
    struct haul_pool *pool;
    void *m;
    char dir[128];

    haul_log_set(NULL, NULL, HAUL_LOG_ERROR);
    haul_pool_opts_init(&po);
    po.segments = &seg;
    po.nsegments = 1;
    FOR_EACH_PLACE(dir)
    {
        const char *d = dir;
        struct haul_store_opts o = small_opts(&d);
        struct haul_store *s;

        MUST(haul_pool_open(&po, &pool));
        MUST(haul_pool_take(pool, "data", 8 * BLK, &m));
        o.pool = pool;
        MUST(open_store(&o, &s));
        MUST(haul_extent_create(s, 1, 8 * BLK));
        fill(m, 0, 8 * BLK, 1);
        MUST(haul_store_write(s, 1, 0, m, 8 * BLK));
        memset(m, 0, 8 * BLK);
        MUST(haul_store_read(s, 1, 0, m, 8 * BLK));
        cr_assert(filled(m, 0, 8 * BLK, 1));
        MUST(haul_store_stat(s, &st));
        cr_assert_eq(st.read.bounced + st.write.bounced, 0);
        haul_store_close(s);
        haul_pool_close(pool);
    }
}
