/*
 * ckpt_store.h: records that a checkpoint does not hold but refers to: they are in the durable store of the rank that
 * saved, or in a copy that was made of them.
 *
 *   rank-00000.bin, last block:  header | a place for each block of the records space | names of folders
 *   records-00000.bin            the records space itself, once it has been copied out; else it is in the store
 *
 * A store keeps what its newest checkpoint refers to. When the next one is complete, the blocks are written again: a
 * checkpoint that is to stay has been copied before that.
 */
#ifndef HL_CKPT_STORE_H
#define HL_CKPT_STORE_H

#include <stddef.h>
#include <stdint.h>

#include "store_kept.h"

#define HL_CKPT_MOST_STORE_BLOCK (UINT32_C(4) << 20)

/* On disk as it is here. */
struct hl_ckpt_store_header {
    uint64_t id, generation;
    uint32_t block_bytes, ndirs;
    uint64_t nblocks;
};

struct hl_ckpt_store {
    struct hl_ckpt_store_header head;    /* nblocks 0: there is none */
    const struct hl_store_place *places; /* (nblocks,) in mem */
    const char *dirs[HAUL_MAX_DIRS];     /* in mem */
    void *mem;
};

/* Which of the three arrays of a trained tensor. */
enum hl_ckpt_array { HL_CKPT_P = 0, HL_CKPT_M, HL_CKPT_V, HL_CKPT_NARRAYS };

/* Bytes of the last block, and the block. places (nblocks,). */
uint64_t hl_ckpt_store_bytes(const struct hl_ckpt_store_header *head, const char *const *dirs);
void hl_ckpt_store_encode(const struct hl_ckpt_store_header *head,
                          const struct hl_store_place *places, const char *const *dirs, void *out);

/* Checked against itself. mem: (bytes,) becomes out's, also after an error. 0 or -1. */
int hl_ckpt_store_decode(void *mem, uint64_t bytes, struct hl_ckpt_store *out);
void hl_ckpt_store_free(struct hl_ckpt_store *st);

/* records-00000.bin */
void hl_ckpt_records_name(uint32_t rank, char name[32]);

/* Reads one rank's records space, whole blocks at a time, each checked. */
struct hl_ckpt_records {
    const char *dir; /* the checkpoint's, for messages */
    int dirfd;
    const struct hl_ckpt_store *st;
    uint32_t rank;
    int copy;              /* fd of records-NNNNN.bin; -1: none */
    int fd[HAUL_MAX_DIRS]; /* of the store's data files, when there is no copy; -1 */
    struct {
        char *mem;      /* a block */
        uint64_t block; /* which; UINT64_MAX: none */
    } held[HL_CKPT_NARRAYS];
};

/* -ESTALE: neither the store nor a copy has them any more. */
int hl_ckpt_records_open(const char *dir, int dirfd, const struct hl_ckpt_store *st, uint32_t rank,
                         struct hl_ckpt_records *out);
void hl_ckpt_records_close(struct hl_ckpt_records *r);
/* [at, at + bytes) of the records space, through what is held for that array. */
int hl_ckpt_records_read(struct hl_ckpt_records *r, enum hl_ckpt_array which, uint64_t at,
                         uint64_t bytes, void *out);
/* One block and no other, into memory of block_bytes. */
int hl_ckpt_records_block(struct hl_ckpt_records *r, uint64_t block, char *out);

/* Copy a rank's records space beside its data file, or share it where the file system can, unless it has been. All of it
 * or nothing, and on the drive. */
int hl_ckpt_records_copy(const char *dir, uint32_t rank);

#endif
