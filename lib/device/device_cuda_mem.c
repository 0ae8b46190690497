/* device_cuda_mem.c: device memory: cap, live allocations, and whether a range is device memory. */
#include <inttypes.h>
#include <string.h>

#include "device_cuda.h"
#include "sys.h"

/* ---- sorted ranges ---- */

/* Under lock: how many ranges begin at or before the address. */
static uint64_t first_after(const struct cuda_ranges *r, uint64_t at)
{
    uint64_t lo = 0, hi = r->nlive;

    while (lo < hi) {
        uint64_t mid = lo + (hi - lo) / 2;

        if (r->live[mid].start <= at)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static int try_insert(struct cuda_ranges *r, const struct cuda_range *range)
{
    int fits;

    hl_spin_lock(&r->lock);
    fits = r->nlive < r->room;
    if (fits) {
        uint64_t i = first_after(r, range->start);

        memmove(&r->live[i + 1], &r->live[i], (r->nlive - i) * sizeof *r->live);
        r->live[i] = *range;
        r->nlive++;
    }
    hl_spin_unlock(&r->lock);
    return fits;
}

/* Twice the room; another thread may have been faster. */
static int grow(struct cuda_ranges *r)
{
    uint64_t room;
    void *spare;
    int rc;

    hl_spin_lock(&r->lock);
    room = r->room ? 2 * r->room : 64;
    hl_spin_unlock(&r->lock);
    rc = hl_sys_alloc_array(room, sizeof *r->live, &spare);
    if (rc < 0)
        return rc;
    hl_spin_lock(&r->lock);
    if (room > r->room) {
        struct cuda_range *old = r->live;

        if (r->nlive)
            memcpy(spare, old, r->nlive * sizeof *old);
        r->live = spare;
        r->room = room;
        spare = old;
    }
    hl_spin_unlock(&r->lock);
    hl_sys_free(spare);
    return 0;
}

int hl_cuda_ranges_add(struct cuda_ranges *r, const struct cuda_range *range)
{
    int rc = 0;

    while (rc == 0 && !try_insert(r, range))
        rc = grow(r);
    return rc;
}

int hl_cuda_ranges_remove(struct cuda_ranges *r, uint64_t start, struct cuda_range *out)
{
    uint64_t i;
    int found;

    hl_spin_lock(&r->lock);
    i = first_after(r, start);
    found = i > 0 && r->live[i - 1].start == start;
    if (found) {
        *out = r->live[i - 1];
        memmove(&r->live[i - 1], &r->live[i], (r->nlive - i) * sizeof *r->live);
        r->nlive--;
    }
    hl_spin_unlock(&r->lock);
    return found;
}

int hl_cuda_ranges_find(struct cuda_ranges *r, uint64_t at, struct cuda_range *out)
{
    uint64_t i;
    int found;

    hl_spin_lock(&r->lock);
    i = first_after(r, at);
    found = i > 0 && at - r->live[i - 1].start < r->live[i - 1].bytes;
    if (found)
        *out = r->live[i - 1];
    hl_spin_unlock(&r->lock);
    return found;
}

/* ---- allocations ---- */

/* Count bytes that are about to be allocated. */
static int grant(struct cuda_mem *mem, uint64_t bytes)
{
    uint64_t used;
    int fits;

    hl_spin_lock(&mem->device.lock);
    used = mem->used_bytes;
    fits = bytes <= mem->cap_bytes - used;
    if (fits)
        mem->used_bytes += bytes;
    hl_spin_unlock(&mem->device.lock);
    if (!fits)
        return hl_fail(-ENOMEM,
                       "device memory: asked for %" PRIu64 " bytes, cap %" PRIu64 ", used %" PRIu64
                       ", short by %" PRIu64,
                       bytes, mem->cap_bytes, used, bytes - (mem->cap_bytes - used));
    return 0;
}

static void take_back(struct cuda_mem *mem, uint64_t bytes)
{
    hl_spin_lock(&mem->device.lock);
    mem->used_bytes -= bytes;
    hl_spin_unlock(&mem->device.lock);
}

static void note_peak(struct cuda_mem *mem)
{
    hl_spin_lock(&mem->device.lock);
    if (mem->used_bytes > mem->peak_bytes)
        mem->peak_bytes = mem->used_bytes;
    hl_spin_unlock(&mem->device.lock);
}

static int get_memory(struct cuda_device *dev, uint64_t bytes, CUdeviceptr *out)
{
    CUresult res = dev->drv.cuMemAlloc(out, bytes);
    size_t free_bytes = 0, total = 0;

    if (res == CUDA_ERROR_OUT_OF_MEMORY &&
        dev->drv.cuMemGetInfo(&free_bytes, &total) == CUDA_SUCCESS)
        return hl_fail(-ENOMEM,
                       "device memory: asked for %" PRIu64 " bytes, %s has %zu free of %zu "
                       "(other processes count too)",
                       bytes, dev->name, free_bytes, total);
    return hl_cuda_result(&dev->drv, res, "cuMemAlloc of %" PRIu64 " bytes", bytes);
}

int hl_cuda_alloc(struct haul_device *base, uint64_t bytes, void **out)
{
    struct cuda_device *dev = cuda_of(base);
    CUdeviceptr p = 0;
    int rc, entered;

    if (bytes == 0)
        return hl_fail(-EINVAL, "device memory: asked for 0 bytes");
    if ((rc = grant(&dev->mem, bytes)) < 0)
        return rc;
    entered = hl_cuda_enter(dev);
    if (entered < 0) {
        rc = entered;
        goto take_back;
    }
    if ((rc = get_memory(dev, bytes, &p)) < 0)
        goto leave;
    if ((rc = hl_cuda_ranges_add(&dev->mem.device, &(struct cuda_range){p, bytes, p})) < 0)
        goto give_back;
    hl_cuda_leave(dev, entered);
    note_peak(&dev->mem);
    *out = (void *)(uintptr_t)p;
    return 0;

give_back:
    (void)dev->drv.cuMemFree(p);
leave:
    hl_cuda_leave(dev, entered);
take_back:
    take_back(&dev->mem, bytes);
    return rc;
}

void hl_cuda_free(struct haul_device *base, void *ptr)
{
    struct cuda_device *dev = cuda_of(base);
    struct cuda_range a;
    int entered, rc;

    if (!hl_cuda_ranges_remove(&dev->mem.device, (uintptr_t)ptr, &a)) {
        hl_log(HAUL_LOG_WARN, "haul_device_free: %p is not the start of a live allocation", ptr);
        return;
    }
    take_back(&dev->mem, a.bytes);
    entered = hl_cuda_enter(dev);
    rc = HL_CU(&dev->drv, cuMemFree,
               a.start); /* whatever enter said: what is freed is not to leak */
    hl_cuda_leave(dev, entered);
    if (rc < 0)
        hl_log(HAUL_LOG_WARN, "device memory was not freed: %s", haul_last_error());
}

int hl_cuda_mem_info(struct haul_device *base, struct haul_device_mem *out)
{
    struct cuda_device *dev = cuda_of(base);
    size_t free_bytes = 0, total = 0;
    int entered = hl_cuda_enter(dev), rc;

    if (entered < 0)
        return entered;
    rc = HL_CU(&dev->drv, cuMemGetInfo, &free_bytes, &total);
    hl_cuda_leave(dev, entered);
    if (rc < 0)
        return rc;
    hl_spin_lock(&dev->mem.device.lock);
    out->used_bytes = dev->mem.used_bytes;
    out->peak_bytes = dev->mem.peak_bytes;
    hl_spin_unlock(&dev->mem.device.lock);
    out->total_bytes = out->used_bytes + free_bytes;
    if (out->total_bytes > dev->mem.cap_bytes)
        out->total_bytes = dev->mem.cap_bytes;
    return 0;
}

uint64_t hl_cuda_mem_end(struct haul_device *base, uint64_t *bytes)
{
    struct cuda_device *dev = cuda_of(base);
    struct cuda_ranges *r = &dev->mem.device;
    uint64_t n = r->nlive;

    *bytes = dev->mem.used_bytes;
    for (; r->nlive; r->nlive--)
        (void)dev->drv.cuMemFree(r->live[r->nlive - 1].start);
    return n;
}

/* ---- checks ---- */

/* Memory that the trainer got from CUDA by itself: 1; 0: it is none; negative: the driver fails. */
static int is_foreign_device(struct cuda_device *dev, uint64_t at)
{
    unsigned type = 0;
    int entered = hl_cuda_enter(dev), rc;
    CUresult res;

    if (entered < 0)
        return entered;
    res = dev->drv.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)at);
    hl_cuda_leave(dev, entered);
    if (res == CUDA_ERROR_INVALID_VALUE) /* an address that CUDA does not know */
        return 0;
    rc = hl_cuda_result(&dev->drv, res, "cuPointerGetAttribute");
    return rc < 0 ? rc : type == CU_MEMORYTYPE_DEVICE;
}

/* As above. */
static int is_device(struct cuda_device *dev, uint64_t at, uint64_t bytes)
{
    struct cuda_range r;
    int rc;

    if (hl_cuda_ranges_find(&dev->mem.device, at, &r))
        return bytes <= r.bytes - (at - r.start);
    if (!bytes || at + (bytes - 1) < at)
        return 0;
    rc = is_foreign_device(dev, at);
    return rc <= 0 ? rc : is_foreign_device(dev, at + (bytes - 1));
}

int hl_cuda_check_range(struct cuda_device *dev, const char *what, const void *p, uint64_t n,
                        uint64_t elem_bytes)
{
    uint64_t bytes, at = (uintptr_t)p;
    int rc;

    if (__builtin_mul_overflow(n, elem_bytes, &bytes))
        return hl_fail(-EINVAL, "%s: %" PRIu64 " elements are more than any memory", what, n);
    if (elem_bytes && at % elem_bytes)
        return hl_fail(-EINVAL, "%s: %p is not a multiple of the %" PRIu64 " bytes of an element",
                       what, p, elem_bytes);
    rc = is_device(dev, at, bytes);
    if (rc < 0)
        return rc;
    if (!rc)
        return hl_fail(
            -EINVAL, "%s: [%p, +%" PRIu64 " bytes) is not inside one live allocation of the device",
            what, p, bytes);
    return 0;
}

int hl_cuda_check_apart(const char *what, const void *a, uint64_t a_bytes, const void *b,
                        uint64_t b_bytes)
{
    uintptr_t x = (uintptr_t)a, y = (uintptr_t)b;

    if (x < y + b_bytes && y < x + a_bytes)
        return hl_fail(-EINVAL, "%s: [%p, +%" PRIu64 " bytes) and [%p, +%" PRIu64 " bytes) overlap",
                       what, a, a_bytes, b, b_bytes);
    return 0;
}
