/* comm_mpi.c: the communicator over MPI: its table, open and close, and the calls that block. */
#include <stdio.h>
#include <stdlib.h>

#include "comm_mpi.h"
#include "comm_scalar.h"

#define MOST_PIECE_BYTES (UINT64_C(1) << 30) /* MPI counts in int */
#define CLOSE_S          1.0

/* ---- blocking calls ---- */

/* values (n,), n <= MPI_REDUCE_LEN: every rank's, then combined in rank order. */
static int reduce_some(struct mpi_comm *m, enum haul_comm_scalar op, uint64_t *values, uint64_t n)
{
    struct mpi_exchange *x = &m->blocking;
    uint64_t bytes = n * HL_COMM_VALUE_BYTES;
    char what[64];
    int rc;

    m->nblocking++;
    snprintf(what, sizeof what, "all-reduce of %llu values", (unsigned long long)n);
    hl_mpi_exchange_clear(m, x);
    memcpy(m->values + m->base.rank * MPI_REDUCE_LEN, values, bytes);
    for (uint32_t r = 0; r < m->base.nranks; r++)
        if (r != m->base.rank) {
            hl_mpi_exchange_receive(x, r, m->values + r * MPI_REDUCE_LEN, bytes);
            hl_mpi_exchange_send(m, x, r, m->values + m->base.rank * MPI_REDUCE_LEN, bytes);
        }
    rc = hl_mpi_exchange_run(m, x, hl_mpi_tag(m->nblocking, (int)op), what);
    for (uint64_t i = 0; rc == 0 && i < n; i++) {
        values[i] = m->values[i];
        for (uint32_t r = 1; r < m->base.nranks; r++)
            values[i] = hl_comm_combine(op, values[i], m->values[r * MPI_REDUCE_LEN + i]);
    }
    return rc;
}

static int mpi_all_reduce(struct haul_comm *comm, enum haul_comm_scalar op, void *values,
                          uint64_t n)
{
    uint64_t *at = values;
    int rc = hl_mpi_given_up(mpi_of(comm));

    for (uint64_t left = n; rc == 0 && left;) {
        uint64_t some = left < MPI_REDUCE_LEN ? left : MPI_REDUCE_LEN;

        rc = reduce_some(mpi_of(comm), op, at, some);
        at += some;
        left -= some;
    }
    return rc;
}

/* Nobody has the word of all others before all others have come. */
static int mpi_barrier(struct haul_comm *comm)
{
    uint64_t word = 0;

    return mpi_all_reduce(comm, HAUL_COMM_MAX_U64, &word, 1);
}

/* The word is small enough to leave without a peer that takes it. */
static void mpi_abort(struct haul_comm *comm)
{
    static const char word = 1;
    struct mpi_comm *m = mpi_of(comm);
    MPI_Request request;

    if (atomic_exchange(&m->aborted, 1))
        return;
    for (uint32_t r = 0; r < comm->nranks; r++)
        if (r != comm->rank && MPI_Isend(&word, 1, MPI_BYTE, (int)r, MPI_TAG_ABORT,
                                         m->blocking.comm, &request) == MPI_SUCCESS)
            (void)MPI_Request_free(&request);
}

/* ---- close ---- */

static void free_exchange(struct mpi_exchange *x)
{
    free(x->way);
    free(x->request);
    free(x->flying_bytes);
    free(x->status);
    free(x->done);
}

static void free_memory(struct mpi_comm *m)
{
    hl_mpi_hand_close(m->hand);
    hl_mpi_node_close(m);
    if (m->stage_send)
        (void)haul_device_host_unregister(m->base.dev, m->stage_send);
    haul_pool_close(m->pool);
    free_exchange(&m->queued);
    free_exchange(&m->blocking);
    free(m->values);
    free(m);
}

static void free_comms(struct mpi_comm *m)
{
    (void)MPI_Comm_free(&m->queued.comm);
    (void)MPI_Comm_free(&m->blocking.comm);
}

/* Calls that have been aborted are given a moment to return. 0: some have not, since their stream is
 * still busy, or has failed and dropped them: nobody can tell which. */
static int all_have_run(struct mpi_comm *m)
{
    double end = MPI_Wtime() + CLOSE_S;
    struct mpi_pause pause = {0};

    while (atomic_load_explicit(&m->done, memory_order_acquire) < m->ntickets) {
        if (MPI_Wtime() > end)
            return 0;
        hl_mpi_pause(&pause);
    }
    return 1;
}

/* MPI_Comm_free is collective: ranks that have failed cannot meet in it, and leave theirs to MPI. What a
 * call may still look at stays. */
static void mpi_close(struct haul_comm *comm)
{
    struct mpi_comm *m = mpi_of(comm);
    int finalized = 1;

    (void)MPI_Finalized(&finalized);
    if (!all_have_run(m))
        return;
    if (!finalized && hl_mpi_check(comm) == 0)
        free_comms(m);
    free_memory(m);
}

static const struct haul_comm_ops mpi_ops = {
    .struct_size = sizeof(struct haul_comm_ops),
    .all_gather = hl_mpi_all_gather,
    .all_to_all = hl_mpi_all_to_all,
    .broadcast = hl_mpi_broadcast,
    .all_reduce = mpi_all_reduce,
    .barrier = mpi_barrier,
    .check = hl_mpi_check,
    .abort = mpi_abort,
    .close = mpi_close,
};

/* ---- open ---- */

void haul_comm_mpi_opts_init(struct haul_comm_mpi_opts *opts)
{
    *opts = (struct haul_comm_mpi_opts){.struct_size = sizeof *opts,
                                        .comm = MPI_COMM_WORLD,
                                        .timeout_s = 600,
                                        .piece_bytes = UINT64_C(256) << 10,
                                        .stage_bytes = UINT64_C(64) << 20};
}

static int check_opts(const struct haul_comm_mpi_opts *o)
{
    int inter = 0, rc;

    if (o->struct_size != sizeof *o)
        return haul_error_set(HAUL_E_ABI,
                              "haul_comm_mpi_opts: struct_size is %zu, this library knows %zu: "
                              "call haul_comm_mpi_opts_init() first",
                              o->struct_size, sizeof *o);
    if (!(o->timeout_s > 0))
        return haul_error_set(-EINVAL, "haul_comm_mpi_opts: timeout_s is %g, not above 0",
                              o->timeout_s);
    if (o->piece_bytes == 0 || o->piece_bytes > MOST_PIECE_BYTES)
        return haul_error_set(-EINVAL, "haul_comm_mpi_opts: piece_bytes is %llu, not 1 to 2^30",
                              (unsigned long long)o->piece_bytes);
    if (o->comm == MPI_COMM_NULL)
        return haul_error_set(-EINVAL, "haul_comm_mpi_opts: comm is MPI_COMM_NULL");
    rc = hl_mpi_result(MPI_Comm_test_inter(o->comm, &inter), "MPI_Comm_test_inter");
    return rc == 0 && inter ? haul_error_set(-EINVAL, "haul_comm_mpi_opts: comm is an "
                                                      "inter-communicator")
                            : rc;
}

/* Queued and blocking calls are made by two threads at the same time. */
static int check_mpi(void)
{
    static const char *const level_name[] = {"MPI_THREAD_SINGLE", "MPI_THREAD_FUNNELED",
                                             "MPI_THREAD_SERIALIZED"};
    int initialized = 0, finalized = 0, level = 0, rc;

    (void)MPI_Initialized(&initialized);
    (void)MPI_Finalized(&finalized);
    if (!initialized || finalized)
        return haul_error_set(HAUL_E_STATE,
                              "MPI is %s: open between MPI_Init_thread() and "
                              "MPI_Finalize()",
                              finalized ? "finalised already" : "not initialised");
    if ((rc = hl_mpi_result(MPI_Query_thread(&level), "MPI_Query_thread")) < 0)
        return rc;
    if (level != MPI_THREAD_MULTIPLE)
        return haul_error_set(
            HAUL_E_MPI,
            "MPI runs with %s, haul needs MPI_THREAD_MULTIPLE: initialise with "
            "MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level), and look at level: an "
            "MPI built without threads gives less",
            level >= 0 && level < 3 ? level_name[level] : "an unknown thread level");
    return 0;
}

/* A collective that has begun, against the time-out. */
static int finish(struct mpi_comm *m, MPI_Request *request, const char *what)
{
    struct mpi_pause pause = {0};
    int done = 0, rc = 0;

    while ((rc = hl_mpi_result(MPI_Test(request, &done, MPI_STATUS_IGNORE), what)) == 0 && !done) {
        if (hl_mpi_timed_out(m, &pause))
            return haul_error_set(HAUL_E_MPI,
                                  "%s: not all %u ranks have opened a communicator within %g s",
                                  what, m->base.nranks, m->timeout_s);
        hl_mpi_pause(&pause);
    }
    return rc;
}

static int duplicate(struct mpi_comm *m, MPI_Comm from, MPI_Comm *out)
{
    MPI_Request request;
    int rc = hl_mpi_result(MPI_Comm_idup(from, out, &request), "MPI_Comm_idup");

    if (rc == 0)
        rc = finish(m, &request, "MPI_Comm_idup");
    return rc < 0 ? rc
                  : hl_mpi_result(MPI_Comm_set_errhandler(*out, MPI_ERRORS_RETURN),
                                  "MPI_Comm_set_errhandler");
}

static int find_ranks(struct mpi_comm *m, MPI_Comm from)
{
    int rank = 0, nranks = 0, rc;

    if ((rc = hl_mpi_result(MPI_Comm_rank(from, &rank), "MPI_Comm_rank")) < 0 ||
        (rc = hl_mpi_result(MPI_Comm_size(from, &nranks), "MPI_Comm_size")) < 0)
        return rc;
    m->base.rank = (uint32_t)rank;
    m->base.nranks = (uint32_t)nranks;
    return 0;
}

static int take_exchange(struct mpi_exchange *x, uint32_t nranks)
{
    x->nslots = MPI_WINDOW * 2 * nranks;
    x->way = calloc(2 * (size_t)nranks, sizeof *x->way);
    x->request = calloc(x->nslots, sizeof *x->request);
    x->flying_bytes = calloc(x->nslots, sizeof *x->flying_bytes);
    x->status = calloc(x->nslots, sizeof *x->status);
    x->done = calloc(x->nslots, sizeof *x->done);
    return x->way && x->request && x->flying_bytes && x->status && x->done
               ? 0
               : haul_error_set(-ENOMEM, "no memory for the messages of %u ranks", nranks);
}

/* Host memory for the copies of a device whose own cannot be reached. */
static int take_stage(struct mpi_comm *m)
{
    struct haul_pool_segment segment = {.bytes = m->stage_bytes};
    struct haul_pool_opts opts;
    void *p = NULL;
    int rc;

    haul_pool_opts_init(&opts);
    opts.segments = &segment;
    opts.nsegments = 1;
    opts.pages = HAUL_PAGES_THP;
    if ((rc = haul_pool_open(&opts, &m->pool)) < 0 ||
        (rc = haul_pool_take(m->pool, "stage of collectives", m->stage_bytes, &p)) < 0 ||
        (rc = haul_device_host_register(m->base.dev, p, m->stage_bytes)) < 0)
        return rc;
    m->stage_send = p;
    return hl_mpi_hand_open(m, &m->hand);
}

static int take_memory(struct mpi_comm *m)
{
    uint32_t n = m->base.nranks;
    int rc;

    if (m->stage_bytes < 2 * (uint64_t)n)
        return haul_error_set(-EINVAL,
                              "haul_comm_mpi_opts: stage_bytes is %llu, not at least 2 "
                              "for each of %u ranks",
                              (unsigned long long)m->stage_bytes, n);
    if ((rc = take_exchange(&m->queued, n)) < 0 || (rc = take_exchange(&m->blocking, n)) < 0)
        return rc;
    m->values = calloc((size_t)n * MPI_REDUCE_LEN, sizeof *m->values);
    if (!m->values)
        return haul_error_set(-ENOMEM, "no memory for the values of %u ranks", n);
    return haul_device_in_host_memory(m->base.dev) ? 0 : take_stage(m);
}

/* The least of all ranks' words. */
enum { WORD_OK, WORD_PIECE, WORD_STAGE, WORD_HOST_MEMORY, WORD_NO_HOST_MEMORY, NWORDS };

static int least_of_all(struct mpi_comm *m, uint64_t *word)
{
    MPI_Request request;
    int rc = hl_mpi_result(MPI_Iallreduce(MPI_IN_PLACE, word, NWORDS, MPI_UINT64_T, MPI_MIN,
                                          m->blocking.comm, &request),
                           "MPI_Iallreduce");

    return rc < 0 ? rc : finish(m, &request, "MPI_Iallreduce");
}

/* own: how this rank fared. Both ends of a message must cut it alike, so all ranks take the same pieces.
 * On the stage they are whole cache lines where there is room for that. The answer is the same on all
 * ranks. */
static int agree(struct mpi_comm *m, int own, const uint64_t *word)
{
    if (own < 0)
        return own;
    if (!word[WORD_OK])
        return haul_error_set(HAUL_E_MPI, "another rank could not open its communicator: its own "
                                          "error says why");
    if (!word[WORD_HOST_MEMORY] && !word[WORD_NO_HOST_MEMORY])
        return haul_error_set(-EINVAL, "some ranks have an emulated device and others do not");
    m->piece_bytes = word[WORD_PIECE];
    m->stage_piece = word[WORD_STAGE];
    m->stage_recv = m->stage_send ? m->stage_send + m->base.nranks * m->stage_piece : NULL;
    return 0;
}

static int open_parts(struct mpi_comm *m, MPI_Comm from)
{
    uint64_t most = m->stage_bytes / (2 * (uint64_t)m->base.nranks), word[NWORDS];
    int in_host = haul_device_in_host_memory(m->base.dev), rc, own;
    char text[MPI_ERROR_BYTES];

    if ((rc = hl_mpi_node_take(m)) < 0 || (rc = duplicate(m, from, &m->blocking.comm)) < 0 ||
        (rc = duplicate(m, from, &m->queued.comm)) < 0 || (rc = hl_mpi_node_open(m)) < 0)
        return rc;
    own = take_memory(m);
    snprintf(text, sizeof text, "%s", haul_last_error());
    word[WORD_OK] = own == 0;
    word[WORD_PIECE] = m->piece_bytes;
    word[WORD_STAGE] = most < 64 ? most : most & ~UINT64_C(63);
    word[WORD_HOST_MEMORY] = (uint64_t)in_host;
    word[WORD_NO_HOST_MEMORY] = (uint64_t)!in_host;
    if ((rc = least_of_all(m, word)) < 0)
        return rc;
    if (own < 0)
        (void)haul_error_set(own, "%s", text);
    rc = agree(m, own, word);
    if (rc < 0)
        free_comms(m);
    return rc;
}

int haul_comm_mpi_open(const struct haul_comm_mpi_opts *opts, struct haul_device *dev,
                       struct haul_comm **out)
{
    struct haul_comm_mpi_opts defaults;
    struct mpi_comm *m;
    int rc;

    haul_comm_mpi_opts_init(&defaults);
    if (!opts)
        opts = &defaults;
    if (!dev || !out)
        return haul_error_set(-EINVAL, "haul_comm_mpi_open: %s is NULL", dev ? "out" : "dev");
    if ((rc = check_mpi()) < 0 || (rc = check_opts(opts)) < 0)
        return rc;
    m = calloc(1, sizeof *m);
    if (!m)
        return haul_error_set(-ENOMEM, "no memory for a communicator");
    m->base.ops = &mpi_ops;
    m->base.dev = dev;
    m->timeout_s = opts->timeout_s;
    m->piece_bytes = opts->piece_bytes;
    m->stage_bytes = opts->stage_bytes;
    m->queued.comm = m->blocking.comm = MPI_COMM_NULL;
    rc = find_ranks(m, opts->comm);
    if (rc == 0)
        rc = open_parts(m, opts->comm);
    if (rc < 0) {
        free_memory(m);
        return rc;
    }
    *out = &m->base;
    return 0;
}
