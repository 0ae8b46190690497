/* pager_requests.h: what a store does for requests, whichever method moves them. Included by each of
 * the test_pager_<method>.c files. */
#include <stdatomic.h>
#include <sys/stat.h>

Test(pager, what_is_written_is_read_back)
{
    static const uint64_t bytes[] = {1, 511, 512, 4096, 5000, BLK - 1, BLK, BLK + 1, 3 * BLK + 77};
    static const uint64_t at[] = {0, 1, 512, 4096, BLK - 1, BLK, 2 * BLK + 100};
    unsigned char *in = memory(MIB), *out = memory(MIB);
    char dir[128];

    FOR_EACH_PLACE(dir)
    {
        struct haul_store *s = scratch(dir, 8 * BLK + 1234);

        for (size_t i = 0; i < sizeof bytes / sizeof *bytes; i++) {
            for (size_t j = 0; j < sizeof at / sizeof *at; j++) {
                fill(out, at[j], bytes[i], i * 10 + j);
                MUST(haul_store_write(s, 1, at[j], out, bytes[i]));
                memset(in, 0, bytes[i]);
                MUST(haul_store_read(s, 1, at[j], in, bytes[i]));
                cr_assert(filled(in, at[j], bytes[i], i * 10 + j), "%zu %zu", i, j);
            }
        }
        haul_store_close(s);
    }
}

Test(pager, neighbours_of_a_write_keep_their_bytes)
{
    uint64_t n = 5 * BLK + 333, from = BLK - 10, to = 2 * BLK + 9;
    unsigned char *in = memory(n), *out = memory(n);
    char dir[128];

    FOR_EACH_PLACE(dir)
    {
        struct haul_store *s = scratch(dir, n);

        fill(out, 0, n, 1);
        MUST(haul_store_write(s, 1, 0, out, n));
        fill(out + from, from, to - from, 2);
        MUST(haul_store_write(s, 1, from, out + from, to - from));
        MUST(haul_store_read(s, 1, 0, in, n));
        cr_assert(filled(in, 0, from, 1));
        cr_assert(filled(in + from, from, to - from, 2));
        cr_assert(filled(in + to, to, n - to, 1));
        haul_store_close(s);
    }
}

Test(pager, what_was_never_written_reads_as_zeros)
{
    uint64_t n = 4 * BLK + 100;
    unsigned char *in = memory(n), *out = memory(n);
    char dir[128];

    FOR_EACH_PLACE(dir)
    {
        struct haul_store *s = scratch(dir, n);

        MUST(haul_store_read(s, 1, 0, in, n));
        cr_assert(zero(in, n));
        fill(out, BLK + 5, 10, 3);
        MUST(haul_store_write(s, 1, BLK + 5, out, 10));
        MUST(haul_store_read(s, 1, 0, in, n));
        cr_assert(zero(in, BLK + 5) && zero(in + BLK + 15, n - BLK - 15));
        cr_assert(filled(in + BLK + 5, BLK + 5, 10, 3));
        haul_store_close(s);
    }
}

Test(pager, a_dropped_extent_leaves_no_bytes_to_the_next)
{
    unsigned char *m = memory(2 * BLK);
    char dir[128];

    FOR_EACH_PLACE(dir)
    {
        struct haul_store *s = scratch(dir, 2 * BLK);

        fill(m, 0, 2 * BLK, 1);
        MUST(haul_store_write(s, 1, 0, m, 2 * BLK));
        MUST_FAIL(-ENOSPC, haul_extent_create(s, 2, 1));
        MUST(haul_extent_drop(s, 1));
        MUST_FAIL(-ENOENT, haul_store_read(s, 1, 0, m, 1));
        MUST(haul_extent_create(s, 2, 2 * BLK));
        MUST(haul_store_read(s, 2, 0, m, 2 * BLK));
        cr_assert(zero(m, 2 * BLK));
        haul_store_close(s);
    }
}

Test(pager, a_grown_extent_keeps_its_bytes_and_adds_zeros)
{
    uint64_t n = BLK + 100, more = 3 * BLK + 7;
    unsigned char *m = memory(more);
    uint64_t bytes;
    char dir[128];

    FOR_EACH_PLACE(dir)
    {
        const char *d = dir;
        struct haul_store_opts o = small_opts(&d);
        struct haul_store *s;

        MUST(open_store(&o, &s));
        MUST(haul_extent_create(s, 9, n));
        fill(m, 0, n, 5);
        MUST(haul_store_write(s, 9, 0, m, n));
        MUST_FAIL(-EINVAL, haul_extent_grow(s, 9, n - 1));
        memset(m, 0xaa, BLK); /* leave something in the bounce block */
        MUST(haul_extent_create(s, 8, BLK));
        MUST(haul_store_write(s, 8, 0, m + 1, BLK));
        MUST(haul_extent_grow(s, 9, more));
        MUST(haul_extent_size(s, 9, &bytes));
        cr_assert_eq(bytes, more);
        MUST(haul_store_read(s, 9, 0, m, more));
        cr_assert(filled(m, 0, n, 5) && zero(m + n, more - n));
        MUST(haul_store_write(s, 9, n, m, 1)); /* the old tail is merged, not lost */
        MUST(haul_store_read(s, 9, 0, m, more));
        cr_assert(filled(m, 0, n, 5) && m[n] == m[0]);
        haul_store_close(s);
    }
}

Test(pager, memory_at_any_address_and_in_pieces_works)
{
    uint64_t n = 4 * BLK;
    unsigned char *out = memory(n + 64), *in = memory(n + 64);
    char dir[128];

    FOR_EACH_PLACE(dir)
    {
        struct haul_store *s = scratch(dir, n);

        for (unsigned skew = 0; skew < 8; skew += 3) {
            struct haul_seg segs[] = {{in + skew, 0},
                                      {in + skew, 100},
                                      {in + skew + 100, BLK + 1},
                                      {in + skew + BLK + 101, n - BLK - 101}};
            struct haul_io io = {.extent = 1, .segs = segs, .nsegs = 4};
            uint64_t token;

            fill(out + skew, 0, n, skew);
            MUST(haul_store_write(s, 1, 0, out + skew, n));
            memset(in, 0, n);
            MUST(haul_store_submit(s, &io, &token));
            MUST(haul_store_wait(s, token));
            cr_assert(filled(in + skew, 0, n, skew));
            io.write = 1;
            fill(in + skew, 0, n, skew + 50);
            MUST(haul_store_submit(s, &io, &token));
            MUST(haul_store_wait(s, token));
            MUST(haul_store_read(s, 1, 0, out, n));
            cr_assert(filled(out, 0, n, skew + 50));
        }
        haul_store_close(s);
    }
}

Test(pager, a_token_is_good_for_one_wait)
{
    unsigned char *m = memory(BLK);
    uint64_t a, b, tokens[3] = {0};
    uint32_t index;
    int done = 0, rc = 0;
    char dir[128];

    FOR_EACH_PLACE(dir)
    {
        struct haul_store *s = scratch(dir, BLK);
        struct haul_io io = {.extent = 1, .buf = m, .bytes = BLK};

        MUST(haul_store_submit(s, &io, &a));
        MUST(haul_store_wait(s, a));
        MUST_FAIL(-EINVAL, haul_store_wait(s, a));
        MUST_FAIL(-EINVAL, haul_store_poll(s, a, &done));
        MUST(haul_store_submit(s, &io, &b));
        cr_assert_neq(a, b);
        do
            rc = haul_store_poll(s, b, &done);
        while (rc == 0 && !done);
        cr_assert_eq(rc, 0);
        MUST_FAIL(-EINVAL, haul_store_wait_any(s, tokens, 3, &index));
        MUST(haul_store_submit(s, &io, &tokens[1]));
        MUST(haul_store_submit(s, &io, &tokens[2]));
        MUST(haul_store_wait_any(s, tokens, 3, &index));
        cr_assert(index == 1 || index == 2);
        tokens[index] = 0;
        MUST(haul_store_wait_any(s, tokens, 3, &index));
        haul_store_close(s);
    }
}

struct sharer {
    struct haul_store *s;
    uint64_t tokens[2];
    int any, rc;
};

static void *wait_for_shared(void *arg)
{
    struct sharer *w = arg;
    uint32_t index;

    w->rc = w->any ? haul_store_wait_any(w->s, w->tokens, 2, &index)
                   : haul_store_wait(w->s, w->tokens[0]);
    return NULL;
}

/* Both threads come back: one has the result, for the other the token is stale. */
Test(pager, of_two_threads_that_wait_for_a_token_one_gets_the_result)
{
    unsigned char *m = memory(16 * BLK);
    char dir[128];

    cr_assert(place_make(1, dir));
    struct haul_store *s = scratch(dir, 16 * BLK);

    alarm(20); /* a thread that nobody wakes ends the case */
    for (int i = 0; i < 300; i++) {
        struct haul_io io = {.extent = 1, .buf = m, .bytes = 16 * BLK};
        struct sharer w[2] = {{.s = s, .any = i & 1}, {.s = s, .any = i >> 1 & 1}};
        pthread_t t[2];

        MUST(haul_store_submit(s, &io, &w[0].tokens[0]));
        w[1].tokens[0] = w[0].tokens[0];
        for (int k = 0; k < 2; k++)
            cr_assert_eq(pthread_create(&t[k], NULL, wait_for_shared, &w[k]), 0);
        for (int k = 0; k < 2; k++)
            cr_assert_eq(pthread_join(t[k], NULL), 0);
        cr_assert(w[0].rc == 0 || w[1].rc == 0, "round %d: %d %d", i, w[0].rc, w[1].rc);
        cr_assert_eq(w[0].rc + w[1].rc, -EINVAL, "round %d: %d %d", i, w[0].rc, w[1].rc);
    }
    alarm(0);
    haul_store_close(s);
    place_remove(dir);
}

Test(pager, too_many_requests_are_refused_and_none_is_lost)
{
    unsigned char *m = memory(32 * BLK);
    uint64_t tokens[33];
    char dir[128];

    FOR_EACH_PLACE(dir)
    {
        struct haul_store *s = scratch(dir, 32 * BLK);

        for (unsigned i = 0; i < 32; i++) {
            fill(m + i * BLK, 0, BLK, i);
            struct haul_io io = {
                .write = 1, .extent = 1, .offset = i * BLK, .buf = m + i * BLK, .bytes = BLK};
            MUST(haul_store_submit(s, &io, &tokens[i]));
        }
        MUST_FAIL(-EAGAIN, haul_store_read(s, 1, 0, m, 1));
        for (unsigned i = 0; i < 32; i++)
            MUST(haul_store_wait(s, tokens[i]));
        memset(m, 0, 32 * BLK);
        MUST(haul_store_read(s, 1, 0, m, 32 * BLK));
        for (unsigned i = 0; i < 32; i++)
            cr_assert(filled(m + i * BLK, 0, BLK, i), "%u", i);
        haul_store_close(s);
    }
}

Test(pager, wrong_requests_are_told_apart)
{
    unsigned char *m = memory(BLK);
    struct haul_io io = {.extent = 1};
    uint64_t token;
    char dir[128];

    FOR_EACH_PLACE(dir)
    {
        struct haul_store *s = scratch(dir, BLK + 5);

        MUST_FAIL(-EINVAL, haul_store_read(s, 1, BLK, m, 6));
        MUST_FAIL(-EINVAL, haul_store_read(s, 1, UINT64_MAX, m, 2));
        MUST_FAIL(-EINVAL, haul_store_read(s, 1, 0, m, 0));
        MUST_FAIL(-EINVAL, haul_store_submit(s, &io, &token));
        MUST_FAIL(-ENOENT, haul_store_write(s, 7, 0, m, 1));
        MUST_FAIL(-EEXIST, haul_extent_create(s, 1, 1));
        MUST_FAIL(-EINVAL, haul_extent_create(s, 2, 0));
        MUST_FAIL(-EINVAL, haul_extent_create(s, HAUL_MAX_EXTENTS, 1));
        MUST_FAIL(-ENOSPC, haul_extent_create(s, 2, UINT64_MAX));
        MUST_FAIL(-ENOENT, haul_extent_drop(s, 2));
        MUST_FAIL(-EINVAL, haul_store_prepare(s, 1, NULL, 0));
        MUST(haul_store_read(s, 1, BLK, m, 5));
        haul_store_close(s);
    }
}

struct tally {
    struct haul_store *store;
    unsigned char *mem;
    atomic_int called, failed, waited_inside;
    struct hl_gate gate;
};

static void count_up(void *user, int rc)
{
    struct tally *t = user;

    atomic_fetch_add(&t->failed, rc < 0);
    if (haul_store_read(t->store, 1, 0, t->mem, 1) == HAUL_E_STATE)
        atomic_fetch_add(&t->waited_inside, 1);
    if (atomic_fetch_add(&t->called, 1) < 20) {
        struct haul_io io = {.extent = 1, .buf = t->mem, .bytes = BLK, .fn = count_up, .user = t};

        atomic_fetch_add(&t->failed, haul_store_submit(t->store, &io, NULL) < 0);
    }
    hl_gate_wake(&t->gate);
}

Test(pager, a_callback_may_submit_and_must_not_wait)
{
    struct tally t = {.mem = memory(BLK)};
    char dir[128];

    FOR_EACH_PLACE(dir)
    {
        struct haul_io io = {.extent = 1, .buf = t.mem, .bytes = BLK, .fn = count_up, .user = &t};

        t.store = scratch(dir, BLK);
        atomic_store(&t.called, 0);
        atomic_store(&t.waited_inside, 0);
        MUST(haul_store_submit(t.store, &io, NULL));
        for (;;) {
            uint32_t seen = hl_gate_look(&t.gate);

            if (atomic_load(&t.called) == 21)
                break;
            hl_gate_sleep(&t.gate, seen);
        }
        haul_store_close(t.store);
        cr_assert_eq(atomic_load(&t.failed), 0);
        cr_assert_eq(atomic_load(&t.waited_inside), 21);
    }
}

static void note_order(void *user, int rc)
{
    __atomic_store_n((int *)user, rc < 0 ? -1 : 1, __ATOMIC_RELAXED);
}

static unsigned count_left(const int *done, unsigned n)
{
    unsigned left = 0;

    for (unsigned i = 0; i < n; i++)
        left += !__atomic_load_n(&done[i], __ATOMIC_RELAXED);
    return left;
}

/* 24 requests of 10 blocks in the background, and one that is waited for. */
static void race_background(struct haul_store *s, int write, unsigned char *m, unsigned char *in)
{
    int done[24] = {0};

    for (unsigned i = 0; i < 24; i++) {
        struct haul_io io = {.write = write,
                             .extent = 1,
                             .offset = i * 10 * BLK,
                             .buf = m + i * 10 * BLK,
                             .bytes = 10 * BLK,
                             .fn = note_order,
                             .user = &done[i]};
        MUST(haul_store_submit(s, &io, NULL));
    }
    MUST(haul_store_read(s, 2, 0, in, BLK));
    cr_assert_gt(count_left(done, 24), 4, "the read came last: %u left", count_left(done, 24));
    haul_store_drain(s);
    cr_assert_eq(count_left(done, 24), 0);
}

Test(pager, a_read_that_someone_waits_for_goes_before_what_nobody_waits_for)
{
    uint64_t n = 240 * BLK;
    unsigned char *m = memory(n), *in = memory(BLK);
    char dir[128];

    FOR_EACH_PLACE(dir)
    {
        const char *d = dir;
        struct haul_store_opts o = small_opts(&d);
        struct haul_store *s;

        o.capacity_bytes = n + BLK;
        o.read_depth = o.write_depth = 2;
        MUST(open_store(&o, &s));
        MUST(haul_extent_create(s, 1, n));
        MUST(haul_extent_create(s, 2, BLK));
        MUST(haul_store_write(s, 2, 0, in, BLK));
        race_background(s, 1, m, in);
        race_background(s, 0, m, in);
        haul_store_close(s);
    }
}

/* A block, read while others write it whole: one of the contents, never a mixture. */
Test(pager, requests_that_overlap_see_whole_blocks)
{
    unsigned char *out[4], *in[4];
    uint64_t tokens[8];
    char dir[128];

    for (unsigned i = 0; i < 4; i++) {
        out[i] = memory(2 * BLK);
        in[i] = memory(2 * BLK);
        memset(out[i], (int)i + 1, 2 * BLK);
    }
    FOR_EACH_PLACE(dir)
    {
        struct haul_store *s = scratch(dir, 2 * BLK);

        MUST(haul_store_write(s, 1, 0, out[0], 2 * BLK));
        for (unsigned round = 0; round < 60; round++) {
            for (unsigned i = 0; i < 8; i++) {
                struct haul_io io = {.write = i % 2 == 0,
                                     .extent = 1,
                                     .buf = i % 2 ? in[i / 2] : out[i / 2],
                                     .bytes = 2 * BLK};
                MUST(haul_store_submit(s, &io, &tokens[i]));
            }
            for (unsigned i = 0; i < 8; i++)
                MUST(haul_store_wait(s, tokens[i]));
            for (unsigned i = 0; i < 8; i++) {
                const unsigned char *block = in[i / 2] + i % 2 * BLK;

                cr_assert(block[0] >= 1 && block[0] <= 4);
                cr_assert(!memcmp(block, block + 1, BLK - 1), "a mixture");
            }
        }
        haul_store_close(s);
    }
}

/* Someone else may hold the file a while longer, as the kernel does for a ring that has ended. */
Test(pager, close_gives_the_space_of_a_scratch_store_back_at_once)
{
    char dir[128];
    struct stat st;

    FOR_EACH_PLACE(dir)
    {
        struct haul_store *s = scratch(dir, 64 * BLK);
        int fd = dup(s->fds[0]);

        cr_assert(fd >= 0 && fstat(fd, &st) == 0);
        cr_assert_geq((uint64_t)st.st_blocks * 512, 64 * BLK);
        haul_store_close(s);
        cr_assert_eq(fstat(fd, &st), 0);
        cr_assert_eq(st.st_blocks, 0, "%lld blocks of 512 are held", (long long)st.st_blocks);
        close(fd);
    }
}

Test(pager, close_completes_what_was_submitted)
{
    unsigned char *m = memory(32 * BLK);
    int done[16] = {0};
    char dir[128];

    FOR_EACH_PLACE(dir)
    {
        struct haul_store *s = scratch(dir, 32 * BLK);

        for (unsigned i = 0; i < 16; i++) {
            struct haul_io io = {.write = 1,
                                 .extent = 1,
                                 .offset = i * 2 * BLK,
                                 .buf = m,
                                 .bytes = 2 * BLK,
                                 .fn = note_order,
                                 .user = &done[i]};
            MUST(haul_store_submit(s, &io, NULL));
        }
        haul_store_close(s);
        for (unsigned i = 0; i < 16; i++)
            cr_assert_eq(done[i], 1);
        memset(done, 0, sizeof done);
    }
}

struct client {
    struct haul_store *store;
    uint32_t extent;
    int bad;
};

static void *client_run(void *arg)
{
    struct client *c = arg;
    unsigned char *m = malloc(3 * BLK);
    uint64_t state = c->extent, seed[8] = {0};

    for (unsigned i = 0; m && i < 60 && !c->bad; i++) {
        unsigned b = (unsigned)(next_random(&state) % 8);

        if (seed[b]) {
            c->bad |= haul_store_read(c->store, c->extent, b * BLK + 7, m, BLK - 7) != 0;
            c->bad |= !filled(m, b * BLK + 7, BLK - 7, seed[b]);
        }
        seed[b] = c->extent * 1000 + i;
        fill(m, b * BLK, BLK, seed[b]);
        c->bad |= haul_store_write(c->store, c->extent, b * BLK, m, BLK) != 0;
    }
    free(m);
    return NULL;
}

Test(pager, four_threads_share_a_store)
{
    char dir[128];

    FOR_EACH_PLACE(dir)
    {
        struct client c[4];
        pthread_t thread[4];
        const char *d = dir;
        struct haul_store_opts o = small_opts(&d);
        struct haul_store *s;

        MUST(open_store(&o, &s));
        for (uint32_t i = 0; i < 4; i++) {
            MUST(haul_extent_create(s, i + 1, 8 * BLK));
            c[i] = (struct client){s, i + 1, 0};
        }
        for (unsigned i = 0; i < 4; i++)
            cr_assert_eq(pthread_create(&thread[i], NULL, client_run, &c[i]), 0);
        for (unsigned i = 0; i < 4; i++)
            pthread_join(thread[i], NULL);
        for (unsigned i = 0; i < 4; i++)
            cr_assert_eq(c[i].bad, 0, "client %u", i);
        haul_store_close(s);
    }
}

Test(pager, blocks_are_dealt_over_directories_by_weight)
{
    char a[128], b[128];
    const char *dirs[2] = {a, b};
    const double weights[2] = {3, 1};
    struct haul_store_opts o = small_opts(dirs);
    unsigned char *m = memory(40 * BLK);
    unsigned in_first = 0;
    struct haul_store *s;

    cr_assert(place_make(0, a) && place_make(0, b));
    o.ndirs = 2;
    o.dir_weights = weights;
    o.capacity_bytes = 40 * BLK;
    MUST(open_store(&o, &s));
    MUST(haul_extent_create(s, 1, 40 * BLK));
    fill(m, 0, 40 * BLK, 1);
    MUST(haul_store_write(s, 1, 0, m, 40 * BLK));
    memset(m, 0, 40 * BLK);
    MUST(haul_store_read(s, 1, 0, m, 40 * BLK));
    cr_assert(filled(m, 0, 40 * BLK, 1));
    for (unsigned i = 0; i < 40; i++)
        in_first += s->extents[1]->blocks[i].dir == 0;
    cr_assert_eq(in_first, 30);
    for (unsigned i = 0; i < 40; i += 4) { /* spread evenly, not in two lumps */
        unsigned first = 0;

        for (unsigned j = i; j < i + 4; j++)
            first += s->extents[1]->blocks[j].dir == 0;
        cr_assert_eq(first, 3);
    }
    haul_store_close(s);
    place_remove(a);
    place_remove(b);
}

Test(pager, statistics_count_what_happened)
{
    struct haul_store_stats st = {.struct_size = sizeof st};
    unsigned char *m = memory(4 * BLK);
    uint64_t in_buckets = 0, at_depths = 0;
    char dir[128];

    cr_assert(place_make(0, dir));
    struct haul_store *s = scratch(dir, 4 * BLK);

    MUST(haul_store_write(s, 1, 0, m, 4 * BLK));
    MUST(haul_store_read(s, 1, 0, m, 3 * BLK));
    MUST(haul_store_read(s, 1, 5, m, 10));
    MUST_FAIL(-EINVAL, haul_store_read(s, 1, 0, m, 5 * BLK));
    MUST(haul_store_stat(s, &st));
    cr_assert_eq(st.write.requests, 1);
    cr_assert_eq(st.write.bytes, 4 * BLK);
    cr_assert_eq(st.write.disk_bytes, 4 * BLK);
    cr_assert_eq(st.written_ever_bytes, 4 * BLK);
    cr_assert_eq(st.read.requests, 3);
    cr_assert_eq(st.read.failed, 1);
    cr_assert_eq(st.read.bytes, 3 * BLK + 10);
    cr_assert_eq(st.read.disk_bytes, 4 * BLK); /* a checked part costs its block */
    cr_assert_eq(st.read.blocks, 4);
    cr_assert_eq(st.read.bounced, 1);
    for (unsigned i = 0; i < HAUL_LATENCY_BUCKETS; i++)
        in_buckets += st.read.latency[i];
    cr_assert_eq(in_buckets, 3);
    for (unsigned i = 0; i < HAUL_DEPTH_BUCKETS; i++)
        at_depths += st.write.depth_ns[i];
    cr_assert_eq(at_depths, st.write.busy_ns);
    cr_assert(st.write.mean_depth >= 1 && st.write.mean_depth <= 5, "%g", st.write.mean_depth);
    st.struct_size = 3;
    MUST_FAIL(HAUL_E_ABI, haul_store_stat(s, &st));
    haul_store_close(s);
    place_remove(dir);
}

Test(pager, ten_thousand_requests_leave_nothing_behind)
{
    unsigned char *m = memory(4 * BLK);
    int64_t before[HL_SYS_NKINDS];
    char dir[128];

    cr_assert(place_make(1, dir));
    struct haul_store *s = scratch(dir, 4 * BLK);

    for (int k = 0; k < HL_SYS_NKINDS; k++)
        before[k] = hl_sys_live((enum hl_sys_kind)k);
    for (unsigned i = 0; i < 10000; i++) {
        struct haul_io io = {.write = (int)(i & 1), .extent = 1, .buf = m, .bytes = 4096};
        uint64_t token;

        MUST(haul_store_submit(s, &io, &token));
        MUST(haul_store_wait(s, token));
    }
    for (int k = 0; k < HL_SYS_NKINDS; k++)
        cr_assert_eq(hl_sys_live((enum hl_sys_kind)k), before[k], "kind %d", k);
    haul_store_close(s);
    for (int k = 0; k < HL_SYS_NKINDS; k++)
        cr_assert_eq(hl_sys_live((enum hl_sys_kind)k), 0, "kind %d", k);
    place_remove(dir);
}
