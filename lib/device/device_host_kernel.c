/*
 * device_host_kernel.c: the kernels of the emulated device: the functions of cpu_adam, queued.
 */
#include "arith.h"
#include "device_host.h"

/* Arguments of one kernel, checked one after the other; the first failure stays. */
struct check {
    struct host_device *dev;
    const char *kernel;
    int rc;
};

static void check_dtype(struct check *c, enum haul_dtype dtype)
{
    if (c->rc == 0 && dtype != HAUL_FP32 && dtype != HAUL_BF16 && dtype != HAUL_FP16)
        c->rc = hl_fail(-EINVAL, "%s: dtype %d is none of FP32, BF16, FP16", c->kernel, (int)dtype);
}

static void check_range(struct check *c, const void *p, uint64_t n, uint64_t elem_bytes)
{
    if (c->rc == 0)
        c->rc = hl_device_host_check(c->dev, c->kernel, p, n, elem_bytes);
}

static int push_checked(const struct check *c, struct host_stream *s, const struct host_op *op)
{
    if (c->rc == 0)
        (void)hl_device_host_push(s, op);
    return c->rc;
}

static int run_convert(struct host_stream *s, const struct host_op *op)
{
    hl_arith_convert(op->array.dst, op->array.dst_dtype, op->array.src, op->array.src_dtype,
                     op->array.n, s->dev->kernel_threads);
    return 0;
}

int hl_device_host_convert(struct haul_device *base, void *dst, enum haul_dtype dst_dtype,
                           const void *src, enum haul_dtype src_dtype, uint64_t n, void *stream)
{
    struct host_op op = {.run = run_convert,
                         .lane = HL_DEVICE_KERNELS,
                         .no_time = 1,
                         .array = {dst, src, n, dst_dtype, src_dtype, 0}};
    struct host_stream *s = hl_device_host_stream(host_of(base), stream);
    struct check c = {host_of(base), "convert", 0};

    if (!s)
        return -EINVAL;
    if (n == 0)
        return 0;
    check_dtype(&c, dst_dtype);
    check_dtype(&c, src_dtype);
    check_range(&c, dst, n, hl_dtype_bytes(dst_dtype));
    check_range(&c, src, n, hl_dtype_bytes(src_dtype));
    if (c.rc == 0)
        c.rc = hl_device_host_check_apart(c.kernel, dst, n * hl_dtype_bytes(dst_dtype), src,
                                          n * hl_dtype_bytes(src_dtype));
    return push_checked(&c, s, &op);
}

static int run_accumulate(struct host_stream *s, const struct host_op *op)
{
    hl_arith_accumulate(op->array.dst, op->array.src, op->array.src_dtype, op->array.n,
                        op->array.value, s->dev->kernel_threads);
    return 0;
}

int hl_device_host_accumulate(struct haul_device *base, float *acc, const void *src,
                              enum haul_dtype src_dtype, uint64_t n, int first, void *stream)
{
    struct host_op op = {.run = run_accumulate,
                         .lane = HL_DEVICE_KERNELS,
                         .no_time = 1,
                         .array = {acc, src, n, HAUL_FP32, src_dtype, first}};
    struct host_stream *s = hl_device_host_stream(host_of(base), stream);
    struct check c = {host_of(base), "accumulate", 0};

    if (!s)
        return -EINVAL;
    if (n == 0)
        return 0;
    check_dtype(&c, src_dtype);
    check_range(&c, acc, n, 4);
    check_range(&c, src, n, hl_dtype_bytes(src_dtype));
    return push_checked(&c, s, &op);
}

static int run_sum(struct host_stream *s, const struct host_op *op)
{
    hl_arith_sum(op->array.dst, op->array.src, op->array.dst_dtype, (uint32_t)op->array.value,
                 op->array.n, s->dev->kernel_threads);
    return 0;
}

int hl_device_host_sum(struct haul_device *base, void *dst, const void *parts,
                       enum haul_dtype dtype, uint32_t nparts, uint64_t n, void *stream)
{
    struct host_op op = {.run = run_sum,
                         .lane = HL_DEVICE_KERNELS,
                         .no_time = 1,
                         .array = {dst, parts, n, dtype, dtype, (int)nparts}};
    struct host_stream *s = hl_device_host_stream(host_of(base), stream);
    struct check c = {host_of(base), "sum", 0};

    if (!s)
        return -EINVAL;
    if (n == 0)
        return 0;
    if (nparts == 0 || nparts > 1u << 16)
        return hl_fail(-EINVAL, "sum: %u parts; 1 to 65536", nparts);
    check_dtype(&c, dtype);
    check_range(&c, dst, n, hl_dtype_bytes(dtype));
    check_range(&c, parts, nparts * n, hl_dtype_bytes(dtype));
    if (c.rc == 0)
        c.rc = hl_device_host_check_apart(c.kernel, dst, n * hl_dtype_bytes(dtype), parts,
                                          nparts * n * hl_dtype_bytes(dtype));
    return push_checked(&c, s, &op);
}

static int run_sumsq(struct host_stream *s, const struct host_op *op)
{
    hl_arith_sumsq_partials(op->array.dst, op->array.src, op->array.src_dtype, op->array.n,
                            s->dev->kernel_threads);
    return 0;
}

int hl_device_host_sumsq(struct haul_device *base, float *partial, const void *src,
                         enum haul_dtype dtype, uint64_t n, void *stream)
{
    struct host_op op = {.run = run_sumsq,
                         .lane = HL_DEVICE_KERNELS,
                         .no_time = 1,
                         .array = {partial, src, n, HAUL_FP32, dtype, 0}};
    struct host_stream *s = hl_device_host_stream(host_of(base), stream);
    struct check c = {host_of(base), "sumsq", 0};

    if (!s)
        return -EINVAL;
    if (n == 0)
        return 0;
    check_dtype(&c, dtype);
    check_range(&c, partial, (n - 1) / HAUL_NORM_BLOCK + 1, 4);
    check_range(&c, src, n, hl_dtype_bytes(dtype));
    return push_checked(&c, s, &op);
}

static int run_fill(struct host_stream *s, const struct host_op *op)
{
    memset(op->array.dst, op->array.value, op->array.n);
    return 0;
}

int hl_device_host_fill(struct haul_device *base, void *dst, int value, uint64_t bytes,
                        void *stream)
{
    struct host_op op = {.run = run_fill,
                         .lane = HL_DEVICE_KERNELS,
                         .no_time = 1,
                         .array = {.dst = dst, .n = bytes, .value = value}};
    struct host_stream *s = hl_device_host_stream(host_of(base), stream);
    struct check c = {host_of(base), "fill", 0};

    if (!s)
        return -EINVAL;
    if (bytes == 0)
        return 0;
    check_range(&c, dst, bytes, 1);
    return push_checked(&c, s, &op);
}

static int run_optim(struct host_stream *s, const struct host_op *op)
{
    return haul_optim_update(&op->optim.opt, &op->optim.arrays, &op->optim.step,
                             s->dev->kernel_threads);
}

/* haul_optim_update() itself checks all but where the arrays are. */
int hl_device_host_optim(struct haul_device *base, const struct hl_device_optim *args, void *stream)
{
    const struct haul_optim_arrays *a = &args->arrays;
    struct host_op op = {.run = run_optim, .lane = HL_DEVICE_KERNELS, .optim = *args};
    struct host_stream *s = hl_device_host_stream(host_of(base), stream);
    struct check c = {host_of(base), "optim", 0};
    uint64_t moment_bytes = args->opt.moment_dtype == HAUL_BF16 ? 2 : 4;

    if (!s)
        return -EINVAL;
    if (a->n > 0) {
        check_range(&c, a->grad, a->n, hl_dtype_bytes(a->grad_dtype));
        check_range(&c, a->master, a->n, a->master_form == HAUL_MASTER_SPLIT ? 2 : 4);
        if (a->m)
            check_range(&c, a->m, a->n, moment_bytes);
        if (a->v)
            check_range(&c, a->v, a->n, moment_bytes);
        if (a->param)
            check_range(&c, a->param, a->n, hl_dtype_bytes(a->param_dtype));
    }
    return push_checked(&c, s, &op);
}
