/* sys.c: every fallible call, counted while alive, and in test builds made to fail at will. Each
 * failure leaves a text; a caller that knows more about the purpose says it with hl_fail(). */
#include "sys.h"

#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sched.h>
#include <unistd.h>

#include "fail.h"

static _Atomic int64_t live[HL_SYS_NKINDS];

#ifdef HL_SYS_FAULTS
static struct {
    _Atomic int64_t calls, at;
    atomic_int err, failed;
} fault;
#endif

static void count(enum hl_sys_kind kind, int by)
{
    atomic_fetch_add_explicit(&live[kind], by, memory_order_relaxed);
}

int64_t hl_sys_live(enum hl_sys_kind kind)
{
    return atomic_load_explicit(&live[kind], memory_order_relaxed);
}

int hl_sys_fail_nth(int64_t n, int err)
{
#ifdef HL_SYS_FAULTS
    atomic_store(&fault.at, 0);
    atomic_store(&fault.calls, 0);
    atomic_store(&fault.failed, 0);
    atomic_store(&fault.err, err);
    atomic_store(&fault.at, n);
    return 0;
#else
    (void)n;
    (void)err;
    return -ENOTSUP;
#endif
}

int64_t hl_sys_calls(void)
{
#ifdef HL_SYS_FAULTS
    return atomic_load(&fault.calls);
#else
    return 0;
#endif
}

int hl_sys_failed(void)
{
#ifdef HL_SYS_FAULTS
    return atomic_load(&fault.failed);
#else
    return 0;
#endif
}

int hl_sys_attempt(const char *what)
{
#ifdef HL_SYS_FAULTS
    int64_t call = atomic_fetch_add(&fault.calls, 1) + 1;

    if (call == atomic_load(&fault.at)) {
        int err = atomic_load(&fault.err);

        atomic_store(&fault.failed, 1);
        return hl_fail(-err, "%s: %s (injected)", what, haul_strerror(-err));
    }
#endif
    (void)what;
    return 0;
}

/* -errno, with the text "what: why". */
static int refused(const char *what)
{
    int rc = -errno;

    return hl_fail(rc, "%s: %s", what, haul_strerror(rc));
}

static int no_memory(size_t bytes)
{
    return hl_fail(-ENOMEM, "out of memory: %zu bytes from the heap", bytes);
}

int hl_sys_alloc(size_t bytes, void **out)
{
    int rc = hl_sys_attempt("malloc");
    void *p;

    if (rc < 0)
        return rc;
    p = calloc(1, bytes ? bytes : 1);
    if (!p)
        return no_memory(bytes);
    count(HL_SYS_MEM, 1);
    *out = p;
    return 0;
}

int hl_sys_alloc_array(size_t n, size_t size, void **out)
{
    size_t bytes;

    if (__builtin_mul_overflow(n, size, &bytes))
        return hl_fail(-EOVERFLOW, "an array of %zu elements of %zu bytes is too large", n, size);
    return hl_sys_alloc(bytes, out);
}

int hl_sys_alloc_aligned(size_t align, size_t bytes, void **out)
{
    int rc = hl_sys_attempt("aligned_alloc");
    size_t rounded;
    void *p;

    if (rc < 0)
        return rc;
    if (align < 64)
        align = 64;
    if (__builtin_add_overflow(bytes ? bytes : 1, align - 1, &rounded))
        return hl_fail(-EOVERFLOW, "%zu bytes are too many for the heap", bytes);
    rounded &= ~(align - 1);
    p = aligned_alloc(align, rounded);
    if (!p)
        return no_memory(bytes);
    memset(p, 0, rounded);
    count(HL_SYS_MEM, 1);
    *out = p;
    return 0;
}

void hl_sys_free(void *p)
{
    if (!p)
        return;
    free(p);
    count(HL_SYS_MEM, -1);
}

int hl_sys_strdup(const char *s, char **out)
{
    size_t n = strlen(s) + 1;
    void *p = NULL;
    int rc = hl_sys_alloc(n, &p);

    if (rc < 0)
        return rc;
    *out = memcpy(p, s, n);
    return 0;
}

int hl_sys_map(void *addr, size_t bytes, int prot, int flags, int fd, off_t off, void **out)
{
    int rc = hl_sys_attempt("mmap");
    void *p;

    if (rc < 0)
        return rc;
    p = mmap(addr, bytes, prot, flags, fd, off);
    if (p == MAP_FAILED) {
        rc = -errno;
        return hl_fail(rc, "mmap of %zu bytes: %s", bytes, haul_strerror(rc));
    }
    count(HL_SYS_MAP, 1);
    *out = p;
    return 0;
}

void hl_sys_unmap(void *p, size_t bytes)
{
    munmap(p, bytes);
    count(HL_SYS_MAP, -1);
}

int hl_sys_madvise(void *p, size_t bytes, int advice)
{
    int rc = hl_sys_attempt("madvise");

    if (rc < 0)
        return rc;
    return madvise(p, bytes, advice) < 0 ? refused("madvise") : 0;
}

int hl_sys_mlock(const void *p, size_t bytes)
{
    int rc = hl_sys_attempt("mlock");

    if (rc < 0)
        return rc;
    return mlock(p, bytes) < 0 ? refused("mlock") : 0;
}

int hl_sys_rlimit(int resource, uint64_t *soft)
{
    int rc = hl_sys_attempt("getrlimit");
    struct rlimit lim;

    if (rc < 0)
        return rc;
    if (getrlimit((__rlimit_resource_t)resource, &lim) < 0)
        return refused("getrlimit");
    *soft = lim.rlim_cur == RLIM_INFINITY ? UINT64_MAX : lim.rlim_cur;
    return 0;
}

int hl_sys_open(int dirfd, const char *path, int flags, mode_t mode)
{
    int rc = hl_sys_attempt("open"), fd;

    if (rc < 0)
        return rc;
    do
        fd = openat(dirfd, path, flags | O_CLOEXEC, mode);
    while (fd < 0 && errno == EINTR);
    if (fd < 0) {
        rc = -errno;
        return hl_fail(rc, "open %s: %s", path, haul_strerror(rc));
    }
    count(HL_SYS_FD, 1);
    return fd;
}

int hl_sys_memfd(const char *name, unsigned flags)
{
    int rc = hl_sys_attempt("memfd_create"), fd;

    if (rc < 0)
        return rc;
    fd = memfd_create(name, flags | MFD_CLOEXEC);
    if (fd < 0)
        return refused("memfd_create");
    count(HL_SYS_FD, 1);
    return fd;
}

int hl_sys_eventfd(unsigned value, int flags)
{
    int rc = hl_sys_attempt("eventfd"), fd;

    if (rc < 0)
        return rc;
    fd = eventfd(value, flags | EFD_CLOEXEC);
    if (fd < 0)
        return refused("eventfd");
    count(HL_SYS_FD, 1);
    return fd;
}

void hl_sys_close(int fd)
{
    if (fd < 0)
        return;
    close(fd);
    count(HL_SYS_FD, -1);
}

int hl_sys_fstat(int fd, struct stat *out)
{
    int rc = hl_sys_attempt("fstat");

    if (rc < 0)
        return rc;
    return fstat(fd, out) < 0 ? refused("fstat") : 0;
}

int hl_sys_ftruncate(int fd, off_t bytes)
{
    int rc = hl_sys_attempt("ftruncate");

    if (rc < 0)
        return rc;
    while (ftruncate(fd, bytes) < 0)
        if (errno != EINTR)
            return refused("ftruncate");
    return 0;
}

ssize_t hl_sys_read(int fd, void *buf, size_t n)
{
    int rc = hl_sys_attempt("read");
    ssize_t got;

    if (rc < 0)
        return rc;
    do
        got = read(fd, buf, n);
    while (got < 0 && errno == EINTR);
    return got < 0 ? refused("read") : got;
}

int hl_sys_pread_all(int fd, void *buf, size_t n, off_t off)
{
    int rc = hl_sys_attempt("pread");
    size_t done = 0;

    if (rc < 0)
        return rc;
    while (done < n) {
        ssize_t got = pread(fd, (char *)buf + done, n - done, off + (off_t)done);

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return refused("pread");
        if (got == 0)
            return hl_fail(-EIO, "pread: end of file after %zu of %zu bytes", done, n);
        done += (size_t)got;
    }
    return 0;
}

int hl_sys_pwrite_all(int fd, const void *buf, size_t n, off_t off)
{
    int rc = hl_sys_attempt("pwrite");
    size_t done = 0;

    if (rc < 0)
        return rc;
    while (done < n) {
        ssize_t put = pwrite(fd, (const char *)buf + done, n - done, off + (off_t)done);

        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return refused("pwrite");
        if (put == 0)
            return hl_fail(-EIO, "pwrite: nothing written after %zu of %zu bytes", done, n);
        done += (size_t)put;
    }
    return 0;
}

/* Reads fd to its end and closes it. */
static int read_text(int fd, const char *path, char *buf, size_t len)
{
    size_t n = 0;
    ssize_t got = 0;

    while (n < len) {
        got = hl_sys_read(fd, buf + n, len - n);
        if (got <= 0)
            break;
        n += (size_t)got;
    }
    hl_sys_close(fd);
    if (got < 0)
        return (int)got;
    if (n == len)
        return hl_fail(-EFBIG, "%s is larger than the %zu bytes expected", path, len - 1);
    buf[n] = '\0';
    return (int)n;
}

int hl_sys_read_text(const char *path, char *buf, size_t len)
{
    int fd = hl_sys_open(AT_FDCWD, path, O_RDONLY, 0);

    return fd < 0 ? fd : read_text(fd, path, buf, len);
}

static int is_absent(int err)
{
    return err == ENOENT || err == ENOTDIR || err == EACCES || err == EPERM;
}

int hl_sys_probe_text(const char *path, char *buf, size_t len)
{
    int rc = hl_sys_attempt("open"), fd;

    if (rc < 0)
        return rc;
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 && is_absent(errno) && len) {
        *buf = '\0';
        return 0;
    }
    if (fd < 0) {
        rc = -errno;
        return hl_fail(rc, "open %s: %s", path, haul_strerror(rc));
    }
    count(HL_SYS_FD, 1);
    return read_text(fd, path, buf, len);
}

int hl_sys_thread(const char *name, void *(*fn)(void *), void *arg, pthread_t *out)
{
    int rc = hl_sys_attempt("pthread_create");
    sigset_t all, before;
    pthread_t thread;

    if (rc < 0)
        return rc;
    /* A thread inherits its maker's mask: signals stay the trainer's business. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    rc = -pthread_create(&thread, NULL, fn, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc < 0)
        return hl_fail(rc, "cannot start thread %s: %s", name, haul_strerror(rc));
    pthread_setname_np(thread, name);
    count(HL_SYS_THREAD, 1);
    *out = thread;
    return 0;
}

void hl_sys_join(pthread_t thread)
{
    pthread_join(thread, NULL);
    count(HL_SYS_THREAD, -1);
}

int hl_sys_bind_thread(int pu)
{
    int rc = hl_sys_attempt("sched_setaffinity");
    cpu_set_t *set;
    size_t bytes;

    if (rc < 0)
        return rc;
    if (pu < 0)
        return hl_fail(-EINVAL, "cannot bind a thread to processor %d", pu);
    set = CPU_ALLOC((size_t)pu + 1);
    if (!set)
        return no_memory(CPU_ALLOC_SIZE((size_t)pu + 1));
    bytes = CPU_ALLOC_SIZE((size_t)pu + 1);
    CPU_ZERO_S(bytes, set);
    CPU_SET_S((size_t)pu, bytes, set);
    rc = sched_setaffinity(0, bytes, set) < 0 ? -errno : 0;
    CPU_FREE(set);
    if (rc < 0)
        return hl_fail(rc, "bind the thread to processor %d: %s", pu, haul_strerror(rc));
    return 0;
}
