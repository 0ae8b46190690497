/* ckpt_kept.c: see ckpt_kept.h. */
#include "ckpt_kept.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "ckpt_store.h"
#include "fail.h"
#include "snapshot.h"
#include "sys.h"
#include "sys_file.h"

/* ---- what a file refers to ---- */

static uint64_t part(void *user, uint32_t unit, uint32_t tensor, uint64_t first, uint64_t n,
                     enum hl_ckpt_kind *kind, struct hl_ckpt_kept *where)
{
    static const enum hl_ckpt_kind kinds[] = {[HL_KEPT_WHOLE] = HL_CKPT_KEPT_WHOLE,
                                              [HL_KEPT_SPLIT] = HL_CKPT_KEPT_SPLIT,
                                              [HL_KEPT_MOMENTS] = HL_CKPT_KEPT_MOMENTS};
    struct hl_snapshot_kept kept;

    n = hl_snapshot_kept(user, unit, tensor, first, n, &kept);
    if (kept.form == HL_KEPT_NOT)
        return n;
    *kind = kinds[kept.form];
    *where = (struct hl_ckpt_kept){kept.p, kept.m, kept.v, 0};
    return n;
}

static void describe(const struct haul_engine *e, struct hl_ckpt_store_header *head,
                     const char *dirs[HAUL_MAX_DIRS])
{
    struct hl_snapshot_store store = {0};

    (void)hl_snapshot_store(e, &store);
    *head = (struct hl_ckpt_store_header){.id = store.id,
                                          .generation = store.generation + 1,
                                          .block_bytes = store.block_bytes,
                                          .ndirs = store.ndirs,
                                          .nblocks = store.nblocks};
    for (uint32_t i = 0; i < store.ndirs; i++)
        dirs[i] = hl_snapshot_store_dir(e, i);
}

static int write_store(void *user, void *out)
{
    const char *dirs[HAUL_MAX_DIRS];
    struct hl_ckpt_store_header head;
    struct hl_store_place *places;
    int rc;

    describe(user, &head, dirs);
    rc = hl_sys_alloc_array(head.nblocks, sizeof *places, (void **)&places);
    if (rc < 0)
        return rc;
    rc = hl_snapshot_places(user, places);
    if (rc == 0)
        hl_ckpt_store_encode(&head, places, dirs, out);
    hl_sys_free(places);
    return rc;
}

void hl_ckpt_keeper_of(struct haul_engine *e, struct hl_ckpt_keeper *out)
{
    const char *dirs[HAUL_MAX_DIRS];
    struct hl_ckpt_store_header head;

    describe(e, &head, dirs);
    *out = (struct hl_ckpt_keeper){part, hl_ckpt_store_bytes(&head, dirs), write_store, e};
}

/* ---- which checkpoints stay ---- */

static bool stays_later(const struct hl_ckpt_rest *rest, uint64_t step, uint32_t newer)
{
    return rest->keep_last == 0 || newer < rest->keep_last ||
           (rest->keep_every && step % rest->keep_every == 0);
}

/* Whether a checkpoint of this root will stay beside one that is newer than all there are. */
static int will_stay(const struct hl_ckpt_saving *s, const char *name, bool *out)
{
    struct hl_ckpt_entry *list;
    uint32_t n;
    int fd = hl_sys_open(AT_FDCWD, s->root, O_RDONLY | O_DIRECTORY, 0);
    int rc = fd < 0 ? fd : hl_ckpt_list(fd, s->root, &list, &n);

    hl_sys_close(fd);
    if (rc < 0)
        return rc;
    *out = false;
    for (uint32_t i = 0; i < n; i++)
        if (list[i].rc == 0 && strcmp(list[i].name, name) == 0)
            *out = stays_later(&s->rest, list[i].step, i + 1);
    hl_sys_free(list);
    return 0;
}

/* Its own root may be another one, whose rules nobody knows here: there all stay. */
static int must_copy(const struct hl_ckpt_saving *s, const char *dir, bool *out)
{
    size_t root = strlen(s->real_root);

    *out = true;
    if (strncmp(dir, s->real_root, root) != 0 || dir[root] != '/' || strchr(dir + root + 1, '/'))
        return 0;
    return will_stay(s, dir + root + 1, out);
}

int hl_ckpt_kept_before(const struct hl_ckpt_saving *s)
{
    struct hl_snapshot_note note;
    bool copy = false;
    int rc = hl_snapshot_note(s->e, &note);

    if (rc == 1)
        rc = hl_snapshot_note_holds(&note);
    if (rc <= 0)
        return rc;
    *strrchr(note.path, '/') = '\0';
    rc = must_copy(s, note.path, &copy);
    if (rc == 0 && copy)
        rc = hl_ckpt_records_copy(note.path, s->rank);
    if (rc != HAUL_E_CHECKSUM && rc != HAUL_E_FORMAT && rc != HAUL_E_SHORT_IO && rc != -ESTALE)
        return rc;
    hl_log(HAUL_LOG_WARN, "checkpoint: %s is damaged, and its records will be overwritten: %s",
           note.path, haul_last_error());
    return 0;
}

int hl_ckpt_kept_prepare(const struct hl_ckpt_saving *s)
{
    struct hl_snapshot_note note = {0};

    snprintf(note.word, sizeof note.word, "%016" PRIx64, s->m.id);
    if ((size_t)snprintf(note.path, sizeof note.path, "%s/%s/" HL_CKPT_MANIFEST, s->real_root,
                         s->name) >= sizeof note.path)
        return hl_fail(-ENAMETOOLONG, "checkpoint: %s: too long a name", s->real_root);
    return hl_snapshot_prepare(s->e, &note);
}

void hl_ckpt_kept_after(const struct hl_ckpt_saving *s)
{
    char dir[4096];

    if (!stays_later(&s->rest, s->m.step, 1) ||
        (size_t)snprintf(dir, sizeof dir, "%s/%s", s->real_root, s->name) >= sizeof dir)
        return;
    if (hl_ckpt_records_copy(dir, s->rank) < 0)
        hl_log(HAUL_LOG_WARN, "checkpoint: its records stay in the store for now: %s",
               haul_last_error());
}
