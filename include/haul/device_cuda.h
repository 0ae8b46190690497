/*
 * haul/device_cuda.h: a GPU through the CUDA driver.
 *
 * The driver is opened when a device is: a program that links haul starts and runs
 * without one. Built without nvcc, haul_device_cuda_open() says so.
 *
 * The device shares the primary context with the CUDA runtime, so a trainer's
 * cudaStream_t and cudaMalloc pointers are used as they are; NULL is the legacy
 * default stream. The caller's current context is left as it was.
 *
 * haul_device_launch() queues a host function (cuLaunchHostFunc): it cannot touch
 * device memory and must not call CUDA. A trainer launches its kernels itself, on
 * the streams it hands to haul.
 */
#ifndef HAUL_DEVICE_CUDA_H
#define HAUL_DEVICE_CUDA_H

#include "haul/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* At most one of ordinal, uuid and local_rank says which device; with none it is the first. */
struct haul_device_cuda_opts {
    size_t struct_size;
    int32_t ordinal;    /* as CUDA counts them; -1 (default) */
    int32_t local_rank; /* of the ranks on this machine, one device each; a process that sees a single
                           device gets that one; -1 (default) */
    const char *uuid;   /* "GPU-8f2c..." or the beginning of one; NULL (default) */
    uint64_t mem_bytes; /* hard cap on device memory through this handle; 0 (default): no cap */
};

HAUL_API
void haul_device_cuda_opts_init(struct haul_device_cuda_opts *opts);

/**
 * Open a GPU.
 *
 * Memory is cuMemAlloc'd, never managed, and begins undefined. haul_device_mem.total_bytes is what this
 * handle may have altogether: its cap, or what it has and what is free. Host memory that the driver
 * refuses to pin is used unpinned, with one warning that says what was needed and what to raise; copies
 * then wait for the driver.
 *
 * @param opts  [in]  options, or NULL for defaults; read here, not kept
 * @param out   [out] the device; written only on success
 *
 * Ownership  the caller owns *out; end it with haul_device_close() after everything opened on it
 * Threads    any
 * Blocks     yes: the first open in a process makes the context
 * Errors     0, or
 *            HAUL_E_DEVICE  no driver, no such device, older than compute capability 8.0, or this build
 *                           is without CUDA; the text says what to do
 *            -EINVAL        more than one way of choosing, a rank without a device
 *            -ENOMEM, HAUL_E_ABI
 */
HAUL_API HAUL_MUST_USE
int haul_device_cuda_open(const struct haul_device_cuda_opts *opts, struct haul_device **out);

#ifdef __cplusplus
}
#endif
#endif
