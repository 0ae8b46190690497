/* reserve.c: take exactly what the ledger says, and cut it up. */
#include <assert.h>
#include <string.h>

#include "engine_state.h"
#include "sys.h"

/* A range that is handed out from its start. */
struct arena {
    char *at;
    uint64_t left_bytes;
};

static void *cut(struct arena *a, uint64_t bytes)
{
    void *p = a->at;

    assert(bytes <= a->left_bytes);
    a->at += bytes;
    a->left_bytes -= bytes;
    return p;
}

/* What has no bytes still has a place: NULL means that it is not here. Never written to. */
static struct arena take_nothing(void)
{
    static _Alignas(64) const char nothing[64];

    return (struct arena){(char *)(uintptr_t)nothing, 0};
}

static int take_device(struct haul_engine *e, uint64_t bytes, struct arena *out)
{
    void *p = NULL;
    int rc;

    *out = take_nothing();
    if (bytes == 0)
        return 0;
    rc = e->ops->alloc(e->dev, bytes, &p);
    if (rc < 0)
        return rc;
    e->device_arena[e->ndevice_arenas++] = p;
    rc = e->ops->fill(e->dev, p, 0, bytes, e->h2d);
    if (rc < 0)
        return rc;
    *out = (struct arena){p, bytes};
    return 0;
}

static int take_host(struct haul_engine *e, const char *purpose, uint64_t bytes, struct arena *out)
{
    void *p = NULL;

    *out = take_nothing();
    if (bytes == 0)
        return 0;
    int rc = haul_pool_take(e->pool, purpose, bytes, &p);
    if (rc == 0)
        *out = (struct arena){p, bytes};
    return rc;
}

static int take(struct haul_engine *e, enum haul_tier tier, const char *purpose, uint64_t bytes,
                struct arena *out)
{
    return tier == HAUL_TIER_DEVICE ? take_device(e, bytes, out)
                                    : take_host(e, purpose, bytes, out);
}

int hl_engine_pin(struct haul_engine *e, const struct haul_pool *pool)
{
    void *start;
    uint64_t bytes;
    int fd, rc = 0;

    for (uint32_t i = 0; rc == 0 && e->ops->host_register; i++) {
        if (haul_pool_segment_info(pool, i, &start, &bytes, &fd) < 0)
            break;
        rc = e->ops->host_register(e->dev, start, bytes);
    }
    return rc;
}

void hl_engine_unpin(struct haul_engine *e, const struct haul_pool *pool)
{
    void *start;
    uint64_t bytes;
    int fd;

    for (uint32_t i = 0; pool && e->ops->host_unregister; i++) {
        if (haul_pool_segment_info(pool, i, &start, &bytes, &fd) < 0)
            break;
        (void)e->ops->host_unregister(e->dev, start);
    }
}

static uint64_t whole_pages(uint64_t bytes)
{
    return (bytes + 4095) / 4096 * 4096;
}

/* Shared memory is the first segment, and what is in it is taken first. */
static int open_pool(struct haul_engine *e)
{
    uint64_t all = hl_ledger_bytes(&e->ledger, HAUL_TIER_HOST);
    uint64_t shared =
        e->shares ? whole_pages(hl_peers_bytes(e)) + whole_pages(e->state[HAUL_TIER_HOST].params)
                  : 0;
    const struct haul_pool_segment seg[2] = {{.bytes = shared, .shared = 1, .fd = -1},
                                             {.bytes = all - shared}};
    struct haul_pool_opts opts;

    haul_pool_opts_init(&opts);
    opts.segments = shared ? seg : seg + 1;
    opts.nsegments = shared ? 2 : 1;
    if (e->ops->numa_node)
        opts.numa_node = e->ops->numa_node(e->dev);
    int rc = haul_pool_open(&opts, &e->pool);
    if (rc == 0)
        rc = hl_engine_pin(e, e->pool);
    return rc == 0 && e->shares ? hl_peers_take(e) : rc;
}

static void close_pool(struct haul_engine *e)
{
    hl_engine_unpin(e, e->pool);
    haul_pool_close(e->pool);
    e->pool = NULL;
}

/* What all units' state takes from, per tier. */
struct arenas {
    struct arena params[HAUL_NTIERS], grads[HAUL_NTIERS], records[HAUL_NTIERS], hi;
};

static void cut_record(struct haul_unit *u, unsigned s, struct arena *records)
{
    uint64_t n = u->own[s].elems;
    uint64_t master = hl_record_master_bytes(u, s);

    u->record[s].master = master ? cut(records, n * master) : hl_own_params(u, s);
    u->record[s].m = cut(records, n * 4);
    u->record[s].v = cut(records, n * 4);
}

static void cut_unit(struct haul_unit *u, struct arenas *a)
{
    enum haul_tier ptier = hl_unit_params_on_host(u) ? HAUL_TIER_HOST : HAUL_TIER_DEVICE;
    enum haul_tier rtier = hl_unit_records_on_device(u) ? HAUL_TIER_DEVICE : HAUL_TIER_HOST;

    u->resident = hl_unit_windowed(u) ? NULL : a->params[ptier].at;
    for (unsigned s = 0; s < HL_NSPANS && !u->param_paged; s++)
        u->rest_params[s] = cut(&a->params[ptier], u->rest[s].elems * hl_span_param_bytes(s));
    for (unsigned s = 0; s < HL_NTRAIN; s++) {
        uint64_t n = hl_grad_rest_elems(u, s),
                 each = hl_plan_dtype_bytes(hl_rest_dtype(u->engine, s));
        char *grads = cut(&a->grads[rtier], n * each);
        u->rest_grads[s] = n > u->own[s].elems ? grads + u->own[s].first * each : grads;
        if (!u->record_paged)
            cut_record(u, s, &a->records[rtier]);
    }
    if (u->offload == HAUL_OFFLOAD_OPTIMIZER && u->engine->opts.master == HAUL_MASTER_SPLIT)
        u->hi = cut(&a->hi, u->own[HL_TRAIN16].elems * 2);
}

static int reserve_state(struct haul_engine *e)
{
    struct arenas a;
    int rc;

    memset(&a, 0, sizeof a);
    for (enum haul_tier t = HAUL_TIER_DEVICE; t <= HAUL_TIER_HOST; t++)
        if ((rc = take(e, t, "parameters", e->state[t].params, &a.params[t])) < 0 ||
            (rc = take(e, t, e->opts.passes > 1 ? "accumulators" : "gradients",
                       e->state[t].grads + e->state[t].accumulators, &a.grads[t])) < 0 ||
            (rc = take(e, t, "records", e->state[t].records, &a.records[t])) < 0)
            return rc;
    rc = take(e, HAUL_TIER_HOST, "hi copy", e->state[HAUL_TIER_HOST].hi, &a.hi);
    if (rc < 0)
        return rc;
    for (uint32_t i = 0; i < e->nunits; i++)
        cut_unit(e->units[i], &a);
    assert(a.hi.left_bytes == 0);
    for (enum haul_tier t = HAUL_TIER_DEVICE; t <= HAUL_TIER_HOST; t++)
        assert(a.params[t].left_bytes + a.grads[t].left_bytes + a.records[t].left_bytes == 0);
    return 0;
}

static uint64_t partials_of(const struct haul_unit *u)
{
    return hl_unit_records_on_device(u)
               ? hl_norm_blocks(u, HL_TRAIN16) + hl_norm_blocks(u, HL_TRAIN32)
               : 0;
}

static int reserve_partials(struct haul_engine *e)
{
    struct arena dev = {0}, host = {0};
    uint64_t nblocks = 0;
    int rc;

    for (uint32_t i = 0; i < e->nunits; i++)
        nblocks += partials_of(e->units[i]);
    if ((rc = take_device(e, nblocks * sizeof(float), &dev)) < 0 ||
        (rc = take_host(e, "norm partials", nblocks * sizeof(float), &host)) < 0)
        return rc;
    for (uint32_t i = 0; i < e->nunits; i++) {
        struct haul_unit *u = e->units[i];
        u->partials_device = cut(&dev, partials_of(u) * sizeof(float));
        u->partials_host = cut(&host, partials_of(u) * sizeof(float));
    }
    return 0;
}

static int open_events(struct haul_engine *e, struct hl_event **a, struct hl_event **b)
{
    int rc = e->ops->event_open(e->dev, a);

    return rc < 0 || !b ? rc : e->ops->event_open(e->dev, b);
}

static int reserve_frames(struct haul_engine *e)
{
    struct arena window = {0};
    int rc;

    if ((rc = take_device(e, e->nframes * e->window_bytes, &window)) < 0 ||
        (rc = hl_sys_alloc_array(e->nframes, sizeof *e->frame, (void **)&e->frame)) < 0 ||
        (rc = hl_sys_alloc_array(e->nframes, sizeof *e->wframe, (void **)&e->wframe)) < 0)
        return rc;
    for (uint32_t i = 0; i < e->nframes; i++) {
        e->frame[i].unit = -1;
        e->wframe[i].mem = cut(&window, e->window_bytes);
        if ((rc = open_events(e, &e->wframe[i].loaded, &e->wframe[i].released)) < 0 ||
            (rc = open_events(e, &e->wframe[i].saved, NULL)) < 0)
            return rc;
    }
    return 0;
}

static int reserve_grad_buffers(struct haul_engine *e)
{
    struct arena bufs = {0}, staging = {0};
    int rc;

    if ((rc = take_device(e, e->ngrad_buffers * e->grad_buffer_bytes, &bufs)) < 0 ||
        (rc = take_device(e, e->staging_bytes, &staging)) < 0 ||
        (rc = hl_sys_alloc_array(e->ngrad_buffers, sizeof *e->grad_buffer,
                                 (void **)&e->grad_buffer)) < 0)
        return rc;
    e->staging = staging.at;
    for (uint32_t i = 0; i < e->ngrad_buffers; i++) {
        struct hl_grad_buffer *b = &e->grad_buffer[i];
        b->mem = cut(&bufs, e->grad_buffer_bytes);
        if ((rc = open_events(e, &b->ready, &b->drained)) < 0)
            return rc;
    }
    return 0;
}

/* Between the ranks: what travels and is summed, and the turns that wait for the pump. */
static int reserve_sums(struct haul_engine *e)
{
    struct arena sums = {0};
    /* a step has a fetch or gather and a reduce for every visit of every pass */
    uint64_t n = 4ull * e->nvisits * e->opts.passes + e->nunits + 4ull * e->opts.window + 16;
    int rc;

    if (!e->comm)
        return 0;
    if (n > UINT32_MAX)
        return hl_fail(-EOVERFLOW, "engine: %u visits, reduced opts.passes %u times; lower it",
                       e->nvisits, e->opts.passes);
    e->turns.nring = (uint32_t)n;
    if ((rc = take_device(e, e->scratch_bytes + 2 * e->reduced_bytes, &sums)) < 0 ||
        (rc = hl_sys_alloc_array(n, sizeof *e->turns.ring, (void **)&e->turns.ring)) < 0 ||
        (rc = hl_sys_alloc_array(HL_AGREED_UNITS + (uint64_t)e->nunits, sizeof *e->agreed,
                                 (void **)&e->agreed)) < 0)
        return rc;
    for (unsigned i = 0; i < HL_COMM_SPANS; i++)
        if ((rc = open_events(e, &e->comm_span[i].before, &e->comm_span[i].after)) < 0)
            return rc;
    e->scratch = cut(&sums, e->scratch_bytes);
    for (unsigned i = 0; i < 2; i++) {
        e->reduced[i].mem = cut(&sums, e->reduced_bytes);
        if ((rc = open_events(e, &e->reduced[i].reduced, &e->reduced[i].copied)) < 0)
            return rc;
    }
    return 0;
}

static int reserve_slots(struct haul_engine *e)
{
    struct arena landings = {0}, slots = {0}, bounce = {0};
    int rc;

    if ((rc = take_host(e, "landing slots", e->nlandings * e->landing_bytes, &landings)) < 0 ||
        (rc = take_host(e, "publish slots", e->nslots * e->slot_bytes, &slots)) < 0 ||
        (rc = take_host(e, "bounce", HL_BOUNCE_BYTES, &bounce)) < 0 ||
        (rc = hl_sys_alloc_array(e->nlandings, sizeof *e->landing, (void **)&e->landing)) < 0 ||
        (rc = hl_sys_alloc_array(e->nslots, sizeof *e->slot, (void **)&e->slot)) < 0)
        return rc;
    e->bounce = bounce.at;
    for (uint32_t i = 0; i < e->nlandings; i++) {
        e->landing[i].mem = cut(&landings, e->landing_bytes);
        if ((rc = open_events(e, &e->landing[i].landed, NULL)) < 0)
            return rc;
    }
    for (uint32_t i = 0; i < e->nslots; i++) {
        e->slot[i].mem = cut(&slots, e->slot_bytes);
        if ((rc = open_events(e, &e->slot[i].copied, NULL)) < 0)
            return rc;
    }
    return 0;
}

static int reserve_unit_events(struct haul_engine *e)
{
    for (uint32_t i = 0; i < e->nunits; i++) {
        struct haul_unit *u = e->units[i];
        int rc = open_events(e, &u->released, &u->published);
        if (rc == 0)
            rc = open_events(e, &u->landed, NULL);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int reserve_samples(struct haul_engine *e)
{
    uint64_t n = (4ull * e->nvisits + 2ull * e->opts.stash_entries) * e->opts.passes + 16;
    int rc;

    /* Of a step: a wait for a write and one for a read, a chunk and a unit's parameters. */
    uint64_t waits = 2ull * e->npaged + 4ull * e->nunits + 16;

    e->io_waits_cap = waits < 65536 ? (uint32_t)waits : 65536;
    rc = hl_sys_alloc_array(e->io_waits_cap, sizeof *e->io_waits, (void **)&e->io_waits);
    if (rc < 0)
        return rc;
    e->samples_cap = n < 4096 ? (uint32_t)n : 4096;
    rc = hl_sys_alloc_array(e->samples_cap, sizeof *e->samples, (void **)&e->samples);
    for (uint32_t i = 0; rc == 0 && i < e->samples_cap; i++)
        rc = open_events(e, &e->samples[i].before, &e->samples[i].after);
    return rc;
}

static int reserve_jobs(struct haul_engine *e)
{
    /* one LAND a reduce, one NORM and one UPDATE a unit: all that can wait between two drains */
    uint64_t n = e->nunits * (e->opts.passes + 2ull) + 1;
    if (n > UINT32_MAX)
        return hl_fail(-EOVERFLOW, "engine: %u units reduced opts.passes %u times; lower it",
                       e->nunits, e->opts.passes);
    e->jobs.nring = (uint32_t)n;
    int rc = hl_sys_alloc_array(e->jobs.nring, sizeof *e->jobs.ring, (void **)&e->jobs.ring);
    if (rc < 0)
        return rc;
    return hl_sys_alloc_array(e->opts.ngroups, sizeof *e->group_step, (void **)&e->group_step);
}

static int open_streams(struct haul_engine *e)
{
    int rc = e->ops->stream_open(e->dev, 1, &e->h2d);

    if (rc == 0)
        rc = e->ops->stream_open(e->dev, 0, &e->d2h);
    if (rc == 0)
        rc = e->ops->stream_open(e->dev, 0, &e->update_stream);
    if (rc == 0 && e->comm)
        rc = e->ops->stream_open(e->dev, 0, &e->comm_stream);
    return rc;
}

int hl_engine_reserve(struct haul_engine *e)
{
    int rc;

    if ((rc = open_streams(e)) < 0 || (rc = open_pool(e)) < 0 || (rc = reserve_state(e)) < 0 ||
        (rc = reserve_partials(e)) < 0 || (rc = reserve_frames(e)) < 0 ||
        (rc = reserve_grad_buffers(e)) < 0 || (rc = reserve_sums(e)) < 0 ||
        (rc = reserve_slots(e)) < 0 || (rc = reserve_unit_events(e)) < 0 ||
        (rc = reserve_jobs(e)) < 0 || (rc = hl_paging_open(e)) < 0 ||
        (rc = reserve_samples(e)) < 0 || (rc = hl_stash_open(e)) < 0 ||
        (rc = hl_trace_open(e)) < 0 || (rc = hl_peers_open(e)) < 0 ||
        (rc = e->ops->stream_sync(e->dev, e->h2d)) < 0)
        hl_engine_unreserve(e);
    return rc;
}

static void close_event(struct haul_engine *e, struct hl_event **ev)
{
    if (*ev)
        e->ops->event_close(e->dev, *ev);
    *ev = NULL;
}

static void close_stream(struct haul_engine *e, void **stream)
{
    if (*stream)
        e->ops->stream_close(e->dev, *stream);
    *stream = NULL;
}

static void close_events(struct haul_engine *e)
{
    for (uint32_t i = 0; e->wframe && i < e->nframes; i++) {
        close_event(e, &e->wframe[i].loaded);
        close_event(e, &e->wframe[i].released);
        close_event(e, &e->wframe[i].saved);
    }
    for (unsigned i = 0; i < HL_COMM_SPANS; i++) {
        close_event(e, &e->comm_span[i].before);
        close_event(e, &e->comm_span[i].after);
    }
    for (unsigned i = 0; i < 2; i++) {
        close_event(e, &e->reduced[i].reduced);
        close_event(e, &e->reduced[i].copied);
    }
    for (uint32_t i = 0; e->grad_buffer && i < e->ngrad_buffers; i++) {
        close_event(e, &e->grad_buffer[i].ready);
        close_event(e, &e->grad_buffer[i].drained);
    }
    for (uint32_t i = 0; e->landing && i < e->nlandings; i++)
        close_event(e, &e->landing[i].landed);
    for (uint32_t i = 0; e->slot && i < e->nslots; i++)
        close_event(e, &e->slot[i].copied);
    for (uint32_t i = 0; e->samples && i < e->samples_cap; i++) {
        close_event(e, &e->samples[i].before);
        close_event(e, &e->samples[i].after);
    }
    for (uint32_t i = 0; i < e->nunits; i++) {
        close_event(e, &e->units[i]->released);
        close_event(e, &e->units[i]->published);
        close_event(e, &e->units[i]->landed);
    }
}

#define FREE_ARRAY(p) (hl_sys_free(p), (p) = NULL)

void hl_engine_unreserve(struct haul_engine *e)
{
    close_stream(e, &e->h2d);
    close_stream(e, &e->d2h);
    close_stream(e, &e->update_stream);
    close_stream(e, &e->comm_stream);
    close_events(e);
    FREE_ARRAY(e->frame);
    FREE_ARRAY(e->wframe);
    FREE_ARRAY(e->grad_buffer);
    FREE_ARRAY(e->landing);
    FREE_ARRAY(e->slot);
    FREE_ARRAY(e->samples);
    FREE_ARRAY(e->io_waits);
    FREE_ARRAY(e->jobs.ring);
    FREE_ARRAY(e->turns.ring);
    FREE_ARRAY(e->agreed);
    FREE_ARRAY(e->group_step);
    hl_paging_close(e);
    hl_stash_close(e);
    hl_trace_close(e);
    while (e->ndevice_arenas)
        e->ops->free(e->dev, e->device_arena[--e->ndevice_arenas]);
    hl_peers_close(e);
    close_pool(e);
}
