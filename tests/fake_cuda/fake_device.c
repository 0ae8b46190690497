/* fake_device.c: devices, and names of errors. */
#include <stdio.h>
#include <string.h>

#include "fake_state.h"

CUresult cuInit(unsigned flags)
{
    CUresult res = fake_enter("cuInit", 0);

    if (res != CUDA_SUCCESS)
        return res;
    if (flags)
        return fake_leave(fake_violation(CUDA_ERROR_INVALID_VALUE, "cuInit with flags"));
    fake.ready = 1;
    return fake_leave((CUresult)fake.config.init_result);
}

CUresult cuDriverGetVersion(int *version)
{
    CUresult res = fake_enter("cuDriverGetVersion", 0);

    if (res != CUDA_SUCCESS)
        return res;
    *version = CUDA_VERSION;
    return fake_leave(CUDA_SUCCESS);
}

static const struct {
    CUresult res;
    const char *name, *text;
} errors[] = {
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {CUDA_ERROR_INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access"},
    {CUDA_ERROR_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {CUDA_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

CUresult cuGetErrorName(CUresult res, const char **out)
{
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].res == res) {
            *out = errors[i].name;
            return CUDA_SUCCESS;
        }
    *out = NULL;
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult res, const char **out)
{
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].res == res) {
            *out = errors[i].text;
            return CUDA_SUCCESS;
        }
    *out = NULL;
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuDeviceGetCount(int *n)
{
    CUresult res = fake_enter("cuDeviceGetCount", 0);

    if (res != CUDA_SUCCESS)
        return res;
    *n = fake.config.ndevices < 0 ? 0 : fake.config.ndevices;
    return fake_leave(CUDA_SUCCESS);
}

/* Locks when the device is one. */
static CUresult enter_device(const char *call, CUdevice dev)
{
    CUresult res = fake_enter(call, 0);

    if (res == CUDA_SUCCESS && (dev < 0 || dev >= fake.config.ndevices))
        return fake_leave(fake_violation(CUDA_ERROR_INVALID_DEVICE, "%s of device %d", call, dev));
    return res;
}

CUresult cuDeviceGet(CUdevice *out, int ordinal)
{
    CUresult res = enter_device("cuDeviceGet", ordinal);

    if (res != CUDA_SUCCESS)
        return res;
    *out = ordinal;
    return fake_leave(CUDA_SUCCESS);
}

CUresult cuDeviceGetName(char *name, int len, CUdevice dev)
{
    CUresult res = enter_device("cuDeviceGetName", dev);

    if (res != CUDA_SUCCESS)
        return res;
    snprintf(name, (size_t)len, "fake GPU %d (no GPU: tests only)", dev);
    return fake_leave(CUDA_SUCCESS);
}

/* Device d: GPU-fa4eNNNN-..., NN being d in every byte but the first two. */
CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice dev)
{
    CUresult res = enter_device("cuDeviceGetUuid", dev);

    if (res != CUDA_SUCCESS)
        return res;
    memset(uuid->bytes, dev, sizeof uuid->bytes);
    uuid->bytes[0] = (char)0xfa;
    uuid->bytes[1] = 0x4e;
    return fake_leave(CUDA_SUCCESS);
}

CUresult cuDeviceTotalMem(size_t *bytes, CUdevice dev)
{
    CUresult res = enter_device("cuDeviceTotalMem", dev);

    if (res != CUDA_SUCCESS)
        return res;
    *bytes = fake.config.mem_bytes;
    return fake_leave(CUDA_SUCCESS);
}

CUresult cuDeviceGetPCIBusId(char *id, int len, CUdevice dev)
{
    CUresult res = enter_device("cuDeviceGetPCIBusId", dev);

    if (res != CUDA_SUCCESS)
        return res;
    snprintf(id, (size_t)len, "ffff:%02x:00.0", dev);
    return fake_leave(CUDA_SUCCESS);
}

CUresult cuDeviceCanAccessPeer(int *can, CUdevice dev, CUdevice peer)
{
    CUresult res = enter_device("cuDeviceCanAccessPeer", dev);

    if (res != CUDA_SUCCESS)
        return res;
    *can = dev != peer;
    return fake_leave(CUDA_SUCCESS);
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice dev)
{
    CUresult res = enter_device("cuDeviceGetAttribute", dev);

    if (res != CUDA_SUCCESS)
        return res;
    switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
        *value = fake.config.major;
        break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
        *value = 0;
        break;
    case CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT:
        *value = 1;
        break;
    default:
        return fake_leave(
            fake_violation(CUDA_ERROR_INVALID_VALUE, "attribute %d is not faked", attribute));
    }
    return fake_leave(CUDA_SUCCESS);
}

CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    CUresult res = fake_enter("cuCtxGetStreamPriorityRange", 1);

    if (res != CUDA_SUCCESS)
        return res;
    *least = 0;
    *greatest = -5;
    return fake_leave(CUDA_SUCCESS);
}
