/* The emulated device: links. Times are only held against lower bounds and against each other, so that
 * a loaded machine fails no case. */
#include "test_device_fixture.h"

/* With room: a timer may round. */
static uint64_t least_ns(uint64_t bytes, double bytes_per_s)
{
    return (uint64_t)((double)bytes / bytes_per_s * 1e9);
}

static struct hl_device_lane_stats lane_of(struct haul_device *dev, enum hl_device_lane lane)
{
    struct hl_device_lane_stats stats;

    dev->ops->lane_stats(dev, lane, &stats);
    return stats;
}

static unsigned char *pattern(uint64_t bytes)
{
    unsigned char *p = malloc(bytes);

    cr_assert_not_null(p);
    for (uint64_t i = 0; i < bytes; i++)
        p[i] = (unsigned char)(i * 31 + (i >> 12));
    return p;
}

static void round_trip(double rate, uint64_t latency_ns, uint64_t bytes)
{
    struct haul_device_host_opts opts = device_opts();
    struct haul_device *dev;
    unsigned char *out = pattern(bytes), *back = malloc(bytes);
    void *s, *p;
    uint64_t t0, t1, t2;

    opts.h2d_bytes_per_s = opts.d2h_bytes_per_s = rate;
    opts.copy_latency_ns = latency_ns;
    dev = device_open(&opts);
    s = device_stream(dev);
    p = device_mem(dev, bytes);
    t0 = hl_clock_ns();
    cr_assert_eq(haul_device_copy_h2d(dev, p, out, bytes, s), 0);
    cr_assert_eq(haul_device_stream_sync(dev, s), 0);
    t1 = hl_clock_ns();
    cr_assert_eq(haul_device_copy_d2h(dev, back, p, bytes, s), 0);
    cr_assert_eq(haul_device_stream_sync(dev, s), 0);
    t2 = hl_clock_ns();
    cr_assert_eq(memcmp(out, back, bytes), 0);
    cr_assert_geq(t1 - t0, latency_ns + (rate > 0 ? least_ns(bytes, rate) : 0));
    cr_assert_geq(t2 - t1, latency_ns + (rate > 0 ? least_ns(bytes, rate) : 0));
    cr_assert_eq(lane_of(dev, HL_DEVICE_H2D).bytes, bytes);
    cr_assert_eq(lane_of(dev, HL_DEVICE_D2H).bytes, bytes);
    cr_assert_leq(lane_of(dev, HL_DEVICE_H2D).busy_ns, t1 - t0);
    cr_assert_leq(lane_of(dev, HL_DEVICE_D2H).busy_ns, t2 - t1);
    if (rate > 0)
        cr_assert_geq(lane_of(dev, HL_DEVICE_H2D).busy_ns, least_ns(bytes, rate));
    haul_device_free(dev, p);
    haul_device_stream_close(dev, s);
    cr_assert_eq(haul_device_close(dev), 0);
    free(out);
    free(back);
}

Test(device_link, copies_arrive_whole_and_are_counted)
{
    round_trip(0, 0, 1);
    round_trip(0, 0, 4 * MIB);
    round_trip(0, 0, 9 * MIB + 77);
}

Test(device_link, a_copy_is_never_faster_than_the_link)
{
    round_trip(1e9, 0, 20 * MIB + 1);
    round_trip(1e6, 0, 10000);
    round_trip(4e8, 2000000, 5 * MIB);
}

Test(device_link, latency_is_paid_by_every_copy_of_a_stream)
{
    struct haul_device_host_opts opts = device_opts();
    struct haul_device *dev;
    char byte = 1;
    void *s, *p;
    uint64_t t0;

    opts.copy_latency_ns = 1000000;
    dev = device_open(&opts);
    s = device_stream(dev);
    p = device_mem(dev, 1);
    t0 = hl_clock_ns();
    for (int i = 0; i < 20; i++)
        cr_assert_eq(haul_device_copy_h2d(dev, p, &byte, 1, s), 0);
    cr_assert_eq(haul_device_stream_sync(dev, s), 0);
    cr_assert_geq(hl_clock_ns() - t0, 20000000u);
    haul_device_free(dev, p);
    haul_device_stream_close(dev, s);
    cr_assert_eq(haul_device_close(dev), 0);
}

/* Many small copies from two streams share one direction. */
Test(device_link, a_direction_is_shared_by_all_streams)
{
    enum { COPIES = 100, BYTES = 32768 };
    struct haul_device_host_opts opts = device_opts();
    struct haul_device *dev;
    static char host[BYTES];
    void *s[2], *p;
    uint64_t t0, wall;

    opts.h2d_bytes_per_s = 1e8;
    dev = device_open(&opts);
    p = device_mem(dev, BYTES);
    s[0] = device_stream(dev);
    s[1] = device_stream(dev);
    t0 = hl_clock_ns();
    for (int i = 0; i < COPIES; i++)
        for (int k = 0; k < 2; k++)
            cr_assert_eq(haul_device_copy_h2d(dev, p, host, BYTES, s[k]), 0);
    cr_assert_eq(haul_device_stream_sync(dev, s[0]), 0);
    cr_assert_eq(haul_device_stream_sync(dev, s[1]), 0);
    wall = hl_clock_ns() - t0;
    cr_assert_geq(wall, least_ns(2 * COPIES * BYTES, 1e8));
    cr_assert_leq(lane_of(dev, HL_DEVICE_H2D).busy_ns, wall);
    cr_assert_eq(lane_of(dev, HL_DEVICE_H2D).bytes, (uint64_t)2 * COPIES * BYTES);
    cr_assert_eq(lane_of(dev, HL_DEVICE_D2H).bytes, 0u);
    haul_device_free(dev, p);
    haul_device_stream_close(dev, s[0]);
    haul_device_stream_close(dev, s[1]);
    cr_assert_eq(haul_device_close(dev), 0);
}

static uint64_t time_of(struct haul_device *dev, struct hl_event *ev)
{
    uint64_t at = 0;

    cr_assert_eq(dev->ops->event_sync(dev, ev), 0);
    cr_assert_eq(dev->ops->event_time_ns(dev, ev, &at), 0);
    return at;
}

Test(device_link, the_two_directions_work_at_the_same_time)
{
    struct haul_device_host_opts opts = device_opts();
    struct haul_device *dev;
    struct hl_event *begin[2], *end[2];
    struct door door = {0};
    uint64_t bytes = 8 * MIB;
    char *host = malloc(2 * bytes);
    void *s[2], *p[2];

    memset(host, 0, 2 * bytes);
    opts.h2d_bytes_per_s = opts.d2h_bytes_per_s = 4e7; /* 0.2 s */
    dev = device_open(&opts);
    for (int i = 0; i < 2; i++) {
        s[i] = device_stream(dev);
        p[i] = device_mem(dev, bytes);
        begin[i] = device_event(dev);
        end[i] = device_event(dev);
        cr_assert_eq(haul_device_launch(dev, s[i], fn_wait_door, &door), 0);
        cr_assert_eq(dev->ops->event_record(dev, begin[i], s[i]), 0);
    }
    cr_assert_eq(haul_device_copy_h2d(dev, p[0], host, bytes, s[0]), 0);
    cr_assert_eq(haul_device_copy_d2h(dev, host + bytes, p[1], bytes, s[1]), 0);
    for (int i = 0; i < 2; i++)
        cr_assert_eq(dev->ops->event_record(dev, end[i], s[i]), 0);
    door_open(&door);
    cr_assert_lt(time_of(dev, begin[0]), time_of(dev, end[1]));
    cr_assert_lt(time_of(dev, begin[1]), time_of(dev, end[0]));
    for (int i = 0; i < 2; i++) {
        dev->ops->event_close(dev, begin[i]);
        dev->ops->event_close(dev, end[i]);
        haul_device_free(dev, p[i]);
        haul_device_stream_close(dev, s[i]);
    }
    cr_assert_eq(haul_device_close(dev), 0);
    free(host);
}

Test(device_link, an_urgent_copy_overtakes_an_ordinary_one)
{
    struct haul_device_host_opts opts = device_opts();
    struct haul_device *dev;
    struct hl_event *slow, *fast;
    uint64_t bytes = 40 * MIB;
    char *host = malloc(bytes);
    void *ordinary, *urgent, *p;

    memset(host, 0, bytes);
    opts.h2d_bytes_per_s = 1e8; /* 0.4 s, a chunk 0.04 s */
    dev = device_open(&opts);
    ordinary = device_stream(dev);
    cr_assert_eq(dev->ops->stream_open(dev, 1, &urgent), 0);
    slow = device_event(dev);
    fast = device_event(dev);
    p = device_mem(dev, bytes);
    cr_assert_eq(haul_device_copy_h2d(dev, p, host, bytes, ordinary), 0);
    cr_assert_eq(dev->ops->event_record(dev, slow, ordinary), 0);
    while (lane_of(dev, HL_DEVICE_H2D).bytes == 0)
        pause_ms(1);
    cr_assert_eq(haul_device_copy_h2d(dev, p, host, 1000, urgent), 0);
    cr_assert_eq(dev->ops->event_record(dev, fast, urgent), 0);
    cr_assert_lt(time_of(dev, fast), time_of(dev, slow));
    dev->ops->event_close(dev, slow);
    dev->ops->event_close(dev, fast);
    haul_device_free(dev, p);
    haul_device_stream_close(dev, ordinary);
    haul_device_stream_close(dev, urgent);
    cr_assert_eq(haul_device_close(dev), 0);
    free(host);
}

static void fn_pause(void *user)
{
    pause_ms(*(unsigned *)user);
}

Test(device_link, compute_is_counted_on_its_own_lane)
{
    struct haul_device *dev = device_plain();
    void *s = device_stream(dev), *p = device_mem(dev, MIB);
    unsigned ms = 20;

    cr_assert_eq(dev->ops->fill(dev, p, 0, MIB, s), 0);
    cr_assert_eq(haul_device_stream_sync(dev, s), 0);
    cr_assert_eq(lane_of(dev, HL_DEVICE_COMPUTE).busy_ns, 0u);
    cr_assert_gt(lane_of(dev, HL_DEVICE_KERNELS).busy_ns, 0u);
    cr_assert_eq(haul_device_launch(dev, s, fn_pause, &ms), 0);
    cr_assert_eq(haul_device_stream_sync(dev, s), 0);
    cr_assert_geq(lane_of(dev, HL_DEVICE_COMPUTE).busy_ns, 20000000u);
    haul_device_free(dev, p);
    haul_device_stream_close(dev, s);
    cr_assert_eq(haul_device_close(dev), 0);
}

/* However late threads wake: what a GPU does in no time takes none, a wait ends when what it is for did. */
Test(device_link, operations_lie_end_to_end_on_the_time_line)
{
    struct haul_device *dev = device_plain();
    void *a = device_stream(dev), *b = device_stream(dev), *p = device_mem(dev, 4 * MIB);
    struct hl_event *ev[4];
    uint64_t at[4];
    struct door door = {0};

    for (int i = 0; i < 4; i++)
        ev[i] = device_event(dev);
    cr_assert_eq(haul_device_launch(dev, a, fn_wait_door, &door), 0);
    cr_assert_eq(dev->ops->event_record(dev, ev[0], a), 0);
    cr_assert_eq(hl_device_host_occupy(dev, a, 3000000), 0);
    cr_assert_eq(dev->ops->event_record(dev, ev[1], a), 0);
    cr_assert_eq(dev->ops->fill(dev, p, 0, 4 * MIB, a), 0);
    cr_assert_eq(hl_device_host_occupy(dev, a, 2000000), 0);
    cr_assert_eq(dev->ops->event_record(dev, ev[2], a), 0);
    cr_assert_eq(dev->ops->stream_wait(dev, b, ev[2]), 0);
    cr_assert_eq(hl_device_host_occupy(dev, b, 1000000), 0);
    cr_assert_eq(dev->ops->event_record(dev, ev[3], b), 0);
    door_open(&door);
    for (int i = 0; i < 4; i++)
        at[i] = time_of(dev, ev[i]);
    cr_assert_leq(at[3], hl_clock_ns());
    cr_assert_eq(at[1] - at[0], 3000000u);
    cr_assert_eq(at[2] - at[1], 2000000u);
    cr_assert_eq(at[3] - at[2], 1000000u);
    cr_assert_geq(lane_of(dev, HL_DEVICE_COMPUTE).busy_ns, 6000000u);
    for (int i = 0; i < 4; i++)
        dev->ops->event_close(dev, ev[i]);
    haul_device_free(dev, p);
    haul_device_stream_close(dev, a);
    haul_device_stream_close(dev, b);
    cr_assert_eq(haul_device_close(dev), 0);
}
