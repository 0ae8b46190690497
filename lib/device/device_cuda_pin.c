/*
 * device_cuda_pin.c: host memory made known to the GPU, so that it copies without the driver's bounce
 * buffer.
 *
 * In pieces, because one registration of 512 GiB and more is refused by some drivers. A refusal is tried
 * again with smaller pieces; when even those are refused, all that was registered is given back, one
 * warning says what was needed and what to raise, and the memory is used as it is.
 */
#include <inttypes.h>
#include <stdio.h>
#include <sys/resource.h>

#include "cuda_host_alloc.h"
#include "device_cuda.h"
#include "haul/size.h"
#include "sys.h"

#define MOST_BYTES  (UINT64_C(64) << 30)
#define LEAST_BYTES (UINT64_C(64) << 20)

/* Not pinned is slower, not wrong; what else can be refused is an error. */
static int is_refusal(CUresult res)
{
    return res == CUDA_ERROR_OUT_OF_MEMORY || res == CUDA_ERROR_INVALID_VALUE ||
           res == CUDA_ERROR_NOT_SUPPORTED || res == CUDA_ERROR_OPERATING_SYSTEM ||
           res == CUDA_ERROR_NOT_PERMITTED;
}

/* Give back every piece of what was registered as start. Returns the first error, having tried all. */
static int unpin(struct cuda_device *dev, uint64_t start)
{
    struct cuda_range r;
    uint64_t at = start;
    int rc = 0;

    while (hl_cuda_ranges_find(&dev->mem.pinned, at, &r) && r.owner == start) {
        int one = HL_CU(&dev->drv, cuMemHostUnregister, (void *)(uintptr_t)r.start);

        (void)hl_cuda_ranges_remove(&dev->mem.pinned, r.start, &r);
        rc = rc < 0 ? rc : one;
        at = r.start + r.bytes;
    }
    return rc;
}

void hl_cuda_pinned_end(struct cuda_device *dev)
{
    while (dev->mem.pinned.nlive)
        (void)unpin(dev, dev->mem.pinned.live[0].owner);
}

static int pin_piece(struct cuda_device *dev, const struct cuda_range *r, CUresult *res)
{
    void *p = (void *)(uintptr_t)r->start;
    int rc;

    *res = dev->drv.cuMemHostRegister(p, r->bytes, CU_MEMHOSTREGISTER_PORTABLE);
    if (*res != CUDA_SUCCESS)
        return hl_cuda_result(&dev->drv, *res, "cuMemHostRegister of %" PRIu64 " bytes", r->bytes);
    rc = hl_cuda_ranges_add(&dev->mem.pinned, r);
    if (rc < 0)
        (void)dev->drv.cuMemHostUnregister(p);
    return rc;
}

/* All of it, or nothing. */
static int pin(struct cuda_device *dev, uint64_t start, uint64_t bytes, uint64_t piece,
               CUresult *res)
{
    uint64_t n;
    int rc;

    for (uint64_t done = 0; done < bytes; done += n) {
        n = bytes - done < piece ? bytes - done : piece;
        rc = pin_piece(dev, &(struct cuda_range){start + done, n, start}, res);
        if (rc < 0) {
            char text[HL_ERROR_TEXT_BYTES];

            snprintf(text, sizeof text, "%s", haul_last_error());
            (void)unpin(dev, start);
            return hl_fail_text(rc, text);
        }
    }
    return 0;
}

/* In the words of pin()'s refusal, which is this thread's last error. */
static void warn_pageable(struct cuda_device *dev, uint64_t bytes)
{
    char need[32], limit[32] = "unlimited";
    uint64_t memlock = UINT64_MAX;

    if (atomic_exchange(&dev->mem.warned, 1))
        return;
    if (hl_sys_rlimit(RLIMIT_MEMLOCK, &memlock) == 0 && memlock != UINT64_MAX)
        haul_format_size(memlock, limit, sizeof limit);
    hl_log(
        HAUL_LOG_WARN,
        "%s of host memory stay pageable, copies are slower and wait for the driver: %s. Allowed: "
        "RLIMIT_MEMLOCK %s, and the memory of the cgroup; raise them (ulimit -l unlimited; docker "
        "--ulimit memlock=-1) or lower the host budget",
        haul_format_size(bytes, need, sizeof need), haul_last_error(), limit);
}

static uint64_t smaller(uint64_t piece)
{
    return piece > LEAST_BYTES ? piece / 8 : 0;
}

static int register_in_context(struct cuda_device *dev, uint64_t start, uint64_t bytes)
{
    CUresult res = CUDA_SUCCESS;
    uint64_t piece = MOST_BYTES;
    int rc;

    while (piece / 8 >= bytes && piece > LEAST_BYTES)
        piece /= 8;
    for (; piece; piece = smaller(piece)) {
        rc = pin(dev, start, bytes, piece, &res);
        if (rc == 0 || !is_refusal(res))
            return rc;
    }
    warn_pageable(dev, bytes);
    return 0;
}

int hl_cuda_host_register(struct haul_device *base, void *ptr, uint64_t bytes)
{
    struct cuda_device *dev = cuda_of(base);
    int entered, rc;

    if (!ptr || !bytes)
        return hl_fail(-EINVAL, "host memory to register: %p, %" PRIu64 " bytes", ptr, bytes);
    entered = hl_cuda_enter(dev);
    if (entered < 0)
        return entered;
    rc = register_in_context(dev, (uintptr_t)ptr, bytes);
    hl_cuda_leave(dev, entered);
    return rc;
}

int hl_cuda_host_unregister(struct haul_device *base, void *ptr)
{
    struct cuda_device *dev = cuda_of(base);
    int entered = hl_cuda_enter(dev), rc = unpin(dev, (uintptr_t)ptr);

    hl_cuda_leave(dev, entered);
    return entered < 0 ? entered : rc;
}

int hl_cuda_host_alloc(struct haul_device *base, uint64_t bytes, void **out)
{
    struct cuda_device *dev = cuda_of(base);
    int entered = hl_cuda_enter(dev), rc;

    if (entered < 0)
        return entered;
    rc = HL_CU(&dev->drv, cuMemHostAlloc, out, bytes, CU_MEMHOSTALLOC_PORTABLE);
    hl_cuda_leave(dev, entered);
    return rc;
}

void hl_cuda_host_free(struct haul_device *base, void *ptr)
{
    struct cuda_device *dev = cuda_of(base);
    int entered = hl_cuda_enter(dev);

    (void)dev->drv.cuMemFreeHost(ptr);
    hl_cuda_leave(dev, entered);
}
