/* bench_io.c: passes over a scratch store. */
#include "bench_io.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "clock.h"
#include "fail.h"
#include "haul/pool.h"
#include "haul/size.h"
#include "store.h"
#include "sys.h"

/* Records in memory at once; and how far reads run ahead, and writes behind. */
#define NSLOTS 6u
#define AHEAD  2u

struct hl_bench_io {
    struct hl_bench_io_opts opts;
    struct haul_store *store;
    struct haul_pool *pool;
    char *mem; /* NSLOTS of the largest records */
    uint64_t bytes, record_bytes;
    uint32_t nrecords;
    double huge_fraction;
};

/* ---- memory ---- */

/* Touch the pages of a file in random order: neighbours in the file are strangers in memory. */
static void touch_scattered(volatile char *p, uint64_t bytes)
{
    uint64_t n = bytes / 4096, stride = 2654435761u % n | 1, at = 0;

    /* An odd stride that shares no factor with n visits every page. */
    while (n > 1 && (n % stride == 0 || stride % 2 == 0))
        stride += 2;
    for (uint64_t i = 0; i < n; i++, at = (at + stride) % n)
        p[at * 4096] = 1;
    for (uint64_t i = 0; i < n; i++) /* what a shared factor left out */
        p[i * 4096] = 1;
}

static int fill_scattered(int fd, uint64_t bytes)
{
    void *p;
    int rc = hl_sys_ftruncate(fd, (off_t)bytes);

    if (rc == 0)
        rc = hl_sys_map(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0, &p);
    if (rc < 0)
        return rc;
    (void)hl_sys_madvise(p, bytes, MADV_NOHUGEPAGE);
    touch_scattered(p, bytes);
    hl_sys_unmap(p, bytes);
    return 0;
}

int hl_scattered_file(const char *path, uint64_t bytes)
{
    int fd = hl_sys_open(AT_FDCWD, path, O_RDWR | O_CREAT | O_TRUNC, 0600), rc;

    if (fd < 0)
        return fd;
    rc = fill_scattered(fd, bytes);
    hl_sys_close(fd);
    return rc;
}

static int open_pool(struct hl_bench_io *b)
{
    uint64_t data = b->record_bytes * NSLOTS;
    uint64_t bytes = data + (uint64_t)b->opts.store.bounce_blocks * b->opts.store.block_bytes;
    struct haul_pool_segment seg = {.bytes = bytes, .fd = -1};
    struct haul_pool_stats stats = {.struct_size = sizeof stats};
    struct haul_pool_opts opts;
    void *mem;
    int rc = 0;

    haul_pool_opts_init(&opts);
    opts.segments = &seg;
    opts.nsegments = 1;
    if (b->opts.pages != HL_PAGES_HUGE)
        opts.pages = HAUL_PAGES_SMALL;
    if (b->opts.pages == HL_PAGES_SCATTERED) {
        seg.shared = 1;
        seg.fd = rc = hl_sys_memfd("bench", 0);
        if (rc >= 0)
            rc = fill_scattered(seg.fd, bytes);
    }
    if (rc >= 0)
        rc = haul_pool_open(&opts, &b->pool);
    if (seg.fd >= 0)
        hl_sys_close(seg.fd);
    if (rc == 0)
        rc = haul_pool_take(b->pool, "records", data, &mem);
    if (rc == 0)
        rc = haul_pool_stat(b->pool, &stats);
    if (rc < 0)
        return rc;
    b->mem = mem;
    memset(b->mem, 0x3c, data);
    b->huge_fraction = (double)stats.huge_bytes / (double)stats.bytes;
    return 0;
}

/* ---- opening ---- */

/* The records for such depths. */
static void cut(struct hl_bench_io *b, uint32_t reads, uint32_t writes)
{
    uint32_t depth = reads > writes ? reads : writes;
    uint64_t blocks = (depth + NSLOTS - 1) / NSLOTS;

    b->record_bytes =
        b->opts.record_bytes ? b->opts.record_bytes : blocks * b->opts.store.block_bytes;
    b->nrecords = (uint32_t)((b->bytes + b->record_bytes - 1) / b->record_bytes);
}

static int too_few(const struct hl_bench_io *b)
{
    char given[32], block[32];
    uint64_t least = HL_BENCH_IO_LEAST(b->record_bytes);

    return hl_fail(-EINVAL,
                   "--bytes %s is too little for blocks of %s and such depths: give at least "
                   "--bytes %lluMiB",
                   haul_format_size(b->opts.bytes, given, sizeof given),
                   haul_format_size(b->opts.store.block_bytes, block, sizeof block),
                   (unsigned long long)((least + (1 << 20) - 1) >> 20));
}

int hl_bench_io_open(const struct hl_bench_io_opts *opts, struct hl_bench_io **out)
{
    struct hl_io_pass ignored;
    struct hl_bench_io *b;
    void *mem;
    int rc = hl_sys_alloc(sizeof *b, &mem);

    if (rc < 0)
        return rc;
    b = mem;
    b->opts = *opts;
    b->bytes = opts->bytes / opts->store.block_bytes * opts->store.block_bytes;
    cut(b, opts->store.read_depth, opts->store.write_depth);
    if (b->bytes < HL_BENCH_IO_LEAST(b->record_bytes))
        rc = too_few(b);
    if (rc == 0)
        rc = open_pool(b);
    b->opts.store.capacity_bytes = b->bytes;
    b->opts.store.pool = b->pool;
    if (rc == 0)
        rc = haul_store_open(&b->opts.store, &b->store);
    if (rc == 0)
        rc = haul_extent_create(b->store, 0, b->bytes);
    if (rc == 0)
        rc = hl_bench_io_pass(b, HL_IO_WRITE, &ignored);
    if (rc < 0)
        hl_bench_io_close(b);
    else
        *out = b;
    return rc;
}

void hl_bench_io_close(struct hl_bench_io *b)
{
    haul_store_close(b->store);
    haul_pool_close(b->pool);
    hl_sys_free(b);
}

struct haul_store *hl_bench_io_store(struct hl_bench_io *b)
{
    return b->store;
}

uint64_t hl_bench_io_bytes(const struct hl_bench_io *b)
{
    return b->bytes;
}

void hl_bench_io_set_depths(struct hl_bench_io *b, uint32_t reads, uint32_t writes)
{
    b->store->read.limit = reads; /* nothing is in flight; the next submit publishes it */
    b->store->write.limit = writes;
    cut(b, reads, writes);
}

void hl_bench_io_set_record_bytes(struct hl_bench_io *b, uint64_t bytes)
{
    b->opts.record_bytes = bytes;
    cut(b, 1, 1);
}

double hl_bench_io_huge_fraction(const struct hl_bench_io *b)
{
    return b->huge_fraction;
}

void hl_bench_io_verify(struct hl_bench_io *b, enum haul_verify verify)
{
    b->store->opts.verify = verify; /* nothing is in flight; the next submit publishes it */
}

/* ---- passes ---- */

static int submit_slot(struct hl_bench_io *b, int write, uint32_t record, uint32_t slot,
                       uint64_t *token)
{
    uint64_t at = record * b->record_bytes, left = b->bytes - at;
    struct haul_io io = {.write = write,
                         .offset = at,
                         .buf = b->mem + slot * b->record_bytes,
                         .bytes = left < b->record_bytes ? left : b->record_bytes};

    return haul_store_submit(b->store, &io, token);
}

static int submit(struct hl_bench_io *b, int write, uint32_t record, uint64_t *token)
{
    return submit_slot(b, write, record, record % NSLOTS, token);
}

static int settle(struct hl_bench_io *b, uint64_t *token)
{
    uint64_t t = *token;

    *token = 0;
    return t ? haul_store_wait(b->store, t) : 0;
}

static int one_way(struct hl_bench_io *b, int write, uint64_t *tokens)
{
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < b->nrecords; i++) {
        rc = settle(b, &tokens[i % NSLOTS]);
        if (rc == 0)
            rc = submit(b, write, i, &tokens[i % NSLOTS]);
    }
    return rc;
}

/* A slot's life: read, (update), write, and then the next record's. */
static int both_ways(struct hl_bench_io *b, uint64_t *reads, uint64_t *writes)
{
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < AHEAD; i++)
        rc = submit(b, 0, i, &reads[i]);
    for (uint32_t i = 0; rc == 0 && i < b->nrecords; i++) {
        uint32_t ahead = i + AHEAD;

        if (ahead < b->nrecords) {
            rc = settle(b, &writes[ahead % NSLOTS]);
            if (rc == 0)
                rc = submit(b, 0, ahead, &reads[ahead % NSLOTS]);
        }
        if (rc == 0)
            rc = settle(b, &reads[i % NSLOTS]);
        if (rc == 0)
            rc = submit(b, 1, i, &writes[i % NSLOTS]);
    }
    return rc;
}

/* The whole records of a store, far from each other, so that nothing reads ahead. */
int hl_bench_io_alone(struct hl_bench_io *b, int write, uint32_t nslots, uint32_t n,
                      double *bytes_per_s)
{
    const uint32_t ring = nslots < NSLOTS ? nslots : NSLOTS;
    uint64_t begun_ns = hl_clock_ns(), tokens[NSLOTS] = {0};
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < n; i++) {
        const uint32_t record = (uint32_t)(i * UINT64_C(7919) % (b->nrecords - 1));

        rc = settle(b, &tokens[i % ring]);
        if (rc == 0)
            rc = submit_slot(b, write, record, i % ring, &tokens[i % ring]);
    }
    for (uint32_t i = 0; i < ring; i++) {
        int ended = settle(b, &tokens[i]);
        rc = rc < 0 ? rc : ended;
    }
    *bytes_per_s = (double)(n * b->record_bytes) / ((double)(hl_clock_ns() - begun_ns) * 1e-9);
    return rc;
}

int hl_bench_io_each(struct hl_bench_io *b, uint32_t nslots, uint32_t n,
                     int (*show)(void *user, char *record), void *user)
{
    const uint32_t ring = nslots < NSLOTS ? nslots : NSLOTS;
    uint64_t token = 0;
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < n; i++) {
        rc = submit_slot(b, 0, i % (b->nrecords - 1), i % ring, &token);
        if (rc == 0)
            rc = settle(b, &token);
        if (rc == 0)
            rc = show(user, b->mem + i % ring * b->record_bytes);
    }
    return rc;
}

/* What is complete first goes on first: a read becomes a write, a write makes room for the next read. */
static int ring(struct hl_bench_io *b, uint32_t nslots, uint64_t tokens[NSLOTS])
{
    uint32_t record[NSLOTS], next = 0, left = 2 * b->nrecords, i;
    int writes[NSLOTS] = {0}, rc = 0;

    for (i = 0; rc == 0 && i < nslots; i++) {
        record[i] = next++;
        rc = submit_slot(b, 0, record[i], i, &tokens[i]);
    }
    for (; rc == 0 && left; left--) {
        rc = haul_store_wait_any(b->store, tokens, nslots, &i);
        if (rc < 0)
            return rc;
        tokens[i] = 0;
        if (writes[i] && next == b->nrecords)
            continue;
        record[i] = writes[i] ? next++ : record[i];
        writes[i] = !writes[i];
        rc = submit_slot(b, writes[i], record[i], i, &tokens[i]);
    }
    return rc;
}

int hl_bench_io_ring(struct hl_bench_io *b, uint32_t nslots, double *bytes_per_s)
{
    uint64_t tokens[NSLOTS] = {0}, begun_ns = hl_clock_ns();
    int rc = ring(b, nslots < NSLOTS ? nslots : NSLOTS, tokens);

    for (uint32_t i = 0; i < NSLOTS; i++) {
        int ended = settle(b, &tokens[i]);
        rc = rc < 0 ? rc : ended;
    }
    *bytes_per_s = 2 * (double)b->bytes / ((double)(hl_clock_ns() - begun_ns) * 1e-9);
    return rc;
}

static double cpu_seconds(void)
{
    struct rusage u;

    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

int hl_bench_io_pass(struct hl_bench_io *b, enum hl_io_pattern pattern, struct hl_io_pass *out)
{
    uint64_t reads[NSLOTS] = {0}, writes[NSLOTS] = {0}, begun_ns = hl_clock_ns();
    double cpu = cpu_seconds(), gb = (double)b->bytes / 1e9;
    int rc;

    if (pattern == HL_IO_MIXED) {
        rc = both_ways(b, reads, writes);
        gb *= 2;
    } else {
        rc = one_way(b, pattern == HL_IO_WRITE, writes);
    }
    for (uint32_t i = 0; i < NSLOTS; i++) {
        int r = settle(b, &reads[i]), w = settle(b, &writes[i]);

        rc = rc < 0 ? rc : r < 0 ? r : w;
    }
    if (rc < 0)
        return rc;
    out->gb_per_s = gb / ((double)(hl_clock_ns() - begun_ns) * 1e-9);
    out->cpu_s_per_gb = (cpu_seconds() - cpu) / gb;
    return 0;
}
