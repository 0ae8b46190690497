/*
 * comm_nccl.h: the communicator over NCCL from the inside. Only for the comm_nccl*.c files.
 *
 * NCCL's communicators are used by who queues, by who blocks and by the watch, and an abort ends them under
 * everybody's hands: so each use is inside hold() .. give_back(), and finds NULL after an abort. With
 * non-blocking communicators no use takes long; what is in progress is asked after outside.
 */
#ifndef HL_COMM_NCCL_H
#define HL_COMM_NCCL_H

#include <pthread.h>
#include <stdatomic.h>

#include "comm.h"
#include "fail.h"
#include "nccl_lib.h"
#include "wait.h"

#define NCCL_WATCHED    64   /* calls under way that the watch knows the age of */
#define NCCL_REDUCE_LEN 1024 /* values of an all-reduce that travel at once */

enum nccl_kind {
    NCCL_KIND_GATHER = 0,
    NCCL_KIND_ALL_TO_ALL,
    NCCL_KIND_BROADCAST,
    NCCL_KIND_REDUCE
};

/* A call between two events. Filled by who queues, emptied in order by the watch. */
struct nccl_watched {
    struct hl_event *begin, *end;
    enum nccl_kind kind;
    uint64_t number, bytes;
    uint64_t since_ns; /* when the watch first saw it under way; 0: not yet */
};

struct nccl_comm {
    struct haul_comm base;
    struct haul_comm_ops ops; /* reduce_scatter is there or not */
    struct nccl_lib lib;
    struct haul_comm *over; /* not owned; NULL: the blocking calls go through the GPU */
    uint64_t timeout_ns;

    atomic_int held;
    struct hl_gate given_back;
    /* While held. */
    struct ncclComm *queued, *blocking; /* NULL: aborted, or never there */

    /* The first error: its text is written before rc. */
    atomic_int failing, rc;
    char text[HL_ERROR_TEXT_BYTES];

    /* The watch. */
    pthread_t watch;
    int watching;
    atomic_int closing;
    struct hl_gate bell;
    struct nccl_watched watched[NCCL_WATCHED];
    _Atomic uint64_t nwatched, nseen; /* put in by who queues, taken out by the watch */
    uint64_t ncalls;                  /* of who queues */

    /* Of who blocks, where there is no `over`. */
    void *stream;
    struct hl_event *arrived;
    uint64_t *device_values; /* (nranks, NCCL_REDUCE_LEN) on the GPU */
    uint64_t *values;        /* the same in host memory */
};

static inline struct nccl_comm *nccl_of(struct haul_comm *comm)
{
    return (struct nccl_comm *)comm;
}

/* ---- the communicator (comm_nccl.c) ---- */

void hl_nccl_hold(struct nccl_comm *c);
void hl_nccl_give_back(struct nccl_comm *c);
/* Record the error of this thread, once, and abort: streams go on, calls return. Not while held. */
void hl_nccl_fail(struct nccl_comm *c, int rc);
/* 0, or the recorded error, told again. */
int hl_nccl_check(struct haul_comm *comm);
/* Ask after *comm (queued or blocking) until it is no longer in progress, at most the time-out. Not while
 * held. what: for the text. */
int hl_nccl_settle(struct nccl_comm *c, struct ncclComm **comm, const char *what);

/* ---- queued calls (comm_nccl_queue.c) ---- */

int hl_nccl_all_gather(struct haul_comm *comm, void *full, const void *shard, uint64_t bytes,
                       void *stream);
int hl_nccl_all_to_all(struct haul_comm *comm, void *recv, const void *send, uint64_t bytes,
                       void *stream);
int hl_nccl_broadcast(struct haul_comm *comm, void *buf, uint64_t bytes, unsigned root,
                      void *stream);
int hl_nccl_reduce_scatter(struct haul_comm *comm, void *dst, const void *src,
                           enum haul_dtype dtype, uint64_t n, void *stream);
const char *hl_nccl_kind_name(enum nccl_kind kind);

/* ---- the watch (comm_nccl_watch.c) ---- */

int hl_nccl_watch_start(struct nccl_comm *c);
void hl_nccl_watch_end(struct nccl_comm *c);

/* ---- blocking calls (comm_nccl_scalar.c) ---- */

int hl_nccl_all_reduce(struct haul_comm *comm, enum haul_comm_scalar op, void *values, uint64_t n);
int hl_nccl_barrier(struct haul_comm *comm);
/* word of all ranks; out (nranks,). Through the GPU. */
int hl_nccl_gather_word(struct nccl_comm *c, uint64_t word, const uint64_t **out);
int hl_nccl_bounce_open(struct nccl_comm *c);
void hl_nccl_bounce_close(struct nccl_comm *c);

#endif
