/*
 * haul/safetensors.h: weights in and out of safetensors files.
 *
 * Reading takes one file, a sharded set (its *.safetensors.index.json) or a directory, lists what is in
 * it, and gives values of F32, BF16 and F16 tensors as FP32. A header is believed in nothing: every
 * length, offset, shape and name is checked before it is used, and a refusal names the file and what is
 * wrong.
 *
 *     struct haul_safetensors *st;
 *     uint64_t i;
 *     rc = haul_safetensors_open("model.safetensors", &st);
 *     rc = haul_safetensors_find(st, "wte.weight", &i);
 *     rc = haul_safetensors_read(st, i, 0, n, values);
 *     haul_safetensors_close(st);
 *
 * Writing declares all tensors first, then takes their values in pieces of any size; the file appears
 * under its name when all of them are on the drive, and not before.
 *
 *     rc = haul_safetensors_writer_open("model.safetensors", &opts, decls, ndecls, &w);
 *     rc = haul_safetensors_writer_put(w, 0, first, n, values);       ... until all are put
 *     rc = haul_safetensors_writer_finish(w);
 *     haul_safetensors_writer_close(w);
 */
#ifndef HAUL_SAFETENSORS_H
#define HAUL_SAFETENSORS_H

#include "haul/optim.h"

#ifdef __cplusplus
extern "C" {
#endif

struct haul_safetensors;
struct haul_safetensors_writer;

/**
 * Open a file, a set of files or a directory for reading.
 *
 * A path that ends in .json is an index: its weight_map says which tensor is in which file beside it. Of
 * a directory, model.safetensors is taken if it is there, else the one *.safetensors.index.json, else
 * every *.safetensors file. Files stay open, so that one that is saved over meanwhile is read as it was.
 *
 * @param path  [in]  file, index or directory
 * @param out   [out] written only on success; end it with haul_safetensors_close()
 *
 * Blocks     yes: reads the headers, not the values
 * Errors     0, HAUL_E_FORMAT (text names file, tensor and what is wrong), -ENOENT, -EACCES, -ENOMEM
 * Source     the format as its own library reads it: 8 bytes of little-endian header length, at most
 *            100 MB of JSON, tensors without overlap or hole up to the end of the file
 */
HAUL_API HAUL_MUST_USE
int haul_safetensors_open(const char *path, struct haul_safetensors **out);

/* NULL is fine. */
HAUL_API
void haul_safetensors_close(struct haul_safetensors *st);

struct haul_safetensors_info {
    size_t struct_size;
    const char *name;       /* valid until close, as are all texts here */
    const char *dtype_name; /* as in the file: "F32", "I64", ... */
    enum haul_dtype dtype;  /* FP32, BF16, FP16; NONE: listed, cannot be read */
    uint32_t ndims;         /* 0: a single value */
    const uint64_t *shape;  /* (ndims,) row-major */
    uint64_t nelems, nbytes;
    const char *file;       /* which it is in */
};

/* Tensors there are. They are numbered file by file, in the order of their data. */
HAUL_API
uint64_t haul_safetensors_count(const struct haul_safetensors *st);

/* Errors  0, -EINVAL (no such index), HAUL_E_ABI (struct_size; set it before the call) */
HAUL_API HAUL_MUST_USE
int haul_safetensors_get_info(const struct haul_safetensors *st, uint64_t index,
                              struct haul_safetensors_info *out);

/* Errors  0, -ENOENT (no tensor of that name; the text names the nearest) */
HAUL_API HAUL_MUST_USE
int haul_safetensors_find(const struct haul_safetensors *st, const char *name, uint64_t *index);

/* The text that __metadata__ of the first file that has the key gives it, or NULL. */
HAUL_API
const char *haul_safetensors_metadata(const struct haul_safetensors *st, const char *key);

/**
 * Read values [first, first + n) of a tensor as FP32.
 *
 * F32 arrives bit for bit. BF16 and F16 are widened exactly; a NaN of theirs arrives as 7fc00000, haul's
 * one NaN.
 *
 * @param out  [out] (n,)
 *
 * Blocks     yes
 * Errors     0, -EINVAL (range, or a dtype that is only listed), -EIO and what else the file gives
 */
HAUL_API HAUL_MUST_USE
int haul_safetensors_read(const struct haul_safetensors *st, uint64_t index, uint64_t first, uint64_t n,
                          float *out);

/* A tensor to be written. */
struct haul_safetensors_decl {
    const char *name;      /* UTF-8, unique; copied */
    enum haul_dtype dtype; /* FP32, BF16 or FP16 in the file */
    uint32_t ndims;
    const uint64_t *shape; /* (ndims,) read at open */
};

struct haul_safetensors_writer_opts {
    size_t struct_size;
    uint64_t shard_bytes; /* 0 (default): one file. Else no file has more bytes of tensors, but for a
                             tensor that is larger by itself; more than one file have an index */
    const char *const *metadata; /* (nmetadata, 2) keys and texts; read at open. "format" is "pt", which
                                    common loaders ask for, unless given here */
    uint32_t nmetadata;
};

HAUL_API
void haul_safetensors_writer_opts_init(struct haul_safetensors_writer_opts *opts);

/**
 * Begin a file, or a set, of these tensors.
 *
 * Nothing is seen under the final name before finish. All space is allocated here, where the file
 * system can, so that a full drive is an error of this call.
 *
 * @param path      [in]  ends in .safetensors. With several files they are called
 *                        STEM-00001-of-0000N.safetensors, and the index PATH.index.json
 * @param opts      [in]  or NULL for the defaults
 * @param decls     [in]  (ndecls,); a tensor's index is its place here
 * @param out       [out] end it with haul_safetensors_writer_close()
 *
 * Shape      data begins at a multiple of 64 bytes; inside it tensors of 4-byte elements come first, so
 *            that each is aligned to its element
 * Blocks     yes
 * Errors     0, -EINVAL (text names the tensor or the option), -EOVERFLOW, -ENOSPC, -ENOENT, -EACCES,
 *            -ENOMEM, HAUL_E_ABI
 */
HAUL_API HAUL_MUST_USE
int haul_safetensors_writer_open(const char *path, const struct haul_safetensors_writer_opts *opts,
                                 const struct haul_safetensors_decl *decls, uint64_t ndecls,
                                 struct haul_safetensors_writer **out);

/**
 * Write values [first, first + n) of a tensor, which follow those put before.
 *
 * FP32 is written bit for bit: masters lose nothing. BF16 is rounded half away from zero and FP16 half to
 * even, as haul publishes parameters, so a master written as BF16 gives the published parameter.
 *
 * @param values  [in] (n,)
 *
 * Blocks     yes
 * Errors     0, -EINVAL (not the next values of this tensor), -EIO, -ENOSPC, ...
 */
HAUL_API HAUL_MUST_USE
int haul_safetensors_writer_put(struct haul_safetensors_writer *w, uint64_t index, uint64_t first,
                                uint64_t n, const float *values);

/**
 * Put the file, or the set, under its name: flush, rename, flush the directory.
 *
 * A kill at any instant leaves the file that was there, or the new one. Of a set, the old index goes
 * first and the new one comes last: in between haul_safetensors_open() refuses the directory. A file and
 * a set of the same path replace each other.
 *
 * Blocks     yes
 * Errors     0, HAUL_E_STATE (a tensor is not complete: named), -EIO, ...
 */
HAUL_API HAUL_MUST_USE
int haul_safetensors_writer_finish(struct haul_safetensors_writer *w);

/* Without finish before it nothing remains. NULL is fine. */
HAUL_API
void haul_safetensors_writer_close(struct haul_safetensors_writer *w);

#ifdef __cplusplus
}
#endif
#endif
