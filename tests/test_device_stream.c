/* The emulated device: streams, events, errors that stick, a full queue, delays on purpose. */
#include "test_device_fixture.h"

struct diary {
    int n;
    int entry[5000];
};

struct note {
    struct diary *diary;
    int value;
};

static void fn_write_note(void *user)
{
    struct note *note = user;

    note->diary->entry[note->diary->n++] = note->value;
}

Test(device_stream, work_of_one_stream_runs_in_order)
{
    static struct diary diary;
    static struct note note[5000];
    struct haul_device *dev = device_plain();
    void *s = device_stream(dev);

    memset(&diary, 0, sizeof diary);
    for (int i = 0; i < 5000; i++) { /* the ring goes round almost five times */
        note[i] = (struct note){&diary, i};
        cr_assert_eq(haul_device_launch(dev, s, fn_write_note, &note[i]), 0);
    }
    cr_assert_eq(haul_device_stream_sync(dev, s), 0);
    cr_assert_eq(diary.n, 5000);
    for (int i = 0; i < 5000; i++)
        cr_assert_eq(diary.entry[i], i);
    haul_device_stream_close(dev, s);
    cr_assert_eq(haul_device_close(dev), 0);
}

Test(device_stream, streams_run_at_the_same_time)
{
    struct haul_device *dev = device_plain();
    void *a = device_stream(dev), *b = device_stream(dev);
    struct door first = {0}, second = {0};

    /* Each waits for the other: one after the other this would never end. */
    cr_assert_eq(haul_device_launch(dev, a, fn_wait_door, &first), 0);
    cr_assert_eq(haul_device_launch(dev, a, fn_open_door, &second), 0);
    cr_assert_eq(haul_device_launch(dev, b, fn_open_door, &first), 0);
    cr_assert_eq(haul_device_launch(dev, b, fn_wait_door, &second), 0);
    cr_assert_eq(haul_device_stream_sync(dev, a), 0);
    cr_assert_eq(haul_device_stream_sync(dev, b), 0);
    haul_device_stream_close(dev, a);
    haul_device_stream_close(dev, b);
    cr_assert_eq(haul_device_close(dev), 0);
}

Test(device_stream, a_call_runs_in_its_turn_and_is_counted_on_no_lane)
{
    struct haul_device *dev = device_plain();
    void *s = device_stream(dev);
    struct hl_device_lane_stats stats;
    struct door door = {0};
    atomic_int n = 0;

    cr_assert_eq(haul_device_call(dev, s, fn_wait_door, &door), 0);
    cr_assert_eq(haul_device_call(dev, s, fn_count, &n), 0);
    pause_ms(2);
    cr_assert_eq(n, 0, "ahead of what was queued first");
    door_open(&door);
    cr_assert_eq(haul_device_stream_sync(dev, s), 0);
    cr_assert_eq(n, 1);
    for (int lane = 0; lane < HL_DEVICE_NLANES; lane++) {
        dev->ops->lane_stats(dev, (enum hl_device_lane)lane, &stats);
        cr_assert_eq(stats.busy_ns, 0u, "lane %d", lane);
    }
    cr_assert_eq(haul_device_launch(dev, s, fn_count, &n), 0);
    cr_assert_eq(haul_device_stream_sync(dev, s), 0);
    dev->ops->lane_stats(dev, HL_DEVICE_COMPUTE, &stats);
    cr_assert_gt(stats.busy_ns, 0u, "a launch is compute");

    cr_assert_eq(haul_device_call(dev, NULL, fn_count, &n), -EINVAL);
    cr_assert_eq(haul_device_call(dev, s, NULL, &n), -EINVAL);
    cr_assert_eq(haul_device_call(NULL, s, fn_count, &n), -EINVAL);
    haul_device_stream_close(dev, s);
    cr_assert_eq(haul_device_close(dev), 0);
}

Test(device_stream, what_is_queued_behind_a_failure_is_not_called)
{
    struct haul_device *dev = device_plain();
    void *s = device_stream(dev);
    atomic_int n = 0;

    hl_device_host_fail_nth(dev, 1);
    cr_assert_eq(haul_device_call(dev, s, fn_count, &n), 0);
    cr_assert_eq(haul_device_call(dev, s, fn_count, &n), 0);
    cr_assert_eq(haul_device_stream_sync(dev, s), HAUL_E_DEVICE);
    cr_assert_eq(n, 0);
    haul_device_stream_close(dev, s);
    cr_assert_eq(haul_device_close(dev), 0);
}

Test(device_stream, device_memory_is_used_by_calls_and_copied_inside_the_device)
{
    struct haul_device *dev = device_plain();
    void *s = device_stream(dev);
    char *mem = device_mem(dev, 64), got[4] = "", host[64];

    cr_assert_eq(haul_device_in_host_memory(dev), 1);
    cr_assert_eq(haul_device_in_host_memory(NULL), 0);
    cr_assert_eq(haul_device_copy_h2d(dev, mem, "abc", 4, s), 0);
    cr_assert_eq(haul_device_copy_d2d(dev, mem + 32, mem, 4, s), 0);
    cr_assert_eq(haul_device_copy_d2d(dev, mem + 2, mem, 4, s), -EINVAL, "the ranges overlap");
    cr_assert_eq(haul_device_copy_d2h(dev, got, mem + 32, 4, s), 0);
    cr_assert_eq(haul_device_stream_sync(dev, s), 0);
    cr_assert_str_eq(got, "abc");

    cr_assert_eq(haul_device_host_register(dev, host, sizeof host), 0);
    cr_assert_eq(haul_device_host_unregister(dev, host), 0);
    cr_assert_eq(haul_device_host_register(dev, NULL, 1), -EINVAL);
    haul_device_free(dev, mem);
    haul_device_stream_close(dev, s);
    cr_assert_eq(haul_device_close(dev), 0);
}

Test(device_stream, close_waits_for_what_is_queued)
{
    struct haul_device *dev = device_plain();
    atomic_int n = 0;

    for (int round = 0; round < 20; round++) {
        void *s = device_stream(dev);

        for (int i = 0; i < 50; i++)
            cr_assert_eq(haul_device_launch(dev, s, fn_count, &n), 0);
        haul_device_stream_close(dev, s);
        cr_assert_eq(n, (round + 1) * 50);
    }
    cr_assert_eq(haul_device_close(dev), 0);
}

Test(device_stream, what_is_not_an_open_stream_is_refused)
{
    struct haul_device *dev = device_plain(), *other = device_plain();
    void *s = device_stream(dev), *foreign = device_stream(other);
    struct hl_event *ev = device_event(dev);
    atomic_int n = 0;

    cr_assert_eq(haul_device_launch(dev, NULL, fn_count, &n), -EINVAL);
    cr_assert_eq(haul_device_launch(dev, foreign, fn_count, &n), -EINVAL);
    cr_assert_eq(haul_device_launch(dev, s, NULL, &n), -EINVAL);
    haul_device_stream_close(dev, s);
    cr_assert_eq(haul_device_launch(dev, s, fn_count, &n), -EINVAL);
    cr_assert_eq(haul_device_stream_sync(dev, s), -EINVAL);
    cr_assert_eq(dev->ops->event_record(dev, ev, s), -EINVAL);
    cr_assert_eq(dev->ops->stream_wait(dev, s, ev), -EINVAL);
    cr_assert_eq(dev->ops->event_query(dev, ev), 1, "a refused record is none");
    cr_assert_eq(n, 0);
    dev->ops->event_close(dev, ev);
    haul_device_stream_close(other, foreign);
    cr_assert_eq(haul_device_close(other), 0);
    cr_assert_eq(haul_device_close(dev), 0);
}

struct producer {
    struct haul_device *dev;
    void *stream;
    atomic_int *n;
};

static void *queue_many(void *user)
{
    struct producer *p = user;

    for (int i = 0; i < 3000; i++)
        if (haul_device_launch(p->dev, p->stream, fn_count, p->n) < 0)
            return user;
    return NULL;
}

Test(device_stream, several_threads_may_queue_on_one_stream)
{
    struct haul_device *dev = device_plain();
    atomic_int n = 0;
    struct producer p = {dev, device_stream(dev), &n};
    pthread_t t[3];

    for (int i = 0; i < 3; i++)
        cr_assert_eq(hl_sys_thread("queue", queue_many, &p, &t[i]), 0);
    for (int i = 0; i < 3; i++)
        hl_sys_join(t[i]);
    cr_assert_eq(haul_device_stream_sync(dev, p.stream), 0);
    cr_assert_eq(n, 9000);
    haul_device_stream_close(dev, p.stream);
    cr_assert_eq(haul_device_close(dev), 0);
}

struct one_more {
    struct producer p;
    atomic_int returned;
};

static void *queue_one_more(void *user)
{
    struct one_more *o = user;

    if (haul_device_launch(o->p.dev, o->p.stream, fn_count, o->p.n) == 0)
        atomic_store(&o->returned, 1);
    return NULL;
}

Test(device_stream, a_full_queue_holds_1024_and_makes_the_next_caller_wait)
{
    struct haul_device *dev = device_plain();
    struct door door = {0};
    atomic_int n = 0;
    struct one_more o = {{dev, device_stream(dev), &n}, 0};
    pthread_t t;

    cr_assert_eq(haul_device_launch(dev, o.p.stream, fn_wait_door, &door), 0);
    for (int i = 0; i < 1023; i++)
        cr_assert_eq(haul_device_launch(dev, o.p.stream, fn_count, &n), 0);
    cr_assert_eq(hl_sys_thread("one-more", queue_one_more, &o, &t), 0);
    pause_ms(30);
    cr_assert_eq(atomic_load(&o.returned), 0);
    cr_assert_eq(n, 0);
    door_open(&door);
    hl_sys_join(t);
    cr_assert_eq(atomic_load(&o.returned), 1);
    cr_assert_eq(haul_device_stream_sync(dev, o.p.stream), 0);
    cr_assert_eq(n, 1024);
    haul_device_stream_close(dev, o.p.stream);
    cr_assert_eq(haul_device_close(dev), 0);
}

Test(device_stream, an_event_never_recorded_is_no_wait)
{
    struct haul_device *dev = device_plain();
    void *s = device_stream(dev);
    struct hl_event *ev = device_event(dev);
    uint64_t at = 1;

    cr_assert_eq(dev->ops->stream_wait(dev, s, ev), 0);
    cr_assert_eq(haul_device_stream_sync(dev, s), 0);
    cr_assert_eq(dev->ops->event_query(dev, ev), 1);
    cr_assert_eq(dev->ops->event_sync(dev, ev), 0);
    cr_assert_eq(dev->ops->event_time_ns(dev, ev, &at), 0);
    cr_assert_eq(at, 0u);
    dev->ops->event_close(dev, ev);
    dev->ops->event_close(dev, NULL);
    haul_device_stream_close(dev, s);
    cr_assert_eq(haul_device_close(dev), 0);
}

Test(device_stream, an_event_tells_that_and_when_it_was_reached)
{
    struct haul_device *dev = device_plain();
    void *s = device_stream(dev);
    struct hl_event *ev = device_event(dev);
    struct door door = {0}, again = {0};
    uint64_t before, at, later;

    cr_assert_eq(haul_device_launch(dev, s, fn_wait_door, &door), 0);
    cr_assert_eq(dev->ops->event_record(dev, ev, s), 0);
    cr_assert_eq(dev->ops->event_query(dev, ev), 0);
    before = hl_clock_ns();
    door_open(&door);
    cr_assert_eq(dev->ops->event_sync(dev, ev), 0);
    cr_assert_eq(dev->ops->event_query(dev, ev), 1);
    cr_assert_eq(dev->ops->event_time_ns(dev, ev, &at), 0);
    cr_assert_geq(at, before);
    cr_assert_leq(at, hl_clock_ns());

    cr_assert_eq(haul_device_launch(dev, s, fn_wait_door, &again), 0);
    cr_assert_eq(dev->ops->event_record(dev, ev, s), 0);
    cr_assert_eq(dev->ops->event_query(dev, ev), 0, "the new record is what counts");
    before = hl_clock_ns();
    door_open(&again);
    cr_assert_eq(dev->ops->event_sync(dev, ev), 0);
    cr_assert_eq(dev->ops->event_time_ns(dev, ev, &later), 0);
    cr_assert_geq(later, before);
    dev->ops->event_close(dev, ev);
    haul_device_stream_close(dev, s);
    cr_assert_eq(haul_device_close(dev), 0);
}

Test(device_stream, a_wait_holds_the_stream_but_not_the_caller)
{
    struct haul_device *dev = device_plain();
    void *a = device_stream(dev), *b = device_stream(dev);
    struct hl_event *ev = device_event(dev);
    struct door door = {0};
    atomic_int n = 0;

    cr_assert_eq(haul_device_launch(dev, a, fn_wait_door, &door), 0);
    cr_assert_eq(dev->ops->event_record(dev, ev, a), 0);
    cr_assert_eq(dev->ops->stream_wait(dev, b, ev), 0);
    cr_assert_eq(haul_device_launch(dev, b, fn_count, &n), 0);
    pause_ms(20);
    cr_assert_eq(n, 0);
    door_open(&door);
    cr_assert_eq(haul_device_stream_sync(dev, b), 0);
    cr_assert_eq(n, 1);
    cr_assert_eq(dev->ops->event_query(dev, ev), 1);
    dev->ops->event_close(dev, ev);
    haul_device_stream_close(dev, a);
    haul_device_stream_close(dev, b);
    cr_assert_eq(haul_device_close(dev), 0);
}

Test(device_stream, a_wait_is_for_the_latest_record_when_it_was_queued)
{
    struct haul_device *dev = device_plain();
    void *a = device_stream(dev), *b = device_stream(dev), *c = device_stream(dev);
    struct hl_event *ev = device_event(dev);
    struct door door = {0}, first = {0};
    atomic_int n = 0;

    /* A later record, not reached, does not lengthen a wait queued before it. */
    cr_assert_eq(haul_device_launch(dev, a, fn_wait_door, &first), 0);
    cr_assert_eq(dev->ops->event_record(dev, ev, a), 0);
    cr_assert_eq(dev->ops->stream_wait(dev, b, ev), 0);
    cr_assert_eq(haul_device_launch(dev, a, fn_wait_door, &door), 0);
    cr_assert_eq(dev->ops->event_record(dev, ev, a), 0);
    door_open(&first);
    cr_assert_eq(haul_device_stream_sync(dev, b), 0);
    cr_assert_eq(dev->ops->event_query(dev, ev), 0);

    /* A later record, reached at once on another stream, does not shorten one. */
    cr_assert_eq(dev->ops->stream_wait(dev, b, ev), 0);
    cr_assert_eq(haul_device_launch(dev, b, fn_count, &n), 0);
    cr_assert_eq(dev->ops->event_record(dev, ev, c), 0);
    cr_assert_eq(dev->ops->event_sync(dev, ev), 0);
    cr_assert_eq(dev->ops->event_query(dev, ev), 1);
    pause_ms(20);
    cr_assert_eq(n, 0);
    door_open(&door);
    cr_assert_eq(haul_device_stream_sync(dev, b), 0);
    cr_assert_eq(n, 1);

    dev->ops->event_close(dev, ev);
    haul_device_stream_close(dev, a);
    haul_device_stream_close(dev, b);
    haul_device_stream_close(dev, c);
    cr_assert_eq(haul_device_close(dev), 0);
}

Test(device_stream, a_wait_outlives_its_event_and_its_stream)
{
    struct haul_device *dev = device_plain();
    void *a = device_stream(dev), *b = device_stream(dev);
    struct hl_event *ev = device_event(dev);
    struct door hold = {0}, door = {0};
    atomic_int n = 0;

    cr_assert_eq(haul_device_launch(dev, b, fn_wait_door, &hold), 0);
    cr_assert_eq(haul_device_launch(dev, a, fn_wait_door, &door), 0);
    cr_assert_eq(dev->ops->event_record(dev, ev, a), 0);
    cr_assert_eq(dev->ops->stream_wait(dev, b, ev), 0);
    cr_assert_eq(haul_device_launch(dev, b, fn_count, &n), 0);
    door_open(&door);
    dev->ops->event_close(dev, ev);
    haul_device_stream_close(dev, a);
    a = device_stream(dev); /* the same stream again, most likely */
    door_open(&hold);
    cr_assert_eq(haul_device_stream_sync(dev, b), 0);
    cr_assert_eq(n, 1);
    haul_device_stream_close(dev, a);
    haul_device_stream_close(dev, b);
    cr_assert_eq(haul_device_close(dev), 0);
}

struct closer {
    struct haul_device *dev;
    struct hl_event *ev;
    atomic_int closed;
};

static void *close_event(void *user)
{
    struct closer *c = user;

    c->dev->ops->event_close(c->dev, c->ev);
    atomic_store(&c->closed, 1);
    return NULL;
}

Test(device_stream, closing_an_event_waits_for_its_records)
{
    struct haul_device *dev = device_plain();
    void *a = device_stream(dev), *b = device_stream(dev);
    struct door door = {0};
    struct closer c = {dev, device_event(dev), 0};
    pthread_t t;

    cr_assert_eq(haul_device_launch(dev, a, fn_wait_door, &door), 0);
    cr_assert_eq(dev->ops->event_record(dev, c.ev, a), 0);
    cr_assert_eq(dev->ops->event_record(dev, c.ev, b), 0); /* the latest, and soon reached */
    cr_assert_eq(dev->ops->event_sync(dev, c.ev), 0);
    cr_assert_eq(hl_sys_thread("close-event", close_event, &c, &t), 0);
    pause_ms(20);
    cr_assert_eq(atomic_load(&c.closed), 0);
    door_open(&door);
    hl_sys_join(t);
    cr_assert_eq(atomic_load(&c.closed), 1);
    haul_device_stream_close(dev, a);
    haul_device_stream_close(dev, b);
    cr_assert_eq(haul_device_close(dev), 0);
}

Test(device_stream, an_error_sticks_and_drops_what_is_behind_it)
{
    struct haul_device *dev = device_plain();
    void *a = device_stream(dev), *b = device_stream(dev), *c = device_stream(dev);
    struct hl_event *good = device_event(dev), *bad = device_event(dev);
    atomic_int n = 0;
    uint64_t at = 0;

    cr_assert_eq(haul_device_launch(dev, a, fn_count, &n), 0);
    cr_assert_eq(dev->ops->event_record(dev, good, a), 0);
    cr_assert_eq(haul_device_stream_sync(dev, a), 0);
    hl_device_host_fail_nth(dev, 1);
    cr_assert_eq(haul_device_launch(dev, a, fn_count, &n), 0);
    cr_assert_eq(haul_device_launch(dev, a, fn_count, &n), 0);
    cr_assert_eq(dev->ops->event_record(dev, bad, a), 0);
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(haul_device_stream_sync(dev, a), HAUL_E_DEVICE);
        cr_assert_not_null(strstr(haul_last_error(), "failed on demand"));
    }
    cr_assert_eq(n, 1, "only the work before the error ran");
    cr_assert_eq(dev->ops->event_query(dev, good), 1, "reached before the error");
    cr_assert_eq(dev->ops->event_query(dev, bad), HAUL_E_DEVICE);
    cr_assert_eq(dev->ops->event_sync(dev, bad), HAUL_E_DEVICE);
    cr_assert_eq(dev->ops->event_time_ns(dev, bad, &at), 0);
    cr_assert_gt(at, 0u);

    cr_assert_eq(haul_device_launch(dev, b, fn_count, &n), 0);
    cr_assert_eq(dev->ops->stream_wait(dev, b, good), 0);
    cr_assert_eq(haul_device_stream_sync(dev, b), 0, "others go on");
    cr_assert_eq(dev->ops->stream_wait(dev, c, bad), 0);
    cr_assert_eq(haul_device_launch(dev, c, fn_count, &n), 0);
    cr_assert_eq(haul_device_stream_sync(dev, c), HAUL_E_DEVICE, "except who waits for it");
    cr_assert_eq(n, 2);

    haul_device_stream_close(dev, a);
    haul_device_stream_close(dev, c);
    a = device_stream(dev);
    cr_assert_eq(haul_device_launch(dev, a, fn_count, &n), 0);
    cr_assert_eq(haul_device_stream_sync(dev, a), 0, "a new stream begins without error");
    cr_assert_eq(dev->ops->event_query(dev, bad), HAUL_E_DEVICE, "its event still knows");
    dev->ops->event_close(dev, good);
    dev->ops->event_close(dev, bad);
    haul_device_stream_close(dev, a);
    haul_device_stream_close(dev, b);
    cr_assert_eq(haul_device_close(dev), 0);
}

/* a and b hand a number to and fro, each waiting for the other's event. */
static int ping_pong(uint64_t seed)
{
    enum { ROUNDS = 40 };
    struct haul_device_host_opts opts = device_opts();
    struct haul_device *dev;
    void *s[2];
    struct hl_event *ev[2];
    static struct diary diary;
    static struct note note[ROUNDS];
    int right = 1;

    opts.jitter_seed = seed;
    dev = device_open(&opts);
    diary.n = 0;
    for (int i = 0; i < 2; i++) {
        s[i] = device_stream(dev);
        ev[i] = device_event(dev);
    }
    for (int i = 0; i < ROUNDS; i++) {
        int me = i % 2;

        note[i] = (struct note){&diary, i};
        cr_assert_eq(dev->ops->stream_wait(dev, s[me], ev[!me]), 0);
        cr_assert_eq(haul_device_launch(dev, s[me], fn_write_note, &note[i]), 0);
        cr_assert_eq(dev->ops->event_record(dev, ev[me], s[me]), 0);
    }
    for (int i = 0; i < 2; i++)
        cr_assert_eq(haul_device_stream_sync(dev, s[i]), 0);
    for (int i = 0; i < ROUNDS; i++)
        right &= diary.entry[i] == i;
    for (int i = 0; i < 2; i++) {
        dev->ops->event_close(dev, ev[i]);
        haul_device_stream_close(dev, s[i]);
    }
    cr_assert_eq(haul_device_close(dev), 0);
    return right && diary.n == ROUNDS;
}

Test(device_stream, events_order_streams_under_random_delays)
{
    for (uint64_t seed = 0; seed < 20; seed++)
        cr_assert(ping_pong(seed), "seed %llu", (unsigned long long)seed);
}

struct race {
    atomic_int turn;
    int a, b;
};

static void fn_turn_a(void *user)
{
    struct race *race = user;

    race->a = atomic_fetch_add(&race->turn, 1);
}

static void fn_turn_b(void *user)
{
    struct race *race = user;

    race->b = atomic_fetch_add(&race->turn, 1);
}

Test(device_stream, random_delays_bring_out_a_missing_wait)
{
    struct haul_device_host_opts opts = device_opts();
    struct haul_device *dev;
    void *a, *b;
    int seen[2] = {0, 0};

    opts.jitter_seed = 7;
    dev = device_open(&opts);
    a = device_stream(dev);
    b = device_stream(dev);
    for (int i = 0; i < 2000 && !(seen[0] && seen[1]); i++) {
        struct race race = {0};

        cr_assert_eq(haul_device_launch(dev, a, fn_turn_a, &race), 0);
        cr_assert_eq(haul_device_launch(dev, b, fn_turn_b, &race), 0);
        cr_assert_eq(haul_device_stream_sync(dev, a), 0);
        cr_assert_eq(haul_device_stream_sync(dev, b), 0);
        seen[race.a < race.b] = 1;
    }
    cr_assert(seen[0] && seen[1], "both orders turn up");
    haul_device_stream_close(dev, a);
    haul_device_stream_close(dev, b);
    cr_assert_eq(haul_device_close(dev), 0);
}
