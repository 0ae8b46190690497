/*
 * Whether a GPU's copies run behind its compute, and both directions of the link at once, by the times of
 * events. What they are held to is held on a GPU only: the fake driver has no speed, and only runs the code.
 */
#include "test_cuda_fixture.h"

enum { ATTEMPTS = 5 };

struct rig {
    struct haul_device *dev;
    void *compute, *up, *down;
    struct hl_event *begin[3], *end[3]; /* of compute, up, down */
    char *host, *mem;                   /* (2 * bytes,) each: up from and to the first half */
    uint64_t bytes;
    float *acc; /* (elems,), and as many BF16 values behind it */
    uint64_t elems;
};

static void check(int rc)
{
    cr_assert_eq(rc, 0, "%s: %s", haul_strerror(rc), haul_last_error());
}

static void open_rig(struct rig *r)
{
    void *p = NULL;

    *r = (struct rig){.dev = cuda_open()};
    r->bytes = on_true_gpu() ? 512 * MIB : MIB;
    r->elems = on_true_gpu() ? UINT64_C(8) << 20 : 4096; /* on a GPU they stay in its cache */
    r->compute = device_stream(r->dev);
    check(r->dev->ops->stream_open(r->dev, 1, &r->up));
    check(r->dev->ops->stream_open(r->dev, 1, &r->down));
    for (int i = 0; i < 3; i++) {
        r->begin[i] = device_event(r->dev);
        r->end[i] = device_event(r->dev);
    }
    cr_assert_eq(posix_memalign(&p, 4096, 2 * r->bytes), 0);
    r->host = memset(p, 1, 2 * r->bytes);
    check(r->dev->ops->host_register(r->dev, r->host, 2 * r->bytes));
    r->mem = device_mem(r->dev, 2 * r->bytes);
    r->acc = device_mem(r->dev, 6 * r->elems);
    check(r->dev->ops->fill(r->dev, r->mem, 0, 2 * r->bytes, r->compute));
    check(r->dev->ops->fill(r->dev, r->acc, 0, 6 * r->elems, r->compute));
    check(haul_device_stream_sync(r->dev, r->compute));
}

static void close_rig(struct rig *r)
{
    check(r->dev->ops->host_unregister(r->dev, r->host));
    for (int i = 0; i < 3; i++) {
        r->dev->ops->event_close(r->dev, r->begin[i]);
        r->dev->ops->event_close(r->dev, r->end[i]);
    }
    haul_device_stream_close(r->dev, r->compute);
    haul_device_stream_close(r->dev, r->up);
    haul_device_stream_close(r->dev, r->down);
    haul_device_free(r->dev, r->mem);
    haul_device_free(r->dev, r->acc);
    cuda_close(r->dev);
    free(r->host);
}

enum { COMPUTE = 1, UP = 2, DOWN = 4 };

static void queue_copies(struct rig *r, int what)
{
    if (what & UP) {
        check(r->dev->ops->event_record(r->dev, r->begin[1], r->up));
        check(haul_device_copy_h2d(r->dev, r->mem, r->host, r->bytes, r->up));
        check(r->dev->ops->event_record(r->dev, r->end[1], r->up));
    }
    if (what & DOWN) {
        check(r->dev->ops->event_record(r->dev, r->begin[2], r->down));
        check(
            haul_device_copy_d2h(r->dev, r->host + r->bytes, r->mem + r->bytes, r->bytes, r->down));
        check(r->dev->ops->event_record(r->dev, r->end[2], r->down));
    }
}

static void queue_compute(struct rig *r, unsigned nlaunches)
{
    check(r->dev->ops->event_record(r->dev, r->begin[0], r->compute));
    for (unsigned i = 0; i < nlaunches; i++)
        check(r->dev->ops->accumulate(r->dev, r->acc, r->acc + r->elems, HAUL_BF16, r->elems, 0,
                                      r->compute));
    check(r->dev->ops->event_record(r->dev, r->end[0], r->compute));
}

/* Seconds from the first of these to begin to the last to end. */
static double seconds(struct rig *r, int what, unsigned nlaunches)
{
    uint64_t first = UINT64_MAX, last = 0, at;
    void *const streams[3] = {r->compute, r->up, r->down};

    queue_copies(r, what);
    if (what & COMPUTE)
        queue_compute(r, nlaunches);
    for (int i = 0; i < 3; i++) {
        if (!(what & 1 << i))
            continue;
        check(haul_device_stream_sync(r->dev, streams[i]));
        check(r->dev->ops->event_time_ns(r->dev, r->begin[i], &at));
        first = at < first ? at : first;
        check(r->dev->ops->event_time_ns(r->dev, r->end[i], &at));
        last = at > last ? at : last;
    }
    cr_assert_geq(last, first);
    return (double)(last - first) * 1e-9;
}

/* So many launches take half as long again as the copies. */
static unsigned launches_for(struct rig *r, double copies_s)
{
    const unsigned few = on_true_gpu() ? 200 : 4;
    double each_s;

    if (!on_true_gpu())
        return few;
    (void)seconds(r, COMPUTE, few);
    each_s = seconds(r, COMPUTE, few) / few;
    cr_assert_gt(each_s, 0);
    return (unsigned)(1.5 * copies_s / each_s) + 1;
}

Test(gpu_overlap, copies_in_both_directions_hide_behind_compute)
{
    struct rig r;
    double best = 0;

    open_rig(&r);
    (void)seconds(&r, UP | DOWN, 0);
    for (int i = 0; i < ATTEMPTS; i++) {
        double copies_s = seconds(&r, UP | DOWN, 0);
        unsigned n = launches_for(&r, copies_s);
        double compute_s = seconds(&r, COMPUTE, n);
        double both_s = seconds(&r, COMPUTE | UP | DOWN, n);
        double less_s = copies_s < compute_s ? copies_s : compute_s;
        double hidden = less_s > 0 ? (copies_s + compute_s - both_s) / less_s : 0;

        best = hidden > best ? hidden : best;
        cr_log_info("copies %.2f ms, compute %.2f ms, both %.2f ms: %.1f %% hidden%s",
                    copies_s * 1e3, compute_s * 1e3, both_s * 1e3, hidden * 1e2,
                    on_true_gpu() ? "" : " (a fake driver's figures)");
    }
    if (on_true_gpu())
        cr_assert_geq(best, 0.95);
    close_rig(&r);
}

Test(gpu_overlap, both_directions_of_the_link_work_at_once)
{
    struct rig r;
    double best = 0;

    open_rig(&r);
    (void)seconds(&r, UP | DOWN, 0);
    for (int i = 0; i < ATTEMPTS; i++) {
        double up_s = seconds(&r, UP, 0), down_s = seconds(&r, DOWN, 0);
        double both_s = seconds(&r, UP | DOWN, 0);
        double gain = both_s > 0 ? (up_s + down_s) / both_s : 0;

        best = gain > best ? gain : best;
        cr_log_info("up %.2f ms, down %.2f ms, both %.2f ms: %.2f times one after the other%s",
                    up_s * 1e3, down_s * 1e3, both_s * 1e3, gain,
                    on_true_gpu() ? "" : " (a fake driver's figures)");
    }
    if (on_true_gpu())
        cr_assert_geq(best, 1.25);
    close_rig(&r);
}
