/* Every gradient of the model against central differences of its loss, in double precision: the shipped
 * source compiled with GPT_DOUBLE. */
#define GPT_DOUBLE
#include "test_gpt_differences.h"

/* Two attention tiles, the second ragged; ragged row and column tiles; batch over 1. */
static const struct gpt_shape shape = {
    .layers = 2, .dim = 12, .heads = 3, .seq = 70, .vocab = 259, .batch = 2, .nthreads = 2};

static double loss_of(void *net)
{
    return net_forward(net);
}

Test(gpt_gradient, every_tensor_agrees_with_central_differences)
{
    struct net net;

    net_open(&net, &shape);
    net_forward(&net);
    net_backward(&net);
    for (size_t u = 0; u < net.nunits; u++)
        for (uint32_t i = 0; i < gpt_unit_ntensors(net_kind(&net, u)); i++)
            net_check_tensor(&net, u, i, loss_of, &net);
    net_close(&net);
}

/* One element at a time, for a tensor of each kind that a direction could hide: a token that occurs, a
 * position, a bias, a gain. */
Test(gpt_gradient, single_elements_agree_with_central_differences)
{
    static const struct {
        size_t unit;
        uint32_t tensor;
    } cases[] = {{0, GPT_WPE},   {1, GPT_LN1_G}, {1, GPT_QKV_B}, {2, GPT_LN2_B},
                 {2, GPT_OUT_B}, {3, GPT_LNF_G}, {3, GPT_LNF_B}};
    struct net net;

    net_open(&net, &shape);
    net_forward(&net);
    net_backward(&net);
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
        for (uint64_t k = 0; k < net.shape.dim; k += 5) {
            double dir[64] = {0}, numeric, analytic;

            dir[k] = 1;
            analytic = net.g[cases[c].unit][cases[c].tensor][k];
            numeric = (net_moved_loss(&net, cases[c].unit, cases[c].tensor, dir, k + 1, 1e-5,
                                      loss_of, &net) -
                       net_moved_loss(&net, cases[c].unit, cases[c].tensor, dir, k + 1, -1e-5,
                                      loss_of, &net)) /
                      2e-5;
            cr_assert_lt(fabs(numeric - analytic), 1e-6 * fabs(analytic) + 2e-9,
                         "case %zu element %d: numeric %.12g analytic %.12g", c, (int)k, numeric,
                         analytic);
        }
    net_close(&net);
}

Test(gpt_gradient, all_weights_zero_gives_ln_v)
{
    struct net net;

    net_open(&net, &shape);
    memset(net.params, 0, net.nparams * sizeof *net.params);
    cr_assert_float_eq(net_forward(&net), log((double)shape.vocab), 1e-12);
    net_close(&net);
}

Test(gpt_gradient, a_later_token_changes_nothing_before_it)
{
    size_t T = shape.seq, C = shape.dim;
    double *before = malloc(T * C * sizeof *before);
    struct net net;

    net_open(&net, &shape);
    net_forward(&net);
    memcpy(before, net_x(&net, shape.layers + 1), T * C * sizeof *before);
    net.tokens[40] ^= 1;
    net_forward(&net);
    cr_assert_eq(memcmp(before, net_x(&net, shape.layers + 1), 40 * C * sizeof *before), 0);
    cr_assert_neq(
        memcmp(before + 40 * C, net_x(&net, shape.layers + 1) + 40 * C, C * sizeof *before), 0);
    free(before);
    net_close(&net);
}
