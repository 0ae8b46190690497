/*
 * nccl_ranks.h: ranks over fakes of the driver and of NCCL, a process each, forked before anything is
 * opened in it. A rank has no runner: what must be true is a MUST.
 */
#ifndef HAUL_TESTS_NCCL_RANKS_H
#define HAUL_TESTS_NCCL_RANKS_H

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm.h"
#include "cuda_context.h"
#include "fake_nccl/fake_nccl.h"
#include "haul/nccl.h"
#include "nccl_lib.h"
#include "shared_comm.h"
#include "test_cuda_fixture.h"

#ifndef FAKE_NCCL_LIB
#define FAKE_NCCL_LIB "libnccl.so.2"
#endif

static struct {
    fake_nccl_break_fn *broken;
    fake_nccl_version_fn *version;
    fake_nccl_fail_nth_fn *fail_nth;
    fake_nccl_failed_fn *failed;
    fake_nccl_live_fn *live;
    fake_nccl_violations_fn *violations;
} nccl;

/* Of one rank, in its process. */
struct rank {
    int rank, nranks;
    struct haul_device *dev;
    struct haul_comm *over, *comm;
    void *stream;
    double timeout_s;
    struct shared_world *world;
};

static const char *rank_name = "";

/* In a rank's process there is nobody to tell but stderr. */
#define MUST(cond)                                                                                 \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            fprintf(stderr, "%s, %s:%d: %s (last error: %s)\n", rank_name, __FILE__, __LINE__,     \
                    #cond, haul_last_error());                                                     \
            _exit(1);                                                                              \
        }                                                                                          \
    } while (0)

/* _exit() looks for no leaks: under the address sanitizer it is asked to. */
extern int __lsan_do_recoverable_leak_check(void) __attribute__((weak));

static inline void load_nccl(void)
{
    void *lib;

    MUST(dlopen(FAKE_CUDA_LIB, RTLD_NOW | RTLD_GLOBAL));
    MUST((lib = dlopen(FAKE_NCCL_LIB, RTLD_NOW | RTLD_LOCAL)));
    MUST((*(void **)&nccl.broken = dlsym(lib, "fake_nccl_break")));
    MUST((*(void **)&nccl.version = dlsym(lib, "fake_nccl_version")));
    MUST((*(void **)&nccl.fail_nth = dlsym(lib, "fake_nccl_fail_nth")));
    MUST((*(void **)&nccl.failed = dlsym(lib, "fake_nccl_failed")));
    MUST((*(void **)&nccl.live = dlsym(lib, "fake_nccl_live")));
    MUST((*(void **)&nccl.violations = dlsym(lib, "fake_nccl_violations")));
}

static inline void open_device(struct rank *r)
{
    struct haul_device_cuda_opts opts;
    struct fake_cuda_config config = {.ndevices = 4,
                                      .major = 9,
                                      .mem_bytes = 256 * MIB,
                                      .pin_bytes = UINT64_MAX,
                                      .pin_at_once = UINT64_MAX,
                                      .seed = (uint64_t)r->rank + 3,
                                      .delay_us = 200};

    fake_load();
    load_nccl();
    fake.configure(&config);
    haul_device_cuda_opts_init(&opts);
    opts.ordinal = r->rank;
    MUST(haul_device_cuda_open(&opts, &r->dev) == 0);
    MUST(haul_device_stream_open(r->dev, &r->stream) == 0);
    r->over = shared_comm_open(r->world, (uint32_t)r->rank, r->dev,
                               r->timeout_s < 20 ? r->timeout_s + 1 : 20);
}

static inline void close_device(struct rank *r)
{
    haul_device_stream_close(r->dev, r->stream);
    haul_comm_close(r->over);
    MUST(haul_device_close(r->dev) == 0);
    MUST(fake.live() == 0 && fake.violations() == 0);
    MUST(nccl.live() == 0);
    MUST(nccl.violations() == 0);
}

static inline struct haul_comm_nccl_opts over_opts(const struct rank *r)
{
    struct haul_comm_nccl_opts opts;

    haul_comm_nccl_opts_init(&opts);
    opts.over = r->over;
    opts.timeout_s = r->timeout_s;
    return opts;
}

static inline void open_comm(struct rank *r)
{
    struct haul_comm_nccl_opts opts = over_opts(r);

    MUST(haul_comm_nccl_open(&opts, r->dev, &r->comm) == 0);
}

/* What a case lets each rank do; the process ends with 0 when it comes back. */
static inline void rank_main(int rank, int nranks, struct shared_world *world, double timeout_s,
                             void (*fn)(struct rank *r))
{
    char name[32];
    struct rank r = {.rank = rank, .nranks = nranks, .timeout_s = timeout_s, .world = world};

    snprintf(name, sizeof name, "rank %d of %d", rank, nranks);
    rank_name = name;
    setenv("HWLOC_PLUGINS_PATH", "/nowhere", 1); /* what hwloc's plugins leave is not haul's */
    alarm(100);
    open_device(&r);
    fn(&r);
    close_device(&r);
    _exit(__lsan_do_recoverable_leak_check && __lsan_do_recoverable_leak_check() ? 23 : 0);
}

/* victim: the rank that is to be killed; -1: none. */
static inline void run_ranks_but(int victim, int nranks, double timeout_s,
                                 void (*fn)(struct rank *r))
{
    struct shared_world *world = shared_world_open((uint32_t)nranks);
    pid_t pid[8];

    fflush(NULL);
    for (int i = 0; i < nranks; i++) {
        pid[i] = fork();
        cr_assert_neq(pid[i], -1);
        if (pid[i] == 0)
            rank_main(i, nranks, world, timeout_s, fn);
    }
    for (int i = 0; i < nranks; i++) {
        int status = 0;

        cr_assert_eq(waitpid(pid[i], &status, 0), pid[i]);
        cr_assert_eq(status, i == victim ? SIGKILL : 0, "rank %d of %d: status %x", i, nranks,
                     (unsigned)status);
    }
    shared_world_close(world);
}

static inline void run_ranks(int nranks, double timeout_s, void (*fn)(struct rank *r))
{
    run_ranks_but(-1, nranks, timeout_s, fn);
}

static inline void *memory(struct rank *r, uint64_t bytes)
{
    void *p = NULL;

    MUST(haul_device_alloc(r->dev, bytes ? bytes : 1, &p) == 0);
    return p;
}

#endif
