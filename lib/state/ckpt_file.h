/*
 * ckpt_file.h: a rank's data file, and a whole checkpoint opened for reading.
 *
 *     header (64 bytes) | blocks, each a multiple of 64 bytes | table: one entry a block | sum of the table
 *
 * Everything is as it is in memory on a little-endian machine. Every byte is under a checksum: the header
 * has its own, the table has the blocks', the manifest has the table's.
 */
#ifndef HL_CKPT_FILE_H
#define HL_CKPT_FILE_H

#include "ckpt_manifest.h"
#include "ckpt_store.h"

#define HL_CKPT_MAGIC "HAULCKP1"

struct hl_ckpt_header {
    char magic[8];
    uint32_t version, zero;
    uint64_t id; /* of the checkpoint */
    uint32_t rank, nranks;
    uint64_t nblocks, table_offset;
    uint64_t zeros;
    uint64_t sum; /* of the 56 bytes before it */
};

/* ---- writing ---- */

/* Elements of a tensor: float p[n]; m[n] and v[n] too when it is trained, else NULL. */
typedef int (*hl_ckpt_source_fn)(void *user, uint32_t unit, uint32_t tensor, uint64_t first,
                                 uint64_t n, float *p, float *m, float *v);

struct hl_ckpt_source {
    hl_ckpt_source_fn fn;
    void *user;
    int (*done)(void *user); /* the last block has been read; NULL: nobody asks */
    /* So many bytes of the file's blocks have been read; NULL: nobody asks. */
    void (*so_far)(void *user, uint64_t done_bytes, uint64_t total_bytes);
    /* NULL: all state goes into the file. Of what is kept split or as moments, fn gives the parameter as it
     * rests in p; m and v are NULL. */
    const struct hl_ckpt_keeper *keeper;
};

/* Sizes of a rank's file, without writing it. */
int hl_ckpt_file_size(const struct hl_ckpt_model *model, uint32_t nranks, uint32_t rank,
                      struct hl_ckpt_file *out);

/* Write a rank's file and flush it. m: id, nranks and model. What was written of it stays after an error. */
int hl_ckpt_file_write(int dirfd, const struct hl_ckpt_manifest *m, uint32_t rank,
                       const struct hl_ckpt_source *source, struct hl_ckpt_file *out);

/* ---- reading ---- */

/* A block, and whose file it is in. */
struct hl_ckpt_at {
    struct hl_ckpt_block block;
    uint32_t rank;
};

struct hl_ckpt {
    struct hl_ckpt_manifest m;
    char *dir;
    int dirfd;
    struct hl_ckpt_at *at; /* (nblocks,) by unit, then by element: all there are, once each */
    uint64_t nblocks;
    uint64_t *unit_at; /* (nunits + 1,): where a unit's blocks begin in `at` */
    int fd;            /* of fd_rank's file; -1 */
    uint32_t fd_rank;
    char *buf;     /* HL_CKPT_BLOCK_BYTES and padding: the block last read */
    uint64_t held; /* which; UINT64_MAX: none */
    float *wide;   /* HL_CKPT_BLOCK_ELEMS: of a 16-bit block */
    /* version 2 */
    struct hl_ckpt_store *stores;   /* (nranks,) where the records are that a file refers to */
    struct hl_ckpt_records records; /* of records_rank, when it is not -1 */
    int64_t records_rank;
    float *kept; /* (3, HL_CKPT_BLOCK_ELEMS): p, m, v of the block last read */
};

/* Manifest, and header and table of every file: checked, and together they hold every element once.
 * End it with hl_ckpt_close(). */
int hl_ckpt_open(const char *dir, struct hl_ckpt **out);
void hl_ckpt_close(struct hl_ckpt *ck);

/* The records that rank's file refers to, to be read; they stay open until those of another rank are. */
int hl_ckpt_records_of(struct hl_ckpt *ck, uint32_t rank, struct hl_ckpt_records **out);

/* Read block i and check it. */
int hl_ckpt_read(struct hl_ckpt *ck, uint64_t i);

/* The values of the block last read: p (n,), and of a trained one m and v; else they are NULL. */
struct hl_ckpt_values {
    const float *p, *m, *v;
};
struct hl_ckpt_values hl_ckpt_values(struct hl_ckpt *ck, uint64_t i);

/* The caller's bytes, checked: (m.user_bytes,). */
int hl_ckpt_read_user(const struct hl_ckpt *ck, void *out);

/* Elements of a tensor as a source for a file. user: struct hl_ckpt *. */
int hl_ckpt_source(void *user, uint32_t unit, uint32_t tensor, uint64_t first, uint64_t n, float *p,
                   float *m, float *v);

#endif
