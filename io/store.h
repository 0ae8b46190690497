/*
 * store.h: the inside of a store.
 *
 * Who may touch what: everything below "I/O thread" in struct haul_store, every extent, block, cell
 * and transfer belongs to the I/O thread. Other threads reach it through hl_store_run(), which has the
 * I/O thread run a function between two of its turns, and through the inbox of requests.
 */
#ifndef HL_STORE_H
#define HL_STORE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "fail.h"
#include "haul/pager.h"
#include "haul/pool.h"
#include "method.h"
#include "wait.h"

#define HL_PATH_BYTES    512
#define HL_OP_TEXT_BYTES 320

/* ---- where data is ---- */

/* Slots of a block in its cell. */
#define HL_SLOT_NONE 2

struct hl_block {
    uint64_t sum;        /* of the first `bytes` bytes */
    uint64_t generation; /* that published it; 0: not published yet */
    uint32_t cell;
    uint32_t bytes;   /* covered by sum; what follows up to the block's length is zeros */
    uint16_t readers; /* transfers that read it now */
    uint8_t dir;
    uint8_t slot;    /* of the current content; NONE: never written, zeros */
    uint8_t held;    /* slot that the current generation needs */
    uint8_t older;   /* slot that the generation before it needs */
    uint8_t writing; /* a transfer writes it now */
    uint8_t torn;    /* a write in place failed: content unknown until written whole */
};

struct hl_extent {
    uint32_t id;
    uint32_t active; /* requests in flight */
    int passing;     /* in no generation */
    uint64_t bytes;
    uint64_t nblocks;
    struct hl_block *blocks; /* (nblocks,) */
    struct hl_extent *next;  /* in the list of dropped ones */
};

/* One directory and its data file. A cell is the place of one block: nslots * block_bytes. */
struct hl_dir {
    char path[HL_PATH_BYTES];
    char label[HL_PATH_BYTES + 16]; /* the data file, for texts */
    int dirfd, lock_fd;
    uint32_t align, mem_align; /* of transfers */
    int direct, tmpfs;
    const char *fs;
    double weight;
    uint32_t ncells, nfree, next_cell;
    uint64_t *used;                     /* bit per cell */
    uint64_t file_bytes, written_bytes; /* length; how much of it was written once */
    /* Buffered writes not yet known to be on the drive: (offset, length) ring. */
    struct {
        uint64_t offset, bytes;
    } behind[8];
    uint32_t nbehind;
};

/* ---- what is asked ---- */

/* TAKEN: its token is waited for, then DONE. CALLBACK: nobody waits, then FREE. */
enum hl_op_state { HL_OP_FREE = 0, HL_OP_TAKEN, HL_OP_CALLBACK, HL_OP_DONE };

struct hl_op {
    _Atomic uint32_t generation; /* in the token; moves on when it is claimed or given back */
    _Atomic uint32_t state;      /* enum hl_op_state */
    atomic_int urgent;
    int write, force_check;
    uint32_t extent;
    uint64_t offset, bytes;
    struct haul_seg one;
    const struct haul_seg *segs;
    uint32_t nsegs;
    haul_io_fn fn;
    void *user;
    uint64_t begun_ns;
    /* I/O thread */
    uint64_t serial;       /* number in the order of arrival */
    struct hl_extent *ext; /* NULL: not counted in its `active` */
    uint64_t cursor;       /* bytes cut into transfers so far */
    uint32_t seg;          /* where the cursor is in segs */
    uint64_t seg_offset;
    uint32_t inflight; /* transfers */
    int rc;
    char text[HL_OP_TEXT_BYTES];
    struct hl_op *next, *prev;
};

/* A function that the I/O thread runs; -EINPROGRESS: again next turn. */
typedef int (*hl_control_fn)(struct haul_store *store, void *arg);

struct hl_control {
    hl_control_fn fn;
    void *arg;
    int rc;
    char text[HL_OP_TEXT_BYTES];
    atomic_int done;
    struct hl_control *next;
};

/* ---- how it is moved ---- */

/* Steps of a transfer.
 *   FREE    in the free list. Next: READ, FILL, WRITE, ZERO (hl_transfer_begin)
 *   READ    the block is being read for a request. Next: CHECK
 *   FILL    the block is being read so that a part of it can be overwritten. Next: MERGE
 *   WRITE   the block is being written, and its checksum made meanwhile. Next: FREE when both are done
 *   CHECK, MERGE, ZERO  work for the CPU, in the work list. Next: FREE, WRITE, FREE */
enum hl_step { HL_FREE = 0, HL_READ, HL_FILL, HL_WRITE, HL_CHECK, HL_MERGE, HL_ZERO };

struct hl_xfer {
    enum hl_step step;
    uint32_t serial; /* in the tag; moves on at every issue, so that stale completions are known */
    int in_flight;   /* the method has it */
    struct hl_op *op;
    struct hl_extent *ext;
    uint64_t block;
    uint32_t from, to; /* the part of the block that the request is about */
    uint32_t seg;      /* where that part is in the request's memory */
    uint64_t seg_offset;
    uint8_t slot; /* read from, or written to */
    int in_place; /* a write over the current content */
    int check;    /* compare the checksum */
    int bounce;   /* index of the bounce block; -1: straight to the request's memory */
    char *mem;
    uint32_t start; /* where in the block the transfer begins */
    uint32_t bytes, moved;
    uint32_t tries; /* in a row without progress */
    uint64_t not_before_ns;
    int io_done, sum_done;
    uint64_t sum;
    struct hl_xfer *next;       /* in the free or work list */
    struct hl_xfer *retry_next; /* in the retry list: a write may be in work too */
};

struct hl_xfer_list {
    struct hl_xfer *head, *tail;
};

/* Meter of one direction. */
struct hl_meter {
    struct haul_direction_stats s;
    uint32_t inflight, limit;
    uint64_t since_ns, depth_ns; /* last change; inflight integrated over time */
};

/* ---- the store ---- */

struct haul_store {
    /* Fixed after open. */
    struct haul_store_opts opts; /* pointers in it are not used after open */
    uint32_t ndirs, nslots;
    struct hl_dir dirs[HAUL_MAX_DIRS];
    int fds[HAUL_MAX_DIRS];
    const struct hl_method_ops *method_ops;
    struct hl_method *method;
    char method_note[640], direct_note[640];
    int fixed_buffers;
    uint32_t align, mem_align;  /* strictest */
    struct haul_pool *own_pool; /* of the bounce blocks when the caller gave none */
    char *bounce_mem;
    pthread_t thread;
    int thread_up;
    uint64_t opened_ns;

    /* Any thread. */
    struct hl_spin lock; /* guards inbox, posted_controls, free_ops */
    struct hl_op *inbox_head, *inbox_tail;
    struct hl_control *posted_controls;
    struct hl_op *free_ops;
    struct hl_op *ops;         /* (max_requests,) */
    atomic_int asleep;         /* the I/O thread waits in reap */
    _Atomic uint64_t npending; /* requests not complete */
    struct hl_gate done_gate;

    /* Threads that change extents and generations: one at a time, the caller sees to it. */
    uint64_t store_id, generation, older_generation;
    void *blob;
    uint64_t blob_bytes;
    uint64_t written_before; /* by earlier openings */
    int flush_failed;

    /* I/O thread. */
    int stopping;
    uint64_t nadmitted; /* requests taken from the inbox so far */
    int frozen;         /* no write that came after number frozen_after starts */
    uint64_t frozen_after;
    struct hl_control *controls;
    int dead_rc; /* the method failed altogether */
    struct hl_op *active_head, *active_tail;
    struct hl_extent **extents; /* by id */
    uint32_t extents_len, nextents;
    struct hl_extent *dropped; /* that a live generation needs */
    struct hl_xfer *xfers;     /* (nxfers,) */
    uint32_t nxfers, nbounce_free;
    uint32_t *bounce_free;
    struct hl_xfer *free_xfers;
    struct hl_xfer_list work;
    struct hl_xfer *retry;
    struct hl_done *reaped; /* (nxfers,) */
    struct hl_meter read, write;
    uint64_t sample_count;
    uint64_t check_ns, short_transfers, retries, stale, checksum_errors;
};

/* An argument of the public call that this stands in. */
#define HL_GIVEN(arg) hl_need(__func__, #arg, arg)

/* store_open.c: with a method of the caller's choice; ops NULL: choose. Tests pass a faulty one. */
int hl_store_open_with(const struct haul_store_opts *opts, const struct hl_method_ops *ops,
                       struct haul_store **out);

/* store_dirs.c */
int hl_dirs_open(struct haul_store *s, const struct haul_store_opts *opts);
void hl_dirs_close(struct haul_store *s);
/* Data files, their alignment. */
int hl_dirs_files(struct haul_store *s);
/* Space: capacity cells spread over the directories, allocated and written once. */
int hl_dirs_reserve(struct haul_store *s);

/* store_cells.c. init: once ncells are fixed and the extents loaded. */
int hl_cells_init(struct haul_store *s);
void hl_cells_free_all(struct haul_store *s);
uint64_t hl_cells_free_count(const struct haul_store *s);
/* A free cell for the next block; 0 or -ENOSPC. */
int hl_cell_take(struct haul_store *s, uint8_t *dir, uint32_t *cell);
void hl_cell_mark(struct haul_store *s, uint8_t dir, uint32_t cell);
void hl_cell_give(struct haul_store *s, uint8_t dir, uint32_t cell);

/* store_extents.c */
struct hl_extent *hl_extent_find(const struct haul_store *s, uint32_t id);
/* For open: put a loaded extent in the table. */
int hl_extent_install(struct haul_store *s, struct hl_extent *ext);
void hl_extents_free_all(struct haul_store *s);
int hl_extent_alloc(uint32_t id, uint64_t bytes, uint64_t nblocks, struct hl_extent **out);
void hl_extent_free(struct hl_extent *ext);
/* Free the cells of dropped extents that no generation needs any more. */
void hl_extents_sweep(struct haul_store *s);
/* Bytes of block b that belong to the extent. */
uint32_t hl_block_len(const struct haul_store *s, const struct hl_extent *ext, uint64_t b);

/* store_requests.c */
int hl_store_submit(struct haul_store *s, const struct haul_io *io, int force_check,
                    uint64_t *token);
int hl_store_run(struct haul_store *s, hl_control_fn fn, void *arg);
/* The request is complete. I/O thread. */
void hl_op_complete(struct haul_store *s, struct hl_op *op);

/* store_loop.c */
int hl_loop_start(struct haul_store *s);
void hl_loop_stop(struct haul_store *s);

/* store_transfer.c: one block at a time. I/O thread.
 * begin: cut the next transfer from the request. 1: begun; 0: stalled (the block is busy, no bounce
 * block is free, writes are frozen); negative: the request has failed. */
int hl_transfer_begin(struct haul_store *s, struct hl_op *op);
void hl_transfer_done(struct haul_store *s, const struct hl_done *done);
void hl_transfer_work(struct haul_store *s);
/* Issue again what was put off and is due. */
void hl_transfer_retry(struct haul_store *s, uint64_t now_ns);
/* How long until the next one is due, HL_WAIT_FOREVER for none. */
uint64_t hl_transfer_patience(const struct haul_store *s, uint64_t now_ns);
/* Everything in flight fails with rc: the method is dead. */
void hl_transfer_fail_all(struct haul_store *s, int rc, const char *text);

/* store_memory.c: a request's memory in pieces. */
void hl_segs_advance(const struct hl_op *op, uint32_t *seg, uint64_t *offset, uint64_t bytes);
/* The next bytes of it as one piece, NULL when they are in several. */
char *hl_segs_piece(const struct hl_op *op, uint32_t seg, uint64_t offset, uint64_t bytes);
void hl_segs_put(const struct hl_op *op, uint32_t seg, uint64_t offset, const char *from,
                 uint64_t bytes); /* from NULL: zeros */
void hl_segs_get(const struct hl_op *op, uint32_t seg, uint64_t offset, char *to, uint64_t bytes);

/* store_buffered.c: after a transfer through the page cache. */
void hl_buffered_after(struct haul_store *s, uint32_t dir, int write, uint64_t offset,
                       uint64_t bytes);

/* store_durable.c */
int hl_durable_load(struct haul_store *s, const struct haul_store_opts *opts);
int hl_durable_stripes(struct haul_store *s);

/* store_stats.c */
void hl_meter_move(struct hl_meter *m, int by, uint64_t now_ns);
void hl_meter_request(struct hl_meter *m, const struct hl_op *op, uint64_t now_ns);

#endif
