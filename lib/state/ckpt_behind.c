/*
 * ckpt_behind.c: a save whose files are written while training goes on.
 *
 * Each rank has a thread that reads the state through the engine's snapshot and writes the rank's file. One
 * rank's thread then commits by itself. Several ranks must know that all have written, and a thread cannot ask
 * the others: collectives are the trainer's thread's. So the engine's next step says when all have (or the
 * trainer waits); then the ranks exchange what the manifest needs, and rank 0's thread goes on to commit.
 *
 *   WRITING   -> WRITTEN          by the thread: its file is on the drive, or failed
 *   WRITTEN   -> COMMIT, DROP     by the trainer, when all ranks' are; one rank: by the thread itself
 *   COMMIT    -> COMMITTED        by rank 0's thread, and in their turn by all others'
 *   COMMITTED -> SETTLED          by the trainer
 *
 * Records that stay in stores (ckpt_kept.h) may not be written again before the manifest is there and the generation
 * before is gone on all ranks. One rank's thread sees to that too. Of several, the trainer's next step waits for it
 * before it queues updates, and all that reaches the state does; the last two stages are theirs alone.
 */
#include "ckpt_behind.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "ckpt_agree.h"
#include "ckpt_kept.h"
#include "fail.h"
#include "snapshot.h"
#include "sys.h"
#include "wait.h"

enum stage { WRITING = 0, WRITTEN, COMMIT, COMMITTED, SETTLED, DROP };

struct behind {
    struct hl_ckpt_saving s;
    pthread_t thread;
    struct hl_gate gate;
    _Atomic int stage;
    uint32_t nread; /* units whose blocks have all been read */
    int rc;         /* the thread's; others look when it has ended, or at WRITTEN */
    char text[HL_ERROR_TEXT_BYTES];
    bool agreed;  /* trainer's: the ranks have met */
    bool settled; /* likewise, and know that the checkpoint is complete */
    int rc_agreed;
    char text_agreed[HL_ERROR_TEXT_BYTES];
};

/* ---- the thread ---- */

static void move_on(struct behind *b, enum stage to)
{
    atomic_store(&b->stage, to);
    hl_gate_wake(&b->gate);
}

/* Until the stage is past `at`. */
static enum stage wait_past(struct behind *b, enum stage at)
{
    for (;;) {
        uint32_t seen = hl_gate_look(&b->gate);
        enum stage now = (enum stage)atomic_load(&b->stage);
        if (now > at)
            return now;
        hl_gate_sleep(&b->gate, seen);
    }
}

/* But for units whose records must not change yet. */
static void let_go(struct behind *b, uint32_t upto)
{
    for (; b->nread < upto; b->nread++)
        if (!hl_snapshot_is_kept(b->s.e, b->nread))
            hl_snapshot_unit_read(b->s.e, b->nread);
}

static void let_go_kept(struct behind *b)
{
    for (uint32_t i = 0; i < b->s.m.model.nunits; i++)
        hl_snapshot_unit_read(b->s.e, i);
}

/* Blocks come unit by unit: those before this one have been read. */
static int read_state(void *user, uint32_t unit, uint32_t tensor, uint64_t first, uint64_t n,
                      float *p, float *m, float *v)
{
    struct behind *b = user;

    let_go(b, unit);
    return hl_snapshot_read_behind(b->s.e, unit, tensor, first, n, p, m, v);
}

/* A close, or an engine that failed, lets updates run whose units have not been read. */
static int all_read(void *user)
{
    struct behind *b = user;
    int rc = b->s.keeps ? hl_snapshot_settled(b->s.e) : 0;

    if (rc == 0)
        rc = hl_snapshot_intact(b->s.e);
    if (rc == 0)
        let_go(b, b->s.m.model.nunits);
    return rc;
}

static void so_far(void *user, uint64_t done_bytes, uint64_t total_bytes)
{
    const struct behind *b = user;

    hl_snapshot_work(b->s.e, HAUL_WORK_SAVE, done_bytes, total_bytes);
}

static void keep_error(struct behind *b, int rc)
{
    b->rc = rc;
    if (rc < 0)
        snprintf(b->text, sizeof b->text, "%s", haul_last_error());
}

/* One rank: all of it. */
static void go_on_alone(struct behind *b)
{
    if (b->rc == 0)
        keep_error(b, hl_ckpt_saving_commit(&b->s));
    else
        (void)hl_fail_text(b->rc, b->text);
    keep_error(b, hl_ckpt_saving_settle(&b->s, b->rc));
    let_go_kept(b);
    if (b->rc == 0 && b->s.keeps)
        hl_ckpt_kept_after(&b->s);
    move_on(b, WRITTEN);
}

static void go_on_together(struct behind *b)
{
    move_on(b, WRITTEN);
    if (wait_past(b, WRITTEN) != COMMIT)
        return;
    keep_error(b, hl_ckpt_saving_commit(&b->s));
    if (!b->s.keeps)
        return;
    move_on(b, COMMITTED);
    if (wait_past(b, COMMITTED) == SETTLED)
        hl_ckpt_kept_after(&b->s);
}

static void *behind_main(void *user)
{
    struct behind *b = user;
    const struct hl_ckpt_source source = {read_state, b, all_read, so_far,
                                          b->s.keeps ? &b->s.keeper : NULL};

    keep_error(b, hl_ckpt_saving_write(&b->s, &source));
    if (b->rc < 0 && !b->s.keeps)
        hl_snapshot_stop(b->s.e); /* no update waits for what will not come */
    if (b->s.nranks == 1)
        go_on_alone(b);
    else
        go_on_together(b);
    return NULL;
}

/* ---- the trainer's thread ---- */

static bool is_written(void *user)
{
    struct behind *b = user;

    return b->s.nranks > 1 && !b->s.keeps && !b->agreed && atomic_load(&b->stage) == WRITTEN;
}

/* Collective; every rank's thread is at WRITTEN. */
static void meet(void *user)
{
    struct behind *b = user;
    int rc = b->rc;

    if (rc < 0)
        (void)hl_fail_text(rc, b->text);
    rc = hl_ckpt_agree(b->s.e, "save", rc);
    if (rc == 0)
        rc = hl_ckpt_saving_share(&b->s);
    b->agreed = true;
    b->rc_agreed = rc;
    if (rc < 0)
        snprintf(b->text_agreed, sizeof b->text_agreed, "%s", haul_last_error());
    move_on(b, rc == 0 ? COMMIT : DROP);
}

/* Collective: to the end, of a save that keeps updates waiting. */
static void settle(void *user)
{
    struct behind *b = user;
    int rc;

    if (b->s.nranks == 1 || !b->s.keeps || b->settled)
        return;
    b->settled = true;
    (void)wait_past(b, WRITING);
    meet(b);
    rc = b->rc_agreed;
    if (rc == 0 && wait_past(b, COMMIT) == COMMITTED) {
        if (b->rc < 0)
            (void)hl_fail_text(b->rc, b->text);
        rc = hl_ckpt_agree(b->s.e, "save", b->rc);
    } else {
        (void)hl_fail_text(rc, b->text_agreed);
    }
    b->rc_agreed = rc = hl_ckpt_saving_settle(&b->s, rc);
    if (rc < 0)
        snprintf(b->text_agreed, sizeof b->text_agreed, "%s", haul_last_error());
    let_go_kept(b);
    move_on(b, rc == 0 ? SETTLED : DROP);
}

static void end(struct behind *b)
{
    hl_sys_join(b->thread);
    if (b->s.prepared) /* and no manifest says that it is complete */
        (void)hl_snapshot_take_back(b->s.e);
    hl_snapshot_disarm(b->s.e);
    hl_ckpt_saving_end(&b->s);
    hl_sys_free(b);
}

/* The engine closes. One that is being committed becomes complete. */
static void abandon(void *user)
{
    struct behind *b = user;

    hl_snapshot_stop(b->s.e);
    if (!b->agreed && b->s.nranks > 1) {
        (void)wait_past(b, WRITING);
        move_on(b, DROP);
    }
    end(b);
}

static int start(struct behind *b)
{
    const struct hl_snapshot_hooks hooks = {
        .written = is_written, .all_written = meet, .meet = settle, .abandon = abandon, .user = b};
    int rc = hl_snapshot_arm(b->s.e, &hooks);

    if (rc < 0)
        return rc;
    rc = hl_sys_thread("haul-save", behind_main, b, &b->thread);
    if (rc < 0)
        hl_snapshot_disarm(b->s.e);
    return rc;
}

int hl_ckpt_behind_begin(struct hl_ckpt_saving *s)
{
    struct behind *b = NULL;
    int rc = hl_sys_alloc(sizeof *b, (void **)&b);

    if (rc == 0) {
        b->s = *s;
        rc = start(b);
    }
    int rc_all = hl_ckpt_agree(s->e, "save", rc);
    if (rc_all == 0)
        return 0;
    if (rc == 0) { /* another rank has no thread */
        abandon(b);
        return rc_all;
    }
    hl_sys_free(b);
    hl_ckpt_saving_end(s);
    return rc_all;
}

int hl_ckpt_behind_wait(struct haul_engine *e)
{
    struct behind *b = hl_snapshot_user(e);
    char text[HL_ERROR_TEXT_BYTES];
    int rc;

    if (!b)
        return 0;
    (void)wait_past(b, WRITING);
    settle(b);
    if (b->s.nranks > 1 && !b->agreed)
        meet(b);
    if (b->s.nranks > 1 && b->rc_agreed < 0) {
        rc = b->rc_agreed;
        snprintf(text, sizeof text, "%s", b->text_agreed);
        end(b);
        return hl_fail_text(rc, text);
    }
    hl_sys_join(b->thread);
    rc = b->rc;
    if (rc < 0)
        (void)hl_fail_text(rc, b->text);
    rc = hl_ckpt_agree(e, "save", rc);
    hl_snapshot_disarm(e);
    hl_ckpt_saving_end(&b->s);
    hl_sys_free(b);
    return rc;
}
