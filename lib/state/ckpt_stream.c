/* ckpt_stream.c: see ckpt_stream.h. */
#include "ckpt_stream.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>

#include "checksum.h"
#include "fail.h"
#include "sys.h"
#include "sys_file.h"
#include "wait.h"

/* How much may be in the page cache before it is pushed out. */
#define WINDOW_BYTES (UINT64_C(8) << 20)

/* What filling a block takes; of it the block's own bytes are kept. */
#define FILL_BYTES (HL_CKPT_BLOCK_BYTES + HL_CKPT_ALIGN)
_Static_assert(HL_CKPT_RING_BYTES >= 2 * FILL_BYTES, "a block fits wherever the ring's end lies");

/* Places are counted on and on, over the ring again and again. */
struct stream {
    int fd;
    struct hl_ckpt_block *blocks;
    uint64_t nblocks, pushed;
    char *ring;
    pthread_t writer;
    struct hl_gate gate;
    _Atomic uint64_t filled, written; /* places: up to there */
    _Atomic int stop; /* of the filler: no more will come; of the writer: it has failed */
    int rc;           /* the writer's, when it has ended */
    char text[HL_ERROR_TEXT_BYTES];
};

/* Where a block may be filled that comes at `at` or later: not over the ring's end. */
static uint64_t place(uint64_t at)
{
    uint64_t in = at % HL_CKPT_RING_BYTES;

    return in + FILL_BYTES > HL_CKPT_RING_BYTES ? at + HL_CKPT_RING_BYTES - in : at;
}

static char *mem(const struct stream *s, uint64_t at)
{
    return s->ring + at % HL_CKPT_RING_BYTES;
}

static void move_on(struct stream *s, _Atomic uint64_t *which, uint64_t to)
{
    atomic_store(which, to);
    hl_gate_wake(&s->gate);
}

static void stop(struct stream *s)
{
    atomic_store(&s->stop, 1);
    hl_gate_wake(&s->gate);
}

/* Until *which has come to `to`. False: it will not. */
static bool wait_for(struct stream *s, _Atomic uint64_t *which, uint64_t to)
{
    for (;;) {
        uint32_t seen = hl_gate_look(&s->gate);
        if (atomic_load(&s->stop))
            return false;
        if (atomic_load(which) >= to)
            return true;
        hl_gate_sleep(&s->gate, seen);
    }
}

/* ---- the writer ---- */

/* Hints: an error of the drive comes back from fsync. */
static void push_out(struct stream *s, uint64_t to)
{
    uint64_t from = s->pushed, before = from < WINDOW_BYTES ? 0 : from - WINDOW_BYTES;

    if (to - from < WINDOW_BYTES)
        return;
    (void)hl_sys_write_behind(s->fd, (off_t)from, (off_t)(to - from), 0);
    if (from > before && hl_sys_write_behind(s->fd, (off_t)before, (off_t)(from - before), 1) == 0)
        (void)hl_sys_drop_cache(s->fd, (off_t)before, (off_t)(from - before));
    s->pushed = to;
}

static int write_all(struct stream *s)
{
    for (uint64_t i = 0, at = 0; i < s->nblocks; i++) {
        struct hl_ckpt_block *b = &s->blocks[i];
        at = place(at);
        if (!wait_for(s, &s->filled, at + b->bytes))
            return 0;
        b->sum = hl_checksum(mem(s, at), b->bytes);
        int rc = hl_sys_pwrite_all(s->fd, mem(s, at), b->bytes, (off_t)b->offset);
        if (rc < 0)
            return rc;
        push_out(s, b->offset + b->bytes);
        at += b->bytes;
        move_on(s, &s->written, at);
    }
    return 0;
}

static void *writer_main(void *user)
{
    struct stream *s = user;

    s->rc = write_all(s);
    if (s->rc < 0) {
        snprintf(s->text, sizeof s->text, "%s", haul_last_error());
        stop(s);
    }
    return NULL;
}

/* ---- the caller's thread ---- */

/* 0 also when the writer has failed. */
static int fill_all(struct stream *s, const struct hl_ckpt_filler *filler)
{
    int rc = 0;

    for (uint64_t i = 0, at = 0; rc == 0 && i < s->nblocks; i++) {
        const struct hl_ckpt_block *b = &s->blocks[i];
        at = place(at);
        if (at + FILL_BYTES > HL_CKPT_RING_BYTES &&
            !wait_for(s, &s->written, at + FILL_BYTES - HL_CKPT_RING_BYTES))
            return 0;
        rc = filler->fill(filler->user, b, mem(s, at));
        at += b->bytes;
        if (rc == 0)
            move_on(s, &s->filled, at);
    }
    return rc < 0 ? rc : filler->done(filler->user);
}

static int run(struct stream *s, const struct hl_ckpt_filler *filler)
{
    int rc = hl_sys_thread("haul-save-write", writer_main, s, &s->writer);

    if (rc < 0)
        return rc;
    rc = fill_all(s, filler);
    if (rc < 0)
        stop(s);
    hl_sys_join(s->writer);
    return rc == 0 && s->rc < 0 ? hl_fail_text(s->rc, s->text) : rc;
}

int hl_ckpt_stream(int fd, struct hl_ckpt_block *blocks, uint64_t nblocks,
                   const struct hl_ckpt_filler *filler)
{
    struct stream s = {.fd = fd, .blocks = blocks, .nblocks = nblocks};
    int rc = hl_sys_alloc_aligned(4096, HL_CKPT_RING_BYTES, (void **)&s.ring);

    if (rc == 0)
        rc = run(&s, filler);
    hl_sys_free(s.ring);
    return rc;
}
