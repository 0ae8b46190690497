/* fake_nccl_state.h: the fake library from the inside. */
#ifndef HAUL_TESTS_FAKE_NCCL_STATE_H
#define HAUL_TESTS_FAKE_NCCL_STATE_H

#include <stdatomic.h>

#include "../fake_cuda/fake_state.h"
#include "fake_nccl.h"
#include "nccl_lib.h"

enum { MOST_RANKS = 8, MOST_SPLITS = 1024, BOX_BYTES = 1 << 15 };
enum { INVALID_ARGUMENT = 4, INVALID_USAGE = 5 };

/* What one rank has for another: at most BOX_BYTES at once. */
struct box {
    atomic_int full;
    uint64_t bytes;
    char data[BOX_BYTES];
};

/* A place that processes share: a memfd of the process that made it, found through /proc. */
struct place {
    atomic_int pid, fd;
};

/* Of one communicator, shared by its ranks. Begins zeroed. */
struct world {
    atomic_int ncame;
    struct place child[MOST_SPLITS];
    struct box box[MOST_RANKS][MOST_RANKS]; /* [from][to] */
};

struct ncclComm {
    struct world *world;
    int rank, nranks, device, blocking;
    atomic_int refs;             /* of the user, and of every job that is queued */
    atomic_int aborted, pending; /* pending: still in progress, once */
    int finalized, nsplits;
    int fd; /* of the place, where this process made it; else -1 */
    /* A split that is in progress. */
    struct ncclComm **split_out;
    int split_blocking;
};

/* Of one message, or one end of a collective. */
struct part {
    char *at;
    uint64_t left;
    int peer, sends;
};

/* One call, or one group of them. */
struct job {
    struct ncclComm *comm;
    int nparts, room;
    struct part *part;
    /* A reduction, when nothing is NULL: into dst from what has arrived. */
    char *arrived, *dst;
    uint64_t n;
    int type;
};

/* First line of every call that can fail: counts it; 0, or the result it must return at once. */
int fake_nccl_enter(const char *call);
int fake_nccl_violation(int result, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* 0, or a violation: bytes at p are no device memory. */
int fake_nccl_check(const char *call, const void *p, uint64_t bytes);
/* Usable: there, not finalised, not in progress. */
int fake_nccl_check_comm(const char *call, struct ncclComm *comm);
int fake_nccl_pick_broken(int result);
void fake_nccl_count(int alive);

void fake_nccl_retain(struct ncclComm *comm);
void fake_nccl_release(struct ncclComm *comm);

#endif
