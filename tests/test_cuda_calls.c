/*
 * Every function of the driver that haul calls, made to fail at each of its calls in a run that uses the whole
 * table of operations: an error that names what CUDA said, nothing left, and no function forgotten.
 */
#include "cuda_context.h"
#include "cuda_driver.h"
#include "cuda_host_alloc.h"
#include "test_cuda_fixture.h"

enum { N = 1000, HOST_BYTES = 1 << 20 };

struct rig {
    struct haul_device *dev, *other; /* on one GPU: to dev, other's memory is a trainer's */
    void *stream, *urgent, *a, *b, *foreign, *pinned;
    struct hl_event *ev;
    int registered;
    atomic_int count;
};

static char host[HOST_BYTES] __attribute__((aligned(4096)));

static int open_rig(struct rig *r)
{
    struct haul_device_cuda_opts opts;
    int rc;

    haul_device_cuda_opts_init(&opts);
    opts.uuid = "GPU-fa4e0101";
    if ((rc = haul_device_cuda_open(&opts, &r->dev)) < 0)
        return rc;
    opts.uuid = NULL;
    opts.ordinal = 1;
    if ((rc = haul_device_cuda_open(&opts, &r->other)) < 0 ||
        (rc = haul_device_alloc(r->other, 4 * N, &r->foreign)) < 0 ||
        (rc = haul_device_alloc(r->dev, 4 * N, &r->a)) < 0 ||
        (rc = haul_device_alloc(r->dev, 4 * N, &r->b)) < 0 ||
        (rc = hl_cuda_host_alloc(r->dev, 4 * N, &r->pinned)) < 0 ||
        (rc = r->dev->ops->stream_open(r->dev, 0, &r->stream)) < 0 ||
        (rc = r->dev->ops->stream_open(r->dev, 1, &r->urgent)) < 0 ||
        (rc = r->dev->ops->event_open(r->dev, &r->ev)) < 0)
        return rc;
    rc = r->dev->ops->host_register(r->dev, host, HOST_BYTES);
    r->registered = rc == 0;
    return rc;
}

static int move(struct rig *r)
{
    const struct hl_device_ops *ops = r->dev->ops;
    int rc;

    if ((rc = ops->copy_h2d(r->dev, r->a, host, 4 * N, r->urgent)) < 0 ||
        (rc = ops->event_record(r->dev, r->ev, r->urgent)) < 0 ||
        (rc = ops->stream_wait(r->dev, r->stream, r->ev)) < 0 ||
        (rc = ops->copy_d2d(r->dev, r->foreign, r->a, 4 * N, r->stream)) < 0)
        return rc;
    return ops->copy_d2h(r->dev, r->pinned, r->foreign, 4 * N, r->stream);
}

static int compute(struct rig *r)
{
    const struct hl_device_ops *ops = r->dev->ops;
    int rc;

    if ((rc = ops->fill(r->dev, r->b, 0, 4 * N, r->stream)) < 0 ||
        (rc = ops->convert(r->dev, r->b, HAUL_BF16, r->a, HAUL_FP32, N, r->stream)) < 0 ||
        (rc = ops->accumulate(r->dev, r->a, r->b, HAUL_BF16, N, 1, r->stream)) < 0 ||
        (rc = ops->sumsq(r->dev, r->b, r->a, HAUL_FP32, N, r->stream)) < 0)
        return rc;
    return ops->launch(r->dev, r->stream, fn_count, &r->count);
}

static int wait_for_it(struct rig *r)
{
    const struct hl_device_ops *ops = r->dev->ops;
    struct haul_device_mem mem = {.struct_size = sizeof mem};
    uint64_t at;
    int rc;

    if ((rc = ops->event_record(r->dev, r->ev, r->stream)) < 0 ||
        (rc = ops->event_sync(r->dev, r->ev)) < 0 || (rc = ops->event_query(r->dev, r->ev)) < 0 ||
        (rc = ops->event_time_ns(r->dev, r->ev, &at)) < 0 ||
        (rc = ops->stream_sync(r->dev, r->urgent)) < 0)
        return rc;
    return haul_device_mem_info(r->dev, &mem);
}

static int use(struct rig *r)
{
    int rc = open_rig(r);

    if (rc == 0)
        rc = move(r);
    if (rc == 0)
        rc = compute(r);
    if (rc == 0)
        rc = wait_for_it(r);
    cr_assert(rc < 0 || r->count == 1);
    return rc;
}

static void close_rig(struct rig *r)
{
    struct hl_device_lane_stats stats;

    for (int i = 0; i < 2; i++) /* until then what queued work uses stays */
        if ((i ? r->urgent : r->stream))
            (void)r->dev->ops->stream_sync(r->dev, i ? r->urgent : r->stream);
    if (r->dev) {
        r->dev->ops->lane_stats(r->dev, HL_DEVICE_H2D, &stats);
        if (r->registered)
            (void)r->dev->ops->host_unregister(r->dev, host);
        if (r->pinned)
            hl_cuda_host_free(r->dev, r->pinned);
        r->dev->ops->event_close(r->dev, r->ev);
        for (int i = 0; i < 2; i++)
            if ((i ? r->urgent : r->stream))
                haul_device_stream_close(r->dev, i ? r->urgent : r->stream);
        for (int i = 0; i < 2; i++)
            if ((i ? r->b : r->a))
                haul_device_free(r->dev, i ? r->b : r->a);
    }
    if (r->foreign)
        haul_device_free(r->other, r->foreign);
    if (r->other)
        (void)haul_device_close(r->other);
    if (r->dev)
        (void)haul_device_close(r->dev);
}

/* What may fail with nothing said while work is queued: memory stays pageable, and a context that was borrowed
 * stays current. */
static int may_pass(const char *call)
{
    return strcmp(call, "cuMemHostRegister") == 0 || strcmp(call, "cuCtxPopCurrent") == 0;
}

/* Of HL_CUDA_CALLS, but for those that put errors into words, which the fake does not count. */
static const char *const functions[] = {
#define NAME(fn, exported) #fn,
    HL_CUDA_CALLS(NAME)
#undef NAME
};
#define NFUNCTIONS (sizeof functions / sizeof *functions)
static unsigned nfailures[NFUNCTIONS];

static void count_failure(const char *call)
{
    for (unsigned i = 0; i < NFUNCTIONS; i++)
        if (strcmp(functions[i], call) == 0) {
            nfailures[i]++;
            return;
        }
    cr_assert(0, "%s is not of HL_CUDA_CALLS", call);
}

/* The n-th call fails; 0 when there was none. */
static int fail_call(int64_t n, const struct census *before)
{
    struct rig r = {0};
    const char *call;
    int rc;

    fake.fail_nth(n, CUDA_UNKNOWN);
    rc = use(&r);
    call = fake.failed();
    if (rc < 0)
        cr_assert_not_null(strstr(haul_last_error(), "CUDA_ERROR_UNKNOWN"), "call %lld, %s: %s",
                           (long long)n, call, haul_last_error());
    cr_assert(call ? rc < 0 || may_pass(call) : rc == 0, "call %lld, %s: %d", (long long)n, call,
              rc);
    close_rig(&r);
    call = fake.failed();
    fake.fail_nth(0, 0);
    fake_is_clean(call ? call : "no call failed");
    census_same(before);
    if (call)
        count_failure(call);
    return call != NULL;
}

Test(cuda_calls, every_function_of_the_driver_fails_at_each_call_and_nothing_is_left)
{
    struct census before;
    int64_t n = 1;

    fake_load();
    cr_assert_eq(setenv("HWLOC_SYNTHETIC", "pu:1", 1), 0); /* quicker to look at, over and over */
    haul_log_set(NULL, NULL, HAUL_LOG_ERROR);
    before = census_take();
    while (fail_call(n, &before))
        n++;
    haul_log_set(NULL, NULL, HAUL_LOG_WARN);
    unsetenv("HWLOC_SYNTHETIC");
    for (unsigned i = 0; i < NFUNCTIONS; i++)
        cr_assert(nfailures[i] > 0 ||
                      strncmp(functions[i], "cuGetError", strlen("cuGetError")) == 0,
                  "%s has not failed in %lld calls", functions[i], (long long)n - 1);
}
