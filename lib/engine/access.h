/* access.h: values of a unit, wherever they rest, a piece at a time. Private to lib/engine. Only while
 * the engine is quiescent (hl_engine_quiesce). */
#ifndef HL_ACCESS_H
#define HL_ACCESS_H

#include "engine_state.h"

/* Elements handled at a time. The arrays of hl_scratch fit the bounce buffer. */
#define HL_PIECE_ELEMS UINT64_C(32768)

struct hl_scratch {
    float *p, *m, *v, *value; /* (HL_PIECE_ELEMS,) */
    uint16_t *hi, *lo;
};

/* Nothing is held: HAUL_E_STATE. */
int hl_check_not_held(const struct haul_engine *e);

struct hl_scratch hl_scratch_of(const struct haul_engine *e);

/* A piece of a tensor: elements [at, at + n) of its span; all of them kept here alike, and in one chunk
 * when paged. */
struct hl_piece {
    struct haul_unit *unit;
    enum hl_span_kind span;
    uint32_t chunk;
    uint64_t at, n;
    bool mine; /* in this rank's shard: some rank's for every element, and only one's */
    bool own;  /* record and master are here */
    bool rest; /* the parameter is here */
};

/* The first piece of elements [first, first + n) of a tensor. */
struct hl_piece hl_piece_of(struct haul_unit *u, uint32_t tensor, uint64_t first, uint64_t n);

/* FP32 values: the master, or the parameter widened. Only of what is mine. */
int hl_piece_read(const struct hl_piece *pc, float *out);

/* Zeros for frozen tensors. */
int hl_piece_read_moments(const struct hl_piece *pc, float *m, float *v);

/* Both, of what is mine and trained, by a snapshot behind training. */
int hl_piece_read_behind(const struct hl_piece *pc, float *p, float *m, float *v);

/* The parameter as it rests, widened: of split masters the upper half. */
int hl_piece_read_rest(const struct hl_piece *pc, bool behind, float *out);
/* Set it alone, from FP32 values, which may change. */
int hl_piece_write_rest(const struct hl_piece *pc, float *values);

/* Set what is kept here of a piece: master and parameter from FP32 values, which may change (NaNs become
 * the one NaN); the moments. */
int hl_piece_write(const struct hl_piece *pc, float *values);
int hl_piece_write_moments(const struct hl_piece *pc, const float *m, const float *v);

#endif
