/* fake_control.c: what tests ask for: failures, delays, limits; what is alive, what was wrong. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "fake_state.h"

struct fake fake = {
    .lock = PTHREAD_MUTEX_INITIALIZER,
    .progress = PTHREAD_COND_INITIALIZER,
    .config = {.ndevices = 2, .major = 9, .mem_bytes = UINT64_C(2) << 30, .delay_us = 400},
};

EXPORT fake_cuda_configure_fn fake_cuda_configure;
EXPORT fake_cuda_fail_nth_fn fake_cuda_fail_nth;
EXPORT fake_cuda_calls_fn fake_cuda_calls;
EXPORT fake_cuda_failed_fn fake_cuda_failed;
EXPORT fake_cuda_lose_nth_fn fake_cuda_lose_nth;
EXPORT fake_cuda_revive_fn fake_cuda_revive;
EXPORT fake_cuda_live_fn fake_cuda_live;
EXPORT fake_cuda_violations_fn fake_cuda_violations;

static uint64_t from_environment(const char *name)
{
    const char *text = getenv(name);

    return text ? strtoull(text, NULL, 10) : 0;
}

/* Programs that no test is inside of are given delays and failures by the environment. */
__attribute__((constructor)) static void configure_from_environment(void)
{
    fake.config.seed = from_environment("FAKE_CUDA_SEED");
    fake.fail_in = (int64_t)from_environment("FAKE_CUDA_FAIL_NTH");
    fake.fail_result = CUDA_ERROR_UNKNOWN;
}

uint64_t fake_now_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

void fake_cuda_configure(const struct fake_cuda_config *config)
{
    static const struct fake_cuda_config none;
    struct fake_cuda_config c = config ? *config : none;

    c.ndevices = c.ndevices ? c.ndevices : 2;
    c.major = c.major ? c.major : 9;
    c.mem_bytes = c.mem_bytes ? c.mem_bytes : UINT64_C(2) << 30;
    c.delay_us = c.delay_us ? c.delay_us : 400;
    pthread_mutex_lock(&fake.lock);
    fake.config = c;
    fake.nstreams = 0; /* the same seed delays the same way */
    pthread_mutex_unlock(&fake.lock);
}

void fake_cuda_fail_nth(int64_t n, int result)
{
    pthread_mutex_lock(&fake.lock);
    fake.fail_in = n;
    fake.fail_result = result;
    fake.calls = 0;
    fake.failed = NULL;
    pthread_mutex_unlock(&fake.lock);
}

void fake_cuda_lose_nth(int64_t n, int result)
{
    pthread_mutex_lock(&fake.lock);
    fake.lose_in = n;
    fake.lose_result = result;
    pthread_mutex_unlock(&fake.lock);
}

static int64_t locked(const int64_t *value)
{
    int64_t v;

    pthread_mutex_lock(&fake.lock);
    v = *value;
    pthread_mutex_unlock(&fake.lock);
    return v;
}

int64_t fake_cuda_calls(void)
{
    return locked(&fake.calls);
}

const char *fake_cuda_failed(void)
{
    const char *failed;

    pthread_mutex_lock(&fake.lock);
    failed = fake.failed;
    pthread_mutex_unlock(&fake.lock);
    return failed;
}

void fake_cuda_revive(void)
{
    pthread_mutex_lock(&fake.lock);
    fake.lost = CUDA_SUCCESS;
    fake.lose_in = fake.fail_in = 0;
    pthread_mutex_unlock(&fake.lock);
}

int64_t fake_cuda_live(void)
{
    return locked(&fake.live);
}

int64_t fake_cuda_violations(void)
{
    return locked(&fake.violations);
}

CUresult fake_violation(CUresult res, const char *fmt, ...)
{
    va_list ap;

    fake.violations++;
    fprintf(stderr, "fake_cuda: ");
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
    return res;
}

/* Under lock. */
static CUresult planned(const char *call)
{
    fake.calls++;
    if (fake.fail_in > 0 && --fake.fail_in == 0) {
        fake.failed = call;
        return (CUresult)fake.fail_result;
    }
    return fake.lost;
}

static __thread struct {
    CUcontext ctx[16];
    int n;
} current;

CUresult fake_enter(const char *call, int needs_ctx)
{
    CUresult res;

    pthread_mutex_lock(&fake.lock);
    res = planned(call);
    if (res == CUDA_SUCCESS && needs_ctx && (!current.n || !current.ctx[current.n - 1]->refs))
        res = fake_violation(CUDA_ERROR_INVALID_CONTEXT, "%s with no context current", call);
    if (res == CUDA_SUCCESS && !fake.ready && strcmp(call, "cuInit") != 0)
        res = fake_violation(CUDA_ERROR_NOT_INITIALIZED, "%s before cuInit", call);
    if (res != CUDA_SUCCESS)
        pthread_mutex_unlock(&fake.lock);
    return res;
}

CUresult fake_enter_release(const char *call)
{
    pthread_mutex_lock(&fake.lock);
    return planned(call);
}

CUresult fake_leave(CUresult res)
{
    pthread_mutex_unlock(&fake.lock);
    return res;
}

/* ---- contexts: they live here, since every call asks for the current one ---- */

CUresult cuCtxGetCurrent(CUcontext *out)
{
    CUresult res = fake_enter("cuCtxGetCurrent", 0);

    if (res != CUDA_SUCCESS)
        return res;
    *out = current.n ? current.ctx[current.n - 1] : NULL;
    return fake_leave(CUDA_SUCCESS);
}

CUresult cuCtxPushCurrent(CUcontext ctx)
{
    CUresult res = fake_enter("cuCtxPushCurrent", 0);

    if (res != CUDA_SUCCESS)
        return res;
    if (ctx < fake.ctx || ctx >= fake.ctx + FAKE_DEVICES || !ctx->refs || current.n == 16)
        return fake_leave(fake_violation(CUDA_ERROR_INVALID_CONTEXT, "push of a dead context"));
    current.ctx[current.n++] = ctx;
    return fake_leave(CUDA_SUCCESS);
}

CUresult cuCtxPopCurrent(CUcontext *out)
{
    CUresult res = fake_enter_release("cuCtxPopCurrent");

    if (!current.n)
        return fake_leave(fake_violation(CUDA_ERROR_INVALID_CONTEXT, "pop of nothing"));
    *out = current.ctx[--current.n];
    return fake_leave(res);
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice dev)
{
    CUresult res = fake_enter("cuDevicePrimaryCtxRetain", 0);

    if (res != CUDA_SUCCESS)
        return res;
    if (dev < 0 || dev >= fake.config.ndevices)
        return fake_leave(fake_violation(CUDA_ERROR_INVALID_DEVICE, "retain of device %d", dev));
    fake.ctx[dev].device = dev;
    fake.ctx[dev].refs++;
    fake.live++;
    *out = &fake.ctx[dev];
    return fake_leave(CUDA_SUCCESS);
}

CUresult cuDevicePrimaryCtxRelease(CUdevice dev)
{
    CUresult res = fake_enter_release("cuDevicePrimaryCtxRelease");
    int last;

    if (dev < 0 || dev >= FAKE_DEVICES || !fake.ctx[dev].refs)
        return fake_leave(
            fake_violation(CUDA_ERROR_INVALID_CONTEXT, "release of a context not retained"));
    last = --fake.ctx[dev].refs == 0;
    fake.live--;
    if (last)
        fake_end_default_stream();
    return fake_leave(res);
}

__attribute__((destructor)) static void report(void)
{
    if (!fake.live && !fake.violations)
        return;
    fprintf(stderr, "fake_cuda: at the end %lld objects are alive, %lld uses were wrong\n",
            (long long)fake.live, (long long)fake.violations);
    for (struct fake_alloc *a = fake.device; a; a = a->next)
        fprintf(stderr, "fake_cuda: device memory of %llu bytes\n", (unsigned long long)a->bytes);
    for (struct fake_alloc *a = fake.pinned; a; a = a->next)
        fprintf(stderr, "fake_cuda: pinned memory of %llu bytes\n", (unsigned long long)a->bytes);
    _exit(99);
}
