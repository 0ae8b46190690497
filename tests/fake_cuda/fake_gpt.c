/* fake_gpt.c: launches of the kernels of examples/train_gpt. */
#include <stdlib.h>

#include "fake_state.h"
#include "host_gpt_kernels.h"

/* Whose addresses are the functions. */
static const char functions[GK_NKERNELS];

CUfunction fake_gpt_function(const char *name)
{
    for (unsigned k = 0; k < GK_NKERNELS; k++)
        if (strcmp(host_gpt_kernels[k].name, name) == 0)
            return (CUfunction)(uintptr_t)&functions[k];
    return NULL;
}

int fake_is_gpt(CUfunction fn)
{
    return (uintptr_t)fn >= (uintptr_t)functions &&
           (uintptr_t)fn < (uintptr_t)functions + GK_NKERNELS;
}

/* Backwards, since the order of threads must not matter. */
static void run(struct fake_op *op)
{
    const struct gk_args *args = op->owned;

    for (uint64_t i = args->n; i-- > 0;)
        host_gpt_kernels[op->gpt.kernel].body(args, i);
}

/* Every array must be the device's; how long each is, only the kernel knows. */
static int arrays_are_right(const struct gk_args *args)
{
    const void *p[GK_NPOINTERS];

    memcpy(p, args, sizeof p);
    for (size_t i = 0; i < GK_NPOINTERS; i++)
        if (p[i] && !fake_is_device((uintptr_t)p[i], 1))
            return 0;
    return 1;
}

CUresult fake_gpt_launch(CUfunction fn, const unsigned grid[3], const unsigned block[3],
                         unsigned shared, CUstream stream, void **params)
{
    struct fake_op op = {.run = run};
    CUstream s = fake_stream(stream);
    const struct gk_args *args = params ? params[0] : NULL;
    const char *name;

    op.gpt.kernel = (unsigned)((uintptr_t)fn - (uintptr_t)functions);
    name = host_gpt_kernels[op.gpt.kernel].name;
    if (!s || !args)
        return fake_violation(CUDA_ERROR_INVALID_HANDLE, "%s: nothing, or nowhere", name);
    if (args->n == 0 || grid[0] != (args->n + GK_THREADS - 1) / GK_THREADS || grid[1] != 1 ||
        grid[2] != 1 || block[0] != GK_THREADS || block[1] != 1 || block[2] != 1 || shared)
        return fake_violation(CUDA_ERROR_INVALID_VALUE,
                              "%s: %u blocks of %u threads for %llu of them", name, grid[0],
                              block[0], (unsigned long long)args->n);
    if (!arrays_are_right(args))
        return fake_violation(CUDA_ERROR_ILLEGAL_ADDRESS, "%s would fault", name);
    op.owned = malloc(sizeof *args);
    if (!op.owned)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(op.owned, args, sizeof *args);
    return fake_push(s, &op);
}
