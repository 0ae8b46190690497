/* segment.c: where a segment lies and what pages it asks for. */
#include "segment.h"

#include <inttypes.h>
#include <sys/mman.h>

#include "fail.h"
#include "sys.h"

#ifndef MFD_HUGE_2MB
#define MFD_HUGE_2MB (21U << 26)
#endif
#ifndef MAP_HUGE_2MB
#define MAP_HUGE_2MB (21 << 26)
#endif

#define MAX_SEGMENT_BYTES ((uint64_t)1 << 47)
/* Each try loses only when another thread maps into the range in between. */
#define MAX_TRIES 16

static uint64_t round_up(uint64_t n, uint64_t to)
{
    return (n + to - 1) / to * to;
}

static int wants_hugetlb(enum haul_pages pages)
{
    return pages == HAUL_PAGES_AUTO || pages == HAUL_PAGES_HUGETLB;
}

/* A 2 MiB aligned range that was free a moment ago, with a page to spare on either side, so that the
 * kernel never merges two segments into one mapping (and smaps counts them apart). The range is let go
 * and asked for again by its address: mapping onto a held reservation would need MAP_FIXED, and a
 * hugetlb MAP_FIXED that fails may leave a hole that another thread's mmap falls into. */
static int find_room(uint64_t bytes, char **base)
{
    size_t room = bytes + HL_HUGE_BYTES + 2 * HL_PAGE_BYTES;
    void *p = NULL;
    int rc =
        hl_sys_map(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0, &p);

    if (rc < 0)
        return hl_fail(rc, "no address space for a segment of %" PRIu64 " bytes: %s", bytes,
                       haul_strerror(rc));
    hl_sys_unmap(p, room);
    *base = (char *)round_up((uint64_t)p + HL_PAGE_BYTES, HL_HUGE_BYTES);
    return 0;
}

/* -EEXIST when the range has been taken meanwhile: then the kernel heeds the address no longer. */
static int map_at(char *base, uint64_t bytes, int flags, int fd)
{
    void *p = NULL;
    int rc = hl_sys_map(base, bytes, PROT_READ | PROT_WRITE, flags, fd, 0, &p);

    if (rc < 0 || p == base)
        return rc;
    hl_sys_unmap(p, bytes);
    return hl_fail(-EEXIST, "the place of a pool segment was taken by another mapping");
}

/* Private memory at base: hugetlb for the whole 2 MiB pages where wanted and to be had. */
static int map_private(char *base, enum haul_pages pages, struct hl_segment *seg)
{
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS;
    uint64_t whole = seg->bytes / HL_HUGE_BYTES * HL_HUGE_BYTES;
    int rc = 0;

    if (!wants_hugetlb(pages))
        whole = 0;
    if (whole)
        rc = map_at(base, whole, flags | MAP_HUGETLB | MAP_HUGE_2MB, -1);
    if (rc == -EEXIST || (rc < 0 && pages == HAUL_PAGES_HUGETLB))
        return rc;
    if (rc < 0)
        whole = 0;
    if (whole < seg->bytes) {
        rc = map_at(base + whole, seg->bytes - whole, flags, -1);
        if (rc < 0 && whole)
            hl_sys_unmap(base, whole);
        if (rc < 0)
            return rc;
    }
    seg->base = base;
    seg->hugetlb_bytes = whole;
    return 0;
}

static int map_shared(char *base, struct hl_segment *seg)
{
    int rc = map_at(base, seg->bytes, MAP_SHARED, seg->fd);

    if (rc == 0)
        seg->base = base;
    return rc;
}

static int place(enum haul_pages pages, struct hl_segment *seg)
{
    char *base = NULL;
    int rc = -EEXIST;

    for (int i = 0; i < MAX_TRIES && rc == -EEXIST; i++) {
        rc = find_room(seg->bytes, &base);
        if (rc == 0)
            rc = seg->fd < 0 ? map_private(base, pages, seg) : map_shared(base, seg);
    }
    return rc;
}

/* A memfd of seg->bytes, mapped. */
static int make_shared(unsigned flags, struct hl_segment *seg)
{
    int rc = hl_sys_memfd("haul pool", flags);

    if (rc < 0)
        return rc;
    seg->fd = rc;
    rc = hl_sys_ftruncate(seg->fd, (off_t)seg->bytes);
    if (rc == 0)
        rc = place(HAUL_PAGES_SMALL, seg);
    if (rc < 0) {
        hl_sys_close(seg->fd);
        seg->fd = -1;
        return rc;
    }
    seg->hugetlb_bytes = flags & MFD_HUGETLB ? seg->bytes : 0;
    return 0;
}

/* A hugetlb memfd has no tail of small pages, so only whole 2 MiB sizes can have one exactly. */
static int open_shared(enum haul_pages pages, struct hl_segment *seg)
{
    int whole = seg->bytes % HL_HUGE_BYTES == 0, rc = -ENOMEM;

    if (pages == HAUL_PAGES_HUGETLB && !whole)
        return hl_fail(-EINVAL,
                       "a shared segment on hugetlb pages must be whole 2 MiB pages, not %" PRIu64
                       " bytes",
                       seg->bytes);
    if (wants_hugetlb(pages) && whole)
        rc = make_shared(MFD_HUGETLB | MFD_HUGE_2MB, seg);
    if (rc < 0 && pages != HAUL_PAGES_HUGETLB)
        rc = make_shared(0, seg);
    return rc;
}

static int open_handed_in(int fd, struct hl_segment *seg)
{
    struct stat st;
    int rc = hl_sys_fstat(fd, &st);

    if (rc < 0)
        return rc;
    if ((uint64_t)st.st_size < seg->bytes)
        return hl_fail(-EINVAL, "shared segment: fd %d holds %lld bytes, %" PRIu64 " are asked for",
                       fd, (long long)st.st_size, seg->bytes);
    seg->fd = fd;
    seg->made = 0;
    if ((uint64_t)st.st_blksize == HL_HUGE_BYTES) /* only hugetlbfs reports its page so */
        seg->hugetlb_bytes = seg->bytes;
    return place(HAUL_PAGES_SMALL, seg);
}

/* Asking is all that can be done: a kernel without transparent huge pages answers -EINVAL. */
static int advise(const struct hl_segment *seg, enum haul_pages pages)
{
    int rc;

    if (seg->hugetlb_bytes == seg->bytes)
        return 0;
    rc = hl_sys_madvise(seg->base + seg->hugetlb_bytes, seg->bytes - seg->hugetlb_bytes,
                        pages == HAUL_PAGES_SMALL ? MADV_NOHUGEPAGE : MADV_HUGEPAGE);
    return rc == -EINVAL ? 0 : rc;
}

int hl_segment_open(const struct haul_pool_segment *want, enum haul_pages pages,
                    struct hl_segment *out)
{
    struct hl_segment seg = {.fd = -1, .made = 1};
    int rc;

    if (!want->bytes || want->bytes > MAX_SEGMENT_BYTES)
        return hl_fail(-EINVAL, "a segment of %" PRIu64 " bytes: it must be 1 to 2^47 bytes",
                       want->bytes);
    seg.bytes = round_up(want->bytes, HL_PAGE_BYTES);
    if (pages == HAUL_PAGES_HUGETLB && !want->shared && seg.bytes < HL_HUGE_BYTES)
        return hl_fail(-ENOMEM,
                       "a segment of %" PRIu64 " bytes is less than one 2 MiB page, so none of it "
                       "can be on hugetlb pages. Ask for 2 MiB, or for HAUL_PAGES_AUTO",
                       want->bytes);
    if (!want->shared)
        rc = place(pages, &seg);
    else if (want->fd < 0)
        rc = open_shared(pages, &seg);
    else
        rc = open_handed_in(want->fd, &seg);
    if (rc < 0 && pages == HAUL_PAGES_HUGETLB && rc != -EINVAL)
        return hl_fail(rc,
                       "no hugetlb pages for %" PRIu64 " bytes: %s. Reserve them with "
                       "vm.nr_hugepages, or do without (HAUL_PAGES_AUTO)",
                       seg.bytes, haul_strerror(rc));
    if (rc < 0)
        return rc;
    rc = advise(&seg, pages);
    if (rc < 0) {
        hl_segment_close(&seg);
        return rc;
    }
    *out = seg;
    return 0;
}

void hl_segment_close(struct hl_segment *seg)
{
    uint64_t first = seg->fd < 0 ? seg->hugetlb_bytes : 0; /* hugetlb and tail are two mappings */

    if (first)
        hl_sys_unmap(seg->base, first);
    if (first < seg->bytes)
        hl_sys_unmap(seg->base + first, seg->bytes - first);
    if (seg->made)
        hl_sys_close(seg->fd);
}
