/*
 * comm_mpi_exchange.c: one exchange with all peers: a few messages a peer and direction under way, the next
 * one as soon as one is done, polled against the time-out.
 *
 * Nothing here allocates. MPI itself spins when it waits, and a rank that spins takes the core from the
 * one that it waits for: so every wait is made here, of looks and of sleeps that grow. MPI moves nothing
 * while nobody looks, and of a message does not tell how far it is: so messages are short, and each that
 * ends shows that things move and puts sleep off.
 */
#include <sched.h>
#include <stdio.h>
#include <time.h>

#include "comm_mpi.h"

#define YIELD_S       100e-6
#define SLEEP_NS      20000
#define MOST_SLEEP_NS 500000
#define STILL_S       0.25 /* what a rank sent before it ended may be on its way for so long */
#define GRACE_S       0.5  /* for messages under way to end once the exchange has failed */

int hl_mpi_result(int result, const char *call)
{
    char text[MPI_MAX_ERROR_STRING + 1] = "";
    int n = 0;

    if (result == MPI_SUCCESS)
        return 0;
    if (MPI_Error_string(result, text, &n) != MPI_SUCCESS)
        snprintf(text, sizeof text, "error %d", result);
    return haul_error_set(HAUL_E_MPI, "%s: %s", call, text);
}

/* ---- waiting ---- */

void hl_mpi_pause(struct mpi_pause *p)
{
    double now = MPI_Wtime();

    if (p->since == 0) {
        p->since = now;
        p->sleep_ns = SLEEP_NS;
    }
    if (now - p->since < YIELD_S) {
        (void)sched_yield();
        return;
    }
    (void)nanosleep(&(struct timespec){.tv_nsec = p->sleep_ns}, NULL);
    p->sleep_ns = p->sleep_ns < MOST_SLEEP_NS / 2 ? p->sleep_ns * 2 : MOST_SLEEP_NS;
}

double hl_mpi_paused_s(const struct mpi_pause *p)
{
    return p->since == 0 ? 0 : MPI_Wtime() - p->since;
}

int hl_mpi_timed_out(const struct mpi_comm *m, const struct mpi_pause *p)
{
    return hl_mpi_paused_s(p) > m->timeout_s;
}

int hl_mpi_given_up(struct mpi_comm *m)
{
    MPI_Status status;
    int there = 0, rc;

    if (atomic_load_explicit(&m->aborted, memory_order_acquire))
        return haul_error_set(HAUL_E_MPI, "rank %u, this one, has given up", m->base.rank);
    rc = hl_mpi_result(MPI_Iprobe(MPI_ANY_SOURCE, MPI_TAG_ABORT, m->blocking.comm, &there, &status),
                       "MPI_Iprobe");
    if (rc == 0 && there)
        return haul_error_set(HAUL_E_MPI, "rank %d has given up: its own output says why",
                              status.MPI_SOURCE);
    return rc;
}

/* ---- what is to move ---- */

void hl_mpi_exchange_clear(struct mpi_comm *m, struct mpi_exchange *x)
{
    for (uint32_t w = 0; w < 2 * m->base.nranks; w++)
        x->way[w] = (struct mpi_way){NULL, 0};
    for (uint32_t i = 0; i < x->nslots; i++) {
        x->request[i] = MPI_REQUEST_NULL;
        x->flying_bytes[i] = 0;
    }
    x->nflying = 0;
}

void hl_mpi_exchange_receive(struct mpi_exchange *x, unsigned rank, void *to, uint64_t bytes)
{
    x->way[rank] = (struct mpi_way){to, bytes};
}

/* MPI only reads it. */
void hl_mpi_exchange_send(struct mpi_comm *m, struct mpi_exchange *x, unsigned rank,
                          const void *from, uint64_t bytes)
{
    x->way[m->base.nranks + rank] = (struct mpi_way){(void *)(uintptr_t)from, bytes};
}

/* ---- moving it ---- */

static int is_receive(const struct mpi_comm *m, uint32_t slot)
{
    return slot / MPI_WINDOW < m->base.nranks;
}

static unsigned peer_of(const struct mpi_comm *m, uint32_t slot)
{
    return slot / MPI_WINDOW % m->base.nranks;
}

/* The next message of the slot's way, if there is one. */
static int post(struct mpi_comm *m, struct mpi_exchange *x, uint32_t slot, int tag)
{
    struct mpi_way *w = &x->way[slot / MPI_WINDOW];
    uint64_t bytes = w->left < m->piece_bytes ? w->left : m->piece_bytes;
    int receive = is_receive(m, slot), peer = (int)peer_of(m, slot), result;

    if (bytes == 0)
        return 0;
    result = receive
                 ? MPI_Irecv(w->at, (int)bytes, MPI_BYTE, peer, tag, x->comm, &x->request[slot])
                 : MPI_Isend(w->at, (int)bytes, MPI_BYTE, peer, tag, x->comm, &x->request[slot]);
    x->flying_bytes[slot] = (int)bytes;
    x->nflying++;
    w->at += bytes;
    w->left -= bytes;
    return hl_mpi_result(result, receive ? "MPI_Irecv" : "MPI_Isend");
}

static int post_window(struct mpi_comm *m, struct mpi_exchange *x, uint32_t way, int tag)
{
    int rc = 0;

    for (uint32_t k = 0; rc == 0 && k < MPI_WINDOW; k++)
        rc = post(m, x, way * MPI_WINDOW + k, tag);
    return rc;
}

/* Receives first, so that what arrives finds its place. Ranks begin with different peers. */
static int post_first(struct mpi_comm *m, struct mpi_exchange *x, int tag)
{
    uint32_t n = m->base.nranks;
    int rc = 0;

    for (uint32_t k = 1; rc == 0 && k < n; k++)
        rc = post_window(m, x, (m->base.rank + n - k) % n, tag);
    for (uint32_t k = 1; rc == 0 && k < n; k++)
        rc = post_window(m, x, n + (m->base.rank + k) % n, tag);
    return rc;
}

/* A message is done: was it what was expected? Then the next one of its way. */
static int go_on(struct mpi_comm *m, struct mpi_exchange *x, uint32_t slot, MPI_Status *status,
                 int tag)
{
    int expected = x->flying_bytes[slot], bytes = expected, rc = 0;

    if (is_receive(m, slot))
        rc = hl_mpi_result(MPI_Get_count(status, MPI_BYTE, &bytes), "MPI_Get_count");
    if (rc == 0 && bytes != expected)
        return haul_error_set(HAUL_E_MPI,
                              "rank %u sent %d bytes where %d were expected: the ranks make "
                              "different calls, or the same with different sizes",
                              peer_of(m, slot), bytes, expected);
    x->flying_bytes[slot] = 0;
    x->nflying--;
    return rc < 0 ? rc : post(m, x, slot, tag);
}

/* A message has failed, and MPI says why. */
static int failed_message(const struct mpi_comm *m, uint32_t slot, int error)
{
    char call[64];

    snprintf(call, sizeof call, "a message %s rank %u", is_receive(m, slot) ? "from" : "to",
             peer_of(m, slot));
    return hl_mpi_result(error, call);
}

/* One look: what is done goes on. *moved: whether anything was. */
static int look(struct mpi_comm *m, struct mpi_exchange *x, int tag, int *moved)
{
    int n = 0, rc = 0;
    int result = MPI_Testsome((int)x->nslots, x->request, &n, x->done, x->status);

    *moved = n > 0;
    if (result != MPI_SUCCESS && result != MPI_ERR_IN_STATUS)
        return hl_mpi_result(result, "MPI_Testsome");
    for (int k = 0; rc == 0 && k < n; k++) {
        uint32_t slot = (uint32_t)x->done[k];

        if (result == MPI_ERR_IN_STATUS && x->status[k].MPI_ERROR != MPI_SUCCESS)
            rc = failed_message(m, slot, x->status[k].MPI_ERROR);
        else
            rc = go_on(m, x, slot, &x->status[k], tag);
    }
    return rc;
}

static int is_open(const struct mpi_exchange *x, uint32_t way)
{
    for (uint32_t k = 0; k < MPI_WINDOW; k++)
        if (x->flying_bytes[way * MPI_WINDOW + k])
            return 1;
    return 0;
}

/* " 1 3" of the ranks that ways [first, first + nranks) are still open with. */
static int list_open(const struct mpi_comm *m, const struct mpi_exchange *x, uint32_t first,
                     char *text, size_t room)
{
    size_t at = 0;

    text[0] = '\0';
    for (uint32_t r = 0; r < m->base.nranks; r++)
        if (is_open(x, first + r) && at + 12 < room)
            at += (size_t)snprintf(text + at, room - at, " %u", r);
    return at > 0;
}

static int timed_out(const struct mpi_comm *m, const struct mpi_exchange *x)
{
    char ranks[256];
    const char *what = "no answer from";

    if (!list_open(m, x, 0, ranks, sizeof ranks)) {
        (void)list_open(m, x, m->base.nranks, ranks, sizeof ranks);
        what = "nothing is taken by";
    }
    return haul_error_set(HAUL_E_MPI,
                          "%s rank%s of 0 to %u for %g s: it has ended, hangs, or makes another "
                          "call; look at its output, or raise timeout_s where it is only slow",
                          what, ranks, m->base.nranks - 1, m->timeout_s);
}

/* Nothing has moved for a while: is a rank of this node missed that lives no more? */
static int ended(const struct mpi_comm *m, const struct mpi_exchange *x)
{
    for (uint32_t r = 0; r < m->base.nranks; r++)
        if ((is_open(x, r) || is_open(x, m->base.nranks + r)) && hl_mpi_has_ended(m, r))
            return haul_error_set(HAUL_E_MPI,
                                  "rank %u of 0 to %u, on this node, has ended in the middle of "
                                  "the call: its own output, or the kernel's log, says why",
                                  r, m->base.nranks - 1);
    return 0;
}

static int missed(struct mpi_comm *m, const struct mpi_exchange *x, const struct mpi_pause *pause)
{
    int rc = hl_mpi_given_up(m);

    if (rc == 0 && hl_mpi_paused_s(pause) > STILL_S)
        rc = ended(m, x);
    return rc < 0 || !hl_mpi_timed_out(m, pause) ? rc : timed_out(m, x);
}

/* After a failure: take back what can be, and give the rest a moment, since MPI may still write to it. */
static void abandon(struct mpi_exchange *x)
{
    int n = (int)x->nslots, all = 0;
    double end = MPI_Wtime() + GRACE_S;
    struct mpi_pause pause = {0};

    for (int i = 0; i < n; i++)
        if (x->request[i] != MPI_REQUEST_NULL)
            (void)MPI_Cancel(&x->request[i]);
    while (MPI_Testall(n, x->request, &all, MPI_STATUSES_IGNORE) == MPI_SUCCESS && !all &&
           MPI_Wtime() < end)
        hl_mpi_pause(&pause);
    for (int i = 0; i < n; i++)
        if (x->request[i] != MPI_REQUEST_NULL)
            (void)MPI_Request_free(&x->request[i]);
}

static int run(struct mpi_comm *m, struct mpi_exchange *x, int tag)
{
    struct mpi_pause pause = {0};
    int moved = 0, rc = post_first(m, x, tag);

    while (rc == 0 && x->nflying) {
        rc = look(m, x, tag, &moved);
        if (rc < 0 || !x->nflying)
            break;
        if (moved) {
            pause = (struct mpi_pause){0};
            continue;
        }
        rc = missed(m, x, &pause);
        if (rc == 0)
            hl_mpi_pause(&pause);
    }
    return rc;
}

int hl_mpi_exchange_run(struct mpi_comm *m, struct mpi_exchange *x, int tag, const char *what)
{
    int rc = run(m, x, tag);

    if (rc < 0) {
        (void)haul_error_set(rc, "%s: %s", what, haul_last_error());
        abandon(x);
    }
    return rc;
}
