/* Denormals are zero in every variant, and cost nothing. */
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

Test(adam_denormal, denormals_are_zero_as_operands_and_as_results)
{
    float grad[2] = {1e-40f, 1.2e-38f}, master[2] = {1e-40f, 0}, m[2] = {1e-40f, 0},
          v[2] = {1e-40f, 0};
    struct haul_optim opt;
    struct haul_optim_arrays a = {.struct_size = sizeof a,
                                  .n = 2,
                                  .grad_dtype = HAUL_FP32,
                                  .grad = grad,
                                  .master = master,
                                  .m = m,
                                  .v = v};
    struct haul_optim_step s = {.struct_size = sizeof s, .step = 1, .lr = 0, .grad_scale = 1};

    haul_optim_init(&opt, HAUL_ADAMW);
    cr_assert_eq(haul_optim_update(&opt, &a, &s, 1), 0);
    for (int i = 0; i < 2; i++) { /* 0.1 * 1.2e-38 would be denormal */
        cr_assert_eq(master[i], 0);
        cr_assert_eq(m[i], 0);
        cr_assert_eq(v[i], 0);
    }
}
