/*
 * checkpoint_load.c: an engine gets the state of a checkpoint.
 *
 * Every rank reads what it keeps. In a root the newest is tried first; one that is damaged, which may show
 * only at its last block, is followed by the next older: that one sets all there is to set.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "ckpt_agree.h"
#include "ckpt_behind.h"
#include "ckpt_file.h"
#include "ckpt_root.h"
#include "fail.h"
#include "haul/checkpoint.h"
#include "snapshot.h"
#include "sys.h"
#include "sys_file.h"

struct loading {
    struct haul_engine *e;
    const char *path;
    const struct haul_checkpoint_load_opts *opts;
    struct hl_ckpt_model model;
    struct hl_ckpt *ck;
    bool touched; /* the engine has part of something */
    struct haul_checkpoint_info info;
    size_t skipped_bytes;             /* of info.skipped */
    uint64_t done_bytes, total_bytes; /* of the blocks of the one being read */
    bool in_place; /* the records are in this rank's own store, where the checkpoint says */
};

void haul_checkpoint_load_opts_init(struct haul_checkpoint_load_opts *opts)
{
    memset(opts, 0, sizeof *opts);
    opts->struct_size = sizeof *opts;
}

/* ---- one checkpoint ---- */

static int check_user(const struct loading *l)
{
    const struct hl_ckpt_manifest *m = &l->ck->m;

    if (!l->opts->user || m->user_bytes <= l->opts->user_capacity)
        return 0;
    return hl_fail(-ENOBUFS,
                   "%s: the caller's part is of %" PRIu64 " bytes; there is room for %" PRIu64,
                   l->ck->dir, m->user_bytes, l->opts->user_capacity);
}

static int write_block(struct loading *l, uint64_t i)
{
    const struct hl_ckpt_block *b = &l->ck->at[i].block;
    const struct hl_ckpt_unit *u = &l->ck->m.model.units[b->unit];
    uint32_t t = hl_ckpt_tensor_at(u, b->first);
    uint64_t first = b->first - u->places[t].logical_elem;
    int rc;

    if (!hl_snapshot_wants(l->e, b->unit, t, first, b->n))
        return 0;
    if ((rc = hl_ckpt_read(l->ck, i)) < 0)
        return rc;
    struct hl_ckpt_values values = hl_ckpt_values(l->ck, i);
    if (l->in_place && hl_ckpt_is_kept(b->kind))
        values.m = values.v = NULL;
    return hl_snapshot_write(l->e, b->unit, t, first, b->n, values.p, values.m, values.v);
}

/* Span by span: a paged record's chunks hold them so, and each is read and written once. */
static int write_unit(struct loading *l, uint32_t unit)
{
    const struct hl_ckpt_unit *u = &l->ck->m.model.units[unit];
    int rc = 0;

    for (unsigned s = 0; rc == 0 && s < HL_NSPANS; s++)
        for (uint64_t i = l->ck->unit_at[unit]; rc == 0 && i < l->ck->unit_at[unit + 1]; i++)
            if (u->places[hl_ckpt_tensor_at(u, l->ck->at[i].block.first)].span == s) {
                rc = write_block(l, i);
                l->done_bytes += l->ck->at[i].block.bytes;
                hl_snapshot_work(l->e, HAUL_WORK_LOAD, l->done_bytes, l->total_bytes);
            }
    return rc;
}

static int set_counters(struct loading *l)
{
    const struct hl_ckpt_manifest *m = &l->ck->m;
    struct hl_snapshot_counters counters = {m->step, m->loss_scale, m->nsteps_finite};
    uint64_t *nsteps;
    int rc = hl_sys_alloc_array(m->model.nunits, sizeof *nsteps, (void **)&nsteps);

    if (rc < 0)
        return rc;
    for (uint32_t i = 0; i < m->model.nunits; i++)
        nsteps[i] = m->model.units[i].nsteps;
    hl_snapshot_set(l->e, &counters, nsteps);
    hl_sys_free(nsteps);
    return 0;
}

/* A store's name and generation are of one layout and one number of ranks: a record is then where it was. */
static bool is_in_place(const struct loading *l)
{
    uint32_t nranks, rank = hl_snapshot_rank(l->e, &nranks);

    if (l->ck->m.nranks != nranks || l->ck->stores[rank].head.nblocks == 0)
        return false;
    return hl_snapshot_is_at(l->e, l->ck->stores[rank].head.id,
                             l->ck->stores[rank].head.generation);
}

static int write_state(struct loading *l)
{
    int rc = hl_snapshot_begin(l->e);

    if (rc < 0)
        return rc;
    l->in_place = is_in_place(l);
    l->touched = true;
    l->done_bytes = l->total_bytes = 0;
    for (uint64_t i = 0; i < l->ck->nblocks; i++)
        l->total_bytes += l->ck->at[i].block.bytes;
    for (uint32_t i = 0; rc == 0 && i < l->model.nunits; i++)
        rc = write_unit(l, i);
    if (rc == 0)
        rc = set_counters(l);
    return hl_snapshot_end(l->e, rc);
}

static int open_and_check(struct loading *l, const char *dir)
{
    int rc = hl_ckpt_open(dir, &l->ck);

    if (rc == 0)
        rc = hl_ckpt_model_match(dir, &l->ck->m.model, &l->model);
    if (rc == 0)
        rc = check_user(l);
    if (rc == 0 && l->opts->user)
        rc = hl_ckpt_read_user(l->ck, l->opts->user);
    return rc;
}

/* All ranks read the same checkpoint. */
static int same_on_all(struct loading *l)
{
    uint64_t words[2] = {l->ck->m.id, ~l->ck->m.id};
    int rc = hl_snapshot_all_reduce(l->e, HAUL_COMM_MAX_U64, words, 2);

    if (rc < 0 || words[0] == ~words[1])
        return rc;
    return hl_fail(
        HAUL_E_STATE,
        "checkpoint: ranks find different checkpoints in %s; all ranks must see the same "
        "directory",
        l->path);
}

static void tell(struct loading *l)
{
    const struct hl_ckpt_manifest *m = &l->ck->m;

    l->info.struct_size = sizeof l->info;
    l->info.step = m->step;
    l->info.user_bytes = m->user_bytes;
    l->info.nranks = m->nranks;
    snprintf(l->info.path, sizeof l->info.path, "%s", l->ck->dir);
}

static int load_one(struct loading *l, const char *dir)
{
    int rc = hl_ckpt_agree(l->e, "load", open_and_check(l, dir));

    if (rc == 0)
        rc = same_on_all(l);
    if (rc == 0)
        rc = hl_ckpt_agree(l->e, "load", write_state(l));
    if (rc == 0)
        tell(l);
    hl_ckpt_close(l->ck);
    l->ck = NULL;
    return rc;
}

/* ---- the newest of a root ---- */

static void skip(struct loading *l, const char *name, const char *why)
{
    size_t left = sizeof l->info.skipped - l->skipped_bytes;
    int n = snprintf(l->info.skipped + l->skipped_bytes, left, "%s: %s\n", name, why);

    l->skipped_bytes += n < 0 ? 0 : (size_t)n < left ? (size_t)n : left - 1;
    l->info.nskipped++;
    hl_log(HAUL_LOG_WARN, "checkpoint: %s/%s is passed over: %s", l->path, name, why);
}

/* Something else in the same root may still do. */
static bool is_damage(int rc)
{
    return rc == HAUL_E_CHECKSUM || rc == HAUL_E_FORMAT || rc == HAUL_E_SHORT_IO || rc == -ENOENT ||
           rc == -EIO || rc == -ESTALE;
}

/* Rank 0 says which is next; 0: none. */
static int next_of(struct loading *l, const struct hl_ckpt_entry *list, uint32_t n, uint32_t i,
                   uint64_t *id)
{
    uint32_t nranks, rank = hl_snapshot_rank(l->e, &nranks);

    *id = rank == 0 && i < n && list[i].rc == 0 ? list[i].id : 0;
    return hl_snapshot_all_reduce(l->e, HAUL_COMM_SUM_U64, id, 1);
}

static int load_listed(struct loading *l, const struct hl_ckpt_entry *list, uint32_t n, uint64_t id,
                       const char **name)
{
    char dir[4096];

    *name = "?";
    for (uint32_t i = 0; i < n; i++)
        if (list[i].rc == 0 && list[i].id == id)
            *name = list[i].name;
    snprintf(dir, sizeof dir, "%s/%s", l->path, *name);
    return load_one(l, dir);
}

static int load_newest(struct loading *l, const struct hl_ckpt_entry *list, uint32_t n)
{
    char text[HL_ERROR_TEXT_BYTES];
    const char *name;
    uint64_t id;

    for (uint32_t i = 0; i < n; i++)
        if (list[i].rc < 0)
            skip(l, list[i].name, list[i].why);
    for (uint32_t i = 0;; i++) {
        int rc = next_of(l, list, n, i, &id);
        if (rc < 0)
            return rc;
        if (id == 0)
            break;
        rc = load_listed(l, list, n, id, &name);
        if (!is_damage(rc))
            return rc;
        snprintf(text, sizeof text, "%s", haul_last_error());
        skip(l, name, text);
    }
    return hl_fail(-ENOENT, "%s: no complete checkpoint%s%s", l->path,
                   l->info.nskipped ? "; passed over: " : "", l->info.skipped);
}

static int load_root(struct loading *l)
{
    struct hl_ckpt_entry *list = NULL;
    uint32_t n = 0;
    int fd = hl_sys_open(AT_FDCWD, l->path, O_RDONLY | O_DIRECTORY, 0);
    int rc = fd < 0 ? fd : hl_ckpt_list(fd, l->path, &list, &n);

    hl_sys_close(fd);
    rc = hl_ckpt_agree(l->e, "load", rc);
    if (rc == 0)
        rc = load_newest(l, list, n);
    hl_sys_free(list);
    return rc;
}

static int load(struct loading *l)
{
    int rc = hl_ckpt_model_of(l->e, &l->model), one = rc < 0 ? rc : hl_ckpt_is_one(l->path);

    if ((rc = hl_ckpt_agree(l->e, "load", one < 0 ? one : 0)) < 0)
        return rc;
    rc = one ? load_one(l, l->path) : load_root(l);
    if (rc < 0 && l->touched) {
        char text[HL_ERROR_TEXT_BYTES];
        snprintf(text, sizeof text, "%s", haul_last_error());
        (void)hl_fail(rc, "%s; the engine has part of it: load another checkpoint, or fill", text);
    }
    return rc;
}

static int check_sizes(const struct haul_checkpoint_load_opts *opts,
                       const struct haul_checkpoint_info *info)
{
    if (opts->struct_size == sizeof *opts &&
        (!info || info->struct_size == 0 || info->struct_size == sizeof *info))
        return 0;
    return hl_fail(HAUL_E_ABI, "checkpoint: options or info of another version of the library");
}

int haul_checkpoint_load(struct haul_engine *engine, const char *path,
                         const struct haul_checkpoint_load_opts *opts,
                         struct haul_checkpoint_info *info)
{
    struct haul_checkpoint_load_opts defaults;
    struct loading l = {.e = engine, .path = path, .opts = opts};
    int rc = hl_snapshot_check(engine, "haul_checkpoint_load");

    if (rc < 0)
        return rc;
    haul_checkpoint_load_opts_init(&defaults);
    l.opts = opts ? opts : &defaults;
    if ((rc = hl_need("haul_checkpoint_load", "path", path)) == 0 &&
        (rc = check_sizes(l.opts, info)) == 0)
        rc = hl_snapshot_between_steps(engine);
    rc = hl_snapshot_enter(engine, "haul_checkpoint_load", 0, rc);
    if (rc < 0 || (rc = hl_ckpt_behind_wait(engine)) < 0)
        return rc;
    rc = load(&l);
    hl_ckpt_model_free(&l.model);
    if (rc == 0 && info)
        *info = l.info;
    return rc;
}
