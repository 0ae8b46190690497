/* ckpt_saving.c: see ckpt_saving.h. At each point where ranks meet they agree, so that an error of one ends the
 * save on all. */
#include "ckpt_saving.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "ckpt_agree.h"
#include "ckpt_kept.h"
#include "fail.h"
#include "snapshot.h"
#include "sys.h"
#include "sys_file.h"

static int copy_opts(struct hl_ckpt_saving *s, const char *root,
                     const struct haul_checkpoint_save_opts *o)
{
    int rc = hl_sys_strdup(root, &s->root);

    if (rc == 0)
        rc = hl_sys_alloc(o->user_bytes, &s->user);
    if (rc < 0)
        return rc;
    if (o->user_bytes)
        memcpy(s->user, o->user, o->user_bytes);
    s->rest = (struct hl_ckpt_rest){s->user, o->user_bytes, o->keep_last, o->keep_every};
    return 0;
}

static int describe(struct hl_ckpt_saving *s)
{
    struct hl_snapshot_counters counters;
    int rc = hl_ckpt_model_of(s->e, &s->m.model);

    if (rc < 0)
        return rc;
    hl_snapshot_counters(s->e, &counters);
    s->m.step = counters.step;
    s->m.loss_scale = counters.loss_scale;
    s->m.nsteps_finite = counters.nsteps_finite;
    s->m.nranks = s->nranks;
    s->m.version = s->keeps ? HL_CKPT_VERSION_KEPT : 1;
    return hl_sys_alloc_array(s->nranks, sizeof *s->m.files, (void **)&s->m.files);
}

/* What rank 0 has chosen, on all of them. */
static int share_place(struct hl_ckpt_saving *s)
{
    uint64_t words[1 + HL_CKPT_NAME_BYTES / 8] = {0};
    int rc;

    if (s->rank == 0) {
        words[0] = s->place->id;
        memcpy(&words[1], s->place->name, sizeof s->name);
    }
    rc = hl_snapshot_all_reduce(s->e, HAUL_COMM_SUM_U64, words, 1 + HL_CKPT_NAME_BYTES / 8);
    s->m.id = words[0];
    memcpy(s->name, &words[1], sizeof s->name);
    return rc;
}

static int open_dir(struct hl_ckpt_saving *s)
{
    char path[4096];

    snprintf(path, sizeof path, "%s/%s", s->root, s->name);
    s->dirfd = hl_sys_open(AT_FDCWD, path, O_RDONLY | O_DIRECTORY, 0);
    if (s->dirfd == -ENOENT)
        return hl_fail(-ENOENT,
                       "checkpoint: rank %u does not see %s/%s, which rank 0 has made; all ranks "
                       "must see the same directory",
                       s->rank, s->root, s->name);
    return s->dirfd < 0 ? s->dirfd : 0;
}

static int begin(struct hl_ckpt_saving *s, const char *root,
                 const struct haul_checkpoint_save_opts *opts)
{
    int rc = copy_opts(s, root, opts);

    if (rc == 0)
        rc = describe(s);
    if (rc == 0 && s->rank == 0)
        rc = hl_ckpt_new_open(s->root, s->m.step, &s->rest, &s->place);
    if ((rc = hl_ckpt_agree(s->e, "save", rc)) < 0 || (rc = share_place(s)) < 0)
        return rc;
    rc = open_dir(s);
    if (rc == 0 && s->keeps)
        rc = hl_sys_real_path(s->root, s->real_root, sizeof s->real_root);
    if (rc == 0 && s->keeps)
        rc = hl_ckpt_kept_before(s);
    return hl_ckpt_agree(s->e, "save", rc);
}

int hl_ckpt_saving_begin(struct haul_engine *e, const char *root,
                         const struct haul_checkpoint_save_opts *opts, struct hl_ckpt_saving *out)
{
    struct hl_ckpt_saving s = {.e = e, .dirfd = -1};
    int rc;

    s.rank = hl_snapshot_rank(e, &s.nranks);
    s.keeps = hl_snapshot_store(e, &(struct hl_snapshot_store){0});
    if (s.keeps)
        hl_ckpt_keeper_of(e, &s.keeper);
    rc = begin(&s, root, opts);
    if (rc < 0)
        hl_ckpt_saving_end(&s);
    else
        *out = s;
    return rc;
}

int hl_ckpt_saving_write(struct hl_ckpt_saving *s, const struct hl_ckpt_source *source)
{
    int rc = hl_ckpt_file_write(s->dirfd, &s->m, s->rank, source, &s->m.files[s->rank]);

    if (rc == 0)
        rc = hl_sys_fsync(s->dirfd);
    if (rc == 0 && s->keeps) {
        rc = hl_ckpt_kept_prepare(s);
        s->prepared = rc == 0;
    }
    return rc;
}

int hl_ckpt_saving_share(struct hl_ckpt_saving *s)
{
    uint64_t n = s->nranks * sizeof *s->m.files / sizeof(uint64_t);

    return hl_snapshot_all_reduce(s->e, HAUL_COMM_SUM_U64, (uint64_t *)(void *)s->m.files, n);
}

int hl_ckpt_saving_commit(struct hl_ckpt_saving *s)
{
    int rc = s->rank == 0 ? hl_ckpt_new_commit(s->place, &s->m, &s->rest) : 0;

    if (rc == 0 || !s->keeps || !s->place->complete)
        return rc;
    /* the stores must keep what it refers to: it counts as what it is */
    hl_log(HAUL_LOG_WARN, "checkpoint: %s/%s is complete, but: %s", s->root, s->name,
           haul_last_error());
    return 0;
}

/* First it is gone as a checkpoint, so that no store has to have it, on any rank; then from the stores. */
static void give_up(struct hl_ckpt_saving *s, int rc)
{
    char text[HL_ERROR_TEXT_BYTES];

    snprintf(text, sizeof text, "%s", haul_last_error());
    hl_ckpt_new_close(s->place);
    s->place = NULL;
    if (hl_ckpt_agree(s->e, "save", 0) == 0 && s->prepared && hl_snapshot_take_back(s->e) < 0)
        hl_log(HAUL_LOG_WARN, "checkpoint: what it had in the store stays: %s", haul_last_error());
    (void)hl_fail_text(rc, text);
}

int hl_ckpt_saving_settle(struct hl_ckpt_saving *s, int rc)
{
    if (!s->keeps)
        return rc;
    if (rc < 0)
        give_up(s, rc);
    else
        rc = hl_ckpt_agree(s->e, "save", hl_snapshot_retire(s->e));
    s->prepared = false;
    return rc;
}

void hl_ckpt_saving_end(struct hl_ckpt_saving *s)
{
    hl_sys_close(s->dirfd);
    hl_ckpt_new_close(s->place);
    hl_ckpt_manifest_free(&s->m);
    hl_sys_free(s->user);
    hl_sys_free(s->root);
}
