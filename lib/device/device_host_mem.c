/*
 * device_host_mem.c: the emulated device's memory: an exact cap, and the table of what is live.
 *
 * Ranges of 2 MiB and more are mappings of their own on huge pages: the first touch of a 4 KiB page
 * costs more than copying it. All pages are touched here, with 0xff.
 */
#include "device_host.h"
#include "sys.h"
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>

#define HUGE_BYTES  (UINT64_C(2) << 20)
#define PAGE_BYTES  UINT64_C(4096)
#define ALIGN_BYTES 256
#define MAX_BYTES   (UINT64_C(1) << 47) /* of user address space */

/* Index of the first live allocation that starts after p. Under the lock. */
static uint64_t first_after(const struct host_mem *mem, const char *p)
{
    uint64_t lo = 0, hi = mem->nlive;

    while (lo < hi) {
        uint64_t mid = lo + (hi - lo) / 2;

        if (mem->live[mid].start <= p)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

int hl_device_host_check(struct host_device *dev, const char *what, const void *p, uint64_t n,
                         uint64_t elem_bytes)
{
    struct host_mem *mem = &dev->mem;
    uint64_t bytes, i, off;
    int inside = 0;

    if (__builtin_mul_overflow(n, elem_bytes, &bytes))
        return hl_fail(-EINVAL, "%s: %" PRIu64 " elements are more than any memory", what, n);
    hl_spin_lock(&mem->lock);
    i = first_after(mem, p);
    if (i > 0) {
        const struct host_alloc *a = &mem->live[i - 1];

        off = (uint64_t)((const char *)p - a->start);
        inside = off <= a->bytes && bytes <= a->bytes - off;
    }
    hl_spin_unlock(&mem->lock);
    if (!inside)
        return hl_fail(
            -EINVAL, "%s: [%p, +%" PRIu64 " bytes) is not inside one live allocation of the device",
            what, p, bytes);
    return 0;
}

int hl_device_host_check_apart(const char *what, const void *a, uint64_t a_bytes, const void *b,
                               uint64_t b_bytes)
{
    uintptr_t x = (uintptr_t)a, y = (uintptr_t)b;

    if (x < y + b_bytes && y < x + a_bytes)
        return hl_fail(-EINVAL, "%s: [%p, +%" PRIu64 " bytes) and [%p, +%" PRIu64 " bytes) overlap",
                       what, a, a_bytes, b, b_bytes);
    return 0;
}

/* Promise bytes of the cap. */
static int grant(struct host_mem *mem, uint64_t bytes)
{
    uint64_t used;
    int fits;

    hl_spin_lock(&mem->lock);
    used = mem->used_bytes + mem->coming_bytes;
    fits = bytes <= mem->cap_bytes - used;
    if (fits)
        mem->coming_bytes += bytes;
    hl_spin_unlock(&mem->lock);
    if (!fits)
        return hl_fail(-ENOMEM,
                       "device memory: asked for %" PRIu64 " bytes, cap %" PRIu64 ", used %" PRIu64
                       ", short by %" PRIu64,
                       bytes, mem->cap_bytes, used, bytes - (mem->cap_bytes - used));
    return 0;
}

static void take_back_grant(struct host_mem *mem, uint64_t bytes)
{
    hl_spin_lock(&mem->lock);
    mem->coming_bytes -= bytes;
    hl_spin_unlock(&mem->lock);
}

/* The mapping holds a huge page more than needed, so that the range can start on one; what lies around
 * the range stays untouched, and its tail is on small pages, so nothing but the range is resident. */
static int map_huge(struct host_alloc *a)
{
    uint64_t small = (a->bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    uintptr_t at;
    int rc;

    a->map_bytes = small + HUGE_BYTES - PAGE_BYTES;
    rc = hl_sys_map(NULL, a->map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0,
                    &a->map);
    if (rc < 0)
        return rc;
    at = ((uintptr_t)a->map + HUGE_BYTES - 1) / HUGE_BYTES * HUGE_BYTES;
    a->start = (char *)a->map + (at - (uintptr_t)a->map);
    /* Advice: small pages do as well, just slower. */
    (void)hl_sys_madvise(a->start, a->bytes / HUGE_BYTES * HUGE_BYTES, MADV_HUGEPAGE);
    rc = hl_sys_madvise(a->start, small, MADV_POPULATE_WRITE);
    if (rc == -EINVAL) /* before Linux 5.14 */
        rc = 0;
    if (rc < 0)
        hl_sys_unmap(a->map, a->map_bytes);
    return rc;
}

static int get_pages(struct host_alloc *a)
{
    void *p;
    int rc;

    if (a->bytes >= HUGE_BYTES) {
        rc = map_huge(a);
    } else {
        rc = hl_sys_alloc_aligned(ALIGN_BYTES, a->bytes, &p);
        if (rc == 0)
            a->start = p;
    }
    if (rc == 0)
        memset(a->start, 0xff, a->bytes);
    return rc;
}

static void drop_pages(const struct host_alloc *a)
{
    if (a->map)
        hl_sys_unmap(a->map, a->map_bytes);
    else
        hl_sys_free(a->start);
}

/* 1 when the table had room. */
static int try_insert(struct host_mem *mem, const struct host_alloc *a)
{
    uint64_t i;
    int fits;

    hl_spin_lock(&mem->lock);
    fits = mem->nlive < mem->room;
    if (fits) {
        i = first_after(mem, a->start);
        memmove(&mem->live[i + 1], &mem->live[i], (mem->nlive - i) * sizeof *a);
        mem->live[i] = *a;
        mem->nlive++;
        mem->coming_bytes -= a->bytes;
        mem->used_bytes += a->bytes;
        if (mem->used_bytes > mem->peak_bytes)
            mem->peak_bytes = mem->used_bytes;
    }
    hl_spin_unlock(&mem->lock);
    return fits;
}

/* Twice the room; another thread may have been faster. */
static int grow(struct host_mem *mem)
{
    uint64_t room;
    void *spare;
    int rc;

    hl_spin_lock(&mem->lock);
    room = mem->room ? 2 * mem->room : 64;
    hl_spin_unlock(&mem->lock);
    rc = hl_sys_alloc_array(room, sizeof *mem->live, &spare);
    if (rc < 0)
        return rc;
    hl_spin_lock(&mem->lock);
    if (room > mem->room) {
        struct host_alloc *old = mem->live;

        if (mem->nlive)
            memcpy(spare, old, mem->nlive * sizeof *old);
        mem->live = spare;
        mem->room = room;
        spare = old;
    }
    hl_spin_unlock(&mem->lock);
    hl_sys_free(spare);
    return 0;
}

int hl_device_host_alloc(struct haul_device *dev, uint64_t bytes, void **out)
{
    struct host_mem *mem = &host_of(dev)->mem;
    struct host_alloc a = {.bytes = bytes};
    int rc;

    if (bytes == 0)
        return hl_fail(-EINVAL, "device memory: asked for 0 bytes");
    if (bytes > MAX_BYTES)
        return hl_fail(
            -ENOMEM, "device memory: asked for %" PRIu64 " bytes, more than can be mapped", bytes);
    rc = grant(mem, bytes);
    if (rc < 0)
        return rc;
    rc = get_pages(&a);
    if (rc < 0)
        goto take_back;
    while (!try_insert(mem, &a)) {
        rc = grow(mem);
        if (rc < 0)
            goto drop;
    }
    *out = a.start;
    return 0;

drop:
    drop_pages(&a);
take_back:
    take_back_grant(mem, bytes);
    return hl_fail(rc, "no host memory for %" PRIu64 " bytes of the emulated device", bytes);
}

void hl_device_host_free(struct haul_device *dev, void *ptr)
{
    struct host_mem *mem = &host_of(dev)->mem;
    struct host_alloc a = {.start = NULL};
    uint64_t i;

    hl_spin_lock(&mem->lock);
    i = first_after(mem, ptr);
    if (i > 0 && mem->live[i - 1].start == ptr) {
        a = mem->live[i - 1];
        memmove(&mem->live[i - 1], &mem->live[i], (mem->nlive - i) * sizeof a);
        mem->nlive--;
        mem->used_bytes -= a.bytes;
    }
    hl_spin_unlock(&mem->lock);
    if (a.start)
        drop_pages(&a);
    else
        hl_log(HAUL_LOG_WARN, "haul_device_free: %p is not the start of a live allocation", ptr);
}

int hl_device_host_mem_info(struct haul_device *dev, struct haul_device_mem *out)
{
    struct host_mem *mem = &host_of(dev)->mem;

    hl_spin_lock(&mem->lock);
    out->total_bytes = mem->cap_bytes;
    out->used_bytes = mem->used_bytes;
    out->peak_bytes = mem->peak_bytes;
    hl_spin_unlock(&mem->lock);
    return 0;
}

void hl_device_host_mem_end(struct host_mem *mem)
{
    for (uint64_t i = 0; i < mem->nlive; i++)
        drop_pages(&mem->live[i]);
    hl_sys_free(mem->live);
}
