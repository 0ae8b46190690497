/* method_fault.c: see method_fault.h. */
#include "method_fault.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fail.h"
#include "sys.h"
#include "sys_file.h"
#include "wait.h"

#define MAX_DELAY 6
#define MAX_HELD  4096
/* With completions held back, the inner method is not waited for longer than this. */
#define SHORT_WAIT_NS 50000u

/* The plan is the test's; the I/O thread reads it under the lock. */
static struct {
    struct hl_spin lock;
    struct hl_fault_plan plan;
    uint64_t state, writes;
    uint64_t counts[HL_NFAULTS];
} g;

/* splitmix64 */
static uint64_t next_random(void)
{
    uint64_t z = g.state += 0x9e3779b97f4a7c15ull;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

static uint64_t below(uint64_t n)
{
    return n ? next_random() % n : 0;
}

void hl_fault_arm(const struct hl_fault_plan *plan)
{
    hl_spin_lock(&g.lock);
    g.plan = *plan;
    g.plan.align = plan->align ? plan->align : 512;
    g.state = plan->seed;
    g.writes = 0;
    memset(g.counts, 0, sizeof g.counts);
    hl_spin_unlock(&g.lock);
}

void hl_fault_disarm(void)
{
    hl_spin_lock(&g.lock);
    g.plan = (struct hl_fault_plan){
        .inner = g.plan.inner, .align = g.plan.align, .volatile_cache = g.plan.volatile_cache};
    hl_spin_unlock(&g.lock);
}

uint64_t hl_fault_count(enum hl_fault_kind kind)
{
    uint64_t n;

    hl_spin_lock(&g.lock);
    n = g.counts[kind];
    hl_spin_unlock(&g.lock);
    return n;
}

/* A write that has not reached the drive. */
struct pending {
    uint32_t file, bytes;
    uint64_t offset;
    char *data; /* 4096-aligned */
    struct pending *next;
};

/* A transfer under way in the inner method, or a completion held back. */
struct held {
    struct hl_transfer asked;
    enum hl_fault_kind kind;
    int64_t report; /* instead of the inner result; INT64_MIN: as it comes */
    int64_t result;
    uint32_t delay; /* reaps to go */
    int complete;   /* the inner method is done with it, or never had it */
    int used;
};

struct fault {
    struct hl_method base;
    struct hl_method *inner;
    const int *fds;
    int volatile_cache;
    uint32_t nheld; /* length in use */
    struct held held[MAX_HELD];
    struct hl_done last; /* for stale completions */
    struct hl_spin lock; /* pending: flush comes from other threads */
    struct pending *pending, **pending_tail;
};

static struct held *new_held(struct fault *f, const struct hl_transfer *t)
{
    uint32_t i = 0;

    while (i < f->nheld && f->held[i].used)
        i++;
    if (i == f->nheld)
        f->nheld++;
    f->held[i] = (struct held){.asked = *t, .report = INT64_MIN, .used = 1};
    return &f->held[i];
}

/* ---- deciding; under g.lock ---- */

static int applies(enum hl_fault_kind kind, const struct hl_transfer *t)
{
    switch (kind) {
    case HL_FAULT_ENOSPC:
    case HL_FAULT_TORN:
    case HL_FAULT_LOST:
    case HL_FAULT_MISDIRECT:
        return t->write;
    case HL_FAULT_FLIP:
        return !t->write;
    case HL_FAULT_SHORT_ALIGNED:
        return t->bytes > g.plan.align;
    case HL_FAULT_DELAY:
    case HL_FAULT_STALE:
        return 0; /* drawn apart */
    default:
        return 1;
    }
}

static enum hl_fault_kind draw(const struct hl_transfer *t)
{
    uint64_t x = below(1000);

    for (int kind = 1; kind < HL_NFAULTS; kind++) {
        if (!applies((enum hl_fault_kind)kind, t))
            continue;
        if (x < g.plan.rate[kind])
            return (enum hl_fault_kind)kind;
        x -= g.plan.rate[kind];
    }
    return HL_FAULT_NONE;
}

static enum hl_fault_kind decide(const struct hl_transfer *t)
{
    enum hl_fault_kind kind = draw(t);

    if (t->write && g.plan.enospc_after_writes && ++g.writes >= g.plan.enospc_after_writes)
        kind = HL_FAULT_ENOSPC;
    g.counts[kind]++;
    return kind;
}

static int misaligned(const struct hl_transfer *t)
{
    uint32_t a = g.plan.enforce_align;

    return a && (t->offset % a || t->bytes % a || (uintptr_t)t->buf % a);
}

/* ---- the volatile cache ---- */

static void apply_pending(struct fault *f, const struct hl_transfer *t)
{
    hl_spin_lock(&f->lock);
    for (struct pending *p = f->pending; p; p = p->next) {
        uint64_t from = p->offset > t->offset ? p->offset : t->offset;
        uint64_t p_end = p->offset + p->bytes, t_end = t->offset + t->bytes;
        uint64_t to = p_end < t_end ? p_end : t_end;

        if (p->file == t->file && from < to)
            memcpy((char *)t->buf + (from - t->offset), p->data + (from - p->offset), to - from);
    }
    hl_spin_unlock(&f->lock);
}

static int cache_write(struct fault *f, const struct hl_transfer *t)
{
    struct pending *p;
    uint64_t luck;
    void *mem;
    int rc = hl_sys_alloc(sizeof *p, &mem);

    if (rc < 0)
        return rc;
    p = mem;
    *p = (struct pending){.file = t->file, .bytes = t->bytes, .offset = t->offset};
    rc = hl_sys_alloc_aligned(4096, t->bytes, &mem);
    if (rc < 0) {
        hl_sys_free(p);
        return rc;
    }
    p->data = mem;
    memcpy(p->data, t->buf, t->bytes);
    hl_spin_lock(&f->lock);
    *f->pending_tail = p;
    f->pending_tail = &p->next;
    hl_spin_unlock(&f->lock);
    hl_spin_lock(&g.lock);
    luck = below(8);
    hl_spin_unlock(&g.lock);
    if (luck == 0) /* evicted early, whole */
        (void)hl_sys_pwrite(f->fds[t->file], p->data, p->bytes, (off_t)p->offset);
    else if (luck == 1 && t->bytes > 8192) /* in part */
        (void)hl_sys_pwrite(f->fds[t->file], p->data, t->bytes / 8192 * 4096, (off_t)p->offset);
    return 0;
}

static int fault_flush(struct hl_method *m, uint32_t file)
{
    struct fault *f = (struct fault *)m;
    struct pending *list, *keep = NULL, **keep_tail = &keep;
    int rc = 0;

    hl_spin_lock(&f->lock);
    list = f->pending;
    f->pending = NULL;
    f->pending_tail = &f->pending;
    hl_spin_unlock(&f->lock);
    while (list) {
        struct pending *next = list->next;

        if (list->file == file) {
            int one = hl_sys_pwrite_all(f->fds[file], list->data, list->bytes, (off_t)list->offset);

            rc = rc < 0 ? rc : one;
            hl_sys_free(list->data);
            hl_sys_free(list);
        } else {
            list->next = NULL;
            *keep_tail = list;
            keep_tail = &list->next;
        }
        list = next;
    }
    hl_spin_lock(&f->lock);
    *keep_tail = f->pending;
    if (f->pending == NULL)
        f->pending_tail = keep ? keep_tail : &f->pending;
    f->pending = keep;
    hl_spin_unlock(&f->lock);
    return rc < 0 ? rc : f->inner->ops->flush(f->inner, file);
}

/* ---- the method ---- */

static int fault_open(const struct hl_method_args *args, struct hl_method **out)
{
    struct fault *f;
    void *mem;
    int rc = hl_sys_alloc(sizeof *f, &mem);

    if (rc < 0)
        return rc;
    f = mem;
    f->base.ops = &hl_method_fault;
    f->fds = args->fds;
    f->pending_tail = &f->pending;
    hl_spin_lock(&g.lock);
    f->volatile_cache = g.plan.volatile_cache;
    hl_spin_unlock(&g.lock);
    rc = g.plan.inner->open(args, &f->inner);
    if (rc < 0) {
        hl_sys_free(f);
        return rc;
    }
    *out = &f->base;
    return 0;
}

static void fault_close(struct hl_method *m)
{
    struct fault *f = (struct fault *)m;

    f->inner->ops->close(f->inner);
    while (f->pending) {
        struct pending *p = f->pending;

        f->pending = p->next;
        hl_sys_free(p->data);
        hl_sys_free(p);
    }
    hl_sys_free(f);
}

/* Answered without the inner method. */
static int answer(struct held *h, int64_t result)
{
    h->result = result;
    h->complete = 1;
    return 0;
}

static int start_short(struct fault *f, struct held *h, uint32_t align, uint64_t random)
{
    struct hl_transfer t = h->asked;
    uint32_t n = 1 + (uint32_t)(random % (t.bytes - 1));

    if (h->kind == HL_FAULT_SHORT_ALIGNED)
        n = n / align ? n / align * align : align;
    h->report = n;
    /* The drive takes whole sectors; what it says may be less exact. */
    t.bytes = t.write ? n / align * align : t.bytes;
    if (!t.bytes)
        return answer(h, n);
    if (f->volatile_cache && t.write) {
        int rc = cache_write(f, &t);

        return rc < 0 ? rc : answer(h, n);
    }
    return f->inner->ops->start(f->inner, &t);
}

static int start_torn(struct fault *f, struct held *h, uint32_t align)
{
    struct hl_transfer t = h->asked;

    t.bytes = t.bytes / 2 / align * align;
    h->report = -EIO;
    if (!t.bytes || f->volatile_cache)
        return answer(h, -EIO);
    return f->inner->ops->start(f->inner, &t);
}

static int64_t error_of(enum hl_fault_kind kind)
{
    switch (kind) {
    case HL_FAULT_EAGAIN:
        return -EAGAIN;
    case HL_FAULT_EINTR:
        return -EINTR;
    case HL_FAULT_EBUSY:
        return -EBUSY;
    case HL_FAULT_EIO:
        return -EIO;
    case HL_FAULT_ENOSPC:
        return -ENOSPC;
    default:
        return 0;
    }
}

static int start_held(struct fault *f, struct held *h, uint32_t align, uint64_t random)
{
    struct hl_transfer t = h->asked;

    if (error_of(h->kind))
        return answer(h, error_of(h->kind));
    if (h->kind == HL_FAULT_SHORT_ALIGNED || h->kind == HL_FAULT_SHORT_UNALIGNED)
        return start_short(f, h, align, random);
    if (h->kind == HL_FAULT_TORN)
        return start_torn(f, h, align);
    if (h->kind == HL_FAULT_LOST)
        return answer(h, t.bytes);
    if (h->kind == HL_FAULT_MISDIRECT)
        t.offset = t.offset >= t.bytes ? t.offset - t.bytes : t.offset + t.bytes;
    if (f->volatile_cache && t.write) {
        int rc = cache_write(f, &t);

        return rc < 0 ? rc : answer(h, t.bytes);
    }
    return f->inner->ops->start(f->inner, &t);
}

static int fault_start(struct hl_method *m, const struct hl_transfer *t)
{
    struct fault *f = (struct fault *)m;
    enum hl_fault_kind kind;
    struct held *h;
    uint64_t random, delay = 0;
    uint32_t align;
    int wrong, rc;

    hl_spin_lock(&g.lock);
    kind = decide(t);
    random = next_random();
    align = g.plan.align;
    wrong = misaligned(t);
    if (below(1000) < g.plan.rate[HL_FAULT_DELAY]) {
        delay = 1 + below(MAX_DELAY);
        g.counts[HL_FAULT_DELAY]++;
    }
    hl_spin_unlock(&g.lock);
    if (kind == HL_FAULT_START_REFUSED)
        return -EAGAIN;
    h = new_held(f, t);
    h->kind = kind;
    h->delay = (uint32_t)delay;
    rc = wrong ? answer(h, -EINVAL) : start_held(f, h, align, random);
    if (rc < 0)
        h->used = 0;
    return rc;
}

/* What the inner method brought. */
static void note_done(struct fault *f, const struct hl_done *done)
{
    for (uint32_t i = 0; i < f->nheld; i++) {
        struct held *h = &f->held[i];

        if (!h->used || h->complete || h->asked.tag != done->tag)
            continue;
        h->complete = 1;
        h->result = done->result;
        if (h->report != INT64_MIN && done->result >= 0)
            h->result = h->report;
        if (!h->asked.write && done->result > 0 && f->volatile_cache)
            apply_pending(f, &h->asked);
        if (h->kind == HL_FAULT_FLIP && done->result > 0)
            ((char *)h->asked.buf)[(uint64_t)done->tag * 7919 % (uint64_t)done->result] ^= 1;
        return;
    }
}

static int deliver(struct fault *f, struct hl_done *out, uint32_t max)
{
    uint32_t first, n = 0;
    int stale;

    hl_spin_lock(&g.lock);
    first = g.plan.reorder ? (uint32_t)below(f->nheld) : 0;
    stale = f->last.tag && below(1000) < g.plan.rate[HL_FAULT_STALE];
    g.counts[HL_FAULT_STALE] += (uint64_t)stale;
    hl_spin_unlock(&g.lock);
    if (stale && n < max)
        out[n++] = f->last;
    for (uint32_t k = 0; k < f->nheld && n < max; k++) {
        struct held *h = &f->held[(first + k) % f->nheld];

        if (!h->used || !h->complete || (h->delay && h->delay--))
            continue;
        out[n++] = f->last = (struct hl_done){h->asked.tag, h->result};
        h->used = 0;
    }
    while (f->nheld && !f->held[f->nheld - 1].used)
        f->nheld--;
    return (int)n;
}

static int waiting(const struct fault *f)
{
    for (uint32_t i = 0; i < f->nheld; i++)
        if (f->held[i].used && f->held[i].complete)
            return 1;
    return 0;
}

static int fault_reap(struct hl_method *m, struct hl_done *out, uint32_t max, uint64_t wait_ns)
{
    struct fault *f = (struct fault *)m;
    struct hl_done done[64];
    int n;

    if (waiting(f) && wait_ns > SHORT_WAIT_NS)
        wait_ns = SHORT_WAIT_NS;
    n = f->inner->ops->reap(f->inner, done, 64, wait_ns);
    for (int i = 0; i < n; i++)
        note_done(f, &done[i]);
    return n < 0 ? n : deliver(f, out, max);
}

static void fault_wake(struct hl_method *m)
{
    struct fault *f = (struct fault *)m;

    f->inner->ops->wake(f->inner);
}

const struct hl_method_ops hl_method_fault = {
    .name = "fault",
    .open = fault_open,
    .close = fault_close,
    .start = fault_start,
    .reap = fault_reap,
    .wake = fault_wake,
    .flush = fault_flush,
};
