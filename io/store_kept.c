/* store_kept.c: see store_kept.h. */
#include "store_kept.h"

#include <fcntl.h>
#include <inttypes.h>

#include "manifest.h"
#include "store.h"
#include "sys.h"

struct places {
    const struct hl_extent *ext;
    struct hl_store_place *out;
};

static int places_on_loop(struct haul_store *s, void *arg)
{
    const struct places *p = arg;
    uint64_t cell_bytes = (uint64_t)s->nslots * s->opts.block_bytes;

    for (uint64_t b = 0; b < p->ext->nblocks; b++) {
        const struct hl_block *blk = &p->ext->blocks[b];

        p->out[b] = (struct hl_store_place){0};
        if (blk->slot != HL_SLOT_NONE)
            p->out[b] = (struct hl_store_place){blk->cell * cell_bytes +
                                                    (uint64_t)blk->slot * s->opts.block_bytes,
                                                blk->sum, blk->dir, blk->bytes};
    }
    return 0;
}

int hl_store_places(struct haul_store *store, uint32_t extent, struct hl_store_place *out)
{
    struct places p = {hl_extent_find(store, extent), out};

    if (!p.ext)
        return hl_fail(-ENOENT, "extent %u does not exist", extent);
    return hl_store_run(store, places_on_loop, &p);
}

static int unchanged_on_loop(struct haul_store *s, void *arg)
{
    for (uint32_t id = 0; id < s->extents_len; id++) {
        const struct hl_extent *ext = s->extents[id];

        for (uint64_t b = 0; ext && !ext->passing && b < ext->nblocks; b++)
            if (ext->blocks[b].slot != ext->blocks[b].held || ext->blocks[b].torn)
                return 0;
    }
    return s->generation != 0;
}

int hl_store_unchanged(struct haul_store *store)
{
    return hl_store_run(store, unchanged_on_loop, NULL) == 1;
}

/* What was published last is so no more; what the one before needs is held again. */
static int take_back_on_loop(struct haul_store *s, void *arg)
{
    uint64_t generation = *(uint64_t *)arg;

    for (uint32_t id = 0; id < s->extents_len; id++)
        for (uint64_t b = 0; s->extents[id] && b < s->extents[id]->nblocks; b++) {
            struct hl_block *blk = &s->extents[id]->blocks[b];

            blk->held = blk->older;
            blk->older = HL_SLOT_NONE;
            if (blk->generation == generation)
                blk->generation = 0;
        }
    for (struct hl_extent *ext = s->dropped; ext; ext = ext->next)
        for (uint64_t b = 0; b < ext->nblocks; b++) {
            ext->blocks[b].held = ext->blocks[b].older;
            ext->blocks[b].older = HL_SLOT_NONE;
        }
    return 0;
}

int hl_store_take_back(struct haul_store *store)
{
    uint64_t generation = store->generation;
    int rc;

    if (!generation)
        return hl_fail(HAUL_E_STATE, "there is no generation to take back");
    rc = hl_manifest_remove(store->dirs[0].dirfd, generation);
    if (rc < 0) {
        store->flush_failed = 1; /* it may be there or not: nothing more is published */
        return rc;
    }
    rc = hl_store_run(store, take_back_on_loop, &generation);
    store->generation = store->older_generation;
    store->older_generation = 0;
    hl_sys_free(store->blob);
    store->blob = NULL;
    store->blob_bytes = 0;
    return rc;
}

uint64_t hl_store_id(const struct haul_store *store)
{
    return store->store_id;
}

const char *hl_store_dir(const struct haul_store *store, uint32_t i)
{
    return i < store->ndirs ? store->dirs[i].path : NULL;
}

int hl_store_notes(const char *dir, uint64_t generation, void **blob, uint64_t *bytes)
{
    struct hl_manifest m;
    int fd = hl_sys_open(AT_FDCWD, dir, O_RDONLY | O_DIRECTORY, 0), rc;

    if (fd < 0)
        return fd;
    rc = hl_manifest_read(fd, dir, generation, &m);
    hl_sys_close(fd);
    if (rc < 0)
        return rc;
    *blob = m.blob;
    *bytes = m.blob_bytes;
    m.blob = NULL;
    hl_manifest_free(&m);
    return 0;
}
