/*
 * haul/pager.h: big arrays on NVMe, checked, striped and durable.
 *
 * Usable alone. A store spreads extents over one or more directories in blocks, checks every block
 * with XXH3-64, and moves them with io_uring (or with a thread pool where io_uring is refused).
 *
 * A tour.
 *
 *     struct haul_store_opts opts;                   1. a scratch store: gone with the process
 *     haul_store_opts_init(&opts);
 *     opts.dirs = (const char *[]){"/mnt/nvme0", "/mnt/nvme1"};
 *     opts.ndirs = 2;
 *     opts.capacity_bytes = 64ull << 30;             reserved and written once here: no ENOSPC later
 *     haul_store_open(&opts, &store);
 *
 *     haul_extent_create(store, 7, bytes);           2. extents, numbered by the caller
 *     haul_store_write(store, 7, 0, buf, bytes);     3. simple: blocking
 *     haul_store_read(store, 7, 0, buf, bytes);
 *
 *     struct haul_io io = {.extent = 7, .buf = buf, .bytes = bytes};
 *     haul_store_submit(store, &io, &token);         4. asynchronous: a token, waited for once
 *     haul_store_wait(store, token);
 *
 *     opts.durable = 1;                              5. durable: named files, a lock, generations
 *     haul_store_commit(store, 42, blob, len);          all writes so far become generation 42, whole
 *                                                       or not at all, whenever the process is killed
 *     haul_store_close(store);
 *
 * Rules of requests.
 * - Memory is the caller's and must stay as it is until the request is complete. Any memory works;
 *   memory of opts.pool goes without a copy.
 * - A request may have any size and any offset. Whole blocks are fastest: a write of part of a block
 *   reads the rest first, a checked read of part of a block reads all of it.
 * - Requests in flight together that overlap have no order, but each block is read or written whole.
 *   Wait for a write before reading what it wrote.
 * - What was never written reads as zeros.
 * - Errors of a request come from wait, poll or the callback, and hit that request alone.
 *
 * A NULL where an argument is needed is -EINVAL, and the text names it.
 *
 * Calls on requests may come from any thread at any time. Everything else: one thread at a time.
 */
#ifndef HAUL_PAGER_H
#define HAUL_PAGER_H

#include "haul/error.h"

#ifdef __cplusplus
extern "C" {
#endif

struct haul_store;
struct haul_pool;

/* ---- opening ---- */

enum haul_verify {
    HAUL_VERIFY_ALWAYS = 0, /* check every block that is read */
    HAUL_VERIFY_SAMPLE,     /* every verify_every-th */
    HAUL_VERIFY_OFF,        /* checksums are still made for durable stores */
};

enum haul_reserve {
    HAUL_RESERVE_WRITTEN = 0, /* allocate, then write once: fast writes from the first step on */
    HAUL_RESERVE_ALLOCATED,   /* allocate only: ENOSPC is still found at open */
    HAUL_RESERVE_NONE,        /* sparse files: ENOSPC comes from the write that hits it */
};

enum haul_io_method { HAUL_IO_AUTO = 0, HAUL_IO_URING, HAUL_IO_THREADS };

enum haul_direct {
    HAUL_DIRECT_AUTO = 0, /* past the page cache where the file system can, buffered where not */
    HAUL_DIRECT_ON,       /* or fail */
    HAUL_DIRECT_OFF,      /* buffered, with write-behind and dropping of cached pages */
};

#define HAUL_MAX_DIRS 16

/* The newest generation there is. */
#define HAUL_LATEST 0

typedef void (*haul_progress_fn)(void *user, uint64_t done_bytes, uint64_t total_bytes);

struct haul_store_opts {
    size_t struct_size;
    const char *const *dirs;   /* (ndirs,) each once; created when missing (not their parents) */
    uint32_t ndirs;            /* 1..HAUL_MAX_DIRS */
    const double *dir_weights; /* (ndirs,) relative speeds for striping; NULL (default): equal */
    uint64_t
        capacity_bytes;    /* sum over extents of haul_extent_cost(); 0: what a durable store has */
    uint32_t block_bytes;  /* stripe and checksum block, multiple of 4096, 4096..1 GiB; default
                                  4 MiB; a durable store keeps the one it was made with */
    uint32_t read_depth;   /* blocks in flight, 1..1024, default 12 */
    uint32_t write_depth;  /* likewise */
    uint32_t max_requests; /* submitted and not yet waited for, 1..65536, default 256 */
    uint32_t bounce_blocks; /* blocks of own memory for what cannot go directly, >= 1, default 4 */
    struct haul_pool *pool; /* registered with the ring; gives the bounce blocks; may be NULL */
    enum haul_io_method method;
    enum haul_direct direct;
    enum haul_verify verify;
    uint32_t verify_every; /* HAUL_VERIFY_SAMPLE only, >= 1, default 16 */
    enum haul_reserve reserve;
    int durable;    /* 0 (default): scratch */
    int read_only;  /* durable only: nothing on disk changes; many may have it open */
    int keep_older; /* durable only; 1: the generation before the opened one stays until
                            haul_store_retire(); 0 (default): it is retired at open */
    uint64_t
        generation; /* durable only: which to open; default HAUL_LATEST. Newer ones are dropped */
    uint64_t
        rated_bytes_written; /* endurance of the drives together, for wear; 0 (default): unknown */
    haul_progress_fn progress; /* called while space is written at open; may be NULL */
    void *progress_user;
};

HAUL_API
void haul_store_opts_init(struct haul_store_opts *opts);

/**
 * Take block size, depths and weights of opts->dirs from a profile that `haul tune` wrote.
 *
 * Directories that the profile does not know leave the defaults.
 *
 * @param opts  [in,out] dirs and ndirs set; block_bytes, read_depth, write_depth are written, and
 *                       weights (ndirs,), to which dir_weights then points
 * @param path  [in]     the profile
 * @param weights [out]  (ndirs,) the caller's memory
 *
 * Errors     0, -errno of the file, HAUL_E_CONFIG (not a profile; text says where)
 */
HAUL_API
HAUL_MUST_USE
int haul_store_opts_profile(struct haul_store_opts *opts, const char *path, double *weights);

/**
 * Open a store: probe the method, reserve the space, start the I/O thread.
 *
 * A scratch store's files have no name and vanish with the process. A durable store holds a lock per
 * directory; a second opener is refused and told who holds it. What a dead holder left is reclaimed.
 *
 * @param opts  [in]  options; read here, not kept (pool is)
 * @param out   [out] the store; written only on success
 *
 * Ownership  the caller owns *out; end it with haul_store_close() before the pool is closed
 * Threads    any
 * Blocks     yes: writes the reserved space once
 * Errors     0, or
 *            -EINVAL           an option out of range (text names it)
 *            -ENOSPC, -EDQUOT  capacity does not fit (text says how much is free)
 *            -EBUSY            held by another process (text gives its pid)
 *            -ENOENT           the generation asked for is not there; read_only and no generation
 *            HAUL_E_CONFIG     directories of another store, or in another order
 *            HAUL_E_CHECKSUM   the manifest asked for is damaged
 *            HAUL_E_ABI        opts not initialised
 *            -errno            of the file system or the method (text names file and call)
 */
HAUL_API
HAUL_MUST_USE
int haul_store_open(const struct haul_store_opts *opts, struct haul_store **out);

/* Waits for everything submitted, then closes. Writes since the last prepare are not kept. The
 * space of a scratch store is free when this returns. NULL is fine. Tokens not waited for become
 * invalid. */
HAUL_API
void haul_store_close(struct haul_store *store);

/* ---- extents ---- */

/* Bytes of capacity that an extent takes: whole blocks. */
static inline uint64_t haul_extent_cost(uint64_t bytes, uint32_t block_bytes)
{
    return (bytes + block_bytes - 1) / block_bytes * block_bytes;
}

/**
 * Make an extent of zeros.
 *
 * @param id     [in] any number below HAUL_MAX_EXTENTS that is not in use
 * @param bytes  [in] its size, >= 1
 *
 * Threads    one at a time; requests on other extents may be in flight
 * Blocks     until the I/O thread has seen it
 * Errors     0, -EEXIST, -EINVAL, -ENOMEM, -ENOSPC (text: free and asked), -EROFS
 */
HAUL_API
HAUL_MUST_USE
int haul_extent_create(struct haul_store *store, uint32_t id, uint64_t bytes);

#define HAUL_MAX_EXTENTS (1u << 20)

/* Make an extent larger; the new part is zeros. -EBUSY while requests on it are in flight, -EINVAL
 * when bytes is below its size, else as create. */
HAUL_API
HAUL_MUST_USE
int haul_extent_grow(struct haul_store *store, uint32_t id, uint64_t bytes);

/* Drop an extent. Its space is free at once, or when the last generation that needs it is retired. -ENOENT, -EBUSY while requests on it are in flight. */
HAUL_API
HAUL_MUST_USE
int haul_extent_drop(struct haul_store *store, uint32_t id);

/* Size of an extent; -ENOENT. */
HAUL_API
HAUL_MUST_USE
int haul_extent_size(struct haul_store *store, uint32_t id, uint64_t *bytes);

/* ---- simple requests: blocking ---- */

/**
 * Read or write [offset, offset + bytes) of an extent and wait for it.
 *
 * Threads    any, but not from a callback (HAUL_E_STATE)
 * Blocks     until done
 * Errors     0, or
 *            -EINVAL          past the extent's end, bytes = 0
 *            -ENOENT          no such extent
 *            -EAGAIN          max_requests are submitted and not waited for
 *            HAUL_E_CHECKSUM  text: file, offset, block, expected, found. The data is not handed out
 *            HAUL_E_SHORT_IO  the file ends early
 *            HAUL_E_STATE     a write needs the slot of a generation that is not retired
 *            -errno           of the transfer (text: file, offset)
 */
HAUL_API
HAUL_MUST_USE
int haul_store_read(struct haul_store *store, uint32_t extent, uint64_t offset, void *buf,
                    uint64_t bytes);
HAUL_API
HAUL_MUST_USE
int haul_store_write(struct haul_store *store, uint32_t extent, uint64_t offset, const void *buf,
                     uint64_t bytes);

/* ---- requests with a token ---- */

struct haul_seg {
    void *base;
    uint64_t bytes;
};

typedef void (*haul_io_fn)(void *user, int rc);

/* One request. All zero is a valid start: a read at offset 0. */
struct haul_io {
    int write; /* 0: read */
    uint32_t extent;
    uint64_t offset;
    void *buf; /* one piece of memory (a write only reads it) ... */
    uint64_t bytes;
    const struct haul_seg *segs; /* ... or several, in order; must stay valid until completion */
    uint32_t nsegs;              /* 0: buf */
    int urgent;    /* goes before what is not; waiting for a request makes it urgent */
    haul_io_fn fn; /* called once on the I/O thread when complete, and the token is gone;
                                    may submit, must not wait; haul_last_error() has the text */
    void *user;
};

/**
 * Hand a request to the I/O thread.
 *
 * @param io     [in]  read here, not kept (segs and memory are)
 * @param token  [out] for wait, wait_any or poll; may be NULL when fn is given
 *
 * Threads    any, callbacks too
 * Blocks     no
 * Errors     0, -EAGAIN (max_requests are out: wait for one), -EINVAL, -EROFS
 */
HAUL_API
HAUL_MUST_USE
int haul_store_submit(struct haul_store *store, const struct haul_io *io, uint64_t *token);

/* Wait for a request and give its token back. Returns the request's result. A token that was already
 * waited for is -EINVAL, also for a thread that is waiting for it when another gets the result. */
HAUL_API
HAUL_MUST_USE
int haul_store_wait(struct haul_store *store, uint64_t token);

/* Wait until one of (n,) tokens is complete; give that one back, *index says which. Zero tokens are
 * passed over; all zero is -EINVAL. */
HAUL_API
HAUL_MUST_USE
int haul_store_wait_any(struct haul_store *store, const uint64_t *tokens, uint32_t n,
                        uint32_t *index);

/* Not complete: 0 with *done = 0. Complete: *done = 1, the token is given back, the result returned. */
HAUL_API
HAUL_MUST_USE
int haul_store_poll(struct haul_store *store, uint64_t token, int *done);

/* Wait until nothing is in flight. Results stay with their tokens. */
HAUL_API
void haul_store_drain(struct haul_store *store);

/* ---- generations (durable stores) ---- */

/**
 * Make all writes since the last prepare a generation, and keep the one before.
 *
 * Data is flushed first, then the manifest is written beside the previous one: temp, fsync, rename,
 * fsync of the directory. Both generations can be opened until haul_store_retire().
 *
 * @param generation  [in] larger than the current one
 * @param blob        [in] (blob_bytes,) the caller's notes, kept with it; may be NULL
 *
 * Writes submitted before are waited for and belong to it, later ones are held back meanwhile; reads
 * go on.
 *
 * Blocks     yes
 * Errors     0, or
 *            -EINVAL       scratch store, or generation not larger
 *            HAUL_E_STATE  the generation before the current one is not retired, or a flush failed
 *                          earlier: reopen
 *            -errno        of a flush or of the manifest; the current generation stays
 */
HAUL_API
HAUL_MUST_USE
int haul_store_prepare(struct haul_store *store, uint64_t generation, const void *blob,
                       uint64_t blob_bytes);

/* Remove a generation that is older than the current one; its blocks may be overwritten from then on.
 * -ENOENT when it is not there, -EINVAL for the current one. */
HAUL_API
HAUL_MUST_USE
int haul_store_retire(struct haul_store *store, uint64_t generation);

/* retire what is older, prepare, retire the previous: for a store with a single owner. */
HAUL_API
HAUL_MUST_USE
int haul_store_commit(struct haul_store *store, uint64_t generation, const void *blob,
                      uint64_t blob_bytes);

/* The current generation (0: none yet) and its blob, owned by the store until the next prepare. */
HAUL_API
uint64_t haul_store_generation(struct haul_store *store, const void **blob, uint64_t *blob_bytes);

/**
 * Which generations stand in a directory, oldest first, without opening the store.
 *
 * @param dir  [in]  the first of the store's directories
 * @param out  [out] (max,) generations
 * @param n    [out] how many there are; may exceed max
 */
HAUL_API
HAUL_MUST_USE
int haul_store_generations(const char *dir, uint64_t *out, uint32_t max, uint32_t *n);

/* One damaged block. */
struct haul_damage {
    uint32_t extent;
    uint64_t block; /* index in the extent */
    int rc;
    const char *text; /* file, offset, expected, found */
};

typedef void (*haul_damage_fn)(void *user, const struct haul_damage *damage);

/* Read every block and check it, whatever opts.verify says; fn (may be NULL) hears of each damaged
 * one. Returns 0 with the number in *ndamaged. */
HAUL_API
HAUL_MUST_USE
int haul_store_verify(struct haul_store *store, haul_damage_fn fn, void *user, uint64_t *ndamaged);

/* ---- what it does and did ---- */

struct haul_store_info {
    size_t struct_size;      /* set by the caller */
    const char *method;      /* "uring" or "threads"; texts are the store's */
    const char *method_note; /* why not a better one, and the remedy; "" when it is the best */
    int direct;              /* 1: past the page cache in every directory */
    const char *direct_note; /* which directory is buffered, and why; "" */
    int fixed_buffers;       /* the pool is registered with the ring */
    uint32_t align_bytes;    /* of offsets and lengths on disk, the strictest directory */
    uint32_t mem_align_bytes;
    uint32_t block_bytes, read_depth, write_depth;
    uint64_t capacity_bytes,
        used_bytes;      /* whole blocks; blocks held by generations count as used */
    uint64_t file_bytes; /* on disk: twice the capacity when durable */
    uint32_t nextents;
};

/* What the store settled on, and how full it is. Errors  0, HAUL_E_ABI */
HAUL_API
HAUL_MUST_USE
int haul_store_get_info(struct haul_store *store, struct haul_store_info *info);

/* Bucket i counts requests that took [2^i, 2^(i+1)) microseconds; the first and last are open. */
#define HAUL_LATENCY_BUCKETS 24
#define HAUL_DEPTH_BUCKETS   12

struct haul_direction_stats {
    uint64_t requests, failed;
    uint64_t bytes;      /* asked for by completed requests */
    uint64_t disk_bytes; /* moved, with the rest of partial blocks */
    uint64_t blocks;     /* transfers */
    uint64_t bounced;    /* of those, through a bounce block */
    uint64_t latency[HAUL_LATENCY_BUCKETS];
    uint64_t busy_ns;                      /* time with at least one transfer in flight */
    double mean_depth;                     /* transfers in flight, over busy_ns */
    uint64_t depth_ns[HAUL_DEPTH_BUCKETS]; /* of busy_ns, with [2^i, 2^(i+1)) in flight */
};

struct haul_store_stats {
    size_t struct_size; /* set by the caller */
    struct haul_direction_stats read, write;
    uint64_t cpu_ns;   /* of the store's own threads */
    uint64_t check_ns; /* of that, checksums */
    uint64_t short_transfers, retries, stale_completions, checksum_errors;
    uint64_t written_ever_bytes; /* since the store was created; durable: over all openings */
};

/* What was read and written since open. Errors  0, HAUL_E_ABI */
HAUL_API
HAUL_MUST_USE
int haul_store_stat(struct haul_store *store, struct haul_store_stats *stats);

struct haul_wear {
    size_t struct_size; /* set by the caller */
    char device[32];    /* "nvme0n1"; "" when there is none (tmpfs) */
    char model[64];
    int rotational;               /* -1 unknown */
    uint64_t drive_written_bytes; /* by anyone, ever, as the drive says; 0 unknown */
    uint64_t
        rated_bytes; /* what it is built for: opts, else from the drive's wear figure; 0 unknown */
    double used_fraction;     /* of its life; -1 unknown */
    double write_bytes_per_s; /* of this store, since open */
    double life_left_s;       /* at that rate; -1 unknown */
};

/* Wear of the drive under directory dir. */
HAUL_API
HAUL_MUST_USE
int haul_store_wear(struct haul_store *store, uint32_t dir, struct haul_wear *out);

#ifdef __cplusplus
}
#endif
#endif
