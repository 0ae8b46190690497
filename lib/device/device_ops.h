/*
 * device_ops.h: what a device back end provides. For back-end authors and the engine.
 *
 * Every function may be called from any thread unless it says otherwise. All queued operations
 * return at once; work of one stream runs in order. Hooks marked (optional) may be NULL.
 *
 * Queued operations check their arguments first: a device range that is not inside one live
 * allocation, or a stream that is not open, is -EINVAL and nothing is queued. An operation that fails
 * later fails its stream (haul/device.h says what that means). Nothing that queues allocates. On the
 * host device a queue holds 1024 operations, and a caller of a full one waits for room.
 */
#ifndef HL_DEVICE_OPS_H
#define HL_DEVICE_OPS_H

#include <stdatomic.h>

#include "haul/device.h"
#include "haul/optim.h"

struct hl_event; /* opaque per back end */

/* Lanes that a device accounts for. */
enum hl_device_lane {
    HL_DEVICE_COMPUTE = 0,
    HL_DEVICE_H2D,
    HL_DEVICE_D2H,
    HL_DEVICE_KERNELS, /* haul's own kernels, fills and copies inside the device */
    HL_DEVICE_NLANES
};

struct hl_device_lane_stats {
    uint64_t
        busy_ns;    /* time the lane worked since open; compute and kernels: summed over streams */
    uint64_t bytes; /* copied since open (compute, kernels: 0) */
};

/* One range for the optimizer kernel on the device; pointers are device pointers. */
struct hl_device_optim {
    struct haul_optim opt;
    struct haul_optim_arrays arrays;
    struct haul_optim_step step;
};

struct hl_device_ops {
    const char *(*name)(const struct haul_device *dev);
    int (*close)(struct haul_device *dev);
    int (*mem_info)(struct haul_device *dev, struct haul_device_mem *out);
    int (*alloc)(struct haul_device *dev, uint64_t bytes, void **out);
    void (*free)(struct haul_device *dev, void *ptr);

    /* Pin [ptr, ptr+bytes) for direct copies. (optional) */
    int (*host_register)(struct haul_device *dev, void *ptr, uint64_t bytes);
    int (*host_unregister)(struct haul_device *dev, void *ptr);
    /* The NUMA node (logical index) whose memory is nearest; -1: unknown, or all are alike. (optional) */
    int (*numa_node)(struct haul_device *dev);

    /* urgent: 1 for streams that should run ahead of others. */
    int (*stream_open)(struct haul_device *dev, int urgent, void **stream);
    void (*stream_close)(struct haul_device *dev, void *stream);
    int (*stream_sync)(struct haul_device *dev, void *stream);
    /* The stream waits for the event's latest record; an event never recorded is no wait. */
    int (*stream_wait)(struct haul_device *dev, void *stream, struct hl_event *ev);

    int (*event_open)(struct haul_device *dev, struct hl_event **out);
    void (*event_close)(struct haul_device *dev, struct hl_event *ev);
    int (*event_record)(struct haul_device *dev, struct hl_event *ev, void *stream);
    /* 1 done (or never recorded), 0 not yet, negative: the error of the work before it. */
    int (*event_query)(struct haul_device *dev, struct hl_event *ev);
    /* Block the host until the event's latest record has been reached. */
    int (*event_sync)(struct haul_device *dev, struct hl_event *ev);
    /* When the latest record was reached, on hl_clock_ns()'s time line; only after query gave 1.
     * 0 when it was never recorded. */
    int (*event_time_ns)(struct haul_device *dev, struct hl_event *ev, uint64_t *out);

    int (*copy_h2d)(struct haul_device *dev, void *dst, const void *src, uint64_t bytes,
                    void *stream);
    int (*copy_d2h)(struct haul_device *dev, void *dst, const void *src, uint64_t bytes,
                    void *stream);
    int (*copy_d2d)(struct haul_device *dev, void *dst, const void *src, uint64_t bytes,
                    void *stream);
    /* Queue a host function as compute. (optional) */
    int (*launch)(struct haul_device *dev, void *stream, haul_device_fn fn, void *user);
    /* The same, counted on no lane. (optional) */
    int (*call)(struct haul_device *dev, void *stream, haul_device_fn fn, void *user);

    /* Kernels. Pointers are device pointers; dtypes FP32, BF16, FP16.
     * convert: dst = dtype conversion of src; to BF16 rounds half away from zero, to FP16 half to
     * even; NaN becomes the canonical quiet NaN. src and dst do not overlap. */
    int (*convert)(struct haul_device *dev, void *dst, enum haul_dtype dst_dtype, const void *src,
                   enum haul_dtype src_dtype, uint64_t n, void *stream);
    /* acc = first ? widen(src) : acc + widen(src), FP32 */
    int (*accumulate)(struct haul_device *dev, float *acc, const void *src,
                      enum haul_dtype src_dtype, uint64_t n, int first, void *stream);
    /* dst (n,) = parts (nparts, n) added in order in FP32 and rounded once, BF16 and FP16 half to even: sums of
     * few 16-bit numbers are often ties, which must not all go one way. dst and parts do not overlap. */
    int (*sum)(struct haul_device *dev, void *dst, const void *parts, enum haul_dtype dtype,
               uint32_t nparts, uint64_t n, void *stream);
    /* partial[b] = sum of squares of block b (HAUL_NORM_BLOCK elements, the fixed tree), NaN when an
     * element of the block is not finite. partial has ceil(n / HAUL_NORM_BLOCK) floats on the device. */
    int (*sumsq)(struct haul_device *dev, float *partial, const void *src, enum haul_dtype dtype,
                 uint64_t n, void *stream);
    /* n bytes of value */
    int (*fill)(struct haul_device *dev, void *dst, int value, uint64_t bytes, void *stream);
    /* The optimizer, with the bits of haul_optim_update(). *args is copied. */
    int (*optim)(struct haul_device *dev, const struct hl_device_optim *args, void *stream);

    void (*lane_stats)(struct haul_device *dev, enum hl_device_lane lane,
                       struct hl_device_lane_stats *out);
};

/* Told of each piece of a lane's work when it is over, on the thread that found out. Must not block. */
typedef void (*hl_device_span_fn)(void *user, enum hl_device_lane lane, uint64_t begin_ns,
                                  uint64_t end_ns, uint64_t bytes);

/* Every back end's device begins with this. */
struct haul_device {
    const struct hl_device_ops *ops;
    int in_host_memory;                 /* 1: device memory is taken from the host's (emulated) */
    void *span_user;                    /* set before span_fn */
    _Atomic(hl_device_span_fn) span_fn; /* NULL: nobody listens */
};

static inline void hl_device_tell_span(struct haul_device *dev, enum hl_device_lane lane,
                                       uint64_t begin_ns, uint64_t end_ns, uint64_t bytes)
{
    hl_device_span_fn fn = atomic_load_explicit(&dev->span_fn, memory_order_acquire);

    if (fn)
        fn(dev->span_user, lane, begin_ns, end_ns, bytes);
}

/* Tests, host device: the n-th operation that runs from now on (1 = the next, any stream) fails with
 * HAUL_E_DEVICE instead. 0 disarms. */
void hl_device_host_fail_nth(struct haul_device *dev, int64_t n);

/* Host device: compute that does nothing for ns, which lie on the stream's time line: behind what came
 * before, however late a thread woke. */
int hl_device_host_occupy(struct haul_device *dev, void *stream, uint64_t ns);

#endif
