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
#include <time.h>
#include <unistd.h>

#include "checksum.h"
#include "ckpt_agree.h"
#include "ckpt_file.h"
#include "ckpt_root.h"
#include "clock.h"
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
    int rootfd, dirfd;
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

/* ---- rank 0, before ---- */

/* A number that no other checkpoint has. */
static uint64_t make_id(const void *salt)
{
    const uint64_t words[] = {hl_clock_ns(), (uint64_t)getpid(), (uint64_t)time(NULL),
                              (uint64_t)(uintptr_t)salt};

    uint64_t id = hl_checksum(words, sizeof words);

    return id ? id : 1;
}

static int sync_parent(int rootfd)
{
    int fd = hl_sys_open(rootfd, "..", O_RDONLY | O_DIRECTORY, 0), rc;

    if (fd < 0)
        return fd;
    rc = hl_sys_fsync(fd);
    hl_sys_close(fd);
    return rc;
}

static int open_root(struct saving *s)
{
    int rc = hl_sys_mkdir(s->root, 0777);

    if (rc < 0)
        return rc;
    s->rootfd = hl_sys_open(AT_FDCWD, s->root, O_RDONLY | O_DIRECTORY, 0);
    if (s->rootfd < 0)
        return s->rootfd;
    rc = hl_sys_lock_file(s->rootfd, 1);
    if (rc == -EWOULDBLOCK)
        return hl_fail(-EBUSY, "checkpoint: another process saves in %s", s->root);
    return rc < 0 ? rc : sync_parent(s->rootfd);
}

static int next_serial(struct saving *s)
{
    struct hl_ckpt_entry *list;
    uint32_t n;
    int rc = hl_ckpt_list(s->rootfd, s->root, &list, &n);

    if (rc < 0)
        return rc;
    s->m.serial = n && list[0].rc == 0 ? list[0].serial + 1 : 1;
    hl_sys_free(list);
    return 0;
}

static int make_place(struct saving *s)
{
    int rc = open_root(s);

    if (rc == 0)
        rc = hl_ckpt_clean(s->rootfd, s->root);
    if (rc == 0)
        rc = next_serial(s);
    if (rc == 0)
        rc = hl_ckpt_make_dir(s->rootfd, s->root, s->m.step, s->name);
    s->m.id = make_id(s);
    return rc;
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
    uint64_t words[2 + HL_CKPT_NAME_BYTES / 8] = {0};
    int rc;

    if (s->rank == 0) {
        words[0] = s->m.id;
        words[1] = s->m.serial;
        memcpy(&words[2], s->name, sizeof s->name);
    }
    rc = hl_snapshot_all_reduce(s->e, HAUL_COMM_SUM_U64, words, 2 + HL_CKPT_NAME_BYTES / 8);
    s->m.id = words[0];
    s->m.serial = words[1];
    memcpy(s->name, &words[2], sizeof s->name);
    return rc;
}

static int open_dir(struct saving *s)
{
    char path[4096];

    if (s->rank == 0)
        s->dirfd = hl_sys_open(s->rootfd, s->name, O_RDONLY | O_DIRECTORY, 0);
    else {
        snprintf(path, sizeof path, "%s/%s", s->root, s->name);
        s->dirfd = hl_sys_open(AT_FDCWD, path, O_RDONLY | O_DIRECTORY, 0);
    }
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

/* ---- rank 0, after ---- */

static int publish_latest(struct saving *s)
{
    char text[HL_CKPT_NAME_BYTES + 1];
    int n = snprintf(text, sizeof text, "%s\n", s->name);

    return hl_ckpt_publish(s->rootfd, HL_CKPT_LATEST, text, (size_t)n);
}

static int commit(struct saving *s)
{
    int rc;

    s->m.user_bytes = s->opts->user_bytes;
    s->m.user_sum = hl_checksum(s->opts->user, s->opts->user_bytes);
    rc = hl_ckpt_publish(s->dirfd, HL_CKPT_USER_FILE, s->opts->user, s->opts->user_bytes);
    if (rc == 0)
        rc = hl_ckpt_manifest_write(s->dirfd, &s->m);
    if (rc < 0)
        return rc;
    rc = publish_latest(s);
    if (rc == 0)
        rc = hl_ckpt_retain(s->rootfd, s->root, s->opts->keep_last, s->opts->keep_every);
    return rc;
}

/* Nothing is left of a save that failed, unless it was complete already. */
static void take_back(struct saving *s)
{
    char text[HL_ERROR_TEXT_BYTES];
    struct hl_ckpt_manifest m;

    if (s->rank != 0 || !s->name[0])
        return;
    snprintf(text, sizeof text, "%s", haul_last_error());
    if (s->dirfd >= 0 && hl_ckpt_manifest_read(s->dirfd, s->name, &m) == 0)
        hl_ckpt_manifest_free(&m);
    else if (hl_ckpt_remove(s->rootfd, s->name) < 0)
        hl_log(HAUL_LOG_WARN, "checkpoint: what is left of %s/%s cannot be removed: %s", s->root,
               s->name, haul_last_error());
    (void)hl_fail_text(-EIO, text);
}

static int save(struct saving *s)
{
    int rc = describe(s);

    if (rc == 0 && s->rank == 0)
        rc = make_place(s);
    if ((rc = hl_ckpt_agree(s->e, "save", rc)) < 0 || (rc = share_place(s)) < 0 ||
        (rc = hl_ckpt_agree(s->e, "save", open_dir(s))) < 0 ||
        (rc = hl_ckpt_agree(s->e, "save", write_shard(s))) < 0 || (rc = share_files(s)) < 0)
        return rc;
    if (s->rank == 0)
        rc = commit(s);
    return hl_ckpt_agree(s->e, "save", rc);
}

int haul_checkpoint_save(struct haul_engine *engine, const char *root,
                         const struct haul_checkpoint_save_opts *opts)
{
    struct haul_checkpoint_save_opts defaults;
    struct saving s = {.e = engine, .root = root, .opts = opts, .rootfd = -1, .dirfd = -1};
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
    if (rc < 0)
        take_back(&s);
    hl_sys_close(s.dirfd);
    hl_sys_close(s.rootfd);
    hl_ckpt_manifest_free(&s.m);
    return rc;
}
