/*
 * AdamW against the published formula in double precision, and against PyTorch's own sequence of FP32
 * operations. docs/numerics.md derives the bound that is checked here.
 */
#include <math.h>

#include "adam_case.h"
#include "suite.h"

#define N     2048
#define STEPS 1000

static const double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, lr = 1e-3, decay = 0.01;

/* Loshchilov & Hutter 2019, algorithm 2, with the denominator as PyTorch places eps. */
struct model {
    double p[N], m[N], v[N];
};

static void model_step(struct model *s, const float *g, int t)
{
    double c1 = 1 - pow(beta1, t), c2 = 1 - pow(beta2, t);

    for (int i = 0; i < N; i++) {
        double x = (double)g[i];

        s->p[i] *= 1 - lr * decay;
        s->m[i] = beta1 * s->m[i] + (1 - beta1) * x;
        s->v[i] = beta2 * s->v[i] + (1 - beta2) * x * x;
        s->p[i] -= lr / c1 * s->m[i] / (sqrt(s->v[i]) / sqrt(c2) + eps);
    }
}

/* torch/optim/adam.py, _single_tensor_adam: mul_, lerp_, mul_ + addcmul_, sqrt / + add_, addcdiv_, each
 * in FP32 with its scalar narrowed. */
struct torch_model {
    float p[N], m[N], v[N];
};

static void torch_step(struct torch_model *s, const float *g, int t)
{
    float keep = (float)(1 - lr * decay), w1 = (float)(1 - beta1), b2 = (float)beta2;
    float w2 = (float)(1 - beta2), root = (float)sqrt(1 - pow(beta2, t));
    float size = (float)(-lr / (1 - pow(beta1, t))), tiny = (float)eps;

    for (int i = 0; i < N; i++) {
        s->p[i] *= keep;
        s->m[i] = s->m[i] + w1 * (g[i] - s->m[i]);
        s->v[i] *= b2;
        s->v[i] = s->v[i] + w2 * g[i] * g[i];
        s->p[i] = s->p[i] + size * s->m[i] / (sqrtf(s->v[i]) / root + tiny);
    }
}

/* The right-hand side of docs/numerics.md section 3 for one parameter: step t adds to it. */
struct bound {
    double ratio_power; /* (beta1^2 / beta2)^k */
    double sum, aged;   /* sums over k of ratio_power, and of ratio_power * (a1 k + 2)^2 */
};

static double bound_step(struct bound *b, int t, double p_before, double p_after)
{
    const double u = 0x1p-24, a1 = 2 + (1 - beta1) / beta1, a2 = 2 + (1 - beta2) / beta2;
    double c1 = 1 - pow(beta1, t), c2 = 1 - pow(beta2, t), k = t - 1, scale, wrong;

    b->sum += b->ratio_power;
    b->aged += b->ratio_power * (a1 * k + 2) * (a1 * k + 2);
    b->ratio_power *= beta1 * beta1 / beta2;
    scale = (1 - beta1) / sqrt(1 - beta2) * sqrt(c2) / c1;
    wrong = scale * (sqrt(b->aged) + sqrt(b->sum) * (a2 * k / 2 + 6.5));
    /* 1.001: products of two relative errors, each below 2e-4 here */
    return 1.001 * u * (fabs(p_before) * (1 + lr * decay) + fabs(p_after) + lr * wrong);
}

static struct model exact;
static struct torch_model torch;
static float p[N], m[N], v[N], g[N];
static double bound_of[N];

static void start(uint64_t *state)
{
    memset(&exact, 0, sizeof exact);
    memset(&torch, 0, sizeof torch);
    memset(m, 0, sizeof m);
    memset(v, 0, sizeof v);
    memset(bound_of, 0, sizeof bound_of);
    for (int i = 0; i < N; i++) {
        p[i] = torch.p[i] = adam_uniform(state) * 0.05f;
        exact.p[i] = (double)p[i];
    }
}

static void haul_step(uint64_t t)
{
    struct haul_optim adamw;
    struct haul_optim_arrays a = {.struct_size = sizeof a,
                                  .n = N,
                                  .grad_dtype = HAUL_FP32,
                                  .grad = g,
                                  .master = p,
                                  .m = m,
                                  .v = v};
    struct haul_optim_step s = {
        .struct_size = sizeof s, .step = t, .lr = lr, .weight_decay = decay, .grad_scale = 1};

    haul_optim_init(&adamw, HAUL_ADAMW);
    cr_assert_eq(haul_optim_update(&adamw, &a, &s, 1), 0, "%s", haul_last_error());
}

static void one_scale(double scale, double drift)
{
    struct bound b = {.ratio_power = 1};
    uint64_t state = (uint64_t)(scale * 1e9) + 1;
    double ours = 0, theirs = 0, worst_ours = 0, worst_theirs = 0;

    start(&state);
    for (int t = 1; t <= STEPS; t++) {
        static double before[N];
        struct bound next = b;

        for (int i = 0; i < N; i++)
            g[i] = (float)(scale * ((double)adam_uniform(&state) + drift));
        memcpy(before, exact.p, sizeof before);
        model_step(&exact, g, t);
        for (int i = 0; i < N; i++) {
            next = b;
            bound_of[i] += bound_step(&next, t, before[i], exact.p[i]);
        }
        b = next;
        torch_step(&torch, g, t);
        haul_step((uint64_t)t);
    }
    for (int i = 0; i < N; i++) {
        double us = fabs((double)p[i] - exact.p[i]), them = fabs((double)torch.p[i] - exact.p[i]);

        cr_assert(us <= bound_of[i], "scale %g element %d: off by %g, bound %g", scale, i, us,
                  bound_of[i]);
        ours += us * us;
        theirs += them * them;
        worst_ours = us > worst_ours ? us : worst_ours;
        worst_theirs = them > worst_theirs ? them : worst_theirs;
    }
    cr_log_info("scale %g drift %g: rms error %.3g (PyTorch %.3g), worst %.3g (%.3g), bound %.3g",
                scale, drift, sqrt(ours / N), sqrt(theirs / N), worst_ours, worst_theirs,
                bound_of[0]);
    cr_assert(ours <= theirs, "scale %g: rms %g, PyTorch's formula %g", scale, sqrt(ours / N),
              sqrt(theirs / N));
    cr_assert(worst_ours <= worst_theirs, "scale %g: worst %g, PyTorch's formula %g", scale,
              worst_ours, worst_theirs);
}

Test(optim_accuracy, adamw_stays_within_the_bound_and_no_further_off_than_pytorch)
{
    static const double scales[] = {1e-8, 1e-5, 1e-2, 10, 1e4};

    for (int i = 0; i < 5; i++) {
        one_scale(scales[i], 0);
        one_scale(scales[i], 0.5);
    }
}
