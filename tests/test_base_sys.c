/* System calls: what is alive is counted, every wrapper can be made to fail, results are whole. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "fail.h"
#include "recorded_tree.h"
#include "suite.h"
#include "sys.h"
#include "topo.h"

static void *nothing(void *arg)
{
    return arg;
}

Test(base_sys, heap_memory_is_zeroed_aligned_and_counted)
{
    int64_t before = hl_sys_live(HL_SYS_MEM);
    unsigned char *a, *b, *c;
    void *p = NULL, *q = NULL, *r = NULL, *none = NULL;
    char *s = NULL;

    cr_assert_eq(hl_sys_alloc(1000, &p), 0);
    cr_assert_eq(hl_sys_alloc_array(10, 100, &q), 0);
    cr_assert_eq(hl_sys_alloc_aligned(4096, 1001, &r), 0);
    cr_assert_eq(hl_sys_alloc(0, &none), 0);
    cr_assert_not_null(none);
    cr_assert_eq(hl_sys_strdup("layer.0", &s), 0);
    cr_assert_str_eq(s, "layer.0");
    cr_assert_eq((uintptr_t)r % 4096, 0);
    a = p;
    b = q;
    c = r;
    for (int i = 0; i < 1000; i++)
        cr_assert_eq(a[i] | b[i] | c[i], 0);
    cr_assert_eq(hl_sys_live(HL_SYS_MEM), before + 5);
    hl_sys_free(p);
    hl_sys_free(q);
    hl_sys_free(r);
    hl_sys_free(none);
    hl_sys_free(s);
    hl_sys_free(NULL);
    cr_assert_eq(hl_sys_live(HL_SYS_MEM), before);
}

Test(base_sys, an_array_too_large_is_an_overflow)
{
    void *p = NULL;

    cr_assert_eq(hl_sys_alloc_array(SIZE_MAX / 2, 3, &p), -EOVERFLOW);
    cr_assert_eq(hl_sys_alloc_aligned(64, SIZE_MAX - 10, &p), -EOVERFLOW);
    cr_assert_null(p);
    cr_assert_not_null(strstr(haul_last_error(), "too many"), "%s", haul_last_error());
}

Test(base_sys, mappings_descriptors_and_threads_are_counted)
{
    int64_t maps = hl_sys_live(HL_SYS_MAP), fds = hl_sys_live(HL_SYS_FD);
    int64_t threads = hl_sys_live(HL_SYS_THREAD);
    pthread_t thread;
    void *p = NULL;
    int memfd, event;

    cr_assert_eq(hl_sys_map(NULL, 8192, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0, &p), 0);
    memfd = hl_sys_memfd("test", 0);
    event = hl_sys_eventfd(3, 0);
    cr_assert_geq(memfd, 0);
    cr_assert_geq(event, 0);
    cr_assert(fcntl(memfd, F_GETFD) & FD_CLOEXEC);
    cr_assert(fcntl(event, F_GETFD) & FD_CLOEXEC);
    cr_assert_eq(hl_sys_thread("counted", nothing, NULL, &thread), 0);
    cr_assert_eq(hl_sys_live(HL_SYS_MAP), maps + 1);
    cr_assert_eq(hl_sys_live(HL_SYS_FD), fds + 2);
    cr_assert_eq(hl_sys_live(HL_SYS_THREAD), threads + 1);
    hl_sys_join(thread);
    hl_sys_close(memfd);
    hl_sys_close(event);
    hl_sys_close(-1);
    hl_sys_unmap(p, 8192);
    cr_assert_eq(hl_sys_live(HL_SYS_MAP), maps);
    cr_assert_eq(hl_sys_live(HL_SYS_FD), fds);
    cr_assert_eq(hl_sys_live(HL_SYS_THREAD), threads);
}

Test(base_sys, a_failure_names_call_object_and_reason)
{
    void *p = NULL;
    char text[128];
    int rc;

    cr_assert_eq(hl_sys_open(AT_FDCWD, "/nowhere/at/all", O_RDONLY, 0), -ENOENT);
    cr_assert_str_eq(haul_last_error(), "open /nowhere/at/all: No such file or directory");
    rc = hl_sys_map(NULL, (size_t)1 << 62, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0, &p);
    cr_assert(rc == -ENOMEM || under_valgrind(), "%d", rc);
    cr_assert_null(p);
    snprintf(text, sizeof text, "mmap of 4611686018427387904 bytes: %s", haul_strerror(rc));
    cr_assert_str_eq(haul_last_error(), text);
    cr_assert_eq(hl_sys_ftruncate(-1, 0), -EBADF);
    cr_assert_eq(hl_sys_madvise((void *)4096, 4096, -1), -EINVAL);
    cr_assert_eq(hl_sys_bind_thread(-1), -EINVAL);
}

Test(base_sys, whole_reads_and_writes_say_where_a_file_ends)
{
    int fd = hl_sys_memfd("whole", 0);
    char buf[100];
    struct stat st;

    cr_assert_geq(fd, 0);
    cr_assert_eq(hl_sys_pwrite_all(fd, "0123456789", 10, 5), 0);
    cr_assert_eq(hl_sys_fstat(fd, &st), 0);
    cr_assert_eq(st.st_size, 15);
    cr_assert_eq(hl_sys_pread_all(fd, buf, 10, 5), 0);
    cr_assert_eq(memcmp(buf, "0123456789", 10), 0);
    cr_assert_eq(hl_sys_pread_all(fd, buf, 11, 5), -EIO);
    cr_assert_str_eq(haul_last_error(), "pread: end of file after 10 of 11 bytes");
    cr_assert_eq(hl_sys_ftruncate(fd, 7), 0);
    cr_assert_eq(hl_sys_read(fd, buf, 100), 7);
    cr_assert_eq(hl_sys_read(fd, buf, 100), 0);
    hl_sys_close(fd);
}

Test(base_sys, small_texts_are_read_whole_or_refused)
{
    struct tree t = tree_make();
    char buf[8];

    tree_write(&t, "seven", "1234567");
    tree_write(&t, "eight", "12345678");
    tree_write(&t, "none", "");
    cr_assert_eq(hl_sys_read_text(tree_path(&t, "seven"), buf, sizeof buf), 7);
    cr_assert_str_eq(buf, "1234567");
    cr_assert_eq(hl_sys_read_text(tree_path(&t, "eight"), buf, sizeof buf), -EFBIG);
    cr_assert_eq(hl_sys_read_text(tree_path(&t, "none"), buf, sizeof buf), 0);
    cr_assert_str_eq(buf, "");
    cr_assert_eq(hl_sys_read_text(tree_path(&t, "absent"), buf, sizeof buf), -ENOENT);
    hl_fail(-EIO, "before");
    buf[0] = 'x';
    cr_assert_eq(hl_sys_probe_text(tree_path(&t, "absent"), buf, sizeof buf), 0);
    cr_assert_str_eq(buf, "");
    cr_assert_eq(hl_sys_probe_text(tree_path(&t, "seven/below"), buf, sizeof buf), 0);
    cr_assert_str_eq(haul_last_error(), "before", "a probe leaves no text");
    cr_assert_eq(hl_sys_probe_text(tree_path(&t, "eight"), buf, sizeof buf), -EFBIG);
    tree_remove(&t);
}

Test(base_sys, limits_are_read)
{
    struct rlimit lim;
    uint64_t soft = 0;

    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &lim), 0);
    cr_assert_eq(hl_sys_rlimit(RLIMIT_NOFILE, &soft), 0);
    cr_assert_eq(soft, lim.rlim_cur);
    cr_assert_eq(hl_sys_rlimit(9999, &soft), -EINVAL);
}

/* Each calls one wrapper in a way that succeeds and undoes it. Returns its result. */
static int try_alloc(void)
{
    void *p = NULL;
    int rc = hl_sys_alloc(8, &p);

    hl_sys_free(p);
    return rc;
}

static int try_alloc_array(void)
{
    void *p = NULL;
    int rc = hl_sys_alloc_array(8, 8, &p);

    hl_sys_free(p);
    return rc;
}

static int try_alloc_aligned(void)
{
    void *p = NULL;
    int rc = hl_sys_alloc_aligned(64, 8, &p);

    hl_sys_free(p);
    return rc;
}

static int try_strdup(void)
{
    char *p = NULL;
    int rc = hl_sys_strdup("x", &p);

    hl_sys_free(p);
    return rc;
}

static int try_map(void)
{
    void *p = NULL;
    int rc = hl_sys_map(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0, &p);

    if (rc == 0)
        hl_sys_unmap(p, 4096);
    return rc;
}

static int closed(int fd)
{
    if (fd < 0)
        return fd;
    hl_sys_close(fd);
    return 0;
}

static int try_open(void)
{
    return closed(hl_sys_open(AT_FDCWD, "/dev/null", O_RDWR, 0));
}

static int try_memfd(void)
{
    return closed(hl_sys_memfd("x", 0));
}

static int try_eventfd(void)
{
    return closed(hl_sys_eventfd(0, 0));
}

static int try_thread(void)
{
    pthread_t thread;
    int rc = hl_sys_thread("x", nothing, NULL, &thread);

    if (rc == 0)
        hl_sys_join(thread);
    return rc;
}

static int try_attempt(void)
{
    return hl_sys_attempt("hwloc");
}

static int try_rlimit(void)
{
    uint64_t soft;

    return hl_sys_rlimit(RLIMIT_AS, &soft);
}

static int try_madvise(void)
{
    return hl_sys_madvise((void *)0, 0, MADV_NORMAL);
}

static int try_mlock(void)
{
    return hl_sys_mlock((void *)0, 0);
}

static int null_fd(void)
{
    static int fd = -1;

    if (fd < 0)
        fd = open("/dev/zero", O_RDWR);
    return fd;
}

static int try_fstat(void)
{
    struct stat st;

    return hl_sys_fstat(null_fd(), &st);
}

static int try_read(void)
{
    char c;
    ssize_t got = hl_sys_read(null_fd(), &c, 1);

    return got == 1 ? 0 : (int)got;
}

static int try_pread(void)
{
    char c;

    return hl_sys_pread_all(null_fd(), &c, 1, 0);
}

static int try_pwrite(void)
{
    return hl_sys_pwrite_all(null_fd(), "x", 1, 0);
}

static int try_ftruncate(void)
{
    static int fd = -1;

    if (fd < 0)
        fd = memfd_create("x", 0);
    return hl_sys_ftruncate(fd, 1);
}

static int try_read_text(void)
{
    char buf[64];
    int rc = hl_sys_read_text("/proc/self/comm", buf, sizeof buf);

    return rc > 0 ? 0 : rc;
}

static int try_probe_text(void)
{
    char buf[64];
    int rc = hl_sys_probe_text("/proc/self/comm", buf, sizeof buf);

    return rc > 0 ? 0 : rc;
}

static int try_bind_thread(void)
{
    return hl_sys_bind_thread(sched_getcpu());
}

Test(base_sys, every_call_can_be_made_to_fail)
{
    static const struct {
        const char *name;
        int (*call)(void);
    } calls[] = {
        {"alloc", try_alloc},
        {"alloc_array", try_alloc_array},
        {"strdup", try_strdup},
        {"alloc_aligned", try_alloc_aligned},
        {"map", try_map},
        {"open", try_open},
        {"memfd", try_memfd},
        {"eventfd", try_eventfd},
        {"thread", try_thread},
        {"attempt", try_attempt},
        {"rlimit", try_rlimit},
        {"madvise", try_madvise},
        {"mlock", try_mlock},
        {"fstat", try_fstat},
        {"pread_all", try_pread},
        {"pwrite_all", try_pwrite},
        {"ftruncate", try_ftruncate},
        {"read_text", try_read_text},
        {"read", try_read},
        {"probe_text", try_probe_text},
        {"bind", try_bind_thread},
    };

    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        int64_t live = hl_sys_live(HL_SYS_MEM) + hl_sys_live(HL_SYS_MAP) + hl_sys_live(HL_SYS_FD) +
                       hl_sys_live(HL_SYS_THREAD);
        int rc;

        hl_sys_fail_nth(0, 0);
        cr_assert_eq(calls[i].call(), 0, "%s: %s", calls[i].name, haul_last_error());
        cr_assert_geq(hl_sys_calls(), 1, "%s is not counted", calls[i].name);
        hl_sys_fail_nth(1, EDOM); /* no call here gives EDOM by itself */
        rc = calls[i].call();
        cr_assert_eq(rc, -EDOM, "%s: %d", calls[i].name, rc);
        cr_assert(hl_sys_failed());
        cr_assert_not_null(strstr(haul_last_error(), "injected"), "%s", haul_last_error());
        cr_assert_eq(hl_sys_live(HL_SYS_MEM) + hl_sys_live(HL_SYS_MAP) + hl_sys_live(HL_SYS_FD) +
                         hl_sys_live(HL_SYS_THREAD),
                     live, "%s", calls[i].name);
    }
    hl_sys_fail_nth(0, 0);
}

Test(base_sys, the_nth_call_fails_and_only_it)
{
    cr_assert_eq(hl_sys_fail_nth(3, EIO), 0);
    cr_assert_eq(try_alloc(), 0);
    cr_assert_eq(try_open(), 0);
    cr_assert(!hl_sys_failed());
    cr_assert_eq(try_alloc(), -EIO);
    cr_assert(hl_sys_failed());
    cr_assert_eq(try_alloc(), 0);
    cr_assert_eq(hl_sys_calls(), 4);
    hl_sys_fail_nth(0, 0);
}

static void *count_failures(void *arg)
{
    (void)arg;
    intptr_t n = 0;

    for (int i = 0; i < 1000; i++)
        n += hl_sys_attempt("race") < 0;
    return (void *)n;
}

Test(base_sys, one_failure_is_delivered_among_racing_threads)
{
    pthread_t threads[4];
    intptr_t total = 0;

    hl_sys_fail_nth(1777, EIO);
    for (int i = 0; i < 4; i++)
        cr_assert_eq(pthread_create(&threads[i], NULL, count_failures, NULL), 0);
    for (int i = 0; i < 4; i++) {
        void *n;

        pthread_join(threads[i], &n);
        total += (intptr_t)n;
    }
    cr_assert_eq(total, 1);
    cr_assert_eq(hl_sys_calls(), 4000);
    hl_sys_fail_nth(0, 0);
}

static void *bound(void *arg)
{
    int pu = *(int *)arg;
    cpu_set_t set;

    *(int *)arg = -1;
    if (hl_topo_bind_thread(pu) == 0 && sched_getaffinity(0, sizeof set, &set) == 0 &&
        CPU_COUNT(&set) == 1 && CPU_ISSET(pu, &set))
        *(int *)arg = sched_getcpu();
    return NULL;
}

Test(base_sys, a_bound_thread_runs_on_its_processor)
{
    cpu_set_t set;
    pthread_t thread;
    int want = 0, pu;

    cr_assert_eq(sched_getaffinity(0, sizeof set, &set), 0);
    for (int i = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, &set))
            want = i;
    pu = want;
    cr_assert_eq(hl_sys_thread("bound", bound, &pu, &thread), 0);
    hl_sys_join(thread);
    cr_assert_eq(pu, want);
}
