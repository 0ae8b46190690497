/* test_gpt_differences.h: gradients of a net against central differences of its loss. With GPT_DOUBLE. */
#ifndef TEST_GPT_DIFFERENCES_H
#define TEST_GPT_DIFFERENCES_H

#include <math.h>
#include <string.h>

#include "suite.h"
#include "test_gpt_net.h"

/* The loss of the net, as whoever is tested computes it. */
typedef double (*net_loss_fn)(void *ctx);

/* Loss with tensor i of unit u moved by step along dir. */
static inline double net_moved_loss(struct net *net, size_t u, uint32_t i, const double *dir,
                                    uint64_t n, double step, net_loss_fn loss_of, void *ctx)
{
    double *w = net->params + (net->w[u][i] - net->params), *kept = malloc(n * sizeof *kept), loss;

    memcpy(kept, w, n * sizeof *kept);
    for (uint64_t k = 0; k < n; k++)
        w[k] += step * dir[k];
    loss = loss_of(ctx);
    memcpy(w, kept, n * sizeof *kept);
    free(kept);
    return loss;
}

/* net->g, in four random directions of tensor i of unit u. */
static inline void net_check_tensor(struct net *net, size_t u, uint32_t i, net_loss_fn loss_of,
                                    void *ctx)
{
    const double eps = 1e-5;
    struct gpt_tensor tensor;
    uint64_t n, state = 100 * u + i;
    double *dir, numeric, analytic, magnitude;

    gpt_unit_tensor(&net->shape, net_kind(net, u), i, &tensor);
    n = tensor.shape[0] * tensor.shape[1];
    dir = malloc(n * sizeof *dir);
    for (int round = 0; round < 4; round++) {
        analytic = magnitude = 0;
        for (uint64_t k = 0; k < n; k++) {
            dir[k] = net_random(&state) - 0.5;
            analytic += dir[k] * net->g[u][i][k];
            magnitude += fabs(dir[k] * net->g[u][i][k]);
        }
        numeric = (net_moved_loss(net, u, i, dir, n, eps, loss_of, ctx) -
                   net_moved_loss(net, u, i, dir, n, -eps, loss_of, ctx)) /
                  (2 * eps);
        cr_assert_gt(magnitude, 1e-6, "unit %zu %s has no gradient", u, tensor.name);
        /* the differences' own error is about eps^2 and 1e-16 * loss / eps */
        cr_assert_lt(fabs(numeric - analytic), 1e-6 * magnitude + 2e-9,
                     "unit %zu %s: numeric %.12g analytic %.12g", u, tensor.name, numeric,
                     analytic);
    }
    free(dir);
}

#endif
