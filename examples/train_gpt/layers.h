/*
 * layers.h: the layers of the model, forward and backward, over ranges of rows.
 *
 * Conventions: matrices are row-major and dense, a row is a token; M rows, C columns in, N columns out.
 * "Rows" functions work on rows [r0, r1) and are called from parallel loops over fixed tiles;
 * "cols" functions reduce over all M rows, in order, for columns [c0, c1). So every output element
 * has one writer and one order of summation, whatever the number of threads. Gradients of weights are
 * added to; gradients of activations are overwritten unless the name says add.
 */
#ifndef GPT_LAYERS_H
#define GPT_LAYERS_H

#include <stddef.h>
#include "real.h"

/* y = x w^T + b + add over rows [r0, r1).
 * x (M, C), w (N, C), b (N,), add (M, N) or NULL, y (M, N). b NULL: y = x w^T */
void gpt_linear_rows(real *y, const real *x, const real *w, const real *b, const real *add,
                     size_t C, size_t N, size_t r0, size_t r1);

/* dx = dy w over rows [r0, r1). dy (M, N), w (N, C), dx (M, C) */
void gpt_linear_back_rows(real *dx, const real *dy, const real *w, size_t C, size_t N, size_t r0,
                          size_t r1);

/* dw += dy^T x and db += column sums of dy, for outputs [n0, n1).
 * dy (M, N), x (M, C), dw (N, C), db (N,) or NULL */
void gpt_linear_grad(real *dw, real *db, const real *dy, const real *x, size_t M, size_t C,
                     size_t N, size_t n0, size_t n1);

/* y = (x - mean) * rstd * g + b. x, y (M, C), g, b (C,), mean, rstd (M,) out */
void gpt_norm_rows(real *y, real *mean, real *rstd, const real *x, const real *g, const real *b,
                   size_t C, size_t r0, size_t r1);

/* Only the mean and rstd of each row. */
void gpt_norm_stats_rows(real *mean, real *rstd, const real *x, size_t C, size_t r0, size_t r1);

/* dx += gradient through the norm. dx may not be dy. dx, dy, x (M, C) */
void gpt_norm_back_rows_add(real *dx, const real *dy, const real *x, const real *mean,
                            const real *rstd, const real *g, size_t C, size_t r0, size_t r1);

/* dg, db += for columns [c0, c1) */
void gpt_norm_grad_cols(real *dg, real *db, const real *dy, const real *x, const real *mean,
                        const real *rstd, size_t M, size_t C, size_t c0, size_t c1);

/* GELU, tanh form, over n elements; and d *= its derivative at x. */
void gpt_gelu(real *y, const real *x, size_t n);
void gpt_gelu_back(real *d, const real *x, size_t n);

/* x = wte[token] + wpe[position]. tokens of sequence s start at tokens + s * (T + 1).
 * x (M, C), M = sequences * T, wte (V, C), wpe (T, C) */
void gpt_embed_rows(real *x, const uint8_t *tokens, const real *wte, const real *wpe, size_t T,
                    size_t C, size_t r0, size_t r1);

/* dwte, dwpe += dx for columns [c0, c1) */
void gpt_embed_grad_cols(real *dwte, real *dwpe, const real *dx, const uint8_t *tokens, size_t M,
                         size_t T, size_t C, size_t c0, size_t c1);

/* loss[r] = -log softmax(logits[r])[target]; with d_scale > 0 the logits become their gradient,
 * (softmax - onehot) * d_scale. The target of position t is the token after it. logits (M, V) */
void gpt_cross_entropy_rows(real *loss, real *logits, const uint8_t *tokens, size_t T, size_t V,
                            real d_scale, size_t r0, size_t r1);

/* Softmax of s[0, n) in place; 0 in s[n, width). */
void gpt_softmax(real *s, size_t n, size_t width);

/* Sum of x[i] * y[i]. */
real gpt_dot(const real *x, const real *y, size_t n);

#endif
