/* comm_scalar.h: what all_reduce computes, one value of one rank at a time, in rank order. */
#ifndef HL_COMM_SCALAR_H
#define HL_COMM_SCALAR_H

#include <string.h>

#include "haul/comm.h"

/* Doubles and 64-bit counts travel as 8 bytes each. */
#define HL_COMM_VALUE_BYTES 8

static inline double hl_comm_double(uint64_t bits)
{
    double d;

    memcpy(&d, &bits, sizeof d);
    return d;
}

static inline uint64_t hl_comm_bits(double d)
{
    uint64_t bits;

    memcpy(&bits, &d, sizeof bits);
    return bits;
}

/* What has been combined so far with the next rank's value; bits of doubles, or counts. */
static inline uint64_t hl_comm_combine(enum haul_comm_scalar op, uint64_t so_far, uint64_t value)
{
    switch (op) {
    case HAUL_COMM_SUM_F64:
        return hl_comm_bits(hl_comm_double(so_far) + hl_comm_double(value));
    case HAUL_COMM_MAX_F64:
        return hl_comm_double(value) > hl_comm_double(so_far) ? value : so_far;
    case HAUL_COMM_SUM_U64:
        return so_far + value;
    case HAUL_COMM_MAX_U64:
        return value > so_far ? value : so_far;
    }
    return so_far;
}

#endif
