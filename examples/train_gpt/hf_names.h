/*
 * hf_names.h: the names that GPT-2's tensors have in files that are passed on, and how they lie there.
 *
 * A linear layer's weight is (in, out) in such a file, as in the published model's Conv1D; here it is
 * (out, in). The head is tied to wte and has no tensor of its own.
 */
#ifndef TRAIN_GPT_HF_NAMES_H
#define TRAIN_GPT_HF_NAMES_H

#include "model.h"

#define HF_NAME_BYTES 64

struct hf_tensor {
    char name[HF_NAME_BYTES]; /* without a prefix */
    int transposed;           /* 1: (cols, rows) of the model's (rows, cols) */
};

/* layer: of a block. */
void hf_tensor_of(enum gpt_unit unit, uint64_t layer, uint32_t tensor, struct hf_tensor *out);

/* What some files have in front of every name. */
#define HF_PREFIX "transformer."

#endif
