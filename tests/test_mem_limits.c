/* The pinned pool under limits of the system, in children: a refusal with its remedy, never a signal. */
#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "mem_case.h"
#include "suite.h"

struct child_result {
    int rc;
    char text[1024];
};

/* Opens a pool in a child that prepare() has put under some limit; its text comes through a pipe. */
static struct child_result open_in_child(const struct haul_pool_opts *opts, int (*prepare)(void *),
                                         void *arg)
{
    struct child_result result = {.rc = -EIO};
    int pipe_fd[2], status;
    pid_t pid;

    cr_assert_eq(pipe(pipe_fd), 0);
    fflush(NULL);
    pid = fork();
    if (pid == 0) {
        struct haul_pool *pool = NULL;

        if (prepare(arg) < 0)
            _exit(2);
        result.rc = haul_pool_open(opts, &pool);
        snprintf(result.text, sizeof result.text, "%s", haul_last_error());
        _exit(write(pipe_fd[1], &result, sizeof result) != sizeof result);
    }
    cr_assert_gt(pid, 0);
    close(pipe_fd[1]);
    if (read(pipe_fd[0], &result, sizeof result) != sizeof result)
        result.rc = -EIO;
    close(pipe_fd[0]);
    waitpid(pid, &status, 0);
    if (WIFSIGNALED(status))
        result.rc = -EINTR;
    else if (WEXITSTATUS(status) == 2)
        result.rc = -ENOTSUP;
    return result;
}

static int as_ordinary_user(void *arg)
{
    struct rlimit lim = {.rlim_cur = 65536, .rlim_max = 65536};

    (void)arg;
    if (setrlimit(RLIMIT_MEMLOCK, &lim) < 0)
        return -1;
    return geteuid() == 0 ? setuid(65534) : 0;
}

/* With lock, as an ordinary user who may lock 64 KiB. */
static struct child_result open_locked(uint64_t bytes)
{
    struct haul_pool_segment seg = {.bytes = bytes};
    struct haul_pool_opts opts = opts_for(&seg, 1);

    opts.lock = 1;
    opts.touch_threads = 1;
    return open_in_child(&opts, as_ordinary_user, NULL);
}

Test(mem_limits, a_refused_lock_names_needed_and_allowed_bytes_and_the_remedies)
{
    struct child_result r;

    if (UNDER_SANITIZER)
        SKIP("a real mlock: the sanitizers make it do nothing");
    r = open_locked(100 * PAGE);
    if (r.rc == -ENOTSUP)
        SKIP("the right to lower a limit and become an ordinary user");
    cr_assert_eq(r.rc, -ENOMEM, "%d %s", r.rc, r.text);
    cr_assert_not_null(strstr(r.text, "409600"), "%s", r.text);
    cr_assert_not_null(strstr(r.text, "65536"), "%s", r.text);
    cr_assert_not_null(strstr(r.text, "ulimit -l"), "%s", r.text);
    cr_assert_not_null(strstr(r.text, "--ulimit memlock=-1"), "%s", r.text);
}

Test(mem_limits, a_lock_within_the_limit_is_granted)
{
    struct child_result r;

    if (UNDER_SANITIZER)
        SKIP("a real mlock: the sanitizers make it do nothing");
    r = open_locked(8 * PAGE);
    if (r.rc == -ENOTSUP)
        SKIP("the right to lower a limit and become an ordinary user");
    cr_assert_eq(r.rc, 0, "%s", r.text);
}

#define V1_GROUP "/sys/fs/cgroup/memory/haul-test-pool"

static int write_file(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY);
    ssize_t n = -1;

    if (fd >= 0) {
        n = write(fd, text, strlen(text));
        close(fd);
    }
    return n < 0 ? -1 : 0;
}

/* The child moves into a cgroup capped at 64 MiB, at the top of the hierarchy. */
static int under_a_cap(void *arg)
{
    char pid[16];

    (void)arg;
    snprintf(pid, sizeof pid, "%d", (int)getpid());
    return write_file(V1_GROUP "/cgroup.procs", pid);
}

Test(mem_limits, past_a_cgroup_cap_open_is_refused_instead_of_the_process_killed)
{
    struct haul_pool_segment seg = {.bytes = 256u << 20};
    struct haul_pool_opts opts = opts_for(&seg, 1);
    struct child_result past, within;

    if (mkdir(V1_GROUP, 0755) < 0 && errno != EEXIST)
        SKIP("a writable v1 memory cgroup");
    if (write_file(V1_GROUP "/memory.limit_in_bytes", "67108864") < 0) {
        rmdir(V1_GROUP);
        SKIP("a v1 memory cgroup that takes a limit");
    }
    opts.touch_threads = 1;
    opts.pages = HAUL_PAGES_THP; /* hugetlb pages, where some are reserved, are not the cgroup's */
    past = open_in_child(&opts, under_a_cap, NULL);
    seg.bytes = 32u << 20;
    within = open_in_child(&opts, under_a_cap, NULL);
    rmdir(V1_GROUP);
    if (past.rc == -ENOTSUP)
        SKIP("the right to enter a cgroup");
    cr_assert_eq(past.rc, -ENOMEM, "%d %s", past.rc, past.text);
    cr_assert_not_null(strstr(past.text, "cgroup"), "%s", past.text);
    cr_assert_eq(within.rc, 0, "%d %s", within.rc, within.text);
}
