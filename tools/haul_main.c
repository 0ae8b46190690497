/* haul_main.c: finds the subcommand and runs it. Data on stdout, diagnostics on stderr. */
#include <stdio.h>
#include <string.h>

#include "commands.h"
#include "flags.h"
#include "haul/error.h"
#include "nearest_word.h"

struct subcommand {
    const char *group; /* "bench" for "haul bench adam"; NULL for none */
    const char *name;
    int (*run)(int argc, char **argv);
    const char *help;
};

static const struct subcommand subcommands[] = {
    {NULL, "plan", hl_cmd_plan, "does it fit, on how many devices, and how fast can it be"},
    {NULL, "sim", hl_cmd_sim, "how long a step takes, and why, before it is run"},
    {"profile", "show", hl_cmd_profile_show,
     "what a machine can do, and where each figure is from"},
    {NULL, "config", hl_cmd_config,
     "what a configuration file comes to, and where each value is from"},
    {NULL, "doctor", hl_cmd_doctor, "what this machine offers, and what to change"},
    {NULL, "tune", hl_cmd_tune, "drives and memory measured into a profile"},
    {NULL, "report", hl_cmd_report, "a run as one page: loss, time, memory, rates, a timeline"},
    {"ckpt", "inspect", hl_cmd_ckpt_inspect, "what a checkpoint holds"},
    {"ckpt", "verify", hl_cmd_ckpt_verify, "every byte of a checkpoint, checked"},
    {"ckpt", "diff", hl_cmd_ckpt_diff, "two checkpoints: equal bits, or where they differ"},
    {"ckpt", "reshard", hl_cmd_ckpt_reshard, "a checkpoint in files of another number of ranks"},
    {"ckpt", "export", hl_cmd_ckpt_export, "a checkpoint as a safetensors file"},
    {"ckpt", "import", hl_cmd_ckpt_import, "a checkpoint from a safetensors file"},
    {"bench", "adam", hl_cmd_bench_adam, "optimizers and norm beside the memory roof"},
    {"bench", "io", hl_cmd_bench_io, "a drive read, written and paged, beside fio"},
    {"bench", "link", hl_cmd_bench_link, "copies between host and device, by size and memory"},
    {"bench", "step", hl_cmd_bench_step, "whole steps, deferred or not, beside their bound"},
};

#define NSUBCOMMANDS (sizeof subcommands / sizeof subcommands[0])

static void print_usage(FILE *to)
{
    fprintf(to, "usage: haul COMMAND [flags]\n\n"
                "CPU and NVMe offload for training large models.\n\ncommands:\n");
    for (size_t i = 0; i < NSUBCOMMANDS; i++) {
        const struct subcommand *c = &subcommands[i];
        char name[32];
        snprintf(name, sizeof name, "%s%s%s", c->group != NULL ? c->group : "",
                 c->group != NULL ? " " : "", c->name);
        fprintf(to, "  %-14s %s\n", name, c->help);
    }
    fprintf(to,
            "\nhaul COMMAND --help lists a command's flags; haul --version prints the version.\n"
            "exit codes: 0 done, 1 failed, 2 usage, 3 environment\n");
}

static int is_group(const char *word)
{
    for (size_t i = 0; i < NSUBCOMMANDS; i++)
        if (subcommands[i].group != NULL && strcmp(subcommands[i].group, word) == 0)
            return 1;
    return 0;
}

static const struct subcommand *find(const char *group, const char *name)
{
    for (size_t i = 0; i < NSUBCOMMANDS; i++) {
        const struct subcommand *c = &subcommands[i];
        if (strcmp(c->name, name) != 0 || (c->group == NULL) != (group == NULL))
            continue;
        if (group == NULL || strcmp(c->group, group) == 0)
            return c;
    }
    return NULL;
}

static int unknown(const char *group, const char *name)
{
    const char *words[NSUBCOMMANDS + 1], *nearest;
    uint32_t n = 0;

    for (size_t i = 0; i < NSUBCOMMANDS; i++) {
        const char *g = subcommands[i].group;
        if (group == NULL)
            words[n++] = g != NULL ? g : subcommands[i].name;
        else if (g != NULL && strcmp(g, group) == 0)
            words[n++] = subcommands[i].name;
    }
    nearest = hl_nearest_word(name, words, n);
    fprintf(stderr, "haul%s%s: unknown command \"%s\"", group != NULL ? " " : "",
            group != NULL ? group : "", name);
    if (nearest != NULL)
        fprintf(stderr, "; did you mean %s?\n", nearest);
    else
        fprintf(stderr, "; haul --help lists them\n");
    return HL_EXIT_USAGE;
}

/* Data that did not arrive is a failure, whatever the command thinks. */
static int finish(int rc)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return rc;
    fprintf(stderr, "haul: writing to standard output failed\n");
    return rc == HL_EXIT_OK ? HL_EXIT_FAILED : rc;
}

static int dispatch(int argc, char **argv)
{
    const char *group = NULL;
    const struct subcommand *c;
    int at = 1;

    if (is_group(argv[1])) {
        group = argv[1];
        if (argc == 2 || strcmp(argv[2], "--help") == 0) {
            print_usage(argc == 2 ? stderr : stdout);
            return argc == 2 ? HL_EXIT_USAGE : HL_EXIT_OK;
        }
        at = 2;
    }
    c = find(group, argv[at]);
    return c != NULL ? c->run(argc - at, argv + at) : unknown(group, argv[at]);
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        print_usage(stderr);
        return HL_EXIT_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
        strcmp(argv[1], "help") == 0) {
        print_usage(stdout);
        return finish(HL_EXIT_OK);
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("haul %s\n", haul_version());
        return finish(HL_EXIT_OK);
    }
    return finish(dispatch(argc, argv));
}
