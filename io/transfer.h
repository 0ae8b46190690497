/* transfer.h: between the two files that move a block: store_transfer.c says what happens to it,
 * store_issue.c gets it to the method and back. I/O thread only. */
#ifndef HL_TRANSFER_H
#define HL_TRANSFER_H

#include "store.h"

static inline struct hl_block *hl_xfer_block(const struct hl_xfer *x)
{
    return &x->ext->blocks[x->block];
}

static inline struct hl_meter *hl_xfer_meter(struct haul_store *s, const struct hl_xfer *x)
{
    return x->op->write ? &s->write : &s->read;
}

static inline uint64_t hl_xfer_offset(const struct haul_store *s, const struct hl_xfer *x)
{
    return ((uint64_t)hl_xfer_block(x)->cell * s->nslots + x->slot) * s->opts.block_bytes;
}

static inline uint32_t hl_round_up(uint32_t n, uint32_t align)
{
    return (n + align - 1) / align * align;
}

static inline uint32_t hl_xfer_align(const struct haul_store *s, const struct hl_xfer *x)
{
    return s->dirs[hl_xfer_block(x)->dir].align;
}

/* To the end of the list of CPU work. */
void hl_work_put(struct haul_store *s, struct hl_xfer *x);

/* Hand what is left of the transfer to the method; a refusal is dealt with here. */
void hl_xfer_issue(struct haul_store *s, struct hl_xfer *x);
/* The method answered with an error: retry, leave direct I/O, or fail the request. */
void hl_xfer_refused(struct haul_store *s, struct hl_xfer *x, int rc);
/* The method moved less than asked: go on from the last aligned byte, or fail the request. */
void hl_xfer_resume(struct haul_store *s, struct hl_xfer *x, uint32_t moved);

/* Ends. release: the block and the bounce block are free again. fail: the request's too, with its
 * first error. */
void hl_xfer_release(struct haul_store *s, struct hl_xfer *x);
void hl_xfer_fail(struct haul_store *s, struct hl_xfer *x, int rc, const char *fmt, ...)
    HAUL_PRINTF(4, 5);
void hl_xfer_fail_io(struct haul_store *s, struct hl_xfer *x, int rc, const char *why);

#endif
