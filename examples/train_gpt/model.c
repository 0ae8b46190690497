/*
 * model.c: see model.h. One parallel region per call; inside it, loops over fixed tiles.
 *
 * Each tile has one writer and one order of summation, so schedules may differ and bits do not. Matrix
 * products run on one thread each, inside the tiles.
 */
#include "model.h"
#include <omp.h>
#include "attention.h"
#include "layers.h"

/* Columns of a weight's gradient, and of a norm's, that one task sums. */
#define GRAD_TILE 64

/* Rows in a tile: by M alone. */
static size_t tile_rows(size_t M)
{
    size_t rows = (M / 8 + 15) / 16 * 16;

    return rows < 16 ? 16 : rows > 128 ? 128 : rows;
}

static size_t ntiles(size_t n, size_t tile)
{
    return (n + tile - 1) / tile;
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Tile t of M rows is [r0, r1). */
struct tile {
    size_t r0, r1;
};

static struct tile row_tile(size_t M, size_t t)
{
    size_t rows = tile_rows(M);

    return (struct tile){t * rows, smaller((t + 1) * rows, M)};
}

static size_t row_tiles(size_t M)
{
    return ntiles(M, tile_rows(M));
}

void gpt_model_init(void)
{
    openblas_set_num_threads(1);
}

void gpt_widen_bf16(const struct gpt_shape *shape, real *w, const uint16_t *in, uint64_t n)
{
#pragma omp parallel for simd schedule(static) num_threads(shape->nthreads)
    for (uint64_t i = 0; i < n; i++) {
        uint32_t bits = (uint32_t)in[i] << 16;
        float value;

        memcpy(&value, &bits, sizeof value);
        w[i] = value;
    }
}

/* The exponent's bias differs by 112; 2^112 also makes normal numbers of denormal ones. */
static inline float widen_fp16(uint16_t half)
{
    uint32_t magnitude = (uint32_t)(half & 0x7fff) << 13, bits;
    float value;

    memcpy(&value, &magnitude, sizeof value);
    value *= 0x1p112f;
    memcpy(&bits, &value, sizeof bits);
    bits |= (uint32_t)(half & 0x8000) << 16;
    bits |= magnitude >= 0x0f800000 ? 0x7f800000 : 0; /* Inf and NaN */
    memcpy(&value, &bits, sizeof value);
    return value;
}

void gpt_widen_fp16(const struct gpt_shape *shape, real *w, const uint16_t *in, uint64_t n)
{
#pragma omp parallel for simd schedule(static) num_threads(shape->nthreads)
    for (uint64_t i = 0; i < n; i++)
        w[i] = widen_fp16(in[i]);
}

void gpt_embed_forward(const struct gpt_shape *shape, const real *const *w, const uint8_t *tokens,
                       real *x)
{
    size_t M = shape->batch * shape->seq;

#pragma omp parallel for schedule(static) num_threads(shape->nthreads)
    for (size_t t = 0; t < row_tiles(M); t++) {
        struct tile s = row_tile(M, t);

        gpt_embed_rows(x, tokens, w[GPT_WTE], w[GPT_WPE], shape->seq, shape->dim, s.r0, s.r1);
    }
}

void gpt_embed_backward(const struct gpt_shape *shape, real *const *g, const uint8_t *tokens,
                        const real *d)
{
    size_t M = shape->batch * shape->seq, C = shape->dim;

#pragma omp parallel for schedule(static) num_threads(shape->nthreads)
    for (size_t c0 = 0; c0 < C; c0 += GRAD_TILE)
        gpt_embed_grad_cols(g[GPT_WTE], g[GPT_WPE], d, tokens, M, shape->seq, C, c0,
                            smaller(c0 + GRAD_TILE, C));
}

static struct gpt_head head_at(const struct gpt_shape *shape, const real *qkv, size_t i)
{
    size_t C = shape->dim, D = C / shape->heads;
    const real *q = qkv + i / shape->heads * shape->seq * 3 * C + i % shape->heads * D;

    return (struct gpt_head){.T = shape->seq, .D = D, .C = C, .q = q, .k = q + C, .v = q + 2 * C};
}

/* Where head i begins in an (M, C) array. */
static size_t head_offset(const struct gpt_shape *shape, size_t i)
{
    return i / shape->heads * shape->seq * shape->dim +
           i % shape->heads * (shape->dim / shape->heads);
}

static real *my_tiles(const struct gpt_shape *shape, const struct gpt_scratch *scratch)
{
    return scratch->tiles + (size_t)omp_get_thread_num() * GPT_ATTENTION_SCRATCH(shape->seq);
}

void gpt_block_forward(const struct gpt_shape *shape, const real *const *w, const real *x, real *y,
                       const struct gpt_block_acts *acts, const struct gpt_scratch *scratch)
{
    size_t M = shape->batch * shape->seq, C = shape->dim, nheads = shape->batch * shape->heads;

#pragma omp parallel num_threads(shape->nthreads)
    {
#pragma omp for schedule(static)
        for (size_t t = 0; t < row_tiles(M); t++) {
            struct tile s = row_tile(M, t);

            gpt_norm_rows(acts->ln1, acts->mean1, acts->rstd1, x, w[GPT_LN1_G], w[GPT_LN1_B], C,
                          s.r0, s.r1);
            gpt_linear_rows(acts->qkv, acts->ln1, w[GPT_QKV_W], w[GPT_QKV_B], NULL, C, 3 * C, s.r0,
                            s.r1);
        }
#pragma omp for schedule(static)
        for (size_t i = 0; i < nheads; i++) {
            struct gpt_head head = head_at(shape, acts->qkv, i);

            gpt_attention(&head, acts->att + head_offset(shape, i), my_tiles(shape, scratch));
        }
#pragma omp for schedule(static)
        for (size_t t = 0; t < row_tiles(M); t++) {
            struct tile s = row_tile(M, t);

            gpt_linear_rows(acts->mid, acts->att, w[GPT_PROJ_W], w[GPT_PROJ_B], x, C, C, s.r0,
                            s.r1);
            gpt_norm_rows(acts->ln2, acts->mean2, acts->rstd2, acts->mid, w[GPT_LN2_G],
                          w[GPT_LN2_B], C, s.r0, s.r1);
            gpt_linear_rows(acts->fc, acts->ln2, w[GPT_FC_W], w[GPT_FC_B], NULL, C, 4 * C, s.r0,
                            s.r1);
            gpt_gelu(acts->gelu + s.r0 * 4 * C, acts->fc + s.r0 * 4 * C, (s.r1 - s.r0) * 4 * C);
            if (y != NULL)
                gpt_linear_rows(y, acts->gelu, w[GPT_OUT_W], w[GPT_OUT_B], acts->mid, 4 * C, C,
                                s.r0, s.r1);
        }
    }
}

/* Gradients of one half of a block: two linears, the second of which reads the norm, and the norm.
 * dy1 (M, N1), x1 (M, C1); dy2 (M, N2), x2 (M, C), dnorm and norm_in (M, C). */
struct half_grads {
    real *dw1, *db1, *dw2, *db2, *dg, *db;
    const real *dy1, *x1, *dy2, *x2, *dnorm, *norm_in, *mean, *rstd;
    size_t M, N1, C1, N2, C;
};

/* Task i of the half; returns 0 past the last. */
static void half_task(const struct half_grads *h, size_t i)
{
    size_t n1 = ntiles(h->N1, GRAD_TILE), n2 = ntiles(h->N2, GRAD_TILE), first;

    if (i < n1) {
        first = i * GRAD_TILE;
        gpt_linear_grad(h->dw1, h->db1, h->dy1, h->x1, h->M, h->C1, h->N1, first,
                        smaller(first + GRAD_TILE, h->N1));
    } else if (i < n1 + n2) {
        first = (i - n1) * GRAD_TILE;
        gpt_linear_grad(h->dw2, h->db2, h->dy2, h->x2, h->M, h->C, h->N2, first,
                        smaller(first + GRAD_TILE, h->N2));
    } else {
        first = (i - n1 - n2) * GRAD_TILE;
        gpt_norm_grad_cols(h->dg, h->db, h->dnorm, h->norm_in, h->mean, h->rstd, h->M, h->C, first,
                           smaller(first + GRAD_TILE, h->C));
    }
}

/* Called by the whole team. */
static void half_weight_grads(const struct half_grads *h)
{
    size_t n = ntiles(h->N1, GRAD_TILE) + ntiles(h->N2, GRAD_TILE) + ntiles(h->C, GRAD_TILE);

#pragma omp for schedule(dynamic)
    for (size_t i = 0; i < n; i++)
        half_task(h, i);
}

/* Called by the whole team. On return d holds the gradient at acts->mid. */
static void mlp_backward(const struct gpt_shape *shape, const real *const *w, real *const *g,
                         const struct gpt_block_acts *acts, real *d,
                         const struct gpt_scratch *scratch)
{
    size_t M = shape->batch * shape->seq, C = shape->dim;
    real *dfc = scratch->wide, *dnorm = scratch->dnorm;

#pragma omp for schedule(static)
    for (size_t t = 0; t < row_tiles(M); t++) {
        struct tile s = row_tile(M, t);

        gpt_linear_back_rows(dfc, d, w[GPT_OUT_W], 4 * C, C, s.r0, s.r1);
        gpt_gelu_back(dfc + s.r0 * 4 * C, acts->fc + s.r0 * 4 * C, (s.r1 - s.r0) * 4 * C);
        gpt_linear_back_rows(dnorm, dfc, w[GPT_FC_W], C, 4 * C, s.r0, s.r1);
    }
    half_weight_grads(&(struct half_grads){.dw1 = g[GPT_OUT_W],
                                           .db1 = g[GPT_OUT_B],
                                           .dy1 = d,
                                           .x1 = acts->gelu,
                                           .N1 = C,
                                           .C1 = 4 * C,
                                           .dw2 = g[GPT_FC_W],
                                           .db2 = g[GPT_FC_B],
                                           .dy2 = dfc,
                                           .x2 = acts->ln2,
                                           .N2 = 4 * C,
                                           .dg = g[GPT_LN2_G],
                                           .db = g[GPT_LN2_B],
                                           .dnorm = dnorm,
                                           .norm_in = acts->mid,
                                           .mean = acts->mean2,
                                           .rstd = acts->rstd2,
                                           .M = M,
                                           .C = C});
#pragma omp for schedule(static)
    for (size_t t = 0; t < row_tiles(M); t++) {
        struct tile s = row_tile(M, t);

        gpt_norm_back_rows_add(d, dnorm, acts->mid, acts->mean2, acts->rstd2, w[GPT_LN2_G], C, s.r0,
                               s.r1);
    }
}

/* Called by the whole team. d is the gradient at acts->mid, then at x. */
static void attention_backward(const struct gpt_shape *shape, const real *const *w, real *const *g,
                               const real *x, const struct gpt_block_acts *acts, real *d,
                               const struct gpt_scratch *scratch)
{
    size_t M = shape->batch * shape->seq, C = shape->dim, nheads = shape->batch * shape->heads;
    real *dqkv = scratch->wide, *datt = scratch->wide + M * 3 * C, *dnorm = scratch->dnorm;

#pragma omp for schedule(static)
    for (size_t t = 0; t < row_tiles(M); t++) {
        struct tile s = row_tile(M, t);

        gpt_linear_back_rows(datt, d, w[GPT_PROJ_W], C, C, s.r0, s.r1);
    }
#pragma omp for schedule(static)
    for (size_t i = 0; i < nheads; i++) {
        struct gpt_head head = head_at(shape, acts->qkv, i);
        size_t at = head_offset(shape, i);
        real *dq = dqkv + (head.q - acts->qkv);

        gpt_attention_back(&head, acts->att + at, datt + at, dq, dq + C, dq + 2 * C,
                           my_tiles(shape, scratch));
    }
#pragma omp for schedule(static)
    for (size_t t = 0; t < row_tiles(M); t++) {
        struct tile s = row_tile(M, t);

        gpt_linear_back_rows(dnorm, dqkv, w[GPT_QKV_W], C, 3 * C, s.r0, s.r1);
    }
    half_weight_grads(&(struct half_grads){.dw1 = g[GPT_PROJ_W],
                                           .db1 = g[GPT_PROJ_B],
                                           .dy1 = d,
                                           .x1 = acts->att,
                                           .N1 = C,
                                           .C1 = C,
                                           .dw2 = g[GPT_QKV_W],
                                           .db2 = g[GPT_QKV_B],
                                           .dy2 = dqkv,
                                           .x2 = acts->ln1,
                                           .N2 = 3 * C,
                                           .dg = g[GPT_LN1_G],
                                           .db = g[GPT_LN1_B],
                                           .dnorm = dnorm,
                                           .norm_in = x,
                                           .mean = acts->mean1,
                                           .rstd = acts->rstd1,
                                           .M = M,
                                           .C = C});
#pragma omp for schedule(static)
    for (size_t t = 0; t < row_tiles(M); t++) {
        struct tile s = row_tile(M, t);

        gpt_norm_back_rows_add(d, dnorm, x, acts->mean1, acts->rstd1, w[GPT_LN1_G], C, s.r0, s.r1);
    }
}

void gpt_block_backward(const struct gpt_shape *shape, const real *const *w, real *const *g,
                        const real *x, const struct gpt_block_acts *acts, real *d,
                        const struct gpt_scratch *scratch)
{
#pragma omp parallel num_threads(shape->nthreads)
    {
        mlp_backward(shape, w, g, acts, d, scratch);
        attention_backward(shape, w, g, x, acts, d, scratch);
    }
}

void gpt_final_forward(const struct gpt_shape *shape, const real *const *w, const real *x, real *y,
                       const struct gpt_scratch *scratch)
{
    size_t M = shape->batch * shape->seq;

#pragma omp parallel for schedule(static) num_threads(shape->nthreads)
    for (size_t t = 0; t < row_tiles(M); t++) {
        struct tile s = row_tile(M, t);

        gpt_norm_rows(y, scratch->mean, scratch->rstd, x, w[GPT_LNF_G], w[GPT_LNF_B], shape->dim,
                      s.r0, s.r1);
    }
}

void gpt_final_backward(const struct gpt_shape *shape, const real *const *w, real *const *g,
                        const real *x, real *d, const struct gpt_scratch *scratch)
{
    size_t M = shape->batch * shape->seq, C = shape->dim;
    real *mean = scratch->mean, *rstd = scratch->rstd, *dy = scratch->dnorm;

#pragma omp parallel num_threads(shape->nthreads)
    {
#pragma omp for schedule(static)
        for (size_t t = 0; t < row_tiles(M); t++) {
            struct tile s = row_tile(M, t);

            gpt_norm_stats_rows(mean, rstd, x, C, s.r0, s.r1);
            memcpy(dy + s.r0 * C, d + s.r0 * C, (s.r1 - s.r0) * C * sizeof *d);
            memset(d + s.r0 * C, 0, (s.r1 - s.r0) * C * sizeof *d);
            gpt_norm_back_rows_add(d, dy, x, mean, rstd, w[GPT_LNF_G], C, s.r0, s.r1);
        }
#pragma omp for schedule(static)
        for (size_t c0 = 0; c0 < C; c0 += GRAD_TILE)
            gpt_norm_grad_cols(g[GPT_LNF_G], g[GPT_LNF_B], dy, x, mean, rstd, M, C, c0,
                               smaller(c0 + GRAD_TILE, C));
    }
}

double gpt_head_forward(const struct gpt_shape *shape, const real *const *w, const real *h,
                        const uint8_t *tokens, const struct gpt_scratch *scratch)
{
    size_t M = shape->batch * shape->seq, C = shape->dim, V = shape->vocab;
    double sum = 0;

#pragma omp parallel for schedule(static) num_threads(shape->nthreads)
    for (size_t t = 0; t < row_tiles(M); t++) {
        struct tile s = row_tile(M, t);

        gpt_linear_rows(scratch->wide, h, w[GPT_WTE], NULL, NULL, C, V, s.r0, s.r1);
        gpt_cross_entropy_rows(scratch->loss, scratch->wide, tokens, shape->seq, V, 0, s.r0, s.r1);
    }
    for (size_t r = 0; r < M; r++)
        sum += (double)scratch->loss[r];
    return sum / (double)M;
}

void gpt_head_backward(const struct gpt_shape *shape, const real *const *w, real *const *g,
                       const real *h, const uint8_t *tokens, real loss_scale, real *d,
                       const struct gpt_scratch *scratch)
{
    size_t M = shape->batch * shape->seq, C = shape->dim, V = shape->vocab;
    real *logits = scratch->wide;

#pragma omp parallel num_threads(shape->nthreads)
    {
#pragma omp for schedule(static)
        for (size_t t = 0; t < row_tiles(M); t++) {
            struct tile s = row_tile(M, t);

            gpt_linear_rows(logits, h, w[GPT_WTE], NULL, NULL, C, V, s.r0, s.r1);
            gpt_cross_entropy_rows(scratch->loss, logits, tokens, shape->seq, V,
                                   loss_scale / (real)M, s.r0, s.r1);
            gpt_linear_back_rows(d, logits, w[GPT_WTE], C, V, s.r0, s.r1);
        }
#pragma omp for schedule(static)
        for (size_t n0 = 0; n0 < V; n0 += GRAD_TILE)
            gpt_linear_grad(g[GPT_WTE], NULL, logits, h, M, C, V, n0, smaller(n0 + GRAD_TILE, V));
    }
}
