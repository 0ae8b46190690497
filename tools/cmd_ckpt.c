/* cmd_ckpt.c: haul ckpt: the command lines of its parts. */
#include <stdio.h>
#include <string.h>

#include "ckpt_root.h"
#include "ckpt_tool.h"
#include "commands.h"

static const char notes[] =
    "PATH is a checkpoint, or a folder of checkpoints, whose newest complete one is meant.\n"
    "What is in the files: docs/checkpoint-format.md.";

int hl_ckpt_tool_open(const char *path, struct hl_ckpt **out)
{
    char dir[4096];
    int rc = hl_ckpt_choose(path, dir, sizeof dir);

    return rc < 0 ? rc : hl_ckpt_open(dir, out);
}

uint64_t hl_ckpt_tool_value_bytes(int trained, uint64_t n)
{
    return n * sizeof(float) * (trained ? 3 : 1);
}

uint64_t hl_ckpt_tool_all_value_bytes(const struct hl_ckpt_model *model)
{
    uint64_t bytes = 0;

    for (uint32_t u = 0; u < model->nunits; u++)
        for (uint32_t t = 0; t < model->units[u].ntensors; t++)
            bytes += hl_ckpt_tool_value_bytes(!model->units[u].tensors[t].frozen,
                                              model->units[u].places[t].elems);
    return bytes;
}

uint64_t hl_ckpt_tool_bytes(const struct hl_ckpt *ck)
{
    uint64_t bytes = ck->m.user_bytes;

    for (uint32_t r = 0; r < ck->m.nranks; r++)
        bytes += ck->m.files[r].bytes;
    return bytes;
}

/* Take n names before the flags. HL_FLAGS_GO, or an exit code. */
static int parse(const struct hl_command *cmd, int n, const char *what, int *argc, char ***argv,
                 const char **names)
{
    int got = 0, rc;

    while (got<n && * argc> 1 && (*argv)[1][0] != '-') {
        names[got++] = (*argv)[1];
        (*argv)[1] = (*argv)[0];
        (*argc)--;
        (*argv)++;
    }
    rc = hl_flags_parse(cmd, *argc, *argv);
    if (rc == HL_FLAGS_GO && got < n)
        return hl_usage_error(cmd, "needs %s; haul %s --help shows the usage", what, cmd->name);
    return rc;
}

int hl_cmd_ckpt_inspect(int argc, char **argv)
{
    int json = 0, rc;
    const char *path = NULL;
    const struct hl_flag flags[] = {
        {"json", HL_FLAG_SWITCH, &json, NULL, "machine-readable", NULL}};
    const struct hl_command cmd = {"ckpt inspect", "What a checkpoint holds: PATH [flags].", flags,
                                   1, notes};

    rc = parse(&cmd, 1, "a PATH", &argc, &argv, &path);
    return rc != HL_FLAGS_GO ? rc : hl_ckpt_tool_inspect(&cmd, path, json);
}

int hl_cmd_ckpt_verify(int argc, char **argv)
{
    int json = 0, rc;
    const char *path = NULL;
    const struct hl_flag flags[] = {
        {"json", HL_FLAG_SWITCH, &json, NULL, "machine-readable", NULL}};
    const struct hl_command cmd = {"ckpt verify", "Read and check every byte: PATH [flags].", flags,
                                   1, notes};

    rc = parse(&cmd, 1, "a PATH", &argc, &argv, &path);
    return rc != HL_FLAGS_GO ? rc : hl_ckpt_tool_verify(&cmd, path, json);
}

int hl_cmd_ckpt_diff(int argc, char **argv)
{
    int json = 0, rc;
    const char *path[2] = {NULL, NULL};
    const struct hl_flag flags[] = {
        {"json", HL_FLAG_SWITCH, &json, NULL, "machine-readable", NULL}};
    const struct hl_command cmd = {"ckpt diff",
                                   "Equal bits, or the first difference of each tensor: PATH PATH "
                                   "[flags]. Exit 1: they differ.",
                                   flags, 1, notes};

    rc = parse(&cmd, 2, "two PATHs", &argc, &argv, path);
    return rc != HL_FLAGS_GO ? rc : hl_ckpt_tool_diff(&cmd, path[0], path[1], json);
}

int hl_cmd_ckpt_reshard(int argc, char **argv)
{
    const char *path = NULL, *to = NULL;
    uint32_t ranks = 0;
    int rc;
    const struct hl_flag flags[] = {
        {"ranks", HL_FLAG_NUMBER, &ranks, "N", "files for so many ranks", NULL},
        {"to", HL_FLAG_TEXT, &to, "DIR", "the folder of checkpoints that gets the new one", NULL}};
    const struct hl_command cmd = {"ckpt reshard",
                                   "A checkpoint again, in files of another number of ranks: PATH "
                                   "--ranks N --to DIR. Any number "
                                   "of ranks loads any checkpoint; this is for other readers.",
                                   flags, 2, notes};

    rc = parse(&cmd, 1, "a PATH", &argc, &argv, &path);
    if (rc != HL_FLAGS_GO)
        return rc;
    if (ranks == 0 || ranks > HL_CKPT_MOST_RANKS)
        return hl_usage_error(&cmd, "--ranks: give 1 to %u", HL_CKPT_MOST_RANKS);
    if (to == NULL)
        return hl_usage_error(&cmd, "--to is missing");
    return hl_ckpt_tool_reshard(&cmd, path, ranks, to);
}

int hl_cmd_ckpt_export(int argc, char **argv)
{
    static const enum haul_dtype dtypes[] = {HAUL_BF16, HAUL_FP16, HAUL_FP32};
    const char *path = NULL, *to = NULL;
    int dtype = 0, dtype_given = 0, optimizer = 0, rc;
    const struct hl_flag flags[] = {
        {"to", HL_FLAG_TEXT, &to, "FILE", "ends in .safetensors", NULL},
        {"dtype", HL_FLAG_CHOICE, &dtype, "bf16|fp16|fp32", "of the weights (each tensor's own)",
         &dtype_given},
        {"optimizer", HL_FLAG_SWITCH, &optimizer, NULL,
         "also NAME.master, NAME.exp_avg, NAME.exp_avg_sq in FP32, and the steps", NULL}};
    const struct hl_command cmd = {
        "ckpt export", "Weights as a safetensors file: PATH --to FILE [flags].", flags, 3, notes};

    rc = parse(&cmd, 1, "a PATH", &argc, &argv, &path);
    if (rc != HL_FLAGS_GO)
        return rc;
    if (to == NULL)
        return hl_usage_error(&cmd, "--to is missing");
    return hl_ckpt_tool_export(&cmd, path, to, dtype_given ? dtypes[dtype] : HAUL_DTYPE_NONE,
                               optimizer);
}

int hl_cmd_ckpt_import(int argc, char **argv)
{
    const char *file = NULL, *like = NULL, *to = NULL;
    int rc;
    const struct hl_flag flags[] = {
        {"like", HL_FLAG_TEXT, &like, "PATH", "a checkpoint of the same model", NULL},
        {"to", HL_FLAG_TEXT, &to, "DIR", "the folder of checkpoints that gets the new one", NULL}};
    const struct hl_command cmd = {
        "ckpt import",
        "A checkpoint from a safetensors file, set or folder with the names that export gives: "
        "FILE "
        "--like PATH --to DIR. NAME.master is preferred to NAME; without NAME.exp_avg and "
        "NAME.exp_avg_sq moments and steps are 0. The caller's own bytes are those of --like.",
        flags, 2, notes};

    rc = parse(&cmd, 1, "a FILE", &argc, &argv, &file);
    if (rc != HL_FLAGS_GO)
        return rc;
    if (like == NULL || to == NULL)
        return hl_usage_error(&cmd, "--%s is missing", like == NULL ? "like" : "to");
    return hl_ckpt_tool_import(&cmd, file, like, to);
}
