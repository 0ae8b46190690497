/*
 * cuda_host_alloc.h: pinned memory of the driver's own (cuMemHostAlloc), for haul bench link alone: what
 * the registered pool is held against. dev must come from haul_device_cuda_open().
 */
#ifndef HL_CUDA_HOST_ALLOC_H
#define HL_CUDA_HOST_ALLOC_H

#include <stdint.h>

struct haul_device;

int hl_cuda_host_alloc(struct haul_device *dev, uint64_t bytes, void **out);
void hl_cuda_host_free(struct haul_device *dev, void *ptr);

#endif
