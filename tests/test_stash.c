/* The stash gives back what was put, last in first out, in pool and past it. */
#include <errno.h>
#include <stdbool.h>
#include <unistd.h>

#include "device_ops.h"
#include "haul/engine.h"
#include "suite.h"

#define ENTRIES 12
#define BYTES   200000

struct rig {
    struct haul_device *dev;
    void *stream;
    struct haul_engine *engine;
    struct haul_unit *unit;
    char *buf[2]; /* on the device */
    char dir[32];
};

static void check(int rc)
{
    cr_assert_eq(rc, 0, "%s: %s", haul_strerror(rc), haul_last_error());
}

static void open_rig(struct rig *r, uint64_t host_bytes, uint64_t seed, enum haul_io_method method)
{
    struct haul_tensor w = {.name = "w", .ndims = 1, .shape = {100}, .dtype = HAUL_BF16};
    struct haul_unit_desc d = {.struct_size = sizeof d, .name = "u", .tensors = &w, .ntensors = 1};
    struct haul_device_host_opts dopts;
    struct haul_engine_opts o;
    const char *dir = r->dir;

    snprintf(r->dir, sizeof r->dir, "./stash.XXXXXX");
    cr_assert_not_null(mkdtemp(r->dir));
    haul_device_host_opts_init(&dopts);
    dopts.jitter_seed = seed;
    check(haul_device_host_open(&dopts, &r->dev));
    check(haul_device_stream_open(r->dev, &r->stream));
    haul_engine_opts_init(&o);
    o.device = r->dev;
    o.stash_entries = ENTRIES;
    o.stash_entry_bytes = BYTES;
    o.stash_host_bytes = host_bytes;
    o.nvme_dirs = &dir;
    o.nnvme_dirs = 1;
    o.io_method = method;
    check(haul_engine_open(&o, &r->engine));
    check(haul_engine_add_unit(r->engine, &d, &r->unit));
    check(haul_engine_build(r->engine));
    for (int i = 0; i < 2; i++)
        check(haul_device_alloc(r->dev, BYTES, (void **)&r->buf[i]));
}

static void close_rig(struct rig *r)
{
    check(haul_device_stream_sync(r->dev, r->stream));
    haul_engine_close(r->engine);
    for (int i = 0; i < 2; i++)
        haul_device_free(r->dev, r->buf[i]);
    haul_device_stream_close(r->dev, r->stream);
    check(haul_device_close(r->dev));
    cr_assert_eq(rmdir(r->dir), 0);
}

/* The trainer's compute: fills a buffer with what belongs to (round, i), or checks it. */
struct work {
    char *buf;
    uint64_t seed, bytes;
    int bad;
};
static struct work work[4 * ENTRIES];
static unsigned nwork;

static void fill(void *arg)
{
    struct work *k = arg;

    for (uint64_t i = 0; i < k->bytes; i++)
        k->buf[i] = (char)((k->seed * 2654435761u + i * 40503u) >> 7);
}

static void compare(void *arg)
{
    struct work *k = arg;

    for (uint64_t i = 0; i < k->bytes; i++)
        k->bad += k->buf[i] != (char)((k->seed * 2654435761u + i * 40503u) >> 7);
}

static void queue(struct rig *r, haul_device_fn fn, unsigned round, unsigned i)
{
    struct work *k = &work[nwork++];

    *k = (struct work){r->buf[i % 2], round * 100 + i, BYTES - i * 7, 0};
    check(haul_device_launch(r->dev, r->stream, fn, k));
}

static void up_and_down(struct rig *r, unsigned round, unsigned from, unsigned to)
{
    nwork = 0;
    for (unsigned i = from; i < to; i++) {
        queue(r, fill, round, i);
        check(haul_stash_put(r->engine, r->buf[i % 2], BYTES - i * 7, r->stream));
    }
    for (unsigned i = to; i-- > from;) {
        check(haul_stash_take(r->engine, r->buf[i % 2], BYTES - i * 7, r->stream));
        queue(r, compare, round, i);
    }
    check(haul_device_stream_sync(r->dev, r->stream));
    for (unsigned i = 0; i < nwork; i++)
        cr_assert_eq(work[i].bad, 0, "round %u, work %u: %d bytes differ", round, i, work[i].bad);
}

static void peaks_equal_plan(struct rig *r)
{
    for (int tier = HAUL_TIER_HOST; tier < HAUL_NTIERS; tier++) {
        uint64_t planned, peak;
        check(haul_engine_tier_bytes(r->engine, tier, &planned, &peak));
        cr_assert_eq(planned, peak, "tier %d: %llu, %llu", tier, (unsigned long long)planned,
                     (unsigned long long)peak);
    }
}

Test(stash, entries_in_the_pool_come_back_last_in_first_out)
{
    struct rig r;

    for (uint64_t seed = 0; seed < 3; seed++) {
        open_rig(&r, 0, seed, HAUL_IO_AUTO);
        for (unsigned round = 0; round < 4; round++)
            up_and_down(&r, round, 0, 3 * (round + 1));
        peaks_equal_plan(&r);
        close_rig(&r);
    }
}

Test(stash, entries_past_the_pool_go_to_nvme_and_come_back)
{
    struct rig r;

    for (uint64_t seed = 0; seed < 6; seed++) {
        open_rig(&r, 1, seed, seed % 2 ? HAUL_IO_THREADS : HAUL_IO_AUTO);
        for (unsigned round = 0; round < 4; round++)
            up_and_down(&r, round, 0, ENTRIES);
        peaks_equal_plan(&r);
        close_rig(&r);
    }
}

Test(stash, turning_back_half_way_is_fine)
{
    struct rig r;

    open_rig(&r, BYTES * 4, 5, HAUL_IO_AUTO);
    for (unsigned round = 0; round < 20; round++)
        up_and_down(&r, round, 0, 1 + round * 7 % ENTRIES);
    close_rig(&r);
}

Test(stash, misuse_is_an_error_that_says_what)
{
    struct rig r;

    open_rig(&r, 0, 0, HAUL_IO_AUTO);
    cr_assert_eq(haul_stash_take(r.engine, r.buf[0], 10, r.stream), HAUL_E_STATE);
    cr_assert_not_null(strstr(haul_last_error(), "empty"), "%s", haul_last_error());
    cr_assert_lt(haul_stash_put(r.engine, r.buf[0], BYTES + 1, r.stream), 0);
    for (int i = 0; i < ENTRIES; i++)
        check(haul_stash_put(r.engine, r.buf[0], 10, r.stream));
    cr_assert_eq(haul_stash_put(r.engine, r.buf[0], 10, r.stream), HAUL_E_STATE);
    cr_assert_eq(haul_stash_take(r.engine, r.buf[0], 11, r.stream), HAUL_E_STATE);
    cr_assert_not_null(strstr(haul_last_error(), "10 bytes"), "%s", haul_last_error());
    check(haul_stash_take(r.engine, r.buf[0], 10, r.stream));
    close_rig(&r);
}

/* More refusals than there are slots and entries, then the stash as full as it may be. */
static void refused_puts_take_nothing(uint64_t host_bytes, bool half_full)
{
    unsigned from = half_full ? ENTRIES / 2 : 0;
    char *host = malloc(BYTES);
    struct rig r;

    open_rig(&r, host_bytes, 3, HAUL_IO_THREADS);
    for (unsigned i = 0; i < from; i++)
        check(haul_stash_put(r.engine, r.buf[0], 10, r.stream));
    for (int i = 0; i < 2 * ENTRIES; i++) {
        cr_assert_eq(haul_stash_put(r.engine, host, BYTES, r.stream), -EINVAL);
        cr_assert_gt(strlen(haul_last_error()), 10);
        cr_assert_eq(haul_stash_put(r.engine, r.buf[0], BYTES, NULL), -EINVAL);
        cr_assert_gt(strlen(haul_last_error()), 10);
    }
    up_and_down(&r, 1, from, ENTRIES);
    for (unsigned i = 0; i < from; i++)
        check(haul_stash_take(r.engine, r.buf[0], 10, r.stream));
    cr_assert_eq(haul_stash_take(r.engine, r.buf[0], 10, r.stream), HAUL_E_STATE);
    close_rig(&r);
    free(host);
}

Test(stash, a_refused_put_gives_back_what_it_took)
{
    refused_puts_take_nothing(0, false);
    refused_puts_take_nothing(1, false);
    refused_puts_take_nothing(1, true);
}
