/* hf_names.c: one row per tensor of the model. */
#include "hf_names.h"

#include <inttypes.h>
#include <stdio.h>

struct row {
    const char *name; /* of a block's tensor: after "h.N." */
    int transposed;
};

static const struct row embed_rows[GPT_EMBED_TENSORS] = {
    [GPT_WTE] = {"wte.weight", 0},
    [GPT_WPE] = {"wpe.weight", 0},
};

static const struct row block_rows[GPT_BLOCK_TENSORS] = {
    [GPT_LN1_G] = {"ln_1.weight", 0},         [GPT_LN1_B] = {"ln_1.bias", 0},
    [GPT_QKV_W] = {"attn.c_attn.weight", 1},  [GPT_QKV_B] = {"attn.c_attn.bias", 0},
    [GPT_PROJ_W] = {"attn.c_proj.weight", 1}, [GPT_PROJ_B] = {"attn.c_proj.bias", 0},
    [GPT_LN2_G] = {"ln_2.weight", 0},         [GPT_LN2_B] = {"ln_2.bias", 0},
    [GPT_FC_W] = {"mlp.c_fc.weight", 1},      [GPT_FC_B] = {"mlp.c_fc.bias", 0},
    [GPT_OUT_W] = {"mlp.c_proj.weight", 1},   [GPT_OUT_B] = {"mlp.c_proj.bias", 0},
};

static const struct row final_rows[GPT_FINAL_TENSORS] = {
    [GPT_LNF_G] = {"ln_f.weight", 0},
    [GPT_LNF_B] = {"ln_f.bias", 0},
};

void hf_tensor_of(enum gpt_unit unit, uint64_t layer, uint32_t tensor, struct hf_tensor *out)
{
    const struct row *rows[] = {
        [GPT_EMBED] = embed_rows, [GPT_BLOCK] = block_rows, [GPT_FINAL] = final_rows};
    const struct row *row = &rows[unit][tensor];

    out->transposed = row->transposed;
    if (unit == GPT_BLOCK)
        snprintf(out->name, sizeof out->name, "h.%" PRIu64 ".%s", layer, row->name);
    else
        snprintf(out->name, sizeof out->name, "%s", row->name);
}
