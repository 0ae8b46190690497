/*
 * haul/nccl.h: ranks that reach each other through NCCL, one GPU each. Part of libhaul: libnccl.so.2 (2.18
 * or newer) is opened when a communicator is, so that a program that links haul starts without it.
 *
 *     struct haul_comm_nccl_opts opts;
 *     haul_comm_nccl_opts_init(&opts);
 *     opts.over = mpi_comm;                (how the ranks find each other, and the scalars' way)
 *     rc = haul_comm_nccl_open(&opts, dev, &comm);
 */
#ifndef HAUL_NCCL_H
#define HAUL_NCCL_H

#include "haul/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ncclComm; /* ncclComm_t is a pointer to it */

/* At least one of from and over. */
struct haul_comm_nccl_opts {
    size_t struct_size;
    struct ncclComm *from;  /* the trainer's ncclComm_t: split, or taken over. NULL (default): the ranks
                               meet through `over` */
    int hand_over;          /* 1: `from` itself is used, by nobody else from now on, and ended by close.
                               0 (default): ncclCommSplit; nothing of the trainer's may be under way on
                               `from` while opening */
    struct haul_comm *over; /* another communicator of the same ranks, which makes the blocking calls;
                               not owned, outlives this one. NULL (default): they take a way through the
                               GPU, on a second NCCL communicator and 8 KiB a rank of its memory */
    double timeout_s;       /* of a call that does not end; 600 (default), above 0 */
    int native_reduce;      /* 1: sums over ranks by ncclReduceScatter. Faster, but the bits then depend on
                               NCCL's choices: runs over MPI, or on other machines, differ. 0 (default) */
};

HAUL_API
void haul_comm_nccl_opts_init(struct haul_comm_nccl_opts *opts);

/**
 * Open a communicator over NCCL. Collective: all ranks call it.
 *
 * Queued calls are NCCL's own on the caller's stream. A thread looks after them: an error that NCCL reports,
 * or a call that is under way for longer than timeout_s, is recorded for check(), and the communicator is
 * aborted so that no stream hangs. NCCL does not tell which rank is missed; the text says which call
 * waited.
 *
 * @param opts  [in]  options; read here, not kept
 * @param dev   [in]  a GPU of haul_device_cuda_open(), each rank another one
 * @param out   [out] the communicator; written only on success
 *
 * Ownership  the caller owns *out; end it with haul_comm_close(). With hand_over, opts->from belongs to *out
 *            once this has succeeded
 * Threads    one at a time
 * Blocks     until all ranks have called, at most timeout_s
 * Errors     0, or
 *            HAUL_E_NCCL    no libnccl.so.2, an older one, or what NCCL reports; the text says what to do
 *            HAUL_E_DEVICE  dev is not a GPU, or this build is without CUDA
 *            -EINVAL        neither from nor over, they are of different ranks, or an option out of range
 *            -ENOMEM, HAUL_E_ABI, and what `over` reports
 */
HAUL_API HAUL_MUST_USE
int haul_comm_nccl_open(const struct haul_comm_nccl_opts *opts, struct haul_device *dev,
                        struct haul_comm **out);

#ifdef __cplusplus
}
#endif
#endif
