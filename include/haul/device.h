/*
 * haul/device.h: the device that computes, real or emulated.
 *
 * The host device emulates a GPU on the CPU: memory with a hard cap, streams
 * that run queued work in order on a thread of their own, events, and links
 * with a set bandwidth and latency. Figures taken on it are emulated figures.
 *
 * A stream is a `void *`: on the host device what haul_device_stream_open()
 * gives, on CUDA also any CUstream / cudaStream_t of the trainer.
 *
 * An operation that fails fails its stream: what was queued behind it is
 * dropped, streams that wait for it fail too, and haul_device_stream_sync()
 * returns the first error for as long as the stream lives.
 */
#ifndef HAUL_DEVICE_H
#define HAUL_DEVICE_H

#include "haul/error.h"

#ifdef __cplusplus
extern "C" {
#endif

struct haul_device;

struct haul_device_host_opts {
    size_t struct_size;
    uint64_t mem_bytes;       /* hard cap on device memory; 0 (default): no cap */
    double h2d_bytes_per_s;   /* 0 (default): as fast as memcpy */
    double d2h_bytes_per_s;   /* 0 (default): as fast as memcpy */
    uint64_t copy_latency_ns; /* added to every copy; default 0 */
    uint32_t kernel_threads;  /* threads of the five kernels; 0 (default): cores allowed */
    uint64_t jitter_seed;     /* tests: random small delays before queued operations, to bring out
                                   missing waits; 0 (default): none */
};

HAUL_API
void haul_device_host_opts_init(struct haul_device_host_opts *opts);

/**
 * Open the emulated device.
 *
 * @param opts  [in]  options, or NULL for defaults; read here, not kept
 * @param out   [out] the device; written only on success
 *
 * Ownership  the caller owns *out; end it with haul_device_close() after everything opened on it
 * Threads    any
 * Blocks     no
 * Errors     0, -ENOMEM, -EINVAL, HAUL_E_ABI
 */
HAUL_API
HAUL_MUST_USE
int haul_device_host_open(const struct haul_device_host_opts *opts, struct haul_device **out);

/* Close; NULL is fine. HAUL_E_STATE (and still closed) when memory, streams or events were left. */
HAUL_API
int haul_device_close(struct haul_device *dev);

/* "host (emulated)", or the CUDA device's name. Owned by the device. */
HAUL_API
const char *haul_device_name(const struct haul_device *dev);

struct haul_device_mem {
    size_t struct_size;
    uint64_t total_bytes; /* cap; UINT64_MAX when there is none */
    uint64_t used_bytes;  /* now, through this handle */
    uint64_t peak_bytes;  /* highest used_bytes since open */
};

/* Memory of the device as it is now; out->struct_size is set by the caller. Errors  0, -EINVAL, HAUL_E_ABI */
HAUL_API
HAUL_MUST_USE
int haul_device_mem_info(struct haul_device *dev, struct haul_device_mem *out);

/**
 * Device memory. On the host device *out can be dereferenced, but only by queued work; it begins as
 * bytes of 0xff (NaN in every dtype), so that a read of what was never written shows.
 *
 * @param bytes  [in]  counted exactly, nothing rounded; the start is 256-byte aligned
 * @param out    [out] written only on success
 *
 * Errors     0, -EINVAL (0 bytes), -ENOMEM (over the cap; text says cap, used, asked)
 */
HAUL_API
HAUL_MUST_USE
int haul_device_alloc(struct haul_device *dev, uint64_t bytes, void **out);

/* Free; waits for nothing, so the caller must know that no queued work uses it. NULL is fine. */
HAUL_API
void haul_device_free(struct haul_device *dev, void *ptr);

/* A stream for the trainer's compute. */
HAUL_API
HAUL_MUST_USE
int haul_device_stream_open(struct haul_device *dev, void **stream);

/* Waits for queued work, then ends the stream. */
HAUL_API
void haul_device_stream_close(struct haul_device *dev, void *stream);

typedef void (*haul_device_fn)(void *user);

/**
 * Queue fn(user) on a stream: the host device's kernel launch. Counted as compute. fn must not call
 * haul functions on this device: the queue that it would wait for is the one it stands in.
 *
 * Threads    any
 * Blocks     only when the stream's queue (1024 entries) is full
 * Errors     0, -EINVAL, HAUL_E_DEVICE (a device that cannot run host functions as compute)
 */
HAUL_API
HAUL_MUST_USE
int haul_device_launch(struct haul_device *dev, void *stream, haul_device_fn fn, void *user);

/**
 * Queue fn(user) on a stream, counted on no lane: for who moves data between processes in stream order.
 * fn runs on a thread of the device; work behind it on the stream waits until it returns. It must not call
 * the device, nor, on CUDA, the driver. It may use device memory where haul_device_in_host_memory() is 1.
 * It does not run when the stream has failed before its turn.
 *
 * Threads    any
 * Blocks     only when the stream's queue (1024 entries) is full
 * Errors     0, -EINVAL, HAUL_E_DEVICE
 */
HAUL_API
HAUL_MUST_USE
int haul_device_call(struct haul_device *dev, void *stream, haul_device_fn fn, void *user);

/* 1: queued host functions can dereference device pointers (the emulated device). 0: they cannot. */
HAUL_API
int haul_device_in_host_memory(const struct haul_device *dev);

/* Wait until everything queued on the stream so far has finished. Returns the stream's first error. */
HAUL_API
HAUL_MUST_USE
int haul_device_stream_sync(struct haul_device *dev, void *stream);

/* Queue copies on a stream, for the trainer's own inputs and outputs (tokens, losses). Counted on the
 * h2d and d2h lanes. Host memory must stay valid until the copy is done. -EINVAL when the device side is
 * not inside one live allocation. */
HAUL_API
HAUL_MUST_USE
int haul_device_copy_h2d(struct haul_device *dev, void *dst, const void *src, uint64_t bytes,
                         void *stream);
HAUL_API
HAUL_MUST_USE
int haul_device_copy_d2h(struct haul_device *dev, void *dst, const void *src, uint64_t bytes,
                         void *stream);
/* Inside the device. The two ranges do not overlap. */
HAUL_API
HAUL_MUST_USE
int haul_device_copy_d2d(struct haul_device *dev, void *dst, const void *src, uint64_t bytes,
                         void *stream);

/* Pin host memory, so that copies from and to it wait for nobody. What the driver refuses to pin is used
 * as it is, with one warning. Unregister the same ptr before the memory is freed. On the emulated device
 * there is nothing to do. Errors 0, -EINVAL, HAUL_E_DEVICE */
HAUL_API
HAUL_MUST_USE
int haul_device_host_register(struct haul_device *dev, void *ptr, uint64_t bytes);
HAUL_API
int haul_device_host_unregister(struct haul_device *dev, void *ptr);

#ifdef __cplusplus
}
#endif
#endif
