/* Every variant gives the bits of the C reference, in every layout, at every size and alignment. */
#include "adam_case.h"
#include "cpu.h"
#include "optim_update.h"
#include "suite.h"

static const enum hl_isa isas[] = {HL_ISA_NEON, HL_ISA_AVX2, HL_ISA_AVX512};
#define NISAS (sizeof isas / sizeof *isas)

static const struct hl_kernels *variant(enum hl_isa isa)
{
    return hl_cpu_has(isa) ? hl_kernels_of(isa) : NULL;
}

static struct haul_optim optim_of(int kind, enum haul_dtype moment)
{
    struct haul_optim opt;

    haul_optim_init(&opt, kind == 5 ? HAUL_SGD : (enum haul_optimizer)kind);
    if (kind == HAUL_SGD)
        opt.momentum = 0;
    opt.nesterov = kind == 5;
    opt.moment_dtype = moment;
    opt.seed = 7;
    return opt;
}

struct layout {
    enum haul_dtype grad, param, moment;
    enum haul_master master;
};

static unsigned all_layouts(struct layout out[24])
{
    static const enum haul_dtype grads[] = {HAUL_FP32, HAUL_BF16, HAUL_FP16};
    static const enum haul_dtype params[] = {HAUL_DTYPE_NONE, HAUL_BF16, HAUL_FP16, HAUL_BF16};
    static const enum haul_dtype moments[] = {HAUL_FP32, HAUL_BF16};
    unsigned n = 0;

    for (int g = 0; g < 3; g++)
        for (int p = 0; p < 4; p++)
            for (int m = 0; m < 2; m++)
                out[n++] = (struct layout){grads[g], params[p], moments[m],
                                           p == 3 ? HAUL_MASTER_SPLIT : HAUL_MASTER_FP32};
    return n;
}

static struct haul_optim_arrays shape_of(const struct layout *l, uint64_t n)
{
    return (struct haul_optim_arrays){.struct_size = sizeof(struct haul_optim_arrays),
                                      .n = n,
                                      .grad_dtype = l->grad,
                                      .param_dtype = l->param,
                                      .master_form = l->master,
                                      .first = 12345};
}

static const struct haul_optim_step step_3 = {
    .struct_size = sizeof step_3, .step = 3, .lr = 1e-2, .weight_decay = 0.1, .grad_scale = 0.7};

static void open_case(struct adam_case *c, const struct haul_optim *opt,
                      const struct haul_optim_arrays *shape, unsigned misalign, enum adam_fill fill)
{
    cr_assert_eq(adam_case_open(c, opt, shape, misalign), 0);
    adam_case_fill(c, fill, shape->n * 64 + misalign);
}

static void same_bits(const struct hl_kernels *k, const char *name, int kind,
                      const struct layout *l, uint64_t n, unsigned misalign, enum adam_fill fill,
                      unsigned nthreads)
{
    struct haul_optim opt = optim_of(kind, l->moment);
    struct haul_optim_arrays shape = shape_of(l, n);
    struct adam_case want, got;
    int which;

    open_case(&want, &opt, &shape, misalign, fill);
    open_case(&got, &opt, &shape, misalign, fill);
    cr_assert_eq(adam_case_differs(&want, &got), -1);
    cr_assert_eq(hl_optim_update_with(&hl_kernels_c, &opt, &want.arrays, &step_3, 1), 0);
    cr_assert_eq(hl_optim_update_with(k, &opt, &got.arrays, &step_3, nthreads), 0);
    which = adam_case_differs(&want, &got);
    cr_assert_eq(which, -1, "%s: array %d differs: kind %d, grad %d, param %d, moment %d, n %d",
                 name, which, kind, l->grad, l->param, l->moment, (int)n);
    adam_case_close(&want);
    adam_case_close(&got);
}

static void each_variant(uint64_t n, unsigned misalign, enum adam_fill fill, unsigned nthreads)
{
    struct layout layouts[24];
    unsigned nlayouts = all_layouts(layouts);

    for (unsigned i = 0; i < NISAS; i++) {
        const struct hl_kernels *k = variant(isas[i]);

        for (int kind = 0; k && kind < 6; kind++)
            for (unsigned l = 0; l < nlayouts; l++)
                same_bits(k, hl_isa_name(isas[i]), kind, &layouts[l], n, misalign, fill, nthreads);
    }
}

Test(adam_bits, sizes_around_every_vector_width)
{
    static const uint64_t sizes[] = {0,  1,  3,  4,  5,  7,  8,  9,  15,  16,
                                     17, 31, 32, 33, 47, 63, 64, 65, 1001};

    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++)
        each_variant(sizes[i], 0, ADAM_PLAIN, 1);
}

Test(adam_bits, misaligned_arrays)
{
    static const unsigned misalign[] = {1, 2, 4, 6, 13};

    for (unsigned i = 0; i < 5; i++)
        each_variant(517, misalign[i], ADAM_PLAIN, 1);
}

Test(adam_bits, zeros_denormals_huge_values_infinities_and_nans)
{
    each_variant(5003, 2, ADAM_HOSTILE, 1);
    each_variant(1003, 0, ADAM_DENORMAL, 1);
}

Test(adam_bits, team_sizes_one_to_five)
{
    for (unsigned nthreads = 1; nthreads <= 5; nthreads++)
        each_variant(9 * 4096 + 77, 2, ADAM_PLAIN, nthreads);
}
