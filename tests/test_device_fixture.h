/* test_device_fixture.h: what the device's suites share: opening, and work that waits to be let go. */
#ifndef HAUL_TESTS_DEVICE_FIXTURE_H
#define HAUL_TESTS_DEVICE_FIXTURE_H

#include "clock.h"
#include "device_ops.h"
#include "suite.h"
#include "sys.h"
#include "wait.h"
#include <errno.h>

#define MIB      (UINT64_C(1) << 20)
#define NS_PER_S UINT64_C(1000000000)

/* What was alive when the case began. */
struct census {
    int64_t live[HL_SYS_NKINDS];
};

static inline struct census census_take(void)
{
    struct census c;

    for (int k = 0; k < HL_SYS_NKINDS; k++)
        c.live[k] = hl_sys_live((enum hl_sys_kind)k);
    return c;
}

static inline void census_same(const struct census *before)
{
    for (int k = 0; k < HL_SYS_NKINDS; k++)
        cr_assert_eq(hl_sys_live((enum hl_sys_kind)k), before->live[k], "kind %d", k);
}

static inline struct haul_device *device_open(const struct haul_device_host_opts *opts)
{
    struct haul_device *dev = NULL;

    cr_assert_eq(haul_device_host_open(opts, &dev), 0);
    return dev;
}

/* One thread per kernel: the suites of cpu_adam are where teams are tested. */
static inline struct haul_device_host_opts device_opts(void)
{
    struct haul_device_host_opts opts;

    haul_device_host_opts_init(&opts);
    opts.kernel_threads = 1;
    return opts;
}

static inline struct haul_device *device_plain(void)
{
    struct haul_device_host_opts opts = device_opts();

    return device_open(&opts);
}

static inline void *device_mem(struct haul_device *dev, uint64_t bytes)
{
    void *p = NULL;

    cr_assert_eq(haul_device_alloc(dev, bytes, &p), 0);
    return p;
}

static inline void *device_stream(struct haul_device *dev)
{
    void *s = NULL;

    cr_assert_eq(haul_device_stream_open(dev, &s), 0);
    return s;
}

static inline struct hl_event *device_event(struct haul_device *dev)
{
    struct hl_event *ev = NULL;

    cr_assert_eq(dev->ops->event_open(dev, &ev), 0);
    return ev;
}

/* A door: work that stands before it goes on when it is opened. */
struct door {
    struct hl_gate gate;
    atomic_int open;
};

static inline void door_open(struct door *d)
{
    atomic_store(&d->open, 1);
    hl_gate_wake(&d->gate);
}

static inline int door_is_open(struct door *d)
{
    return atomic_load(&d->open);
}

static inline void door_wait(struct door *d)
{
    for (;;) {
        uint32_t seen = hl_gate_look(&d->gate);

        if (door_is_open(d))
            return;
        hl_gate_sleep(&d->gate, seen);
    }
}

static inline void fn_wait_door(void *user)
{
    door_wait(user);
}

static inline void fn_open_door(void *user)
{
    door_open(user);
}

static inline void fn_count(void *user)
{
    atomic_fetch_add((atomic_int *)user, 1);
}

static inline void pause_ms(unsigned ms)
{
    hl_clock_sleep_until(hl_clock_ns() + ms * UINT64_C(1000000));
}

#endif
