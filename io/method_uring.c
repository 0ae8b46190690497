/* method_uring.c: io_uring with registered files and buffers. One thread issues and reaps.
 * Hot path: no allocation, no log, no lock. */
#include <errno.h>
#include <liburing.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <time.h>

#include "fail.h"
#include "method.h"
#include "sys.h"
#include "sys_file.h"

/* The kernel refuses to register a larger buffer in one piece. */
#define MAX_BUFFER_BYTES (1ull << 30)
/* The tag of the read that ends a wait. */
#define WAKE_TAG UINT64_MAX
/* submit refused this often in a row, a millisecond apart: the ring is dead. */
#define MAX_REFUSALS 10000

struct uring {
    struct hl_method base;
    struct io_uring ring;
    const int *fds;
    uint32_t nfiles;
    int fixed_files, deferred;
    int wake_fd, wake_armed;
    uint64_t wake_count; /* where the wake read puts its result */
    uint32_t refusals;
    uint32_t nbuffers; /* 0: nothing is registered */
    struct iovec *buffers;
    char note[256];
};

/* Best flags first; a kernel that lacks one answers EINVAL. CLAMP is harmless everywhere. */
static const unsigned ring_flags[] = {
    IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN,
    IORING_SETUP_COOP_TASKRUN,
    0,
};

static int open_ring(struct uring *u, uint32_t entries)
{
    int rc = hl_sys_attempt("io_uring_setup");

    if (rc < 0)
        return rc;
    rc = -EINVAL;
    for (size_t i = 0; rc == -EINVAL && i < sizeof ring_flags / sizeof *ring_flags; i++) {
        rc = io_uring_queue_init(entries, &u->ring, ring_flags[i]);
        u->deferred = (ring_flags[i] & IORING_SETUP_DEFER_TASKRUN) != 0;
    }
    if (rc < 0)
        return hl_fail(rc, "io_uring_setup with %u entries: %s", entries, haul_strerror(rc));
    return 0;
}

static uint32_t count_buffers(const struct hl_method_args *args)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < args->nregions; i++)
        n += (args->regions[i].bytes + MAX_BUFFER_BYTES - 1) / MAX_BUFFER_BYTES;
    return n > UINT16_MAX ? 0 : (uint32_t)n; /* buf_index has 16 bits */
}

static void cut_buffers(struct uring *u, const struct hl_method_args *args)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < args->nregions; i++) {
        char *base = args->regions[i].base;
        uint64_t left = args->regions[i].bytes;

        while (left) {
            uint64_t piece = left < MAX_BUFFER_BYTES ? left : MAX_BUFFER_BYTES;

            u->buffers[n++] = (struct iovec){.iov_base = base, .iov_len = piece};
            base += piece;
            left -= piece;
        }
    }
}

/* A refused registration is no failure: transfers then name their memory each time. */
static int register_buffers(struct uring *u, const struct hl_method_args *args)
{
    uint32_t n = count_buffers(args);
    uint64_t allowed = 0, needed = 0;
    void *mem;
    int rc;

    if (!n)
        return 0;
    rc = hl_sys_alloc_array(n, sizeof *u->buffers, &mem);
    if (rc < 0)
        return rc;
    u->buffers = mem;
    cut_buffers(u, args);
    rc = hl_sys_attempt("io_uring_register_buffers");
    if (rc == 0)
        rc = io_uring_register_buffers(&u->ring, u->buffers, n);
    if (rc == 0) {
        u->nbuffers = n;
        return 0;
    }
    for (uint32_t i = 0; i < args->nregions; i++)
        needed += args->regions[i].bytes;
    if (hl_sys_rlimit(RLIMIT_MEMLOCK, &allowed) < 0)
        allowed = 0;
    snprintf(
        u->note, sizeof u->note,
        "memory is not registered with io_uring (%s): %llu bytes needed, RLIMIT_MEMLOCK is "
        "%llu over all processes of the user; raise it (ulimit -l, docker --ulimit memlock=-1) "
        "or grant CAP_IPC_LOCK",
        haul_strerror(rc), (unsigned long long)needed, (unsigned long long)allowed);
    return 0;
}

static void uring_close(struct hl_method *m)
{
    struct uring *u = (struct uring *)m;

    io_uring_queue_exit(&u->ring);
    hl_sys_close(u->wake_fd);
    hl_sys_free(u->buffers);
    hl_sys_free(u);
}

static int uring_open(const struct hl_method_args *args, struct hl_method **out)
{
    struct uring *u;
    void *mem;
    int rc;

    rc = hl_sys_alloc(sizeof *u, &mem);
    if (rc < 0)
        return rc;
    u = mem;
    u->base.ops = &hl_method_uring;
    u->fds = args->fds;
    u->nfiles = args->nfiles;
    rc = hl_sys_eventfd(0, 0);
    if (rc < 0)
        goto free;
    u->wake_fd = rc;
    /* One more than the transfers: the wake read. The completion ring is twice that, so that it
     * cannot overflow. */
    rc = open_ring(u, args->depth + 1);
    if (rc < 0)
        goto close_wake;
    u->fixed_files = io_uring_register_files(&u->ring, args->fds, args->nfiles) == 0;
    rc = register_buffers(u, args);
    if (rc < 0)
        goto exit_ring;
    *out = &u->base;
    return 0;

exit_ring:
    io_uring_queue_exit(&u->ring);
close_wake:
    hl_sys_close(u->wake_fd);
free:
    hl_sys_free(u);
    return rc;
}

/* Index of the registered buffer that holds all of it; -1: none. */
static int find_buffer(const struct uring *u, const void *buf, uint32_t bytes)
{
    uintptr_t at = (uintptr_t)buf;

    for (uint32_t i = 0; i < u->nbuffers; i++) {
        uintptr_t base = (uintptr_t)u->buffers[i].iov_base;

        if (at >= base && at - base < u->buffers[i].iov_len)
            return bytes <= u->buffers[i].iov_len - (at - base) ? (int)i : -1;
    }
    return -1;
}

static void fill_sqe(const struct uring *u, struct io_uring_sqe *sqe, const struct hl_transfer *t)
{
    int fd = u->fixed_files ? (int)t->file : u->fds[t->file];
    int buffer = find_buffer(u, t->buf, t->bytes);

    if (t->write && buffer >= 0)
        io_uring_prep_write_fixed(sqe, fd, t->buf, t->bytes, t->offset, buffer);
    else if (t->write)
        io_uring_prep_write(sqe, fd, t->buf, t->bytes, t->offset);
    else if (buffer >= 0)
        io_uring_prep_read_fixed(sqe, fd, t->buf, t->bytes, t->offset, buffer);
    else
        io_uring_prep_read(sqe, fd, t->buf, t->bytes, t->offset);
    if (u->fixed_files)
        io_uring_sqe_set_flags(sqe, IOSQE_FIXED_FILE);
    io_uring_sqe_set_data64(sqe, t->tag);
}

/* The kernel merges neighbours on the drive that enter it in batches of three or more: the drive would not
 * see the block size that was chosen. What is refused here stays queued for the next reap. */
static void enter_in_pairs(struct uring *u)
{
    if (io_uring_sq_ready(&u->ring) >= 2)
        (void)io_uring_submit(&u->ring);
}

static int uring_start(struct hl_method *m, const struct hl_transfer *t)
{
    struct uring *u = (struct uring *)m;
    struct io_uring_sqe *sqe = io_uring_get_sqe(&u->ring);

    if (!sqe)
        return -EAGAIN; /* earlier ones are not taken by the kernel yet; reap submits them */
    fill_sqe(u, sqe, t);
    enter_in_pairs(u);
    return 0;
}

static void arm_wake(struct uring *u)
{
    struct io_uring_sqe *sqe;

    if (u->wake_armed || !(sqe = io_uring_get_sqe(&u->ring)))
        return;
    io_uring_prep_read(sqe, u->wake_fd, &u->wake_count, sizeof u->wake_count, 0);
    io_uring_sqe_set_data64(sqe, WAKE_TAG);
    u->wake_armed = 1;
}

static int submit(struct uring *u, uint64_t wait_ns)
{
    struct __kernel_timespec ts = {.tv_sec = (long long)(wait_ns / 1000000000u),
                                   .tv_nsec = (long long)(wait_ns % 1000000000u)};
    struct io_uring_cqe *cqe;

    if (!wait_ns)
        return u->deferred ? io_uring_submit_and_get_events(&u->ring) : io_uring_submit(&u->ring);
    if (wait_ns == HL_WAIT_FOREVER)
        return io_uring_submit_and_wait(&u->ring, 1);
    return io_uring_submit_and_wait_timeout(&u->ring, &cqe, 1, &ts, NULL);
}

static int collect(struct uring *u, struct hl_done *out, uint32_t max)
{
    struct io_uring_cqe *cqe;
    unsigned head, seen = 0, n = 0;

    io_uring_for_each_cqe(&u->ring, head, cqe)
    {
        if (n == max)
            break;
        seen++;
        if (cqe->user_data == WAKE_TAG)
            u->wake_armed = 0;
        else
            out[n++] = (struct hl_done){cqe->user_data, cqe->res};
    }
    io_uring_cq_advance(&u->ring, seen);
    return (int)n;
}

static void pause_1ms(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

static int uring_reap(struct hl_method *m, struct hl_done *out, uint32_t max, uint64_t wait_ns)
{
    struct uring *u = (struct uring *)m;
    int rc, n;

    if (wait_ns)
        arm_wake(u);
    rc = submit(u, io_uring_cq_ready(&u->ring) ? 0 : wait_ns);
    n = collect(u, out, max);
    if (rc >= 0 || rc == -ETIME || rc == -EINTR || n > 0) {
        u->refusals = 0;
        return n;
    }
    /* The kernel lacks memory, or the completion ring was full: what was not taken stays queued. */
    if ((rc == -EAGAIN || rc == -EBUSY || rc == -ENOMEM) && ++u->refusals < MAX_REFUSALS) {
        pause_1ms();
        return 0;
    }
    return hl_fail(rc, "io_uring_enter: %s", haul_strerror(rc));
}

static void uring_wake(struct hl_method *m)
{
    eventfd_write(((struct uring *)m)->wake_fd, 1);
}

static int uring_flush(struct hl_method *m, uint32_t file)
{
    return hl_sys_fdatasync(((struct uring *)m)->fds[file]);
}

static const char *uring_note(struct hl_method *m, int *fixed)
{
    struct uring *u = (struct uring *)m;

    *fixed = u->nbuffers > 0;
    return u->note;
}

const struct hl_method_ops hl_method_uring = {
    .name = "uring",
    .open = uring_open,
    .close = uring_close,
    .start = uring_start,
    .reap = uring_reap,
    .wake = uring_wake,
    .flush = uring_flush,
    .note = uring_note,
};
