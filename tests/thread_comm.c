/* thread_comm.c: see thread_comm.h. */
#include "thread_comm.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fail.h"

enum { MOST_RANKS = 16 };
enum kind { GATHER, ALL_TO_ALL, BROADCAST };

/* What a rank brings to a meeting. */
struct offer {
    enum kind kind;
    char *to;
    const char *from;
    uint64_t bytes;
    unsigned root;
};

/* One meeting place for queued calls, one for blocking ones. */
struct meeting {
    struct offer offer[MOST_RANKS];
    bool here[MOST_RANKS];
    uint32_t narrived;
    uint64_t round;
};

struct thread_world {
    uint32_t nranks;
    pthread_mutex_t lock;
    pthread_cond_t moved;
    struct meeting queued, blocking;
    bool dead;
};

struct thread_comm {
    struct haul_comm base;
    struct thread_world *world;
    double timeout_s;
    bool dead;
    int failed;
    char text[256];
};

struct call {
    struct thread_comm *comm;
    struct offer offer;
};

static struct timespec deadline(double s)
{
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t);
    t.tv_sec += (time_t)s;
    t.tv_nsec += (long)((s - (double)(time_t)s) * 1e9);
    if (t.tv_nsec >= 1000000000) {
        t.tv_sec++;
        t.tv_nsec -= 1000000000;
    }
    return t;
}

/* Under lock. */
static int give_up(struct thread_comm *c, const struct meeting *m)
{
    int at = snprintf(c->text, sizeof c->text, "rank %u waited %g s for rank", c->base.rank,
                      c->timeout_s);

    for (uint32_t r = 0; r < c->world->nranks; r++)
        if (!m->here[r])
            at += snprintf(c->text + at, sizeof c->text - (size_t)at, " %u", r);
    c->world->dead = true;
    pthread_cond_broadcast(&c->world->moved);
    return HAUL_E_MPI;
}

/* Under lock: all ranks are here, or an error. */
static int meet(struct thread_comm *c, struct meeting *m)
{
    struct thread_world *w = c->world;
    struct timespec until = deadline(c->timeout_s);
    uint64_t round = m->round;

    if (c->dead || w->dead) {
        if (!c->dead)
            snprintf(c->text, sizeof c->text, "another rank gave up");
        return HAUL_E_MPI;
    }
    m->here[c->base.rank] = true;
    if (++m->narrived == w->nranks) {
        m->narrived = 0;
        m->round++;
        memset(m->here, 0, sizeof m->here);
        pthread_cond_broadcast(&w->moved);
        return 0;
    }
    while (m->round == round)
        if (w->dead || pthread_cond_timedwait(&w->moved, &w->lock, &until) == ETIMEDOUT)
            return give_up(c, m);
    return 0;
}

static void move(struct thread_comm *c, struct meeting *m)
{
    uint32_t me = c->base.rank;
    const struct offer *mine = &m->offer[me];

    for (uint32_t r = 0; r < c->world->nranks; r++) {
        const struct offer *theirs = &m->offer[r];
        char *to = mine->to + r * mine->bytes;
        const char *from = theirs->from;
        if (theirs->kind != mine->kind || theirs->bytes != mine->bytes) {
            c->failed = HAUL_E_MPI;
            snprintf(c->text, sizeof c->text, "rank %u and rank %u make different calls", me, r);
            return;
        }
        if (mine->kind == ALL_TO_ALL)
            from += me * mine->bytes;
        if (mine->kind == BROADCAST && r != mine->root)
            continue;
        if (mine->kind == BROADCAST)
            to = mine->to;
        if (to != from)
            memcpy(to, from, mine->bytes);
    }
}

/* On the stream's thread. Meet, copy, and meet again: nobody changes what others still read. */
static void run_call(void *user)
{
    struct call *call = user;
    struct thread_comm *c = call->comm;
    struct thread_world *w = c->world;
    int rc;

    pthread_mutex_lock(&w->lock);
    w->queued.offer[c->base.rank] = call->offer;
    rc = c->failed ? c->failed : meet(c, &w->queued);
    pthread_mutex_unlock(&w->lock);
    if (rc == 0)
        move(c, &w->queued);
    pthread_mutex_lock(&w->lock);
    if (rc == 0)
        rc = meet(c, &w->queued);
    if (rc < 0 && !c->failed)
        c->failed = rc;
    pthread_mutex_unlock(&w->lock);
    free(call);
}

static int queue(struct haul_comm *comm, const struct offer *offer, void *stream)
{
    struct call *call = malloc(sizeof *call);

    *call = (struct call){(struct thread_comm *)comm, *offer};
    int rc = haul_device_call(comm->dev, stream, run_call, call);
    if (rc < 0)
        free(call);
    return rc;
}

static int all_gather(struct haul_comm *comm, void *full, const void *shard, uint64_t bytes,
                      void *stream)
{
    return queue(comm, &(struct offer){GATHER, full, shard, bytes, 0}, stream);
}

static int all_to_all(struct haul_comm *comm, void *recv, const void *send, uint64_t bytes,
                      void *stream)
{
    return queue(comm, &(struct offer){ALL_TO_ALL, recv, send, bytes, 0}, stream);
}

static int broadcast(struct haul_comm *comm, void *buf, uint64_t bytes, unsigned root, void *stream)
{
    return queue(comm, &(struct offer){BROADCAST, buf, buf, bytes, root}, stream);
}

static void combine(enum haul_comm_scalar op, void *sum, const void *value, uint64_t i, bool first)
{
    double *d = (double *)sum + i, x = ((const double *)value)[i];
    uint64_t *u = (uint64_t *)sum + i, y = ((const uint64_t *)value)[i];

    switch (op) {
    case HAUL_COMM_SUM_F64:
        *d = first ? x : *d + x;
        break;
    case HAUL_COMM_MAX_F64:
        *d = first || x > *d ? x : *d;
        break;
    case HAUL_COMM_SUM_U64:
        *u = first ? y : *u + y;
        break;
    case HAUL_COMM_MAX_U64:
        *u = first || y > *u ? y : *u;
        break;
    }
}

static int all_reduce(struct haul_comm *comm, enum haul_comm_scalar op, void *values, uint64_t n)
{
    struct thread_comm *c = (struct thread_comm *)comm;
    struct thread_world *w = c->world;
    char *sum = malloc(n * 8 + 8);
    int rc;

    pthread_mutex_lock(&w->lock);
    w->blocking.offer[comm->rank] = (struct offer){.from = values, .bytes = n, .root = op};
    rc = meet(c, &w->blocking);
    for (uint32_t r = 0; rc == 0 && r < w->nranks; r++) {
        if (w->blocking.offer[r].bytes != n || w->blocking.offer[r].root != (unsigned)op) {
            snprintf(c->text, sizeof c->text, "ranks %u and %u all-reduce different things",
                     comm->rank, r);
            rc = HAUL_E_MPI;
        }
        for (uint64_t i = 0; rc == 0 && i < n; i++)
            combine(op, sum, w->blocking.offer[r].from, i, r == 0);
    }
    if (rc == 0)
        rc = meet(c, &w->blocking);
    if (rc == 0 && n)
        memcpy(values, sum, n * 8);
    pthread_mutex_unlock(&w->lock);
    free(sum);
    return rc < 0 ? hl_fail(rc, "all-reduce: %s", c->text) : 0;
}

static int barrier(struct haul_comm *comm)
{
    return all_reduce(comm, HAUL_COMM_MAX_U64, NULL, 0);
}

static int check(struct haul_comm *comm)
{
    struct thread_comm *c = (struct thread_comm *)comm;

    pthread_mutex_lock(&c->world->lock);
    int rc = c->failed;
    pthread_mutex_unlock(&c->world->lock);
    return rc < 0 ? hl_fail(rc, "collective: %s", c->text) : 0;
}

static void abort_rank(struct haul_comm *comm)
{
    struct thread_world *w = ((struct thread_comm *)comm)->world;

    pthread_mutex_lock(&w->lock);
    w->dead = true;
    pthread_cond_broadcast(&w->moved);
    pthread_mutex_unlock(&w->lock);
}

void thread_comm_die(struct haul_comm *comm)
{
    struct thread_comm *c = (struct thread_comm *)comm;

    pthread_mutex_lock(&c->world->lock);
    c->dead = true;
    snprintf(c->text, sizeof c->text, "this rank is dead");
    pthread_mutex_unlock(&c->world->lock);
}

static void close_rank(struct haul_comm *comm)
{
    free(comm);
}

static const struct haul_comm_ops ops = {
    .struct_size = sizeof(struct haul_comm_ops),
    .all_gather = all_gather,
    .all_to_all = all_to_all,
    .broadcast = broadcast,
    .all_reduce = all_reduce,
    .barrier = barrier,
    .check = check,
    .abort = abort_rank,
    .close = close_rank,
};

struct thread_world *thread_world_open(uint32_t nranks)
{
    struct thread_world *w = calloc(1, sizeof *w);

    w->nranks = nranks;
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->moved, NULL);
    return w;
}

void thread_world_close(struct thread_world *w)
{
    pthread_cond_destroy(&w->moved);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

struct haul_comm *thread_comm_open(struct thread_world *world, uint32_t rank,
                                   struct haul_device *dev, double timeout_s)
{
    struct thread_comm *c = calloc(1, sizeof *c);

    c->base = (struct haul_comm){&ops, dev, rank, world->nranks, rank, world->nranks};
    c->world = world;
    c->timeout_s = timeout_s;
    return &c->base;
}
