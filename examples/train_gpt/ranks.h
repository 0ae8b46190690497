/*
 * ranks.h: the ranks of a run: one, those that mpirun has started, or, with --plan-only, those of --ranks.
 *
 * MPI is in a module of its own beside the program, train_gpt_mpi.so, opened only under mpirun: the program
 * itself needs no MPI.
 */
#ifndef TRAIN_GPT_RANKS_H
#define TRAIN_GPT_RANKS_H

#include "args.h"

struct ranks {
    uint32_t rank, nranks, local_rank, nlocal; /* local: on this node */
    void *module;                              /* NULL: not under mpirun */
    struct haul_comm *comm;                    /* NULL: one rank */
    double timeout_s;                          /* 0: the communicator's default */
    struct haul_comm *over;                    /* what a GPU's communicator was opened over; NULL */
};

/* Join the others. Returns EXIT_OK, or another exit code after a message on stderr. */
int ranks_join(const struct args *args, struct ranks *out);

/* This rank's part of what is given for the run or the node: --batch, --host-mem, --nvme-mem, and what only
 * rank 0 prints or writes. EXIT_OK, or EXIT_USAGE after a message. */
int ranks_share(const struct ranks *ranks, const struct args *args, struct args *mine);

/* A communicator on the device, opened once, between ranks whose flags agree; NULL in ranks->comm with one rank. Errors of haul. */
HAUL_MUST_USE
int ranks_connect(struct ranks *ranks, const struct args *args, struct haul_device *device);

/* The mean over the ranks. */
HAUL_MUST_USE
int ranks_mean(const struct ranks *ranks, double *value);

void ranks_disconnect(struct ranks *ranks);

/* ok: this rank ends as it should, and so will the others. Else they are left alone: MPI is not finalised. */
void ranks_leave(struct ranks *ranks, bool ok);

/* What the module is. */
struct ranks_module {
    int (*join)(struct ranks *out); /* negative: no MPI_THREAD_MULTIPLE */
    int (*connect)(struct haul_device *device, double timeout_s, struct haul_comm **out);
    void (*leave)(void);
};
#define RANKS_MODULE "train_gpt_mpi.so"
#define RANKS_SYMBOL "train_gpt_ranks"

#endif
