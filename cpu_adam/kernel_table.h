/*
 * kernel_table.h: the kernels of this room and the types that all variants share.
 *
 * Kernels know no threads, allocate nothing and cannot fail. They assume the floating-point
 * environment of fp_env.h, which team.c sets around them. kernel_c.c defines
 * every bit; the others must reproduce it (R1).
 */
#ifndef HL_KERNEL_TABLE_H
#define HL_KERNEL_TABLE_H

#include <stdint.h>

#include "arith.h"
#include "cpu.h"

/* One kernel is one point of kind x grad x param x moment. */
#define HL_STEP_KINDS(X)                                                                           \
    X(ADAMW)                                                                                       \
    X(ADAM) X(LION) X(ADAGRAD) X(SGD) X(SGD_MOMENTUM)
#define HL_GRAD_FORMS(X, kind) X(kind, FP32) X(kind, BF16) X(kind, FP16)
#define HL_PARAM_FORMS(X, kind, grad)                                                              \
    X(kind, grad, NONE) X(kind, grad, BF16) X(kind, grad, FP16) X(kind, grad, SPLIT)
/* Block-wise 8-bit moments would be one more form here, with their scales in struct hl_step_range. */
#define HL_MOMENT_FORMS(X, kind, grad, param) X(kind, grad, param, FP32) X(kind, grad, param, BF16)

enum hl_step_kind {
#define HL_X(kind) HL_STEP_##kind,
    HL_STEP_KINDS(HL_X)
#undef HL_X
        HL_NSTEPS
};
enum hl_grad_form { HL_GRAD_FP32, HL_GRAD_BF16, HL_GRAD_FP16, HL_NGRADS };
/* What is published beside the master, and in which form the master is. */
enum hl_param_form { HL_PARAM_NONE, HL_PARAM_BF16, HL_PARAM_FP16, HL_PARAM_SPLIT, HL_NPARAMS };
/* BF16 moments are rounded stochastically. */
enum hl_moment_form { HL_MOMENT_FP32, HL_MOMENT_BF16, HL_NMOMENTS };

/* All that a step needs besides arrays; formed in double, narrowed once. */
struct hl_step_consts {
    enum hl_step_kind kind;
    enum hl_grad_form grad;
    enum hl_param_form param;
    enum hl_moment_form moment;
    float grad_scale;
    float lr;
    float weight_decay;
    float decay;       /* lr * weight_decay */
    float weight1;     /* 1 - beta1 */
    float weight2;     /* 1 - beta2 */
    float denom_scale; /* 1 / sqrt(1 - beta2^t) */
    float eps;
    float step_size; /* lr / (1 - beta1^t) */
    float momentum;
    int nesterov;
    int stream;   /* store a published copy that is not read again around the cache */
    uint64_t key; /* of stochastic rounding: seed and step */
};

/* Arrays of n elements in the forms of hl_step_consts. m, v, param may be NULL where unused. */
struct hl_step_range {
    const void *grad;
    void *master, *m, *v, *param;
    uint64_t n;
    uint64_t first; /* index of element 0; first + n - 1 has the same upper 32 bits */
};

typedef void (*hl_step_fn)(const struct hl_step_consts *k, const struct hl_step_range *r);
/* partial (ceil(n / 4096),) of src (n,) */
typedef void (*hl_sumsq_fn)(float *partial, const void *src, uint64_t n);
typedef void (*hl_accumulate_fn)(float *acc, const void *src, uint64_t n, int first);
typedef void (*hl_convert_fn)(void *dst, const void *src, uint64_t n);

struct hl_kernels {
    hl_step_fn step[HL_NSTEPS][HL_NGRADS][HL_NPARAMS][HL_NMOMENTS];
    hl_sumsq_fn sumsq[HL_NGRADS];
    hl_accumulate_fn accumulate[HL_NGRADS];
    hl_convert_fn convert[HL_NGRADS][HL_NGRADS]; /* [dst][src] */
};

extern const struct hl_kernels hl_kernels_c;
extern const struct hl_kernels hl_kernels_avx2;
extern const struct hl_kernels hl_kernels_avx512;
extern const struct hl_kernels hl_kernels_neon;

/* The variant for isa, or NULL when it is not in this build. */
const struct hl_kernels *hl_kernels_of(enum hl_isa isa);
/* The variant that hl_cpu_isa() allows. */
const struct hl_kernels *hl_kernels_best(void);

/* The reference, also used by every variant for what does not fill a vector. */
void hl_step_c(const struct hl_step_consts *k, const struct hl_step_range *r);
void hl_sumsq_c(float *partial, const void *src, enum hl_grad_form form, uint64_t n);
void hl_accumulate_c(float *acc, const void *src, enum hl_grad_form form, uint64_t n, int first);
void hl_convert_c(void *dst, enum hl_grad_form dst_form, const void *src,
                  enum hl_grad_form src_form, uint64_t n);

/* Elements [begin, end) of the block that src begins, on the lanes that they have in it. */
float hl_sumsq_piece(const void *src, enum hl_grad_form form, uint64_t begin, uint64_t end);

/* End such a sum: the elements from done on, lane by lane, then the pairs; NaN when an element of
 * [begin, end) is not finite. */
float hl_sumsq_finish(float lanes[16], const void *src, enum hl_grad_form form, uint64_t begin,
                      uint64_t done, uint64_t end);

static inline uint64_t hl_grad_form_bytes(enum hl_grad_form form)
{
    return form == HL_GRAD_FP32 ? 4 : 2;
}

static inline enum hl_grad_form hl_grad_form_of(enum haul_dtype dtype)
{
    return dtype == HAUL_FP32 ? HL_GRAD_FP32 : dtype == HAUL_BF16 ? HL_GRAD_BF16 : HL_GRAD_FP16;
}

static inline uint64_t hl_moment_bytes(enum hl_moment_form form)
{
    return form == HL_MOMENT_FP32 ? 4 : 2;
}

/* Elements [at, at + n) of a range. */
static inline struct hl_step_range
hl_step_part(const struct hl_step_consts *k, const struct hl_step_range *r, uint64_t at, uint64_t n)
{
    uint64_t moment = hl_moment_bytes(k->moment), master = k->param == HL_PARAM_SPLIT ? 2 : 4;
    struct hl_step_range part = {
        .grad = (const char *)r->grad + at * hl_grad_form_bytes(k->grad),
        .master = (char *)r->master + at * master,
        .m = r->m ? (char *)r->m + at * moment : NULL,
        .v = r->v ? (char *)r->v + at * moment : NULL,
        .param = r->param ? (char *)r->param + at * 2 : NULL,
        .n = n,
        .first = r->first + at,
    };
    return part;
}

/*
 * Stochastic rounding: 32 bits per element from a counter (the element) and a key (seed, step, and the
 * element's upper half), 16 for m and 16 for v. The 32-bit finaliser is Wellons' lowbias32, twice.
 */
static inline uint64_t hl_round_mix64(uint64_t x)
{
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9u;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static inline uint64_t hl_round_key(uint64_t seed, uint64_t step)
{
    return hl_round_mix64(hl_round_mix64(seed + 0x9e3779b97f4a7c15u) ^ step);
}

static inline uint64_t hl_round_key_at(uint64_t key, uint64_t element)
{
    return hl_round_mix64(key ^ (element >> 32) * 0x9e3779b97f4a7c15u);
}

static inline uint32_t hl_round_mix32(uint32_t x)
{
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    return x ^ x >> 16;
}

static inline uint32_t hl_round_bits(uint64_t key_at, uint32_t element)
{
    return hl_round_mix32(hl_round_mix32(element ^ (uint32_t)key_at) + (uint32_t)(key_at >> 32));
}

#endif
