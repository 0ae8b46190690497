/* fake_state.h: the fake driver from the inside. One lock guards everything; queued work runs outside. */
#ifndef HAUL_TESTS_FAKE_STATE_H
#define HAUL_TESTS_FAKE_STATE_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(default)
#include <cuda.h>
#pragma GCC visibility pop

#include "fake_cuda.h"

#define EXPORT __attribute__((visibility("default")))

/* A range that queued work reads or writes: nobody may free it meanwhile. */
struct fake_use {
    uint64_t start, bytes;
};

struct fake_op {
    struct fake_op *next;
    uint64_t ticket;
    void (*run)(struct fake_op *op);
    struct fake_use use[5];
    void *owned; /* freed when the operation ends, NULL: nothing */
    union {
        struct {
            void *dst;
            const void *src;
            size_t bytes;
            int value;
        } copy;
        struct {
            CUhostFn fn;
            void *user;
        } host;
        struct {
            CUstream stream;
            uint64_t ticket;
        } wait;
        struct {
            CUevent event;
            uint64_t record;
        } record;
        struct {
            const struct fake_kernel *kernel;
            uint64_t nblocks;
            char args[128];
        } launch;
        struct {
            unsigned kernel; /* its arguments are owned */
        } gpt;
    };
};

struct CUstream_st {
    struct CUstream_st *next; /* of all, closed ones too: events may still speak of them */
    pthread_t thread;
    pthread_cond_t work;
    int open, closing, slow, priority;
    uint64_t queued, done; /* tickets */
    uint64_t random;       /* 0: no delays */
    struct fake_op *head, *tail, *running;
};

struct CUevent_st {
    struct CUevent_st *next; /* of all, destroyed ones too */
    int open;
    unsigned flags;
    uint64_t nrecords;
    CUstream stream; /* of the latest record; NULL: never recorded */
    uint64_t ticket;
    uint64_t reached_ns;
};

struct fake_alloc {
    struct fake_alloc *next;
    uint64_t start, bytes;
};

struct CUctx_st {
    int device;
    int refs;
};

#define FAKE_DEVICES 8

struct fake {
    pthread_mutex_t lock;
    pthread_cond_t progress; /* some operation has ended */
    struct fake_cuda_config config;
    int ready; /* cuInit has been called */
    CUresult lost;
    int64_t fail_in, lose_in, calls, violations;
    int fail_result, lose_result;
    const char *failed; /* the call; NULL: none yet */
    struct CUctx_st ctx[FAKE_DEVICES];
    struct CUstream_st *streams, *default_stream;
    struct CUevent_st *events;
    struct fake_alloc *device, *pinned; /* pinned: registered or allocated pinned */
    uint64_t device_bytes, pinned_bytes;
    int64_t live; /* streams, events, allocations, registrations, modules, contexts */
    uint64_t nstreams;
};

extern struct fake fake;

/* First line of every call: counts it and gives the result it must return at once, with the lock held only
 * when that is CUDA_SUCCESS. needs_ctx: a context must be current. */
CUresult fake_enter(const char *call, int needs_ctx);
/* First line of every call that releases or waits: never refuses; the result to return at the end. Locks. */
CUresult fake_enter_release(const char *call);
CUresult fake_leave(CUresult res);

/* A wrong use: told on stderr, counted, and given back as a result. Under lock. */
CUresult fake_violation(CUresult res, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Under lock: [start, start + bytes) is inside one live device allocation. */
int fake_is_device(uint64_t start, uint64_t bytes);
int fake_touches_device(uint64_t start, uint64_t bytes);
/* Under lock: 1 inside one pinned range, 0 touching none, -1 astride. */
int fake_is_pinned(uint64_t start, uint64_t bytes);
/* Under lock: queued work that is not done uses some of the range. */
int fake_in_use(uint64_t start, uint64_t bytes);

/* Under lock: the stream (NULL: the default one), or NULL when it is not open. */
CUstream fake_stream(CUstream stream);
/* Under lock: queue a copy of *op. */
CUresult fake_push(CUstream stream, const struct fake_op *op);
/* Under lock: wait until the ticket is done, or the context lost. */
void fake_await(CUstream stream, uint64_t ticket);
void fake_end_default_stream(void);

uint64_t fake_now_ns(void);

/* The host build of a kernel. */
struct fake_kernel {
    const char *name;
    void (*body)(const void *args, uint64_t block, uint32_t thread);
    int kind; /* enum in fake_launch.c */
    int to, from;
    uint32_t nthreads;
};
extern const struct fake_kernel fake_kernels[];
extern const unsigned fake_nkernels;

/* The kernels of examples/train_gpt. NULL: none of that name. */
CUfunction fake_gpt_function(const char *name);
int fake_is_gpt(CUfunction fn);
/* Under lock. */
CUresult fake_gpt_launch(CUfunction fn, const unsigned grid[3], const unsigned block[3],
                         unsigned shared, CUstream stream, void **params);
enum { FAKE_CONVERT, FAKE_ACCUMULATE, FAKE_SUM, FAKE_SUMSQ, FAKE_OPTIM };

#endif
