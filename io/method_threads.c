/* method_threads.c: pread and pwrite on a few threads. Works wherever files do.
 * Hot path: no allocation, no log, no sleeping lock. */
#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "fail.h"
#include "method.h"
#include "sys.h"
#include "sys_file.h"
#include "wait.h"

/* More threads than this only add switches: a drive is full long before. */
#define MAX_WORKERS 32

struct worker {
    struct threads *pool;
    pthread_t thread;
    clockid_t clock;
};

struct threads {
    struct hl_method base;
    const int *fds;
    uint32_t nfiles, capacity; /* of both rings */
    struct hl_spin lock;       /* guards everything down to ndone */
    struct hl_transfer *todo;  /* ring */
    struct hl_done *done;      /* ring */
    uint32_t todo_head, ntodo, done_head, ndone;
    int stopping;
    int woken;              /* a wake that no reap has seen yet */
    struct hl_gate work;    /* todo or stopping changed */
    struct hl_gate results; /* done or woken changed */
    uint32_t nworkers;
    struct worker workers[MAX_WORKERS];
};

static int take_work(struct threads *p, struct hl_transfer *t, int *stop)
{
    int got = 0;

    hl_spin_lock(&p->lock);
    *stop = p->stopping;
    if (p->ntodo) {
        *t = p->todo[p->todo_head];
        p->todo_head = (p->todo_head + 1) % p->capacity;
        p->ntodo--;
        got = 1;
    }
    hl_spin_unlock(&p->lock);
    return got;
}

static void put_result(struct threads *p, uint64_t tag, int64_t result)
{
    hl_spin_lock(&p->lock);
    p->done[(p->done_head + p->ndone) % p->capacity] = (struct hl_done){tag, result};
    p->ndone++;
    hl_spin_unlock(&p->lock);
    hl_gate_wake(&p->results);
}

static int64_t move(const struct threads *p, const struct hl_transfer *t)
{
    if (t->write)
        return hl_sys_pwrite(p->fds[t->file], t->buf, t->bytes, (off_t)t->offset);
    return hl_sys_pread(p->fds[t->file], t->buf, t->bytes, (off_t)t->offset);
}

static void *work(void *arg)
{
    struct threads *p = ((struct worker *)arg)->pool;
    struct hl_transfer t;
    int stop = 0;

    while (!stop) {
        uint32_t seen = hl_gate_look(&p->work);

        if (take_work(p, &t, &stop))
            put_result(p, t.tag, move(p, &t));
        else if (!stop)
            hl_gate_sleep(&p->work, seen);
    }
    return NULL;
}

static void threads_close(struct hl_method *m)
{
    struct threads *p = (struct threads *)m;

    hl_spin_lock(&p->lock);
    p->stopping = 1;
    hl_spin_unlock(&p->lock);
    hl_gate_wake(&p->work);
    for (uint32_t i = 0; i < p->nworkers; i++)
        hl_sys_join(p->workers[i].thread);
    hl_sys_free(p->done);
    hl_sys_free(p->todo);
    hl_sys_free(p);
}

static int start_workers(struct threads *p, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        struct worker *w = &p->workers[i];
        int rc;

        w->pool = p;
        rc = hl_sys_thread("haul-io-w", work, w, &w->thread);
        if (rc < 0)
            return rc;
        p->nworkers++;
        pthread_getcpuclockid(w->thread, &w->clock);
    }
    return 0;
}

static int threads_open(const struct hl_method_args *args, struct hl_method **out)
{
    struct threads *p;
    void *mem;
    int rc;

    rc = hl_sys_alloc(sizeof *p, &mem);
    if (rc < 0)
        return rc;
    p = mem;
    p->base.ops = &hl_method_threads;
    p->fds = args->fds;
    p->nfiles = args->nfiles;
    p->capacity = args->depth;
    rc = hl_sys_alloc_array(p->capacity, sizeof *p->todo, &mem);
    if (rc < 0)
        goto close;
    p->todo = mem;
    rc = hl_sys_alloc_array(p->capacity, sizeof *p->done, &mem);
    if (rc < 0)
        goto close;
    p->done = mem;
    rc = start_workers(p, args->depth < MAX_WORKERS ? args->depth : MAX_WORKERS);
    if (rc < 0)
        goto close;
    *out = &p->base;
    return 0;

close:
    threads_close(&p->base);
    return rc;
}

static int threads_start(struct hl_method *m, const struct hl_transfer *t)
{
    struct threads *p = (struct threads *)m;

    hl_spin_lock(&p->lock);
    p->todo[(p->todo_head + p->ntodo) % p->capacity] = *t;
    p->ntodo++;
    hl_spin_unlock(&p->lock);
    hl_gate_wake(&p->work);
    return 0;
}

/* Number of results taken; -1: none, but woken. */
static int take_results(struct threads *p, struct hl_done *out, uint32_t max)
{
    int n = 0, woken;

    hl_spin_lock(&p->lock);
    for (; p->ndone && (uint32_t)n < max; n++) {
        out[n] = p->done[p->done_head];
        p->done_head = (p->done_head + 1) % p->capacity;
        p->ndone--;
    }
    woken = p->woken;
    p->woken = 0;
    hl_spin_unlock(&p->lock);
    return n == 0 && woken ? -1 : n;
}

static int threads_reap(struct hl_method *m, struct hl_done *out, uint32_t max, uint64_t wait_ns)
{
    struct threads *p = (struct threads *)m;

    for (;;) {
        uint32_t seen = hl_gate_look(&p->results);
        int n = take_results(p, out, max);

        if (n || !wait_ns)
            return n < 0 ? 0 : n;
        if (wait_ns == HL_WAIT_FOREVER) {
            hl_gate_sleep(&p->results, seen);
        } else {
            hl_gate_sleep_for(&p->results, seen, wait_ns);
            wait_ns = 0;
        }
    }
}

static void threads_wake(struct hl_method *m)
{
    struct threads *p = (struct threads *)m;

    hl_spin_lock(&p->lock);
    p->woken = 1;
    hl_spin_unlock(&p->lock);
    hl_gate_wake(&p->results);
}

static int threads_flush(struct hl_method *m, uint32_t file)
{
    return hl_sys_fdatasync(((struct threads *)m)->fds[file]);
}

static uint64_t threads_cpu_ns(struct hl_method *m)
{
    struct threads *p = (struct threads *)m;
    uint64_t sum = 0;

    for (uint32_t i = 0; i < p->nworkers; i++) {
        struct timespec ts;

        if (clock_gettime(p->workers[i].clock, &ts) == 0)
            sum += (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
    }
    return sum;
}

const struct hl_method_ops hl_method_threads = {
    .name = "threads",
    .open = threads_open,
    .close = threads_close,
    .start = threads_start,
    .reap = threads_reap,
    .wake = threads_wake,
    .flush = threads_flush,
    .cpu_ns = threads_cpu_ns,
};
