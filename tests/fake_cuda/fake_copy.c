/*
 * fake_copy.c: copies, fills and host functions.
 *
 * Pinned host memory is read and written when the copy's turn comes. Pageable memory, as in CUDA, is read
 * when the copy is queued, and is written before the call returns.
 */
#include <stdlib.h>
#include <string.h>

#include "fake_state.h"

static void run_copy(struct fake_op *op)
{
    memcpy(op->copy.dst, op->copy.src, op->copy.bytes);
}

static void run_fill(struct fake_op *op)
{
    memset(op->copy.dst, op->copy.value, op->copy.bytes);
}

static void run_host(struct fake_op *op)
{
    op->host.fn(op->host.user);
}

/* Under lock: the stream when device and host side are what they should be. */
static CUstream check(const char *call, uint64_t device, uint64_t host, size_t bytes,
                      CUstream stream)
{
    if (!bytes || !fake_is_device(device, bytes)) {
        (void)fake_violation(CUDA_ERROR_INVALID_VALUE, "%s: %llx, %zu bytes is no device memory",
                             call, (unsigned long long)device, bytes);
        return NULL;
    }
    if (host && fake_touches_device(host, bytes)) {
        (void)fake_violation(CUDA_ERROR_INVALID_VALUE, "%s: %llx, %zu bytes is no host memory",
                             call, (unsigned long long)host, bytes);
        return NULL;
    }
    if (host && fake_is_pinned(host, bytes) < 0) {
        (void)fake_violation(CUDA_ERROR_INVALID_VALUE,
                             "%s: %llx, %zu bytes stand astride a registration", call,
                             (unsigned long long)host, bytes);
        return NULL;
    }
    return fake_stream(stream);
}

CUresult cuMemcpyHtoDAsync(CUdeviceptr dst, const void *src, size_t bytes, CUstream stream)
{
    CUresult res = fake_enter("cuMemcpyHtoDAsync", 1);
    struct fake_op op = {.run = run_copy};
    CUstream s;

    if (res != CUDA_SUCCESS)
        return res;
    s = check("cuMemcpyHtoDAsync", dst, (uintptr_t)src, bytes, stream);
    if (!s || !src)
        return fake_leave(CUDA_ERROR_INVALID_VALUE);
    op.copy.dst = (void *)(uintptr_t)dst;
    op.copy.src = src;
    op.copy.bytes = bytes;
    op.use[0] = (struct fake_use){dst, bytes};
    op.use[1] = (struct fake_use){(uintptr_t)src, bytes};
    if (!fake_is_pinned((uintptr_t)src, bytes)) {
        op.owned = malloc(bytes);
        if (!op.owned)
            return fake_leave(CUDA_ERROR_OUT_OF_MEMORY);
        op.copy.src = memcpy(op.owned, src, bytes);
        op.use[1].bytes = 0;
    }
    return fake_leave(fake_push(s, &op));
}

CUresult cuMemcpyDtoHAsync(void *dst, CUdeviceptr src, size_t bytes, CUstream stream)
{
    CUresult res = fake_enter("cuMemcpyDtoHAsync", 1);
    struct fake_op op = {.run = run_copy};
    CUstream s;

    if (res != CUDA_SUCCESS)
        return res;
    s = check("cuMemcpyDtoHAsync", src, (uintptr_t)dst, bytes, stream);
    if (!s || !dst)
        return fake_leave(CUDA_ERROR_INVALID_VALUE);
    op.copy.dst = dst;
    op.copy.src = (void *)(uintptr_t)src;
    op.copy.bytes = bytes;
    op.use[0] = (struct fake_use){src, bytes};
    op.use[1] = (struct fake_use){(uintptr_t)dst, bytes};
    res = fake_push(s, &op);
    if (res == CUDA_SUCCESS && !fake_is_pinned((uintptr_t)dst, bytes))
        fake_await(s, s->queued);
    return fake_leave(res);
}

CUresult cuMemcpyDtoDAsync(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream)
{
    CUresult res = fake_enter("cuMemcpyDtoDAsync", 1);
    struct fake_op op = {.run = run_copy};
    CUstream s;

    if (res != CUDA_SUCCESS)
        return res;
    s = check("cuMemcpyDtoDAsync", dst, 0, bytes, stream);
    if (!s || !check("cuMemcpyDtoDAsync", src, 0, bytes, stream))
        return fake_leave(CUDA_ERROR_INVALID_VALUE);
    op.copy.dst = (void *)(uintptr_t)dst;
    op.copy.src = (void *)(uintptr_t)src;
    op.copy.bytes = bytes;
    op.use[0] = (struct fake_use){dst, bytes};
    op.use[1] = (struct fake_use){src, bytes};
    return fake_leave(fake_push(s, &op));
}

CUresult cuMemsetD8Async(CUdeviceptr dst, unsigned char value, size_t bytes, CUstream stream)
{
    CUresult res = fake_enter("cuMemsetD8Async", 1);
    struct fake_op op = {.run = run_fill};
    CUstream s;

    if (res != CUDA_SUCCESS)
        return res;
    s = check("cuMemsetD8Async", dst, 0, bytes, stream);
    if (!s)
        return fake_leave(CUDA_ERROR_INVALID_VALUE);
    op.copy.dst = (void *)(uintptr_t)dst;
    op.copy.bytes = bytes;
    op.copy.value = value;
    op.use[0] = (struct fake_use){dst, bytes};
    return fake_leave(fake_push(s, &op));
}

CUresult cuLaunchHostFunc(CUstream stream, CUhostFn fn, void *user)
{
    CUresult res = fake_enter("cuLaunchHostFunc", 1);
    struct fake_op op = {.run = run_host};
    CUstream s;

    if (res != CUDA_SUCCESS)
        return res;
    s = fake_stream(stream);
    if (!s || !fn)
        return fake_leave(CUDA_ERROR_INVALID_VALUE);
    op.host.fn = fn;
    op.host.user = user;
    return fake_leave(fake_push(s, &op));
}
