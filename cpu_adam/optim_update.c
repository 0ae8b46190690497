/*
 * optim_update.c: constants of a step, and the range cut into shares, parts and kernel calls.
 * Past the checks nothing can fail; no allocation.
 */
#include <math.h>
#include <string.h>

#include "fp_env.h"
#include "optim_check.h"
#include "optim_update.h"
#include "team.h"

/* Below this a range may rest in a cache, and its published copy is better left there. */
#define STREAM_ELEMS (UINT64_C(1) << 20)

void haul_optim_init(struct haul_optim *opt, enum haul_optimizer kind)
{
    memset(opt, 0, sizeof *opt);
    opt->struct_size = sizeof *opt;
    opt->kind = kind;
    opt->beta1 = 0.9;
    opt->beta2 = kind == HAUL_LION ? 0.99 : 0.999;
    opt->eps = kind == HAUL_ADAGRAD ? 1e-10 : 1e-8;
    opt->momentum = kind == HAUL_SGD ? 0.9 : 0;
    opt->bias_correction = 1;
    opt->moment_dtype = HAUL_FP32;
}

double hl_beta_power(double beta, uint64_t t)
{
    double power = 1;

    for (; t; t >>= 1, beta *= beta)
        if (t & 1)
            power *= beta;
    return power;
}

static enum hl_step_kind kind_of(const struct haul_optim *opt)
{
    switch (opt->kind) {
    case HAUL_ADAM:
        return HL_STEP_ADAM;
    case HAUL_LION:
        return HL_STEP_LION;
    case HAUL_ADAGRAD:
        return HL_STEP_ADAGRAD;
    case HAUL_SGD:
        return opt->momentum != 0 ? HL_STEP_SGD_MOMENTUM : HL_STEP_SGD;
    default:
        return HL_STEP_ADAMW;
    }
}

static enum hl_param_form param_of(const struct haul_optim_arrays *a)
{
    if (a->master_form == HAUL_MASTER_SPLIT)
        return HL_PARAM_SPLIT;
    return a->param_dtype == HAUL_BF16   ? HL_PARAM_BF16
           : a->param_dtype == HAUL_FP16 ? HL_PARAM_FP16
                                         : HL_PARAM_NONE;
}

static int corrects_bias(const struct haul_optim *opt)
{
    return opt->bias_correction && (opt->kind == HAUL_ADAMW || opt->kind == HAUL_ADAM);
}

static void set_rates(struct hl_step_consts *k, double lr, double weight_decay, double correction1)
{
    k->lr = (float)lr;
    k->weight_decay = (float)weight_decay;
    k->decay = (float)(lr * weight_decay);
    k->step_size = (float)(lr / correction1);
}

static double correction1_of(const struct haul_optim *opt, uint64_t t)
{
    return corrects_bias(opt) ? 1 - hl_beta_power(opt->beta1, t) : 1;
}

/* Not inlined: its arithmetic must stay inside the environment that its caller has entered. */
__attribute__((noinline)) struct hl_step_consts
hl_step_consts_of(const struct haul_optim *opt, const struct haul_optim_arrays *arrays,
                  const struct haul_optim_step *step)
{
    double correction2 = corrects_bias(opt) ? 1 - hl_beta_power(opt->beta2, step->step) : 1;
    struct hl_step_consts k = {
        .kind = kind_of(opt),
        .grad = hl_grad_form_of(arrays->grad_dtype),
        .param = param_of(arrays),
        .moment = opt->moment_dtype == HAUL_BF16 ? HL_MOMENT_BF16 : HL_MOMENT_FP32,
        .grad_scale = (float)step->grad_scale,
        .weight1 = (float)(1 - opt->beta1),
        .weight2 = (float)(1 - opt->beta2),
        .denom_scale = (float)(1 / sqrt(correction2)),
        .eps = (float)opt->eps,
        .momentum = (float)opt->momentum,
        .nesterov = opt->nesterov,
        .stream = arrays->n >= STREAM_ELEMS,
        .key = hl_round_key(opt->seed, step->step),
    };

    set_rates(&k, step->lr, step->weight_decay, correction1_of(opt, step->step));
    return k;
}

struct update {
    const struct hl_kernels *kernels;
    const struct haul_optim *opt;
    const struct haul_optim_step *step;
    struct hl_step_consts consts;
    struct hl_step_range range;
};

/* One kernel call for each stretch in which the upper half of the element's index stays. */
static void run_elements(const struct update *u, const struct hl_step_consts *k, uint64_t begin,
                         uint64_t end)
{
    hl_step_fn step = u->kernels->step[k->kind][k->grad][k->param][k->moment];

    while (begin < end) {
        uint64_t to_wrap = (UINT64_C(1) << 32) - (uint32_t)(u->range.first + begin);
        uint64_t n = end - begin < to_wrap ? end - begin : to_wrap;
        struct hl_step_range r = hl_step_part(k, &u->range, begin, n);

        step(k, &r);
        begin += n;
    }
}

static void run_share(void *ctx, uint64_t begin, uint64_t end)
{
    const struct update *u = ctx;
    const struct haul_optim_part *part = u->step->parts;
    struct hl_step_consts k = u->consts;
    double correction1;
    uint64_t at = 0;

    if (!part) {
        run_elements(u, &k, begin, end);
        return;
    }
    correction1 = correction1_of(u->opt, u->step->step);
    for (; at < end; at += part->n, part++) {
        uint64_t from = at > begin ? at : begin, to = at + part->n < end ? at + part->n : end;

        if (from >= to)
            continue;
        set_rates(&k, part->lr, part->weight_decay, correction1);
        run_elements(u, &k, from, to);
    }
}

int hl_optim_update_with(const struct hl_kernels *kernels, const struct haul_optim *opt,
                         const struct haul_optim_arrays *arrays, const struct haul_optim_step *step,
                         unsigned nthreads)
{
    struct update u = {.kernels = kernels, .opt = opt, .step = step};
    int rc = hl_optim_check(opt, arrays, step);
    hl_fp_env env;

    if (rc == 0)
        rc = hl_team_check("haul_optim_update", nthreads);
    if (rc < 0)
        return rc;
    env = hl_fp_env_enter();
    u.consts = hl_step_consts_of(opt, arrays, step);
    u.range = (struct hl_step_range){
        .grad = arrays->grad,
        .master = arrays->master,
        .m = hl_optim_has_m(opt) ? arrays->m : NULL,
        .v = hl_optim_has_v(opt) ? arrays->v : NULL,
        .param = arrays->param_dtype != HAUL_DTYPE_NONE ? arrays->param : NULL,
        .n = arrays->n,
        .first = arrays->first,
    };
    hl_team_run(nthreads, arrays->n, run_share, &u);
    hl_fp_env_leave(env);
    return 0;
}

int haul_optim_update(const struct haul_optim *opt, const struct haul_optim_arrays *arrays,
                      const struct haul_optim_step *step, unsigned nthreads)
{
    return hl_optim_update_with(hl_kernels_best(), opt, arrays, step, nthreads);
}
