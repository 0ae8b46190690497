/* The CUDA back end over a fake driver, or a GPU: streams, events, time, contexts, a lost device. */
#include "cuda_context.h"
#include "test_cuda_fixture.h"

Test(cuda_stream, streams_run_at_the_same_time_and_each_in_order)
{
    struct haul_device *dev = fake_open("CUDA may run host functions of all streams on one thread");
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
    cuda_close(dev);
}

/* Asked of the driver, which haul itself never asks. */
static int priority_of(struct haul_device *dev, void *stream)
{
    void *lib = dlopen(on_gpu() ? "libcuda.so.1" : FAKE_CUDA_LIB, RTLD_NOW | RTLD_LOCAL);
    int (*ask)(void *stream, int *priority);
    int priority = 0, entered = hl_cuda_context_enter(dev, NULL);

    cr_assert_not_null(lib, "%s", dlerror());
    *(void **)&ask = dlsym(lib, "cuStreamGetPriority");
    cr_assert_not_null((void *)ask, "%s", dlerror());
    cr_assert_eq(ask(stream, &priority), 0);
    hl_cuda_context_leave(dev, entered);
    dlclose(lib);
    return priority;
}

Test(cuda_stream, an_urgent_stream_goes_ahead_of_an_ordinary_one)
{
    struct haul_device *dev = cuda_open();
    void *ordinary = device_stream(dev), *urgent = NULL;

    cr_assert_eq(dev->ops->stream_open(dev, 1, &urgent), 0);
    cr_assert_lt(priority_of(dev, urgent), priority_of(dev, ordinary), "the lower goes first");
    haul_device_stream_close(dev, ordinary);
    haul_device_stream_close(dev, urgent);
    cuda_close(dev);
}

static int64_t calls_of_a_copy(struct haul_device *dev, int up, uint64_t bytes)
{
    void *s = device_stream(dev), *p = device_mem(dev, bytes), *host = calloc(1, bytes);
    int64_t calls;

    cr_assert_not_null(host);
    fake.fail_nth(0, 0); /* counts from here */
    cr_assert_eq(up ? haul_device_copy_h2d(dev, p, host, bytes, s)
                    : haul_device_copy_d2h(dev, host, p, bytes, s),
                 0);
    calls = fake.calls();
    haul_device_stream_close(dev, s);
    haul_device_free(dev, p);
    free(host);
    return calls;
}

/* A GPU turns to another stream between copies, never within one. */
Test(cuda_stream, a_long_copy_is_cut_so_that_an_urgent_one_gets_between)
{
    struct haul_device *dev = fake_open("it counts calls");

    for (int up = 0; up < 2; up++) {
        int64_t short_one = calls_of_a_copy(dev, up, 16 * MIB);

        cr_assert_eq(calls_of_a_copy(dev, up, 16 * MIB + 1) - short_one, 1);
        cr_assert_eq(calls_of_a_copy(dev, up, 80 * MIB) - short_one, 4);
    }
    cuda_close(dev);
}

Test(cuda_stream, the_default_stream_is_a_stream)
{
    struct haul_device *dev = cuda_open();
    struct hl_event *ev = device_event(dev);
    void *s = device_stream(dev);
    struct door door = {0};
    atomic_int n = 0;

    cr_assert_eq(haul_device_launch(dev, NULL, fn_wait_door, &door), 0);
    cr_assert_eq(dev->ops->event_record(dev, ev, NULL), 0);
    cr_assert_eq(dev->ops->stream_wait(dev, s, ev), 0);
    cr_assert_eq(haul_device_launch(dev, s, fn_count, &n), 0);
    pause_ms(10);
    cr_assert_eq(n, 0);
    door_open(&door);
    cr_assert_eq(haul_device_stream_sync(dev, s), 0);
    cr_assert_eq(n, 1);
    cr_assert_eq(haul_device_stream_sync(dev, NULL), 0);
    dev->ops->event_close(dev, ev);
    haul_device_stream_close(dev, s);
    cuda_close(dev);
}

Test(cuda_stream, an_event_never_recorded_is_no_wait)
{
    struct haul_device *dev = cuda_open();
    struct hl_event *ev = device_event(dev);
    void *s = device_stream(dev);
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
    cuda_close(dev);
}

/* The anchor's time is known to within the time that its record took. */
static void event_tells_its_time(struct haul_device *dev, void *s, struct hl_event *ev)
{
    const uint64_t slack = 5000000;
    struct door door = {0};
    uint64_t before, at;

    cr_assert_eq(haul_device_launch(dev, s, fn_wait_door, &door), 0);
    cr_assert_eq(dev->ops->event_record(dev, ev, s), 0);
    cr_assert_eq(dev->ops->event_query(dev, ev), 0);
    before = hl_clock_ns();
    door_open(&door);
    cr_assert_eq(dev->ops->event_sync(dev, ev), 0);
    cr_assert_eq(dev->ops->event_query(dev, ev), 1);
    cr_assert_eq(dev->ops->event_time_ns(dev, ev, &at), 0);
    cr_assert_geq(at + slack, before);
    cr_assert_leq(at, hl_clock_ns() + slack);
}

Test(cuda_stream, an_event_tells_when_it_was_reached_on_the_hosts_time_line)
{
    struct haul_device *dev = cuda_open();
    struct hl_event *ev = device_event(dev), *early = device_event(dev);
    void *s = device_stream(dev);
    uint64_t before, at, again;

    event_tells_its_time(dev, s, ev);
    before = hl_clock_ns();
    cr_assert_eq(dev->ops->event_record(dev, early, s), 0);
    cr_assert_eq(dev->ops->event_sync(dev, early), 0);
    cr_assert_eq(dev->ops->event_time_ns(dev, early, &at), 0);
    pause_ms(
        2100); /* the anchor is renewed; what came before it keeps its time, and is not off by the pause */
    event_tells_its_time(dev, s, ev);
    cr_assert_eq(dev->ops->event_time_ns(dev, early, &again), 0);
    cr_assert_leq(again > at ? again - at : at - again, 1000000000u);
    cr_assert_geq(again + 1000000000, before);
    dev->ops->event_close(dev, ev);
    dev->ops->event_close(dev, early);
    haul_device_stream_close(dev, s);
    cuda_close(dev);
}

Test(cuda_stream, a_wait_is_for_the_latest_record_when_it_was_queued)
{
    struct haul_device *dev = cuda_open();
    void *a = device_stream(dev), *b = device_stream(dev);
    struct hl_event *ev = device_event(dev);
    struct door first = {0}, second = {0};

    cr_assert_eq(haul_device_launch(dev, a, fn_wait_door, &first), 0);
    cr_assert_eq(dev->ops->event_record(dev, ev, a), 0);
    cr_assert_eq(dev->ops->stream_wait(dev, b, ev), 0);
    cr_assert_eq(haul_device_launch(dev, a, fn_wait_door, &second), 0);
    cr_assert_eq(dev->ops->event_record(dev, ev, a), 0);
    door_open(&first);
    cr_assert_eq(haul_device_stream_sync(dev, b), 0);
    cr_assert_eq(dev->ops->event_query(dev, ev), 0);
    door_open(&second);
    cr_assert_eq(haul_device_stream_sync(dev, a), 0);
    dev->ops->event_close(dev, ev);
    haul_device_stream_close(dev, a);
    haul_device_stream_close(dev, b);
    cuda_close(dev);
}

static void *use_from_another_thread(void *user)
{
    struct haul_device *dev = user;
    struct hl_event *ev = NULL;
    void *s = NULL, *p = NULL;

    if (haul_device_stream_open(dev, &s) == 0 && dev->ops->event_open(dev, &ev) == 0 &&
        haul_device_alloc(dev, 1000, &p) == 0 && dev->ops->fill(dev, p, 1, 1000, s) == 0 &&
        dev->ops->event_record(dev, ev, s) == 0 && dev->ops->event_sync(dev, ev) == 0)
        user = NULL;
    dev->ops->event_close(dev, ev);
    haul_device_stream_close(dev, s);
    haul_device_free(dev, p);
    return user;
}

/* No thread here has a context of its own: each call brings the device's and takes it away again. */
Test(cuda_stream, any_thread_may_call)
{
    struct haul_device *dev = cuda_open();
    pthread_t t[4];

    for (int i = 0; i < 4; i++)
        cr_assert_eq(pthread_create(&t[i], NULL, use_from_another_thread, dev), 0);
    for (int i = 0; i < 4; i++) {
        void *failed;

        pthread_join(t[i], &failed);
        cr_assert_null(failed);
    }
    cuda_close(dev);
}

/* CUDA loses the whole context: every call says so until the process ends, and everything can be closed. */
Test(cuda_stream, a_lost_context_is_an_error_that_says_so_and_leaves_nothing)
{
    struct census before = census_take();
    struct haul_device *dev = fake_open("it loses its context");
    struct hl_event *ev = device_event(dev);
    void *a = device_stream(dev), *b = device_stream(dev), *p = device_mem(dev, 100);
    atomic_int n = 0;

    fake.lose_nth(2, CUDA_ILLEGAL);
    cr_assert_eq(haul_device_launch(dev, a, fn_count, &n), 0);
    cr_assert_eq(dev->ops->event_record(dev, ev, a), 0);
    cr_assert_eq(haul_device_stream_sync(dev, a), HAUL_E_DEVICE);
    error_says("CUDA_ERROR_ILLEGAL_ADDRESS");
    error_says("context is lost");
    cr_assert_eq(haul_device_launch(dev, b, fn_count, &n), HAUL_E_DEVICE);
    cr_assert_eq(dev->ops->event_query(dev, ev), HAUL_E_DEVICE);
    cr_assert_eq(dev->ops->event_sync(dev, ev), HAUL_E_DEVICE);
    cr_assert_eq(n, 1);
    haul_log_set(NULL, NULL, HAUL_LOG_ERROR);
    dev->ops->event_close(dev, ev);
    haul_device_stream_close(dev, a);
    haul_device_stream_close(dev, b);
    haul_device_free(dev, p);
    haul_log_set(NULL, NULL, HAUL_LOG_WARN);
    cuda_close(dev);
    fake.revive();
    census_same(&before);
}
