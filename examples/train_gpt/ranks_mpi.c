/* ranks_mpi.c: the module that knows MPI (ranks.h). */
#include <mpi.h>
#include <stdlib.h>

#include "haul/mpi.h"
#include "ranks.h"

static int join(struct ranks *out)
{
    int level, r, n, local, local_rank;
    MPI_Comm node;

    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level) != MPI_SUCCESS ||
        level < MPI_THREAD_MULTIPLE)
        return -1;
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_rank(MPI_COMM_WORLD, &r);
    MPI_Comm_size(MPI_COMM_WORLD, &n);
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, r, MPI_INFO_NULL, &node);
    MPI_Comm_rank(node, &local_rank);
    MPI_Comm_size(node, &local);
    MPI_Comm_free(&node);
    out->rank = (uint32_t)r;
    out->nranks = (uint32_t)n;
    out->local_rank = (uint32_t)local_rank;
    out->nlocal = (uint32_t)local;
    return 0;
}

static int connect_mpi(struct haul_device *device, double timeout_s, struct haul_comm **out)
{
    struct haul_comm_mpi_opts opts;

    haul_comm_mpi_opts_init(&opts);
    if (timeout_s > 0)
        opts.timeout_s = timeout_s;
    return haul_comm_mpi_open(&opts, device, out);
}

static void leave(void)
{
    MPI_Finalize();
}

extern const struct ranks_module train_gpt_ranks;
__attribute__((visibility("default")))
const struct ranks_module train_gpt_ranks = {join, connect_mpi, leave};
