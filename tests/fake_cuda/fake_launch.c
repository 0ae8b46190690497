/*
 * fake_launch.c: modules and launches. A launch whose geometry or arrays are not exactly what the kernel
 * is written for is a wrong use, as is one that would fault.
 */
#include <stdlib.h>
#include <string.h>

#include "cuda_kernels.h"
#include "fake_state.h"
#include "fp_env.h"

#define FATBIN_MAGIC 0xba55ed50u

static struct CUmod_st {
    int open;
} the_module;

CUresult cuModuleLoadData(CUmodule *out, const void *image)
{
    CUresult res = fake_enter("cuModuleLoadData", 1);
    uint32_t magic;

    if (res != CUDA_SUCCESS)
        return res;
    memcpy(&magic, image, sizeof magic);
    if (magic != FATBIN_MAGIC || (uintptr_t)image % 8)
        return fake_leave(fake_violation(CUDA_ERROR_INVALID_IMAGE, "the image is no fatbin"));
    the_module.open++;
    fake.live++;
    *out = &the_module;
    return fake_leave(CUDA_SUCCESS);
}

CUresult cuModuleUnload(CUmodule module)
{
    CUresult res = fake_enter_release("cuModuleUnload");

    if (module != &the_module || !the_module.open)
        return fake_leave(fake_violation(CUDA_ERROR_INVALID_HANDLE, "unload of no module"));
    the_module.open--;
    fake.live--;
    return fake_leave(res);
}

CUresult cuModuleGetFunction(CUfunction *out, CUmodule module, const char *name)
{
    CUresult res = fake_enter("cuModuleGetFunction", 1);

    if (res != CUDA_SUCCESS)
        return res;
    for (unsigned i = 0; i < fake_nkernels; i++)
        if (module == &the_module && strcmp(fake_kernels[i].name, name) == 0) {
            *out = (CUfunction)(uintptr_t)&fake_kernels[i];
            return fake_leave(CUDA_SUCCESS);
        }
    *out = fake_gpt_function(name);
    if (module == &the_module && *out)
        return fake_leave(CUDA_SUCCESS);
    return fake_leave(fake_violation(CUDA_ERROR_NOT_FOUND, "no kernel %s", name));
}

/* ---- what a launch must look like ---- */

static uint64_t form_bytes(int form)
{
    return form == HL_CUDA_FP32 ? 4 : 2;
}

/* Blocks that cover n elements, no more. */
static uint64_t blocks_for(const struct fake_kernel *k, uint64_t n)
{
    uint64_t per_block = k->kind == FAKE_SUMSQ
                             ? (uint64_t)HL_CUDA_NORM_BLOCK * HL_CUDA_SUMSQ_THREADS
                             : HL_CUDA_ELEMS;

    return (n + per_block - 1) / per_block;
}

static void use(struct fake_op *op, int i, const void *p, uint64_t bytes)
{
    op->use[i] = (struct fake_use){(uintptr_t)p, bytes};
}

static uint64_t uses_of(const struct fake_kernel *k, const void *args, struct fake_op *op,
                        int *aligned)
{
    const struct hl_cuda_array *a = args;
    const struct hl_cuda_optim *o = args;
    int split = k->to == HL_CUDA_PARAM_SPLIT;

    if (k->kind != FAKE_OPTIM) {
        uint64_t ndst =
            k->kind == FAKE_SUMSQ ? (a->n + HL_CUDA_NORM_BLOCK - 1) / HL_CUDA_NORM_BLOCK : a->n;

        use(op, 0, a->dst, ndst * form_bytes(k->to));
        use(op, 1, a->src,
            a->n * form_bytes(k->from) * (k->kind == FAKE_SUM ? (uint64_t)a->nparts : 1));
        *aligned = a->aligned;
        return a->n;
    }
    use(op, 0, o->grad, o->n * form_bytes(k->from));
    use(op, 1, o->master, o->n * (split ? 2 : 4));
    use(op, 2, o->m, o->n * 4);
    use(op, 3, o->v, o->n * 4);
    use(op, 4, o->param, k->to == HL_CUDA_PARAM_NONE ? 0 : o->n * 2);
    *aligned = o->aligned;
    return o->n;
}

static int arrays_are_right(const struct fake_kernel *k, const struct fake_op *op, int aligned)
{
    for (int i = 0; i < 5; i++) {
        if (!op->use[i].bytes)
            continue;
        if (!fake_is_device(op->use[i].start, op->use[i].bytes))
            return 0;
        /* The partial sums are written one by one. */
        if (aligned && op->use[i].start % 16 && !(k->kind == FAKE_SUMSQ && i == 0))
            return 0;
    }
    return 1;
}

/* Backwards, since the order of blocks and threads must not matter; denormals as nvcc's -ftz=true has them. */
static void run_launch(struct fake_op *op)
{
    const struct fake_kernel *k = op->launch.kernel;
    hl_fp_env env = hl_fp_env_enter();

    for (uint64_t b = op->launch.nblocks; b-- > 0;)
        for (uint32_t t = k->nthreads; t-- > 0;)
            k->body(op->launch.args, b, t);
    hl_fp_env_leave(env);
}

static const struct fake_kernel *kernel_of(CUfunction fn)
{
    for (unsigned i = 0; i < fake_nkernels; i++)
        if ((uintptr_t)fn == (uintptr_t)&fake_kernels[i])
            return &fake_kernels[i];
    return NULL;
}

static CUresult launch(const struct fake_kernel *k, const unsigned grid[3], const unsigned block[3],
                       unsigned shared, CUstream stream, void **params)
{
    struct fake_op op = {.run = run_launch};
    CUstream s = fake_stream(stream);
    int aligned = 0;
    uint64_t n;

    if (!k || !s || !params || !params[0])
        return fake_violation(CUDA_ERROR_INVALID_HANDLE, "a launch of nothing, or nowhere");
    n = uses_of(k, params[0], &op, &aligned);
    if (n == 0 || grid[0] != blocks_for(k, n) || grid[1] != 1 || grid[2] != 1 ||
        block[0] != k->nthreads || block[1] != 1 || block[2] != 1 || shared)
        return fake_violation(CUDA_ERROR_INVALID_VALUE,
                              "%s: %u blocks of %u threads for %llu elements", k->name, grid[0],
                              block[0], (unsigned long long)n);
    if (!arrays_are_right(k, &op, aligned))
        return fake_violation(CUDA_ERROR_ILLEGAL_ADDRESS, "%s would fault", k->name);
    op.launch.kernel = k;
    op.launch.nblocks = grid[0];
    memcpy(op.launch.args, params[0],
           k->kind == FAKE_OPTIM ? sizeof(struct hl_cuda_optim) : sizeof(struct hl_cuda_array));
    return fake_push(s, &op);
}

CUresult cuLaunchKernel(CUfunction fn, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                        unsigned by, unsigned bz, unsigned shared, CUstream stream, void **params,
                        void **extra)
{
    CUresult res = fake_enter("cuLaunchKernel", 1);
    unsigned grid[3] = {gx, gy, gz}, block[3] = {bx, by, bz};

    if (res != CUDA_SUCCESS)
        return res;
    if (extra)
        return fake_leave(fake_violation(CUDA_ERROR_INVALID_VALUE, "extra launch options"));
    if (fake_is_gpt(fn))
        return fake_leave(fake_gpt_launch(fn, grid, block, shared, stream, params));
    return fake_leave(launch(kernel_of(fn), grid, block, shared, stream, params));
}
