/* device_cuda_kernel.c: finding the kernels in the embedded fatbin, and launching them. */
#include <inttypes.h>

#include "arith.h"
#include "device_cuda.h"
#include "fp_env.h"
#include "optim_check.h"
#include "optim_update.h"

#define MOST_BLOCKS UINT64_C(0x7fffffff)

_Static_assert(HL_CUDA_NORM_BLOCK == HAUL_NORM_BLOCK, "one block of the norm");

/* The image that nvcc made of kernels.cu; bin2c made the array. */
extern const unsigned long long hl_cuda_fatbin[];

static int find(struct cuda_device *dev, CUfunction *fn, const char *name)
{
    return hl_cuda_result(&dev->drv, dev->drv.cuModuleGetFunction(fn, dev->kernels.module, name),
                          "cuModuleGetFunction of %s", name);
}

/* In the context. */
int hl_cuda_kernels_open(struct cuda_device *dev)
{
    struct cuda_kernels *k = &dev->kernels;
    int rc = HL_CU(&dev->drv, cuModuleLoadData, &k->module, hl_cuda_fatbin);

#define HL_X_FIND(fn, name)                                                                        \
    if (rc == 0)                                                                                   \
        rc = find(dev, &k->fn, name);
#define HL_X_CONVERT(to, from)                                                                     \
    HL_X_FIND(convert[HL_CUDA_##to][HL_CUDA_##from], "hl_convert_" #to "_" #from)
#define HL_X_FORM(kind, from) HL_X_FIND(kind[HL_CUDA_##from], "hl_" #kind "_" #from)
#define HL_X_OPTIM(grad, form)                                                                     \
    HL_X_FIND(optim[HL_CUDA_##grad][HL_CUDA_PARAM_##form], "hl_optim_" #grad "_" #form)
    HL_CUDA_CONVERTS(HL_X_CONVERT)
    HL_CUDA_FORMS(HL_X_FORM, accumulate)
    HL_CUDA_FORMS(HL_X_FORM, sum)
    HL_CUDA_FORMS(HL_X_FORM, sumsq)
    HL_CUDA_OPTIMS(HL_X_OPTIM)
    return rc;
}

void hl_cuda_kernels_close(struct cuda_device *dev)
{
    if (dev->kernels.module)
        (void)dev->drv.cuModuleUnload(dev->kernels.module);
}

static int launch(struct cuda_device *dev, CUfunction fn, uint64_t nblocks, unsigned nthreads,
                  void *args, CUstream stream)
{
    void *params[1] = {args};
    int entered, rc;

    if (nblocks > MOST_BLOCKS)
        return hl_fail(-EINVAL, "a kernel over %" PRIu64 " blocks: more than one launch can hold",
                       nblocks);
    entered = hl_cuda_enter(dev);
    if (entered < 0)
        return entered;
    rc = HL_CU(&dev->drv, cuLaunchKernel, fn, (unsigned)nblocks, 1, 1, nthreads, 1, 1, 0, stream,
               params, NULL);
    hl_cuda_leave(dev, entered);
    return rc;
}

static uint64_t blocks_of(uint64_t n, uint64_t per_block)
{
    return (n - 1) / per_block + 1;
}

static int is_aligned(const void *p)
{
    return (uintptr_t)p % 16 == 0;
}

static enum hl_cuda_form form_of(enum haul_dtype dtype)
{
    return dtype == HAUL_FP32 ? HL_CUDA_FP32 : dtype == HAUL_BF16 ? HL_CUDA_BF16 : HL_CUDA_FP16;
}

static int check_dtype(const char *kernel, enum haul_dtype dtype)
{
    if (dtype == HAUL_FP32 || dtype == HAUL_BF16 || dtype == HAUL_FP16)
        return 0;
    return hl_fail(-EINVAL, "%s: dtype %d is none of FP32, BF16, FP16", kernel, (int)dtype);
}

int hl_cuda_convert(struct haul_device *base, void *dst, enum haul_dtype dst_dtype, const void *src,
                    enum haul_dtype src_dtype, uint64_t n, void *stream)
{
    struct cuda_device *dev = cuda_of(base);
    struct hl_cuda_array a = {.dst = dst, .src = src, .n = n};
    uint64_t to = hl_dtype_bytes(dst_dtype), from = hl_dtype_bytes(src_dtype);
    int rc;

    if (n == 0)
        return 0;
    if ((rc = check_dtype("convert", dst_dtype)) < 0 ||
        (rc = check_dtype("convert", src_dtype)) < 0 ||
        (rc = hl_cuda_check_range(dev, "convert", dst, n, to)) < 0 ||
        (rc = hl_cuda_check_range(dev, "convert", src, n, from)) < 0 ||
        (rc = hl_cuda_check_apart("convert", dst, n * to, src, n * from)) < 0)
        return rc;
    a.aligned = is_aligned(dst) && is_aligned(src);
    return launch(dev, dev->kernels.convert[form_of(dst_dtype)][form_of(src_dtype)],
                  blocks_of(n, HL_CUDA_ELEMS), HL_CUDA_THREADS, &a, stream);
}

int hl_cuda_accumulate(struct haul_device *base, float *acc, const void *src,
                       enum haul_dtype src_dtype, uint64_t n, int first, void *stream)
{
    struct cuda_device *dev = cuda_of(base);
    struct hl_cuda_array a = {.dst = acc, .src = src, .n = n, .first = first != 0};
    int rc;

    if (n == 0)
        return 0;
    if ((rc = check_dtype("accumulate", src_dtype)) < 0 ||
        (rc = hl_cuda_check_range(dev, "accumulate", acc, n, 4)) < 0 ||
        (rc = hl_cuda_check_range(dev, "accumulate", src, n, hl_dtype_bytes(src_dtype))) < 0)
        return rc;
    a.aligned = is_aligned(acc) && is_aligned(src);
    return launch(dev, dev->kernels.accumulate[form_of(src_dtype)], blocks_of(n, HL_CUDA_ELEMS),
                  HL_CUDA_THREADS, &a, stream);
}

int hl_cuda_sum(struct haul_device *base, void *dst, const void *parts, enum haul_dtype dtype,
                uint32_t nparts, uint64_t n, void *stream)
{
    struct cuda_device *dev = cuda_of(base);
    uint64_t bytes = hl_dtype_bytes(dtype);
    struct hl_cuda_array a = {.dst = dst, .src = parts, .n = n, .nparts = (int32_t)nparts};
    int rc;

    if (n == 0)
        return 0;
    if (nparts == 0 || nparts > 1u << 16)
        return hl_fail(-EINVAL, "sum: %u parts; 1 to 65536", nparts);
    if ((rc = check_dtype("sum", dtype)) < 0 ||
        (rc = hl_cuda_check_range(dev, "sum", dst, n, bytes)) < 0 ||
        (rc = hl_cuda_check_range(dev, "sum", parts, nparts * n, bytes)) < 0 ||
        (rc = hl_cuda_check_apart("sum", dst, n * bytes, parts, nparts * n * bytes)) < 0)
        return rc;
    a.aligned = is_aligned(dst) && is_aligned(parts) && n * bytes % 16 == 0;
    return launch(dev, dev->kernels.sum[form_of(dtype)], blocks_of(n, HL_CUDA_ELEMS),
                  HL_CUDA_THREADS, &a, stream);
}

int hl_cuda_sumsq(struct haul_device *base, float *partial, const void *src, enum haul_dtype dtype,
                  uint64_t n, void *stream)
{
    struct cuda_device *dev = cuda_of(base);
    struct hl_cuda_array a = {.dst = partial, .src = src, .n = n, .aligned = is_aligned(src)};
    uint64_t nblocks;
    int rc;

    if (n == 0)
        return 0;
    nblocks = blocks_of(n, HAUL_NORM_BLOCK);
    if ((rc = check_dtype("sumsq", dtype)) < 0 ||
        (rc = hl_cuda_check_range(dev, "sumsq", partial, nblocks, 4)) < 0 ||
        (rc = hl_cuda_check_range(dev, "sumsq", src, n, hl_dtype_bytes(dtype))) < 0)
        return rc;
    return launch(dev, dev->kernels.sumsq[form_of(dtype)],
                  blocks_of(nblocks, HL_CUDA_SUMSQ_THREADS), HL_CUDA_SUMSQ_THREADS, &a, stream);
}

int hl_cuda_fill(struct haul_device *base, void *dst, int value, uint64_t bytes, void *stream)
{
    struct cuda_device *dev = cuda_of(base);
    int entered, rc;

    if (bytes == 0)
        return 0;
    if ((rc = hl_cuda_check_range(dev, "fill", dst, bytes, 1)) < 0)
        return rc;
    entered = hl_cuda_enter(dev);
    if (entered < 0)
        return entered;
    rc = HL_CU(&dev->drv, cuMemsetD8Async, (uintptr_t)dst, (unsigned char)value, bytes, stream);
    hl_cuda_leave(dev, entered);
    return rc;
}

/* ---- the optimizer ---- */

static int check_optim(struct cuda_device *dev, const struct hl_device_optim *o)
{
    const struct haul_optim_arrays *a = &o->arrays;
    uint64_t master = a->master_form == HAUL_MASTER_SPLIT ? 2 : 4;
    int rc = hl_optim_check(&o->opt, a, &o->step);

    if (rc < 0 || a->n == 0)
        return rc;
    if ((o->opt.kind != HAUL_ADAMW && o->opt.kind != HAUL_ADAM) || o->opt.moment_dtype != HAUL_FP32)
        return hl_fail(-EINVAL, "optim: on a GPU only AdamW and Adam with FP32 moments; keep the "
                                "records in host memory (offload optimizer or all) for others");
    if ((rc = hl_cuda_check_range(dev, "optim", a->grad, a->n, hl_dtype_bytes(a->grad_dtype))) <
            0 ||
        (rc = hl_cuda_check_range(dev, "optim", a->master, a->n, master)) < 0 ||
        (rc = hl_cuda_check_range(dev, "optim", a->m, a->n, 4)) < 0 ||
        (rc = hl_cuda_check_range(dev, "optim", a->v, a->n, 4)) < 0)
        return rc;
    return a->param_dtype == HAUL_DTYPE_NONE ? 0
                                             : hl_cuda_check_range(dev, "optim", a->param, a->n, 2);
}

static enum hl_cuda_param param_of(const struct haul_optim_arrays *a)
{
    if (a->master_form == HAUL_MASTER_SPLIT)
        return HL_CUDA_PARAM_SPLIT;
    return a->param_dtype == HAUL_BF16   ? HL_CUDA_PARAM_BF16
           : a->param_dtype == HAUL_FP16 ? HL_CUDA_PARAM_FP16
                                         : HL_CUDA_PARAM_NONE;
}

/* Constants as the CPU forms them, in the floating-point environment that they are defined in. */
static struct hl_cuda_optim args_of(const struct hl_device_optim *o)
{
    hl_fp_env env = hl_fp_env_enter();
    struct hl_step_consts k = hl_step_consts_of(&o->opt, &o->arrays, &o->step);

    hl_fp_env_leave(env);
    return (struct hl_cuda_optim){
        .decoupled = k.kind == HL_STEP_ADAMW,
        .grad_scale = k.grad_scale,
        .weight_decay = k.weight_decay,
        .decay = k.decay,
        .weight1 = k.weight1,
        .weight2 = k.weight2,
        .denom_scale = k.denom_scale,
        .eps = k.eps,
        .step_size = k.step_size,
    };
}

/* Elements [at, at + n), which share their rates. */
static int step_part(struct cuda_device *dev, const struct hl_device_optim *o, uint64_t at,
                     uint64_t n, CUstream stream)
{
    const struct haul_optim_arrays *a = &o->arrays;
    struct hl_cuda_optim k = args_of(o);
    uint64_t master = a->master_form == HAUL_MASTER_SPLIT ? 2 : 4;

    k.n = n;
    k.grad = (const char *)a->grad + at * hl_dtype_bytes(a->grad_dtype);
    k.master = (char *)a->master + at * master;
    k.m = (char *)a->m + at * 4;
    k.v = (char *)a->v + at * 4;
    if (a->param_dtype != HAUL_DTYPE_NONE)
        k.param = (char *)a->param + at * 2;
    k.aligned = is_aligned(k.grad) && is_aligned(k.master) && is_aligned(k.m) && is_aligned(k.v) &&
                is_aligned(k.param);
    return launch(dev, dev->kernels.optim[form_of(a->grad_dtype)][param_of(a)],
                  blocks_of(n, HL_CUDA_ELEMS), HL_CUDA_THREADS, &k, stream);
}

int hl_cuda_optim(struct haul_device *base, const struct hl_device_optim *args, void *stream)
{
    struct cuda_device *dev = cuda_of(base);
    const struct haul_optim_part *part = args->step.parts;
    struct hl_device_optim one = *args;
    int rc = check_optim(dev, args);

    if (rc < 0 || args->arrays.n == 0)
        return rc;
    if (!part)
        return step_part(dev, args, 0, args->arrays.n, stream);
    for (uint64_t i = 0, at = 0; rc == 0 && i < args->step.nparts; at += part[i++].n) {
        one.step.lr = part[i].lr;
        one.step.weight_decay = part[i].weight_decay;
        if (part[i].n)
            rc = step_part(dev, &one, at, part[i].n, stream);
    }
    return rc;
}
