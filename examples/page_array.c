/* page_array.c: an array larger than its memory, kept on a drive and worked on in pieces. The pager
 * alone: no engine, no device.   page_array DIRECTORY [MiB] */
#include <haul/pager.h>
#include <haul/pool.h>
#include <stdio.h>
#include <stdlib.h>

#define PIECE_BYTES (64ull << 20)
#define PIECE_ELEMS (PIECE_BYTES / sizeof(double))

static void must(int rc)
{
    if (rc < 0) {
        fprintf(stderr, "%s\n", haul_last_error());
        exit(1);
    }
}

static uint64_t start(struct haul_store *store, int write, uint64_t piece, void *buf)
{
    struct haul_io io = {
        .write = write, .offset = piece * PIECE_BYTES, .buf = buf, .bytes = PIECE_BYTES};
    uint64_t token;

    must(haul_store_submit(store, &io, &token));
    return token;
}

/* Add one to every element: while a piece is worked on, the next is read and the last is written. */
static void add_one(struct haul_store *store, double *const buf[3], uint64_t npieces)
{
    uint64_t token[3] = {start(store, 0, 0, buf[0])}; /* the read or the write of each buffer */

    for (uint64_t i = 0; i < npieces; i++) {
        uint64_t here = i % 3, next = (i + 1) % 3;

        if (token[next]) /* its write of two pieces ago */
            must(haul_store_wait(store, token[next]));
        token[next] = i + 1 < npieces ? start(store, 0, i + 1, buf[next]) : 0;
        must(haul_store_wait(store, token[here]));
        for (uint64_t k = 0; k < PIECE_ELEMS; k++)
            buf[here][k] += 1;
        token[here] = start(store, 1, i, buf[here]);
    }
    for (int b = 0; b < 3; b++)
        if (token[b])
            must(haul_store_wait(store, token[b]));
}

int main(int argc, char **argv)
{
    uint64_t npieces = (argc > 2 ? strtoull(argv[2], NULL, 10) : 1024) / 64;
    struct haul_pool_segment seg = {.bytes = 3 * PIECE_BYTES + (16ull << 20), .fd = -1};
    struct haul_pool_opts po;
    struct haul_store_opts so;
    struct haul_pool *pool;
    struct haul_store *store;
    double *buf[3], last;
    void *mem;

    if (argc < 2 || npieces == 0)
        return 2;
    haul_pool_opts_init(&po);
    po.segments = &seg;
    po.nsegments = 1;
    must(haul_pool_open(&po, &pool));
    must(haul_pool_take(pool, "pieces", 3 * PIECE_BYTES, &mem));
    for (int b = 0; b < 3; b++)
        buf[b] = (double *)mem + (uint64_t)b * PIECE_ELEMS;
    haul_store_opts_init(&so);
    so.dirs = (const char *const[]){argv[1]};
    so.ndirs = 1;
    so.capacity_bytes = npieces * PIECE_BYTES;
    so.pool = pool; /* registered: no copies */
    must(haul_store_open(&so, &store));
    must(haul_extent_create(store, 0, npieces * PIECE_BYTES));
    for (int pass = 0; pass < 3; pass++) /* what was never written reads as zeros */
        add_one(store, buf, npieces);
    must(haul_store_read(store, 0, npieces * PIECE_BYTES - sizeof last, &last, sizeof last));
    printf("%llu elements, the last is %g\n", (unsigned long long)(npieces * PIECE_ELEMS), last);
    haul_store_close(store);
    haul_pool_close(pool);
    return last == 3 ? 0 : 1;
}
