/* The model in FP32, as it trains: the same bits for any number of threads and with recomputation, and
 * its exp and tanh against libm. */
#include "suite.h"
#include "../examples/train_gpt/attention.h"
#include "test_gpt_net.h"

static const struct gpt_shape shape = {
    .layers = 2, .dim = 40, .heads = 4, .seq = 100, .vocab = 259, .batch = 3, .nthreads = 1};

Test(gpt_bits, any_number_of_threads_gives_the_same_bits)
{
    static const unsigned counts[] = {2, 3, 7};
    struct net one, many;
    double loss;

    net_open(&one, &shape);
    loss = net_forward(&one);
    net_backward(&one);
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        struct gpt_shape threaded = shape;
        double same;

        threaded.nthreads = counts[c];
        net_open(&many, &threaded);
        same = net_forward(&many);
        net_backward(&many);
        cr_assert_eq(memcmp(&loss, &same, sizeof loss), 0, "%u threads", counts[c]);
        cr_assert_eq(memcmp(one.grads, many.grads, one.nparams * sizeof *one.grads), 0,
                     "%u threads", counts[c]);
        net_close(&many);
    }
    net_close(&one);
}

Test(gpt_bits, recomputed_activations_are_those_of_the_forward_pass)
{
    struct gpt_shape single = shape;
    struct net kept, again;
    uint64_t n;

    single.layers = 1; /* so that the activations kept are the only block's */
    net_open(&kept, &single);
    net_open(&again, &single);
    net_forward(&kept);
    gpt_block_forward(&single, again.w[1], net_x(&kept, 0), NULL, &again.acts, &again.scratch);
    n = gpt_block_acts_elems(&single);
    cr_assert_eq(memcmp(kept.acts_base, again.acts_base, n * sizeof *kept.acts_base), 0);
    net_close(&kept);
    net_close(&again);
}

Test(gpt_bits, backward_adds_to_the_gradients)
{
    struct net net;
    float *once;

    net_open(&net, &shape);
    net_forward(&net);
    net_backward(&net);
    once = malloc(net.nparams * sizeof *once);
    memcpy(once, net.grads, net.nparams * sizeof *once);
    net_backward(&net);
    for (uint64_t i = 0; i < net.nparams; i++)
        cr_assert_float_eq(net.grads[i], 2 * once[i], 1e-4 * fabsf(once[i]) + 1e-6);
    free(once);
    net_close(&net);
}

Test(gpt_bits, a_loss_scale_multiplies_every_gradient_exactly)
{
    struct net plain, scaled;

    net_open(&plain, &shape);
    net_open(&scaled, &shape);
    scaled.loss_scale = 4096;
    net_forward(&plain);
    net_backward(&plain);
    net_forward(&scaled);
    net_backward(&scaled);
    for (uint64_t i = 0; i < plain.nparams; i++)
        cr_assert_eq(scaled.grads[i], 4096 * plain.grads[i], "element %llu", (unsigned long long)i);
    net_close(&plain);
    net_close(&scaled);
}

Test(gpt_bits, exp_is_within_2_ulp)
{
    for (float x = -86.9f; x < 88; x += 0.00137f) {
        double exact = exp((double)x), ulp = exact * 0x1p-23;

        cr_assert_lt(fabs((double)gpt_exp(x) - exact), 2 * ulp, "exp(%g)", (double)x);
    }
    cr_assert_eq(gpt_exp(0), 1);
    cr_assert(gpt_exp(-INFINITY) < 2e-38f);
    cr_assert(isnan(gpt_exp(NAN)));
}

Test(gpt_bits, tanh_is_within_2_ulp_of_1)
{
    for (float x = -50; x < 50; x += 0.00137f)
        cr_assert_float_eq(gpt_tanh(x), tanh((double)x), 3e-7, "tanh(%g)", (double)x);
    cr_assert_eq(gpt_tanh(0), 0);
    cr_assert(isnan(gpt_tanh(NAN)));
}

/* The formula, one query at a time, in double. */
static void attend(const struct gpt_head *head, size_t i, double *out)
{
    size_t stride = 3 * head->C;
    double p[256], sum = 0;

    for (size_t j = 0; j <= i; j++) {
        p[j] = 0;
        for (size_t c = 0; c < head->D; c++)
            p[j] += (double)head->q[i * stride + c] * (double)head->k[j * stride + c];
        p[j] = exp(p[j] / sqrt((double)head->D));
        sum += p[j];
    }
    for (size_t c = 0; c < head->D; c++) {
        out[c] = 0;
        for (size_t j = 0; j <= i; j++)
            out[c] += p[j] / sum * (double)head->v[j * stride + c];
    }
}

Test(gpt_bits, attention_is_the_softmax_formula)
{
    enum { T = 150, C = 24, D = 8 };
    static float qkv[T * 3 * C], out[T * C], scratch[GPT_ATTENTION_SCRATCH(T)];
    struct gpt_head head = {
        .T = T, .D = D, .C = C, .q = qkv + D, .k = qkv + C + D, .v = qkv + 2 * C + D};
    uint64_t state = 3;
    double exact[D];

    gpt_model_init();
    for (size_t i = 0; i < T * 3 * C; i++)
        qkv[i] = (float)(4 * net_random(&state) - 2);
    gpt_attention(&head, out + D, scratch);
    for (size_t i = 0; i < T; i++) {
        attend(&head, i, exact);
        for (size_t c = 0; c < D; c++)
            cr_assert_float_eq(out[i * C + D + c], exact[c], 2e-6, "row %zu", i);
    }
}

Test(gpt_bits, widening_keeps_every_bf16_pattern)
{
    uint16_t *in = malloc(65536 * sizeof *in);
    float *w = malloc(65536 * sizeof *w);

    for (uint32_t i = 0; i < 65536; i++)
        in[i] = (uint16_t)i;
    gpt_widen_bf16(&shape, w, in, 65536);
    for (uint32_t i = 0; i < 65536; i++) {
        uint32_t bits;

        memcpy(&bits, &w[i], sizeof bits);
        cr_assert_eq(bits, i << 16);
    }
    free(in);
    free(w);
}

/* IEEE 754: sign, 5 bits of exponent with bias 15, 10 bits of fraction. */
static double half_value(uint32_t bits)
{
    int exponent = (int)(bits >> 10 & 31);
    double fraction = bits & 1023, sign = bits & 0x8000 ? -1 : 1;

    if (exponent == 0)
        return sign * ldexp(fraction, -24);
    return sign * ldexp(1024 + fraction, exponent - 25);
}

Test(gpt_bits, widening_keeps_the_value_of_every_fp16_pattern)
{
    uint16_t *in = malloc(65536 * sizeof *in);
    float *w = malloc(65536 * sizeof *w);

    for (uint32_t i = 0; i < 65536; i++)
        in[i] = (uint16_t)i;
    gpt_widen_fp16(&shape, w, in, 65536);
    for (uint32_t i = 0; i < 65536; i++) {
        cr_assert_eq(!!signbit(w[i]), i >> 15, "%04x", i);
        if ((i & 0x7c00) != 0x7c00)
            cr_assert_eq((double)w[i], half_value(i), "%04x: %g", i, (double)w[i]);
        else if (i & 0x3ff)
            cr_assert(isnan(w[i]), "%04x: %g", i, (double)w[i]);
        else
            cr_assert(isinf(w[i]), "%04x: %g", i, (double)w[i]);
    }
    free(in);
    free(w);
}
