/*
 * adam_case.h: arrays for one call of an optimizer, with guards around them, filled with the values that
 * break kernels. Used by the suites and by the bench, which checks before it times.
 */
#ifndef HAUL_TESTS_ADAM_CASE_H
#define HAUL_TESTS_ADAM_CASE_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "arith.h"
#include "haul/optim.h"

#define ADAM_GUARD 128 /* bytes before and after each array, compared with it */

enum adam_array { ADAM_GRAD = 0, ADAM_MASTER, ADAM_M, ADAM_V, ADAM_PARAM, ADAM_NARRAYS };

enum adam_fill {
    ADAM_PLAIN,    /* what training looks like */
    ADAM_HOSTILE,  /* zeros, denormals, huge, Inf, NaN among them */
    ADAM_DENORMAL, /* nothing but */
};

struct adam_case {
    struct haul_optim opt;
    struct haul_optim_arrays arrays;
    unsigned char *memory[ADAM_NARRAYS];
    uint64_t bytes[ADAM_NARRAYS]; /* guards included */
};

static inline uint64_t adam_random(uint64_t *state)
{
    uint64_t x = *state += 0x9e3779b97f4a7c15u;

    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static inline float adam_uniform(uint64_t *state)
{
    return (float)((double)(adam_random(state) >> 11) * 0x1p-53 * 2 - 1);
}

static inline float adam_hostile(uint64_t *state)
{
    uint64_t r = adam_random(state);
    uint32_t sign = (uint32_t)(r >> 32) & 0x80000000u, low = (uint32_t)r & 0x7fffffu;

    switch (r >> 56 & 15) {
    case 0:
        return hl_float_from_bits(sign);
    case 1:
        return hl_float_from_bits(sign | low);
    case 2:
        return hl_float_from_bits(sign | 0x7f000000u | low);
    case 3:
        return hl_float_from_bits(sign | 0x7f800000u);
    case 4:
        return hl_float_from_bits(sign | 0x7f800001u | low);
    case 5:
        return hl_float_from_bits((uint32_t)r); /* any pattern at all */
    default:
        return adam_uniform(state);
    }
}

static inline float adam_value(enum adam_fill fill, uint64_t *state)
{
    if (fill == ADAM_HOSTILE)
        return adam_hostile(state);
    if (fill == ADAM_DENORMAL)
        return hl_float_from_bits((uint32_t)adam_random(state) & 0x807fffffu);
    return adam_uniform(state);
}

static inline void adam_put(void *dst, enum haul_dtype dtype, uint64_t i, float x)
{
    uint16_t half;

    if (dtype == HAUL_FP32) {
        memcpy((char *)dst + 4 * i, &x, 4);
        return;
    }
    /* NaN payloads are kept, so that kernels meet NaNs other than the canonical one. */
    half = dtype == HAUL_BF16 ? (uint16_t)(hl_float_bits(x) >> 16) : hl_fp16_from_float(x);
    memcpy((char *)dst + 2 * i, &half, 2);
}

/* A fresh zeroed array between guards, misalign bytes (0..63) past a cache line. */
static inline int adam_array_open(struct adam_case *c, enum adam_array which, uint64_t bytes,
                                  unsigned misalign, void *out)
{
    unsigned char *p;

    c->bytes[which] = 2 * ADAM_GUARD + bytes;
    if (posix_memalign((void **)&c->memory[which], 64, c->bytes[which] + 64))
        return -1;
    p = c->memory[which];
    memset(p, 0xa5, c->bytes[which] + 64);
    p += ADAM_GUARD + misalign;
    memset(p, 0, bytes);
    memcpy(out, &p, sizeof p);
    return 0;
}

static inline void adam_case_close(struct adam_case *c)
{
    for (int i = 0; i < ADAM_NARRAYS; i++)
        free(c->memory[i]);
    memset(c, 0, sizeof *c);
}

static inline void adam_case_fill(struct adam_case *c, enum adam_fill fill, uint64_t seed)
{
    const struct haul_optim_arrays *a = &c->arrays;
    enum haul_dtype moment = c->opt.moment_dtype;
    uint64_t state = seed;

    for (uint64_t i = 0; i < a->n; i++) {
        float p = adam_value(fill, &state), v = adam_value(fill, &state);

        adam_put((void *)a->grad, a->grad_dtype, i, adam_value(fill, &state));
        adam_put(a->m, moment, i, adam_value(fill, &state) * 0.1f);
        adam_put(a->v, moment, i, v * v * 0.01f);
        if (a->master_form == HAUL_MASTER_SPLIT) {
            uint16_t lo = hl_split_lo(hl_float_bits(p)), hi = hl_split_hi(hl_float_bits(p));
            memcpy((char *)a->master + 2 * i, &lo, 2);
            memcpy((char *)a->param + 2 * i, &hi, 2);
        } else {
            adam_put(a->master, HAUL_FP32, i, p);
        }
    }
}

/* shape: n, dtypes and forms; misalign: bytes, a different multiple of it for every array. */
static inline int adam_case_open(struct adam_case *c, const struct haul_optim *opt,
                                 const struct haul_optim_arrays *shape, unsigned misalign)
{
    uint64_t n = shape->n, moment = hl_dtype_bytes(opt->moment_dtype);
    struct haul_optim_arrays *a = &c->arrays;
    uint64_t master = shape->master_form == HAUL_MASTER_SPLIT ? 2 : 4;

    memset(c, 0, sizeof *c);
    c->opt = *opt;
    *a = *shape;
    a->struct_size = sizeof *a;
    if (adam_array_open(c, ADAM_GRAD, n * hl_dtype_bytes(a->grad_dtype), misalign % 64, &a->grad) ||
        adam_array_open(c, ADAM_MASTER, n * master, misalign * 2 % 64, &a->master) ||
        adam_array_open(c, ADAM_M, n * moment, misalign * 3 % 64, &a->m) ||
        adam_array_open(c, ADAM_V, n * moment, misalign * 4 % 64, &a->v) ||
        adam_array_open(c, ADAM_PARAM, n * 2, misalign * 5 % 64, &a->param)) {
        adam_case_close(c);
        return -1;
    }
    return 0;
}

/* The first array that differs between two cases of one shape, or -1. */
static inline int adam_case_differs(const struct adam_case *a, const struct adam_case *b)
{
    for (int i = 0; i < ADAM_NARRAYS; i++)
        if (memcmp(a->memory[i], b->memory[i], a->bytes[i] + 64))
            return i;
    return -1;
}

/* Every NaN in the FP32 or BF16 array p is the one that haul stores. */
static inline int adam_nans_canonical(const void *p, enum haul_dtype dtype, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        uint32_t bits = 0;

        memcpy((char *)&bits + (dtype == HAUL_FP32 ? 0 : 2),
               (const char *)p + i * hl_dtype_bytes(dtype), hl_dtype_bytes(dtype));
        if ((bits & 0x7fffffffu) > 0x7f800000u && bits != HL_NAN_FP32)
            return 0;
    }
    return 1;
}

#endif
