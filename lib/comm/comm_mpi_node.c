/*
 * comm_mpi_node.c: the ranks of this node: how many they are, and whether their processes still live.
 *
 * A process that has ended sends nothing more, and MPI over shared memory does not tell. The kernel does: the
 * pidfd of a process is readable once it has ended, before its parent has looked too. So a rank killed on
 * this node is missed at once and not after the time-out. Where there is no pidfd (another pid namespace, a
 * kernel before 5.3, a filter of system calls) the time-out remains.
 */
#include <poll.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "comm_mpi.h"

static struct mpi_card own_card(const struct mpi_comm *m)
{
    struct mpi_card card = {.rank = m->base.rank, .pid = (uint64_t)getpid()};
    struct stat st;

    if (stat("/proc/self/ns/pid", &st) == 0) {
        card.namespace_dev = st.st_dev;
        card.namespace_ino = st.st_ino;
    }
    return card;
}

/* A descriptor that exec closes, or -1. */
static int watch(const struct mpi_card *own, const struct mpi_card *peer)
{
    if (peer->rank == own->rank || !own->namespace_ino ||
        peer->namespace_dev != own->namespace_dev || peer->namespace_ino != own->namespace_ino)
        return -1;
    return (int)syscall(SYS_pidfd_open, (pid_t)peer->pid, 0U);
}

static int watch_all(struct mpi_comm *m, MPI_Comm node)
{
    struct mpi_card own = own_card(m);
    int bytes = (int)sizeof own;
    int rc = hl_mpi_result(MPI_Allgather(&own, bytes, MPI_BYTE, m->card, bytes, MPI_BYTE, node),
                           "MPI_Allgather");

    for (uint32_t i = 0; rc == 0 && i < m->base.nlocal; i++)
        m->life[m->card[i].rank] = watch(&own, &m->card[i]);
    return rc;
}

static int meet(struct mpi_comm *m, MPI_Comm node)
{
    int rank = 0, nranks = 0, rc;

    if ((rc = hl_mpi_result(MPI_Comm_rank(node, &rank), "MPI_Comm_rank")) < 0 ||
        (rc = hl_mpi_result(MPI_Comm_size(node, &nranks), "MPI_Comm_size")) < 0)
        return rc;
    m->base.local_rank = (uint32_t)rank;
    m->base.nlocal = (uint32_t)nranks;
    return watch_all(m, node);
}

int hl_mpi_node_take(struct mpi_comm *m)
{
    m->life = calloc(m->base.nranks, sizeof *m->life);
    m->card = calloc(m->base.nranks, sizeof *m->card);
    if (!m->life || !m->card)
        return haul_error_set(-ENOMEM, "no memory for the cards of %u ranks", m->base.nranks);
    for (uint32_t r = 0; r < m->base.nranks; r++)
        m->life[r] = -1;
    return 0;
}

int hl_mpi_node_open(struct mpi_comm *m)
{
    MPI_Comm node = MPI_COMM_NULL;
    int rc, freed;

    rc = hl_mpi_result(
        MPI_Comm_split_type(m->blocking.comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node),
        "MPI_Comm_split_type");
    if (rc < 0)
        return rc;
    rc = meet(m, node);
    freed = hl_mpi_result(MPI_Comm_free(&node), "MPI_Comm_free");
    return rc < 0 ? rc : freed;
}

int hl_mpi_has_ended(const struct mpi_comm *m, uint32_t rank)
{
    struct pollfd life = {.fd = m->life[rank], .events = POLLIN};

    return poll(&life, 1, 0) == 1;
}

void hl_mpi_node_close(struct mpi_comm *m)
{
    for (uint32_t r = 0; m->life && m->card && r < m->base.nranks; r++)
        if (m->life[r] >= 0)
            (void)close(m->life[r]);
    free(m->life);
    free(m->card);
}
