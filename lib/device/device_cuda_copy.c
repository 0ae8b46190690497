/*
 * device_cuda_copy.c: copies, host functions, and how long the links worked.
 *
 * A copy is cut where a registration of host memory ends, since no copy may straddle two, and into pieces
 * of 16 MiB (a third of a millisecond on PCIe 5), so that the copy engine can turn to another stream
 * between them. Around it go two events from a ring. When the ring's oldest pair is still under way the
 * copy is not timed; nobody waits.
 */
#include <inttypes.h>

#include "cuda_driver.h"
#include "device_cuda.h"

#define PIECE_BYTES (UINT64_C(16) << 20)

enum { TIMING_FREE = 0, TIMING_TAKEN, TIMING_FLYING };

/* ---- the links' time ---- */

/* In the context. */
int hl_cuda_lane_open(struct cuda_device *dev, struct cuda_lane *lane)
{
    int rc = 0;

    for (int i = 0; rc == 0 && i < CUDA_TIMINGS; i++) {
        struct cuda_timing *t = &lane->timing[i];

        rc = HL_CU(&dev->drv, cuEventCreate, &t->begin, CU_EVENT_DEFAULT);
        if (rc == 0)
            rc = HL_CU(&dev->drv, cuEventCreate, &t->end, CU_EVENT_DEFAULT);
    }
    return rc;
}

void hl_cuda_lane_close(struct cuda_device *dev, struct cuda_lane *lane)
{
    for (int i = 0; i < CUDA_TIMINGS; i++) {
        if (lane->timing[i].begin)
            (void)dev->drv.cuEventDestroy(lane->timing[i].begin);
        if (lane->timing[i].end)
            (void)dev->drv.cuEventDestroy(lane->timing[i].end);
    }
}

/* A flying pair that is done gives its time to the lane and becomes free. */
static int harvest(struct cuda_device *dev, struct cuda_lane *lane, struct cuda_timing *t)
{
    int flying = TIMING_FLYING, rc = 0;
    float ms = 0;
    CUresult res;

    if (!atomic_compare_exchange_strong(&t->state, &flying, TIMING_TAKEN))
        return 0;
    res = dev->drv.cuEventQuery(t->end);
    if (res == CUDA_ERROR_NOT_READY) {
        atomic_store(&t->state, TIMING_FLYING);
        return 0;
    }
    rc = hl_cuda_result(&dev->drv, res, "cuEventQuery");
    if (rc == 0)
        rc = HL_CU(&dev->drv, cuEventElapsedTime, &ms, t->begin, t->end);
    if (rc == 0 && ms > 0)
        atomic_fetch_add(&lane->busy_ns, (uint64_t)((double)ms * 1e6));
    atomic_store(&t->state, TIMING_FREE);
    return rc;
}

/* Begin timing what follows on the stream; *out is NULL when the ring is full. */
static int timing_begin(struct cuda_device *dev, struct cuda_lane *lane, CUstream stream,
                        struct cuda_timing **out)
{
    struct cuda_timing *t = &lane->timing[atomic_fetch_add(&lane->cursor, 1) % CUDA_TIMINGS];
    int unused = TIMING_FREE, rc = harvest(dev, lane, t);

    *out = NULL;
    if (rc < 0 || !atomic_compare_exchange_strong(&t->state, &unused, TIMING_TAKEN))
        return rc;
    rc = HL_CU(&dev->drv, cuEventRecord, t->begin, stream);
    if (rc == 0)
        *out = t;
    else
        atomic_store(&t->state, TIMING_FREE);
    return rc;
}

static int timing_end(struct cuda_device *dev, struct cuda_timing *t, CUstream stream, int rc)
{
    if (!t)
        return rc;
    if (rc == 0)
        rc = HL_CU(&dev->drv, cuEventRecord, t->end, stream);
    atomic_store(&t->state, rc == 0 ? TIMING_FLYING : TIMING_FREE);
    return rc;
}

void hl_cuda_lane_stats(struct haul_device *base, enum hl_device_lane lane,
                        struct hl_device_lane_stats *out)
{
    struct cuda_device *dev = cuda_of(base);
    struct cuda_lane *l = lane == HL_DEVICE_H2D ? &dev->h2d : &dev->d2h;
    int entered;

    /* What the trainer's kernels and haul's take is not seen from here. */
    *out = (struct hl_device_lane_stats){0, 0};
    if (lane != HL_DEVICE_H2D && lane != HL_DEVICE_D2H)
        return;
    entered = hl_cuda_enter(dev);
    for (int i = 0; entered >= 0 && i < CUDA_TIMINGS; i++)
        (void)harvest(dev, l, &l->timing[i]);
    hl_cuda_leave(dev, entered);
    out->busy_ns = atomic_load(&l->busy_ns);
    out->bytes = atomic_load(&l->bytes);
}

/* ---- copies ---- */

/* How much of [host, host + bytes) one call of the driver may copy. */
static uint64_t piece_of(struct cuda_device *dev, uint64_t host, uint64_t bytes)
{
    uint64_t n = bytes < PIECE_BYTES ? bytes : PIECE_BYTES;
    struct cuda_range r;

    if (hl_cuda_ranges_find(&dev->mem.pinned, host, &r) && n > r.bytes - (host - r.start))
        n = r.bytes - (host - r.start);
    return n;
}

static int copy_pieces(struct cuda_device *dev, int up, uint64_t device, uint64_t host,
                       uint64_t bytes, CUstream stream)
{
    uint64_t n;
    int rc = 0;

    for (uint64_t done = 0; rc == 0 && done < bytes; done += n) {
        void *at = (void *)(uintptr_t)(host + done);

        n = piece_of(dev, host + done, bytes - done);
        rc = up ? HL_CU(&dev->drv, cuMemcpyHtoDAsync, device + done, at, n, stream)
                : HL_CU(&dev->drv, cuMemcpyDtoHAsync, at, device + done, n, stream);
    }
    return rc;
}

static int copy(struct cuda_device *dev, int up, const void *device, const void *host,
                uint64_t bytes, CUstream stream)
{
    struct cuda_lane *lane = up ? &dev->h2d : &dev->d2h;
    struct cuda_timing *timing;
    int entered, rc;

    if (bytes == 0)
        return 0;
    if (!device || !host)
        return hl_fail(-EINVAL, "copy between device %p and host %p", device, host);
    if ((rc = hl_cuda_check_range(dev, up ? "copy to" : "copy from", device, bytes, 1)) < 0)
        return rc;
    entered = hl_cuda_enter(dev);
    if (entered < 0)
        return entered;
    rc = timing_begin(dev, lane, stream, &timing);
    if (rc == 0)
        rc = timing_end(dev, timing, stream,
                        copy_pieces(dev, up, (uintptr_t)device, (uintptr_t)host, bytes, stream));
    hl_cuda_leave(dev, entered);
    if (rc == 0)
        atomic_fetch_add(&lane->bytes, bytes);
    return rc;
}

int hl_cuda_copy_h2d(struct haul_device *base, void *dst, const void *src, uint64_t bytes,
                     void *stream)
{
    return copy(cuda_of(base), 1, dst, src, bytes, stream);
}

int hl_cuda_copy_d2h(struct haul_device *base, void *dst, const void *src, uint64_t bytes,
                     void *stream)
{
    return copy(cuda_of(base), 0, src, dst, bytes, stream);
}

int hl_cuda_copy_d2d(struct haul_device *base, void *dst, const void *src, uint64_t bytes,
                     void *stream)
{
    struct cuda_device *dev = cuda_of(base);
    int entered, rc;

    if (bytes == 0)
        return 0;
    if ((rc = hl_cuda_check_range(dev, "copy to", dst, bytes, 1)) < 0 ||
        (rc = hl_cuda_check_range(dev, "copy from", src, bytes, 1)) < 0 ||
        (rc = hl_cuda_check_apart("copy", dst, bytes, src, bytes)) < 0)
        return rc;
    entered = hl_cuda_enter(dev);
    if (entered < 0)
        return entered;
    rc = HL_CU(&dev->drv, cuMemcpyDtoDAsync, (uintptr_t)dst, (uintptr_t)src, bytes, stream);
    hl_cuda_leave(dev, entered);
    return rc;
}

int hl_cuda_launch(struct haul_device *base, void *stream, haul_device_fn fn, void *user)
{
    struct cuda_device *dev = cuda_of(base);
    int entered = hl_cuda_enter(dev), rc;

    if (entered < 0)
        return entered;
    rc = HL_CU(&dev->drv, cuLaunchHostFunc, stream, fn, user);
    hl_cuda_leave(dev, entered);
    return rc;
}
