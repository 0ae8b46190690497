/*
 * ckpt_stream.h: blocks on their way to a data file. The caller's thread reads them into a ring, another writes
 * them from there, so that reading is up to a ring ahead of the drive: an update that waits until its unit has been
 * read waits for the drive only when the ring is full.
 */
#ifndef HL_CKPT_STREAM_H
#define HL_CKPT_STREAM_H

#include "ckpt_model.h"

/* Read and not yet written: of the 64 MiB that a save may take, beside a slot of paged records. */
#define HL_CKPT_RING_BYTES (UINT64_C(24) << 20)

struct hl_ckpt_filler {
    /* The block's bytes at buf (HL_CKPT_BLOCK_BYTES and padding), padded. */
    int (*fill)(void *user, const struct hl_ckpt_block *block, char *buf);
    int (*done)(void *user); /* all have been filled */
    void *user;
};

/* Fill and write (nblocks,) blocks; sets their checksums. Returns when all are written, not yet flushed. */
int hl_ckpt_stream(int fd, struct hl_ckpt_block *blocks, uint64_t nblocks,
                   const struct hl_ckpt_filler *filler);

#endif
