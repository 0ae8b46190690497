/*
 * peers.c: parameter shards in memory that the ranks of a node share (stage 3, offload all).
 *
 * Each rank's shards lie in a segment of its pool that the other ranks map through /proc. A rank can then lift
 * a whole unit up its own link instead of gathering over the devices. A version per unit says how often the
 * shard has been updated; a fetch waits until every rank's is as new as the updates asked for. The other way
 * round, no update begins before all ranks have met in step(), with their copies done.
 */
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "engine_state.h"
#include "sys.h"

static bool possible(const struct haul_engine *e)
{
    return e->comm && e->opts.stage == 3 && e->opts.offload == HAUL_OFFLOAD_ALL &&
           e->comm->nlocal == e->nranks;
}

int hl_peers_plan(struct haul_engine *e)
{
    bool asked = e->opts.share == HAUL_SHARE_PULL;

    e->shares =
        possible(e) && (asked || (e->opts.share == HAUL_SHARE_AUTO && !e->dev->in_host_memory));
    if (asked && !e->shares)
        return hl_fail(-EINVAL,
                       "engine: share pull needs several ranks, all on one node, stage 3 and "
                       "offload all; use auto");
    return 0;
}

uint64_t hl_peers_bytes(const struct haul_engine *e)
{
    return e->shares ? e->nunits * sizeof(uint64_t) : 0;
}

int hl_peers_take(struct haul_engine *e)
{
    void *version;
    int rc = hl_sys_alloc_array(e->nranks, sizeof *e->peer, (void **)&e->peer);

    if (rc == 0)
        rc = haul_pool_take(e->pool, "peer versions", hl_peers_bytes(e), &version);
    if (rc == 0)
        e->peer[e->rank].version = version;
    return rc;
}

/* Where another process finds this rank's segment: process and descriptor. */
static int address(const struct haul_engine *e, uint64_t *out)
{
    void *start;
    uint64_t bytes;
    int fd, rc = haul_pool_segment_info(e->pool, 0, &start, &bytes, &fd);

    if (rc == 0)
        *out = (uint64_t)getpid() << 32 | (uint32_t)fd;
    return rc;
}

static int map_peer(struct haul_engine *e, uint32_t r, uint64_t at)
{
    struct haul_pool_segment seg = {.shared = 1};
    struct haul_pool_opts opts;
    char path[64];
    void *start;
    int fd, rc = haul_pool_segment_info(e->pool, 0, &start, &seg.bytes, &fd);

    if (rc < 0)
        return rc;
    snprintf(path, sizeof path, "/proc/%u/fd/%u", (unsigned)(at >> 32), (unsigned)(uint32_t)at);
    seg.fd = hl_sys_open(AT_FDCWD, path, O_RDWR | O_CLOEXEC, 0);
    if (seg.fd < 0)
        return hl_fail(seg.fd,
                       "parameters of rank %u: %s: %s; ranks that share memory need one user "
                       "and one /proc, or use share gather",
                       r, path, haul_strerror(seg.fd));
    haul_pool_opts_init(&opts);
    opts.segments = &seg;
    opts.nsegments = 1;
    rc = haul_pool_open(&opts, &e->peer[r].pool);
    hl_sys_close(seg.fd);
    return rc < 0 ? rc : hl_engine_pin(e, e->peer[r].pool);
}

/* All segments are laid out alike. */
static int find_in_peer(struct haul_engine *e, uint32_t r)
{
    const struct hl_peer *own = &e->peer[e->rank];
    void *mine, *theirs;
    uint64_t bytes;
    int fd, rc = haul_pool_segment_info(e->pool, 0, &mine, &bytes, &fd);

    if (rc == 0)
        rc = haul_pool_segment_info(e->peer[r].pool, 0, &theirs, &bytes, &fd);
    if (rc < 0)
        return rc;
    e->peer[r].params = (char *)theirs + (own->params - (char *)mine);
    e->peer[r].version = (void *)((char *)theirs + ((char *)own->version - (char *)mine));
    return 0;
}

/* The first parameters of the region: their place in it is the same on all ranks. */
static void find_own(struct haul_engine *e)
{
    for (uint32_t i = 0; i < e->nunits && !e->peer[e->rank].params; i++)
        if (hl_unit_params_on_host(e->units[i]) && !e->units[i]->param_paged)
            e->peer[e->rank].params = e->units[i]->rest_params[0];
}

/* How long a unit takes to come, at best of three; the slowest rank counts. */
static int time_way(struct haul_engine *e, struct haul_unit *u, bool pull, double *seconds)
{
    double best = 1e9;
    int rc = 0;

    e->pulls = pull;
    for (int i = 0; rc == 0 && i < 3; i++) {
        double s;
        rc = hl_turns_time_fetch(e, u, &s);
        best = rc == 0 && s < best ? s : best;
    }
    if (rc == 0)
        rc = hl_comm_all_reduce(e->comm, e->comm_counts, HAUL_COMM_MAX_F64, &best, 1);
    *seconds = best;
    return rc;
}

static int choose(struct haul_engine *e)
{
    struct haul_unit *largest = NULL;
    double gather, pull;
    int rc;

    for (uint32_t i = 0; i < e->nunits; i++)
        if (hl_unit_params_on_host(e->units[i]) && !e->units[i]->param_paged &&
            (!largest || hl_gathered_bytes(e->units[i]) > hl_gathered_bytes(largest)))
            largest = e->units[i];
    if (!largest || e->opts.share == HAUL_SHARE_PULL) {
        e->pulls = largest != NULL;
        return 0;
    }
    if ((rc = time_way(e, largest, false, &gather)) < 0 ||
        (rc = time_way(e, largest, true, &pull)) < 0)
        return rc;
    e->pulls = pull < gather;
    hl_log(HAUL_LOG_INFO, "a unit of %llu bytes is gathered in %.3g ms, pulled in %.3g: %s",
           (unsigned long long)hl_gathered_bytes(largest), gather * 1e3, pull * 1e3,
           e->pulls ? "pulled" : "gathered");
    return 0;
}

int hl_peers_open(struct haul_engine *e)
{
    uint64_t *at;
    int rc;

    if (!e->shares)
        return 0;
    find_own(e);
    if ((rc = hl_sys_alloc_array(e->nranks, sizeof *at, (void **)&at)) < 0)
        return rc;
    rc = address(e, &at[e->rank]);
    if (rc == 0)
        rc = hl_comm_all_reduce(e->comm, e->comm_counts, HAUL_COMM_SUM_U64, at, e->nranks);
    for (uint32_t r = 0; rc == 0 && r < e->nranks; r++)
        if (r != e->rank && (rc = map_peer(e, r, at[r])) == 0)
            rc = find_in_peer(e, r);
    hl_sys_free(at);
    if (rc == 0) /* a descriptor is there until all have opened it */
        rc = e->comm->ops->barrier(e->comm);
    return rc < 0 ? rc : choose(e);
}

void hl_peers_close(struct haul_engine *e)
{
    for (uint32_t r = 0; e->peer && r < e->nranks; r++) {
        hl_engine_unpin(e, e->peer[r].pool);
        haul_pool_close(e->peer[r].pool);
    }
    hl_sys_free(e->peer);
    e->peer = NULL;
    e->pulls = false;
}

bool hl_peers_ready(const struct haul_unit *u)
{
    const struct haul_engine *e = u->engine;

    for (uint32_t r = 0; r < e->nranks; r++)
        if (atomic_load_explicit(&e->peer[r].version[u->index], memory_order_acquire) < u->nasked)
            return false;
    return true;
}

void hl_peers_updated(struct haul_unit *u)
{
    struct haul_engine *e = u->engine;

    if (e->pulls)
        atomic_fetch_add_explicit(&e->peer[e->rank].version[u->index], 1, memory_order_release);
}
