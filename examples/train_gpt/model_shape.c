/* model_shape.c: the model's tensors, and how much room its activations take. */
#include "attention.h"
#include "model.h"

/* Standard deviation of fresh matrices: sqrt(2 / (5 C)), which at C = 768 is about GPT-2's 0.02 but does
 * not starve narrow models (Nguyen and Salazar 2019, "SmallInit"). */
static double init_std(const struct gpt_shape *shape)
{
    return sqrt(0.4 / (double)shape->dim);
}

/* The embedding is the head too: the first logits have variance 1/8, which puts the first loss within 0.07
 * of ln V. */
static double embedding_std(const struct gpt_shape *shape)
{
    return sqrt(0.125 / (double)shape->dim);
}

/* Dimensions in units of C, and as kinds that gpt_unit_tensor() resolves. */
enum extent { VOCAB, SEQ, C1, C3, C4, NONE };
enum init { ZERO, ONE, NORMAL, EMBEDDING, RESIDUAL };

struct tensor_row {
    const char *name;
    enum extent rows, cols; /* cols NONE: a vector */
    enum init init;
};

static const struct tensor_row embed_rows[GPT_EMBED_TENSORS] = {
    [GPT_WTE] = {"wte", VOCAB, C1, EMBEDDING},
    [GPT_WPE] = {"wpe", SEQ, C1, EMBEDDING},
};

static const struct tensor_row block_rows[GPT_BLOCK_TENSORS] = {
    [GPT_LN1_G] = {"ln1.g", C1, NONE, ONE},      [GPT_LN1_B] = {"ln1.b", C1, NONE, ZERO},
    [GPT_QKV_W] = {"qkv.w", C3, C1, NORMAL},     [GPT_QKV_B] = {"qkv.b", C3, NONE, ZERO},
    [GPT_PROJ_W] = {"proj.w", C1, C1, RESIDUAL}, [GPT_PROJ_B] = {"proj.b", C1, NONE, ZERO},
    [GPT_LN2_G] = {"ln2.g", C1, NONE, ONE},      [GPT_LN2_B] = {"ln2.b", C1, NONE, ZERO},
    [GPT_FC_W] = {"fc.w", C4, C1, NORMAL},       [GPT_FC_B] = {"fc.b", C4, NONE, ZERO},
    [GPT_OUT_W] = {"out.w", C1, C4, RESIDUAL},   [GPT_OUT_B] = {"out.b", C1, NONE, ZERO},
};

static const struct tensor_row final_rows[GPT_FINAL_TENSORS] = {
    [GPT_LNF_G] = {"lnf.g", C1, NONE, ONE},
    [GPT_LNF_B] = {"lnf.b", C1, NONE, ZERO},
};

static const struct {
    const struct tensor_row *rows;
    uint32_t n;
} units[] = {
    [GPT_EMBED] = {embed_rows, GPT_EMBED_TENSORS},
    [GPT_BLOCK] = {block_rows, GPT_BLOCK_TENSORS},
    [GPT_FINAL] = {final_rows, GPT_FINAL_TENSORS},
};

static uint64_t extent_elems(const struct gpt_shape *shape, enum extent extent)
{
    switch (extent) {
    case VOCAB:
        return shape->vocab;
    case SEQ:
        return shape->seq;
    case C1:
        return shape->dim;
    case C3:
        return 3 * shape->dim;
    case C4:
        return 4 * shape->dim;
    case NONE:
        break;
    }
    return 1;
}

uint32_t gpt_unit_ntensors(enum gpt_unit unit)
{
    return units[unit].n;
}

void gpt_unit_tensor(const struct gpt_shape *shape, enum gpt_unit unit, uint32_t i,
                     struct gpt_tensor *out)
{
    const struct tensor_row *row = &units[unit].rows[i];

    *out = (struct gpt_tensor){
        .name = row->name,
        .ndims = row->cols == NONE ? 1 : 2,
        .shape = {extent_elems(shape, row->rows), extent_elems(shape, row->cols)},
        .decay = row->cols != NONE,
        .init_value = row->init == ONE,
    };
    if (row->init == NORMAL)
        out->init_std = init_std(shape);
    else if (row->init == EMBEDDING)
        out->init_std = embedding_std(shape);
    else if (row->init == RESIDUAL) /* two residual additions per block keep their sum's variance */
        out->init_std = init_std(shape) / sqrt(2.0 * (double)shape->layers);
}

uint64_t gpt_unit_elems(const struct gpt_shape *shape, enum gpt_unit unit)
{
    struct gpt_tensor tensor;
    uint64_t n = 0;

    for (uint32_t i = 0; i < units[unit].n; i++) {
        gpt_unit_tensor(shape, unit, i, &tensor);
        n += tensor.shape[0] * tensor.shape[1];
    }
    return n;
}

/* Hands out arrays one after the other; with base NULL it only counts. Saturates at UINT64_MAX. */
struct cutter {
    real *base;
    uint64_t used;
};

static real *cut(struct cutter *cutter, uint64_t rows, uint64_t cols)
{
    uint64_t n, end;
    real *start = cutter->base == NULL ? NULL : cutter->base + cutter->used;

    if (__builtin_mul_overflow(rows, cols, &n) || __builtin_add_overflow(n, 15, &n) ||
        __builtin_add_overflow(cutter->used, n & ~15ull, &end))
        cutter->used = UINT64_MAX & ~15ull;
    else
        cutter->used = end;
    return start;
}

static uint64_t counted(const struct cutter *cutter)
{
    return cutter->used == (UINT64_MAX & ~15ull) ? UINT64_MAX : cutter->used;
}

static uint64_t cut_block(const struct gpt_shape *shape, real *base, struct gpt_block_acts *out)
{
    struct cutter cutter = {base, 0};
    uint64_t M = shape->batch * shape->seq, C = shape->dim;

    *out = (struct gpt_block_acts){
        .ln1 = cut(&cutter, M, C),
        .mean1 = cut(&cutter, M, 1),
        .rstd1 = cut(&cutter, M, 1),
        .qkv = cut(&cutter, M, 3 * C),
        .att = cut(&cutter, M, C),
        .mid = cut(&cutter, M, C),
        .ln2 = cut(&cutter, M, C),
        .mean2 = cut(&cutter, M, 1),
        .rstd2 = cut(&cutter, M, 1),
        .fc = cut(&cutter, M, 4 * C),
        .gelu = cut(&cutter, M, 4 * C),
    };
    return counted(&cutter);
}

static uint64_t cut_scratch(const struct gpt_shape *shape, real *base, struct gpt_scratch *out)
{
    struct cutter cutter = {base, 0};
    uint64_t M = shape->batch * shape->seq, C = shape->dim;

    *out = (struct gpt_scratch){
        .wide = cut(&cutter, M, 4 * C > shape->vocab ? 4 * C : shape->vocab),
        .dnorm = cut(&cutter, M, C),
        .tiles = cut(&cutter, shape->nthreads, GPT_ATTENTION_SCRATCH(shape->seq)),
        .mean = cut(&cutter, M, 1),
        .rstd = cut(&cutter, M, 1),
        .loss = cut(&cutter, M, 1),
    };
    return counted(&cutter);
}

uint64_t gpt_block_acts_elems(const struct gpt_shape *shape)
{
    struct gpt_block_acts acts;

    return cut_block(shape, NULL, &acts);
}

uint64_t gpt_scratch_elems(const struct gpt_shape *shape)
{
    struct gpt_scratch scratch;

    return cut_scratch(shape, NULL, &scratch);
}

void gpt_block_acts_bind(const struct gpt_shape *shape, real *base, struct gpt_block_acts *out)
{
    cut_block(shape, base, out);
}

void gpt_scratch_bind(const struct gpt_shape *shape, real *base, struct gpt_scratch *out)
{
    cut_scratch(shape, base, out);
}
