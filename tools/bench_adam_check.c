/* bench_adam_check.c: no figure for a kernel whose bits are wrong. */
#include <errno.h>

#include "../tests/adam_case.h"
#include "bench_adam.h"
#include "fail.h"
#include "optim_update.h"

#define CHECK_ELEMS 4133
#define TEAM_ELEMS  40037 /* enough for a team to share */

static const enum haul_dtype grads[] = {HAUL_FP32, HAUL_BF16, HAUL_FP16};
static const enum haul_dtype outs[] = {HAUL_DTYPE_NONE, HAUL_BF16, HAUL_FP16, HAUL_BF16};

static int compare(enum hl_isa isa, const struct haul_optim *opt,
                   const struct haul_optim_arrays *shape, unsigned nthreads)
{
    struct haul_optim_step s = {
        .struct_size = sizeof s, .step = 3, .lr = 1e-2, .weight_decay = 0.1, .grad_scale = 0.7};
    struct adam_case want, got;
    int rc = 0;

    if (adam_case_open(&want, opt, shape, 6))
        return hl_fail(-ENOMEM, "out of memory for the check");
    if (adam_case_open(&got, opt, shape, 6)) {
        adam_case_close(&want);
        return hl_fail(-ENOMEM, "out of memory for the check");
    }
    adam_case_fill(&want, ADAM_HOSTILE, 1);
    adam_case_fill(&got, ADAM_HOSTILE, 1);
    rc = hl_optim_update_with(&hl_kernels_c, opt, &want.arrays, &s, 1);
    if (rc == 0)
        rc = hl_optim_update_with(hl_kernels_of(isa), opt, &got.arrays, &s, nthreads);
    if (rc == 0 && adam_case_differs(&want, &got) >= 0)
        rc = hl_fail(HAUL_E_STATE,
                     "%s differs from c: optimizer %d, grad %d, out %d, master %d, moments %d",
                     hl_isa_name(isa), (int)opt->kind, (int)shape->grad_dtype,
                     (int)shape->param_dtype, (int)shape->master_form, (int)opt->moment_dtype);
    adam_case_close(&want);
    adam_case_close(&got);
    return rc;
}

static int check_optimizer(enum hl_isa isa, enum haul_optimizer kind, unsigned nthreads,
                           unsigned *ncases)
{
    for (int i = 0; i < 24; i++) {
        struct haul_optim opt;
        struct haul_optim_arrays shape = {.n = i == 9 ? TEAM_ELEMS : CHECK_ELEMS,
                                          .grad_dtype = grads[i / 8],
                                          .param_dtype = outs[i % 4],
                                          .master_form =
                                              i % 4 == 3 ? HAUL_MASTER_SPLIT : HAUL_MASTER_FP32};
        int rc;

        haul_optim_init(&opt, kind);
        opt.moment_dtype = i / 4 % 2 ? HAUL_BF16 : HAUL_FP32;
        rc = compare(isa, &opt, &shape, nthreads);
        if (rc < 0)
            return rc;
        ++*ncases;
    }
    return 0;
}

static int check_norm(enum hl_isa isa, unsigned *ncases)
{
    static float src[TEAM_ELEMS], want[10], got[10];
    uint64_t state = 1;

    for (int i = 0; i < TEAM_ELEMS; i++)
        src[i] = adam_uniform(&state);
    for (int form = 0; form < HL_NGRADS; form++, ++*ncases) {
        hl_kernels_c.sumsq[form](want, src, TEAM_ELEMS);
        hl_kernels_of(isa)->sumsq[form](got, src, TEAM_ELEMS);
        if (memcmp(want, got, sizeof want))
            return hl_fail(HAUL_E_STATE, "%s differs from c: norm of gradient form %d",
                           hl_isa_name(isa), form);
    }
    return 0;
}

int hl_bench_check(unsigned nthreads, unsigned *ncases)
{
    *ncases = 0;
    for (int isa = 0; isa < HL_NISA; isa++) {
        int rc = 0;

        if (isa == HL_ISA_C || !hl_cpu_has((enum hl_isa)isa) || !hl_kernels_of((enum hl_isa)isa))
            continue;
        for (int kind = HAUL_ADAMW; rc == 0 && kind <= HAUL_SGD; kind++)
            rc = check_optimizer((enum hl_isa)isa, (enum haul_optimizer)kind, nthreads, ncases);
        if (rc == 0)
            rc = check_norm((enum hl_isa)isa, ncases);
        if (rc < 0)
            return rc;
    }
    return 0;
}
