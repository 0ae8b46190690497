/*
 * The CUDA kernels' host build, launched by the CUDA back end on the fake driver, against cpu_adam: the same
 * bits (R1) for every form, at the sizes and alignments at which kernels break, with the values that do.
 */
#include "adam_case.h"
#include "test_cuda_fixture.h"

#define MOST 70000u

static const enum haul_dtype dtypes[3] = {HAUL_FP32, HAUL_BF16, HAUL_FP16};
static const uint64_t sizes[] = {1, 7, 8, 31, 2047, 2048, 2049, 4096, 4097, 12289, MOST};
#define NSIZES (sizeof sizes / sizeof *sizes)

struct bench {
    struct haul_device *dev;
    void *stream;
    char *src, *dst; /* on the device */
};

static struct bench bench_open(void)
{
    struct bench b = {.dev = cuda_open()};

    b.stream = device_stream(b.dev);
    b.src = device_mem(b.dev, 4 * MOST + 64);
    b.dst = device_mem(b.dev, 4 * MOST + 64);
    return b;
}

static void bench_close(struct bench *b)
{
    cr_assert_eq(haul_device_stream_sync(b->dev, b->stream), 0, "%s", haul_last_error());
    haul_device_free(b->dev, b->src);
    haul_device_free(b->dev, b->dst);
    haul_device_stream_close(b->dev, b->stream);
    cuda_close(b->dev);
}

static void up(struct bench *b, void *dst, const void *src, uint64_t bytes)
{
    cr_assert_eq(haul_device_copy_h2d(b->dev, dst, src, bytes, b->stream), 0, "%s",
                 haul_last_error());
}

static void down(struct bench *b, void *dst, const void *src, uint64_t bytes)
{
    cr_assert_eq(haul_device_copy_d2h(b->dev, dst, src, bytes, b->stream), 0, "%s",
                 haul_last_error());
    cr_assert_eq(haul_device_stream_sync(b->dev, b->stream), 0, "%s", haul_last_error());
}

static void hostile(void *p, enum haul_dtype dtype, uint64_t n, uint64_t seed)
{
    for (uint64_t i = 0; i < n; i++)
        adam_put(p, dtype, i, adam_hostile(&seed));
}

static unsigned char in[4 * MOST], want[4 * MOST + 64], got[4 * MOST + 64];

static void convert_case(struct bench *b, enum haul_dtype to, enum haul_dtype from, uint64_t n,
                         uint64_t off)
{
    uint64_t bytes = n * hl_dtype_bytes(to);
    char *src = b->src + off * hl_dtype_bytes(from), *dst = b->dst + off * hl_dtype_bytes(to);

    hostile(in, from, n, n + (uint64_t)to * 7 + (uint64_t)from);
    hl_arith_convert(want, to, in, from, n, 1);
    memset(want + bytes, 0xee, 16);
    up(b, src, in, n * hl_dtype_bytes(from));
    cr_assert_eq(b->dev->ops->fill(b->dev, dst, 0xee, bytes + 16, b->stream), 0);
    cr_assert_eq(b->dev->ops->convert(b->dev, dst, to, src, from, n, b->stream), 0, "%s",
                 haul_last_error());
    down(b, got, dst, bytes + 16);
    cr_assert_eq(memcmp(got, want, bytes + 16), 0, "%d from %d, %llu elements at %llu", (int)to,
                 (int)from, (unsigned long long)n, (unsigned long long)off);
}

Test(cuda_kernel, convert_gives_the_bits_of_the_cpu)
{
    struct bench b = bench_open();

    for (int to = 0; to < 3; to++)
        for (int from = 0; from < 3; from++)
            for (unsigned i = 0; i < NSIZES; i++)
                for (uint64_t off = 0; off < 2; off++)
                    convert_case(&b, dtypes[to], dtypes[from], sizes[i], off);
    bench_close(&b);
}

/* Every 16-bit pattern, and FP32 patterns of every exponent around each rounding boundary. */
Test(cuda_kernel, every_half_and_every_rounding_boundary_converts_alike)
{
    struct bench b = bench_open();
    uint16_t *half = (uint16_t *)(void *)in;
    uint32_t *word = (uint32_t *)(void *)in;
    unsigned n = 0;

    for (int d = 1; d < 3; d++) {
        for (uint32_t i = 0; i < 65536; i++)
            half[i] = (uint16_t)i;
        hl_arith_convert(want, HAUL_FP32, in, dtypes[d], 65536, 1);
        up(&b, b.src, in, 2 * 65536);
        cr_assert_eq(
            b.dev->ops->convert(b.dev, b.dst, HAUL_FP32, b.src, dtypes[d], 65536, b.stream), 0);
        down(&b, got, b.dst, 4 * 65536);
        cr_assert_eq(memcmp(got, want, 4 * 65536), 0, "dtype %d", (int)dtypes[d]);
    }
    for (uint32_t top = 0; top < 512; top++) /* sign and exponent */
        for (uint32_t low = 0; low < 2; low++)
            for (int shift = 11; shift < 17; shift++)
                for (int near = -1; near < 2; near++)
                    word[n++] = top << 23 | (((low + 1u) << shift) + (uint32_t)near);
    cr_assert_leq(n, MOST);
    for (int d = 1; d < 3; d++) {
        hl_arith_convert(want, dtypes[d], in, HAUL_FP32, n, 1);
        up(&b, b.src, in, 4 * n);
        cr_assert_eq(b.dev->ops->convert(b.dev, b.dst, dtypes[d], b.src, HAUL_FP32, n, b.stream),
                     0);
        down(&b, got, b.dst, 2 * n);
        cr_assert_eq(memcmp(got, want, 2 * n), 0, "dtype %d", (int)dtypes[d]);
    }
    bench_close(&b);
}

Test(cuda_kernel, accumulate_gives_the_bits_of_the_cpu)
{
    struct bench b = bench_open();

    for (int d = 0; d < 3; d++)
        for (unsigned i = 0; i < NSIZES; i++)
            for (uint64_t off = 0; off < 2; off++) {
                uint64_t n = sizes[i];
                char *src = b.src + off * hl_dtype_bytes(dtypes[d]), *acc = b.dst + 4 * off;

                for (int pass = 0; pass < 3; pass++) {
                    hostile(in, dtypes[d], n, n + (uint64_t)pass);
                    hl_arith_accumulate((float *)(void *)want, in, dtypes[d], n, pass == 0, 1);
                    up(&b, src, in, n * hl_dtype_bytes(dtypes[d]));
                    cr_assert_eq(b.dev->ops->accumulate(b.dev, (float *)(void *)acc, src, dtypes[d],
                                                        n, pass == 0, b.stream),
                                 0, "%s", haul_last_error());
                }
                down(&b, got, acc, 4 * n);
                cr_assert_eq(memcmp(got, want, 4 * n), 0, "dtype %d, %llu elements", (int)dtypes[d],
                             (unsigned long long)n);
            }
    bench_close(&b);
}

Test(cuda_kernel, sum_gives_the_bits_of_the_cpu)
{
    struct bench b = bench_open();

    for (int d = 0; d < 3; d++)
        for (unsigned i = 0; i < NSIZES; i++)
            for (uint64_t off = 0; off < 2; off++) {
                uint64_t each = hl_dtype_bytes(dtypes[d]), n = sizes[i] / 3;
                char *src = b.src + off * each, *dst = b.dst + off * each;

                hostile(in, dtypes[d], 3 * n, sizes[i]);
                hl_arith_sum(want, in, dtypes[d], 3, n, 1);
                up(&b, src, in, 3 * n * each);
                cr_assert_eq(b.dev->ops->sum(b.dev, dst, src, dtypes[d], 3, n, b.stream), 0, "%s",
                             haul_last_error());
                down(&b, got, dst, n * each);
                cr_assert_eq(memcmp(got, want, n * each), 0, "dtype %d, %llu elements",
                             (int)dtypes[d], (unsigned long long)n);
            }
    bench_close(&b);
}

static void sumsq_case(struct bench *b, enum haul_dtype dtype, uint64_t n, uint64_t off)
{
    uint64_t nblocks = (n - 1) / HAUL_NORM_BLOCK + 1;
    char *src = b->src + off * hl_dtype_bytes(dtype);

    hl_arith_sumsq_partials((float *)(void *)want, in, dtype, n, 1);
    memset(want + 4 * nblocks, 0xee, 16);
    up(b, src, in, n * hl_dtype_bytes(dtype));
    cr_assert_eq(b->dev->ops->fill(b->dev, b->dst, 0xee, 4 * nblocks + 16, b->stream), 0);
    cr_assert_eq(b->dev->ops->sumsq(b->dev, (float *)(void *)b->dst, src, dtype, n, b->stream), 0,
                 "%s", haul_last_error());
    down(b, got, b->dst, 4 * nblocks + 16);
    cr_assert_eq(memcmp(got, want, 4 * nblocks + 16), 0, "dtype %d, %llu elements at %llu",
                 (int)dtype, (unsigned long long)n, (unsigned long long)off);
}

Test(cuda_kernel, sums_of_squares_give_the_bits_of_the_cpu)
{
    struct bench b = bench_open();

    for (int d = 0; d < 3; d++)
        for (unsigned i = 0; i < NSIZES; i++)
            for (uint64_t off = 0; off < 2; off++) {
                uint64_t seed = i + 1;

                for (uint64_t k = 0; k < sizes[i]; k++)
                    adam_put(in, dtypes[d], k, adam_uniform(&seed));
                sumsq_case(&b, dtypes[d], sizes[i], off);
                hostile(in, dtypes[d], sizes[i], i);
                sumsq_case(&b, dtypes[d], sizes[i], off);
            }
    bench_close(&b);
}

Test(cuda_kernel, squares_that_overflow_are_infinite_and_not_nan)
{
    struct bench b = bench_open();
    float f[3] = {3e38f, 3e38f, 1}, sum = 0;

    up(&b, b.src, f, sizeof f);
    cr_assert_eq(b.dev->ops->sumsq(b.dev, (float *)(void *)b.dst, b.src, HAUL_FP32, 3, b.stream),
                 0);
    down(&b, &sum, b.dst, 4);
    cr_assert_eq(sum, 1.0f / 0.0f);
    bench_close(&b);
}

/* ---- the optimizer ---- */

struct shape {
    enum haul_optimizer kind;
    enum haul_dtype grad, param;
    enum haul_master master;
};

/* The arrays of c on the device, guards and all. */
static void upload(struct bench *b, const struct adam_case *c, char *mem[ADAM_NARRAYS],
                   struct haul_optim_arrays *out)
{
    const void *host[ADAM_NARRAYS] = {c->arrays.grad, c->arrays.master, c->arrays.m, c->arrays.v,
                                      c->arrays.param};
    void *at[ADAM_NARRAYS];

    for (int i = 0; i < ADAM_NARRAYS; i++) {
        mem[i] = device_mem(b->dev, c->bytes[i] + 64);
        up(b, mem[i], c->memory[i], c->bytes[i] + 64);
        at[i] = mem[i] + ((const unsigned char *)host[i] - c->memory[i]);
    }
    *out = c->arrays;
    out->grad = at[ADAM_GRAD];
    out->master = at[ADAM_MASTER];
    out->m = at[ADAM_M];
    out->v = at[ADAM_V];
    out->param = at[ADAM_PARAM];
}

static void steps(struct bench *b, const struct shape *s, uint64_t n, unsigned misalign,
                  enum adam_fill fill)
{
    struct haul_optim_part parts[2] = {{n / 3, 2e-3, 0}, {n - n / 3, 1e-3, 0.1}};
    struct haul_optim_step step = {
        .struct_size = sizeof step, .lr = 1e-2, .weight_decay = 0.1, .grad_scale = 0.37};
    struct haul_optim_arrays shape = {
        .n = n, .grad_dtype = s->grad, .param_dtype = s->param, .master_form = s->master};
    struct hl_device_optim args;
    char *mem[ADAM_NARRAYS];
    struct adam_case cpu;

    haul_optim_init(&args.opt, s->kind);
    cr_assert_eq(adam_case_open(&cpu, &args.opt, &shape, misalign), 0);
    adam_case_fill(&cpu, fill, n + 5);
    upload(b, &cpu, mem, &args.arrays);
    for (step.step = 1; step.step < 4; step.step++) {
        step.parts = step.step == 2 ? parts : NULL;
        step.nparts = step.step == 2 ? 2 : 0;
        args.step = step;
        cr_assert_eq(haul_optim_update(&args.opt, &cpu.arrays, &step, 1), 0, "%s",
                     haul_last_error());
        cr_assert_eq(b->dev->ops->optim(b->dev, &args, b->stream), 0, "%s", haul_last_error());
    }
    for (int i = 0; i < ADAM_NARRAYS; i++) {
        unsigned char *back = malloc(cpu.bytes[i] + 64);

        down(b, back, mem[i], cpu.bytes[i] + 64);
        cr_assert_eq(memcmp(back, cpu.memory[i], cpu.bytes[i] + 64), 0,
                     "array %d: kind %d grad %d param %d master %d, %llu elements, fill %d", i,
                     (int)s->kind, (int)s->grad, (int)s->param, (int)s->master,
                     (unsigned long long)n, (int)fill);
        free(back);
        haul_device_free(b->dev, mem[i]);
    }
    adam_case_close(&cpu);
}

Test(cuda_kernel, the_optimizer_gives_the_bits_of_the_cpu)
{
    static const struct {
        enum haul_dtype param;
        enum haul_master master;
    } forms[] = {{HAUL_DTYPE_NONE, HAUL_MASTER_FP32},
                 {HAUL_BF16, HAUL_MASTER_FP32},
                 {HAUL_FP16, HAUL_MASTER_FP32},
                 {HAUL_BF16, HAUL_MASTER_SPLIT}};
    static const uint64_t ns[] = {0, 1, 9, 2048, 5003};
    struct bench b = bench_open();

    for (int kind = HAUL_ADAMW; kind <= HAUL_ADAM; kind++)
        for (int g = 0; g < 3; g++)
            for (int f = 0; f < 4; f++)
                for (unsigned i = 0; i < sizeof ns / sizeof *ns; i++)
                    for (int fill = ADAM_PLAIN; fill <= ADAM_DENORMAL; fill++)
                        for (unsigned misalign = 0; misalign < 9; misalign += 4) {
                            struct shape s = {kind, dtypes[g], forms[f].param, forms[f].master};
                            steps(&b, &s, ns[i], misalign, fill);
                        }
    bench_close(&b);
}

Test(cuda_kernel, kernels_refuse_what_is_not_theirs)
{
    struct bench b = bench_open();
    const struct hl_device_ops *ops = b.dev->ops;
    char *p = device_mem(b.dev, 64), host[64];
    float *f = (float *)(void *)p;
    void *s = b.stream;

    cr_assert_eq(ops->convert(b.dev, p, HAUL_BF16, p + 32, HAUL_FP32, 8, s), 0);
    cr_assert_eq(ops->convert(b.dev, p, HAUL_BF16, p + 32, HAUL_FP32, 0, s), 0);
    cr_assert_eq(ops->convert(b.dev, p, HAUL_BF16, p + 32, HAUL_FP32, 9, s), -EINVAL);
    cr_assert_eq(ops->convert(b.dev, p, HAUL_BF16, p + 12, HAUL_FP32, 8, s), -EINVAL, "overlap");
    cr_assert_eq(ops->convert(b.dev, p, HAUL_BF16, p + 18, HAUL_FP32, 8, s), -EINVAL,
                 "odd address");
    cr_assert_eq(ops->convert(b.dev, p, HAUL_DTYPE_NONE, p + 32, HAUL_FP32, 8, s), -EINVAL);
    cr_assert_eq(ops->convert(b.dev, p, HAUL_BF16, p + 32, (enum haul_dtype)9, 8, s), -EINVAL);
    cr_assert_eq(ops->convert(b.dev, host, HAUL_BF16, p, HAUL_FP32, 8, s), -EINVAL);
    cr_assert_eq(ops->convert(b.dev, p, HAUL_BF16, p, HAUL_FP32, UINT64_MAX / 2, s), -EINVAL);
    cr_assert_eq(ops->accumulate(b.dev, f, p + 32, HAUL_BF16, 16, 1, s), 0);
    cr_assert_eq(ops->accumulate(b.dev, f, p + 32, HAUL_BF16, 17, 1, s), -EINVAL);
    cr_assert_eq(ops->accumulate(b.dev, f, p, HAUL_DTYPE_NONE, 1, 1, s), -EINVAL);
    cr_assert_eq(ops->sumsq(b.dev, f, p + 32, HAUL_DTYPE_NONE, 1, s), -EINVAL);
    cr_assert_eq(ops->sumsq(b.dev, f, p + 32, HAUL_FP32, 9, s), -EINVAL);
    cr_assert_eq(haul_device_stream_sync(b.dev, s), 0);
    haul_device_free(b.dev, p);
    bench_close(&b);
}

Test(cuda_kernel, updates_that_the_gpu_cannot_do_are_refused_by_name)
{
    struct bench b = bench_open();
    struct hl_device_optim args = {
        .arrays = {.struct_size = sizeof args.arrays,
                   .n = 8,
                   .grad_dtype = HAUL_FP32,
                   .grad = b.src,
                   .master = b.dst,
                   .m = b.dst + 32,
                   .v = b.dst + 64},
        .step = {.struct_size = sizeof args.step, .step = 1, .lr = 1e-3, .grad_scale = 1}};

    haul_optim_init(&args.opt, HAUL_LION);
    cr_assert_eq(b.dev->ops->optim(b.dev, &args, b.stream), -EINVAL);
    error_says("AdamW");
    haul_optim_init(&args.opt, HAUL_ADAMW);
    cr_assert_eq(b.dev->ops->optim(b.dev, &args, b.stream), 0, "%s", haul_last_error());
    args.step.lr = 0.0 / 0.0;
    cr_assert_eq(b.dev->ops->optim(b.dev, &args, b.stream), -EINVAL);
    args.step.lr = 1;
    args.arrays.v = in;
    cr_assert_eq(b.dev->ops->optim(b.dev, &args, b.stream), -EINVAL, "v is in host memory");
    bench_close(&b);
}
