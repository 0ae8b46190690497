/*
 * placement.h: which pieces stay in a tier that has no room for all of them.
 *
 * A step touches each piece once in a cycle, so a fixed resident set beats any cache that replaces. The
 * pieces that must go elsewhere are spread evenly through the order, so that the drive that brings them
 * works all the time.
 */
#ifndef HL_PLACEMENT_H
#define HL_PLACEMENT_H

#include <stdint.h>

/**
 * Choose residents.
 *
 * @param bytes     [in]  (n,) sizes, in the order of use
 * @param budget    [in]  bytes that the tier has for them
 * @param resident  [out] (n,) 1 or 0; the residents' sizes add up to at most budget
 *
 * Returns the residents' bytes.
 */
uint64_t hl_place_evenly(const uint64_t *bytes, uint32_t n, uint64_t budget, uint8_t *resident);

/* A paged record, cut into chunks that each fit a slot.
 *
 * A record is a flat sequence of elements: the unit's TRAIN16 shard, then its TRAIN32 shard. A chunk
 * holds elements [i * chunk_elems, (i + 1) * chunk_elems); on the drive it starts at i * slot_bytes. In
 * it stand the arrays of its 16-bit part [master | m | v], then those of its FP32 part. */
struct hl_chunking {
    uint64_t slot_bytes;  /* a multiple of the store's block */
    uint64_t chunk_elems; /* a multiple of HL_TENSOR_ALIGN_ELEMS */
    uint32_t nchunks;
    uint64_t extent_bytes;    /* whole blocks */
    uint64_t elems[2];        /* of the two parts, whole record */
    uint64_t master_bytes[2]; /* per element: 4, 2 (split), or 0 (the parameter is the master) */
};

struct hl_chunk_part {
    uint64_t first, n;     /* elements of the span's shard; n = 0: nothing of this part */
    uint64_t master, m, v; /* byte offsets in the chunk */
};

/* Bytes that chunk i moves: whole blocks. */
uint64_t hl_chunk_bytes(const struct hl_chunking *ck, uint32_t i, uint64_t block_bytes);

/* Fill nchunks, chunk_elems and extent_bytes from elems, master_bytes and slot_bytes. */
void hl_chunking_make(struct hl_chunking *ck, uint64_t block_bytes);

void hl_chunk_parts(const struct hl_chunking *ck, uint32_t i, struct hl_chunk_part part[2]);

/* The chunk that holds element `at` of part p. */
uint32_t hl_chunk_of(const struct hl_chunking *ck, unsigned p, uint64_t at);

#define HL_MOST_BLOCK_BYTES (UINT64_C(4) << 20)

/* Block size for a store whose largest extent has so many bytes: an eighth, and no more than that. */
uint64_t hl_block_for(uint64_t largest_bytes);

#endif
