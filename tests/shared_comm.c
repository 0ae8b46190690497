/* shared_comm.c: see shared_comm.h. */
#include "shared_comm.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "clock.h"
#include "comm_scalar.h"
#include "fail.h"

enum { MOST_RANKS = 8, MOST_VALUES = 4096 };

struct shared_world {
    uint32_t nranks;
    atomic_uint narrived, round;
    atomic_int dead; /* a rank that has given up, counted from 1 */
    uint64_t value[MOST_RANKS][MOST_VALUES];
};

struct shared_comm {
    struct haul_comm base;
    struct shared_world *world;
    double timeout_s;
};

static int gone(struct shared_comm *c)
{
    int dead = atomic_load(&c->world->dead);

    return dead ? hl_fail(HAUL_E_STATE, "rank %d has given up", dead - 1) : 0;
}

static int meet(struct shared_comm *c)
{
    struct shared_world *w = c->world;
    unsigned round = atomic_load(&w->round);
    uint64_t until = hl_clock_ns() + (uint64_t)(c->timeout_s * 1e9);
    int rc = gone(c);

    if (rc == 0 && atomic_fetch_add(&w->narrived, 1) + 1 == w->nranks) {
        atomic_store(&w->narrived, 0);
        atomic_fetch_add(&w->round, 1);
        return 0;
    }
    while (rc == 0 && atomic_load(&w->round) == round) {
        usleep(100);
        rc = hl_clock_ns() > until ? hl_fail(-ETIMEDOUT, "not all ranks have come") : gone(c);
    }
    return atomic_load(&w->round) != round ? 0 : rc; /* who met may have gone since */
}

static int all_reduce(struct haul_comm *comm, enum haul_comm_scalar op, void *values, uint64_t n)
{
    struct shared_comm *c = (struct shared_comm *)comm;
    uint64_t *at = values;
    int rc;

    if (n > MOST_VALUES)
        return hl_fail(-EINVAL, "%llu values", (unsigned long long)n);
    if (n)
        memcpy(c->world->value[comm->rank], values, n * sizeof *at);
    if ((rc = meet(c)) < 0)
        return rc;
    for (uint64_t i = 0; i < n; i++) {
        at[i] = c->world->value[0][i];
        for (uint32_t r = 1; r < comm->nranks; r++)
            at[i] = hl_comm_combine(op, at[i], c->world->value[r][i]);
    }
    return meet(c);
}

static int barrier(struct haul_comm *comm)
{
    return all_reduce(comm, HAUL_COMM_MAX_U64, NULL, 0);
}

static int check(struct haul_comm *comm)
{
    return gone((struct shared_comm *)comm);
}

static void give_up(struct haul_comm *comm)
{
    atomic_store(&((struct shared_comm *)comm)->world->dead, (int)comm->rank + 1);
}

static void close_rank(struct haul_comm *comm)
{
    free(comm);
}

static const struct haul_comm_ops ops = {
    .struct_size = sizeof(struct haul_comm_ops),
    .all_reduce = all_reduce,
    .barrier = barrier,
    .check = check,
    .abort = give_up,
    .close = close_rank,
};

struct shared_world *shared_world_open(uint32_t nranks)
{
    struct shared_world *w =
        mmap(NULL, sizeof *w, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    w->nranks = nranks;
    return w;
}

void shared_world_close(struct shared_world *world)
{
    munmap(world, sizeof *world);
}

struct haul_comm *shared_comm_open(struct shared_world *world, uint32_t rank,
                                   struct haul_device *dev, double timeout_s)
{
    struct shared_comm *c = calloc(1, sizeof *c);

    c->base = (struct haul_comm){&ops, dev, rank, world->nranks, rank, world->nranks};
    c->world = world;
    c->timeout_s = timeout_s;
    return &c->base;
}
