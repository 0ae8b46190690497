/* What an update refuses: a code, a text that names the argument, and nothing written. */
#include <errno.h>
#include <math.h>
#include <stddef.h>

#include "adam_case.h"
#include "suite.h"

static float grad[64], master[64], m[64], v[64];
static uint16_t param[64], halves[64];

struct call {
    struct haul_optim opt;
    struct haul_optim_arrays arrays;
    struct haul_optim_step step;
};

static struct call good(void)
{
    struct call c = {
        .arrays = {.struct_size = sizeof c.arrays,
                   .n = 64,
                   .grad_dtype = HAUL_FP32,
                   .param_dtype = HAUL_BF16,
                   .grad = grad,
                   .master = master,
                   .m = m,
                   .v = v,
                   .param = param},
        .step = {.struct_size = sizeof c.step, .step = 1, .lr = 1e-3, .grad_scale = 1},
    };

    haul_optim_init(&c.opt, HAUL_ADAMW);
    return c;
}

static void refused(const struct call *c, int rc, const char *word)
{
    memset(master, 1, sizeof master);
    memset(param, 1, sizeof param);
    cr_assert_eq(haul_optim_update(&c->opt, &c->arrays, &c->step, 1), rc, "%s", word);
    cr_assert_not_null(strstr(haul_last_error(), word), "'%s' does not say '%s'", haul_last_error(),
                       word);
    for (int i = 0; i < 64; i++)
        cr_assert_eq(param[i], 0x0101);
}

#define REFUSED(change, rc, word)                                                                  \
    do {                                                                                           \
        struct call c = good();                                                                    \
        change;                                                                                    \
        refused(&c, rc, word);                                                                     \
    } while (0)

/* Field after field on LP64: what a program that was built yesterday hands over. */
Test(optim_errors, struct_layouts_are_pinned)
{
    cr_assert_eq(sizeof(struct haul_optim), 72);
    cr_assert_eq(offsetof(struct haul_optim, beta1), 16);
    cr_assert_eq(offsetof(struct haul_optim, nesterov), 48);
    cr_assert_eq(offsetof(struct haul_optim, moment_dtype), 60);
    cr_assert_eq(offsetof(struct haul_optim, seed), 64);
    cr_assert_eq(sizeof(struct haul_optim_arrays), 80);
    cr_assert_eq(offsetof(struct haul_optim_arrays, grad_dtype), 16);
    cr_assert_eq(offsetof(struct haul_optim_arrays, grad), 32);
    cr_assert_eq(offsetof(struct haul_optim_arrays, first), 72);
    cr_assert_eq(sizeof(struct haul_optim_part), 24);
    cr_assert_eq(sizeof(struct haul_optim_step), 56);
    cr_assert_eq(offsetof(struct haul_optim_step, lr), 16);
    cr_assert_eq(offsetof(struct haul_optim_step, parts), 40);
    cr_assert_eq(sizeof(struct haul_norm_parts), 48);
    cr_assert_eq(offsetof(struct haul_norm_parts, part_sum), 40);
}

Test(optim_errors, a_good_call_passes)
{
    struct call c = good();

    cr_assert_eq(haul_optim_update(&c.opt, &c.arrays, &c.step, 1), 0, "%s", haul_last_error());
}

Test(optim_errors, null_arguments_and_unknown_struct_sizes)
{
    struct call fine = good();

    cr_assert_eq(haul_optim_update(NULL, &fine.arrays, &fine.step, 1), -EINVAL);
    cr_assert_eq(haul_optim_update(&fine.opt, NULL, &fine.step, 1), -EINVAL);
    cr_assert_eq(haul_optim_update(&fine.opt, &fine.arrays, NULL, 1), -EINVAL);
    REFUSED(c.opt.struct_size = 0, HAUL_E_ABI, "opt->struct_size");
    REFUSED(c.arrays.struct_size++, HAUL_E_ABI, "arrays->struct_size");
    REFUSED(c.step.struct_size = 8, HAUL_E_ABI, "step->struct_size");
}

Test(optim_errors, hyperparameters_out_of_range)
{
    REFUSED(c.opt.kind = (enum haul_optimizer)9, -EINVAL, "opt->kind");
    REFUSED(c.opt.kind = (enum haul_optimizer) - 1, -EINVAL, "opt->kind");
    REFUSED(c.opt.beta1 = 1, -EINVAL, "opt->beta1");
    REFUSED(c.opt.beta1 = -0.1, -EINVAL, "opt->beta1");
    REFUSED(c.opt.beta2 = NAN, -EINVAL, "opt->beta2");
    REFUSED(c.opt.beta2 = 1.5, -EINVAL, "opt->beta2");
    REFUSED(c.opt.momentum = 1, -EINVAL, "opt->momentum");
    REFUSED(c.opt.eps = -1e-9, -EINVAL, "opt->eps");
    REFUSED(c.opt.eps = NAN, -EINVAL, "opt->eps");
    REFUSED(c.opt.amsgrad = 1, -EINVAL, "amsgrad");
    REFUSED(c.opt.moment_dtype = HAUL_FP16, -EINVAL, "moment_dtype");
    REFUSED(c.opt.moment_dtype = HAUL_DTYPE_NONE, -EINVAL, "moment_dtype");
    REFUSED((c.opt.kind = HAUL_SGD, c.opt.momentum = 0, c.opt.nesterov = 1), -EINVAL, "nesterov");
}

/* The call before would have asked OpenMP for them, which ends the process when it fails. */
Test(optim_errors, more_threads_than_a_machine_has)
{
    static const unsigned wrong[] = {4097, 1000000, UINT_MAX - 1};
    static const unsigned right[] = {0, 1, 4096, HAUL_THREADS_OPENMP};
    struct call c = good();

    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        memset(master, 1, sizeof master);
        cr_assert_eq(haul_optim_update(&c.opt, &c.arrays, &c.step, wrong[i]), -EINVAL);
        cr_assert_not_null(strstr(haul_last_error(), "nthreads"), "%s", haul_last_error());
        cr_assert_eq(((char *)master)[0], 1);
    }
    for (size_t i = 0; i < sizeof right / sizeof *right; i++)
        cr_assert_eq(haul_optim_update(&c.opt, &c.arrays, &c.step, right[i]), 0);
}

Test(optim_errors, steps_out_of_range)
{
    REFUSED(c.step.step = 0, -EINVAL, "step->step");
    REFUSED(c.step.lr = NAN, -EINVAL, "step->lr");
    REFUSED(c.step.lr = INFINITY, -EINVAL, "step->lr");
    REFUSED(c.step.weight_decay = -1, -EINVAL, "weight_decay");
    REFUSED(c.step.weight_decay = NAN, -EINVAL, "weight_decay");
    REFUSED(c.step.grad_scale = NAN, -EINVAL, "grad_scale");
}

Test(optim_errors, parts_that_do_not_add_up)
{
    struct haul_optim_part parts[2] = {{.n = 60, .lr = 1e-3}, {.n = 3, .lr = 1e-3}};

    REFUSED((c.step.parts = parts, c.step.nparts = 2), -EINVAL, "parts cover 63");
    parts[1].n = 5;
    REFUSED((c.step.parts = parts, c.step.nparts = 2), -EINVAL, "parts[1].n");
    parts[1].n = 4;
    parts[1].lr = NAN;
    REFUSED((c.step.parts = parts, c.step.nparts = 2), -EINVAL, "parts[1].lr");
    parts[1].lr = 1;
    parts[0].weight_decay = -1;
    REFUSED((c.step.parts = parts, c.step.nparts = 2), -EINVAL, "parts[0].weight_decay");
}

Test(optim_errors, forms_that_are_not_supported)
{
    REFUSED(c.arrays.grad_dtype = HAUL_DTYPE_NONE, -EINVAL, "grad_dtype");
    REFUSED(c.arrays.grad_dtype = (enum haul_dtype)17, -EINVAL, "grad_dtype");
    REFUSED(c.arrays.param_dtype = HAUL_FP32, -EINVAL, "param_dtype");
    REFUSED(c.arrays.master_form = (enum haul_master)2, -EINVAL, "master_form");
    REFUSED((c.arrays.master_form = HAUL_MASTER_SPLIT, c.arrays.param_dtype = HAUL_FP16), -EINVAL,
            "SPLIT");
    REFUSED((c.arrays.master_form = HAUL_MASTER_SPLIT, c.arrays.param_dtype = HAUL_DTYPE_NONE),
            -EINVAL, "SPLIT");
    REFUSED(c.arrays.n = UINT64_MAX, -EINVAL, "arrays->n");
}

Test(optim_errors, missing_and_overlapping_arrays)
{
    REFUSED(c.arrays.grad = NULL, -EINVAL, "arrays->grad");
    REFUSED(c.arrays.master = NULL, -EINVAL, "arrays->master");
    REFUSED(c.arrays.m = NULL, -EINVAL, "arrays->m");
    REFUSED(c.arrays.v = NULL, -EINVAL, "arrays->v");
    REFUSED(c.arrays.param = NULL, -EINVAL, "arrays->param");
    REFUSED(c.arrays.m = c.arrays.v, -EINVAL, "overlap");
    REFUSED(c.arrays.grad = c.arrays.master, -EINVAL, "overlap");
    REFUSED((c.arrays.n = 32, c.arrays.param = (char *)master + 127), -EINVAL,
            "arrays->master and arrays->param overlap");
}

Test(optim_errors, what_looks_odd_and_is_fine)
{
    struct call c = good();

    c.arrays.n = 0;
    c.arrays.grad = c.arrays.master = c.arrays.m = c.arrays.v = c.arrays.param = NULL;
    cr_assert_eq(haul_optim_update(&c.opt, &c.arrays, &c.step, 1), 0, "n = 0");
    c = good();
    c.arrays.param = (char *)master + 128;
    c.arrays.n = 32;
    cr_assert_eq(haul_optim_update(&c.opt, &c.arrays, &c.step, 1), 0, "arrays that touch");
    c = good();
    c.opt.kind = HAUL_LION;
    c.arrays.v = NULL;
    cr_assert_eq(haul_optim_update(&c.opt, &c.arrays, &c.step, 1), 0, "Lion has no v");
    c = good();
    c.opt.kind = HAUL_SGD;
    c.arrays.m = c.arrays.v = NULL;
    cr_assert_eq(haul_optim_update(&c.opt, &c.arrays, &c.step, 1), 0, "SGD has no moments");
    c = good();
    c.arrays.master_form = HAUL_MASTER_SPLIT;
    c.arrays.master = halves;
    c.opt.eps = 0;
    c.opt.beta1 = c.opt.beta2 = 0;
    cr_assert_eq(haul_optim_update(&c.opt, &c.arrays, &c.step, 1), 0, "split, betas 0");
}
