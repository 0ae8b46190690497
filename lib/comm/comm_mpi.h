/*
 * comm_mpi.h: the communicator over MPI from the inside. Only for the comm_mpi*.c files, which are a
 * library of their own: of haul they use what its public headers declare, of libc what they need.
 */
#ifndef HL_COMM_MPI_H
#define HL_COMM_MPI_H

#include <errno.h>
#include <stdatomic.h>

#include "haul/mpi.h"
#include "haul/pool.h"

#define MPI_CALLS       512  /* queued calls under way; a queue of a device holds 1024 operations */
#define MPI_REDUCE_LEN  1024 /* values of an all-reduce that travel at once */
#define MPI_WINDOW      4    /* messages under way to a peer, and from it */
#define MPI_ERROR_BYTES 1024

/* ---- one exchange with all peers (comm_mpi_exchange.c) ---- */

/* One direction with one peer: what has not been handed to MPI yet. */
struct mpi_way {
    char *at;
    uint64_t left;
};

/* Buffers of one thread's exchanges. Way r is receiving from rank r, nranks + r sending to it. Slots
 * [MPI_WINDOW * w, MPI_WINDOW * (w + 1)) are the messages of way w that are under way; both ends cut alike
 * and post in order, so that the k-th of one meets the k-th of the other. */
struct mpi_exchange {
    MPI_Comm comm;
    uint32_t nslots;      /* MPI_WINDOW * 2 * nranks */
    struct mpi_way *way;  /* (2 * nranks,) */
    MPI_Request *request; /* (nslots,) */
    int *flying_bytes;    /* (nslots,) of the message; 0: none */
    MPI_Status *status;   /* (nslots,) for MPI_Testsome */
    int *done;            /* (nslots,) for MPI_Testsome */
    int nflying;
};

struct mpi_comm;

/* Begin anew: no way has anything to do. */
void hl_mpi_exchange_clear(struct mpi_comm *m, struct mpi_exchange *x);
void hl_mpi_exchange_receive(struct mpi_exchange *x, unsigned rank, void *to, uint64_t bytes);
void hl_mpi_exchange_send(struct mpi_comm *m, struct mpi_exchange *x, unsigned rank,
                          const void *from, uint64_t bytes);
/* Move it all, or fail: a time-out in which nothing moved names the ranks that are missed. */
int hl_mpi_exchange_run(struct mpi_comm *m, struct mpi_exchange *x, int tag, const char *what);

/* A wait that yields at first and then sleeps, longer and longer. Starts zeroed. */
struct mpi_pause {
    double since; /* MPI_Wtime() when it began, 0: not yet */
    long sleep_ns;
};
void hl_mpi_pause(struct mpi_pause *p);
double hl_mpi_paused_s(const struct mpi_pause *p);
int hl_mpi_timed_out(const struct mpi_comm *m, const struct mpi_pause *p);

/* Has this rank given up, or another one? 0, or HAUL_E_MPI. */
int hl_mpi_given_up(struct mpi_comm *m);
/* 0, or HAUL_E_MPI with MPI's own words. */
int hl_mpi_result(int result, const char *call);

/* ---- queued calls (comm_mpi_queue.c) ---- */

enum mpi_kind { MPI_GATHER = 0, MPI_ALL_TO_ALL, MPI_BROADCAST, MPI_NKINDS };

/* Piece r is sent from send + r * send_stride and arrives at recv + r * recv_stride. */
struct mpi_move {
    enum mpi_kind kind;
    char *recv;
    const char *send;
    uint64_t recv_stride, send_stride;
    uint64_t bytes; /* of a piece */
    unsigned root;  /* of a broadcast, whose buffer is both send and recv */
};

/* Calls run in the order in which they were queued: `done` is the turnstile. */
struct mpi_call {
    struct mpi_comm *comm;
    uint64_t ticket;
    struct mpi_move move;
};

/* The exchange that a call stands for, in the calling thread. */
int hl_mpi_exchange_of(struct mpi_comm *m, const struct mpi_call *call);

int hl_mpi_all_gather(struct haul_comm *comm, void *full, const void *shard, uint64_t bytes,
                      void *stream);
int hl_mpi_all_to_all(struct haul_comm *comm, void *recv, const void *send, uint64_t bytes,
                      void *stream);
int hl_mpi_broadcast(struct haul_comm *comm, void *buf, uint64_t bytes, unsigned root,
                     void *stream);
int hl_mpi_check(struct haul_comm *comm);

/* ---- a thread that makes MPI's calls (comm_mpi_hand.c) ---- */

struct mpi_hand;

int hl_mpi_hand_open(struct mpi_comm *m, struct mpi_hand **out);
/* Let it make the exchange, and sleep until it has. One caller at a time. */
int hl_mpi_hand_run(struct mpi_hand *h, const struct mpi_call *call);
/* NULL is fine. */
void hl_mpi_hand_close(struct mpi_hand *h);

/* ---- the ranks of this node (comm_mpi_node.c) ---- */

/* What a rank tells those of its node. A pid means something only within its namespace. */
struct mpi_card {
    uint64_t rank, pid, namespace_dev, namespace_ino;
};

/* Memory for all ranks: before the first collective, where a rank that fails leaves nobody waiting for good. */
int hl_mpi_node_take(struct mpi_comm *m);
/* Collective over m->blocking. Blocks without a time-out, right after a collective that all have ended. */
int hl_mpi_node_open(struct mpi_comm *m);
/* 1: the rank is of this node, and its process has ended. 0: it lives, or nobody can tell. */
int hl_mpi_has_ended(const struct mpi_comm *m, uint32_t rank);
void hl_mpi_node_close(struct mpi_comm *m);

/* ---- the communicator (comm_mpi.c) ---- */

struct mpi_comm {
    struct haul_comm base;
    double timeout_s;
    uint64_t piece_bytes;
    struct mpi_exchange queued, blocking;
    int *life;             /* (nranks,) the pidfd of each other rank of this node; -1: none */
    struct mpi_card *card; /* (nranks,) of this node's, nlocal of them */

    /* Host memory that a device's copies go through; NULL: the device's own is host memory. */
    struct haul_pool *pool;
    struct mpi_hand *hand;         /* beside it: host functions may not call MPI there */
    char *stage_send, *stage_recv; /* (nranks, stage_piece) each */
    uint64_t stage_bytes, stage_piece;

    /* Of the thread that queues. */
    uint64_t ntickets;
    struct mpi_call call[MPI_CALLS]; /* ticket t at t % MPI_CALLS */
    _Atomic uint64_t done;           /* the last ticket that has run */

    /* The first error of a queued call: its text is written before rc. */
    atomic_int failing, rc;
    char text[MPI_ERROR_BYTES];
    atomic_int aborted; /* by this rank */

    /* Of the thread that blocks. */
    uint64_t nblocking;
    uint64_t *values; /* (nranks, MPI_REDUCE_LEN) of all ranks */
};

static inline struct mpi_comm *mpi_of(struct haul_comm *comm)
{
    return (struct mpi_comm *)comm;
}

/* Tags: 0 tells that a rank gives up. The rest goes round, so that calls which overtook each other do not
 * meet; 32767 is the least upper bound that MPI allows. */
#define MPI_TAG_ABORT 0
static inline int hl_mpi_tag(uint64_t ticket, int kind)
{
    return 1 + (int)(ticket % 4096) * 4 + kind;
}

#endif
