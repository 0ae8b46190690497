/*
 * cuda_gpt.h: the model of model.h in kernels and matrix products of a GPU: its passes on plain arrays.
 *
 * All arrays are the device's. Parameters are BF16, and so is what enters matrix products; sums, what
 * travels between blocks, and gradients are FP32. Shapes are named as in model.h.
 */
#ifndef CUDA_GPT_H
#define CUDA_GPT_H

#include "gpu.h"
#include "model.h"

/* Query rows of a sequence whose scores are held at once, and rows of logits. */
#define CUDA_GPT_SCORE_ROWS 256
#define CUDA_GPT_HEAD_ROWS  4096

/* What a block's forward leaves for its backward. */
struct cuda_gpt_acts {
    gk_half *ln1, *qkv, *att;               /* (M, C), (M, 3C), (M, C) */
    gk_real *mid;                           /* (M, C): after the attention's residual */
    gk_half *ln2, *fc, *gelu;               /* (M, C), (M, 4C) each */
    gk_real *mean1, *rstd1, *mean2, *rstd2; /* (M,) each */
};

struct cuda_gpt {
    struct gpu *gpu;
    struct gpt_shape shape;
    uint64_t M, C;
    uint64_t score_rows, head_rows; /* the constants above, or all there are */
    gk_real *wide;                  /* (M, 4C) */
    gk_half *wide16;                /* (M, 4C) */
    gk_real *dnorm;                 /* (M, C) */
    gk_half *x16, *y16;             /* (M, C) each */
    gk_real *scores, *dscores;      /* (heads, score_rows, T) each */
    gk_half *probs, *dprobs;
    gk_real *logits; /* (head_rows, V) */
    gk_half *dlogits;
    gk_real *lanes, *lanes2;         /* (rows, GK_LANES): rows of M or of scores */
    gk_real *sums, *sums2;           /* (rows,) */
    gk_real *chunks, *chunks2;       /* (chunks of M, 4C) */
    gk_real *mean, *rstd, *row_loss; /* (M,) each */
};

/* Bytes that these take, UINT64_MAX when that is more than can be counted; and cutting them from base.
 * Every array starts at a multiple of 256 bytes from base. */
uint64_t cuda_gpt_acts_bytes(const struct gpt_shape *shape);
uint64_t cuda_gpt_scratch_bytes(const struct gpt_shape *shape);
void cuda_gpt_acts_bind(const struct gpt_shape *shape, void *base, struct cuda_gpt_acts *out);
void cuda_gpt_bind(struct gpu *gpu, const struct gpt_shape *shape, void *scratch,
                   struct cuda_gpt *out);

/* The passes: as gpt_*_forward and gpt_*_backward of model.h. *loss is the device's too. */
void cuda_gpt_embed_forward(const struct cuda_gpt *m, const gk_half *const *w,
                            const uint8_t *tokens, gk_real *x);
void cuda_gpt_block_forward(const struct cuda_gpt *m, const gk_half *const *w, const gk_real *x,
                            gk_real *y, const struct cuda_gpt_acts *acts);
void cuda_gpt_final_forward(const struct cuda_gpt *m, const gk_half *const *w, const gk_real *x,
                            gk_real *y);
void cuda_gpt_head_forward(const struct cuda_gpt *m, const gk_half *const *w, const gk_real *h,
                           const uint8_t *tokens, double *loss);
void cuda_gpt_head_backward(const struct cuda_gpt *m, const gk_half *const *w, gk_real *const *g,
                            const gk_real *h, const uint8_t *tokens, gk_real loss_scale,
                            gk_real *d);
void cuda_gpt_final_backward(const struct cuda_gpt *m, const gk_half *const *w, gk_real *const *g,
                             const gk_real *x, gk_real *d);
void cuda_gpt_block_backward(const struct cuda_gpt *m, const gk_half *const *w, gk_real *const *g,
                             const gk_real *x, const struct cuda_gpt_acts *acts, gk_real *d);
void cuda_gpt_embed_backward(const struct cuda_gpt *m, gk_real *const *g, const uint8_t *tokens,
                             const gk_real *d);

#endif
