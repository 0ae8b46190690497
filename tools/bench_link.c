/* bench_link.c: copies between host and device, timed on the host from the first queued to the last done. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "bench_link.h"
#include "clock.h"
#include "cuda_host_alloc.h"
#include "device_ops.h"
#include "fail.h"
#include "haul/pool.h"
#include "sys.h"

#define MOVE_BYTES    (UINT64_C(64) << 20)
#define SMALL_BYTES   4096
#define SMALL_REPEATS 200

struct hl_bench_link {
    struct haul_device *dev;
    uint64_t bytes;
    int is_cuda;
    struct haul_pool *pool;
    int registered;
    char *
        host[HL_LINK_NMEMORIES]; /* (2 * bytes,) each: up from the first half, down to the second */
    char *device;                /* (2 * bytes,) */
    void *up, *down;
};

int hl_bench_link_has(const struct hl_bench_link *b, enum hl_link_memory memory)
{
    return b->host[memory] != NULL;
}

static int open_pool(struct hl_bench_link *b)
{
    struct haul_pool_segment seg = {.bytes = 2 * b->bytes};
    const struct hl_device_ops *ops = b->dev->ops;
    struct haul_pool_opts opts;
    void *p;
    int rc;

    haul_pool_opts_init(&opts);
    opts.segments = &seg;
    opts.nsegments = 1;
    opts.numa_node = ops->numa_node ? ops->numa_node(b->dev) : -1;
    if ((rc = haul_pool_open(&opts, &b->pool)) < 0 ||
        (rc = haul_pool_take(b->pool, "link bench", 2 * b->bytes, &p)) < 0)
        return rc;
    b->host[HL_LINK_POOL] = p;
    if (!ops->host_register)
        return 0;
    rc = ops->host_register(b->dev, p, 2 * b->bytes);
    b->registered = rc == 0;
    return rc;
}

static int open_others(struct hl_bench_link *b)
{
    void *p;
    int rc;

    if (b->is_cuda) {
        if ((rc = hl_cuda_host_alloc(b->dev, 2 * b->bytes, &p)) < 0)
            return rc;
        b->host[HL_LINK_HOSTALLOC] = p;
        memset(p, 1, 2 * b->bytes);
    }
    if ((rc = hl_sys_map(NULL, 2 * b->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                         -1, 0, &p)) < 0)
        return rc;
    b->host[HL_LINK_PAGEABLE] = p;
    (void)hl_sys_madvise(p, 2 * b->bytes, MADV_NOHUGEPAGE);
    memset(p, 1, 2 * b->bytes);
    return 0;
}

static int open_device(struct hl_bench_link *b)
{
    void *p;
    int rc;

    if ((rc = haul_device_alloc(b->dev, 2 * b->bytes, &p)) < 0)
        return rc;
    b->device = p;
    if ((rc = b->dev->ops->stream_open(b->dev, 0, &b->up)) < 0 ||
        (rc = b->dev->ops->stream_open(b->dev, 0, &b->down)) < 0 ||
        (rc = b->dev->ops->fill(b->dev, p, 0, 2 * b->bytes, b->up)) < 0)
        return rc;
    return haul_device_stream_sync(b->dev, b->up);
}

int hl_bench_link_open(struct haul_device *dev, uint64_t bytes, int is_cuda,
                       struct hl_bench_link **out)
{
    struct hl_bench_link *b;
    void *p;
    int rc = hl_sys_alloc(sizeof *b, &p);

    if (rc < 0)
        return rc;
    b = p;
    b->dev = dev;
    b->bytes = bytes < SMALL_BYTES ? SMALL_BYTES : bytes;
    b->is_cuda = is_cuda;
    if ((rc = open_pool(b)) < 0 || (rc = open_others(b)) < 0 || (rc = open_device(b)) < 0) {
        hl_bench_link_close(b);
        return rc;
    }
    *out = b;
    return 0;
}

void hl_bench_link_close(struct hl_bench_link *b)
{
    if (!b)
        return;
    haul_device_stream_close(b->dev, b->up);
    haul_device_stream_close(b->dev, b->down);
    haul_device_free(b->dev, b->device);
    if (b->host[HL_LINK_PAGEABLE])
        hl_sys_unmap(b->host[HL_LINK_PAGEABLE], 2 * b->bytes);
    if (b->host[HL_LINK_HOSTALLOC])
        hl_cuda_host_free(b->dev, b->host[HL_LINK_HOSTALLOC]);
    if (b->registered)
        (void)b->dev->ops->host_unregister(b->dev, b->host[HL_LINK_POOL]);
    haul_pool_close(b->pool);
    hl_sys_free(b);
}

static int queue(struct hl_bench_link *b, const char *host, enum hl_link_way way, uint64_t bytes)
{
    int rc = 0;

    if (way != HL_LINK_D2H)
        rc = haul_device_copy_h2d(b->dev, b->device, host, bytes, b->up);
    if (rc == 0 && way != HL_LINK_H2D)
        rc = haul_device_copy_d2h(b->dev, (char *)host + b->bytes, b->device + b->bytes, bytes,
                                  b->down);
    return rc;
}

static int wait_for_both(struct hl_bench_link *b)
{
    int rc = haul_device_stream_sync(b->dev, b->up);

    return rc < 0 ? rc : haul_device_stream_sync(b->dev, b->down);
}

int hl_bench_link_rate(struct hl_bench_link *b, enum hl_link_memory memory, enum hl_link_way way,
                       uint64_t bytes, double *gb_per_s)
{
    uint64_t n = bytes < MOVE_BYTES ? MOVE_BYTES / bytes : 1, begin;
    int rc = wait_for_both(b);

    begin = hl_clock_ns();
    for (uint64_t i = 0; rc == 0 && i < n; i++)
        rc = queue(b, b->host[memory], way, bytes);
    if (rc == 0)
        rc = wait_for_both(b);
    if (rc < 0)
        return rc;
    *gb_per_s =
        (double)(n * bytes) * (way == HL_LINK_DUPLEX ? 2 : 1) / (double)(hl_clock_ns() - begin);
    return 0;
}

static int ascending(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

int hl_bench_link_latency(struct hl_bench_link *b, enum hl_link_memory memory, enum hl_link_way way,
                          double *ns)
{
    uint64_t took[SMALL_REPEATS];
    int rc = wait_for_both(b);

    for (int i = 0; rc == 0 && i < SMALL_REPEATS; i++) {
        uint64_t begin = hl_clock_ns();

        rc = queue(b, b->host[memory], way, SMALL_BYTES);
        if (rc == 0)
            rc = haul_device_stream_sync(b->dev, way == HL_LINK_H2D ? b->up : b->down);
        took[i] = hl_clock_ns() - begin;
    }
    if (rc < 0)
        return rc;
    qsort(took, SMALL_REPEATS, sizeof *took, ascending);
    *ns = (double)took[SMALL_REPEATS / 2];
    return 0;
}
