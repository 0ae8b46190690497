/* The emulated device: kernels. Expected values are worked by hand from the formats and formulas. */
#include "test_device_fixture.h"

struct bench {
    struct haul_device *dev;
    void *stream;
};

static struct bench bench_open(void)
{
    struct haul_device *dev = device_plain();

    return (struct bench){dev, device_stream(dev)};
}

static void bench_close(struct bench *b)
{
    haul_device_stream_close(b->dev, b->stream);
    cr_assert_eq(haul_device_close(b->dev), 0);
}

static void *upload(struct bench *b, const void *src, uint64_t bytes)
{
    void *p = device_mem(b->dev, bytes);

    cr_assert_eq(haul_device_copy_h2d(b->dev, p, src, bytes, b->stream), 0);
    return p;
}

static void download(struct bench *b, void *dst, const void *src, uint64_t bytes)
{
    cr_assert_eq(haul_device_copy_d2h(b->dev, dst, src, bytes, b->stream), 0);
    cr_assert_eq(haul_device_stream_sync(b->dev, b->stream), 0);
}

Test(device_kernel, convert_rounds_bf16_away_from_zero_and_fp16_to_even)
{
    /* 1 + 2^-8 lies half way between two BF16 values, 1 + 2^-11 between two FP16 values. */
    static const uint32_t in[6] = {0x3f800000, 0x3f808000, 0xbf808000,
                                   0x3f801000, 0x7f800000, 0xffc12345};
    static const uint16_t bf16[6] = {0x3f80, 0x3f81, 0xbf81, 0x3f80, 0x7f80, 0x7fc0};
    static const uint16_t fp16[6] = {0x3c00, 0x3c04, 0xbc04, 0x3c00, 0x7c00, 0x7e00};
    static const uint32_t wide[6] = {0x3f800000, 0x3f810000, 0xbf810000,
                                     0x3f800000, 0x7f800000, 0x7fc00000};
    struct bench b = bench_open();
    const struct hl_device_ops *ops = b.dev->ops;
    void *src = upload(&b, in, sizeof in), *dst = device_mem(b.dev, sizeof bf16);
    void *back = device_mem(b.dev, sizeof wide);
    uint16_t got[6];
    uint32_t got32[6];

    cr_assert_eq(ops->convert(b.dev, dst, HAUL_BF16, src, HAUL_FP32, 6, b.stream), 0);
    cr_assert_eq(ops->convert(b.dev, back, HAUL_FP32, dst, HAUL_BF16, 6, b.stream), 0);
    download(&b, got, dst, sizeof got);
    download(&b, got32, back, sizeof got32);
    cr_assert_eq(memcmp(got, bf16, sizeof got), 0);
    cr_assert_eq(memcmp(got32, wide, sizeof wide), 0);
    cr_assert_eq(ops->convert(b.dev, dst, HAUL_FP16, src, HAUL_FP32, 6, b.stream), 0);
    download(&b, got, dst, sizeof got);
    cr_assert_eq(memcmp(got, fp16, sizeof got), 0);
    haul_device_free(b.dev, src);
    haul_device_free(b.dev, dst);
    haul_device_free(b.dev, back);
    bench_close(&b);
}

Test(device_kernel, accumulate_begins_anew_or_adds)
{
    static const uint16_t g[3] = {0x3f80, 0xc000, 0x3f00}; /* 1, -2, 0.5 */
    struct bench b = bench_open();
    void *src = upload(&b, g, sizeof g);
    float *acc = device_mem(b.dev, 3 * sizeof(float)), got[3];

    cr_assert_eq(b.dev->ops->accumulate(b.dev, acc, src, HAUL_BF16, 3, 1, b.stream), 0);
    cr_assert_eq(b.dev->ops->accumulate(b.dev, acc, src, HAUL_BF16, 3, 0, b.stream), 0);
    cr_assert_eq(b.dev->ops->accumulate(b.dev, acc, src, HAUL_BF16, 3, 0, b.stream), 0);
    download(&b, got, acc, sizeof got);
    cr_assert_eq(got[0], 3.0f);
    cr_assert_eq(got[1], -6.0f);
    cr_assert_eq(got[2], 1.5f);
    haul_device_free(b.dev, src);
    haul_device_free(b.dev, acc);
    bench_close(&b);
}

/* 1 + 2^-7 and 1 are neighbours in BF16, their sum a tie: 2 + 2^-7 goes to 2, and 2 + 3 * 2^-7 to 2 + 2^-5. */
Test(device_kernel, sum_adds_parts_in_order_and_rounds_half_to_even)
{
    static const uint16_t parts[2][4] = {{0x3f81, 0x3f82, 0xbf81, 0x7f80},
                                         {0x3f80, 0x3f81, 0xbf80, 0xff80}};
    static const uint16_t want[4] = {0x4000, 0x4002, 0xc000, 0x7fc0};
    /* 2^24 + 1 is a tie in FP32: from the left it stays 2^24 twice, from the right it would be 2^24 + 2 */
    static const float order[3] = {16777216.0f, 1.0f, 1.0f};
    struct bench b = bench_open();
    void *src = upload(&b, parts, sizeof parts), *wide = upload(&b, order, sizeof order);
    void *dst = device_mem(b.dev, sizeof want);
    uint16_t got[4];
    float sum;

    cr_assert_eq(b.dev->ops->sum(b.dev, dst, src, HAUL_BF16, 2, 4, b.stream), 0);
    download(&b, got, dst, sizeof got);
    cr_assert_eq(memcmp(got, want, sizeof want), 0, "%x %x %x %x", got[0], got[1], got[2], got[3]);
    cr_assert_eq(b.dev->ops->sum(b.dev, dst, wide, HAUL_FP32, 3, 1, b.stream), 0);
    download(&b, &sum, dst, sizeof sum);
    cr_assert_eq(sum, 16777216.0f);
    cr_assert_eq(b.dev->ops->sum(b.dev, dst, src, HAUL_BF16, 0, 4, b.stream), -EINVAL);
    cr_assert_eq(b.dev->ops->sum(b.dev, dst, src, HAUL_BF16, 3, 4, b.stream), -EINVAL,
                 "past its end");
    cr_assert_eq(b.dev->ops->sum(b.dev, src, src, HAUL_BF16, 2, 4, b.stream), -EINVAL, "overlap");
    haul_device_free(b.dev, src);
    haul_device_free(b.dev, wide);
    haul_device_free(b.dev, dst);
    bench_close(&b);
}

Test(device_kernel, sumsq_gives_one_partial_per_block_and_nan_where_not_finite)
{
    enum { N = 3 * HAUL_NORM_BLOCK + 5 };
    static float g[N];
    struct bench b = bench_open();
    float *partial = device_mem(b.dev, 4 * sizeof(float)), got[4];
    void *src;

    for (int i = 0; i < N; i++)
        g[i] = i < HAUL_NORM_BLOCK ? 1.0f : 2.0f;
    g[2 * HAUL_NORM_BLOCK + 7] = 1.0f / 0.0f;
    src = upload(&b, g, sizeof g);
    cr_assert_eq(b.dev->ops->sumsq(b.dev, partial, src, HAUL_FP32, N, b.stream), 0);
    download(&b, got, partial, sizeof got);
    cr_assert_eq(got[0], 4096.0f);
    cr_assert_eq(got[1], 16384.0f);
    cr_assert(got[2] != got[2]);
    cr_assert_eq(got[3], 20.0f);
    haul_device_free(b.dev, partial);
    partial = device_mem(b.dev, 3 * sizeof(float));
    cr_assert_eq(b.dev->ops->sumsq(b.dev, partial, src, HAUL_FP32, N, b.stream), -EINVAL,
                 "room for 3 of 4 partials");
    haul_device_free(b.dev, partial);
    haul_device_free(b.dev, src);
    bench_close(&b);
}

Test(device_kernel, fill_writes_the_byte_and_nothing_else)
{
    struct bench b = bench_open();
    unsigned char *p = device_mem(b.dev, 100), got[100];

    cr_assert_eq(b.dev->ops->fill(b.dev, p + 10, 7, 80, b.stream), 0);
    download(&b, got, p, sizeof got);
    for (int i = 0; i < 100; i++)
        cr_assert_eq(got[i], i >= 10 && i < 90 ? 7 : 0xff, "byte %d", i);
    haul_device_free(b.dev, p);
    bench_close(&b);
}

Test(device_kernel, kernels_refuse_what_is_not_theirs)
{
    struct bench b = bench_open();
    const struct hl_device_ops *ops = b.dev->ops;
    char *p = device_mem(b.dev, 64), host[64];
    void *s = b.stream;

    cr_assert_eq(ops->convert(b.dev, p, HAUL_BF16, p + 32, HAUL_FP32, 8, s), 0);
    cr_assert_eq(ops->convert(b.dev, p, HAUL_BF16, p + 32, HAUL_FP32, 0, s), 0);
    cr_assert_eq(ops->convert(b.dev, p, HAUL_BF16, p + 32, HAUL_FP32, 9, s), -EINVAL);
    cr_assert_eq(ops->convert(b.dev, p, HAUL_BF16, p + 14, HAUL_FP32, 8, s), -EINVAL, "overlap");
    cr_assert_eq(ops->convert(b.dev, p, HAUL_DTYPE_NONE, p + 32, HAUL_FP32, 8, s), -EINVAL);
    cr_assert_eq(ops->convert(b.dev, p, HAUL_BF16, p + 32, (enum haul_dtype)9, 8, s), -EINVAL);
    cr_assert_eq(ops->convert(b.dev, host, HAUL_BF16, p, HAUL_FP32, 8, s), -EINVAL);
    cr_assert_eq(ops->convert(b.dev, p, HAUL_BF16, p, HAUL_FP32, UINT64_MAX / 2, s), -EINVAL);
    cr_assert_eq(ops->accumulate(b.dev, (float *)(void *)p, p + 32, HAUL_BF16, 16, 1, s), 0);
    cr_assert_eq(ops->accumulate(b.dev, (float *)(void *)p, p + 32, HAUL_BF16, 17, 1, s), -EINVAL);
    cr_assert_eq(ops->accumulate(b.dev, (float *)(void *)p, host, HAUL_BF16, 1, 1, s), -EINVAL);
    cr_assert_eq(ops->accumulate(b.dev, (float *)(void *)p, p, HAUL_DTYPE_NONE, 1, 1, s), -EINVAL);
    cr_assert_eq(ops->sumsq(b.dev, (float *)(void *)p, p + 32, HAUL_DTYPE_NONE, 1, s), -EINVAL);
    cr_assert_eq(ops->convert(b.dev, p, HAUL_BF16, p + 32, HAUL_FP32, 8, NULL), -EINVAL);
    cr_assert_eq(haul_device_stream_sync(b.dev, s), 0);
    haul_device_free(b.dev, p);
    bench_close(&b);
}

enum { OPTIM_N = 5000 };

struct state {
    float master[OPTIM_N], m[OPTIM_N], v[OPTIM_N];
    uint16_t grad[OPTIM_N], param[OPTIM_N];
};

static struct hl_device_optim optim_args(struct state *at)
{
    struct hl_device_optim args = {
        .arrays = {.struct_size = sizeof args.arrays,
                   .n = OPTIM_N,
                   .grad_dtype = HAUL_BF16,
                   .param_dtype = HAUL_BF16,
                   .grad = at->grad,
                   .master = at->master,
                   .m = at->m,
                   .v = at->v,
                   .param = at->param},
        .step = {.struct_size = sizeof args.step,
                 .step = 3,
                 .lr = 1e-3,
                 .weight_decay = 0.01,
                 .grad_scale = 0.5},
    };

    haul_optim_init(&args.opt, HAUL_ADAMW);
    return args;
}

Test(device_kernel, the_optimizer_gives_the_bits_of_the_host)
{
    static struct state host, got;
    struct bench b = bench_open();
    struct state *dev_state;
    struct hl_device_optim args, host_args = optim_args(&host);

    for (int i = 0; i < OPTIM_N; i++) {
        host.master[i] = (float)(i - 2500) * 0.001f;
        host.m[i] = (float)(i % 17) * 1e-3f;
        host.v[i] = (float)(i % 13) * 1e-4f;
        host.grad[i] = (uint16_t)(0x3c00 + i % 700);
    }
    dev_state = upload(&b, &host, sizeof host);
    cr_assert_eq(haul_device_stream_sync(b.dev, b.stream), 0);
    args = optim_args(dev_state);
    cr_assert_eq(b.dev->ops->optim(b.dev, &args, b.stream), 0);
    memset(&args, 0, sizeof args); /* it was copied */
    download(&b, &got, dev_state, sizeof got);
    cr_assert_eq(haul_optim_update(&host_args.opt, &host_args.arrays, &host_args.step, 1), 0);
    cr_assert_eq(memcmp(&got, &host, sizeof got), 0);

    args = optim_args(dev_state);
    args.arrays.v = host.v;
    cr_assert_eq(b.dev->ops->optim(b.dev, &args, b.stream), -EINVAL, "v is in host memory");
    args = optim_args(dev_state);
    args.arrays.grad = dev_state->param + 1; /* the last element is outside */
    cr_assert_eq(b.dev->ops->optim(b.dev, &args, b.stream), -EINVAL);
    haul_device_free(b.dev, dev_state);
    bench_close(&b);
}

Test(device_kernel, an_update_that_fails_fails_its_stream)
{
    static struct state zero;
    struct bench b = bench_open();
    struct state *dev_state = upload(&b, &zero, sizeof zero);
    struct hl_device_optim args = optim_args(dev_state);

    args.step.lr = 0.0 / 0.0;
    cr_assert_eq(b.dev->ops->optim(b.dev, &args, b.stream), 0, "found when it runs");
    cr_assert_eq(haul_device_stream_sync(b.dev, b.stream), -EINVAL);
    cr_assert_gt(strlen(haul_last_error()), 0u);
    haul_device_free(b.dev, dev_state);
    bench_close(&b);
}
