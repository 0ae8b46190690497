/* touch.c: one madvise over a range, cut at 2 MiB boundaries and handed out to threads. */
#include "touch.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <sys/mman.h>

#include "fail.h"
#include "segment.h"
#include "sys.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* Linux 6.1 */
#endif

#define MAX_CHUNK_BYTES ((uint64_t)64 << 20) /* so that an error ends the others soon */
#define MAX_THREADS     64                   /* memory bandwidth is reached long before */

struct job {
    char *base;
    uint64_t bytes, chunk_bytes;
    int (*work)(char *p, uint64_t bytes); /* negative ends the job */
    _Atomic uint64_t next;                /* offset of the first chunk that nobody has */
    atomic_int rc;
};

/* An add of 0 writes to the page and keeps its bytes, whoever else has the memory mapped. */
static void write_to_pages(char *p, uint64_t bytes)
{
    for (uint64_t i = 0; i < bytes; i += HL_PAGE_BYTES)
        __atomic_fetch_add(p + i, 0, __ATOMIC_RELAXED);
}

static int populate(char *p, uint64_t bytes)
{
    int rc;

    do
        rc = hl_sys_madvise(p, bytes, MADV_POPULATE_WRITE);
    while (rc == -EINTR || rc == -EAGAIN);
    if (rc == -EINVAL) { /* a kernel before 5.14 */
        write_to_pages(p, bytes);
        return 0;
    }
    return rc == -EFAULT ? -ENOMEM : rc; /* what would have been a SIGBUS */
}

static int collapse(char *p, uint64_t bytes)
{
    int rc = hl_sys_madvise(p, bytes, MADV_COLLAPSE);

    return rc == -EINVAL ? rc : 0; /* -EINVAL: this kernel never will, so stop asking */
}

static void *run(void *arg)
{
    struct job *job = arg;

    while (!atomic_load(&job->rc)) {
        uint64_t at = atomic_fetch_add(&job->next, job->chunk_bytes), left;
        int rc;

        if (at >= job->bytes)
            break;
        left = job->bytes - at;
        rc = job->work(job->base + at, left < job->chunk_bytes ? left : job->chunk_bytes);
        if (rc < 0)
            atomic_store(&job->rc, rc);
    }
    return NULL;
}

static uint64_t chunk_for(uint64_t bytes, unsigned nthreads)
{
    uint64_t chunk = bytes / (4 * (uint64_t)nthreads) / HL_HUGE_BYTES * HL_HUGE_BYTES;

    if (chunk < HL_HUGE_BYTES)
        return HL_HUGE_BYTES;
    return chunk < MAX_CHUNK_BYTES ? chunk : MAX_CHUNK_BYTES;
}

static int share_out(struct job *job, unsigned nthreads)
{
    pthread_t threads[MAX_THREADS];
    unsigned started = 0;
    uint64_t nchunks;
    int rc = 0;

    if (nthreads > MAX_THREADS)
        nthreads = MAX_THREADS;
    job->chunk_bytes = chunk_for(job->bytes, nthreads ? nthreads : 1);
    nchunks = (job->bytes + job->chunk_bytes - 1) / job->chunk_bytes;
    if (nthreads > nchunks)
        nthreads = (unsigned)nchunks;
    while (rc == 0 && started + 1 < nthreads) { /* the caller is one of them */
        rc = hl_sys_thread("haul-touch", run, job, &threads[started]);
        started += rc == 0;
    }
    if (rc < 0)
        atomic_store(&job->rc, rc);
    run(job);
    while (started)
        hl_sys_join(threads[--started]);
    return rc;
}

int hl_touch(char *base, uint64_t bytes, unsigned nthreads)
{
    struct job job = {.base = base, .bytes = bytes, .work = populate};
    int rc = share_out(&job, nthreads);

    if (rc < 0)
        return rc;
    rc = atomic_load(&job.rc);
    if (rc < 0)
        return hl_fail(rc,
                       "the system refused pages while %" PRIu64
                       " bytes of the pool were touched: %s. Ask for less, or raise the limit "
                       "(haul doctor shows which)",
                       bytes, haul_strerror(rc));
    return 0;
}

int hl_collapse(char *base, uint64_t bytes, unsigned nthreads)
{
    struct job job = {
        .base = base, .bytes = bytes / HL_HUGE_BYTES * HL_HUGE_BYTES, .work = collapse};

    return job.bytes ? share_out(&job, nthreads) : 0;
}
