/* paging_open.c: the nvme tier of an engine: its store, its slots, and the order in which chunks move. */
#include "engine_state.h"
#include "store_kept.h"
#include "sys.h"

/* Extents by unit: records at even numbers, parameter shards at odd ones. */
uint32_t hl_record_extent(const struct haul_unit *u)
{
    return 2 * u->index;
}

uint32_t hl_param_extent(const struct haul_unit *u)
{
    return 2 * u->index + 1;
}

static void tell_store(void *user, uint64_t done_bytes, uint64_t total_bytes)
{
    const struct haul_engine *e = user;

    e->opts.work(e->opts.work_user, HAUL_WORK_STORE, done_bytes, total_bytes);
}

static int open_store(struct haul_engine *e)
{
    struct haul_store_opts o;

    haul_store_opts_init(&o);
    o.dirs = e->opts.nvme_dirs;
    o.ndirs = e->opts.nnvme_dirs;
    o.capacity_bytes = e->store_bytes;
    o.block_bytes = (uint32_t)e->block_bytes;
    o.bounce_blocks = 1;
    o.max_requests = 2 * (e->nrecord_slots + e->nparam_slots + e->stash.nslots) + 8;
    o.pool = e->pool;
    o.method = e->opts.io_method;
    o.progress = e->opts.work ? tell_store : NULL;
    o.progress_user = e;
    return e->durable ? hl_durable_open(e, &o) : haul_store_open(&o, &e->store);
}

static int create_record(struct haul_engine *e, const struct haul_unit *u)
{
    return e->durable ? hl_durable_extent(e, u)
                      : haul_extent_create(e->store, hl_record_extent(u), u->ck.extent_bytes);
}

static int create_extents(struct haul_engine *e)
{
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < e->nunits; i++) {
        const struct haul_unit *u = e->units[i];
        if (u->record_paged)
            rc = create_record(e, u);
        if (rc == 0 && u->param_paged)
            rc = hl_extent_create_passing(e->store, hl_param_extent(u), u->param_extent_bytes);
    }
    if (rc == 0 && hl_stash_nvme_bytes(e))
        rc = hl_extent_create_passing(e->store, hl_stash_extent(e), hl_stash_nvme_bytes(e));
    return rc;
}

static int open_record_slots(struct haul_engine *e)
{
    void *mem;
    int rc;

    if (e->nrecord_slots == 0)
        return 0;
    if ((rc = haul_pool_take(e->pool, "record slots", e->nrecord_slots * e->record_slot_bytes,
                             &mem)) < 0 ||
        (rc = hl_sys_alloc_array(e->nrecord_slots, sizeof *e->rslot, (void **)&e->rslot)) < 0)
        return rc;
    for (uint32_t i = 0; i < e->nrecord_slots; i++)
        e->rslot[i] =
            (struct hl_record_slot){.engine = e, .mem = (char *)mem + i * e->record_slot_bytes};
    return 0;
}

static int open_param_slots(struct haul_engine *e)
{
    void *mem;
    int rc;

    if (e->nparam_slots == 0)
        return 0;
    if ((rc = haul_pool_take(e->pool, "parameter slots", e->nparam_slots * e->param_slot_bytes,
                             &mem)) < 0 ||
        (rc = hl_sys_alloc_array(e->nparam_slots, sizeof *e->pslot, (void **)&e->pslot)) < 0 ||
        (rc = hl_sys_alloc_array(e->nparam_slots, sizeof *e->pframe, (void **)&e->pframe)) < 0)
        return rc;
    for (uint32_t i = 0; i < e->nparam_slots; i++) {
        e->pframe[i].unit = -1;
        e->pslot[i] =
            (struct hl_param_slot){.engine = e, .mem = (char *)mem + i * e->param_slot_bytes};
        if ((rc = e->ops->event_open(e->dev, &e->pslot[i].copied)) < 0)
            return rc;
    }
    return 0;
}

static int list_chunks(struct haul_engine *e)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < e->nunits; i++)
        n += e->units[i]->record_paged ? e->units[i]->ck.nchunks : 0;
    int rc = hl_sys_alloc_array(n, sizeof *e->paged, (void **)&e->paged);
    if (rc < 0)
        return rc;
    e->npaged = 0;
    for (uint32_t i = 0; i < e->nunits; i++) {
        struct haul_unit *u = e->units[e->update_order[i]];
        for (uint32_t c = 0; u->record_paged && c < u->ck.nchunks; c++)
            e->paged[e->npaged++] = (struct hl_paged_chunk){u, c};
    }
    return 0;
}

int hl_paging_open(struct haul_engine *e)
{
    int rc;

    if (e->store_bytes == 0)
        return 0;
    if ((rc = open_store(e)) < 0 || (rc = create_extents(e)) < 0 ||
        (rc = open_record_slots(e)) < 0 || (rc = open_param_slots(e)) < 0)
        return rc;
    /* what an earlier run has left is read when somebody wants it: it may be damaged */
    e->paused = e->durable && haul_store_generation(e->store, NULL, NULL) != 0;
    return list_chunks(e);
}

void hl_paging_close(struct haul_engine *e)
{
    haul_store_close(e->store);
    e->store = NULL;
    for (uint32_t i = 0; e->pslot && i < e->nparam_slots; i++)
        if (e->pslot[i].copied)
            e->ops->event_close(e->dev, e->pslot[i].copied);
    hl_sys_free(e->rslot);
    hl_sys_free(e->pslot);
    hl_sys_free(e->pframe);
    hl_sys_free(e->paged);
    e->rslot = NULL;
    e->pslot = NULL;
    e->pframe = NULL;
    e->paged = NULL;
}
