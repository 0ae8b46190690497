/* fake_memory.c: device memory and pinned host memory. */
#include <stdlib.h>
#include <string.h>

#include "fake_state.h"

static int overlaps(uint64_t a, uint64_t a_bytes, uint64_t b, uint64_t b_bytes)
{
    return a < b + b_bytes && b < a + a_bytes;
}

static int is_inside(const struct fake_alloc *a, uint64_t start, uint64_t bytes)
{
    return start >= a->start && start - a->start <= a->bytes &&
           bytes <= a->bytes - (start - a->start);
}

static int touches(const struct fake_alloc *list, uint64_t start, uint64_t bytes)
{
    for (; list; list = list->next)
        if (overlaps(list->start, list->bytes, start, bytes))
            return 1;
    return 0;
}

int fake_touches_device(uint64_t start, uint64_t bytes)
{
    return touches(fake.device, start, bytes);
}

int fake_is_device(uint64_t start, uint64_t bytes)
{
    for (struct fake_alloc *a = fake.device; a; a = a->next)
        if (is_inside(a, start, bytes))
            return 1;
    return 0;
}

int fake_is_pinned(uint64_t start, uint64_t bytes)
{
    for (struct fake_alloc *a = fake.pinned; a; a = a->next)
        if (is_inside(a, start, bytes))
            return 1;
    return touches(fake.pinned, start, bytes) ? -1 : 0;
}

int fake_in_use(uint64_t start, uint64_t bytes)
{
    for (CUstream s = fake.streams; s; s = s->next) {
        const struct fake_op *op = s->running ? s->running : s->head;

        while (op) {
            for (size_t i = 0; i < sizeof op->use / sizeof *op->use; i++)
                if (op->use[i].bytes && overlaps(op->use[i].start, op->use[i].bytes, start, bytes))
                    return 1;
            op = op == s->running ? s->head : op->next;
        }
    }
    return 0;
}

static CUresult add(struct fake_alloc **list, uint64_t start, uint64_t bytes)
{
    struct fake_alloc *a = malloc(sizeof *a);

    if (!a)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *a = (struct fake_alloc){*list, start, bytes};
    *list = a;
    fake.live++;
    return CUDA_SUCCESS;
}

/* Bytes of the range that began at start, 0 when there was none. */
static uint64_t take(struct fake_alloc **at, uint64_t start)
{
    struct fake_alloc *a;
    uint64_t bytes;

    while (*at && (*at)->start != start)
        at = &(*at)->next;
    if (!*at)
        return 0;
    a = *at;
    *at = a->next;
    bytes = a->bytes;
    free(a);
    fake.live--;
    if (fake_in_use(start, bytes))
        (void)fake_violation(CUDA_ERROR_INVALID_VALUE,
                             "%llu bytes were given back while queued work uses them",
                             (unsigned long long)bytes);
    return bytes;
}

CUresult cuMemGetInfo(size_t *free_bytes, size_t *total)
{
    CUresult res = fake_enter("cuMemGetInfo", 1);

    if (res != CUDA_SUCCESS)
        return res;
    *total = fake.config.mem_bytes;
    *free_bytes = *total - fake.device_bytes;
    return fake_leave(CUDA_SUCCESS);
}

CUresult cuMemAlloc(CUdeviceptr *out, size_t bytes)
{
    CUresult res = fake_enter("cuMemAlloc", 1);
    void *p;

    if (res != CUDA_SUCCESS)
        return res;
    if (!bytes)
        return fake_leave(fake_violation(CUDA_ERROR_INVALID_VALUE, "cuMemAlloc of 0 bytes"));
    if (bytes > fake.config.mem_bytes - fake.device_bytes || posix_memalign(&p, 512, bytes))
        return fake_leave(CUDA_ERROR_OUT_OF_MEMORY);
    memset(p, 0xff, bytes);
    fake.device_bytes += bytes;
    *out = (CUdeviceptr)(uintptr_t)p;
    return fake_leave(add(&fake.device, *out, bytes));
}

CUresult cuMemFree(CUdeviceptr p)
{
    CUresult res = fake_enter_release("cuMemFree");
    uint64_t bytes = take(&fake.device, p);

    if (!bytes)
        return fake_leave(
            fake_violation(CUDA_ERROR_INVALID_VALUE, "cuMemFree of %llx", (unsigned long long)p));
    fake.device_bytes -= bytes;
    free((void *)(uintptr_t)p);
    return fake_leave(res);
}

CUresult cuMemHostAlloc(void **out, size_t bytes, unsigned flags)
{
    CUresult res = fake_enter("cuMemHostAlloc", 1);

    if (res != CUDA_SUCCESS)
        return res;
    if (posix_memalign(out, 4096, bytes))
        return fake_leave(CUDA_ERROR_OUT_OF_MEMORY);
    memset(*out, 0, bytes);
    return fake_leave(add(&fake.pinned, (uintptr_t)*out, bytes));
}

CUresult cuMemFreeHost(void *p)
{
    CUresult res = fake_enter_release("cuMemFreeHost");

    if (!take(&fake.pinned, (uintptr_t)p))
        return fake_leave(fake_violation(CUDA_ERROR_INVALID_VALUE, "cuMemFreeHost of %p", p));
    free(p);
    return fake_leave(res);
}

CUresult cuMemHostRegister(void *p, size_t bytes, unsigned flags)
{
    CUresult res = fake_enter("cuMemHostRegister", 1);
    uint64_t start = (uintptr_t)p;

    if (res != CUDA_SUCCESS)
        return res;
    if (!p || !bytes || fake_touches_device(start, bytes))
        return fake_leave(fake_violation(CUDA_ERROR_INVALID_VALUE,
                                         "cuMemHostRegister of %p, %zu bytes", p, bytes));
    if (touches(fake.pinned, start, bytes))
        return fake_leave(fake_violation(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
                                         "%p, %zu bytes are registered already", p, bytes));
    if (fake.config.pin_at_once && bytes > fake.config.pin_at_once)
        return fake_leave(CUDA_ERROR_INVALID_VALUE);
    if (fake.config.pin_bytes && bytes > fake.config.pin_bytes - fake.pinned_bytes)
        return fake_leave(CUDA_ERROR_OUT_OF_MEMORY);
    fake.pinned_bytes += bytes;
    return fake_leave(add(&fake.pinned, start, bytes));
}

CUresult cuMemHostUnregister(void *p)
{
    CUresult res = fake_enter_release("cuMemHostUnregister");
    uint64_t bytes = take(&fake.pinned, (uintptr_t)p);

    if (!bytes)
        return fake_leave(
            fake_violation(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "%p is not registered", p));
    fake.pinned_bytes -= bytes;
    return fake_leave(res);
}

CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr p)
{
    CUresult res = fake_enter("cuPointerGetAttribute", 1);

    if (res != CUDA_SUCCESS)
        return res;
    if (attribute != CU_POINTER_ATTRIBUTE_MEMORY_TYPE)
        return fake_leave(fake_violation(CUDA_ERROR_INVALID_VALUE,
                                         "pointer attribute %d is not faked", attribute));
    if (fake_is_device(p, 1))
        *(unsigned *)data = CU_MEMORYTYPE_DEVICE;
    else if (fake_is_pinned(p, 1) == 1)
        *(unsigned *)data = CU_MEMORYTYPE_HOST;
    else
        return fake_leave(CUDA_ERROR_INVALID_VALUE);
    return fake_leave(CUDA_SUCCESS);
}
