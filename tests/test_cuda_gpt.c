/* The passes of train_gpt_cuda, kernels and all, on the host in double precision: against the CPU's model, which
 * shares no code with them, and against central differences of their own loss. */
#define GPT_DOUBLE
#include "test_gpt_differences.h"
#include "../examples/train_gpt/cuda_gpt.h"
#include "fake_cuda/host_gpt_kernels.h"

/* Ragged everywhere: tiles of scores, chunks of logits and of column sums, lanes of rows. */
static const struct gpt_shape shape = {
    .layers = 2, .dim = 39, .heads = 3, .seq = 70, .vocab = 259, .batch = 2, .nthreads = 2};
#define SCORE_ROWS 32
#define HEAD_ROWS  50

/* ---- a GPU for the host ---- */

/* Backwards, since the order of threads must not matter. */
void gpu_launch(struct gpu *gpu, enum gk_kernel kernel, const struct gk_args *args)
{
    for (uint64_t i = args->n; i-- > 0;)
        host_gpt_kernels[kernel].body(args, i);
}

void gpu_multiply(struct gpu *gpu, const struct gpu_product *p)
{
    for (uint64_t i = 0; i < p->batch; i++)
        cblas_dgemm(CblasRowMajor, p->turn_a ? CblasTrans : CblasNoTrans,
                    p->turn_b ? CblasTrans : CblasNoTrans, (int)p->m, (int)p->n, (int)p->k,
                    p->scale, p->a + i * p->stride_a, (int)p->lda, p->b + i * p->stride_b,
                    (int)p->ldb, p->keep, (p->c16 ? p->c16 : p->c) + i * p->stride_c, (int)p->ldc);
}

/* ---- the whole model ---- */

struct gpu_net {
    struct net net; /* parameters, gradients, boundaries; the CPU's model for comparison */
    struct cuda_gpt model;
    struct cuda_gpt_acts acts;
    void *scratch, *acts_base;
};

static void open_net(struct gpu_net *n)
{
    net_open(&n->net, &shape);
    n->scratch = malloc(cuda_gpt_scratch_bytes(&shape));
    n->acts_base = malloc(cuda_gpt_acts_bytes(&shape));
    memset(n->scratch, 0xff, cuda_gpt_scratch_bytes(&shape)); /* NaN */
    memset(n->acts_base, 0xff, cuda_gpt_acts_bytes(&shape));
    cuda_gpt_bind(NULL, &shape, n->scratch, &n->model);
    cuda_gpt_acts_bind(&shape, n->acts_base, &n->acts);
    n->model.score_rows = SCORE_ROWS;
    n->model.head_rows = HEAD_ROWS;
}

static void close_net(struct gpu_net *n)
{
    net_close(&n->net);
    free(n->scratch);
    free(n->acts_base);
}

static double forward(struct gpu_net *n)
{
    struct net *net = &n->net;
    size_t L = shape.layers;
    double loss = NAN;

    cuda_gpt_embed_forward(&n->model, net->w[0], net->tokens, net_x(net, 0));
    for (size_t l = 0; l < L; l++)
        cuda_gpt_block_forward(&n->model, net->w[l + 1], net_x(net, l), net_x(net, l + 1),
                               &n->acts);
    cuda_gpt_final_forward(&n->model, net->w[L + 1], net_x(net, L), net_x(net, L + 1));
    cuda_gpt_head_forward(&n->model, net->w[0], net_x(net, L + 1), net->tokens, &loss);
    return loss;
}

/* Adds to the gradients; activations are recomputed. */
static void backward(struct gpu_net *n)
{
    struct net *net = &n->net;
    size_t L = shape.layers;

    cuda_gpt_head_backward(&n->model, net->w[0], net->g[0], net_x(net, L + 1), net->tokens,
                           net->loss_scale, net->d);
    cuda_gpt_final_backward(&n->model, net->w[L + 1], net->g[L + 1], net_x(net, L), net->d);
    for (size_t l = L; l-- > 0;) {
        cuda_gpt_block_forward(&n->model, net->w[l + 1], net_x(net, l), NULL, &n->acts);
        cuda_gpt_block_backward(&n->model, net->w[l + 1], net->g[l + 1], net_x(net, l), &n->acts,
                                net->d);
    }
    cuda_gpt_embed_backward(&n->model, net->g[0], net->tokens, net->d);
}

/* The greatest distance of two arrays, beside the greatest value of the second. */
static double distance(const double *a, const double *b, uint64_t n)
{
    double far = 0, most = 1e-300;

    for (uint64_t i = 0; i < n; i++) {
        if (isnan(a[i]))
            return NAN;
        far = fabs(a[i] - b[i]) > far ? fabs(a[i] - b[i]) : far;
        most = fabs(b[i]) > most ? fabs(b[i]) : most;
    }
    return far / most;
}

Test(cuda_gpt, loss_and_every_gradient_are_those_of_the_cpu)
{
    struct gpu_net n;
    struct gpt_tensor tensor;
    uint64_t elems;
    double loss, *grads;

    open_net(&n);
    n.net.loss_scale = 1024;
    elems = n.net.nparams;
    grads = malloc(elems * sizeof *grads);
    /* gradients are added to what is there */
    for (uint64_t i = 0; i < elems; i++)
        n.net.grads[i] = 1 + (double)i / (double)elems;
    loss = forward(&n);
    backward(&n);
    memcpy(grads, n.net.grads, elems * sizeof *grads);
    for (uint64_t i = 0; i < elems; i++)
        n.net.grads[i] = 1 + (double)i / (double)elems;
    cr_assert_float_eq(loss, net_forward(&n.net), 1e-12);
    net_backward(&n.net);
    for (size_t u = 0; u < n.net.nunits; u++)
        for (uint32_t i = 0; i < gpt_unit_ntensors(net_kind(&n.net, u)); i++) {
            const double *cpu = n.net.g[u][i], *gpu = grads + (cpu - n.net.grads);

            gpt_unit_tensor(&shape, net_kind(&n.net, u), i, &tensor);
            cr_assert_lt(distance(gpu, cpu, tensor.shape[0] * tensor.shape[1]), 1e-11,
                         "unit %zu %s", u, tensor.name);
        }
    free(grads);
    close_net(&n);
}

static double loss_of(void *net)
{
    return forward(net);
}

Test(cuda_gpt, every_tensor_agrees_with_central_differences)
{
    struct gpu_net n;

    open_net(&n);
    forward(&n);
    backward(&n);
    for (size_t u = 0; u < n.net.nunits; u++)
        for (uint32_t i = 0; i < gpt_unit_ntensors(net_kind(&n.net, u)); i++)
            net_check_tensor(&n.net, u, i, loss_of, &n);
    close_net(&n);
}

Test(cuda_gpt, a_later_token_changes_nothing_before_it)
{
    size_t bytes = 40 * shape.dim * sizeof(double);
    double *before = malloc(bytes);
    struct gpu_net n;

    open_net(&n);
    forward(&n);
    memcpy(before, net_x(&n.net, shape.layers + 1), bytes);
    n.net.tokens[40] ^= 1;
    forward(&n);
    cr_assert_eq(memcmp(before, net_x(&n.net, shape.layers + 1), bytes), 0);
    free(before);
    close_net(&n);
}
