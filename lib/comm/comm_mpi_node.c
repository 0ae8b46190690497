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

/* What a rank tells those of its node. A pid means something only within its namespace. */
struct card {
    uint64_t rank, pid, namespace_dev, namespace_ino;
};

static struct card own_card(const struct mpi_comm *m)
{
    struct card card = {.rank = m->base.rank, .pid = (uint64_t)getpid()};
    struct stat st;

    if (stat("/proc/self/ns/pid", &st) == 0) {
        card.namespace_dev = st.st_dev;
        card.namespace_ino = st.st_ino;
    }
    return card;
}

/* A descriptor that exec closes, or -1. */
static int watch(const struct card *own, const struct card *peer)
{
    if (peer->rank == own->rank || !own->namespace_ino ||
        peer->namespace_dev != own->namespace_dev || peer->namespace_ino != own->namespace_ino)
        return -1;
    return (int)syscall(SYS_pidfd_open, (pid_t)peer->pid, 0U);
}

static int watch_all(struct mpi_comm *m, MPI_Comm node, struct card *card)
{
    struct card own = own_card(m);
    int bytes = (int)sizeof own;
    int rc = hl_mpi_result(MPI_Allgather(&own, bytes, MPI_BYTE, card, bytes, MPI_BYTE, node),
                           "MPI_Allgather");

    for (uint32_t i = 0; rc == 0 && i < m->base.nlocal; i++)
        m->life[card[i].rank] = watch(&own, &card[i]);
    return rc;
}

static int meet(struct mpi_comm *m, MPI_Comm node)
{
    int rank = 0, nranks = 0, rc;
    struct card *card;

    if ((rc = hl_mpi_result(MPI_Comm_rank(node, &rank), "MPI_Comm_rank")) < 0 ||
        (rc = hl_mpi_result(MPI_Comm_size(node, &nranks), "MPI_Comm_size")) < 0)
        return rc;
    m->base.local_rank = (uint32_t)rank;
    m->base.nlocal = (uint32_t)nranks;
    card = calloc((size_t)nranks, sizeof *card);
    if (!card)
        return haul_error_set(-ENOMEM, "no memory for the cards of %d ranks", nranks);
    rc = watch_all(m, node, card);
    free(card);
    return rc;
}

int hl_mpi_node_open(struct mpi_comm *m)
{
    MPI_Comm node = MPI_COMM_NULL;
    int rc, freed;

    m->life = calloc(m->base.nranks, sizeof *m->life);
    if (!m->life)
        return haul_error_set(-ENOMEM, "no memory for %u ranks", m->base.nranks);
    for (uint32_t r = 0; r < m->base.nranks; r++)
        m->life[r] = -1;
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
    for (uint32_t r = 0; m->life && r < m->base.nranks; r++)
        if (m->life[r] >= 0)
            (void)close(m->life[r]);
    free(m->life);
}
