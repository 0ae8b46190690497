/*
 * test_cuda_fixture.h: the CUDA back end over the fake driver, which is loaded by its path first.
 *
 * With HAUL_TEST_GPU in the environment it is over whatever libcuda.so.1 the machine has: cases that only a
 * fake can serve are skipped then, and all of them, by name, where there is no driver or no GPU.
 */
#ifndef HAUL_TESTS_CUDA_FIXTURE_H
#define HAUL_TESTS_CUDA_FIXTURE_H

#include <dlfcn.h>

#include "fake_cuda/fake_cuda.h"
#include "haul/device_cuda.h"
#include "test_device_fixture.h"

/* The fake driver; the build gives its path. */
#ifndef FAKE_CUDA_LIB
#define FAKE_CUDA_LIB "libcuda.so.1"
#endif

/* Of cuda.h, which suites do without. */
enum {
    CUDA_INVALID = 1,
    CUDA_NO_MEMORY = 2,
    CUDA_NO_DEVICE = 100,
    CUDA_ILLEGAL = 700,
    CUDA_UNKNOWN = 999
};

static struct {
    fake_cuda_configure_fn *configure;
    fake_cuda_fail_nth_fn *fail_nth;
    fake_cuda_calls_fn *calls;
    fake_cuda_failed_fn *failed;
    fake_cuda_lose_nth_fn *lose_nth;
    fake_cuda_revive_fn *revive;
    fake_cuda_live_fn *live, *violations;
} fake;

static inline int on_gpu(void)
{
    return getenv("HAUL_TEST_GPU") != NULL;
}

/* Where sizes may be a GPU's and times mean something: not with the fake in a GPU's place. */
static inline int on_true_gpu(void)
{
    void *lib = on_gpu() ? dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL) : NULL;

    return lib && !dlsym(lib, "fake_cuda_live");
}

/* The case needs what only the fake does. */
static inline void fake_only(const char *what)
{
    if (on_gpu())
        SKIP("the fake driver: %s", what);
}

/* Load the fake once, and set it back to its defaults. */
static inline void fake_load(void)
{
    void *lib;

    fake_only("it is steered here");
    lib = dlopen(FAKE_CUDA_LIB, RTLD_NOW | RTLD_LOCAL);
    cr_assert_not_null(lib, "%s", dlerror());
#define FIND(name) *(void **)&fake.name = dlsym(lib, "fake_cuda_" #name)
    FIND(configure);
    FIND(fail_nth);
    FIND(calls);
    FIND(failed);
    FIND(lose_nth);
    FIND(revive);
    FIND(live);
    FIND(violations);
#undef FIND
    fake.configure(NULL);
}

/* The driver under test is there from now on. */
static inline void driver_load(void)
{
    struct haul_device *dev = NULL;
    int rc;

    if (!on_gpu()) {
        fake_load();
        return;
    }
    rc = haul_device_cuda_open(NULL, &dev);
    if (rc == HAUL_E_DEVICE &&
        (strstr(haul_last_error(), "no CUDA driver") || strstr(haul_last_error(), "shows no GPU")))
        SKIP("a GPU: %s", haul_last_error());
    cr_assert_eq(rc, 0, "%s", haul_last_error());
    cr_assert_eq(haul_device_close(dev), 0);
}

/* How many seeds of delays: HAUL_FAKE_SEEDS of them where it is set. */
static inline unsigned fake_seeds(unsigned otherwise)
{
    const char *text = getenv("HAUL_FAKE_SEEDS");

    return text ? (unsigned)atoi(text) : otherwise;
}

/* Nothing alive, nothing wrong; a true driver does not tell. */
static inline void fake_is_clean(const char *where)
{
    if (on_gpu())
        return;
    cr_assert_eq(fake.live(), 0, "%s: %lld objects alive", where, (long long)fake.live());
    cr_assert_eq(fake.violations(), 0, "%s: %lld wrong uses", where, (long long)fake.violations());
}

static inline struct haul_device *cuda_open(void)
{
    struct haul_device *dev = NULL;

    driver_load();
    cr_assert_eq(haul_device_cuda_open(NULL, &dev), 0, "%s", haul_last_error());
    return dev;
}

static inline struct haul_device *fake_open(const char *what)
{
    fake_only(what);
    return cuda_open();
}

static inline void cuda_close(struct haul_device *dev)
{
    cr_assert_eq(haul_device_close(dev), 0, "%s", haul_last_error());
    fake_is_clean("closed");
}

/* Fails when the text of the last error does not hold the words. */
static inline void error_says(const char *words)
{
    cr_assert_not_null(strstr(haul_last_error(), words), "\"%s\" is not in: %s", words,
                       haul_last_error());
}

#endif
