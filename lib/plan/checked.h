/* checked.h: sums and products that say when they leave 63 bits (the range of a JSON integer). */
#ifndef HL_CHECKED_H
#define HL_CHECKED_H

#include <errno.h>
#include <stdint.h>

static inline uint64_t hl_div_up(uint64_t a, uint64_t b)
{
    return a / b + (a % b != 0);
}

/* *out = a * b; 0 or -EOVERFLOW, *out then untouched. */
static inline int hl_mul(uint64_t a, uint64_t b, uint64_t *out)
{
    uint64_t r;

    if (__builtin_mul_overflow(a, b, &r) || r > INT64_MAX)
        return -EOVERFLOW;
    *out = r;
    return 0;
}

/* *acc += a * b; 0 or -EOVERFLOW, *acc then untouched. */
static inline int hl_mul_add(uint64_t *acc, uint64_t a, uint64_t b)
{
    uint64_t r;
    int rc = hl_mul(a, b, &r);

    if (rc < 0)
        return rc;
    if (__builtin_add_overflow(r, *acc, &r) || r > INT64_MAX)
        return -EOVERFLOW;
    *acc = r;
    return 0;
}

#endif
