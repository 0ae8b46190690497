/*
 * method.h: how transfers reach the drive. For authors of methods and for the store.
 *
 * A method moves single transfers and decides nothing: it retries nothing, resumes nothing and hides
 * nothing; the store does. One thread, the store's I/O thread, opens it and calls start and reap.
 * Every hook is required unless marked (optional).
 */
#ifndef HL_METHOD_H
#define HL_METHOD_H

#include <stdint.h>

#include "haul/pager.h"

/* One transfer of at most 1 GiB. */
struct hl_transfer {
    uint64_t tag; /* comes back with the completion */
    int write;
    uint32_t file; /* index into fds */
    uint32_t bytes;
    uint64_t offset;
    void *buf;
};

struct hl_done {
    uint64_t tag;
    int64_t result; /* bytes moved, maybe fewer than asked; or -errno */
};

struct hl_method_args {
    const int *fds; /* (nfiles,) they stay open and at this address until close */
    uint32_t nfiles;
    uint32_t depth;                 /* at most this many transfers are started and not reaped */
    const struct haul_seg *regions; /* (nregions,) memory worth registering; a hint */
    uint32_t nregions;
};

struct hl_method; /* every method's state begins with one */

#define HL_WAIT_FOREVER UINT64_MAX

struct hl_method_ops {
    const char *name;
    int (*open)(const struct hl_method_args *args, struct hl_method **out);
    /* Nothing is in flight any more. */
    void (*close)(struct hl_method *m);
    /* Begin a transfer; may be held back until reap. Does not block. An error: not begun. */
    int (*start)(struct hl_method *m, const struct hl_transfer *t);
    /* Completions, at most max. With none there: wait up to wait_ns, or until wake. */
    int (*reap)(struct hl_method *m, struct hl_done *out, uint32_t max, uint64_t wait_ns);
    /* End a waiting reap, or the next one. Any thread. */
    void (*wake)(struct hl_method *m);
    /* Completed writes of a file are on stable storage when this returns. Any thread. */
    int (*flush)(struct hl_method *m, uint32_t file);
    /* CPU time of the method's own threads. (optional) */
    uint64_t (*cpu_ns)(struct hl_method *m);
    /* Why something is missing (registration), "" when nothing is; *fixed: buffers are registered.
     * (optional) */
    const char *(*note)(struct hl_method *m, int *fixed);
};

struct hl_method {
    const struct hl_method_ops *ops;
};

extern const struct hl_method_ops hl_method_threads;
extern const struct hl_method_ops hl_method_uring; /* not there without liburing */

/* Try a method in a directory: a real aligned write, read and compare, with memory at a non-zero
 * offset of a registered region. align: of offset, length and memory. */
int hl_method_try(const struct hl_method_ops *ops, int dirfd, uint32_t align, int direct);

/* The method to use for the store: what was asked for, or the best that works in every directory.
 * note (note_bytes,) gets the reason for a fallback and its remedy, or "". */
struct hl_method_place {
    const char *path; /* for texts */
    int dirfd;
    uint32_t align;
    int direct;
};
int hl_method_choose(enum haul_io_method asked, const struct hl_method_place *places, uint32_t n,
                     char *note, uint32_t note_bytes, const struct hl_method_ops **out);

/* For a call on a file in the directory that has failed with rc: where it is for lack of space, the
 * text gets the directory and what is free there. Returns rc. */
int hl_place_full(int rc, const char *path, int dirfd);

#endif
