/*
 * ckpt_model.h: the model that a checkpoint is of: names, shapes, dtypes, step counts.
 *
 * A block is a run of elements of one tensor that a rank owns: what is written, checked and read at once.
 */
#ifndef HL_CKPT_MODEL_H
#define HL_CKPT_MODEL_H

#include "haul/engine.h"
#include "layout.h"

struct hl_ckpt_unit {
    char *name;
    struct haul_tensor *tensors; /* (ntensors,) names are owned */
    struct hl_place *places;     /* (ntensors,) for one rank */
    uint32_t ntensors;
    uint64_t elems; /* as declared, one tensor after the other: the flat array of the format */
    uint64_t nsteps;
};

struct hl_ckpt_model {
    struct hl_ckpt_unit *units; /* (nunits,) */
    uint32_t nunits, cap;
};

/* Copies names and tensors. */
int hl_ckpt_model_add(struct hl_ckpt_model *model, const char *name, uint64_t nsteps,
                      const struct haul_tensor *tensors, uint32_t ntensors);
void hl_ckpt_model_free(struct hl_ckpt_model *model);

/* From an engine. */
int hl_ckpt_model_of(const struct haul_engine *e, struct hl_ckpt_model *out);

/* 0, or HAUL_E_CONFIG with what differs. what: the checkpoint, for messages. */
int hl_ckpt_model_match(const char *what, const struct hl_ckpt_model *saved,
                        const struct hl_ckpt_model *model);

/* The tensor that holds flat element `at` of a unit. */
uint32_t hl_ckpt_tensor_at(const struct hl_ckpt_unit *u, uint64_t at);

/* How a block's elements are written. */
enum hl_ckpt_kind {
    HL_CKPT_TRAINED = 0, /* float p[n], m[n], v[n] */
    HL_CKPT_FROZEN16,    /* 16-bit values as they are */
    HL_CKPT_FROZEN32,    /* float p[n] */
    /* trained, the record in the rank's store: struct hl_ckpt_kept, then what the store does not have */
    HL_CKPT_KEPT_WHOLE,
    HL_CKPT_KEPT_SPLIT,   /* upper halves, 16 bits each */
    HL_CKPT_KEPT_MOMENTS, /* float p[n] */
    HL_CKPT_STORE, /* the last of a file: where the rank's store is, and its blocks (ckpt_store.h) */
    HL_CKPT_NKINDS
};

/* Where a run of elements is, in bytes of the rank's records space. */
struct hl_ckpt_kept {
    uint64_t p, m, v; /* p 0: not there */
    uint64_t zero;
};

static inline int hl_ckpt_is_kept(uint32_t kind)
{
    return kind >= HL_CKPT_KEPT_WHOLE && kind <= HL_CKPT_KEPT_MOMENTS;
}

/* On disk as it is here, little-endian. */
struct hl_ckpt_block {
    uint32_t unit, kind;
    uint64_t first, n; /* elements in the unit's flat array; inside one tensor */
    uint64_t offset;   /* in the file, a multiple of HL_CKPT_ALIGN */
    uint64_t bytes;    /* with padding */
    uint64_t sum;      /* XXH3-64 of them */
};

#define HL_CKPT_ALIGN       64
#define HL_CKPT_BLOCK_ELEMS UINT64_C(262144)
#define HL_CKPT_BLOCK_BYTES (HL_CKPT_BLOCK_ELEMS * 12) /* the largest */

enum hl_ckpt_kind hl_ckpt_kind_of(const struct haul_tensor *t);
/* Bytes of n elements, without padding. */
uint64_t hl_ckpt_bytes(enum hl_ckpt_kind kind, uint64_t n);

/* Whose records stay in a store. part: how many of the n elements are kept alike, one after the other, how, and
 * where. */
struct hl_ckpt_keeper {
    uint64_t (*part)(void *user, uint32_t unit, uint32_t tensor, uint64_t first, uint64_t n,
                     enum hl_ckpt_kind *kind, struct hl_ckpt_kept *where);
    uint64_t store_bytes; /* of what store() writes */
    int (*store)(void *user, void *out);
    void *user;
};

/* The blocks of a rank among nranks, in the order of its file, from offset `at` on; sums are 0. keeper NULL: none
 * is kept. End *out with hl_sys_free(). */
int hl_ckpt_cut(const struct hl_ckpt_model *model, const struct hl_ckpt_keeper *keeper,
                uint32_t nranks, uint32_t rank, uint64_t at, struct hl_ckpt_block **out,
                uint64_t *nblocks);

const char *hl_ckpt_dtype_name(enum haul_dtype dtype);

#endif
