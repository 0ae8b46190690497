/* comm_nccl.c: the communicator over NCCL: how its ranks meet, its table, errors, abort and close. */
#include <stdio.h>
#include <string.h>

#include "clock.h"
#include "comm_nccl.h"
#include "cuda_context.h"
#include "sys.h"

#define NAP_NS UINT64_C(50000)
#define MOST_S 1e9 /* of a time-out: so that it fits in nanoseconds */
#define FNV    UINT64_C(0xcbf29ce484222325)
#define NWORDS (sizeof(struct nccl_id) / sizeof(uint64_t))

/* ---- errors ---- */

void hl_nccl_hold(struct nccl_comm *c)
{
    for (;;) {
        uint32_t seen = hl_gate_look(&c->given_back);

        if (!atomic_exchange(&c->held, 1))
            return;
        hl_gate_sleep(&c->given_back, seen);
    }
}

void hl_nccl_give_back(struct nccl_comm *c)
{
    atomic_store(&c->held, 0);
    hl_gate_wake(&c->given_back);
}

/* Its kernels end, and so streams go on. */
static void abort_all(struct nccl_comm *c)
{
    struct ncclComm *queued, *blocking;

    hl_nccl_hold(c);
    queued = c->queued;
    blocking = c->blocking;
    c->queued = c->blocking = NULL;
    hl_nccl_give_back(c);
    if (queued)
        (void)c->lib.ncclCommAbort(queued);
    if (blocking)
        (void)c->lib.ncclCommAbort(blocking);
}

void hl_nccl_fail(struct nccl_comm *c, int rc)
{
    if (!atomic_exchange(&c->failing, 1)) {
        snprintf(c->text, sizeof c->text, "%s", haul_last_error());
        atomic_store_explicit(&c->rc, rc, memory_order_release);
    }
    abort_all(c);
}

int hl_nccl_check(struct haul_comm *comm)
{
    struct nccl_comm *c = nccl_of(comm);
    int rc = atomic_load_explicit(&c->rc, memory_order_acquire);

    return rc < 0 ? hl_fail_text(rc, c->text) : 0;
}

/* One question. *result: NCCL's answer. */
static int ask(struct nccl_comm *c, struct ncclComm **comm, int *result)
{
    int rc;

    hl_nccl_hold(c);
    if (!*comm)
        rc = hl_fail(HAUL_E_NCCL, "the communicator has been aborted");
    else
        rc = HL_NCCL(&c->lib, ncclCommGetAsyncError, *comm, result);
    hl_nccl_give_back(c);
    return rc;
}

int hl_nccl_settle(struct nccl_comm *c, struct ncclComm **comm, const char *what)
{
    uint64_t begin = hl_clock_ns();
    int result = NCCL_SUCCESS, rc;

    for (;;) {
        rc = ask(c, comm, &result);
        if (atomic_load(&c->rc) < 0)
            return hl_nccl_check(&c->base);
        if (rc < 0 || result != NCCL_IN_PROGRESS)
            return rc < 0 ? rc : hl_nccl_result(&c->lib, result, what);
        if (hl_clock_ns() - begin > c->timeout_ns)
            return hl_fail(HAUL_E_NCCL,
                           "%s: not all ranks have come within %g s; this is rank %u of %u", what,
                           (double)c->timeout_ns * 1e-9, c->base.rank, c->base.nranks);
        hl_clock_sleep_until(hl_clock_ns() + NAP_NS);
    }
}

/* ---- close ---- */

static void nccl_abort(struct haul_comm *comm)
{
    struct nccl_comm *c = nccl_of(comm);

    hl_nccl_fail(c, hl_fail(HAUL_E_NCCL, "rank %u, this one, has given up", comm->rank));
    if (c->over)
        hl_comm_abort(c->over);
}

/* The last of a healthy communicator: what is under way is flushed. */
static void finish(struct nccl_comm *c, struct ncclComm **comm)
{
    int rc;

    if (!*comm)
        return;
    rc = HL_NCCL(&c->lib, ncclCommFinalize, *comm);
    if (rc == 0)
        rc = hl_nccl_settle(c, comm, "ncclCommFinalize");
    if (rc == 0)
        (void)c->lib.ncclCommDestroy(*comm);
    else
        (void)c->lib.ncclCommAbort(*comm);
    *comm = NULL;
}

static void nccl_close(struct haul_comm *comm)
{
    struct nccl_comm *c = nccl_of(comm);
    int entered = hl_cuda_context_enter(comm->dev, NULL);

    hl_nccl_watch_end(c);
    if (atomic_load(&c->rc) == 0) {
        finish(c, &c->blocking);
        finish(c, &c->queued);
    }
    abort_all(c);
    hl_nccl_bounce_close(c);
    hl_nccl_close(&c->lib);
    hl_cuda_context_leave(comm->dev, entered);
    hl_sys_free(c);
}

static const struct haul_comm_ops nccl_ops = {
    .struct_size = sizeof(struct haul_comm_ops),
    .all_gather = hl_nccl_all_gather,
    .all_to_all = hl_nccl_all_to_all,
    .broadcast = hl_nccl_broadcast,
    .all_reduce = hl_nccl_all_reduce,
    .barrier = hl_nccl_barrier,
    .check = hl_nccl_check,
    .abort = nccl_abort,
    .close = nccl_close,
};

/* ---- how the ranks meet ---- */

/* Through `over`: rank 0's id, and whether all ranks have got this far; own: how this one fared. */
static int agree(struct nccl_comm *c, int own, struct nccl_id *id)
{
    uint64_t word[NWORDS + 1] = {0};
    char text[HL_ERROR_TEXT_BYTES];
    int rc;

    if (own == 0 && c->base.rank == 0 && id) {
        own = HL_NCCL(&c->lib, ncclGetUniqueId, id);
        memcpy(word, id, sizeof *id);
    }
    word[NWORDS] = own < 0;
    snprintf(text, sizeof text, "%s", haul_last_error());
    rc = c->over->ops->all_reduce(c->over, HAUL_COMM_SUM_U64, word, NWORDS + 1);
    if (own < 0)
        return hl_fail_text(own, text);
    if (rc == 0 && word[NWORDS])
        return hl_fail(HAUL_E_NCCL, "another rank could not open its communicator: its own error "
                                    "says why");
    if (rc == 0 && id)
        memcpy(id, word, sizeof *id);
    return rc;
}

static int split(struct nccl_comm *c, struct ncclComm *from, struct ncclComm **out)
{
    struct nccl_config config = hl_nccl_config();
    int rc = HL_NCCL(&c->lib, ncclCommSplit, from, 0, (int)c->base.rank, out, &config);

    if (rc == 0)
        rc = hl_nccl_settle(c, &from, "ncclCommSplit");
    return rc < 0 ? rc : hl_nccl_settle(c, out, "ncclCommSplit");
}

static int meet(struct nccl_comm *c, const struct nccl_id *id)
{
    struct nccl_config config = hl_nccl_config();
    int rc = HL_NCCL(&c->lib, ncclCommInitRankConfig, &c->queued, (int)c->base.nranks, *id,
                     (int)c->base.rank, &config);

    return rc < 0 ? rc : hl_nccl_settle(c, &c->queued, "ncclCommInitRankConfig");
}

/* Who `from` says we are, which must be who `over` says. */
static int find_ranks(struct nccl_comm *c, struct ncclComm *from, int ordinal)
{
    int rank = 0, nranks = 0, device = 0, rc;

    if ((rc = HL_NCCL(&c->lib, ncclCommUserRank, from, &rank)) < 0 ||
        (rc = HL_NCCL(&c->lib, ncclCommCount, from, &nranks)) < 0 ||
        (rc = HL_NCCL(&c->lib, ncclCommCuDevice, from, &device)) < 0)
        return rc;
    if (device != ordinal)
        return hl_fail(-EINVAL, "the ncclComm_t is of GPU %d, the haul_device of GPU %d", device,
                       ordinal);
    if (c->over && (c->base.rank != (uint32_t)rank || c->base.nranks != (uint32_t)nranks))
        return hl_fail(-EINVAL,
                       "rank %d of %d in the ncclComm_t is rank %u of %u in the communicator "
                       "`over`",
                       rank, nranks, c->base.rank, c->base.nranks);
    c->base.rank = (uint32_t)rank;
    c->base.nranks = (uint32_t)nranks;
    return 0;
}

/* Of this machine since it was started, the same in all its processes. */
static uint64_t host_word(void)
{
    static const char *const file[] = {"/proc/sys/kernel/hostname",
                                       "/proc/sys/kernel/random/boot_id"};
    uint64_t hash = FNV;
    char text[256];

    for (int i = 0; i < 2; i++)
        if (hl_sys_probe_text(file[i], text, sizeof text) >= 0)
            for (const char *p = text; *p; p++)
                hash = (hash ^ (unsigned char)*p) * UINT64_C(0x100000001b3);
    return hash;
}

static int find_node(struct nccl_comm *c)
{
    const uint64_t *word;
    uint64_t own = host_word();
    int rc = hl_nccl_gather_word(c, own, &word);

    for (uint32_t r = 0; rc == 0 && r < c->base.nranks; r++)
        if (word[r] == own) {
            c->base.local_rank += r < c->base.rank;
            c->base.nlocal++;
        }
    return rc;
}

/* In the context. */
static int connect_ranks(struct nccl_comm *c, const struct haul_comm_nccl_opts *opts,
                         const struct nccl_id *id)
{
    int rc = 0;

    if (!opts->from)
        rc = meet(c, id);
    else if (opts->hand_over)
        c->queued = opts->from;
    else
        rc = split(c, opts->from, &c->queued);
    if (rc == 0 && !c->over &&
        ((rc = split(c, c->queued, &c->blocking)) < 0 || (rc = hl_nccl_bounce_open(c)) < 0 ||
         (rc = find_node(c)) < 0))
        return rc;
    return rc < 0 ? rc : hl_nccl_watch_start(c);
}

/* What can fail on one rank alone comes first, so that all can still agree. */
static int open_in_context(struct nccl_comm *c, const struct haul_comm_nccl_opts *opts, int ordinal,
                           int own)
{
    struct nccl_id id = {{0}};
    int rc = own;

    if (rc == 0 && opts->from)
        rc = find_ranks(c, opts->from, ordinal);
    if (c->over)
        rc = agree(c, rc, opts->from ? NULL : &id);
    return rc < 0 ? rc : connect_ranks(c, opts, &id);
}

static int open_all(struct nccl_comm *c, const struct haul_comm_nccl_opts *opts)
{
    int ordinal = 0, own, rc, entered = hl_cuda_context_enter(c->base.dev, &ordinal);

    own = entered < 0 ? entered : hl_nccl_open(&c->lib);
    rc = open_in_context(c, opts, ordinal, own);
    if (entered >= 0)
        hl_cuda_context_leave(c->base.dev, entered);
    return rc;
}

/* ---- open ---- */

void haul_comm_nccl_opts_init(struct haul_comm_nccl_opts *opts)
{
    *opts = (struct haul_comm_nccl_opts){.struct_size = sizeof *opts, .timeout_s = 600};
}

static int check_opts(const struct haul_comm_nccl_opts *o)
{
    if (o->struct_size != sizeof *o)
        return hl_fail(HAUL_E_ABI,
                       "haul_comm_nccl_opts: struct_size is %zu, this library knows %zu: call "
                       "haul_comm_nccl_opts_init() first",
                       o->struct_size, sizeof *o);
    if (!o->from && !o->over)
        return hl_fail(-EINVAL, "haul_comm_nccl_opts: neither `from` nor `over` is there, so the "
                                "ranks cannot find each other");
    if (!(o->timeout_s > 0 && o->timeout_s < MOST_S))
        return hl_fail(-EINVAL, "haul_comm_nccl_opts: timeout_s is %g, not above 0 and below %g",
                       o->timeout_s, MOST_S);
    return 0;
}

static void describe(struct nccl_comm *c, const struct haul_comm_nccl_opts *opts,
                     struct haul_device *dev)
{
    c->ops = nccl_ops;
    c->ops.reduce_scatter = opts->native_reduce ? hl_nccl_reduce_scatter : NULL;
    c->over = opts->over;
    if (c->over)
        c->base = *c->over;
    c->base.ops = &c->ops;
    c->base.dev = dev;
    c->timeout_ns = (uint64_t)(opts->timeout_s * 1e9);
}

/* What an open that failed leaves. `from` stays the caller's. */
static void undo(struct nccl_comm *c, const struct haul_comm_nccl_opts *opts)
{
    char text[HL_ERROR_TEXT_BYTES];

    snprintf(text, sizeof text, "%s", haul_last_error());
    hl_nccl_watch_end(c);
    if (opts->from && c->queued == opts->from)
        c->queued = NULL;
    abort_all(c);
    hl_nccl_bounce_close(c);
    hl_nccl_close(&c->lib);
    hl_sys_free(c);
    (void)hl_fail_text(0, text);
}

int haul_comm_nccl_open(const struct haul_comm_nccl_opts *opts, struct haul_device *dev,
                        struct haul_comm **out)
{
    struct nccl_comm *c;
    void *p;
    int rc;

    if ((rc = hl_need("haul_comm_nccl_open", "opts", opts)) < 0 ||
        (rc = hl_need("haul_comm_nccl_open", "dev", dev)) < 0 ||
        (rc = hl_need("haul_comm_nccl_open", "out", out)) < 0 || (rc = check_opts(opts)) < 0)
        return rc;
    if ((rc = hl_sys_alloc(sizeof *c, &p)) < 0)
        return hl_fail(rc, "no memory for a communicator");
    c = p;
    describe(c, opts, dev);
    rc = open_all(c, opts);
    if (rc < 0) {
        undo(c, opts);
        return rc;
    }
    *out = &c->base;
    return 0;
}
