/*
 * cuda_driver.h: the CUDA driver, opened at run time. Only for the device_cuda*.c files.
 *
 * One line a function: its name in cuda.h and the name it is exported under (cuda.h maps many names to
 * newer ones; the newest that a driver for CUDA 12 exports is asked for).
 */
#ifndef HL_CUDA_DRIVER_H
#define HL_CUDA_DRIVER_H

#include <cuda.h>

#include "haul/error.h"

#define HL_CUDA_CALLS(X)                                                                           \
    X(cuInit, "cuInit")                                                                            \
    X(cuDriverGetVersion, "cuDriverGetVersion")                                                    \
    X(cuGetErrorName, "cuGetErrorName")                                                            \
    X(cuGetErrorString, "cuGetErrorString")                                                        \
    X(cuDeviceGetCount, "cuDeviceGetCount")                                                        \
    X(cuDeviceGet, "cuDeviceGet")                                                                  \
    X(cuDeviceGetName, "cuDeviceGetName")                                                          \
    X(cuDeviceGetUuid, "cuDeviceGetUuid_v2")                                                       \
    X(cuDeviceGetAttribute, "cuDeviceGetAttribute")                                                \
    X(cuDeviceGetPCIBusId, "cuDeviceGetPCIBusId")                                                  \
    X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain")                                        \
    X(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2")                                   \
    X(cuCtxGetCurrent, "cuCtxGetCurrent")                                                          \
    X(cuCtxPushCurrent, "cuCtxPushCurrent_v2")                                                     \
    X(cuCtxPopCurrent, "cuCtxPopCurrent_v2")                                                       \
    X(cuCtxGetStreamPriorityRange, "cuCtxGetStreamPriorityRange")                                  \
    X(cuMemGetInfo, "cuMemGetInfo_v2")                                                             \
    X(cuMemAlloc, "cuMemAlloc_v2")                                                                 \
    X(cuMemFree, "cuMemFree_v2")                                                                   \
    X(cuMemHostAlloc, "cuMemHostAlloc")                                                            \
    X(cuMemFreeHost, "cuMemFreeHost")                                                              \
    X(cuMemHostRegister, "cuMemHostRegister_v2")                                                   \
    X(cuMemHostUnregister, "cuMemHostUnregister")                                                  \
    X(cuPointerGetAttribute, "cuPointerGetAttribute")                                              \
    X(cuMemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2")                                                   \
    X(cuMemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2")                                                   \
    X(cuMemcpyDtoDAsync, "cuMemcpyDtoDAsync_v2")                                                   \
    X(cuMemsetD8Async, "cuMemsetD8Async")                                                          \
    X(cuStreamCreateWithPriority, "cuStreamCreateWithPriority")                                    \
    X(cuStreamDestroy, "cuStreamDestroy_v2")                                                       \
    X(cuStreamSynchronize, "cuStreamSynchronize")                                                  \
    X(cuStreamWaitEvent, "cuStreamWaitEvent")                                                      \
    X(cuEventCreate, "cuEventCreate")                                                              \
    X(cuEventDestroy, "cuEventDestroy_v2")                                                         \
    X(cuEventRecord, "cuEventRecord")                                                              \
    X(cuEventQuery, "cuEventQuery")                                                                \
    X(cuEventSynchronize, "cuEventSynchronize")                                                    \
    X(cuEventElapsedTime, "cuEventElapsedTime")                                                    \
    X(cuLaunchHostFunc, "cuLaunchHostFunc")                                                        \
    X(cuLaunchKernel, "cuLaunchKernel")                                                            \
    X(cuModuleLoadData, "cuModuleLoadData")                                                        \
    X(cuModuleGetFunction, "cuModuleGetFunction")                                                  \
    X(cuModuleUnload, "cuModuleUnload")

struct hl_cuda_driver {
    void *lib;
    int version; /* of CUDA that the driver speaks: 13000 is 13.0 */
#define HL_X(fn, name) __typeof__(&fn) fn;
    HL_CUDA_CALLS(HL_X)
#undef HL_X
};

/* Open libcuda.so.1, find every function, cuInit. HAUL_E_DEVICE when there is none, or none that will
 * do: the text says what to install. */
int hl_cuda_driver_open(struct hl_cuda_driver *drv);
void hl_cuda_driver_close(struct hl_cuda_driver *drv);

/* 0, or after hl_fail() what the driver's answer amounts to: -ENOMEM, or HAUL_E_DEVICE with the name of
 * the error. call: what was asked, "cuMemAlloc of 4096 bytes". */
int hl_cuda_result(const struct hl_cuda_driver *drv, CUresult res, const char *call, ...)
    HAUL_PRINTF(3, 4);

/* Call one function of the driver. */
#define HL_CU(drv, fn, ...) hl_cuda_result((drv), (drv)->fn(__VA_ARGS__), #fn)

#endif
