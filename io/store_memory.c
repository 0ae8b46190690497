/* store_memory.c: walks over the pieces of a request's memory. Hot path: no allocation, no lock. */
#include <string.h>

#include "store.h"

void hl_segs_advance(const struct hl_op *op, uint32_t *seg, uint64_t *offset, uint64_t bytes)
{
    *offset += bytes;
    while (*seg < op->nsegs && *offset >= op->segs[*seg].bytes) {
        *offset -= op->segs[*seg].bytes;
        (*seg)++;
    }
}

char *hl_segs_piece(const struct hl_op *op, uint32_t seg, uint64_t offset, uint64_t bytes)
{
    if (bytes > op->segs[seg].bytes - offset)
        return NULL;
    return (char *)op->segs[seg].base + offset;
}

void hl_segs_put(const struct hl_op *op, uint32_t seg, uint64_t offset, const char *from,
                 uint64_t bytes)
{
    while (bytes) {
        uint64_t n = op->segs[seg].bytes - offset;
        char *to = (char *)op->segs[seg].base + offset;

        if (n > bytes)
            n = bytes;
        if (from)
            memcpy(to, from, n);
        else
            memset(to, 0, n);
        from = from ? from + n : NULL;
        bytes -= n;
        hl_segs_advance(op, &seg, &offset, n);
    }
}

void hl_segs_get(const struct hl_op *op, uint32_t seg, uint64_t offset, char *to, uint64_t bytes)
{
    while (bytes) {
        uint64_t n = op->segs[seg].bytes - offset;

        if (n > bytes)
            n = bytes;
        memcpy(to, (const char *)op->segs[seg].base + offset, n);
        to += n;
        bytes -= n;
        hl_segs_advance(op, &seg, &offset, n);
    }
}
