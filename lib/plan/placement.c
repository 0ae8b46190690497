#include <string.h>

#include "layout.h"
#include "placement.h"

static uint64_t round_up(uint64_t n, uint64_t step)
{
    return (n + step - 1) / step * step;
}

uint64_t hl_place_evenly(const uint64_t *bytes, uint32_t n, uint64_t budget, uint8_t *resident)
{
    uint64_t total = 0, placed = 0;
    double share, credit = 0;

    for (uint32_t i = 0; i < n; i++)
        total += bytes[i];
    share = total == 0 || budget >= total ? 1 : (double)budget / (double)total;
    for (uint32_t i = 0; i < n; i++) {
        credit += share * (double)bytes[i];
        resident[i] = share == 1 || (credit >= (double)bytes[i] && bytes[i] <= budget - placed);
        if (resident[i]) {
            credit -= (double)bytes[i];
            placed += bytes[i];
        }
    }
    /* What the even spread left over still takes whatever fits. */
    for (uint32_t i = 0; i < n; i++)
        if (!resident[i] && bytes[i] <= budget - placed) {
            resident[i] = 1;
            placed += bytes[i];
        }
    return placed;
}

static uint64_t part_bytes(const struct hl_chunking *ck, unsigned p, uint64_t n)
{
    return n * (ck->master_bytes[p] + 8);
}

void hl_chunking_make(struct hl_chunking *ck, uint64_t block_bytes)
{
    uint64_t total = ck->elems[0] + ck->elems[1], each = 8;

    for (unsigned p = 0; p < 2; p++)
        if (ck->elems[p] && ck->master_bytes[p] + 8 > each)
            each = ck->master_bytes[p] + 8;
    ck->chunk_elems = ck->slot_bytes / each / HL_TENSOR_ALIGN_ELEMS * HL_TENSOR_ALIGN_ELEMS;
    ck->nchunks = (uint32_t)((total + ck->chunk_elems - 1) / ck->chunk_elems);
    ck->extent_bytes = 0;
    if (ck->nchunks)
        ck->extent_bytes =
            (ck->nchunks - 1) * ck->slot_bytes + hl_chunk_bytes(ck, ck->nchunks - 1, block_bytes);
}

void hl_chunk_parts(const struct hl_chunking *ck, uint32_t i, struct hl_chunk_part part[2])
{
    uint64_t from = i * ck->chunk_elems, to = from + ck->chunk_elems, base = 0, at = 0;

    for (unsigned p = 0; p < 2; p++) {
        uint64_t lo = from > base ? from - base : 0, hi = to > base ? to - base : 0;
        hi = hi < ck->elems[p] ? hi : ck->elems[p];
        part[p].first = lo;
        part[p].n = hi > lo ? hi - lo : 0;
        part[p].master = at;
        part[p].m = at + part[p].n * ck->master_bytes[p];
        part[p].v = part[p].m + part[p].n * 4;
        at += part_bytes(ck, p, part[p].n);
        base += ck->elems[p];
    }
}

uint64_t hl_chunk_bytes(const struct hl_chunking *ck, uint32_t i, uint64_t block_bytes)
{
    struct hl_chunk_part part[2];

    hl_chunk_parts(ck, i, part);
    return round_up(part_bytes(ck, 0, part[0].n) + part_bytes(ck, 1, part[1].n), block_bytes);
}

uint32_t hl_chunk_of(const struct hl_chunking *ck, unsigned p, uint64_t at)
{
    return (uint32_t)(((p ? ck->elems[0] : 0) + at) / ck->chunk_elems);
}

uint64_t hl_block_for(uint64_t largest_bytes)
{
    const uint64_t least = UINT64_C(64) << 10;
    uint64_t block = round_up(largest_bytes / 8, least);

    return block < least ? least : block > HL_MOST_BLOCK_BYTES ? HL_MOST_BLOCK_BYTES : block;
}
