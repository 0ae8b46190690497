/* attention.c: see attention.h. */
#include "attention.h"
#include "layers.h"

static real score_scale(const struct gpt_head *head)
{
    return 1 / (real)sqrt((double)head->D);
}

/* p (i1 - i0, i1) = softmax of query rows [i0, i1) over the keys each may see. */
static void probabilities(const struct gpt_head *head, size_t i0, size_t i1, real *p)
{
    int stride = (int)(3 * head->C);

    gpt_gemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)(i1 - i0), (int)i1, (int)head->D,
             score_scale(head), head->q + i0 * 3 * head->C, stride, head->k, stride, 0, p, (int)i1);
    for (size_t i = i0; i < i1; i++)
        gpt_softmax(p + (i - i0) * i1, i + 1, i1);
}

void gpt_attention(const struct gpt_head *head, real *out, real *scratch)
{
    for (size_t i0 = 0; i0 < head->T; i0 += GPT_ATTENTION_ROWS) {
        size_t i1 = i0 + GPT_ATTENTION_ROWS < head->T ? i0 + GPT_ATTENTION_ROWS : head->T;

        probabilities(head, i0, i1, scratch);
        gpt_gemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)(i1 - i0), (int)head->D, (int)i1,
                 1, scratch, (int)i1, head->v, (int)(3 * head->C), 0, out + i0 * head->C,
                 (int)head->C);
    }
}

/* ds = p * (dp - row), in place of dp. */
GPT_CLONES
static void softmax_back(real *restrict dp, const real *restrict p, real row, size_t n)
{
    for (size_t j = 0; j < n; j++)
        dp[j] = p[j] * (dp[j] - row);
}

/* Query rows [i0, i1). Tiles go from the last to the first, so the first one seen reaches every key and
 * may overwrite dk and dv; the others add. */
static void back_tile(const struct gpt_head *head, size_t i0, size_t i1, const real *out,
                      const real *dout, real *dq, real *dk, real *dv, real *scratch)
{
    size_t C = head->C;
    int D = (int)head->D, stride = (int)(3 * C), rows = (int)(i1 - i0), keys = (int)i1;
    real *p = scratch, *ds = scratch + GPT_ATTENTION_ROWS * head->T;
    real scale = score_scale(head), keep = i1 == head->T ? 0 : 1;
    const real *dout_rows = dout + i0 * C;

    probabilities(head, i0, i1, p);
    gpt_gemm(CblasRowMajor, CblasTrans, CblasNoTrans, keys, D, rows, 1, p, keys, dout_rows, (int)C,
             keep, dv, stride);
    gpt_gemm(CblasRowMajor, CblasNoTrans, CblasTrans, rows, keys, D, 1, dout_rows, (int)C, head->v,
             stride, 0, ds, keys);
    for (size_t i = i0; i < i1; i++)
        softmax_back(ds + (i - i0) * i1, p + (i - i0) * i1,
                     gpt_dot(out + i * C, dout + i * C, head->D), i1);
    gpt_gemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, rows, D, keys, scale, ds, keys, head->k,
             stride, 0, dq + i0 * 3 * C, stride);
    gpt_gemm(CblasRowMajor, CblasTrans, CblasNoTrans, keys, D, rows, scale, ds, keys,
             head->q + i0 * 3 * C, stride, keep, dk, stride);
}

void gpt_attention_back(const struct gpt_head *head, const real *out, const real *dout, real *dq,
                        real *dk, real *dv, real *scratch)
{
    size_t i0 = (head->T - 1) / GPT_ATTENTION_ROWS * GPT_ATTENTION_ROWS, i1 = head->T;

    for (;;) {
        back_tile(head, i0, i1, out, dout, dq, dk, dv, scratch);
        if (i0 == 0)
            return;
        i1 = i0;
        i0 -= GPT_ATTENTION_ROWS;
    }
}
