/*
 * cuda_context.h: a GPU's context for libraries that work on "the current device" (NCCL). A build without
 * CUDA has it too, and says so.
 */
#ifndef HL_CUDA_CONTEXT_H
#define HL_CUDA_CONTEXT_H

struct haul_device;

/* Make dev's context current in this thread: 1 when it was not, else 0, for leave. *ordinal, unless NULL: the
 * device as CUDA counts. HAUL_E_DEVICE: dev is not from haul_device_cuda_open(). */
int hl_cuda_context_enter(struct haul_device *dev, int *ordinal);
void hl_cuda_context_leave(struct haul_device *dev, int entered);

#endif
