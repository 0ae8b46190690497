/*
 * device_cuda.h: the CUDA back end from the inside. Only for the device_cuda*.c files.
 *
 * Streams are CUstreams: of the trainer, or opened here; NULL is the trainer's default stream. Every
 * entry makes the primary context current and leaves the caller's own as it was. Spin locks guard a few
 * instructions, never a call of the driver. What queues does not allocate and does not wait, except that
 * the driver itself waits when host memory is not pinned.
 */
#ifndef HL_DEVICE_CUDA_H
#define HL_DEVICE_CUDA_H

#include <stdatomic.h>

#include "cuda_kernels.h"
#include "device_ops.h"
#include "fail.h"
#include "wait.h"

#include "cuda_driver.h"
#include "haul/device_cuda.h"

/* ---- memory (device_cuda_mem.c) ---- */

struct cuda_range {
    uint64_t start, bytes;
    uint64_t owner; /* pinned: start of the memory that was registered, in so many pieces */
};

/* Sorted ranges under a spin lock: live device memory, pinned host memory. */
struct cuda_ranges {
    struct hl_spin lock;
    struct cuda_range *live;
    uint64_t nlive, room;
};

struct cuda_mem {
    uint64_t cap_bytes; /* UINT64_MAX: none */
    struct cuda_ranges device;
    struct cuda_ranges pinned; /* each range is one registration: no copy may straddle two */
    /* Under device.lock. */
    uint64_t used_bytes, peak_bytes;
    atomic_int warned; /* that pinning was refused */
};

int hl_cuda_alloc(struct haul_device *dev, uint64_t bytes, void **out);
void hl_cuda_free(struct haul_device *dev, void *ptr);
int hl_cuda_mem_info(struct haul_device *dev, struct haul_device_mem *out);
/* Free whatever was left; how many allocations there were. */
uint64_t hl_cuda_mem_end(struct haul_device *dev, uint64_t *bytes);

/* Add a range; grows. */
int hl_cuda_ranges_add(struct cuda_ranges *r, const struct cuda_range *range);
/* Remove the range that begins at start; 0 when there is none. */
int hl_cuda_ranges_remove(struct cuda_ranges *r, uint64_t start, struct cuda_range *out);
/* The range that holds the address; 0 when there is none. */
int hl_cuda_ranges_find(struct cuda_ranges *r, uint64_t at, struct cuda_range *out);

struct cuda_device;

/* -EINVAL unless [p, p + n * elem_bytes) is device memory, whole inside one allocation where it is one
 * of this device, and a multiple of elem_bytes from 0. */
int hl_cuda_check_range(struct cuda_device *dev, const char *what, const void *p, uint64_t n,
                        uint64_t elem_bytes);
int hl_cuda_check_apart(const char *what, const void *a, uint64_t a_bytes, const void *b,
                        uint64_t b_bytes);

/* ---- pinned host memory (device_cuda_pin.c) ---- */

int hl_cuda_host_register(struct haul_device *dev, void *ptr, uint64_t bytes);
int hl_cuda_host_unregister(struct haul_device *dev, void *ptr);
/* Unregister whatever was left. */
void hl_cuda_pinned_end(struct cuda_device *dev);

/* ---- streams and events (device_cuda_stream.c) ---- */

struct hl_event {
    struct hl_event *prev, *next; /* in the device's list */
    CUevent ev;
    atomic_int recorded;
};

struct cuda_stream {
    struct cuda_stream *next;
    CUstream stream;
};

/* A moment known on both time lines. */
struct cuda_anchor {
    atomic_int held; /* by who reads or renews it; others sleep */
    struct hl_gate given_back;
    CUstream stream;
    CUevent ev, spare;
    uint64_t at_ns; /* of ev, on hl_clock_ns()'s line */
};

int hl_cuda_stream_open(struct haul_device *dev, int urgent, void **stream);
void hl_cuda_stream_close(struct haul_device *dev, void *stream);
int hl_cuda_stream_sync(struct haul_device *dev, void *stream);
int hl_cuda_stream_wait(struct haul_device *dev, void *stream, struct hl_event *ev);
int hl_cuda_event_open(struct haul_device *dev, struct hl_event **out);
void hl_cuda_event_close(struct haul_device *dev, struct hl_event *ev);
int hl_cuda_event_record(struct haul_device *dev, struct hl_event *ev, void *stream);
int hl_cuda_event_query(struct haul_device *dev, struct hl_event *ev);
int hl_cuda_event_sync(struct haul_device *dev, struct hl_event *ev);
int hl_cuda_event_time_ns(struct haul_device *dev, struct hl_event *ev, uint64_t *out);
int hl_cuda_anchor_open(struct cuda_device *dev);
void hl_cuda_anchor_close(struct cuda_device *dev);
/* Close what was left; how many there were. */
unsigned hl_cuda_streams_end(struct cuda_device *dev);
unsigned hl_cuda_events_end(struct cuda_device *dev);

/* ---- copies (device_cuda_copy.c) ---- */

#define CUDA_TIMINGS 32 /* copies of a direction that may be under way and timed */

/* The events around a copy. FREE -> TAKEN by who queues -> FLYING once queued -> TAKEN by who finds it
 * done -> FREE. */
struct cuda_timing {
    atomic_int state;
    CUevent begin, end;
};

struct cuda_lane {
    _Atomic uint64_t busy_ns, bytes;
    _Atomic uint32_t cursor;
    struct cuda_timing timing[CUDA_TIMINGS];
};

int hl_cuda_copy_h2d(struct haul_device *dev, void *dst, const void *src, uint64_t bytes,
                     void *stream);
int hl_cuda_copy_d2h(struct haul_device *dev, void *dst, const void *src, uint64_t bytes,
                     void *stream);
int hl_cuda_copy_d2d(struct haul_device *dev, void *dst, const void *src, uint64_t bytes,
                     void *stream);
int hl_cuda_launch(struct haul_device *dev, void *stream, haul_device_fn fn, void *user);
void hl_cuda_lane_stats(struct haul_device *dev, enum hl_device_lane lane,
                        struct hl_device_lane_stats *out);
int hl_cuda_lane_open(struct cuda_device *dev, struct cuda_lane *lane);
void hl_cuda_lane_close(struct cuda_device *dev, struct cuda_lane *lane);

/* ---- kernels (device_cuda_kernel.c) ---- */

struct cuda_kernels {
    CUmodule module;
    CUfunction convert[HL_CUDA_NFORMS][HL_CUDA_NFORMS]; /* [dst][src] */
    CUfunction accumulate[HL_CUDA_NFORMS], sum[HL_CUDA_NFORMS], sumsq[HL_CUDA_NFORMS];
    CUfunction optim[HL_CUDA_NFORMS][HL_CUDA_NPARAMS];
};

int hl_cuda_kernels_open(struct cuda_device *dev);
void hl_cuda_kernels_close(struct cuda_device *dev);
int hl_cuda_convert(struct haul_device *dev, void *dst, enum haul_dtype dst_dtype, const void *src,
                    enum haul_dtype src_dtype, uint64_t n, void *stream);
int hl_cuda_accumulate(struct haul_device *dev, float *acc, const void *src,
                       enum haul_dtype src_dtype, uint64_t n, int first, void *stream);
int hl_cuda_sum(struct haul_device *dev, void *dst, const void *parts, enum haul_dtype dtype,
                uint32_t nparts, uint64_t n, void *stream);
int hl_cuda_sumsq(struct haul_device *dev, float *partial, const void *src, enum haul_dtype dtype,
                  uint64_t n, void *stream);
int hl_cuda_fill(struct haul_device *dev, void *dst, int value, uint64_t bytes, void *stream);
int hl_cuda_optim(struct haul_device *dev, const struct hl_device_optim *args, void *stream);

/* ---- which device (device_cuda_choose.c) ---- */

/* The ordinal that the options name. */
int hl_cuda_choose(const struct hl_cuda_driver *drv, const struct haul_device_cuda_opts *opts,
                   int *ordinal);
/* Logical index of the NUMA node that a PCI address ("0000:65:00.0") hangs on; -1: unknown, or there is
 * only one. */
int hl_cuda_numa_node(const char *pci);

/* ---- the device (device_cuda.c) ---- */

struct cuda_device {
    struct haul_device base;
    struct hl_cuda_driver drv;
    CUdevice device;
    CUcontext ctx;
    char name[128];
    char pci[32];
    int numa_node;
    struct cuda_mem mem;
    struct cuda_kernels kernels;
    struct cuda_anchor anchor;
    struct cuda_lane h2d, d2h;
    int least_priority, greatest_priority;
    struct hl_spin lock;
    /* Under the lock. */
    struct cuda_stream *streams;
    struct hl_event *events;
};

static inline struct cuda_device *cuda_of(struct haul_device *dev)
{
    return (struct cuda_device *)dev;
}

/* Make the device's context current: 1 when it was not, so that leave must undo it; or an error. */
int hl_cuda_enter(struct cuda_device *dev);
void hl_cuda_leave(struct cuda_device *dev, int entered);

#endif
