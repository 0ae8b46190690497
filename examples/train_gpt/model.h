/*
 * model.h: a GPT-2-shaped model: pre-norm blocks, GELU, learned positions, tied embedding.
 *
 * Pure arithmetic on arrays that the caller owns: no engine, no device, no I/O. Parameters and
 * gradients come as arrays of pointers, one per tensor in the order of the enums below.
 *
 * M = batch * seq rows (tokens) in a micro-batch, T = seq, C = dim, V = vocab.
 * Results do not depend on nthreads: work is cut into tiles by shape alone.
 */
#ifndef GPT_MODEL_H
#define GPT_MODEL_H

#include "real.h"

/* Tokens are bytes, whatever the vocabulary: ids below this. */
#define GPT_TOKENS 256

struct gpt_shape {
    uint64_t layers, dim, heads, seq;
    uint64_t vocab;    /* rows of the token table, GPT_TOKENS or more */
    uint64_t batch;    /* sequences in a micro-batch */
    unsigned nthreads; /* OpenMP threads; at least 1 */
};

enum gpt_unit { GPT_EMBED = 0, GPT_BLOCK, GPT_FINAL };

enum { GPT_WTE = 0, GPT_WPE, GPT_EMBED_TENSORS };
enum {
    GPT_LN1_G = 0,
    GPT_LN1_B,
    GPT_QKV_W,
    GPT_QKV_B,
    GPT_PROJ_W,
    GPT_PROJ_B,
    GPT_LN2_G,
    GPT_LN2_B,
    GPT_FC_W,
    GPT_FC_B,
    GPT_OUT_W,
    GPT_OUT_B,
    GPT_BLOCK_TENSORS
};
enum { GPT_LNF_G = 0, GPT_LNF_B, GPT_FINAL_TENSORS };
#define GPT_MAX_TENSORS GPT_BLOCK_TENSORS

struct gpt_tensor {
    const char *name;
    uint32_t ndims;
    uint64_t shape[2];
    int decay;       /* 1: a matrix, which weight decay applies to */
    double init_std; /* 0: constant init_value */
    double init_value;
};

/* Tensors of a unit: their number; *out is tensor i. */
uint32_t gpt_unit_ntensors(enum gpt_unit unit);
void gpt_unit_tensor(const struct gpt_shape *shape, enum gpt_unit unit, uint32_t i,
                     struct gpt_tensor *out);
uint64_t gpt_unit_elems(const struct gpt_shape *shape, enum gpt_unit unit);

/* What a block's forward leaves for its backward. */
struct gpt_block_acts {
    real *ln1, *mean1, *rstd1; /* (M, C), (M,), (M,) */
    real *qkv;                 /* (M, 3C) */
    real *att;                 /* (M, C) */
    real *mid;                 /* (M, C): after the attention's residual */
    real *ln2, *mean2, *rstd2; /* (M, C), (M,), (M,) */
    real *fc, *gelu;           /* (M, 4C) each */
};

/* What every call may use and none keeps. */
struct gpt_scratch {
    real *wide;        /* (M, max(4C, V)) */
    real *dnorm;       /* (M, C) */
    real *tiles;       /* nthreads pairs of attention tiles */
    real *mean, *rstd; /* (M,) each: the final norm's, formed again in backward */
    real *loss;        /* (M,) */
};

/* Elements these take, UINT64_MAX when that is more than can be counted; and cutting them from base.
 * Every array starts at a multiple of 16 elements from base. */
uint64_t gpt_block_acts_elems(const struct gpt_shape *shape);
uint64_t gpt_scratch_elems(const struct gpt_shape *shape);
void gpt_block_acts_bind(const struct gpt_shape *shape, real *base, struct gpt_block_acts *out);
void gpt_scratch_bind(const struct gpt_shape *shape, real *base, struct gpt_scratch *out);

/* Call once before anything else: the BLAS must not start threads of its own. */
void gpt_model_init(void);

/* tokens: batch sequences of T + 1 bytes. x (M, C) out */
void gpt_embed_forward(const struct gpt_shape *shape, const real *const *w, const uint8_t *tokens,
                       real *x);

/* y (M, C) = block(x). y NULL: only the activations, as backward after recomputation needs them. */
void gpt_block_forward(const struct gpt_shape *shape, const real *const *w, const real *x, real *y,
                       const struct gpt_block_acts *acts, const struct gpt_scratch *scratch);

/* y (M, C) = final norm of x. */
void gpt_final_forward(const struct gpt_shape *shape, const real *const *w, const real *x, real *y,
                       const struct gpt_scratch *scratch);

/* w is the embedding's. h (M, C). Returns the mean loss over the M tokens. */
double gpt_head_forward(const struct gpt_shape *shape, const real *const *w, const real *h,
                        const uint8_t *tokens, const struct gpt_scratch *scratch);

/* Backward: d (M, C) holds the gradient of the output and receives that of the input, in place;
 * gradients of the parameters are added to g. All of them are those of loss_scale times the loss. */
void gpt_head_backward(const struct gpt_shape *shape, const real *const *w, real *const *g,
                       const real *h, const uint8_t *tokens, real loss_scale, real *d,
                       const struct gpt_scratch *scratch);
void gpt_final_backward(const struct gpt_shape *shape, const real *const *w, real *const *g,
                        const real *x, real *d, const struct gpt_scratch *scratch);
void gpt_block_backward(const struct gpt_shape *shape, const real *const *w, real *const *g,
                        const real *x, const struct gpt_block_acts *acts, real *d,
                        const struct gpt_scratch *scratch);
void gpt_embed_backward(const struct gpt_shape *shape, real *const *g, const uint8_t *tokens,
                        const real *d);

/* w (n,) = the BF16, or FP16, values in, widened exactly. */
void gpt_widen_bf16(const struct gpt_shape *shape, real *w, const uint16_t *in, uint64_t n);
void gpt_widen_fp16(const struct gpt_shape *shape, real *w, const uint16_t *in, uint64_t n);

#endif
