/* device_cuda_driver.c: libcuda.so.1 at run time, so that one binary starts with and without a GPU. */
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "fail.h"
#include "cuda_driver.h"
#include "sys.h"

#define NO_GPU_REMEDY                                                                              \
    "install the NVIDIA driver (in a container: start it with --gpus all), or use the emulated "   \
    "device (--device host)"

static int find_all(struct hl_cuda_driver *drv)
{
#define HL_X(fn, name)                                                                             \
    *(void **)&drv->fn = dlsym(drv->lib, name);                                                    \
    if (!drv->fn)                                                                                  \
        return hl_fail(HAUL_E_DEVICE, "the CUDA driver has no %s: install driver 525 or newer",    \
                       name);
    HL_CUDA_CALLS(HL_X)
#undef HL_X
    return 0;
}

static int start(struct hl_cuda_driver *drv)
{
    CUresult res = drv->cuInit(0);

    if (res == CUDA_ERROR_NO_DEVICE)
        return hl_fail(HAUL_E_DEVICE, "the CUDA driver shows no GPU: " NO_GPU_REMEDY);
    if (res != CUDA_SUCCESS)
        return hl_cuda_result(drv, res, "cuInit");
    return HL_CU(drv, cuDriverGetVersion, &drv->version);
}

int hl_cuda_driver_open(struct hl_cuda_driver *drv)
{
    int rc = hl_sys_attempt("dlopen of libcuda.so.1");

    if (rc < 0)
        return rc;
    memset(drv, 0, sizeof *drv);
    drv->lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!drv->lib)
        return hl_fail(HAUL_E_DEVICE, "no CUDA driver (%s): " NO_GPU_REMEDY, dlerror());
    rc = find_all(drv);
    if (rc == 0)
        rc = start(drv);
    if (rc < 0)
        hl_cuda_driver_close(drv);
    return rc;
}

void hl_cuda_driver_close(struct hl_cuda_driver *drv)
{
    dlclose(drv->lib);
    drv->lib = NULL;
}

static const char *remedy(CUresult res)
{
    switch (res) {
    case CUDA_ERROR_NO_BINARY_FOR_GPU:
    case CUDA_ERROR_UNSUPPORTED_PTX_VERSION:
    case CUDA_ERROR_INVALID_IMAGE:
        return "; haul's kernels need a newer NVIDIA driver";
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
        return "; the context is lost: end the process, run it under compute-sanitizer";
    case CUDA_ERROR_SYSTEM_NOT_READY:
        return "; is nvidia-fabricmanager running?";
    case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
        return "; kernel module and libcuda differ: reboot after a driver update";
    default:
        return "";
    }
}

static int code_of(CUresult res)
{
    return res == CUDA_ERROR_OUT_OF_MEMORY ? -ENOMEM : HAUL_E_DEVICE;
}

int hl_cuda_result(const struct hl_cuda_driver *drv, CUresult res, const char *call, ...)
{
    const char *name = NULL, *text = NULL;
    char what[256];
    va_list ap;

    if (res == CUDA_SUCCESS)
        return 0;
    va_start(ap, call);
    vsnprintf(what, sizeof what, call, ap);
    va_end(ap);
    (void)drv->cuGetErrorName(res, &name);
    (void)drv->cuGetErrorString(res, &text);
    return hl_fail(code_of(res), "%s: %s (%d, %s)%s", what, name ? name : "unknown CUDA error",
                   (int)res, text ? text : "no text", remedy(res));
}
