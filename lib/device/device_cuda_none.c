/* device_cuda_none.c: what stands for the CUDA back end in a build without it. */
#include "cuda_context.h"
#include "cuda_host_alloc.h"
#include "fail.h"
#include "haul/device_cuda.h"

static int without(void)
{
    return hl_fail(HAUL_E_DEVICE, "this haul was built without CUDA: build it with nvcc on PATH "
                                  "(-Dcuda=enabled), or use the emulated device (--device host)");
}

void haul_device_cuda_opts_init(struct haul_device_cuda_opts *opts)
{
    *opts = (struct haul_device_cuda_opts){
        .struct_size = sizeof *opts, .ordinal = -1, .local_rank = -1};
}

int haul_device_cuda_open(const struct haul_device_cuda_opts *opts, struct haul_device **out)
{
    return without();
}

int hl_cuda_host_alloc(struct haul_device *dev, uint64_t bytes, void **out)
{
    return without();
}

void hl_cuda_host_free(struct haul_device *dev, void *ptr)
{
}

int hl_cuda_context_enter(struct haul_device *dev, int *ordinal)
{
    return without();
}

void hl_cuda_context_leave(struct haul_device *dev, int entered)
{
}
