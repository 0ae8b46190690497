/* layers.c: see layers.h. Loops over columns come innermost and in a function of their own, which is
 * compiled per instruction set. */
#include "layers.h"

#define NORM_EPS ((real)1e-5)

void gpt_linear_rows(real *y, const real *x, const real *w, const real *b, const real *add,
                     size_t C, size_t N, size_t r0, size_t r1)
{
    for (size_t r = r0; b != NULL && r < r1; r++) {
        real *row = y + r * N;

        if (add != NULL)
            for (size_t n = 0; n < N; n++)
                row[n] = add[r * N + n] + b[n];
        else
            memcpy(row, b, N * sizeof *b);
    }
    gpt_gemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)(r1 - r0), (int)N, (int)C, 1, x + r0 * C,
             (int)C, w, (int)C, b != NULL, y + r0 * N, (int)N);
}

void gpt_linear_back_rows(real *dx, const real *dy, const real *w, size_t C, size_t N, size_t r0,
                          size_t r1)
{
    gpt_gemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)(r1 - r0), (int)C, (int)N, 1,
             dy + r0 * N, (int)N, w, (int)C, 0, dx + r0 * C, (int)C);
}

GPT_CLONES
static void add_row(real *restrict sum, const real *restrict row, size_t n)
{
    for (size_t i = 0; i < n; i++)
        sum[i] += row[i];
}

void gpt_linear_grad(real *dw, real *db, const real *dy, const real *x, size_t M, size_t C,
                     size_t N, size_t n0, size_t n1)
{
    gpt_gemm(CblasRowMajor, CblasTrans, CblasNoTrans, (int)(n1 - n0), (int)C, (int)M, 1, dy + n0,
             (int)N, x, (int)C, 1, dw + n0 * C, (int)C);
    if (db == NULL)
        return;
    for (size_t r = 0; r < M; r++)
        add_row(db + n0, dy + r * N + n0, n1 - n0);
}

GPT_CLONES
static real row_sum(const real *restrict x, size_t n)
{
    real lane[GPT_LANES] = {0};
    size_t i = 0;

    for (; i + GPT_LANES <= n; i += GPT_LANES)
        for (int l = 0; l < GPT_LANES; l++)
            lane[l] += x[i + l];
    for (int l = 0; i < n; i++, l++)
        lane[l] += x[i];
    return gpt_combine_lanes(lane);
}

GPT_CLONES
real gpt_dot(const real *restrict x, const real *restrict y, size_t n)
{
    real lane[GPT_LANES] = {0};
    size_t i = 0;

    for (; i + GPT_LANES <= n; i += GPT_LANES)
        for (int l = 0; l < GPT_LANES; l++)
            lane[l] += x[i + l] * y[i + l];
    for (int l = 0; i < n; i++, l++)
        lane[l] += x[i] * y[i];
    return gpt_combine_lanes(lane);
}

GPT_CLONES
static real row_spread(const real *restrict x, real mean, size_t n)
{
    real lane[GPT_LANES] = {0};
    size_t i = 0;

    for (; i + GPT_LANES <= n; i += GPT_LANES)
        for (int l = 0; l < GPT_LANES; l++)
            lane[l] += (x[i + l] - mean) * (x[i + l] - mean);
    for (int l = 0; i < n; i++, l++)
        lane[l] += (x[i] - mean) * (x[i] - mean);
    return gpt_combine_lanes(lane);
}

GPT_CLONES
static void norm_row(real *restrict y, const real *restrict x, real mean, real rstd,
                     const real *restrict g, const real *restrict b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = (x[i] - mean) * rstd * g[i] + b[i];
}

void gpt_norm_stats_rows(real *mean, real *rstd, const real *x, size_t C, size_t r0, size_t r1)
{
    for (size_t r = r0; r < r1; r++) {
        const real *row = x + r * C;

        mean[r] = row_sum(row, C) / (real)C;
        rstd[r] = 1 / (real)sqrt((double)(row_spread(row, mean[r], C) / (real)C + NORM_EPS));
    }
}

void gpt_norm_rows(real *y, real *mean, real *rstd, const real *x, const real *g, const real *b,
                   size_t C, size_t r0, size_t r1)
{
    gpt_norm_stats_rows(mean, rstd, x, C, r0, r1);
    for (size_t r = r0; r < r1; r++)
        norm_row(y + r * C, x + r * C, mean[r], rstd[r], g, b, C);
}

/* With d = dy * g and h = (x - mean) * rstd: dx += rstd * (d - mean(d) - h * mean(d * h)). */
GPT_CLONES
static void norm_row_back(real *restrict dx, const real *restrict dy, const real *restrict x,
                          real mean, real rstd, const real *restrict g, size_t n)
{
    real sum[GPT_LANES] = {0}, dot[GPT_LANES] = {0}, mean_d, mean_dh;
    size_t i = 0;

    for (; i + GPT_LANES <= n; i += GPT_LANES)
        for (int l = 0; l < GPT_LANES; l++) {
            real d = dy[i + l] * g[i + l];

            sum[l] += d;
            dot[l] += d * ((x[i + l] - mean) * rstd);
        }
    for (int l = 0; i < n; i++, l++) {
        real d = dy[i] * g[i];

        sum[l] += d;
        dot[l] += d * ((x[i] - mean) * rstd);
    }
    mean_d = gpt_combine_lanes(sum) / (real)n;
    mean_dh = gpt_combine_lanes(dot) / (real)n;
    for (i = 0; i < n; i++)
        dx[i] += rstd * (dy[i] * g[i] - mean_d - (x[i] - mean) * rstd * mean_dh);
}

void gpt_norm_back_rows_add(real *dx, const real *dy, const real *x, const real *mean,
                            const real *rstd, const real *g, size_t C, size_t r0, size_t r1)
{
    for (size_t r = r0; r < r1; r++)
        norm_row_back(dx + r * C, dy + r * C, x + r * C, mean[r], rstd[r], g, C);
}

GPT_CLONES
static void norm_row_grad(real *restrict dg, real *restrict db, const real *restrict dy,
                          const real *restrict x, real mean, real rstd, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        dg[i] += dy[i] * ((x[i] - mean) * rstd);
        db[i] += dy[i];
    }
}

void gpt_norm_grad_cols(real *dg, real *db, const real *dy, const real *x, const real *mean,
                        const real *rstd, size_t M, size_t C, size_t c0, size_t c1)
{
    for (size_t r = 0; r < M; r++)
        norm_row_grad(dg + c0, db + c0, dy + r * C + c0, x + r * C + c0, mean[r], rstd[r], c1 - c0);
}

/* y = x/2 (1 + tanh(u)), u = sqrt(2/pi) (x + 0.044715 x^3): the form of GPT-2
 * (Hendrycks and Gimpel 2016). */
#define GELU_SCALE ((real)0.79788456080286535588)
#define GELU_CUBIC ((real)0.044715)

GPT_CLONES
void gpt_gelu(real *restrict y, const real *restrict x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        real u = GELU_SCALE * (x[i] + GELU_CUBIC * x[i] * x[i] * x[i]);

        y[i] = (real)0.5 * x[i] * (1 + gpt_tanh(u));
    }
}

GPT_CLONES
void gpt_gelu_back(real *restrict d, const real *restrict x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        real t = gpt_tanh(GELU_SCALE * (x[i] + GELU_CUBIC * x[i] * x[i] * x[i]));
        real du = GELU_SCALE * (1 + 3 * GELU_CUBIC * x[i] * x[i]);

        d[i] *= (real)0.5 * (1 + t) + (real)0.5 * x[i] * (1 - t * t) * du;
    }
}

/* Where the token of row r stands: sequences are T + 1 tokens long, the last only a target. */
static size_t token_at(size_t r, size_t T)
{
    return r / T * (T + 1) + r % T;
}

void gpt_embed_rows(real *x, const uint8_t *tokens, const real *wte, const real *wpe, size_t T,
                    size_t C, size_t r0, size_t r1)
{
    for (size_t r = r0; r < r1; r++) {
        const real *token = wte + tokens[token_at(r, T)] * C;
        const real *position = wpe + r % T * C;

        for (size_t c = 0; c < C; c++)
            x[r * C + c] = token[c] + position[c];
    }
}

void gpt_embed_grad_cols(real *dwte, real *dwpe, const real *dx, const uint8_t *tokens, size_t M,
                         size_t T, size_t C, size_t c0, size_t c1)
{
    for (size_t r = 0; r < M; r++) {
        const real *row = dx + r * C + c0;

        add_row(dwte + tokens[token_at(r, T)] * C + c0, row, c1 - c0);
        add_row(dwpe + r % T * C + c0, row, c1 - c0);
    }
}

GPT_CLONES
static real row_max(const real *restrict x, size_t n)
{
    real lane[GPT_LANES], max;
    size_t i = 0;

    for (int l = 0; l < GPT_LANES; l++)
        lane[l] = x[0];
    for (; i + GPT_LANES <= n; i += GPT_LANES)
        for (int l = 0; l < GPT_LANES; l++)
            lane[l] = x[i + l] > lane[l] ? x[i + l] : lane[l];
    for (; i < n; i++)
        lane[0] = x[i] > lane[0] ? x[i] : lane[0];
    max = lane[0];
    for (int l = 1; l < GPT_LANES; l++)
        max = lane[l] > max ? lane[l] : max;
    return max;
}

GPT_CLONES
static void row_exp(real *restrict x, real max, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = gpt_exp(x[i] - max);
}

GPT_CLONES
static void row_scale(real *restrict x, real factor, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] *= factor;
}

void gpt_softmax(real *s, size_t n, size_t width)
{
    row_exp(s, row_max(s, n), n);
    row_scale(s, 1 / row_sum(s, n), n);
    memset(s + n, 0, (width - n) * sizeof *s);
}

void gpt_cross_entropy_rows(real *loss, real *logits, const uint8_t *tokens, size_t T, size_t V,
                            real d_scale, size_t r0, size_t r1)
{
    for (size_t r = r0; r < r1; r++) {
        real *row = logits + r * V;
        size_t target = tokens[token_at(r, T) + 1];
        real max = row_max(row, V), at_target = row[target], sum;

        row_exp(row, max, V);
        sum = row_sum(row, V);
        loss[r] = (real)log((double)sum) - (at_target - max);
        if (d_scale > 0) {
            row_scale(row, d_scale / sum, V);
            row[target] -= d_scale;
        }
    }
}
