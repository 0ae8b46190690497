/* ckpt_tool.h: the parts of haul ckpt. Each takes what the command line named and returns an exit code. */
#ifndef HL_CKPT_TOOL_H
#define HL_CKPT_TOOL_H

#include "ckpt_file.h"
#include "flags.h"

/* Open the checkpoint that path names, or the newest of a root. Returns 0 or an error of haul. */
int hl_ckpt_tool_open(const char *path, struct hl_ckpt **out);

uint64_t hl_ckpt_tool_bytes(const struct hl_ckpt *ck);

/* How far reading it is: p of n elements, and m and v of trained ones, in FP32. And of all there are. */
uint64_t hl_ckpt_tool_value_bytes(int trained, uint64_t n);
uint64_t hl_ckpt_tool_all_value_bytes(const struct hl_ckpt_model *model);

int hl_ckpt_tool_inspect(const struct hl_command *cmd, const char *path, int json);
int hl_ckpt_tool_verify(const struct hl_command *cmd, const char *path, int json);
int hl_ckpt_tool_diff(const struct hl_command *cmd, const char *a, const char *b, int json);

/* A new checkpoint in root, with files for so many ranks. */
int hl_ckpt_tool_reshard(const struct hl_command *cmd, const char *path, uint32_t nranks,
                         const char *root);

/* dtype: of the weights, HAUL_DTYPE_NONE: each its own. */
int hl_ckpt_tool_export(const struct hl_command *cmd, const char *path, const char *file,
                        enum haul_dtype dtype, int optimizer);

/* A new checkpoint in root, of the model of `like`, with the values of a safetensors file, set or folder. */
int hl_ckpt_tool_import(const struct hl_command *cmd, const char *file, const char *like,
                        const char *root);

#endif
