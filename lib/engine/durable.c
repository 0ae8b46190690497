/*
 * durable.c: records that stay in a durable store from run to run, and where a checkpoint finds them.
 *
 * The store's folder is named after what is laid out in it, so that a run with another layout makes another one and
 * leaves this one to whoever reads it. In the notes of a generation stands a witness: a file, and a word that begins
 * it, which together say that the checkpoint of that generation is complete. A run that was killed between prepare
 * and retire has left two generations: the witness says which one holds.
 *
 * The records space is what all extents of paged records are together, in the order of the units.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "access.h"
#include "store_kept.h"
#include "sys.h"
#include "sys_file.h"

/* ---- the folder ---- */

static uint64_t add_word(uint64_t h, uint64_t word)
{
    return hl_hash(h, &word, sizeof word);
}

/* All that says where a byte of a record is. */
static uint64_t layout_hash(const struct haul_engine *e)
{
    const uint64_t words[] = {e->nranks,         e->rank,        e->opts.stage,
                              e->store_bytes,    e->block_bytes, e->record_slot_bytes,
                              e->opts.nnvme_dirs};
    uint64_t h = hl_hash(HL_HASH_START, words, sizeof words);

    for (uint32_t i = 0; i < e->nunits; i++) {
        const struct haul_unit *u = e->units[i];
        h = add_word(h, u->record_paged);
        for (unsigned s = 0; u->record_paged && s < HL_NTRAIN; s++)
            h = add_word(add_word(h, u->ck.elems[s]), u->ck.master_bytes[s]);
    }
    return h;
}

int hl_durable_folder(const struct haul_engine *e, uint32_t i, char *out, size_t len)
{
    char dir[HL_DURABLE_PATH_BYTES];
    int rc = hl_sys_real_path(e->opts.nvme_dirs[i], dir, sizeof dir);

    if (rc < 0)
        return rc;
    if ((size_t)snprintf(out, len, "%s/haul-%016" PRIx64 "-rank-%05u", dir, layout_hash(e),
                         e->rank) >= len)
        return hl_fail(-ENAMETOOLONG, "engine: nvme directory %s: too long a name", dir);
    return 0;
}

int hl_durable_held_bytes(const struct haul_engine *e, uint32_t i, uint64_t *out)
{
    char folder[HL_DURABLE_PATH_BYTES];
    struct stat st;
    int rc = hl_durable_folder(e, i, folder, sizeof folder), fd, dir;

    *out = 0;
    if (rc < 0)
        return rc;
    dir = hl_sys_open(AT_FDCWD, folder, O_RDONLY | O_DIRECTORY, 0);
    fd = dir < 0 ? dir : hl_sys_open(dir, HL_STORE_DATA_NAME, O_RDONLY, 0);
    rc = fd < 0 ? fd : hl_sys_fstat(fd, &st);
    hl_sys_close(fd);
    hl_sys_close(dir);
    if (rc == 0)
        *out = (uint64_t)st.st_blocks * 512;
    return rc == -ENOENT ? 0 : rc;
}

/* ---- the witness ---- */

static int read_note(const void *blob, uint64_t bytes, struct hl_snapshot_note *out)
{
    const size_t word = sizeof out->word - 1;

    if (bytes <= word || bytes - word >= sizeof out->path)
        return hl_fail(HAUL_E_FORMAT, "nvme store: notes that are not an engine's");
    memset(out, 0, sizeof *out);
    memcpy(out->word, blob, word);
    memcpy(out->path, (const char *)blob + word, bytes - word);
    return 0;
}

static int one_name(void *user, const char *name)
{
    *(bool *)user = true;
    return 0;
}

/* The witness is not there. Was it taken away, or is its whole file system? The folders of checkpoints, and the one
 * that they are in, are looked for: `sure` when the first of them must be there, with something in it. */
static int see_root(const struct hl_snapshot_note *note, bool sure)
{
    char root[sizeof note->path];
    bool any = false;
    int fd = -ENOENT, rc = 0;

    memcpy(root, note->path, sizeof root);
    for (unsigned i = 0; fd == -ENOENT && i < (sure ? 2 : 3) && strrchr(root, '/'); i++) {
        *strrchr(root, '/') = '\0';
        if (i > 0)
            fd = hl_sys_open(AT_FDCWD, *root ? root : "/", O_RDONLY | O_DIRECTORY, 0);
    }
    if (fd >= 0 && sure)
        rc = hl_sys_names(fd, one_name, &any);
    hl_sys_close(fd);
    if (rc < 0 || (fd >= 0 && (any || !sure)))
        return rc;
    return hl_fail(fd < 0 ? fd : -ENOENT,
                   "nvme store: its state was saved as %s, and nothing of that folder is there: "
                   "bring it back, since nobody else can say which state is complete; or remove "
                   "the store",
                   note->path);
}

static int note_holds(const struct hl_snapshot_note *note, bool sure)
{
    char head[1024] = "";
    int fd = hl_sys_open(AT_FDCWD, note->path, O_RDONLY, 0), rc;

    if (fd == -ENOENT)
        return see_root(note, sure);
    if (fd < 0)
        return fd;
    rc = (int)hl_sys_read(fd, head, sizeof head - 1);
    hl_sys_close(fd);
    return rc < 0 ? rc : strstr(head, note->word) != NULL;
}

int hl_snapshot_note_holds(const struct hl_snapshot_note *note)
{
    return note_holds(note, false);
}

/* Which generation to open: the newest, unless it is one of two and its checkpoint is not complete. */
static int choose_generation(const char *dir, uint64_t *out)
{
    struct hl_snapshot_note note;
    uint64_t list[8], bytes;
    uint32_t n = 0;
    void *blob;
    int rc = haul_store_generations(dir, list, 8, &n);

    *out = HAUL_LATEST;
    if (rc == -ENOENT || (rc == 0 && (n == 0 || n > 8)))
        return 0;
    if (rc < 0)
        return rc;
    rc = hl_store_notes(dir, list[n - 1], &blob, &bytes);
    if (rc == HAUL_E_CHECKSUM) /* the store passes over it */
        return 0;
    if (rc < 0)
        return rc;
    rc = read_note(blob, bytes, &note);
    hl_sys_free(blob);
    if (rc == 0)
        rc = note_holds(&note, n > 1);
    if (rc == 0 && n > 1)
        *out = list[n - 2];
    return rc < 0 ? rc : 0;
}

/* ---- opening ---- */

int hl_durable_open(struct haul_engine *e, struct haul_store_opts *o)
{
    char folder[HAUL_MAX_DIRS][HL_DURABLE_PATH_BYTES];
    const char *dirs[HAUL_MAX_DIRS];
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < o->ndirs; i++) {
        rc = hl_durable_folder(e, i, folder[i], sizeof folder[i]);
        dirs[i] = folder[i];
    }
    if (rc == 0)
        rc = choose_generation(dirs[0], &o->generation);
    if (rc < 0)
        return rc;
    o->dirs = dirs;
    o->durable = 1;
    return haul_store_open(o, &e->store);
}

int hl_durable_extent(struct haul_engine *e, const struct haul_unit *u)
{
    uint64_t bytes;
    int rc;

    if (haul_store_generation(e->store, NULL, NULL) == 0)
        return haul_extent_create(e->store, hl_record_extent(u), u->ck.extent_bytes);
    rc = haul_extent_size(e->store, hl_record_extent(u), &bytes);
    if (rc < 0 || bytes == u->ck.extent_bytes)
        return rc;
    return hl_fail(HAUL_E_CONFIG,
                   "nvme store %s: the record of unit %s has %" PRIu64 " bytes, not %" PRIu64
                   "; remove the store",
                   hl_store_dir(e->store, 0), u->name, bytes, u->ck.extent_bytes);
}

/* ---- for checkpoints ---- */

bool hl_snapshot_store(const struct haul_engine *e, struct hl_snapshot_store *out)
{
    if (!e->durable)
        return false;
    *out = (struct hl_snapshot_store){
        .id = hl_store_id(e->store),
        .generation = haul_store_generation(e->store, NULL, NULL),
        .block_bytes = (uint32_t)e->block_bytes,
        .ndirs = e->opts.nnvme_dirs,
        .nblocks = e->kept_bytes / e->block_bytes,
    };
    return true;
}

const char *hl_snapshot_store_dir(const struct haul_engine *e, uint32_t i)
{
    return hl_store_dir(e->store, i);
}

bool hl_snapshot_is_kept(const struct haul_engine *e, uint32_t unit)
{
    return e->durable && e->units[unit]->record_paged;
}

uint64_t hl_snapshot_kept(const struct haul_engine *e, uint32_t unit, uint32_t tensor,
                          uint64_t first, uint64_t n, struct hl_snapshot_kept *out)
{
    const struct haul_unit *u = e->units[unit];
    const struct hl_place *pl = &u->places[tensor];
    struct hl_chunk_part part[HL_NTRAIN];

    if (!hl_snapshot_is_kept(e, unit) || pl->span >= HL_NTRAIN) {
        out->form = HL_KEPT_NOT;
        return n;
    }
    uint64_t at = pl->first_elem + first - u->own[pl->span].first;
    uint32_t chunk = hl_chunk_of(&u->ck, pl->span, at);
    uint64_t base = u->kept_at + chunk * e->record_slot_bytes, each = u->ck.master_bytes[pl->span];
    hl_chunk_parts(&u->ck, chunk, part);
    const struct hl_chunk_part *in = &part[pl->span];
    uint64_t skip = at - in->first, left = in->n - skip;
    *out = (struct hl_snapshot_kept){
        .form = each == 4   ? HL_KEPT_WHOLE
                : each == 2 ? HL_KEPT_SPLIT
                            : HL_KEPT_MOMENTS,
        .p = each ? base + in->master + skip * each : 0,
        .m = base + in->m + skip * 4,
        .v = base + in->v + skip * 4,
    };
    return n < left ? n : left;
}

int hl_snapshot_places(struct haul_engine *e, struct hl_store_place *out)
{
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < e->nunits; i++)
        if (hl_snapshot_is_kept(e, i))
            rc = hl_store_places(e->store, hl_record_extent(e->units[i]),
                                 out + e->units[i]->kept_at / e->block_bytes);
    return rc;
}

int hl_snapshot_note(struct haul_engine *e, struct hl_snapshot_note *out)
{
    const void *blob;
    uint64_t bytes;
    int rc;

    if (!e->durable || haul_store_generation(e->store, &blob, &bytes) == 0)
        return 0;
    rc = read_note(blob, bytes, out);
    return rc < 0 ? rc : 1;
}

int hl_snapshot_prepare(struct haul_engine *e, const struct hl_snapshot_note *note)
{
    const size_t word = sizeof note->word - 1, path = strlen(note->path);
    char blob[sizeof *note];

    memcpy(blob, note->word, word);
    memcpy(blob + word, note->path, path);
    return haul_store_prepare(e->store, haul_store_generation(e->store, NULL, NULL) + 1, blob,
                              word + path);
}

int hl_snapshot_retire(struct haul_engine *e)
{
    return hl_store_release_older(e->store);
}

int hl_snapshot_take_back(struct haul_engine *e)
{
    return hl_store_take_back(e->store);
}

bool hl_snapshot_is_at(struct haul_engine *e, uint64_t id, uint64_t generation)
{
    return e->durable && hl_store_id(e->store) == id &&
           haul_store_generation(e->store, NULL, NULL) == generation &&
           hl_store_unchanged(e->store);
}
