/* gpu.c of examples/train_gpt over the fake driver and the fake cuBLAS, or a GPU: errors, leaks, products by hand. */
#include "suite.h"
#include "test_cuda_fixture.h"
#include "../examples/train_gpt/gpu.h"

static struct haul_device *open_device(void)
{
    struct haul_device *dev = cuda_open();

    /* found by its name from now on */
    if (!on_gpu())
        cr_assert_not_null(dlopen(FAKE_CUBLAS_LIB, RTLD_NOW | RTLD_LOCAL), "%s", dlerror());
    return dev;
}

/* A GPU's machine need not have cuBLAS. */
static void open_gpu(struct gpu **out)
{
    int rc = gpu_open(0, out);

    if (on_gpu() && rc == HAUL_E_DEVICE && strstr(gpu_error(), "no cuBLAS"))
        SKIP("cuBLAS: %s", gpu_error());
    cr_assert_eq(rc, 0, "%s", gpu_error());
}

Test(cuda_gpu, every_failing_call_while_opening_is_an_error_and_leaves_nothing)
{
    fake_only("its calls fail");
    struct haul_device *dev = open_device();
    int64_t live = fake.live();
    struct gpu *gpu = NULL;
    int n, rc;

    for (n = 1; n < 1000; n++) {
        fake.fail_nth(n, n % 2 ? CUDA_UNKNOWN : CUDA_NO_MEMORY);
        rc = gpu_open(0, &gpu);
        if (!fake.failed())
            break;
        cr_assert_eq(rc, n % 2 ? HAUL_E_DEVICE : -ENOMEM, "call %d: %d", n, rc);
        cr_assert_null(gpu);
        cr_assert_neq(gpu_error()[0], '\0', "call %d", n);
        cr_assert_eq(fake.live(), live, "call %d: %lld alive, %lld before", n,
                     (long long)fake.live(), (long long)live);
    }
    fake.fail_nth(0, 0);
    cr_assert_gt(n, GK_NKERNELS);
    cr_assert_eq(rc, 0, "%s", gpu_error());
    cr_assert_str_eq(gpu_error(), "");
    gpu_close(gpu);
    cuda_close(dev);
}

struct bound {
    struct haul_device *dev;
    struct gpu *gpu;
    void *stream;
    char *mem; /* the workspace, and then ROOM bytes */
};
#define ROOM 4096

static void open_bound(struct bound *b)
{
    void *mem;

    b->dev = open_device();
    open_gpu(&b->gpu);
    cr_assert_eq(haul_device_stream_open(b->dev, &b->stream), 0);
    cr_assert_eq(haul_device_alloc(b->dev, GPU_WORKSPACE_BYTES + ROOM, &mem), 0);
    b->mem = mem;
    cr_assert_eq(gpu_bind(b->gpu, b->stream, mem), 0, "%s", gpu_error());
}

static void close_bound(struct bound *b)
{
    haul_device_stream_close(b->dev, b->stream);
    haul_device_free(b->dev, b->mem);
    gpu_close(b->gpu);
    cuda_close(b->dev);
}

static char *put(struct bound *b, uint64_t at, const void *src, uint64_t bytes)
{
    char *dst = b->mem + GPU_WORKSPACE_BYTES + at;

    cr_assert_eq(haul_device_copy_h2d(b->dev, dst, src, bytes, b->stream), 0);
    return dst;
}

static void get(struct bound *b, void *dst, const void *src, uint64_t bytes)
{
    cr_assert_eq(haul_device_copy_d2h(b->dev, dst, src, bytes, b->stream), 0);
    cr_assert_eq(haul_device_stream_sync(b->dev, b->stream), 0);
}

/* BF16 of small whole numbers. */
#define BF16_0 0x0000
#define BF16_1 0x3f80
#define BF16_2 0x4000
#define BF16_3 0x4040
#define BF16_4 0x4080
#define BF16_5 0x40a0
#define BF16_6 0x40c0

Test(cuda_gpu, products_are_those_worked_by_hand)
{
    /* a = (1 2 3; 4 5 6), b = (1 0; 2 1; 0 3): a b = (5 11; 14 23) */
    static const gk_half a[] = {BF16_1, BF16_2, BF16_3, BF16_4, BF16_5, BF16_6};
    static const gk_half a_turned[] = {BF16_1, BF16_4, BF16_2, BF16_5, BF16_3, BF16_6};
    static const gk_half b[] = {BF16_1, BF16_0, BF16_2, BF16_1, BF16_0, BF16_3};
    static const gk_half b_turned[] = {BF16_1, BF16_2, BF16_0, BF16_0, BF16_1, BF16_3};
    static const float c0[] = {1, 2, -1, 3, 4, -1}; /* rows of 2 in a stride of 3 */
    struct bound f;
    float c[6];

    open_bound(&f);
    for (int turned = 0; turned < 4; turned++) {
        struct gpu_product p = {.m = 2,
                                .n = 2,
                                .k = 3,
                                .turn_a = turned & 1,
                                .turn_b = turned & 2,
                                .lda = turned & 1 ? 2 : 3,
                                .ldb = turned & 2 ? 3 : 2,
                                .ldc = 3,
                                .scale = 2,
                                .keep = 10,
                                .batch = 1};

        p.a = (void *)put(&f, 0, turned & 1 ? a_turned : a, sizeof a);
        p.b = (void *)put(&f, 256, turned & 2 ? b_turned : b, sizeof b);
        p.c = (void *)put(&f, 512, c0, sizeof c0);
        gpu_multiply(f.gpu, &p);
        cr_assert_eq(gpu_status(f.gpu), 0, "%s", gpu_error());
        get(&f, c, p.c, sizeof c);
        cr_assert_float_eq(c[0], 2 * 5 + 10 * 1, 0);
        cr_assert_float_eq(c[1], 2 * 11 + 10 * 2, 0);
        cr_assert_float_eq(c[2], -1, 0);
        cr_assert_float_eq(c[3], 2 * 14 + 10 * 3, 0);
        cr_assert_float_eq(c[4], 2 * 23 + 10 * 4, 0);
        cr_assert_float_eq(c[5], -1, 0);
    }
    close_bound(&f);
}

Test(cuda_gpu, a_batch_of_products_goes_to_bf16)
{
    /* (1 2; 3) . (4; 5), one column each: 1 * 4 + 2 * 5 = 14, 3 * 6 + 1 * 2 = 20 */
    static const gk_half a[] = {BF16_1, BF16_2, BF16_0, BF16_3, BF16_1};
    static const gk_half b[] = {BF16_4, BF16_5, BF16_6, BF16_2};
    struct gpu_product p = {.m = 1,
                            .n = 1,
                            .k = 2,
                            .lda = 2,
                            .ldb = 1,
                            .ldc = 1,
                            .scale = 1,
                            .batch = 2,
                            .stride_a = 3,
                            .stride_b = 2,
                            .stride_c = 4};
    gk_half c[5] = {0};
    struct bound f;

    open_bound(&f);
    p.a = (void *)put(&f, 0, a, sizeof a);
    p.b = (void *)put(&f, 256, b, sizeof b);
    p.c16 = (void *)put(&f, 512, c, sizeof c);
    gpu_multiply(f.gpu, &p);
    cr_assert_eq(gpu_status(f.gpu), 0, "%s", gpu_error());
    get(&f, c, p.c16, sizeof c);
    cr_assert_eq(c[0], 0x4160); /* 14 */
    cr_assert_eq(c[4], 0x41a0); /* 20 */
    cr_assert_eq(c[1] | c[2] | c[3], 0);
    close_bound(&f);
}

Test(cuda_gpu, narrowing_is_to_nearest_with_halves_to_even)
{
    /* one; a half that goes down to even, one that goes up; past a half; the largest; Inf; NaN */
    static const uint32_t x[] = {0x3f800000, 0x3f808000, 0x3f818000, 0x3f808001,
                                 0x7f7fffff, 0xff800000, 0x7f800001};
    static const gk_half y[] = {0x3f80, 0x3f80, 0x3f82, 0x3f81, 0x7f80, 0xff80, 0x7fc0};
    /* FP16: 1, -2, the smallest number (2^-24), 65504, Inf */
    static const uint16_t halves[] = {0x3c00, 0xc000, 0x0001, 0x7bff, 0x7c00};
    static const gk_half z[] = {0x3f80, 0xc000, 0x3380, 0x4780, 0x7f80};
    struct gk_args args = {.n = 7};
    gk_half out[7];
    struct bound f;

    open_bound(&f);
    args.y16 = (void *)(f.mem + GPU_WORKSPACE_BYTES + 512);
    args.x = (void *)put(&f, 0, x, sizeof x);
    gpu_launch(f.gpu, GK_narrow, &args);
    get(&f, out, args.y16, sizeof out);
    cr_assert_eq(memcmp(out, y, sizeof y), 0);
    args.n = 5;
    args.raw = put(&f, 0, halves, sizeof halves);
    gpu_launch(f.gpu, GK_narrow_fp16, &args);
    get(&f, out, args.y16, sizeof z);
    cr_assert_eq(memcmp(out, z, sizeof z), 0);
    cr_assert_eq(gpu_status(f.gpu), 0, "%s", gpu_error());
    close_bound(&f);
}

Test(cuda_gpu, the_first_error_of_a_launch_stays)
{
    struct gk_args args = {.n = 1};
    struct bound f;

    fake_only("a launch fails");
    open_bound(&f);
    args.x = (void *)(f.mem + GPU_WORKSPACE_BYTES);
    args.y16 = (void *)(f.mem + GPU_WORKSPACE_BYTES + 64);
    fake.fail_nth(1, CUDA_ILLEGAL);
    gpu_launch(f.gpu, GK_narrow, &args);
    cr_assert_eq(gpu_status(f.gpu), HAUL_E_DEVICE);
    cr_assert_not_null(strstr(gpu_error(), "cuLaunchKernel"), "%s", gpu_error());
    fake.fail_nth(0, 0);
    gpu_launch(f.gpu, GK_narrow, &args);
    gpu_multiply(f.gpu, &(struct gpu_product){.m = 1});
    cr_assert_eq(fake.calls(), 0, "nothing more was asked for");
    cr_assert_eq(gpu_status(f.gpu), HAUL_E_DEVICE);
    close_bound(&f);
}
