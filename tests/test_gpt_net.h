/*
 * test_gpt_net.h: the whole model on plain arrays, for the suites that hold its arithmetic. Compiled
 * with GPT_DOUBLE or without, as the suite that includes it.
 */
#ifndef TEST_GPT_NET_H
#define TEST_GPT_NET_H

#include <stdlib.h>
#include "../examples/train_gpt/model.h"

#define NET_MAX_UNITS 16

struct net {
    struct gpt_shape shape;
    size_t nunits; /* embed, block 0.., final */
    uint64_t nparams;
    real *params, *grads;
    const real *w[NET_MAX_UNITS][GPT_MAX_TENSORS];
    real *g[NET_MAX_UNITS][GPT_MAX_TENSORS];
    real *x; /* (layers + 2, M, C): inputs of the blocks, of the final norm, of the head */
    real *d; /* (M, C) */
    real loss_scale;
    struct gpt_block_acts acts;
    struct gpt_scratch scratch;
    real *acts_base, *scratch_base;
    uint8_t *tokens;
};

static inline enum gpt_unit net_kind(const struct net *net, size_t u)
{
    return u == 0 ? GPT_EMBED : u + 1 == net->nunits ? GPT_FINAL : GPT_BLOCK;
}

/* A fixed sequence in [0, 1). */
static inline double net_random(uint64_t *state)
{
    *state = *state * 6364136223846793005ull + 1442695040888963407ull;
    return (double)(*state >> 11) * 0x1p-53;
}

static inline void net_bind_params(struct net *net)
{
    struct gpt_tensor tensor;
    uint64_t at = 0;

    for (size_t u = 0; u < net->nunits; u++)
        for (uint32_t i = 0; i < gpt_unit_ntensors(net_kind(net, u)); i++) {
            gpt_unit_tensor(&net->shape, net_kind(net, u), i, &tensor);
            net->w[u][i] = net->params + at;
            net->g[u][i] = net->grads + at;
            at += tensor.shape[0] * tensor.shape[1];
        }
}

/* Parameters spread widely enough that every tensor matters to the loss. */
static inline void net_open(struct net *net, const struct gpt_shape *shape)
{
    uint64_t M = shape->batch * shape->seq, state = 7, scratch, acts;

    gpt_model_init();
    memset(net, 0, sizeof *net);
    net->shape = *shape;
    net->loss_scale = 1;
    net->nunits = shape->layers + 2;
    for (size_t u = 0; u < net->nunits; u++)
        net->nparams += gpt_unit_elems(shape, net_kind(net, u));
    net->params = calloc(net->nparams, sizeof(real));
    net->grads = calloc(net->nparams, sizeof(real));
    net_bind_params(net);
    for (uint64_t i = 0; i < net->nparams; i++)
        net->params[i] = (real)(0.6 * (net_random(&state) - 0.5));
    net->x = calloc((shape->layers + 2) * M * shape->dim, sizeof(real));
    net->d = calloc(M * shape->dim, sizeof(real));
    scratch = gpt_scratch_elems(shape);
    acts = gpt_block_acts_elems(shape);
    net->scratch_base = calloc(scratch, sizeof(real));
    net->acts_base = calloc(acts, sizeof(real));
    gpt_scratch_bind(shape, net->scratch_base, &net->scratch);
    gpt_block_acts_bind(shape, net->acts_base, &net->acts);
    net->tokens = calloc(shape->batch * (shape->seq + 1), 1);
    for (uint64_t i = 0; i < shape->batch * (shape->seq + 1); i++)
        net->tokens[i] = (uint8_t)(net_random(&state) * GPT_TOKENS);
}

static inline void net_close(struct net *net)
{
    free(net->params);
    free(net->grads);
    free(net->x);
    free(net->d);
    free(net->scratch_base);
    free(net->acts_base);
    free(net->tokens);
}

static inline real *net_x(const struct net *net, size_t i)
{
    return net->x + i * net->shape.batch * net->shape.seq * net->shape.dim;
}

static inline double net_forward(struct net *net)
{
    const struct gpt_shape *shape = &net->shape;
    size_t L = shape->layers;

    gpt_embed_forward(shape, net->w[0], net->tokens, net_x(net, 0));
    for (size_t l = 0; l < L; l++)
        gpt_block_forward(shape, net->w[l + 1], net_x(net, l), net_x(net, l + 1), &net->acts,
                          &net->scratch);
    gpt_final_forward(shape, net->w[L + 1], net_x(net, L), net_x(net, L + 1), &net->scratch);
    return gpt_head_forward(shape, net->w[0], net_x(net, L + 1), net->tokens, &net->scratch);
}

/* Adds to grads. Activations of the blocks are recomputed. */
static inline void net_backward(struct net *net)
{
    const struct gpt_shape *shape = &net->shape;
    size_t L = shape->layers;

    gpt_head_backward(shape, net->w[0], net->g[0], net_x(net, L + 1), net->tokens, net->loss_scale,
                      net->d, &net->scratch);
    gpt_final_backward(shape, net->w[L + 1], net->g[L + 1], net_x(net, L), net->d, &net->scratch);
    for (size_t l = L; l-- > 0;) {
        gpt_block_forward(shape, net->w[l + 1], net_x(net, l), NULL, &net->acts, &net->scratch);
        gpt_block_backward(shape, net->w[l + 1], net->g[l + 1], net_x(net, l), &net->acts, net->d,
                           &net->scratch);
    }
    gpt_embed_backward(shape, net->g[0], net->tokens, net->d);
}

#endif
