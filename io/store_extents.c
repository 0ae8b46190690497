/* store_extents.c: making, growing and dropping extents. Memory is taken by the caller's thread, the
 * tables are changed by the I/O thread. */
#include <string.h>

#include "store.h"
#include "store_kept.h"
#include "sys.h"

uint32_t hl_block_len(const struct haul_store *s, const struct hl_extent *ext, uint64_t b)
{
    uint64_t left = ext->bytes - b * s->opts.block_bytes;

    return left < s->opts.block_bytes ? (uint32_t)left : s->opts.block_bytes;
}

struct hl_extent *hl_extent_find(const struct haul_store *s, uint32_t id)
{
    return id < s->extents_len ? s->extents[id] : NULL;
}

int hl_extent_alloc(uint32_t id, uint64_t bytes, uint64_t nblocks, struct hl_extent **out)
{
    struct hl_extent *ext;
    void *mem;
    int rc = hl_sys_alloc(sizeof *ext, &mem);

    if (rc < 0)
        return rc;
    ext = mem;
    rc = hl_sys_alloc_array(nblocks, sizeof *ext->blocks, &mem);
    if (rc < 0) {
        hl_sys_free(ext);
        return rc;
    }
    ext->blocks = mem;
    ext->id = id;
    ext->bytes = bytes;
    ext->nblocks = nblocks;
    for (uint64_t b = 0; b < nblocks; b++)
        ext->blocks[b].slot = ext->blocks[b].held = ext->blocks[b].older = HL_SLOT_NONE;
    *out = ext;
    return 0;
}

void hl_extent_free(struct hl_extent *ext)
{
    if (!ext)
        return;
    hl_sys_free(ext->blocks);
    hl_sys_free(ext);
}

/* A table of ids that reaches id; *table NULL when the present one does. */
static int larger_table(const struct haul_store *s, uint32_t id, struct hl_extent ***table,
                        uint32_t *len)
{
    void *mem;
    int rc;

    *table = NULL;
    if (id < s->extents_len)
        return 0;
    *len = id + 1 < 2 * s->extents_len ? 2 * s->extents_len : id + 1;
    rc = hl_sys_alloc_array(*len, sizeof **table, &mem);
    if (rc < 0)
        return rc;
    *table = mem;
    return 0;
}

struct create {
    struct hl_extent *ext;
    struct hl_extent **table;
    uint32_t table_len;
};

static int take_cells(struct haul_store *s, struct hl_extent *ext, uint64_t first)
{
    uint64_t want = ext->nblocks - first, have = hl_cells_free_count(s);

    if (want > have)
        return hl_fail(-ENOSPC,
                       "extent %u needs %llu blocks of %u bytes, %llu are free in the store's "
                       "capacity of %llu bytes",
                       ext->id, (unsigned long long)want, s->opts.block_bytes,
                       (unsigned long long)have, (unsigned long long)s->opts.capacity_bytes);
    for (uint64_t b = first; b < ext->nblocks; b++) {
        int rc = hl_cell_take(s, &ext->blocks[b].dir, &ext->blocks[b].cell);

        if (rc < 0)
            return rc;
    }
    return 0;
}

static void use_table(struct haul_store *s, struct create *c)
{
    struct hl_extent **old = s->extents;

    if (!c->table)
        return;
    if (old)
        memcpy(c->table, old, s->extents_len * sizeof *old);
    s->extents = c->table;
    s->extents_len = c->table_len;
    c->table = old; /* the caller frees it */
}

static int create_on_loop(struct haul_store *s, void *arg)
{
    struct create *c = arg;
    int rc = take_cells(s, c->ext, 0);

    if (rc < 0)
        return rc;
    use_table(s, c);
    s->extents[c->ext->id] = c->ext;
    s->nextents++;
    return 0;
}

static uint64_t nblocks_of(const struct haul_store *s, uint64_t bytes)
{
    return bytes / s->opts.block_bytes + (bytes % s->opts.block_bytes != 0);
}

static int writable(const struct haul_store *s)
{
    return s->opts.read_only ? hl_fail(-EROFS, "the store was opened read_only") : 0;
}

static int create(struct haul_store *store, uint32_t id, uint64_t bytes, int passing)
{
    struct create c = {0};
    uint64_t nblocks;
    int rc = writable(store);

    if (rc < 0)
        return rc;
    nblocks = nblocks_of(store, bytes);
    if (id >= HAUL_MAX_EXTENTS || !bytes)
        return hl_fail(-EINVAL, "extent %u of %llu bytes: ids are below %u, sizes at least 1", id,
                       (unsigned long long)bytes, HAUL_MAX_EXTENTS);
    if (hl_extent_find(store, id))
        return hl_fail(-EEXIST, "extent %u exists already", id);
    if (nblocks > store->opts.capacity_bytes / store->opts.block_bytes)
        return hl_fail(-ENOSPC, "extent %u of %llu bytes is larger than the store (%llu bytes)", id,
                       (unsigned long long)bytes, (unsigned long long)store->opts.capacity_bytes);
    rc = larger_table(store, id, &c.table, &c.table_len);
    if (rc < 0)
        return rc;
    rc = hl_extent_alloc(id, bytes, nblocks, &c.ext);
    if (rc < 0)
        goto free_table;
    c.ext->passing = passing;
    rc = hl_store_run(store, create_on_loop, &c);
    if (rc < 0)
        hl_extent_free(c.ext);
free_table:
    hl_sys_free(c.table);
    return rc;
}

int haul_extent_create(struct haul_store *store, uint32_t id, uint64_t bytes)
{
    int rc = HL_GIVEN(store);

    return rc < 0 ? rc : create(store, id, bytes, 0);
}

int hl_extent_create_passing(struct haul_store *store, uint32_t id, uint64_t bytes)
{
    return create(store, id, bytes, 1);
}

int hl_extent_install(struct haul_store *s, struct hl_extent *ext)
{
    struct create c = {.ext = ext};
    int rc = larger_table(s, ext->id, &c.table, &c.table_len);

    if (rc < 0)
        return rc;
    use_table(s, &c);
    hl_sys_free(c.table);
    s->extents[ext->id] = ext;
    s->nextents++;
    return 0;
}

static int busy(const struct hl_extent *ext)
{
    if (!ext->active)
        return 0;
    return hl_fail(-EBUSY, "extent %u has %u requests in flight", ext->id, ext->active);
}

struct grow {
    struct hl_extent *ext, *larger;
};

/* The old struct keeps its address (nothing points to it, but the table); the arrays change hands. */
static int grow_on_loop(struct haul_store *s, void *arg)
{
    struct grow *g = arg;
    struct hl_block *old = g->ext->blocks;
    uint64_t old_nblocks = g->ext->nblocks;
    int rc = busy(g->ext);

    if (rc == 0)
        rc = take_cells(s, g->larger, old_nblocks);
    if (rc < 0)
        return rc;
    memcpy(g->larger->blocks, old, old_nblocks * sizeof *old);
    g->ext->blocks = g->larger->blocks;
    g->ext->nblocks = g->larger->nblocks;
    g->ext->bytes = g->larger->bytes;
    g->larger->blocks = old;
    return 0;
}

int haul_extent_grow(struct haul_store *store, uint32_t id, uint64_t bytes)
{
    struct grow g = {0};
    uint64_t nblocks;
    int rc = HL_GIVEN(store);

    rc = rc ? rc : writable(store);
    if (rc < 0)
        return rc;
    nblocks = nblocks_of(store, bytes);
    g.ext = hl_extent_find(store, id);
    if (!g.ext)
        return hl_fail(-ENOENT, "extent %u does not exist", id);
    if (bytes < g.ext->bytes)
        return hl_fail(-EINVAL, "extent %u has %llu bytes and cannot shrink to %llu", id,
                       (unsigned long long)g.ext->bytes, (unsigned long long)bytes);
    if (nblocks > store->opts.capacity_bytes / store->opts.block_bytes)
        return hl_fail(-ENOSPC, "extent %u of %llu bytes is larger than the store (%llu bytes)", id,
                       (unsigned long long)bytes, (unsigned long long)store->opts.capacity_bytes);
    rc = hl_extent_alloc(id, bytes, nblocks, &g.larger);
    if (rc < 0)
        return rc;
    rc = hl_store_run(store, grow_on_loop, &g);
    hl_extent_free(g.larger);
    return rc;
}

static int needed(const struct hl_extent *ext)
{
    for (uint64_t b = 0; b < ext->nblocks; b++)
        if (ext->blocks[b].held != HL_SLOT_NONE || ext->blocks[b].older != HL_SLOT_NONE)
            return 1;
    return 0;
}

void hl_extents_sweep(struct haul_store *s)
{
    struct hl_extent **at = &s->dropped;

    while (*at) {
        struct hl_extent *ext = *at;

        if (needed(ext)) {
            at = &ext->next;
            continue;
        }
        *at = ext->next;
        for (uint64_t b = 0; b < ext->nblocks; b++)
            hl_cell_give(s, ext->blocks[b].dir, ext->blocks[b].cell);
        hl_extent_free(ext);
    }
}

static int drop_on_loop(struct haul_store *s, void *arg)
{
    struct hl_extent *ext = arg;
    int rc = busy(ext);

    if (rc < 0)
        return rc;
    s->extents[ext->id] = NULL;
    s->nextents--;
    ext->next = s->dropped;
    s->dropped = ext;
    hl_extents_sweep(s);
    return 0;
}

int haul_extent_drop(struct haul_store *store, uint32_t id)
{
    struct hl_extent *ext;
    int rc = HL_GIVEN(store);

    rc = rc ? rc : writable(store);
    if (rc < 0)
        return rc;
    ext = hl_extent_find(store, id);
    if (!ext)
        return hl_fail(-ENOENT, "extent %u does not exist", id);
    return hl_store_run(store, drop_on_loop, ext);
}

int haul_extent_size(struct haul_store *store, uint32_t id, uint64_t *bytes)
{
    const struct hl_extent *ext;
    int rc = HL_GIVEN(store);

    rc = rc ? rc : HL_GIVEN(bytes);
    if (rc < 0)
        return rc;
    ext = hl_extent_find(store, id);
    if (!ext)
        return hl_fail(-ENOENT, "extent %u does not exist", id);
    *bytes = ext->bytes;
    return 0;
}

void hl_extents_free_all(struct haul_store *s)
{
    for (uint32_t id = 0; id < s->extents_len; id++)
        hl_extent_free(s->extents[id]);
    hl_sys_free(s->extents);
    while (s->dropped) {
        struct hl_extent *ext = s->dropped;

        s->dropped = ext->next;
        hl_extent_free(ext);
    }
}
