/* pool.c: segments mapped, bound and touched at open; regions cut from them until they are full. */
#include "haul/pool.h"

#include <inttypes.h>
#include <string.h>
#include <sys/resource.h>

#include "fail.h"
#include "hostmem.h"
#include "segment.h"
#include "smaps.h"
#include "sys.h"
#include "topo.h"
#include "touch.h"

#define NAME_BYTES 32

struct region {
    char name[NAME_BYTES];
    char *start;
    uint64_t bytes; /* as asked for */
};

struct haul_pool {
    struct hl_segment *segments;
    uint32_t nsegments;
    struct region *regions;
    uint32_t nregions, max_regions; /* grows as needed */
    int32_t bound_node;
};

void haul_pool_opts_init(struct haul_pool_opts *opts)
{
    *opts = (struct haul_pool_opts){.struct_size = sizeof *opts, .numa_node = -1};
}

static int check_opts(const struct haul_pool_opts *opts)
{
    if (!opts)
        return hl_fail(-EINVAL, "a pool needs options: they name its segments");
    if (opts->struct_size != sizeof *opts)
        return hl_fail(HAUL_E_ABI,
                       "haul_pool_opts of %zu bytes, this library knows %zu: call "
                       "haul_pool_opts_init() first",
                       opts->struct_size, sizeof *opts);
    if (!opts->segments || !opts->nsegments)
        return hl_fail(-EINVAL, "a pool needs at least one segment");
    if ((unsigned)opts->pages > HAUL_PAGES_SMALL)
        return hl_fail(-EINVAL, "unknown kind of pages %d", (int)opts->pages);
    return 0;
}

static void close_segments(struct haul_pool *pool)
{
    while (pool->nsegments)
        hl_segment_close(&pool->segments[--pool->nsegments]);
}

static int open_segments(struct haul_pool *pool, const struct haul_pool_opts *opts)
{
    for (uint32_t i = 0; i < opts->nsegments; i++) {
        int rc = hl_segment_open(&opts->segments[i], opts->pages, &pool->segments[i]);

        if (rc < 0) {
            close_segments(pool);
            return rc;
        }
        pool->nsegments++;
    }
    return 0;
}

/* Touching past a cgroup's limit does not fail, it kills: look first. */
static int check_headroom(const struct haul_pool *pool)
{
    uint64_t need = 0;
    struct hl_hostmem mem;
    int rc = hl_hostmem_read(NULL, NULL, &mem);

    if (rc < 0)
        return rc;
    for (uint32_t i = 0; i < pool->nsegments; i++)
        if (pool->segments[i].made)
            need += pool->segments[i].bytes - pool->segments[i].hugetlb_bytes;
    if (need > mem.meminfo_bytes || need > mem.cgroup_bytes)
        return hl_fail(-ENOMEM,
                       "a pool of %" PRIu64 " bytes does not fit: %" PRIu64
                       " are available, bound by %s. Ask for less, or raise the limit",
                       need,
                       mem.cgroup_bytes < mem.meminfo_bytes ? mem.cgroup_bytes : mem.meminfo_bytes,
                       mem.cgroup_bytes < mem.meminfo_bytes ? "the memory cgroup"
                                                            : "the machine's free memory");
    return 0;
}

static int bind_segments(struct haul_pool *pool, const struct hl_topo *topo, int node)
{
    if ((unsigned)node >= hl_topo_nodes(topo))
        return hl_fail(-EINVAL, "there is no NUMA node %d: the machine has %u", node,
                       hl_topo_nodes(topo));
    for (uint32_t i = 0; i < pool->nsegments; i++) {
        struct hl_segment *seg = &pool->segments[i];
        int rc = hl_topo_bind(topo, seg->base, seg->bytes, node);

        if (rc == -ENOMEM)
            return rc;
        if (rc < 0) {
            hl_log(HAUL_LOG_WARN,
                   "the pool is not bound to NUMA node %d: %s (in a container: allow mbind, e.g. "
                   "--cap-add SYS_NICE)",
                   node, haul_strerror(rc));
            return 0;
        }
    }
    pool->bound_node = node;
    return 0;
}

/* One entry per segment; the caller frees *out. */
static int read_huge(const struct haul_pool *pool, struct hl_huge **out)
{
    struct hl_range *ranges;
    void *p = NULL, *huge = NULL;
    int rc = hl_sys_alloc_array(pool->nsegments, sizeof *ranges, &p);

    if (rc < 0)
        return rc;
    ranges = p;
    rc = hl_sys_alloc_array(pool->nsegments, sizeof(struct hl_huge), &huge);
    if (rc < 0)
        goto free_ranges;
    for (uint32_t i = 0; i < pool->nsegments; i++)
        ranges[i] = (struct hl_range){(uint64_t)pool->segments[i].base, pool->segments[i].bytes};
    rc = hl_smaps_huge(NULL, ranges, pool->nsegments, huge);
    if (rc < 0)
        hl_sys_free(huge);
    else
        *out = huge;
free_ranges:
    hl_sys_free(ranges);
    return rc;
}

/* What transparent huge pages may hold of a segment. */
static uint64_t rest_bytes(const struct hl_segment *seg)
{
    return seg->bytes - seg->hugetlb_bytes;
}

/* Where none has room for a huge page there is nothing to look for: the kernel's answer takes as long as the
 * process is large. */
static int any_holds_huge(const struct haul_pool *pool)
{
    for (uint32_t i = 0; i < pool->nsegments; i++)
        if (rest_bytes(&pool->segments[i]) >= HL_HUGE_BYTES)
            return 1;
    return 0;
}

/* The kernel may give small pages where huge ones were asked for, when memory is fragmented or for
 * shared memory by its settings; MADV_COLLAPSE asks again, and does not heed those settings. */
static int collapse_segments(struct haul_pool *pool, unsigned nthreads)
{
    struct hl_huge *huge = NULL;
    int rc = any_holds_huge(pool) ? read_huge(pool, &huge) : 0;

    for (uint32_t i = 0; i < pool->nsegments && huge && rc == 0; i++) {
        struct hl_segment *seg = &pool->segments[i];
        uint64_t rest = rest_bytes(seg);

        if (huge[i].thp_bytes < rest / HL_HUGE_BYTES * HL_HUGE_BYTES / 2)
            rc = hl_collapse(seg->base + seg->hugetlb_bytes, rest, nthreads);
    }
    hl_sys_free(huge);
    return rc;
}

static int touch_segments(struct haul_pool *pool, const struct haul_pool_opts *opts,
                          unsigned nthreads)
{
    int rc = 0;

    for (uint32_t i = 0; i < pool->nsegments && rc == 0; i++)
        rc = hl_touch(pool->segments[i].base, pool->segments[i].bytes, nthreads);
    if (rc == 0 && (opts->pages == HAUL_PAGES_AUTO || opts->pages == HAUL_PAGES_THP))
        rc = collapse_segments(pool, nthreads);
    return rc;
}

static int lock_segments(const struct haul_pool *pool)
{
    uint64_t need = 0, allowed = 0;
    int rc = 0;

    for (uint32_t i = 0; i < pool->nsegments; i++)
        need += pool->segments[i].bytes;
    for (uint32_t i = 0; i < pool->nsegments && rc == 0; i++)
        rc = hl_sys_mlock(pool->segments[i].base, pool->segments[i].bytes);
    if (rc == 0)
        return 0;
    if (hl_sys_rlimit(RLIMIT_MEMLOCK, &allowed) < 0)
        allowed = 0;
    if (rc == -EPERM || rc == -EAGAIN)
        rc = -ENOMEM; /* the kernel's three answers mean one thing here */
    return hl_fail(rc,
                   "cannot lock %" PRIu64 " bytes: RLIMIT_MEMLOCK allows %" PRIu64
                   ". Raise it with 'ulimit -l unlimited' or memlock in limits.conf; in a "
                   "container with --ulimit memlock=-1",
                   need, allowed);
}

/* Everything after the mappings exist. */
static int make_resident(struct haul_pool *pool, const struct haul_pool_opts *opts)
{
    unsigned nthreads = opts->touch_threads;
    struct hl_topo *topo = NULL;
    int rc = check_headroom(pool);

    if (rc == 0 && (!nthreads || opts->numa_node >= 0))
        rc = hl_topo_open(NULL, &topo);
    if (rc == 0 && opts->numa_node >= 0)
        rc = bind_segments(pool, topo, opts->numa_node);
    if (rc == 0 && !nthreads)
        nthreads = hl_topo_team(topo, 1);
    hl_topo_close(topo);
    if (rc == 0)
        rc = touch_segments(pool, opts, nthreads);
    if (rc == 0 && opts->lock)
        rc = lock_segments(pool);
    return rc;
}

int haul_pool_open(const struct haul_pool_opts *opts, struct haul_pool **out)
{
    struct haul_pool *pool;
    void *p = NULL, *segments = NULL;
    int rc = check_opts(opts);

    if (rc == 0)
        rc = hl_need("haul_pool_open", "out", out);
    if (rc < 0)
        return rc;
    rc = hl_sys_alloc(sizeof *pool, &p);
    if (rc < 0)
        return rc;
    pool = p;
    pool->bound_node = -1;
    rc = hl_sys_alloc_array(opts->nsegments, sizeof *pool->segments, &segments);
    if (rc < 0)
        goto free_pool;
    pool->segments = segments;
    rc = open_segments(pool, opts);
    if (rc < 0)
        goto free_segments;
    rc = make_resident(pool, opts);
    if (rc < 0)
        goto unmap;
    *out = pool;
    return 0;

unmap:
    close_segments(pool);
free_segments:
    hl_sys_free(segments);
free_pool:
    hl_sys_free(pool);
    return rc;
}

void haul_pool_close(struct haul_pool *pool)
{
    if (!pool)
        return;
    close_segments(pool);
    hl_sys_free(pool->segments);
    hl_sys_free(pool->regions);
    hl_sys_free(pool);
}

static int grow_regions(struct haul_pool *pool)
{
    uint32_t max = pool->max_regions ? pool->max_regions * 2 : 16;
    void *p = NULL;
    int rc = hl_sys_alloc_array(max, sizeof *pool->regions, &p);

    if (rc < 0)
        return rc;
    if (pool->nregions)
        memcpy(p, pool->regions, pool->nregions * sizeof *pool->regions);
    hl_sys_free(pool->regions);
    pool->regions = p;
    pool->max_regions = max;
    return 0;
}

/* The first segment with room for rounded bytes; *left becomes the most that any has. */
static struct hl_segment *segment_with_room(struct haul_pool *pool, uint64_t rounded,
                                            uint64_t *left)
{
    *left = 0;
    for (uint32_t i = 0; i < pool->nsegments; i++) {
        struct hl_segment *seg = &pool->segments[i];
        uint64_t room = seg->bytes - seg->taken_bytes;

        if (room >= rounded)
            return seg;
        *left = room > *left ? room : *left;
    }
    return NULL;
}

int haul_pool_take(struct haul_pool *pool, const char *name, uint64_t bytes, void **out)
{
    uint64_t rounded = (bytes / HL_PAGE_BYTES + (bytes % HL_PAGE_BYTES != 0)) * HL_PAGE_BYTES;
    struct hl_segment *seg;
    struct region *region;
    uint64_t left;
    int rc;

    if (!name || !*name || strlen(name) >= NAME_BYTES)
        return hl_fail(-EINVAL, "a region's name has 1 to %d characters, '%.64s' has not",
                       NAME_BYTES - 1, name ? name : "");
    if (!bytes)
        return hl_fail(-EINVAL, "region %s: 0 bytes", name);
    seg = rounded ? segment_with_room(pool, rounded, &left) : NULL;
    if (!seg)
        return hl_fail(-ENOSPC,
                       "no room in the pool for region %s of %" PRIu64 " bytes: %" PRIu64
                       " are left in one piece",
                       name, bytes, rounded ? left : 0);
    if (pool->nregions == pool->max_regions) {
        rc = grow_regions(pool);
        if (rc < 0)
            return rc;
    }
    region = &pool->regions[pool->nregions++];
    strcpy(region->name, name);
    region->start = seg->base + seg->taken_bytes;
    region->bytes = bytes;
    seg->taken_bytes += rounded;
    *out = region->start;
    return 0;
}

int haul_pool_stat(const struct haul_pool *pool, struct haul_pool_stats *stats)
{
    struct haul_pool_stats s = {.struct_size = sizeof s};
    struct hl_huge *huge = NULL;
    int rc;

    if (stats->struct_size != sizeof *stats)
        return hl_fail(HAUL_E_ABI, "haul_pool_stats of %zu bytes, this library knows %zu",
                       stats->struct_size, sizeof *stats);
    rc = read_huge(pool, &huge);
    if (rc < 0)
        return rc;
    for (uint32_t i = 0; i < pool->nsegments; i++) {
        s.bytes += pool->segments[i].bytes;
        s.taken_bytes += pool->segments[i].taken_bytes;
        s.huge_bytes += huge[i].thp_bytes + huge[i].hugetlb_bytes;
        s.hugetlb_bytes += huge[i].hugetlb_bytes;
    }
    hl_sys_free(huge);
    s.nregions = pool->nregions;
    s.bound_node = pool->bound_node;
    *stats = s;
    return 0;
}

int haul_pool_region(const struct haul_pool *pool, uint32_t i, const char **name, void **start,
                     uint64_t *bytes)
{
    if (i >= pool->nregions)
        return hl_fail(-EINVAL, "region %" PRIu32 " of %" PRIu32, i, pool->nregions);
    *name = pool->regions[i].name;
    *start = pool->regions[i].start;
    *bytes = pool->regions[i].bytes;
    return 0;
}

int haul_pool_segment_info(const struct haul_pool *pool, uint32_t i, void **start, uint64_t *bytes,
                           int *fd)
{
    if (i >= pool->nsegments)
        return hl_fail(-EINVAL, "segment %" PRIu32 " of %" PRIu32, i, pool->nsegments);
    *start = pool->segments[i].base;
    *bytes = pool->segments[i].bytes;
    *fd = pool->segments[i].fd;
    return 0;
}
