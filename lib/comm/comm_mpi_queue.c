/*
 * comm_mpi_queue.c: queued collectives: host functions of a stream that exchange with all peers.
 *
 * Nothing here allocates. A call takes the next ticket when it is queued and runs when the ones before it
 * are done, so that every rank makes its exchanges in the order in which they were asked for. A device
 * without host memory is emptied and filled through the stage, a piece at a time, in stream order: the
 * next piece's copies wait in the stream behind this one's.
 */
#include <stdio.h>

#include "comm_mpi.h"

static const char *const kind_name[MPI_NKINDS] = {"all-gather", "all-to-all", "broadcast"};

/* ---- the first error ---- */

static void fail_queued(struct mpi_comm *m, int rc)
{
    if (atomic_exchange(&m->failing, 1))
        return;
    snprintf(m->text, sizeof m->text, "%s", haul_last_error());
    atomic_store_explicit(&m->rc, rc, memory_order_release);
}

int hl_mpi_check(struct haul_comm *comm)
{
    struct mpi_comm *m = mpi_of(comm);
    int rc = atomic_load_explicit(&m->rc, memory_order_acquire);

    return rc < 0 ? haul_error_set(rc, "%s", m->text) : hl_mpi_given_up(m);
}

/* ---- on the stream ---- */

static void add_ways(struct mpi_comm *m, const struct mpi_move *v)
{
    struct mpi_exchange *x = &m->queued;

    hl_mpi_exchange_clear(m, x);
    for (uint32_t r = 0; r < m->base.nranks; r++) {
        int to = v->kind != MPI_BROADCAST || v->root == m->base.rank;
        int from = v->kind != MPI_BROADCAST || v->root == r;

        if (r == m->base.rank)
            continue;
        if (from)
            hl_mpi_exchange_receive(x, r, v->recv + r * v->recv_stride, v->bytes);
        if (to)
            hl_mpi_exchange_send(m, x, r, v->send + r * v->send_stride, v->bytes);
    }
}

int hl_mpi_exchange_of(struct mpi_comm *m, const struct mpi_call *c)
{
    const struct mpi_move *v = &c->move;
    char what[96];

    snprintf(what, sizeof what, "%s of %llu bytes a rank, call %llu", kind_name[v->kind],
             (unsigned long long)v->bytes, (unsigned long long)c->ticket);
    add_ways(m, v);
    return hl_mpi_exchange_run(m, &m->queued, hl_mpi_tag(c->ticket, (int)v->kind), what);
}

/* The calls before it are done, or there has been an error. */
static int wait_turn(struct mpi_comm *m, uint64_t ticket)
{
    struct mpi_pause pause = {0};

    while (atomic_load_explicit(&m->done, memory_order_acquire) + 1 != ticket) {
        if (atomic_load(&m->rc) < 0)
            return atomic_load(&m->rc);
        if (hl_mpi_timed_out(m, &pause))
            return haul_error_set(HAUL_E_STATE,
                                  "queued call %llu waited %g s for the one before it: are the "
                                  "two on streams that do not wait for each other?",
                                  (unsigned long long)ticket, m->timeout_s);
        hl_mpi_pause(&pause);
    }
    return 0;
}

static void run_call(void *user)
{
    const struct mpi_call *c = user;
    struct mpi_comm *m = c->comm;
    uint64_t ticket = c->ticket;
    int rc = wait_turn(m, ticket);

    if (rc == 0 && atomic_load(&m->rc) == 0)
        rc = m->hand ? hl_mpi_hand_run(m->hand, c) : hl_mpi_exchange_of(m, c);
    if (rc < 0)
        fail_queued(m, rc);
    atomic_store_explicit(&m->done, ticket, memory_order_release); /* *c may be used again */
}

/* ---- queueing ---- */

/* The next ticket's record, once the one that had it before has run. */
static int take_call(struct mpi_comm *m, struct mpi_call **out)
{
    uint64_t ticket = m->ntickets + 1;
    struct mpi_pause pause = {0};

    while (atomic_load_explicit(&m->done, memory_order_acquire) + MPI_CALLS < ticket) {
        if (atomic_load(&m->rc) < 0)
            return hl_mpi_check(&m->base);
        hl_mpi_pause(&pause);
    }
    *out = &m->call[ticket % MPI_CALLS];
    (*out)->comm = m;
    (*out)->ticket = ticket;
    return 0;
}

static int queue_move(struct mpi_comm *m, const struct mpi_move *v, void *stream)
{
    struct mpi_call *c = NULL;
    int rc = take_call(m, &c);

    if (rc < 0)
        return rc;
    c->move = *v;
    rc = haul_device_call(m->base.dev, stream, run_call, c);
    m->ntickets += rc == 0;
    return rc;
}

static int sends(const struct mpi_comm *m, const struct mpi_move *v)
{
    return v->kind != MPI_BROADCAST || v->root == m->base.rank;
}

static int receives(const struct mpi_comm *m, const struct mpi_move *v)
{
    return v->kind != MPI_BROADCAST || v->root != m->base.rank;
}

/* What the piece at `at` sends, down to the stage: once where all peers get the same. */
static int stage_out(struct mpi_comm *m, const struct mpi_move *v, uint64_t at, uint64_t n,
                     void *stream)
{
    uint32_t copies = v->send_stride ? m->base.nranks : 1;
    int rc = 0;

    for (uint32_t r = 0; rc == 0 && r < copies; r++)
        if (copies == 1 || r != m->base.rank)
            rc = haul_device_copy_d2h(m->base.dev, m->stage_send + r * m->stage_piece,
                                      v->send + r * v->send_stride + at, n, stream);
    return rc;
}

static int stage_in(struct mpi_comm *m, const struct mpi_move *v, uint64_t at, uint64_t n,
                    void *stream)
{
    int rc = 0;

    for (uint32_t r = 0; rc == 0 && r < m->base.nranks; r++)
        if (v->kind == MPI_BROADCAST ? r == v->root : r != m->base.rank)
            rc = haul_device_copy_h2d(m->base.dev, v->recv + r * v->recv_stride + at,
                                      m->stage_recv + r * m->stage_piece, n, stream);
    return rc;
}

static int stage_piece(struct mpi_comm *m, const struct mpi_move *v, uint64_t at, void *stream)
{
    struct mpi_move piece = *v;
    int rc = 0;

    piece.bytes = v->bytes - at < m->stage_piece ? v->bytes - at : m->stage_piece;
    piece.send = m->stage_send;
    piece.recv = m->stage_recv;
    piece.send_stride = v->send_stride ? m->stage_piece : 0;
    piece.recv_stride = m->stage_piece;
    if (sends(m, v))
        rc = stage_out(m, v, at, piece.bytes, stream);
    if (rc == 0)
        rc = queue_move(m, &piece, stream);
    if (rc == 0 && receives(m, v))
        rc = stage_in(m, v, at, piece.bytes, stream);
    return rc;
}

static int queue(struct mpi_comm *m, const struct mpi_move *v, void *stream)
{
    int rc = 0;

    if (m->base.nranks == 1 || v->bytes == 0)
        return 0;
    if (!m->pool)
        return queue_move(m, v, stream);
    for (uint64_t at = 0; rc == 0 && at < v->bytes; at += m->stage_piece)
        rc = stage_piece(m, v, at, stream);
    return rc;
}

/* Once a call has failed the later ones do nothing, and it is check() that says so. */
static int is_over(struct mpi_comm *m)
{
    return atomic_load_explicit(&m->rc, memory_order_acquire) < 0;
}

int hl_mpi_all_gather(struct haul_comm *comm, void *full, const void *shard, uint64_t bytes,
                      void *stream)
{
    struct mpi_comm *m = mpi_of(comm);
    char *own = (char *)full + comm->rank * bytes;
    int rc = 0;

    if (is_over(m))
        return 0;
    if (own != shard && bytes)
        rc = haul_device_copy_d2d(comm->dev, own, shard, bytes, stream);
    return rc < 0 ? rc
                  : queue(m,
                          &(struct mpi_move){.kind = MPI_GATHER,
                                             .recv = full,
                                             .send = shard,
                                             .recv_stride = bytes,
                                             .bytes = bytes},
                          stream);
}

int hl_mpi_all_to_all(struct haul_comm *comm, void *recv, const void *send, uint64_t bytes,
                      void *stream)
{
    struct mpi_comm *m = mpi_of(comm);
    uint64_t own = comm->rank * bytes;
    int rc = 0;

    if (is_over(m))
        return 0;
    if (bytes)
        rc = haul_device_copy_d2d(comm->dev, (char *)recv + own, (const char *)send + own, bytes,
                                  stream);
    return rc < 0 ? rc
                  : queue(m,
                          &(struct mpi_move){.kind = MPI_ALL_TO_ALL,
                                             .recv = recv,
                                             .send = send,
                                             .recv_stride = bytes,
                                             .send_stride = bytes,
                                             .bytes = bytes},
                          stream);
}

int hl_mpi_broadcast(struct haul_comm *comm, void *buf, uint64_t bytes, unsigned root, void *stream)
{
    struct mpi_comm *m = mpi_of(comm);

    if (root >= comm->nranks)
        return haul_error_set(-EINVAL, "broadcast: root %u of %u ranks", root, comm->nranks);
    if (is_over(m))
        return 0;
    return queue(m,
                 &(struct mpi_move){
                     .kind = MPI_BROADCAST, .recv = buf, .send = buf, .bytes = bytes, .root = root},
                 stream);
}
