/* gpu.c: see gpu.h. */
#include "gpu.h"

#include <cuda.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "haul/error.h"

/* The image that nvcc made of gpt_kernels.cu; bin2c made the array. */
extern const unsigned long long gpt_fatbin[];

/* Functions of the driver: their names in cuda.h and those that they are exported under. */
#define CUDA_CALLS(X)                                                                              \
    X(cuGetErrorName, "cuGetErrorName")                                                            \
    X(cuDeviceGet, "cuDeviceGet")                                                                  \
    X(cuDeviceGetCount, "cuDeviceGetCount")                                                        \
    X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain")                                        \
    X(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2")                                   \
    X(cuCtxPushCurrent, "cuCtxPushCurrent_v2")                                                     \
    X(cuCtxPopCurrent, "cuCtxPopCurrent_v2")                                                       \
    X(cuModuleLoadData, "cuModuleLoadData")                                                        \
    X(cuModuleUnload, "cuModuleUnload")                                                            \
    X(cuModuleGetFunction, "cuModuleGetFunction")                                                  \
    X(cuLaunchKernel, "cuLaunchKernel")

/* What is used of cuBLAS (NVIDIA's cuBLAS library reference). Its header is not needed: these have been
 * the same in versions 11 to 13. */
enum { OP_N = 0, OP_T = 1, TYPE_FP32 = 0, TYPE_BF16 = 14, COMPUTE_FP32 = 68, ALGO_DEFAULT = -1 };
typedef struct cublas *cublas;

#define CUBLAS_CALLS(X)                                                                            \
    X(create, "cublasCreate_v2", (cublas *))                                                       \
    X(destroy, "cublasDestroy_v2", (cublas))                                                       \
    X(set_stream, "cublasSetStream_v2", (cublas, CUstream))                                        \
    X(set_workspace, "cublasSetWorkspace_v2", (cublas, void *, size_t))                            \
    X(multiply, "cublasGemmStridedBatchedEx",                                                      \
      (cublas, int, int, int, int, int, const void *, const void *, int, int, long long,           \
       const void *, int, int, long long, const void *, void *, int, int, long long, int, int,     \
       int))

struct gpu {
    void *cuda_lib, *blas_lib;
#define X(fn, name) __typeof__(&fn) fn;
    CUDA_CALLS(X)
#undef X
#define X(fn, name, args) int(*fn) args;
    CUBLAS_CALLS(X)
#undef X
    CUdevice device;
    CUcontext context;
    CUmodule module;
    CUfunction kernels[GK_NKERNELS];
    cublas blas;
    CUstream stream;
    int status;
};

static char error_text[512];

const char *gpu_error(void)
{
    return error_text;
}

int gpu_status(const struct gpu *gpu)
{
    return gpu->status;
}

static HAUL_PRINTF(2, 3) int fail(int rc, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(error_text, sizeof error_text, fmt, ap);
    va_end(ap);
    return rc;
}

static int check_cuda(const struct gpu *gpu, CUresult res, const char *call, const char *what)
{
    const char *name = NULL;

    if (res == CUDA_SUCCESS)
        return 0;
    (void)gpu->cuGetErrorName(res, &name);
    return fail(res == CUDA_ERROR_OUT_OF_MEMORY ? -ENOMEM : HAUL_E_DEVICE, "%s%s%s: %s (%d)", call,
                what[0] != '\0' ? " of " : "", what, name != NULL ? name : "unknown CUDA error",
                (int)res);
}

#define CUDA(gpu, fn, ...) check_cuda((gpu), (gpu)->fn(__VA_ARGS__), #fn, "")

static int check_blas(int status, const char *call)
{
    return status == 0 ? 0 : fail(HAUL_E_DEVICE, "%s: cuBLAS status %d", call, status);
}

/* --- opening --- */

static int open_cuda(struct gpu *gpu)
{
    gpu->cuda_lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (gpu->cuda_lib == NULL)
        return fail(HAUL_E_DEVICE,
                    "no CUDA driver (%s): install NVIDIA's driver, or use --device "
                    "host (emulated)",
                    dlerror());
#define X(fn, name)                                                                                \
    *(void **)&gpu->fn = dlsym(gpu->cuda_lib, name);                                               \
    if (gpu->fn == NULL)                                                                           \
        return fail(HAUL_E_DEVICE, "the CUDA driver has no %s: install driver 525 or newer", name);
    CUDA_CALLS(X)
#undef X
    return 0;
}

/* As haul_device_cuda_open() chooses by local rank. */
static int open_context(struct gpu *gpu, uint32_t local_rank)
{
    CUcontext context;
    int n, rc = CUDA(gpu, cuDeviceGetCount, &n);

    if (rc == 0)
        rc = CUDA(gpu, cuDeviceGet, &gpu->device, n == 1 ? 0 : (int)local_rank);
    if (rc == 0)
        rc = CUDA(gpu, cuDevicePrimaryCtxRetain, &context, gpu->device);
    if (rc < 0)
        return rc;
    rc = CUDA(gpu, cuCtxPushCurrent, context);
    if (rc < 0)
        (void)gpu->cuDevicePrimaryCtxRelease(gpu->device);
    else
        gpu->context = context;
    return rc;
}

static int open_kernels(struct gpu *gpu)
{
    static const char *const names[GK_NKERNELS] = {
#define X(kernel) [GK_##kernel] = "gpt_" #kernel,
        GK_KERNELS(X)
#undef X
    };
    CUmodule module;
    int rc = CUDA(gpu, cuModuleLoadData, &module, gpt_fatbin);

    if (rc < 0)
        return rc;
    gpu->module = module;
    for (int k = 0; rc == 0 && k < GK_NKERNELS; k++)
        rc = check_cuda(gpu, gpu->cuModuleGetFunction(&gpu->kernels[k], module, names[k]),
                        "cuModuleGetFunction", names[k]);
    return rc;
}

/* 0 when this library will do; else nothing of it stays. */
static int try_blas(struct gpu *gpu, const char *name)
{
    int rc = 0;

    gpu->blas_lib = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (gpu->blas_lib == NULL)
        return fail(HAUL_E_DEVICE, "%s", dlerror());
#define X(fn, symbol, args)                                                                        \
    *(void **)&gpu->fn = dlsym(gpu->blas_lib, symbol);                                             \
    if (rc == 0 && gpu->fn == NULL)                                                                \
        rc = fail(HAUL_E_DEVICE, "%s has no %s", name, symbol);
    CUBLAS_CALLS(X)
#undef X
    if (rc == 0)
        rc = check_blas(gpu->create(&gpu->blas), "cublasCreate");
    if (rc == 0)
        return 0;
    gpu->blas = NULL;
    dlclose(gpu->blas_lib);
    gpu->blas_lib = NULL;
    return rc;
}

static int open_blas(struct gpu *gpu)
{
    char why[2][128];

    if (try_blas(gpu, "libcublas.so.13") == 0)
        return 0;
    snprintf(why[0], sizeof why[0], "%.*s", (int)sizeof why[0] - 1, error_text);
    if (try_blas(gpu, "libcublas.so.12") == 0)
        return 0;
    snprintf(why[1], sizeof why[1], "%.*s", (int)sizeof why[1] - 1, error_text);
    return fail(
        HAUL_E_DEVICE,
        "no cuBLAS that works here (%s; %s): install CUDA's libcublas, and name its folder in "
        "LD_LIBRARY_PATH, or use --device host (emulated)",
        why[0], why[1]);
}

void gpu_close(struct gpu *gpu)
{
    CUcontext popped;

    if (gpu == NULL)
        return;
    if (gpu->blas != NULL)
        (void)gpu->destroy(gpu->blas);
    if (gpu->blas_lib != NULL)
        dlclose(gpu->blas_lib);
    if (gpu->module != NULL)
        (void)gpu->cuModuleUnload(gpu->module);
    if (gpu->context != NULL) {
        (void)gpu->cuCtxPopCurrent(&popped);
        (void)gpu->cuDevicePrimaryCtxRelease(gpu->device);
    }
    if (gpu->cuda_lib != NULL)
        dlclose(gpu->cuda_lib);
    free(gpu);
}

int gpu_open(uint32_t local_rank, struct gpu **out)
{
    struct gpu *gpu = calloc(1, sizeof *gpu);
    int rc;

    if (gpu == NULL)
        return fail(-ENOMEM, "no memory for a GPU's state");
    rc = open_cuda(gpu);
    if (rc == 0)
        rc = open_context(gpu, local_rank);
    if (rc == 0)
        rc = open_kernels(gpu);
    if (rc == 0)
        rc = open_blas(gpu);
    if (rc == 0) {
        error_text[0] = '\0';
        *out = gpu;
    } else {
        gpu_close(gpu);
    }
    return rc;
}

/* cublasSetStream() forgets the workspace, so it comes first. */
int gpu_bind(struct gpu *gpu, void *stream, void *workspace)
{
    int rc = check_blas(gpu->set_stream(gpu->blas, stream), "cublasSetStream");

    gpu->stream = stream;
    if (rc < 0)
        return rc;
    return check_blas(gpu->set_workspace(gpu->blas, workspace, GPU_WORKSPACE_BYTES),
                      "cublasSetWorkspace");
}

/* --- queueing --- */

void gpu_launch(struct gpu *gpu, enum gk_kernel kernel, const struct gk_args *args)
{
    uint64_t nblocks = (args->n + GK_THREADS - 1) / GK_THREADS;
    void *params[1] = {(void *)args};

    if (gpu->status < 0)
        return;
    if (nblocks > INT32_MAX)
        gpu->status =
            fail(-EINVAL, "a kernel over more than 2^31 blocks; use a smaller micro-batch "
                          "(--accum)");
    else
        gpu->status = CUDA(gpu, cuLaunchKernel, gpu->kernels[kernel], (unsigned)nblocks, 1, 1,
                           GK_THREADS, 1, 1, 0, gpu->stream, params, NULL);
}

/* cuBLAS is column-major, where a row-major array is its transpose: c^T = b^T a^T. */
void gpu_multiply(struct gpu *gpu, const struct gpu_product *p)
{
    if (gpu->status < 0)
        return;
    gpu->status = check_blas(
        gpu->multiply(gpu->blas, p->turn_b ? OP_T : OP_N, p->turn_a ? OP_T : OP_N, (int)p->n,
                      (int)p->m, (int)p->k, &p->scale, p->b, TYPE_BF16, (int)p->ldb,
                      (long long)p->stride_b, p->a, TYPE_BF16, (int)p->lda, (long long)p->stride_a,
                      &p->keep, p->c16 != NULL ? (void *)p->c16 : p->c,
                      p->c16 != NULL ? TYPE_BF16 : TYPE_FP32, (int)p->ldc, (long long)p->stride_c,
                      (int)p->batch, COMPUTE_FP32, ALGO_DEFAULT),
        "cublasGemmStridedBatchedEx");
}
