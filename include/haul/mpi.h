/*
 * haul/mpi.h: ranks that reach each other through MPI. A library of its own: libhaul-mpi, pkg-config
 * haul-mpi, so that libhaul itself needs no MPI.
 *
 *     MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
 *     ...
 *     rc = haul_comm_mpi_open(NULL, dev, &comm);     (all ranks of MPI_COMM_WORLD)
 *     ... open, train with and close an engine ...
 *     haul_comm_close(comm);
 *     MPI_Finalize();
 */
#ifndef HAUL_MPI_H
#define HAUL_MPI_H

#include <mpi.h>

#include "haul/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

struct haul_comm_mpi_opts {
    size_t struct_size;
    MPI_Comm comm;        /* the ranks; duplicated. MPI_COMM_WORLD (default) */
    double timeout_s;     /* of a call in which nothing moves any more; 600 (default), above 0 */
    uint64_t piece_bytes; /* the most that one message carries; 256 KiB (default), 1 to 1 GiB */
    uint64_t stage_bytes; /* pinned host memory that a GPU's copies go through (an emulated device takes
                             none); 64 MiB (default), at least 2 for each rank */
};

HAUL_API
void haul_comm_mpi_opts_init(struct haul_comm_mpi_opts *opts);

/**
 * Open a communicator over MPI. Collective: all ranks of opts->comm call it, and all succeed or all fail.
 *
 * MPI_Comm_dup is done twice, so that haul's messages meet neither the trainer's nor each other. Queued
 * calls run as host functions of the stream. On the emulated device they move its memory as it is; on CUDA
 * it goes through pinned host memory, and a thread of haul's own makes MPI's calls, since a host function
 * may not call the driver and an MPI that knows CUDA would. All queued calls of a communicator are on one
 * stream, or on streams that the caller makes wait for each other.
 *
 * A wait for other ranks sleeps between looks, so that ranks may outnumber cores. It ends with an error once
 * nothing has moved for timeout_s, or sooner where a rank of the same node is missed whose process has ended
 * (one file descriptor for each, where the kernel gives pidfds).
 *
 * @param opts  [in]  options, or NULL for defaults; read here, not kept. Ranks may differ in timeout_s; of
 *                    the other sizes the smallest of any rank counts
 * @param dev   [in]  the device whose memory the queued calls move
 * @param out   [out] the communicator; written only on success
 *
 * Ownership  the caller owns *out; end it with haul_comm_close() before MPI_Finalize(). Closing a
 *            communicator that has not failed is collective
 * Threads    one at a time
 * Blocks     until all ranks have called, at most timeout_s
 * Errors     0, or
 *            HAUL_E_STATE  MPI is not initialised, or is finalised already
 *            HAUL_E_MPI    MPI offers less than MPI_THREAD_MULTIPLE, not all ranks came, or another rank
 *                          could not open; the text says which
 *            -EINVAL       no device, an inter-communicator, an option out of its range
 *            -ENOMEM, HAUL_E_ABI
 */
HAUL_API HAUL_MUST_USE
int haul_comm_mpi_open(const struct haul_comm_mpi_opts *opts, struct haul_device *dev,
                       struct haul_comm **out);

#ifdef __cplusplus
}
#endif
#endif
