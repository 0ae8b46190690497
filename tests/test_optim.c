/* haul_optim_update: formulas against double precision, layouts against each other, refusals. */
#include <math.h>

#include "adam_case.h"
#include "suite.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define N 3000

static struct haul_optim_step step_of(uint64_t t, double lr, double decay)
{
    return (struct haul_optim_step){.struct_size = sizeof(struct haul_optim_step),
                                    .step = t,
                                    .lr = lr,
                                    .weight_decay = decay,
                                    .grad_scale = 1};
}

static struct haul_optim_arrays plain_shape(uint64_t n)
{
    return (struct haul_optim_arrays){.struct_size = sizeof(struct haul_optim_arrays),
                                      .n = n,
                                      .grad_dtype = HAUL_FP32,
                                      .param_dtype = HAUL_BF16};
}

static void open_case(struct adam_case *c, const struct haul_optim *opt,
                      const struct haul_optim_arrays *shape)
{
    cr_assert_eq(adam_case_open(c, opt, shape, 0), 0);
    adam_case_fill(c, ADAM_PLAIN, 1);
    memset(c->arrays.m, 0, shape->n * hl_dtype_bytes(opt->moment_dtype));
    memset(c->arrays.v, 0, shape->n * hl_dtype_bytes(opt->moment_dtype));
}

static void new_grads(struct adam_case *c, uint64_t seed)
{
    uint64_t state = seed;

    for (uint64_t i = 0; i < c->arrays.n; i++)
        adam_put((void *)c->arrays.grad, c->arrays.grad_dtype, i, adam_uniform(&state));
}

static void run(struct adam_case *c, const struct haul_optim_step *s, unsigned nthreads)
{
    cr_assert_eq(haul_optim_update(&c->opt, &c->arrays, s, nthreads), 0, "%s", haul_last_error());
}

/* One element in double, as the papers write it. */
struct element {
    double p, m, v;
};

static double sign_of(double x)
{
    return (x > 0) - (x < 0);
}

static void model(const struct haul_optim *o, const struct haul_optim_step *s, double g,
                  struct element *e)
{
    double t = (double)s->step, lr = s->lr, wd = s->weight_decay;
    double c1 = o->bias_correction ? 1 - pow(o->beta1, t) : 1;
    double c2 = o->bias_correction ? 1 - pow(o->beta2, t) : 1, step = 0;

    g *= s->grad_scale;
    if (o->kind == HAUL_ADAMW || o->kind == HAUL_LION)
        e->p -= lr * wd * e->p;
    else
        g += wd * e->p;
    switch (o->kind) {
    case HAUL_ADAMW:
    case HAUL_ADAM:
        e->m = o->beta1 * e->m + (1 - o->beta1) * g;
        e->v = o->beta2 * e->v + (1 - o->beta2) * g * g;
        step = e->m / c1 / (sqrt(e->v / c2) + o->eps);
        break;
    case HAUL_LION:
        step = sign_of(o->beta1 * e->m + (1 - o->beta1) * g);
        e->m = o->beta2 * e->m + (1 - o->beta2) * g;
        break;
    case HAUL_ADAGRAD:
        e->v += g * g;
        step = g / (sqrt(e->v) + o->eps);
        break;
    case HAUL_SGD:
        e->m = o->momentum * e->m + g;
        step = o->nesterov ? g + o->momentum * e->m : e->m;
        break;
    }
    e->p -= lr * step;
}

static void follows_model(const struct haul_optim *opt)
{
    static struct element want[N];
    struct haul_optim_arrays shape = plain_shape(N);
    struct adam_case c;

    open_case(&c, opt, &shape);
    for (int i = 0; i < N; i++)
        want[i] = (struct element){.p = (double)((float *)c.arrays.master)[i]};
    for (uint64_t t = 1; t <= 20; t++) {
        struct haul_optim_step s = step_of(t, 1e-2, 0.1);

        s.grad_scale = 0.25;
        new_grads(&c, t);
        for (int i = 0; i < N; i++)
            model(opt, &s, (double)((const float *)c.arrays.grad)[i], &want[i]);
        run(&c, &s, 2);
    }
    for (int i = 0; i < N; i++) {
        double got = (double)((float *)c.arrays.master)[i];
        uint32_t bits = hl_float_bits((float)got);

        cr_assert_float_eq(got, want[i].p, 2e-6 + 2e-6 * fabs(want[i].p), "element %d: %g not %g",
                           i, got, want[i].p);
        cr_assert_eq(((uint16_t *)c.arrays.param)[i], (bits + 0x8000) >> 16);
    }
    adam_case_close(&c);
}

Test(optim, every_rule_follows_its_paper)
{
    for (int kind = HAUL_ADAMW; kind <= HAUL_SGD; kind++) {
        struct haul_optim opt;

        haul_optim_init(&opt, (enum haul_optimizer)kind);
        follows_model(&opt);
        opt.bias_correction = 0;
        follows_model(&opt);
        opt.beta1 = 0;
        opt.beta2 = 0.4;
        follows_model(&opt);
    }
}

Test(optim, sgd_without_momentum_and_with_nesterov)
{
    struct haul_optim opt;

    haul_optim_init(&opt, HAUL_SGD);
    opt.nesterov = 1;
    follows_model(&opt);
    opt.nesterov = 0;
    opt.momentum = 0;
    follows_model(&opt);
}

Test(optim, split_and_fp32_masters_have_the_same_bits_after_1000_steps)
{
    struct haul_optim_arrays shape = plain_shape(N);
    struct adam_case fp32, split;
    struct haul_optim opt;

    haul_optim_init(&opt, HAUL_ADAMW);
    shape.grad_dtype = HAUL_BF16;
    open_case(&fp32, &opt, &shape);
    shape.master_form = HAUL_MASTER_SPLIT;
    open_case(&split, &opt, &shape);
    for (uint64_t t = 1; t <= 1000; t++) {
        struct haul_optim_step s = step_of(t, 1e-3, 0.01);

        new_grads(&fp32, t);
        new_grads(&split, t);
        run(&fp32, &s, 1);
        run(&split, &s, 1);
    }
    for (int i = 0; i < N; i++) {
        uint16_t hi = ((uint16_t *)split.arrays.param)[i];
        uint16_t lo = ((uint16_t *)split.arrays.master)[i];
        uint32_t bits = (uint32_t)(uint16_t)(hi - (lo >> 15)) << 16 | lo;

        cr_assert_eq(bits, ((uint32_t *)fp32.arrays.master)[i], "element %d", i);
    }
    cr_assert_eq(memcmp(split.arrays.param, fp32.arrays.param, 2 * N), 0);
    cr_assert_eq(memcmp(split.arrays.m, fp32.arrays.m, 4 * N), 0);
    cr_assert_eq(memcmp(split.arrays.v, fp32.arrays.v, 4 * N), 0);
    adam_case_close(&fp32);
    adam_case_close(&split);
}

/* The published copy follows from the master: a resumed run has masters and moments only. */
static void resume(enum haul_dtype moment)
{
    struct haul_optim_arrays shape = plain_shape(N);
    struct adam_case whole, resumed;
    struct haul_optim opt;

    haul_optim_init(&opt, HAUL_ADAMW);
    opt.moment_dtype = moment;
    open_case(&whole, &opt, &shape);
    open_case(&resumed, &opt, &shape);
    for (uint64_t t = 1; t <= 1000; t++) {
        struct haul_optim_step s = step_of(t, 1e-3, 0.01);

        new_grads(&whole, t);
        run(&whole, &s, 1);
        if (t == 500) {
            memcpy(resumed.arrays.master, whole.arrays.master, 4 * N);
            memcpy(resumed.arrays.m, whole.arrays.m, N * hl_dtype_bytes(moment));
            memcpy(resumed.arrays.v, whole.arrays.v, N * hl_dtype_bytes(moment));
        }
        if (t > 500) {
            new_grads(&resumed, t);
            run(&resumed, &s, 1);
        }
    }
    cr_assert_eq(adam_case_differs(&whole, &resumed), -1);
    adam_case_close(&whole);
    adam_case_close(&resumed);
}

Test(optim, resuming_at_step_500_gives_the_bits_of_not_stopping)
{
    resume(HAUL_FP32);
    resume(HAUL_BF16);
}

Test(optim, cutting_a_range_into_calls_changes_no_bit)
{
    static const uint64_t cuts[] = {1, 7, 64, 1000, N};
    struct haul_optim_arrays shape = plain_shape(N);
    struct haul_optim_step s = step_of(9, 1e-2, 0.1);
    struct adam_case whole, cut;
    struct haul_optim opt;

    haul_optim_init(&opt, HAUL_ADAMW);
    opt.moment_dtype = HAUL_BF16;
    shape.first = (UINT64_C(5) << 32) - 1000; /* the key of the rounding changes inside */
    open_case(&whole, &opt, &shape);
    run(&whole, &s, 1);
    for (unsigned c = 0; c < sizeof cuts / sizeof *cuts; c++) {
        struct haul_optim_arrays a;

        open_case(&cut, &opt, &shape);
        a = cut.arrays;
        for (uint64_t at = 0; at < N; at += a.n) {
            a.n = N - at < cuts[c] ? N - at : cuts[c];
            a.first = shape.first + at;
            cr_assert_eq(haul_optim_update(&opt, &a, &s, 1), 0);
            a.grad = (const float *)a.grad + a.n;
            a.master = (float *)a.master + a.n;
            a.m = (uint16_t *)a.m + a.n;
            a.v = (uint16_t *)a.v + a.n;
            a.param = (uint16_t *)a.param + a.n;
        }
        cr_assert_eq(adam_case_differs(&whole, &cut), -1, "cut by %d", (int)cuts[c]);
        adam_case_close(&cut);
    }
    adam_case_close(&whole);
}

Test(optim, parts_have_their_own_rates)
{
    const uint64_t n = 9 * 4096 + 33;
    const struct haul_optim_part parts[] = {
        {1000, 1e-2, 0}, {0, 5, 5}, {7, 3e-3, 0.5}, {n - 1007, 1e-4, 0.1}};
    struct haul_optim_arrays shape = plain_shape(n), a;
    struct haul_optim_step s = step_of(2, 77, 77);
    struct adam_case at_once, one_by_one;
    struct haul_optim opt;

    haul_optim_init(&opt, HAUL_ADAMW);
    open_case(&at_once, &opt, &shape);
    open_case(&one_by_one, &opt, &shape);
    s.parts = parts;
    s.nparts = 4;
    run(&at_once, &s, 3);
    a = one_by_one.arrays;
    for (int i = 0; i < 4; i++) {
        struct haul_optim_step own = step_of(2, parts[i].lr, parts[i].weight_decay);

        a.n = parts[i].n;
        cr_assert_eq(haul_optim_update(&opt, &a, &own, 1), 0);
        a.grad = (const float *)a.grad + a.n;
        a.master = (float *)a.master + a.n;
        a.m = (float *)a.m + a.n;
        a.v = (float *)a.v + a.n;
        a.param = (uint16_t *)a.param + a.n;
    }
    cr_assert_eq(adam_case_differs(&at_once, &one_by_one), -1);
    adam_case_close(&at_once);
    adam_case_close(&one_by_one);
}

Test(optim, nans_are_stored_as_one_pattern)
{
    struct haul_optim_arrays shape = plain_shape(N);

    for (int kind = HAUL_ADAMW; kind <= HAUL_SGD; kind++) {
        struct haul_optim_step s = step_of(1, 1e-2, 0.1);
        struct haul_optim opt;
        struct adam_case c;

        haul_optim_init(&opt, (enum haul_optimizer)kind);
        cr_assert_eq(adam_case_open(&c, &opt, &shape, 0), 0);
        adam_case_fill(&c, ADAM_HOSTILE, 5);
        run(&c, &s, 1);
        cr_assert(adam_nans_canonical(c.arrays.master, HAUL_FP32, N));
        cr_assert(adam_nans_canonical(c.arrays.param, HAUL_BF16, N));
        if (kind != HAUL_ADAGRAD)
            cr_assert(adam_nans_canonical(c.arrays.m, HAUL_FP32, N));
        if (kind == HAUL_ADAMW || kind == HAUL_ADAM || kind == HAUL_ADAGRAD)
            cr_assert(adam_nans_canonical(c.arrays.v, HAUL_FP32, N));
        adam_case_close(&c);
    }
}

Test(optim, a_caller_with_another_mode_gets_the_same_bits_and_its_mode_back)
{
#if defined(__x86_64__)
    struct haul_optim_arrays shape = plain_shape(9 * 4096);
    struct haul_optim_step s = step_of(1, 1e-2, 0.1);
    struct adam_case kept, flushed;
    struct haul_optim opt;
    unsigned mode = (_mm_getcsr() & ~0x8040u) | 0x6000; /* denormals kept, rounding toward zero */

    haul_optim_init(&opt, HAUL_ADAMW);
    cr_assert_eq(adam_case_open(&kept, &opt, &shape, 0), 0);
    cr_assert_eq(adam_case_open(&flushed, &opt, &shape, 0), 0);
    adam_case_fill(&kept, ADAM_DENORMAL, 5);
    adam_case_fill(&flushed, ADAM_DENORMAL, 5);
    run(&kept, &s, 1);
    _mm_setcsr(mode);
    if ((_mm_getcsr() & 0xffc0) != (mode & 0xffc0)) {
        _mm_setcsr(0x1f80);
        SKIP("a processor that rounds toward zero (valgrind's does not)");
    }
    run(&flushed, &s, 2);
    cr_assert_eq(_mm_getcsr() & 0xffc0, mode & 0xffc0);
    _mm_setcsr(0x1f80);
    cr_assert_eq(adam_case_differs(&kept, &flushed), -1);
    adam_case_close(&kept);
    adam_case_close(&flushed);
#else
    SKIP("no MXCSR on this machine");
#endif
}
