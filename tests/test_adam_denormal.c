/* Denormals are zero in every variant, and cost nothing. */
#include <string.h>

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

/* Every element of the arrays is the same; what one step of AdamW with learning rate 0 makes of them. */
struct one {
    float grad, grad_scale, m, v, master;
};

static void step_all(const struct hl_kernels *k, const struct one *in, struct one *out)
{
    enum { MANY = 77 }; /* vectors, and the reference's tail */
    static float grad[MANY], master[MANY], m[MANY], v[MANY];
    struct haul_optim opt;
    struct haul_optim_arrays a = {.struct_size = sizeof a,
                                  .n = MANY,
                                  .grad_dtype = HAUL_FP32,
                                  .grad = grad,
                                  .master = master,
                                  .m = m,
                                  .v = v};
    struct haul_optim_step s = {.struct_size = sizeof s, .step = 1, .grad_scale = in->grad_scale};

    for (int i = 0; i < MANY; i++) {
        grad[i] = in->grad;
        master[i] = in->master;
        m[i] = in->m;
        v[i] = in->v;
    }
    haul_optim_init(&opt, HAUL_ADAMW);
    cr_assert_eq(hl_optim_update_with(k, &opt, &a, &s, 1), 0);
    for (int i = 1; i < MANY; i++)
        cr_assert(!memcmp(&m[i], &m[0], 4) && !memcmp(&v[i], &v[0], 4) &&
                  !memcmp(&master[i], &master[0], 4));
    *out = (struct one){.m = m[0], .v = v[0], .master = master[0]};
}

static void check_variant(const struct hl_kernels *k)
{
    struct one out;

    /* A denormal gradient is zero before it is scaled: kept, m would be 1e-31. */
    step_all(k, &(struct one){.grad = 1e-40f, .grad_scale = 1e10f}, &out);
    cr_assert_eq(out.m, 0);
    cr_assert_eq(out.v, 0);
    /* A denormal state is zero. */
    step_all(k, &(struct one){.m = 1e-40f, .v = 1e-40f, .master = 1e-40f, .grad_scale = 1}, &out);
    cr_assert_eq(out.m, 0);
    cr_assert_eq(out.v, 0);
    cr_assert_eq(out.master, 0);
    /* A result that would be denormal is zero: 0.1 * 1.2e-38. */
    step_all(k, &(struct one){.grad = 1.2e-38f, .grad_scale = 1}, &out);
    cr_assert_eq(out.m, 0);
    /* Nothing larger is: 0.1 * 1.2e-36 and 0.001 * (1e-17)^2; the master is not touched. */
    step_all(k, &(struct one){.grad = 1.2e-36f, .master = 1.2e-38f, .grad_scale = 1}, &out);
    cr_assert_float_eq((double)out.m / 1.2e-37, 1, 1e-6);
    cr_assert_eq(out.master, 1.2e-38f);
    step_all(k, &(struct one){.grad = 1e-17f, .grad_scale = 1}, &out);
    cr_assert_float_eq((double)out.v / 1e-37, 1, 1e-6);
}

Test(adam_denormal, denormals_are_zero_as_operands_and_as_results_and_nothing_else_is)
{
    for (int isa = 0; isa < HL_NISA; isa++)
        if (hl_kernels_of((enum hl_isa)isa) && hl_cpu_has((enum hl_isa)isa))
            check_variant(hl_kernels_of((enum hl_isa)isa));
}
