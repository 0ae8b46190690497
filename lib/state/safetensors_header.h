/*
 * safetensors_header.h: one file's header, parsed and checked.
 *
 * Nothing in a header is used before it has been checked: after hl_st_header_parse() every tensor lies
 * inside the data, is as long as its shape and dtype say, and the tensors cover the data without overlap
 * or hole.
 */
#ifndef HL_SAFETENSORS_HEADER_H
#define HL_SAFETENSORS_HEADER_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "haul/optim.h"

#define HL_ST_LENGTH_BYTES 8            /* of the header's length, in front of it */
#define HL_ST_HEADER_MOST  100000000ull /* bytes; the format's own bound */
#define HL_ST_DEPTH        3            /* the header, a tensor, its shape */

struct hl_st_dtype {
    const char *name;
    uint32_t bits;        /* of an element */
    enum haul_dtype haul; /* NONE: cannot be read as FP32 */
};

struct hl_st_tensor {
    const char *name;
    const struct hl_st_dtype *dtype;
    const uint64_t *shape; /* (ndims,) */
    uint32_t ndims;
    uint32_t file; /* set by who has several */
    uint64_t nelems;
    uint64_t begin, end; /* bytes from the start of the data */
};

struct hl_st_header {
    struct hl_st_tensor *tensors; /* (ntensors,) in the order of their data */
    uint64_t ntensors;
    uint64_t *dims;   /* all shapes, one after the other */
    json_t *root;     /* owns the names */
    json_t *metadata; /* of texts, part of root; NULL: none */
};

/* The dtype of that name in a file, or NULL. */
const struct hl_st_dtype *hl_st_dtype_named(const char *name);
/* The one in which FP32, BF16 or FP16 are written. */
const struct hl_st_dtype *hl_st_dtype_of(enum haul_dtype dtype);

/**
 * @param what        [in]  the file, for messages
 * @param text        [in]  (bytes,) the header
 * @param data_bytes  [in]  what follows it in the file
 * @param out         [out] end it with hl_st_header_free()
 *
 * Errors  0, HAUL_E_FORMAT, -ENOMEM
 */
int hl_st_header_parse(const char *what, const char *text, size_t bytes, uint64_t data_bytes,
                       struct hl_st_header *out);
void hl_st_header_free(struct hl_st_header *header);

#endif
