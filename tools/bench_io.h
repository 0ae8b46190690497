/* bench_io.h: passes over a store, and the same by fio. */
#ifndef HL_BENCH_IO_H
#define HL_BENCH_IO_H

#include "haul/pager.h"

/* READ and WRITE go through the records in order; MIXED is the engine's own pattern: record i + 2 is
 * read while record i - 1 is written. */
enum hl_io_pattern { HL_IO_READ = 0, HL_IO_WRITE, HL_IO_MIXED, HL_IO_NPATTERNS };

/* What the buffers lie on. */
enum hl_bench_pages {
    HL_PAGES_HUGE = 0,  /* hugetlb, else transparent huge pages */
    HL_PAGES_FRESH,     /* 4 KiB pages as the kernel hands them out */
    HL_PAGES_SCATTERED, /* 4 KiB pages in random physical order, as on a machine that ran for long */
};

struct hl_bench_io_opts {
    struct haul_store_opts store; /* dirs, blocks, depths, method, verify */
    uint64_t bytes;               /* of data */
    uint64_t record_bytes;        /* a multiple of the block; 0: all records in memory hold as many
                                     blocks as may be in flight, which is what fio has */
    enum hl_bench_pages pages;
};

/* The least bytes of a store with such records. */
#define HL_BENCH_IO_LEAST(record_bytes) ((uint64_t)(record_bytes)*12)

struct hl_io_pass {
    double gb_per_s;     /* bytes both ways */
    double cpu_s_per_gb; /* user and system, all threads */
};

struct hl_bench_io;

/* Opens a scratch store of opts->bytes in records and writes it once. */
int hl_bench_io_open(const struct hl_bench_io_opts *opts, struct hl_bench_io **out);
void hl_bench_io_close(struct hl_bench_io *b);
struct haul_store *hl_bench_io_store(struct hl_bench_io *b);
/* Of data, in whole blocks. */
uint64_t hl_bench_io_bytes(const struct hl_bench_io *b);
/* No more than the store was opened with. */
void hl_bench_io_set_depths(struct hl_bench_io *b, uint32_t reads, uint32_t writes);
/* No more than it was opened with, in whole blocks. */
void hl_bench_io_set_record_bytes(struct hl_bench_io *b, uint64_t bytes);
double hl_bench_io_huge_fraction(const struct hl_bench_io *b);
/* For the passes from now on; a write pass must come before checked reads. */
void hl_bench_io_verify(struct hl_bench_io *b, enum haul_verify verify);
int hl_bench_io_pass(struct hl_bench_io *b, enum hl_io_pattern pattern, struct hl_io_pass *out);
/* n records one way, so many (at most 6) under way. */
int hl_bench_io_alone(struct hl_bench_io *b, int write, uint32_t nslots, uint32_t n,
                      double *bytes_per_s);
/* n records read one after the other into so many slots (at most 6) in turn, each shown when it is there. */
int hl_bench_io_each(struct hl_bench_io *b, uint32_t nslots, uint32_t n,
                     int (*show)(void *user, char *record), void *user);
/* All records through a ring of so many slots (at most 6), as the engine's: read, written, and the slot is for
 * the next; bytes both ways. */
int hl_bench_io_ring(struct hl_bench_io *b, uint32_t nslots, double *bytes_per_s);

/* ---- fio ---- */

struct hl_fio_job {
    uint32_t block_bytes, depth;
    const char *engine; /* "io_uring" or "libaio" */
    const char *mem;    /* "mmaphuge", "malloc", "mmapshared:/dev/shm/..." */
};

/* fio's version, or NULL when it is not installed. */
const char *hl_fio_version(void);
/* Read, write or half and half over the store's own files, up to bytes. */
int hl_fio_pass(struct haul_store *store, uint64_t bytes, const struct hl_fio_job *job,
                enum hl_io_pattern pattern, struct hl_io_pass *out);
/* Make room for fio's huge pages (needs root); returns how many stood there before, -1: refused. */
int64_t hl_fio_hugepages(int64_t pages);
/* A file on /dev/shm whose pages lie in random physical order. */
int hl_scattered_file(const char *path, uint64_t bytes);

#endif
