/* Denormals are kept in every variant, and cost little. */
#include "adam_case.h"
#include "clock.h"
#include "cpu.h"
#include "optim_update.h"
#include "suite.h"

#define N      (4 << 20) /* 56 MiB: from memory, where updates live */
#define ROUNDS 12

static uint64_t time_of(const struct hl_kernels *k, struct adam_case *c)
{
    struct haul_optim_step s = {.struct_size = sizeof s, .step = 1, .lr = 1e-42, .grad_scale = 1};
    uint64_t start = hl_clock_ns();

    cr_assert_eq(hl_optim_update_with(k, &c->opt, &c->arrays, &s, 1), 0);
    return hl_clock_ns() - start;
}

static void open_case(struct adam_case *c, enum adam_fill fill, enum haul_dtype grad)
{
    struct haul_optim_arrays shape = {.n = N, .grad_dtype = grad, .param_dtype = HAUL_BF16};
    struct haul_optim opt;

    haul_optim_init(&opt, HAUL_ADAMW);
    cr_assert_eq(adam_case_open(c, &opt, &shape, 0), 0);
    adam_case_fill(c, fill, 1);
}

/* The fastest of many runs that take turns, so that a busy machine does not decide. */
static void compare(enum hl_isa isa, enum haul_dtype grad)
{
    uint64_t plain = UINT64_MAX, denormal = UINT64_MAX, t;
    struct adam_case a, b;

    open_case(&a, ADAM_PLAIN, grad);
    open_case(&b, ADAM_DENORMAL, grad);
    for (int r = 0; r < ROUNDS; r++) {
        t = time_of(hl_kernels_of(isa), &a);
        plain = t < plain ? t : plain;
        t = time_of(hl_kernels_of(isa), &b);
        denormal = t < denormal ? t : denormal;
    }
    cr_log_info("%s: %.3f times as long", hl_isa_name(isa), (double)denormal / (double)plain);
    cr_assert_leq((double)denormal, 1.5 * (double)plain, "%s: %d ns plain, %d ns denormal",
                  hl_isa_name(isa), (int)plain, (int)denormal);
    adam_case_close(&a);
    adam_case_close(&b);
}

Test(adam_denormal, a_range_full_of_denormals_is_not_slower_than_half_again)
{
    static const enum hl_isa isas[] = {HL_ISA_AVX2, HL_ISA_AVX512};

    for (int i = 0; i < 2; i++)
        if (hl_cpu_has(isas[i])) {
            compare(isas[i], HAUL_FP32);
            compare(isas[i], HAUL_BF16);
        }
}

Test(adam_denormal, denormals_are_not_flushed_to_zero)
{
    float grad = 1e-40f, master = 1e-40f, m = 1e-40f, v = 1e-40f;
    struct haul_optim opt;
    struct haul_optim_arrays a = {.struct_size = sizeof a,
                                  .n = 1,
                                  .grad_dtype = HAUL_FP32,
                                  .grad = &grad,
                                  .master = &master,
                                  .m = &m,
                                  .v = &v};
    struct haul_optim_step s = {.struct_size = sizeof s, .step = 1, .lr = 0, .grad_scale = 1};

    haul_optim_init(&opt, HAUL_ADAMW);
    cr_assert_eq(haul_optim_update(&opt, &a, &s, 1), 0);
    cr_assert_eq(master, 1e-40f);
    cr_assert_float_eq((double)m, 1e-40, 2e-45); /* 0.9 * 1e-40 + 0.1 * 1e-40 */
    cr_assert_float_eq((double)v, 0.999e-40, 2e-45);
}
