/* cuda_gpt.c: see cuda_gpt.h. A pass is a list of launches and products, in the order of the stream. */
#include "cuda_gpt.h"

/* Launch a kernel with these arguments. */
#define LAUNCH(m, kernel, ...) gpu_launch((m)->gpu, GK_##kernel, &(struct gk_args){__VA_ARGS__})

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static gk_half *narrow(const struct cuda_gpt *m, gk_half *y16, const gk_real *x, uint64_t n)
{
    LAUNCH(m, narrow, .x = x, .y16 = y16, .n = n);
    return y16;
}

/* --- a linear layer: x (M, C), w (N, C), y (M, N) --- */

/* y = x w^T */
static void linear(const struct cuda_gpt *m, gk_real *y, const gk_half *x, const gk_half *w,
                   uint64_t C, uint64_t N)
{
    gpu_multiply(m->gpu, &(struct gpu_product){.m = m->M,
                                               .n = N,
                                               .k = C,
                                               .a = x,
                                               .lda = C,
                                               .b = w,
                                               .ldb = C,
                                               .turn_b = true,
                                               .c = y,
                                               .ldc = N,
                                               .scale = 1,
                                               .batch = 1});
}

/* y = x w^T + b + add, in FP32. */
static void linear_add(const struct cuda_gpt *m, gk_real *y, const gk_half *x, const gk_half *w,
                       const gk_half *b, const gk_real *add, uint64_t C, uint64_t N)
{
    linear(m, y, x, w, C, N);
    LAUNCH(m, add_bias, .y = y, .bias = b, .add = add, .cols = N, .n = m->M * N);
}

/* dx = dy w; dx16 when dx is NULL. */
static void linear_back(const struct cuda_gpt *m, gk_real *dx, gk_half *dx16, const gk_half *dy,
                        const gk_half *w, uint64_t C, uint64_t N)
{
    gpu_multiply(m->gpu, &(struct gpu_product){.m = m->M,
                                               .n = C,
                                               .k = N,
                                               .a = dy,
                                               .lda = N,
                                               .b = w,
                                               .ldb = C,
                                               .c = dx,
                                               .c16 = dx16,
                                               .ldc = C,
                                               .scale = 1,
                                               .batch = 1});
}

/* dw += dy^T x, over rows rows. */
static void linear_grad(const struct cuda_gpt *m, gk_real *dw, const gk_half *dy, const gk_half *x,
                        uint64_t rows, uint64_t C, uint64_t N)
{
    gpu_multiply(m->gpu, &(struct gpu_product){.m = N,
                                               .n = C,
                                               .k = rows,
                                               .a = dy,
                                               .lda = N,
                                               .turn_a = true,
                                               .b = x,
                                               .ldb = C,
                                               .c = dw,
                                               .ldc = C,
                                               .scale = 1,
                                               .keep = 1,
                                               .batch = 1});
}

/* db += column sums of dy (M, N). */
static void bias_grad(const struct cuda_gpt *m, gk_real *db, const gk_real *dy, uint64_t N)
{
    uint64_t nchunks = (m->M + GK_CHUNK - 1) / GK_CHUNK;

    LAUNCH(m, sum_chunks, .dy = dy, .chunks = m->chunks, .rows = m->M, .cols = N, .n = nchunks * N);
    LAUNCH(m, add_chunks, .chunks = m->chunks, .grad = db, .rows = m->M, .cols = N, .n = N);
}

/* --- layer norm: rows of C --- */

struct norm {
    const gk_real *x;
    const gk_half *gain, *bias;
    gk_real *mean, *rstd;
};

static void norm_stats(const struct cuda_gpt *m, const struct norm *norm)
{
    LAUNCH(m, norm_lanes, .x = norm->x, .lanes = m->lanes, .lanes2 = m->lanes2, .cols = m->C,
           .n = m->M * GK_LANES);
    LAUNCH(m, norm_rows, .lanes = m->lanes, .lanes2 = m->lanes2, .mean = norm->mean,
           .rstd = norm->rstd, .cols = m->C, .n = m->M);
}

/* y, y16: where not NULL. */
static void norm_forward(const struct cuda_gpt *m, const struct norm *norm, gk_real *y,
                         gk_half *y16)
{
    norm_stats(m, norm);
    LAUNCH(m, norm, .x = norm->x, .mean = norm->mean, .rstd = norm->rstd, .gain = norm->gain,
           .bias = norm->bias, .y = y, .y16 = y16, .cols = m->C, .n = m->M * m->C);
}

/* dg, db += the gradients of gain and bias. Then d += the gradient through the norm, or with overwrite
 * d = it, where d may be dy. */
static void norm_backward(const struct cuda_gpt *m, const struct norm *norm, gk_real *dg,
                          gk_real *db, const gk_real *dy, gk_real *d, int overwrite)
{
    uint64_t C = m->C, nchunks = (m->M + GK_CHUNK - 1) / GK_CHUNK;

    LAUNCH(m, sum_chunks, .dy = dy, .x = norm->x, .mean = norm->mean, .rstd = norm->rstd,
           .chunks = m->chunks, .chunks2 = m->chunks2, .rows = m->M, .cols = C, .n = nchunks * C);
    LAUNCH(m, add_chunks, .chunks = m->chunks, .chunks2 = m->chunks2, .grad = db, .grad2 = dg,
           .rows = m->M, .cols = C, .n = C);
    LAUNCH(m, norm_back_lanes, .dy = dy, .x = norm->x, .mean = norm->mean, .rstd = norm->rstd,
           .gain = norm->gain, .lanes = m->lanes, .lanes2 = m->lanes2, .cols = C,
           .n = m->M * GK_LANES);
    LAUNCH(m, sum_rows, .lanes = m->lanes, .lanes2 = m->lanes2, .sums = m->sums, .sums2 = m->sums2,
           .n = m->M);
    LAUNCH(m, norm_back, .dy = dy, .x = norm->x, .mean = norm->mean, .rstd = norm->rstd,
           .gain = norm->gain, .sums = m->sums, .sums2 = m->sums2, .d = d, .overwrite = overwrite,
           .cols = C, .n = m->M * C);
}

/* --- softmax of rows (rows, cols) --- */

static void softmax_stats(const struct cuda_gpt *m, const gk_real *x, uint64_t rows, uint64_t cols,
                          uint64_t tile, uint64_t first)
{
    LAUNCH(m, softmax_lanes, .x = x, .lanes = m->lanes, .lanes2 = m->lanes2, .cols = cols,
           .tile = tile, .first = first, .n = rows * GK_LANES);
    LAUNCH(m, softmax_rows, .lanes = m->lanes, .lanes2 = m->lanes2, .sums = m->sums,
           .sums2 = m->sums2, .n = rows);
}

/* --- attention: all heads of query rows [i0, i1) of one sequence at once --- */

struct tile {
    uint64_t i0, rows, keys; /* rows [i0, i0 + rows) see keys [0, keys) at most */
    uint64_t D;
    const gk_half *q, *k, *v; /* rows of 3C; q at row i0; head h is D * h further */
};

static struct tile tile_at(const struct cuda_gpt *m, const gk_half *qkv, uint64_t sequence,
                           uint64_t i0)
{
    uint64_t T = m->shape.seq, C = m->C, rows = smaller(m->score_rows, T - i0);
    const gk_half *base = qkv + sequence * T * 3 * C;

    return (struct tile){.i0 = i0,
                         .rows = rows,
                         .keys = i0 + rows,
                         .D = C / m->shape.heads,
                         .q = base + i0 * 3 * C,
                         .k = base + C,
                         .v = base + 2 * C};
}

/* One product a head, c = scale a b + keep c: what the attention's have in common. */
static struct gpu_product per_head(const struct cuda_gpt *m, uint64_t rows, uint64_t cols,
                                   uint64_t inner)
{
    return (struct gpu_product){
        .m = rows, .n = cols, .k = inner, .scale = 1, .batch = m->shape.heads};
}

/* An operand (rows, keys) of each head, and one that is D columns a head of rows of stride. */
#define SQUARE_A(p, array, t)                                                                      \
    ((p).a = (array), (p).lda = (t)->keys, (p).stride_a = (t)->rows * (t)->keys)
#define COLUMNS_A(p, array, stride, t) ((p).a = (array), (p).lda = (stride), (p).stride_a = (t)->D)
#define COLUMNS_B(p, array, stride, t) ((p).b = (array), (p).ldb = (stride), (p).stride_b = (t)->D)
#define SQUARE_C(p, array, t)                                                                      \
    ((p).c = (array), (p).ldc = (t)->keys, (p).stride_c = (t)->rows * (t)->keys)
#define COLUMNS_C(p, array, stride, t) ((p).c = (array), (p).ldc = (stride), (p).stride_c = (t)->D)

/* probs (heads, rows, keys) = softmax of q k^T / sqrt(D), causal */
static void probabilities(const struct cuda_gpt *m, const struct tile *t, gk_real scale)
{
    uint64_t rows = m->shape.heads * t->rows;
    struct gpu_product p = per_head(m, t->rows, t->keys, t->D);

    COLUMNS_A(p, t->q, 3 * m->C, t);
    COLUMNS_B(p, t->k, 3 * m->C, t);
    p.turn_b = true;
    p.scale = scale;
    SQUARE_C(p, m->scores, t);
    gpu_multiply(m->gpu, &p);
    softmax_stats(m, m->scores, rows, t->keys, t->rows, t->i0);
    LAUNCH(m, softmax, .x = m->scores, .sums = m->sums, .sums2 = m->sums2, .y16 = m->probs,
           .cols = t->keys, .tile = t->rows, .first = t->i0, .n = rows * t->keys);
}

static gk_real score_scale(const struct cuda_gpt *m)
{
    return 1 / (gk_real)sqrt((double)(m->C / m->shape.heads));
}

static void attention(const struct cuda_gpt *m, const gk_half *qkv, gk_half *att)
{
    uint64_t T = m->shape.seq;

    for (uint64_t s = 0; s < m->shape.batch; s++)
        for (uint64_t i0 = 0; i0 < T; i0 += m->score_rows) {
            struct tile t = tile_at(m, qkv, s, i0);
            struct gpu_product p = per_head(m, t.rows, t.D, t.keys);

            probabilities(m, &t, score_scale(m));
            SQUARE_A(p, m->probs, &t);
            COLUMNS_B(p, t.v, 3 * m->C, &t);
            COLUMNS_C(p, NULL, m->C, &t);
            p.c16 = att + (s * T + i0) * m->C;
            gpu_multiply(m->gpu, &p);
        }
}

/* dprobs (heads, rows, keys): the gradient of the scores, before their scale. */
static void scores_back(const struct cuda_gpt *m, const struct tile *t, const gk_half *datt)
{
    uint64_t rows = m->shape.heads * t->rows;
    struct gpu_product p = per_head(m, t->rows, t->keys, t->D);

    COLUMNS_A(p, datt, m->C, t);
    COLUMNS_B(p, t->v, 3 * m->C, t);
    p.turn_b = true;
    SQUARE_C(p, m->dscores, t);
    gpu_multiply(m->gpu, &p);
    LAUNCH(m, softmax_back_lanes, .p16 = m->probs, .dy = m->dscores, .lanes = m->lanes,
           .cols = t->keys, .n = rows * GK_LANES);
    LAUNCH(m, sum_rows, .lanes = m->lanes, .sums = m->sums, .n = rows);
    LAUNCH(m, softmax_back, .p16 = m->probs, .dy = m->dscores, .sums = m->sums, .d16 = m->dprobs,
           .cols = t->keys, .n = rows * t->keys);
}

/* c (keys, D) a head, in dqkv: square^T columns. Tiles go from the last to the first, so the first one seen
 * reaches every key and overwrites; the others add. */
static void keys_back(const struct cuda_gpt *m, const struct tile *t, const gk_half *square,
                      const gk_half *columns, uint64_t stride, gk_real scale, gk_real *out)
{
    struct gpu_product p = per_head(m, t->keys, t->D, t->rows);

    SQUARE_A(p, square, t);
    p.turn_a = true;
    COLUMNS_B(p, columns, stride, t);
    COLUMNS_C(p, out, 3 * m->C, t);
    p.scale = scale;
    p.keep = t->keys == m->shape.seq ? 0 : 1;
    gpu_multiply(m->gpu, &p);
}

static void tile_back(const struct cuda_gpt *m, const struct tile *t, const gk_half *datt,
                      gk_real *dqkv)
{
    gk_real scale = score_scale(m);
    struct gpu_product p = per_head(m, t->rows, t->D, t->keys);

    probabilities(m, t, scale);
    keys_back(m, t, m->probs, datt, m->C, 1, dqkv + 2 * m->C);
    scores_back(m, t, datt);
    SQUARE_A(p, m->dprobs, t);
    COLUMNS_B(p, t->k, 3 * m->C, t);
    COLUMNS_C(p, dqkv + t->i0 * 3 * m->C, 3 * m->C, t);
    p.scale = scale;
    gpu_multiply(m->gpu, &p);
    keys_back(m, t, m->dprobs, t->q, 3 * m->C, scale, dqkv + m->C);
}

/* dqkv (M, 3C), overwritten. */
static void attention_back(const struct cuda_gpt *m, const gk_half *qkv, const gk_half *datt,
                           gk_real *dqkv)
{
    uint64_t T = m->shape.seq, C = m->C;

    for (uint64_t s = 0; s < m->shape.batch; s++)
        for (uint64_t n = (T - 1) / m->score_rows + 1; n-- > 0;) {
            struct tile t = tile_at(m, qkv, s, n * m->score_rows);

            tile_back(m, &t, datt + (s * T + t.i0) * C, dqkv + s * T * 3 * C);
        }
}

/* --- passes --- */

void cuda_gpt_embed_forward(const struct cuda_gpt *m, const gk_half *const *w,
                            const uint8_t *tokens, gk_real *x)
{
    LAUNCH(m, embed, .tokens = tokens, .wte = w[GPT_WTE], .wpe = w[GPT_WPE], .y = x, .cols = m->C,
           .seq = m->shape.seq, .n = m->M * m->C);
}

void cuda_gpt_embed_backward(const struct cuda_gpt *m, gk_real *const *g, const uint8_t *tokens,
                             const gk_real *d)
{
    LAUNCH(m, embed_token_grad, .tokens = tokens, .dy = d, .grad = g[GPT_WTE], .rows = m->M,
           .cols = m->C, .seq = m->shape.seq, .n = (uint64_t)GPT_TOKENS * m->C);
    LAUNCH(m, embed_position_grad, .dy = d, .grad = g[GPT_WPE], .rows = m->M, .cols = m->C,
           .seq = m->shape.seq, .n = m->shape.seq * m->C);
}

static struct norm norm1(const gk_half *const *w, const gk_real *x,
                         const struct cuda_gpt_acts *acts)
{
    return (struct norm){x, w[GPT_LN1_G], w[GPT_LN1_B], acts->mean1, acts->rstd1};
}

static struct norm norm2(const gk_half *const *w, const struct cuda_gpt_acts *acts)
{
    return (struct norm){acts->mid, w[GPT_LN2_G], w[GPT_LN2_B], acts->mean2, acts->rstd2};
}

void cuda_gpt_block_forward(const struct cuda_gpt *m, const gk_half *const *w, const gk_real *x,
                            gk_real *y, const struct cuda_gpt_acts *acts)
{
    uint64_t M = m->M, C = m->C;
    struct norm first = norm1(w, x, acts), second = norm2(w, acts);

    norm_forward(m, &first, NULL, acts->ln1);
    linear(m, m->wide, acts->ln1, w[GPT_QKV_W], C, 3 * C);
    LAUNCH(m, narrow_with_bias, .x = m->wide, .bias = w[GPT_QKV_B], .y16 = acts->qkv, .cols = 3 * C,
           .n = M * 3 * C);
    attention(m, acts->qkv, acts->att);
    linear_add(m, acts->mid, acts->att, w[GPT_PROJ_W], w[GPT_PROJ_B], x, C, C);
    norm_forward(m, &second, NULL, acts->ln2);
    linear(m, m->wide, acts->ln2, w[GPT_FC_W], C, 4 * C);
    LAUNCH(m, gelu, .x = m->wide, .bias = w[GPT_FC_B], .z16 = acts->fc, .y16 = acts->gelu,
           .cols = 4 * C, .n = M * 4 * C);
    if (y != NULL)
        linear_add(m, y, acts->gelu, w[GPT_OUT_W], w[GPT_OUT_B], acts->mid, 4 * C, C);
}

/* On return d holds the gradient at acts->mid. */
static void mlp_backward(const struct cuda_gpt *m, const gk_half *const *w, gk_real *const *g,
                         const struct cuda_gpt_acts *acts, gk_real *d)
{
    uint64_t M = m->M, C = m->C;
    struct norm norm = norm2(w, acts);

    narrow(m, m->x16, d, M * C);
    linear_grad(m, g[GPT_OUT_W], m->x16, acts->gelu, M, 4 * C, C);
    bias_grad(m, g[GPT_OUT_B], d, C);
    linear_back(m, m->wide, NULL, m->x16, w[GPT_OUT_W], 4 * C, C);
    LAUNCH(m, gelu_back, .x16 = acts->fc, .d = m->wide, .d16 = m->wide16, .n = M * 4 * C);
    linear_grad(m, g[GPT_FC_W], m->wide16, acts->ln2, M, C, 4 * C);
    bias_grad(m, g[GPT_FC_B], m->wide, 4 * C);
    linear_back(m, m->dnorm, NULL, m->wide16, w[GPT_FC_W], C, 4 * C);
    norm_backward(m, &norm, g[GPT_LN2_G], g[GPT_LN2_B], m->dnorm, d, 0);
}

/* d is the gradient at acts->mid, then at x. */
static void attention_backward(const struct cuda_gpt *m, const gk_half *const *w, gk_real *const *g,
                               const gk_real *x, const struct cuda_gpt_acts *acts, gk_real *d)
{
    uint64_t M = m->M, C = m->C;
    struct norm norm = norm1(w, x, acts);

    narrow(m, m->x16, d, M * C);
    linear_grad(m, g[GPT_PROJ_W], m->x16, acts->att, M, C, C);
    bias_grad(m, g[GPT_PROJ_B], d, C);
    linear_back(m, NULL, m->y16, m->x16, w[GPT_PROJ_W], C, C);
    attention_back(m, acts->qkv, m->y16, m->wide);
    narrow(m, m->wide16, m->wide, M * 3 * C);
    linear_grad(m, g[GPT_QKV_W], m->wide16, acts->ln1, M, C, 3 * C);
    bias_grad(m, g[GPT_QKV_B], m->wide, 3 * C);
    linear_back(m, m->dnorm, NULL, m->wide16, w[GPT_QKV_W], C, 3 * C);
    norm_backward(m, &norm, g[GPT_LN1_G], g[GPT_LN1_B], m->dnorm, d, 0);
}

void cuda_gpt_block_backward(const struct cuda_gpt *m, const gk_half *const *w, gk_real *const *g,
                             const gk_real *x, const struct cuda_gpt_acts *acts, gk_real *d)
{
    mlp_backward(m, w, g, acts, d);
    attention_backward(m, w, g, x, acts, d);
}

void cuda_gpt_final_forward(const struct cuda_gpt *m, const gk_half *const *w, const gk_real *x,
                            gk_real *y)
{
    norm_forward(m, &(struct norm){x, w[GPT_LNF_G], w[GPT_LNF_B], m->mean, m->rstd}, y, NULL);
}

void cuda_gpt_final_backward(const struct cuda_gpt *m, const gk_half *const *w, gk_real *const *g,
                             const gk_real *x, gk_real *d)
{
    struct norm norm = {x, w[GPT_LNF_G], w[GPT_LNF_B], m->mean, m->rstd};

    norm_stats(m, &norm);
    norm_backward(m, &norm, g[GPT_LNF_G], g[GPT_LNF_B], d, d, 1);
}

/* --- the head: logits of rows [r0, r0 + rows) at a time --- */

static void logits(const struct cuda_gpt *m, const gk_half *const *w, const gk_half *h, uint64_t r0,
                   uint64_t rows)
{
    gpu_multiply(m->gpu, &(struct gpu_product){.m = rows,
                                               .n = m->shape.vocab,
                                               .k = m->C,
                                               .a = h + r0 * m->C,
                                               .lda = m->C,
                                               .b = w[GPT_WTE],
                                               .ldb = m->C,
                                               .turn_b = true,
                                               .c = m->logits,
                                               .ldc = m->shape.vocab,
                                               .scale = 1,
                                               .batch = 1});
    softmax_stats(m, m->logits, rows, m->shape.vocab, 0, 0);
}

void cuda_gpt_head_forward(const struct cuda_gpt *m, const gk_half *const *w, const gk_real *h,
                           const uint8_t *tokens, double *loss)
{
    const gk_half *h16 = narrow(m, m->x16, h, m->M * m->C);
    uint64_t nchunks = (m->M + GK_CHUNK - 1) / GK_CHUNK;

    for (uint64_t r0 = 0; r0 < m->M; r0 += m->head_rows) {
        uint64_t rows = smaller(m->head_rows, m->M - r0);

        logits(m, w, h16, r0, rows);
        LAUNCH(m, cross_entropy, .x = m->logits, .sums = m->sums, .sums2 = m->sums2,
               .tokens = tokens, .seq = m->shape.seq, .first = r0, .y = m->row_loss + r0,
               .cols = m->shape.vocab, .n = rows);
    }
    LAUNCH(m, sum_chunks, .dy = m->row_loss, .chunks = m->chunks, .rows = m->M, .cols = 1,
           .n = nchunks);
    LAUNCH(m, mean_loss, .chunks = m->chunks, .loss = loss, .rows = m->M, .n = 1);
}

void cuda_gpt_head_backward(const struct cuda_gpt *m, const gk_half *const *w, gk_real *const *g,
                            const gk_real *h, const uint8_t *tokens, gk_real loss_scale, gk_real *d)
{
    const gk_half *h16 = narrow(m, m->x16, h, m->M * m->C);
    uint64_t C = m->C, V = m->shape.vocab;

    for (uint64_t r0 = 0; r0 < m->M; r0 += m->head_rows) {
        uint64_t rows = smaller(m->head_rows, m->M - r0);

        logits(m, w, h16, r0, rows);
        LAUNCH(m, cross_entropy_back, .x = m->logits, .sums = m->sums, .sums2 = m->sums2,
               .tokens = tokens, .seq = m->shape.seq, .first = r0,
               .scale = loss_scale / (gk_real)m->M, .d16 = m->dlogits, .cols = V, .n = rows * V);
        linear_grad(m, g[GPT_WTE], m->dlogits, h16 + r0 * C, rows, C, V);
        gpu_multiply(m->gpu, &(struct gpu_product){.m = rows,
                                                   .n = C,
                                                   .k = V,
                                                   .a = m->dlogits,
                                                   .lda = V,
                                                   .b = w[GPT_WTE],
                                                   .ldb = C,
                                                   .c = d + r0 * C,
                                                   .ldc = C,
                                                   .scale = 1,
                                                   .batch = 1});
    }
}
