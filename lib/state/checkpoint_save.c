/* checkpoint_save.c: the public calls that save: at once, or behind training. */
#include <inttypes.h>
#include <string.h>

#include "ckpt_agree.h"
#include "ckpt_behind.h"
#include "ckpt_kept.h"
#include "fail.h"
#include "snapshot.h"

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

static int read_state(void *user, uint32_t unit, uint32_t tensor, uint64_t first, uint64_t n,
                      float *p, float *m, float *v)
{
    return hl_snapshot_read(user, unit, tensor, first, n, p, m, v);
}

static void so_far(void *user, uint64_t done_bytes, uint64_t total_bytes)
{
    hl_snapshot_work(user, HAUL_WORK_SAVE, done_bytes, total_bytes);
}

static int write_shard(struct hl_ckpt_saving *s)
{
    const struct hl_ckpt_source source = {
        .fn = read_state, .user = s->e, .so_far = so_far, .keeper = s->keeps ? &s->keeper : NULL};
    int rc = hl_snapshot_begin(s->e);

    return rc < 0 ? rc : hl_snapshot_end(s->e, hl_ckpt_saving_write(s, &source));
}

static int save_now(struct hl_ckpt_saving *s)
{
    int rc = hl_ckpt_agree(s->e, "save", write_shard(s));

    if (rc == 0)
        rc = hl_ckpt_saving_share(s);
    if (rc == 0)
        rc = hl_ckpt_agree(s->e, "save", hl_ckpt_saving_commit(s));
    rc = hl_ckpt_saving_settle(s, rc);
    if (rc == 0 && s->keeps)
        hl_ckpt_kept_after(s);
    hl_ckpt_saving_end(s);
    return rc;
}

int haul_checkpoint_save(struct haul_engine *engine, const char *root,
                         const struct haul_checkpoint_save_opts *opts)
{
    struct haul_checkpoint_save_opts defaults;
    struct hl_ckpt_saving s;
    int rc = hl_snapshot_check(engine, "haul_checkpoint_save");

    if (rc < 0)
        return rc;
    haul_checkpoint_save_opts_init(&defaults);
    opts = opts ? opts : &defaults;
    if ((rc = hl_need("haul_checkpoint_save", "root", root)) == 0 && (rc = check_opts(opts)) == 0)
        rc = hl_snapshot_between_steps(engine);
    rc = hl_snapshot_enter(engine, "haul_checkpoint_save", opts->background != 0, rc);
    if (rc < 0 || (rc = hl_ckpt_behind_wait(engine)) < 0 ||
        (rc = hl_ckpt_saving_begin(engine, root, opts, &s)) < 0)
        return rc;
    return opts->background ? hl_ckpt_behind_begin(&s) : save_now(&s);
}

int haul_checkpoint_wait(struct haul_engine *engine)
{
    int rc = hl_snapshot_check(engine, "haul_checkpoint_wait");

    if (rc == 0)
        rc = hl_snapshot_enter(engine, "haul_checkpoint_wait", 0, 0);
    return rc < 0 ? rc : hl_ckpt_behind_wait(engine);
}
