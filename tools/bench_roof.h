/*
 * bench_roof.h: how fast this machine can move the bytes of an update, or of a norm, and do nothing else.
 */
#ifndef HL_BENCH_ROOF_H
#define HL_BENCH_ROOF_H

#include <stdint.h>

/* What an update touches, per element. */
struct hl_roof_shape {
    unsigned grad_bytes;   /* 2 or 4, read */
    unsigned master_bytes; /* 4, or 2: split; read and written */
    unsigned moment_bytes; /* 2 or 4, read and written */
    unsigned nmoments;     /* 0 to 2 */
    unsigned param;        /* 0 not there, 1 written, 2 read and written; 2 bytes */
};

struct hl_roof_arrays {
    const char *grad;
    char *master, *moment[2], *param;
};

/* Ways to move them. */
enum hl_roof_way {
    HL_ROOF_PLAIN = 0,
    HL_ROOF_PREFETCH, /* 2 KiB ahead */
    HL_ROOF_STREAM,   /* what is only written goes around the cache */
    HL_ROOF_PREFETCH_STREAM,
    HL_ROOF_STREAM_ALL, /* all that is written does */
    HL_NROOFS
};

const char *hl_roof_name(enum hl_roof_way way);

/* Bytes that the program asks memory to move, per element. */
unsigned hl_roof_bytes(const struct hl_roof_shape *shape);

/* Move elements [begin, end), multiples of 64, of arrays that begin on cache lines. */
void hl_roof_move(const struct hl_roof_shape *shape, enum hl_roof_way way,
                  const struct hl_roof_arrays *arrays, uint64_t begin, uint64_t end);

/* Read bytes of memory: the roof of a norm. */
void hl_roof_read(const char *src, uint64_t bytes, int prefetch);

#endif
