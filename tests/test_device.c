/* The emulated device: opening, memory and its cap, argument checks, leaks. */
#include "test_device_fixture.h"
#include <sys/mman.h>

static struct haul_device_mem mem_of(struct haul_device *dev)
{
    struct haul_device_mem mem = {.struct_size = sizeof mem};

    cr_assert_eq(haul_device_mem_info(dev, &mem), 0);
    return mem;
}

static struct haul_device *open_capped(uint64_t bytes)
{
    struct haul_device_host_opts opts = device_opts();

    opts.mem_bytes = bytes;
    return device_open(&opts);
}

Test(device, defaults_open_a_device_without_cap_that_says_emulated)
{
    struct haul_device *dev = device_open(NULL);

    cr_assert_str_eq(haul_device_name(dev), "host (emulated)");
    cr_assert_eq(mem_of(dev).total_bytes, UINT64_MAX);
    cr_assert_eq(mem_of(dev).used_bytes, 0u);
    cr_assert_eq(haul_device_close(dev), 0);
    cr_assert_eq(haul_device_close(NULL), 0);
}

Test(device, options_that_make_no_sense_are_refused)
{
    struct haul_device *dev = NULL;
    struct haul_device_host_opts opts = device_opts();

    opts.h2d_bytes_per_s = -1;
    cr_assert_eq(haul_device_host_open(&opts, &dev), -EINVAL);
    cr_assert_not_null(strstr(haul_last_error(), "h2d_bytes_per_s"));
    opts = device_opts();
    opts.d2h_bytes_per_s = 1.0 / 0.0;
    cr_assert_eq(haul_device_host_open(&opts, &dev), -EINVAL);
    cr_assert_not_null(strstr(haul_last_error(), "d2h_bytes_per_s"));
    memset(&opts, 0, sizeof opts);
    cr_assert_eq(haul_device_host_open(&opts, &dev), HAUL_E_ABI);
    cr_assert_eq(haul_device_host_open(NULL, NULL), -EINVAL);
    cr_assert_null(dev);
}

Test(device, the_options_keep_their_layout)
{
    cr_assert_eq(offsetof(struct haul_device_host_opts, mem_bytes), 8u);
    cr_assert_eq(offsetof(struct haul_device_host_opts, h2d_bytes_per_s), 16u);
    cr_assert_eq(offsetof(struct haul_device_host_opts, d2h_bytes_per_s), 24u);
    cr_assert_eq(offsetof(struct haul_device_host_opts, copy_latency_ns), 32u);
    cr_assert_eq(offsetof(struct haul_device_host_opts, kernel_threads), 40u);
    cr_assert_eq(offsetof(struct haul_device_host_opts, jitter_seed), 48u);
    cr_assert_eq(sizeof(struct haul_device_host_opts), 56u);
    cr_assert_eq(sizeof(struct haul_device_mem), 32u);
}

Test(device, the_cap_holds_to_the_byte)
{
    struct haul_device *dev = open_capped(1000);
    void *a = device_mem(dev, 600), *b = NULL;

    cr_assert_eq(haul_device_alloc(dev, 401, &b), -ENOMEM);
    cr_assert_null(b);
    cr_assert_not_null(strstr(haul_last_error(), "401"), "%s", haul_last_error());
    cr_assert_not_null(strstr(haul_last_error(), "cap 1000"), "%s", haul_last_error());
    cr_assert_not_null(strstr(haul_last_error(), "used 600"), "%s", haul_last_error());
    cr_assert_eq(haul_device_alloc(dev, UINT64_MAX, &b), -ENOMEM);
    b = device_mem(dev, 400);
    cr_assert_eq(mem_of(dev).total_bytes, 1000u);
    cr_assert_eq(mem_of(dev).used_bytes, 1000u);
    haul_device_free(dev, a);
    cr_assert_eq(mem_of(dev).used_bytes, 400u);
    a = device_mem(dev, 599);
    cr_assert_eq(mem_of(dev).used_bytes, 999u);
    cr_assert_eq(mem_of(dev).peak_bytes, 1000u, "refused or freed bytes are not in the peak");
    haul_device_free(dev, a);
    haul_device_free(dev, b);
    haul_device_free(dev, NULL);
    cr_assert_eq(haul_device_close(dev), 0);
}

Test(device, nothing_is_not_an_allocation)
{
    struct haul_device *dev = device_plain();
    struct haul_device_mem old = {.struct_size = 8};
    void *p = NULL;

    cr_assert_eq(haul_device_alloc(dev, 0, &p), -EINVAL);
    cr_assert_eq(haul_device_alloc(dev, 8, NULL), -EINVAL);
    cr_assert_eq(haul_device_alloc(NULL, 8, &p), -EINVAL);
    cr_assert_null(p);
    cr_assert_eq(haul_device_mem_info(dev, &old), HAUL_E_ABI);
    cr_assert_eq(haul_device_close(dev), 0);
}

Test(device, memory_is_aligned_resident_and_begins_as_nan)
{
    static const uint64_t sizes[] = {1, 255, 4097, 2 * MIB - 1, 2 * MIB, 5 * MIB + 123};
    struct haul_device *dev = device_plain();

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        unsigned char *p = device_mem(dev, sizes[i]);

        cr_assert_eq((uintptr_t)p % 256, 0u);
        for (uint64_t k = 0; k < sizes[i]; k++)
            cr_assert_eq(p[k], 0xff, "byte %llu of %llu", (unsigned long long)k,
                         (unsigned long long)sizes[i]);
        haul_device_free(dev, p);
    }
    cr_assert_eq(haul_device_close(dev), 0);
}

Test(device, large_memory_is_touched_when_it_is_allocated)
{
    struct haul_device *dev = device_plain();
    uint64_t bytes = 8 * MIB + 4096;
    unsigned char resident[8 * 256 + 1];
    void *p = device_mem(dev, bytes);

    cr_assert_eq(mincore(p, bytes, resident), 0);
    for (size_t i = 0; i < sizeof resident; i++)
        cr_assert_eq(resident[i] & 1, 1, "page %zu", i);
    haul_device_free(dev, p);
    cr_assert_eq(haul_device_close(dev), 0);
}

Test(device, a_range_must_lie_in_one_live_allocation)
{
    struct haul_device *dev = device_plain();
    void *s = device_stream(dev);
    char *a = device_mem(dev, 1000), *b = device_mem(dev, 1000);
    static char host[3000];

    cr_assert_eq(haul_device_copy_h2d(dev, a, host, 1000, s), 0);
    cr_assert_eq(haul_device_copy_h2d(dev, a + 999, host, 1, s), 0);
    cr_assert_eq(haul_device_copy_d2h(dev, host, b, 1000, s), 0);
    cr_assert_eq(haul_device_copy_h2d(dev, a, host, 0, s), 0, "an empty copy is none");
    cr_assert_eq(haul_device_copy_h2d(dev, a, host, 1001, s), -EINVAL);
    cr_assert_not_null(strstr(haul_last_error(), "not inside one live allocation"));
    cr_assert_eq(haul_device_copy_h2d(dev, a + 1, host, 1000, s), -EINVAL);
    cr_assert_eq(haul_device_copy_h2d(dev, a - 1, host, 1, s), -EINVAL);
    cr_assert_eq(haul_device_copy_d2h(dev, host, a + 1000, 1, s), -EINVAL);
    cr_assert_eq(haul_device_copy_h2d(dev, a + 1, host, UINT64_MAX, s), -EINVAL);
    cr_assert_eq(haul_device_copy_h2d(dev, host, host + 1500, 10, s), -EINVAL, "host memory");
    cr_assert_eq(haul_device_copy_h2d(dev, a, NULL, 10, s), -EINVAL);
    cr_assert_eq(dev->ops->copy_d2d(dev, a, b, 1000, s), 0);
    cr_assert_eq(dev->ops->copy_d2d(dev, a, a + 500, 500, s), 0);
    cr_assert_eq(dev->ops->copy_d2d(dev, a, a + 499, 500, s), -EINVAL, "overlap");
    cr_assert_eq(dev->ops->fill(dev, b, 0, 1001, s), -EINVAL);
    cr_assert_eq(haul_device_stream_sync(dev, s), 0);
    haul_device_free(dev, a);
    cr_assert_eq(haul_device_copy_h2d(dev, a, host, 1, s), -EINVAL, "freed");
    haul_device_free(dev, b);
    haul_device_stream_close(dev, s);
    cr_assert_eq(haul_device_close(dev), 0);
}

/* Allocations and frees in an arbitrary order; the model is the list kept here. */
Test(device, the_table_of_allocations_stays_right)
{
    enum { N = 300 };
    struct haul_device *dev = device_plain();
    void *s = device_stream(dev);
    char *p[N] = {0};
    uint64_t bytes[N], used = 0, peak = 0, x = 12345;

    for (int round = 0; round < 5000; round++) {
        int i;

        x = x * UINT64_C(6364136223846793005) + 1442695040888963407u;
        i = (int)((x >> 33) % N);
        if (p[i]) {
            cr_assert_eq(dev->ops->fill(dev, p[i], 1, bytes[i], s), 0);
            cr_assert_eq(dev->ops->fill(dev, p[i], 1, bytes[i] + 1, s), -EINVAL);
            cr_assert_eq(haul_device_stream_sync(dev, s), 0);
            haul_device_free(dev, p[i]);
            used -= bytes[i];
            p[i] = NULL;
        } else {
            bytes[i] = 1 + (x >> 20) % 3000;
            p[i] = device_mem(dev, bytes[i]);
            used += bytes[i];
            peak = used > peak ? used : peak;
        }
        cr_assert_eq(mem_of(dev).used_bytes, used);
        cr_assert_eq(mem_of(dev).peak_bytes, peak);
    }
    for (int i = 0; i < N; i++)
        haul_device_free(dev, p[i]);
    cr_assert_eq(mem_of(dev).used_bytes, 0u);
    haul_device_stream_close(dev, s);
    cr_assert_eq(haul_device_close(dev), 0);
}

static void *allocate_and_free(void *user)
{
    struct haul_device *dev = user;
    void *p[8];

    for (int round = 0; round < 200; round++) {
        for (int i = 0; i < 8; i++)
            if (haul_device_alloc(dev, 100 + (uint64_t)i, &p[i]) < 0)
                p[i] = NULL;
        for (int i = 0; i < 8; i++)
            haul_device_free(dev, p[i]);
    }
    return NULL;
}

Test(device, threads_may_allocate_at_once_and_never_pass_the_cap)
{
    struct haul_device *dev = open_capped(2000);
    pthread_t t[4];

    for (int i = 0; i < 4; i++)
        cr_assert_eq(hl_sys_thread("allocate", allocate_and_free, dev, &t[i]), 0);
    for (int i = 0; i < 4; i++)
        hl_sys_join(t[i]);
    cr_assert_eq(mem_of(dev).used_bytes, 0u);
    cr_assert_leq(mem_of(dev).peak_bytes, 2000u);
    cr_assert_eq(haul_device_close(dev), 0);
}

Test(device, close_reports_what_was_left_and_frees_it)
{
    struct census before = census_take();
    struct haul_device *dev = device_plain();
    struct hl_event *ev = device_event(dev);
    void *s = device_stream(dev);
    atomic_int n = 0;

    device_mem(dev, 100);
    device_mem(dev, 3 * MIB);
    for (int i = 0; i < 100; i++)
        cr_assert_eq(haul_device_launch(dev, s, fn_count, &n), 0);
    cr_assert_eq(dev->ops->event_record(dev, ev, s), 0);
    cr_assert_eq(haul_device_close(dev), HAUL_E_STATE);
    cr_assert_not_null(strstr(haul_last_error(), "2 allocations (3145828 bytes)"), "%s",
                       haul_last_error());
    cr_assert_not_null(strstr(haul_last_error(), "1 streams"), "%s", haul_last_error());
    cr_assert_not_null(strstr(haul_last_error(), "1 events"), "%s", haul_last_error());
    cr_assert_eq(n, 100, "queued work is done first");
    census_same(&before);
}

/* Opens one of everything; returns the first failure. */
static int open_everything(struct haul_device **dev, void *mem[2], void **s, struct hl_event **ev)
{
    struct haul_device_host_opts opts = device_opts();
    int rc = haul_device_host_open(&opts, dev);

    if (rc == 0)
        rc = haul_device_alloc(*dev, 100, &mem[0]);
    if (rc == 0)
        rc = haul_device_alloc(*dev, 4 * MIB, &mem[1]);
    if (rc == 0)
        rc = (*dev)->ops->stream_open(*dev, 1, s);
    if (rc == 0)
        rc = (*dev)->ops->event_open(*dev, ev);
    return rc;
}

Test(device, opening_anything_unwinds_from_every_failure)
{
    struct census before = census_take();
    int rc, failed = 1;

    if (hl_sys_fail_nth(0, 0) < 0)
        SKIP("this build cannot make system calls fail");
    for (int n = 1; failed; n++) {
        struct haul_device *dev = NULL;
        void *mem[2] = {NULL, NULL}, *s = NULL;
        struct hl_event *ev = NULL;

        hl_sys_fail_nth(n, ENOMEM);
        rc = open_everything(&dev, mem, &s, &ev);
        failed = hl_sys_failed();
        hl_sys_fail_nth(0, 0);
        cr_assert(rc == 0 || (failed && rc == -ENOMEM), "call %d: rc %d", n, rc);
        cr_assert(rc == 0 || !ev, "call %d", n);
        if (!dev)
            continue;
        cr_assert_eq(mem_of(dev).used_bytes, (mem[0] ? 100 : 0) + (mem[1] ? 4 * MIB : 0));
        dev->ops->event_close(dev, ev);
        haul_device_stream_close(dev, s);
        haul_device_free(dev, mem[0]);
        haul_device_free(dev, mem[1]);
        cr_assert_eq(haul_device_close(dev), 0, "call %d: %s", n, haul_last_error());
        census_same(&before);
    }
    cr_assert_eq(rc, 0, "the last round is the one without a failure");
}

/* The table grows at the 65th allocation. */
Test(device, an_allocation_that_cannot_be_entered_is_given_back)
{
    struct haul_device *dev;
    void *p[65] = {0};
    int rc, n;

    if (hl_sys_fail_nth(0, 0) < 0)
        SKIP("this build cannot make system calls fail");
    dev = device_plain();
    for (int i = 0; i < 64; i++)
        p[i] = device_mem(dev, 10);
    for (n = 1;; n++) {
        hl_sys_fail_nth(n, ENOMEM);
        rc = haul_device_alloc(dev, 10, &p[64]);
        hl_sys_fail_nth(0, 0);
        if (rc == 0)
            break;
        cr_assert_eq(rc, -ENOMEM);
        cr_assert_null(p[64]);
        cr_assert_eq(mem_of(dev).used_bytes, 640u);
    }
    cr_assert_gt(n, 2, "the memory and the table can both fail");
    for (int i = 0; i < 65; i++)
        haul_device_free(dev, p[i]);
    cr_assert_eq(haul_device_close(dev), 0);
}
