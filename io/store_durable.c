/* store_durable.c: generations.
 *
 * Each block has two slots. The current content is in `slot`; `held` and `older` are the slots that the
 * current generation and the one before it need. A write goes to a slot that neither needs. So
 * whatever was prepared stays whole until it is retired, and with both kept, a block that differs
 * between them cannot be written: HAUL_E_STATE says so. */
#include <inttypes.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "manifest.h"
#include "store.h"
#include "store_kept.h"
#include "stripe_file.h"
#include "sys.h"

/* ---- opening ---- */

static void new_store_id(struct haul_store *s)
{
    if (getrandom(&s->store_id, sizeof s->store_id, GRND_NONBLOCK) != sizeof s->store_id)
        s->store_id = (uint64_t)(uintptr_t)s * 0x9e3779b97f4a7c15ull ^ (uint64_t)getpid();
}

static int adopt(struct haul_store *s, const struct haul_store_opts *opts, struct hl_manifest *m)
{
    if (m->ndirs != s->ndirs)
        return hl_fail(HAUL_E_CONFIG, "the store in %s has %u directories, %u are named",
                       s->dirs[0].path, m->ndirs, s->ndirs);
    s->store_id = m->store_id;
    s->generation = m->generation;
    s->written_before = m->written_bytes;
    s->opts.block_bytes = m->block_bytes;
    s->opts.capacity_bytes = haul_extent_cost(opts->capacity_bytes, m->block_bytes);
    for (uint32_t i = 0; i < s->ndirs; i++) {
        s->dirs[i].ncells = m->ncells[i];
        /* Space that generations may live in is never written "for the first time" again. */
        s->dirs[i].written_bytes = (uint64_t)m->ncells[i] * s->nslots * m->block_bytes;
    }
    return 0;
}

/* Move the extents of the opened generation into the store. */
static int install(struct haul_store *s, struct hl_manifest *m)
{
    for (uint32_t i = 0; i < m->nextents; i++) {
        struct hl_extent *ext = m->extents[i];
        int rc = hl_extent_find(s, ext->id) ? hl_fail(HAUL_E_CHECKSUM,
                                                      "extent %u stands twice in "
                                                      "manifest.%" PRIu64,
                                                      ext->id, m->generation)
                                            : hl_extent_install(s, ext);

        if (rc < 0)
            return rc;
        m->extents[i] = NULL;
        for (uint64_t b = 0; b < ext->nblocks; b++)
            ext->blocks[b].held = ext->blocks[b].slot;
    }
    s->blob = m->blob;
    s->blob_bytes = m->blob_bytes;
    m->blob = NULL;
    return 0;
}

/* Blocks that the older generation shares with the opened one keep their slot there; extents that
 * only it has are kept as dropped ones. */
static void install_older(struct haul_store *s, struct hl_manifest *m)
{
    for (uint32_t i = 0; i < m->nextents; i++) {
        struct hl_extent *old = m->extents[i], *ext = hl_extent_find(s, old->id);

        for (uint64_t b = 0; b < old->nblocks; b++) {
            struct hl_block *ob = &old->blocks[b];
            struct hl_block *nb = ext && b < ext->nblocks ? &ext->blocks[b] : NULL;

            if (nb && nb->dir == ob->dir && nb->cell == ob->cell)
                nb->older = ob->slot;
            ob->older = ob->slot;
        }
        if (ext && ext->blocks[0].dir == old->blocks[0].dir &&
            ext->blocks[0].cell == old->blocks[0].cell)
            continue; /* the same extent: its cells belong to ext */
        m->extents[i] = NULL;
        old->next = s->dropped;
        s->dropped = old;
    }
    s->older_generation = m->generation;
}

/* The newest readable one, or the one asked for. -ENOENT: none. */
static int choose(struct haul_store *s, uint64_t wanted, const uint64_t *list, uint32_t n,
                  struct hl_manifest *out)
{
    int damaged = 0;

    if (wanted != HAUL_LATEST) {
        int rc = hl_manifest_read(s->dirs[0].dirfd, s->dirs[0].path, wanted, out);

        if (rc == -ENOENT)
            return hl_fail(rc, "%s has no generation %" PRIu64, s->dirs[0].path, wanted);
        return rc;
    }
    for (uint32_t i = n; i-- > 0;) {
        int rc = hl_manifest_read(s->dirs[0].dirfd, s->dirs[0].path, list[i], out);

        if (rc != HAUL_E_CHECKSUM)
            return rc;
        hl_log(HAUL_LOG_WARN, "%s; trying the generation before it", haul_last_error());
        damaged = rc;
    }
    return damaged ? damaged : -ENOENT;
}

/* Which of the listed generations to keep beside the opened one; 0: none. */
static uint64_t neighbour(const struct haul_store *s, int keep_older, const uint64_t *list,
                          uint32_t n)
{
    uint64_t best = 0;

    for (uint32_t i = 0; keep_older && i < n; i++)
        if (list[i] < s->generation)
            best = list[i];
    return best;
}

static int remove_others(struct haul_store *s, uint64_t keep, const uint64_t *list, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        int rc = 0;

        if (list[i] != s->generation && list[i] != keep)
            rc = hl_manifest_remove(s->dirs[0].dirfd, list[i]);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int load_older(struct haul_store *s, uint64_t older)
{
    struct hl_manifest m;
    int rc = hl_manifest_read(s->dirs[0].dirfd, s->dirs[0].path, older, &m);

    if (rc == HAUL_E_CHECKSUM) { /* of no use to anyone */
        hl_log(HAUL_LOG_WARN, "%s; it is removed", haul_last_error());
        return hl_manifest_remove(s->dirs[0].dirfd, older);
    }
    if (rc < 0)
        return rc;
    install_older(s, &m);
    hl_manifest_free(&m);
    return 0;
}

static int load(struct haul_store *s, const struct haul_store_opts *opts, const uint64_t *list,
                uint32_t n)
{
    struct hl_manifest m = {0};
    uint64_t keep;
    int rc = choose(s, opts->generation, list, n, &m);

    if (rc == -ENOENT && opts->generation == HAUL_LATEST) {
        if (s->opts.read_only)
            return hl_fail(-ENOENT, "%s holds no generation", s->dirs[0].path);
        new_store_id(s);
        return 1;
    }
    if (rc < 0)
        return rc;
    rc = adopt(s, opts, &m);
    if (rc == 0)
        rc = hl_stripe_check(s, 0);
    if (rc == 0)
        rc = install(s, &m);
    hl_manifest_free(&m);
    if (rc < 0 || s->opts.read_only)
        return rc;
    keep = neighbour(s, opts->keep_older, list, n);
    if (keep)
        rc = load_older(s, keep);
    return rc < 0 ? rc : remove_others(s, keep, list, n);
}

int hl_durable_load(struct haul_store *s, const struct haul_store_opts *opts)
{
    uint64_t *list;
    uint32_t n;
    int rc = hl_manifest_list(s->dirs[0].dirfd, !opts->read_only, &list, &n);

    if (rc < 0)
        return rc;
    rc = load(s, opts, list, n);
    hl_sys_free(list);
    if (rc == 1)
        rc = hl_stripe_check(s, 1);
    return rc;
}

int hl_durable_stripes(struct haul_store *s)
{
    for (uint32_t i = 0; i < s->ndirs; i++) {
        int rc = hl_stripe_write(s, i);

        if (rc < 0)
            return rc;
    }
    return 0;
}

/* ---- prepare and retire ---- */

/* Writes handed over before this go on to their end; later ones are held back. */
static int freeze(struct haul_store *s, void *arg)
{
    if (!s->frozen) {
        s->frozen = 1;
        s->frozen_after = s->nadmitted;
    }
    for (const struct hl_op *op = s->active_head; op; op = op->next)
        if (op->write && op->serial <= s->frozen_after)
            return -EINPROGRESS;
    return 0;
}

static int thaw(struct haul_store *s, void *arg)
{
    s->frozen = 0;
    return 0;
}

static void publish_extent(struct hl_extent *ext, uint64_t generation, int dropped)
{
    for (uint64_t b = 0; !ext->passing && b < ext->nblocks; b++) {
        struct hl_block *blk = &ext->blocks[b];

        blk->older = blk->held;
        blk->held = dropped ? HL_SLOT_NONE : blk->slot;
        if (!blk->generation)
            blk->generation = generation;
    }
}

static int publish(struct haul_store *s, void *arg)
{
    uint64_t generation = *(uint64_t *)arg;

    for (uint32_t id = 0; id < s->extents_len; id++)
        if (s->extents[id])
            publish_extent(s->extents[id], generation, 0);
    for (struct hl_extent *ext = s->dropped; ext; ext = ext->next)
        publish_extent(ext, generation, 1);
    return 0;
}

static void forget_older(struct hl_extent *ext)
{
    for (uint64_t b = 0; b < ext->nblocks; b++)
        ext->blocks[b].older = HL_SLOT_NONE;
}

static int release_older(struct haul_store *s, void *arg)
{
    for (uint32_t id = 0; id < s->extents_len; id++)
        if (s->extents[id])
            forget_older(s->extents[id]);
    for (struct hl_extent *ext = s->dropped; ext; ext = ext->next)
        forget_older(ext);
    hl_extents_sweep(s);
    return 0;
}

static int flush_all(struct haul_store *s)
{
    for (uint32_t i = 0; i < s->ndirs; i++) {
        int rc = s->method->ops->flush(s->method, i);

        if (rc < 0) {
            /* What the drive dropped is not known, and a second flush may report success. */
            s->flush_failed = 1;
            return hl_fail(rc,
                           "flush of %s: %s; reopen the store: it goes back to generation "
                           "%" PRIu64,
                           s->dirs[i].label, haul_strerror(rc), s->generation);
        }
    }
    return 0;
}

static int may_prepare(const struct haul_store *s, uint64_t generation)
{
    if (!s->opts.durable)
        return hl_fail(-EINVAL, "a scratch store has no generations");
    if (s->opts.read_only)
        return hl_fail(-EROFS, "the store was opened read_only");
    if (generation <= s->generation)
        return hl_fail(-EINVAL,
                       "generation %" PRIu64 " is not larger than the current one, %" PRIu64,
                       generation, s->generation);
    if (s->older_generation)
        return hl_fail(HAUL_E_STATE, "retire generation %" PRIu64 " before preparing another",
                       s->older_generation);
    if (s->flush_failed)
        return hl_fail(HAUL_E_STATE, "a flush failed earlier; reopen the store");
    return 0;
}

static int copy_blob(const void *blob, uint64_t bytes, void **out)
{
    int rc;

    *out = NULL;
    if (!bytes)
        return 0;
    rc = hl_sys_alloc(bytes, out);
    if (rc == 0)
        memcpy(*out, blob, bytes);
    return rc;
}

/* Leaves writes frozen: thaw follows. */
static int prepare_frozen(struct haul_store *s, uint64_t generation, void *blob,
                          uint64_t blob_bytes)
{
    int rc = hl_store_run(s, freeze, NULL), lost = 0;

    if (rc == 0)
        rc = flush_all(s);
    if (rc == 0)
        rc = hl_manifest_write(s, generation, blob, blob_bytes, &lost);
    s->flush_failed |= lost;
    if (rc < 0)
        return rc;
    (void)hl_store_run(s, publish, &generation);
    s->older_generation = s->generation;
    s->generation = generation;
    hl_sys_free(s->blob);
    s->blob = blob;
    s->blob_bytes = blob_bytes;
    return 0;
}

/* retire_previous: before a write may start again, so that none finds both slots taken. */
static int prepare(struct haul_store *s, uint64_t generation, const void *blob, uint64_t blob_bytes,
                   int retire_previous)
{
    int rc = may_prepare(s, generation);
    void *copy;

    if (rc == 0)
        rc = copy_blob(blob, blob_bytes, &copy);
    if (rc < 0)
        return rc;
    rc = prepare_frozen(s, generation, copy, blob_bytes);
    if (rc < 0)
        hl_sys_free(copy);
    else if (retire_previous && s->older_generation)
        rc = haul_store_retire(s, s->older_generation);
    (void)hl_store_run(s, thaw, NULL);
    return rc;
}

int haul_store_prepare(struct haul_store *store, uint64_t generation, const void *blob,
                       uint64_t blob_bytes)
{
    int rc = HL_GIVEN(store);

    rc = rc || !blob_bytes ? rc : HL_GIVEN(blob);
    return rc < 0 ? rc : prepare(store, generation, blob, blob_bytes, 0);
}

int haul_store_retire(struct haul_store *store, uint64_t generation)
{
    int rc = HL_GIVEN(store);

    if (rc < 0)
        return rc;
    if (store->opts.read_only)
        return hl_fail(-EROFS, "the store was opened read_only");
    if (generation && generation == store->generation)
        return hl_fail(-EINVAL, "generation %" PRIu64 " is the current one", generation);
    if (!generation || generation != store->older_generation)
        return hl_fail(-ENOENT, "there is no generation %" PRIu64 " to retire", generation);
    rc = hl_manifest_remove(store->dirs[0].dirfd, generation);
    if (rc < 0)
        return rc;
    store->older_generation = 0;
    return hl_store_run(store, release_older, NULL);
}

int hl_store_release_older(struct haul_store *store)
{
    uint64_t generation = store->older_generation;

    if (!generation)
        return 0;
    if (haul_store_retire(store, generation) == 0)
        return 0;
    hl_log(HAUL_LOG_WARN, "%s: generation %" PRIu64 " is not needed and stays: %s",
           store->dirs[0].path, generation, haul_last_error());
    store->older_generation = 0;
    return hl_store_run(store, release_older, NULL);
}

int haul_store_commit(struct haul_store *store, uint64_t generation, const void *blob,
                      uint64_t blob_bytes)
{
    int rc = HL_GIVEN(store);

    rc = rc || !blob_bytes ? rc : HL_GIVEN(blob);
    if (rc == 0 && store->older_generation)
        rc = haul_store_retire(store, store->older_generation);
    return rc < 0 ? rc : prepare(store, generation, blob, blob_bytes, 1);
}

uint64_t haul_store_generation(struct haul_store *store, const void **blob, uint64_t *blob_bytes)
{
    if (HL_GIVEN(store) < 0)
        return 0;
    if (blob)
        *blob = store->blob;
    if (blob_bytes)
        *blob_bytes = store->blob_bytes;
    return store->generation;
}
