/*
 * comm_nccl_queue.c: queued collectives, which are NCCL's own on the caller's stream, between two events
 * for the watch. Nothing here allocates or waits for queued work.
 */
#include "comm_nccl.h"
#include "cuda_context.h"

/* What one call of NCCL or one group of them is made from. */
struct nccl_move {
    enum nccl_kind kind;
    void *to;
    const void *from;
    uint64_t n; /* elements of a piece */
    int type;
    unsigned root;
    uint64_t bytes; /* of a piece */
};

const char *hl_nccl_kind_name(enum nccl_kind kind)
{
    static const char *const name[] = {"all-gather", "all-to-all", "broadcast", "reduce-scatter"};

    return name[kind];
}

/* Held. */
static int exchange(struct nccl_comm *c, const struct nccl_move *v, void *stream)
{
    int rc = HL_NCCL(&c->lib, ncclGroupStart), ended;

    if (rc < 0)
        return rc;
    for (uint32_t r = 0; rc == 0 && r < c->base.nranks; r++) {
        rc = HL_NCCL(&c->lib, ncclSend, (const char *)v->from + r * v->bytes, v->n, v->type, (int)r,
                     c->queued, stream);
        if (rc == 0)
            rc = HL_NCCL(&c->lib, ncclRecv, (char *)v->to + r * v->bytes, v->n, v->type, (int)r,
                         c->queued, stream);
    }
    ended = HL_NCCL(&c->lib, ncclGroupEnd);
    return rc < 0 ? rc : ended;
}

/* Held. */
static int issue(struct nccl_comm *c, const struct nccl_move *v, void *stream)
{
    switch (v->kind) {
    case NCCL_KIND_GATHER:
        return HL_NCCL(&c->lib, ncclAllGather, v->from, v->to, v->n, v->type, c->queued, stream);
    case NCCL_KIND_ALL_TO_ALL:
        return exchange(c, v, stream);
    case NCCL_KIND_BROADCAST:
        return HL_NCCL(&c->lib, ncclBroadcast, v->from, v->to, v->n, v->type, (int)v->root,
                       c->queued, stream);
    case NCCL_KIND_REDUCE:
        return HL_NCCL(&c->lib, ncclReduceScatter, v->from, v->to, v->n, v->type, NCCL_SUM,
                       c->queued, stream);
    }
    return 0;
}

/* The next entry for the watch; NULL when all are under way: then nobody waits, and this call's age is not
 * known, only that of those before it. */
static struct nccl_watched *watch_begin(struct nccl_comm *c, const struct nccl_move *v,
                                        void *stream)
{
    uint64_t n = atomic_load_explicit(&c->nwatched, memory_order_relaxed);
    struct nccl_watched *w = &c->watched[n % NCCL_WATCHED];

    if (n - atomic_load_explicit(&c->nseen, memory_order_acquire) == NCCL_WATCHED)
        return NULL;
    w->kind = v->kind;
    w->bytes = v->bytes;
    w->number = c->ncalls;
    w->since_ns = 0;
    return c->base.dev->ops->event_record(c->base.dev, w->begin, stream) == 0 ? w : NULL;
}

static void watch_end(struct nccl_comm *c, struct nccl_watched *w, void *stream)
{
    if (w && c->base.dev->ops->event_record(c->base.dev, w->end, stream) == 0)
        atomic_fetch_add_explicit(&c->nwatched, 1, memory_order_release);
}

static int queue_in_context(struct nccl_comm *c, const struct nccl_move *v, void *stream)
{
    struct nccl_watched *w;
    int rc;

    c->ncalls++;
    hl_nccl_hold(c);
    if (!c->queued) {
        hl_nccl_give_back(c);
        return 0; /* aborted: check() says so */
    }
    w = watch_begin(c, v, stream);
    rc = issue(c, v, stream);
    hl_nccl_give_back(c);
    if (rc == 0)
        rc = hl_nccl_settle(c, &c->queued, hl_nccl_kind_name(v->kind));
    if (rc == 0)
        watch_end(c, w, stream);
    else
        hl_nccl_fail(c, rc);
    return rc;
}

static int queue(struct nccl_comm *c, const struct nccl_move *v, void *stream)
{
    int entered, rc;

    /* Once a call has failed the later ones do nothing. */
    if (v->n == 0 || atomic_load_explicit(&c->rc, memory_order_acquire) < 0)
        return 0;
    entered = hl_cuda_context_enter(c->base.dev, NULL);
    if (entered < 0)
        return entered;
    rc = queue_in_context(c, v, stream);
    hl_cuda_context_leave(c->base.dev, entered);
    return rc;
}

int hl_nccl_all_gather(struct haul_comm *comm, void *full, const void *shard, uint64_t bytes,
                       void *stream)
{
    return queue(nccl_of(comm),
                 &(struct nccl_move){NCCL_KIND_GATHER, full, shard, bytes, NCCL_INT8, 0, bytes},
                 stream);
}

int hl_nccl_all_to_all(struct haul_comm *comm, void *recv, const void *send, uint64_t bytes,
                       void *stream)
{
    return queue(nccl_of(comm),
                 &(struct nccl_move){NCCL_KIND_ALL_TO_ALL, recv, send, bytes, NCCL_INT8, 0, bytes},
                 stream);
}

int hl_nccl_broadcast(struct haul_comm *comm, void *buf, uint64_t bytes, unsigned root,
                      void *stream)
{
    if (root >= comm->nranks)
        return hl_fail(-EINVAL, "broadcast: root %u of %u ranks", root, comm->nranks);
    return queue(nccl_of(comm),
                 &(struct nccl_move){NCCL_KIND_BROADCAST, buf, buf, bytes, NCCL_INT8, root, bytes},
                 stream);
}

int hl_nccl_reduce_scatter(struct haul_comm *comm, void *dst, const void *src,
                           enum haul_dtype dtype, uint64_t n, void *stream)
{
    int type = dtype == HAUL_FP32   ? NCCL_FLOAT32
               : dtype == HAUL_BF16 ? NCCL_BFLOAT16
                                    : NCCL_FLOAT16;

    return queue(nccl_of(comm),
                 &(struct nccl_move){NCCL_KIND_REDUCE, dst, src, n, type, 0,
                                     n * (dtype == HAUL_FP32 ? 4 : 2)},
                 stream);
}
