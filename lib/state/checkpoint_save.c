/*
 * checkpoint_save.c: a new checkpoint in a root.
 *
 * Rank 0 makes the directory and says its name; every rank writes its own shard; when all have, rank 0
 * writes the manifest. At each of these points the ranks agree, so that an error of one ends the save on all.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "ckpt_agree.h"
#include "ckpt_new.h"
#include "fail.h"
#include "haul/checkpoint.h"
#include "snapshot.h"
#include "sys.h"
#include "sys_file.h"

struct saving {
    struct haul_engine *e;
    const char *root;
    const struct haul_checkpoint_save_opts *opts;
    uint32_t rank, nranks;
    struct hl_ckpt_new *place; /* rank 0's */
    int dirfd;
    char name[HL_CKPT_NAME_BYTES];
    struct hl_ckpt_manifest m;
};

void haul_checkpoint_save_opts_init(struct haul_checkpoint_save_opts *opts)
{
    memset(opts, 0, sizeof *opts);
    opts->struct_size = sizeof *opts;
}

static int check_opts(const struct haul_checkpoint_save_opts *o)
{
    if (o->struct_size != sizeof *o)
        return hl_fail(HAUL_E_ABI,
                       "checkpoint: options were not set up by haul_checkpoint_save_opts_init()");
    if (o->user_bytes && !o->user)
        return hl_fail(-EINVAL, "checkpoint: user_bytes %" PRIu64 ", but user is NULL",
                       o->user_bytes);
    if (o->user_bytes > HAUL_CHECKPOINT_MAX_USER_BYTES)
        return hl_fail(-EINVAL, "checkpoint: user_bytes %" PRIu64 "; at most 2^30", o->user_bytes);
    if (o->keep_every && !o->keep_last)
        return hl_fail(-EINVAL,
                       "checkpoint: keep_every %" PRIu64 " without keep_last: all are kept",
                       o->keep_every);
    return 0;
}

/* ---- all ranks ---- */

static int describe(struct saving *s)
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
    return hl_sys_alloc_array(s->nranks, sizeof *s->m.files, (void **)&s->m.files);
}

/* What rank 0 has chosen, on all of them. */
static int share_place(struct saving *s)
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

static int open_dir(struct saving *s)
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

static int read_state(void *user, uint32_t unit, uint32_t tensor, uint64_t first, uint64_t n,
                      float *p, float *m, float *v)
{
    return hl_snapshot_read(user, unit, tensor, first, n, p, m, v);
}

static int write_shard(struct saving *s)
{
    struct hl_ckpt_source source = {read_state, s->e};
    int rc = hl_snapshot_begin(s->e);

    if (rc < 0)
        return rc;
    rc = hl_ckpt_file_write(s->dirfd, &s->m, s->rank, &source, &s->m.files[s->rank]);
    rc = hl_snapshot_end(s->e, rc);
    return rc < 0 ? rc : hl_sys_fsync(s->dirfd);
}

/* Every rank's file, on all of them. */
static int share_files(struct saving *s)
{
    uint64_t n = s->nranks * sizeof *s->m.files / sizeof(uint64_t);

    return hl_snapshot_all_reduce(s->e, HAUL_COMM_SUM_U64, (uint64_t *)(void *)s->m.files, n);
}

static struct hl_ckpt_rest rest_of(const struct haul_checkpoint_save_opts *o)
{
    return (struct hl_ckpt_rest){o->user, o->user_bytes, o->keep_last, o->keep_every};
}

static int commit(struct saving *s)
{
    const struct hl_ckpt_rest rest = rest_of(s->opts);

    return s->rank == 0 ? hl_ckpt_new_commit(s->place, &s->m, &rest) : 0;
}

static int save(struct saving *s)
{
    const struct hl_ckpt_rest rest = rest_of(s->opts);
    int rc = describe(s);

    if (rc == 0 && s->rank == 0)
        rc = hl_ckpt_new_open(s->root, s->m.step, &rest, &s->place);
    if ((rc = hl_ckpt_agree(s->e, "save", rc)) < 0 || (rc = share_place(s)) < 0 ||
        (rc = hl_ckpt_agree(s->e, "save", open_dir(s))) < 0 ||
        (rc = hl_ckpt_agree(s->e, "save", write_shard(s))) < 0 || (rc = share_files(s)) < 0)
        return rc;
    return hl_ckpt_agree(s->e, "save", commit(s));
}

int haul_checkpoint_save(struct haul_engine *engine, const char *root,
                         const struct haul_checkpoint_save_opts *opts)
{
    struct haul_checkpoint_save_opts defaults;
    struct saving s = {.e = engine, .root = root, .opts = opts, .dirfd = -1};
    int rc = hl_snapshot_check(engine, "haul_checkpoint_save");

    if (rc == 0)
        rc = hl_need("haul_checkpoint_save", "root", root);
    haul_checkpoint_save_opts_init(&defaults);
    if (!opts)
        s.opts = &defaults;
    if (rc < 0 || (rc = check_opts(s.opts)) < 0)
        return rc;
    s.rank = hl_snapshot_rank(engine, &s.nranks);
    rc = save(&s);
    hl_sys_close(s.dirfd);
    hl_ckpt_new_close(s.place);
    hl_ckpt_manifest_free(&s.m);
    return rc;
}
