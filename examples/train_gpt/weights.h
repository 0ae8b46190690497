/*
 * weights.h: the model's weights in a safetensors file under the names of GPT-2.
 *
 *   weights_open    --init: check that all tensors are there and fit
 *   weights_read    values of one of them, for haul_engine_fill()
 *   weights_write   --dump-init, --export: all of them, as FP32 masters
 *
 * One tensor at a time is in memory, and that only where the file has it transposed.
 */
#ifndef TRAIN_GPT_WEIGHTS_H
#define TRAIN_GPT_WEIGHTS_H

#include "model.h"

struct trainer;

struct weights {
    struct haul_safetensors *file; /* NULL: none, fresh weights */
    struct gpt_shape shape;
    const char *prefix; /* of names in the file */
    float *turned;      /* the tensor read last, as the model has it; NULL: none */
    uint64_t turned_index;
};

/**
 * Open the file, set or directory of --init.
 *
 * @param path  [in] NULL: no file; *out then says so
 *
 * Positions past the file's own are taken off: wpe may have more rows than seq.
 *
 * Returns 0, or -1 after one line on stderr.
 */
int weights_open(const char *path, const struct gpt_shape *shape, struct weights *out);
void weights_close(struct weights *weights);

/* Values [first, first + n) of a tensor as the model has it. 0, or an error of haul. */
int weights_read(struct weights *weights, enum gpt_unit unit, uint64_t layer, uint32_t tensor,
                 uint64_t first, uint64_t n, float *out);

/* All ranks call it together; rank 0 writes. 0, or an error of haul. */
int weights_write(const struct trainer *t, const char *path);

#endif
