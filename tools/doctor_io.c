/* doctor_io.c: the pager, tried in a directory. */
#include "doctor_io.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "haul/pager.h"
#include "haul/pool.h"
#include "haul/size.h"

#define BLOCK_BYTES (1u << 20)
#define DATA_BYTES  (8ull << 20)

static int open_pool(struct haul_pool **pool, void **data)
{
    /* The data and the store's bounce blocks. */
    struct haul_pool_segment seg = {.bytes = DATA_BYTES + 4 * BLOCK_BYTES, .fd = -1};
    struct haul_pool_opts opts;
    int rc;

    haul_pool_opts_init(&opts);
    opts.segments = &seg;
    opts.nsegments = 1;
    rc = haul_pool_open(&opts, pool);
    if (rc < 0)
        return rc;
    rc = haul_pool_take(*pool, "data", DATA_BYTES, data);
    if (rc < 0)
        haul_pool_close(*pool);
    return rc;
}

static int open_store(const char *dir, struct haul_pool *pool, enum haul_io_method method,
                      struct haul_store **store)
{
    struct haul_store_opts opts;

    haul_store_opts_init(&opts);
    opts.dirs = &dir;
    opts.ndirs = 1;
    opts.capacity_bytes = DATA_BYTES;
    opts.block_bytes = BLOCK_BYTES;
    opts.pool = pool;
    opts.method = method;
    return haul_store_open(&opts, store);
}

static int write_and_read(struct haul_store *store, void *data)
{
    int rc;

    memset(data, 0x5a, DATA_BYTES);
    rc = haul_extent_create(store, 0, DATA_BYTES);
    if (rc == 0)
        rc = haul_store_write(store, 0, 0, data, DATA_BYTES);
    if (rc == 0)
        rc = haul_store_read(store, 0, 0, data, DATA_BYTES);
    return rc;
}

static void report_method(struct hl_doctor *doc, const char *dir,
                          const struct haul_store_info *info)
{
    if (strcmp(info->method, "uring") == 0 && info->fixed_buffers)
        hl_doctor_add(doc, "I/O method", HL_HEALTH_OK, NULL,
                      "%s: io_uring with registered files and buffers, alignment %u (memory %u)",
                      dir, info->align_bytes, info->mem_align_bytes);
    else
        hl_doctor_add(doc, "I/O method", HL_HEALTH_WARN, info->method_note, "%s: %s, alignment %u",
                      dir,
                      strcmp(info->method, "uring") == 0 ? "io_uring without registered buffers"
                                                         : "pread and pwrite threads",
                      info->align_bytes);
    if (info->direct)
        hl_doctor_add(doc, "page cache", HL_HEALTH_OK, NULL, "%s: bypassed", dir);
    else
        hl_doctor_add(doc, "page cache", HL_HEALTH_WARN, "name a directory on ext4 or xfs", "%s",
                      info->direct_note);
}

static void report_wear(struct hl_doctor *doc, const char *dir, struct haul_store *store)
{
    struct haul_wear wear = {.struct_size = sizeof wear};
    char written[32];

    if (haul_store_wear(store, 0, &wear) < 0 || !wear.device[0]) {
        hl_doctor_add(doc, "drive", HL_HEALTH_WARN, "name a directory on a drive",
                      "%s: no block device stands behind it", dir);
        return;
    }
    if (wear.used_fraction < 0) {
        hl_doctor_add(doc, "drive", HL_HEALTH_OK, NULL,
                      "%s: %s%s%s%s; it tells no wear (or only to root)", dir, wear.device,
                      wear.model[0] ? " " : "", wear.model,
                      wear.rotational == 1 ? ", said to rotate" : "");
        return;
    }
    haul_format_size(wear.drive_written_bytes, written, sizeof written);
    hl_doctor_add(doc, "drive", wear.used_fraction < 0.9 ? HL_HEALTH_OK : HL_HEALTH_WARN,
                  wear.used_fraction < 0.9 ? NULL : "replace the drive, or page less",
                  "%s: %s %s, %s written so far, %.0f%% of its life used", dir, wear.device,
                  wear.model, written, wear.used_fraction * 100);
}

static void report_pages(struct hl_doctor *doc, const struct haul_pool *pool)
{
    struct haul_pool_stats stats = {.struct_size = sizeof stats};
    double fraction;

    if (haul_pool_stat(pool, &stats) < 0)
        return;
    fraction = (double)stats.huge_bytes / (double)stats.bytes;
    hl_doctor_add(doc, "huge pages", fraction > 0.5 ? HL_HEALTH_OK : HL_HEALTH_WARN,
                  fraction > 0.5 ? NULL
                                 : "reserve some (sysctl vm.nr_hugepages) or set "
                                   "/sys/kernel/mm/transparent_hugepage/enabled to madvise: "
                                   "scattered 4 KiB pages cost up to three quarters of the speed",
                  "%.0f%% of a pool of %" PRIu64 " bytes is on huge pages (%" PRIu64 " hugetlb)",
                  fraction * 100, stats.bytes, stats.hugetlb_bytes);
}

static void try_threads(struct hl_doctor *doc, const char *dir, void *data)
{
    struct haul_store *store;
    int rc = open_store(dir, NULL, HAUL_IO_THREADS, &store);

    if (rc == 0) {
        rc = write_and_read(store, data);
        haul_store_close(store);
    }
    if (rc < 0)
        hl_doctor_add(doc, "I/O threads", HL_HEALTH_FAIL, "name another directory", "%s: %s", dir,
                      haul_last_error());
    else
        hl_doctor_add(doc, "I/O threads", HL_HEALTH_OK, NULL, "%s: pread and pwrite work", dir);
}

void hl_doctor_io(struct hl_doctor *doc, const char *dir)
{
    struct haul_store_info info = {.struct_size = sizeof info};
    struct haul_store *store;
    struct haul_pool *pool;
    void *data;
    int rc = open_pool(&pool, &data);

    if (rc < 0) {
        hl_doctor_add(doc, "pool", HL_HEALTH_FAIL, "free some memory", "%s", haul_last_error());
        return;
    }
    report_pages(doc, pool);
    try_threads(doc, dir, data);
    rc = open_store(dir, pool, HAUL_IO_AUTO, &store);
    if (rc == 0) {
        rc = write_and_read(store, data);
        if (rc == 0)
            rc = haul_store_get_info(store, &info);
        if (rc == 0) {
            report_method(doc, dir, &info);
            report_wear(doc, dir, store);
        }
        haul_store_close(store);
    }
    if (rc < 0)
        hl_doctor_add(doc, "pager", HL_HEALTH_FAIL, "name another directory", "%s: %s", dir,
                      haul_last_error());
    haul_pool_close(pool);
}
