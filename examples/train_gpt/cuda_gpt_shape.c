/* cuda_gpt_shape.c: how much room the model's arrays take on a GPU, and where each is. */
#include "cuda_gpt.h"

/* Hands out arrays one after the other; with base NULL it only counts. Saturates at UINT64_MAX. */
struct cutter {
    char *base;
    uint64_t used;
};

static void *cut(struct cutter *cutter, uint64_t rows, uint64_t cols, uint64_t size)
{
    void *start = cutter->base == NULL ? NULL : cutter->base + cutter->used;
    uint64_t n;

    if (__builtin_mul_overflow(rows, cols, &n) || __builtin_mul_overflow(n, size, &n) ||
        __builtin_add_overflow(n, 255, &n) ||
        __builtin_add_overflow(cutter->used, n & ~255ull, &cutter->used))
        cutter->used = UINT64_MAX & ~255ull;
    return start;
}

static void *reals(struct cutter *cutter, uint64_t rows, uint64_t cols)
{
    return cut(cutter, rows, cols, sizeof(gk_real));
}

static void *halves(struct cutter *cutter, uint64_t rows, uint64_t cols)
{
    return cut(cutter, rows, cols, sizeof(gk_half));
}

static uint64_t counted(const struct cutter *cutter)
{
    return cutter->used == (UINT64_MAX & ~255ull) ? UINT64_MAX : cutter->used;
}

static uint64_t cut_acts(const struct gpt_shape *shape, void *base, struct cuda_gpt_acts *out)
{
    struct cutter cutter = {base, 0};
    uint64_t M = shape->batch * shape->seq, C = shape->dim;

    *out = (struct cuda_gpt_acts){
        .ln1 = halves(&cutter, M, C),
        .qkv = halves(&cutter, M, 3 * C),
        .att = halves(&cutter, M, C),
        .mid = reals(&cutter, M, C),
        .ln2 = halves(&cutter, M, C),
        .fc = halves(&cutter, M, 4 * C),
        .gelu = halves(&cutter, M, 4 * C),
        .mean1 = reals(&cutter, M, 1),
        .rstd1 = reals(&cutter, M, 1),
        .mean2 = reals(&cutter, M, 1),
        .rstd2 = reals(&cutter, M, 1),
    };
    return counted(&cutter);
}

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t cut_scratch(struct gpu *gpu, const struct gpt_shape *shape, void *base,
                            struct cuda_gpt *out)
{
    struct cutter cutter = {base, 0};
    uint64_t M = shape->batch * shape->seq, C = shape->dim;
    uint64_t score_rows = smaller(CUDA_GPT_SCORE_ROWS, shape->seq);
    uint64_t head_rows = smaller(CUDA_GPT_HEAD_ROWS, M);
    uint64_t tiles = shape->heads * score_rows, rows = tiles > M ? tiles : M;
    uint64_t nchunks = (M + GK_CHUNK - 1) / GK_CHUNK;

    *out = (struct cuda_gpt){
        .gpu = gpu,
        .shape = *shape,
        .M = M,
        .C = C,
        .score_rows = score_rows,
        .head_rows = head_rows,
        .wide = reals(&cutter, M, 4 * C),
        .wide16 = halves(&cutter, M, 4 * C),
        .dnorm = reals(&cutter, M, C),
        .x16 = halves(&cutter, M, C),
        .y16 = halves(&cutter, M, C),
        .scores = reals(&cutter, tiles, shape->seq),
        .dscores = reals(&cutter, tiles, shape->seq),
        .probs = halves(&cutter, tiles, shape->seq),
        .dprobs = halves(&cutter, tiles, shape->seq),
        .logits = reals(&cutter, head_rows, shape->vocab),
        .dlogits = halves(&cutter, head_rows, shape->vocab),
        .lanes = reals(&cutter, rows, GK_LANES),
        .lanes2 = reals(&cutter, rows, GK_LANES),
        .sums = reals(&cutter, rows, 1),
        .sums2 = reals(&cutter, rows, 1),
        .chunks = reals(&cutter, nchunks, 4 * C),
        .chunks2 = reals(&cutter, nchunks, 4 * C),
        .mean = reals(&cutter, M, 1),
        .rstd = reals(&cutter, M, 1),
        .row_loss = reals(&cutter, M, 1),
    };
    return counted(&cutter);
}

uint64_t cuda_gpt_acts_bytes(const struct gpt_shape *shape)
{
    struct cuda_gpt_acts acts;

    return cut_acts(shape, NULL, &acts);
}

uint64_t cuda_gpt_scratch_bytes(const struct gpt_shape *shape)
{
    struct cuda_gpt model;

    return cut_scratch(NULL, shape, NULL, &model);
}

void cuda_gpt_acts_bind(const struct gpt_shape *shape, void *base, struct cuda_gpt_acts *out)
{
    cut_acts(shape, base, out);
}

void cuda_gpt_bind(struct gpu *gpu, const struct gpt_shape *shape, void *scratch,
                   struct cuda_gpt *out)
{
    cut_scratch(gpu, shape, scratch, out);
}
