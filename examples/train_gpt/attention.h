/*
 * attention.h: causal self-attention of one head of one sequence.
 *
 * Scores are never kept: a tile of query rows is scored against all keys up to its own end, used, and
 * recomputed in backward. Tiles are visited in a fixed order.
 */
#ifndef GPT_ATTENTION_H
#define GPT_ATTENTION_H

#include <stddef.h>
#include "real.h"

#define GPT_ATTENTION_ROWS 64

/* Elements of scratch that one call uses: two tiles of scores. */
#define GPT_ATTENTION_SCRATCH(T) ((size_t)2 * GPT_ATTENTION_ROWS * (T))

/* Where one head lies. q, k, v are (T, D) with a row stride of 3C inside qkv (T, 3C); outputs have a
 * row stride of C. */
struct gpt_head {
    size_t T, D, C;
    const real *q, *k, *v;
};

/* out (T, D), stride C: softmax(q k^T / sqrt(D), causal) v */
void gpt_attention(const struct gpt_head *head, real *out, real *scratch);

/* dq, dk, dv (T, D), stride 3C, overwritten. out, dout (T, D), stride C */
void gpt_attention_back(const struct gpt_head *head, const real *out, const real *dout, real *dq,
                        real *dk, real *dv, real *scratch);

#endif
