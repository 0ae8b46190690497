/*
 * random_values.h: the model's functions, the same for engine and twin: initial values, gradients, and who has
 * none. For random_model.c and random_twin.c alone.
 */
#ifndef HAUL_TESTS_RANDOM_VALUES_H
#define HAUL_TESTS_RANDOM_VALUES_H

#include <math.h>

#include "arith.h"
#include "random_model.h"

#define LR    1e-2
#define DECAY 0.1

static inline int is_left_out(const struct random_shape *sh, uint32_t u, unsigned step)
{
    return sh->leave_out && step % sh->leave_out == 0 && u == (sh->seed + step) % sh->nunits;
}

static inline unsigned nranks(const struct random_shape *sh)
{
    return sh->nranks ? sh->nranks : 1;
}

/* By all ranks, or by this one alone. */
static inline int leaves_out(const struct random_shape *sh, uint32_t u, unsigned step,
                             unsigned rank)
{
    if (is_left_out(sh, u, step))
        return 1;
    return nranks(sh) > 1 && sh->leave_out && step % sh->leave_out &&
           u == (sh->seed + step) % sh->nunits && rank == step % nranks(sh);
}

static inline uint64_t hash(uint64_t x)
{
    x = (x ^ (x >> 33)) * UINT64_C(0xff51afd7ed558ccd);
    return x ^ (x >> 33);
}

static inline float initial(uint32_t unit, uint32_t tensor, uint64_t i)
{
    return (float)(hash(unit * 1000003ull + tensor * 10007ull + i) & 0xffff) * 0x1p-15f - 1.0f;
}

static inline float gradient(float p, uint64_t i, unsigned step, unsigned pass)
{
    return p * 0.5f + ((float)(hash(i * 31 + step * 7 + pass) & 0x3ff) * 0x1p-10f - 0.5f);
}

static inline void group_values(struct haul_group_step out[RANDOM_GROUPS])
{
    for (uint32_t g = 0; g < RANDOM_GROUPS; g++)
        out[g] = (struct haul_group_step){LR / (g + 1), DECAY * g};
}

static inline float narrow(enum haul_dtype dtype, float x)
{
    return dtype == HAUL_FP32 ? x : hl_bf16_to_float(hl_bf16_from_float(x));
}

static inline float narrow_even(enum haul_dtype dtype, float x)
{
    uint32_t bits = hl_float_bits(x), rest = bits & 0xffffu, hi = bits >> 16;

    if (dtype == HAUL_FP32 || !isfinite(x))
        return narrow(dtype, x);
    return hl_bf16_to_float((uint16_t)(hi + (rest > 0x8000u || (rest == 0x8000u && hi % 2 == 1))));
}

#endif
