/* args.c: one table of flags; parsing, help and the nearest flag of a typing error all come from it. */
#include "args.h"
#include "compute.h"
#include "settings.h"
#include "offload_rows.h"

#include <errno.h>
#include <libgen.h>
#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum kind { COUNT, SIZE, NUMBER, TEXT, DIRS, CHOICE, SWITCH };

struct choice {
    const char *name;
    unsigned value;
};

struct flag {
    const char *name; /* without the dashes */
    enum kind kind;
    size_t offset;
    const char *help;
    uint64_t min, max; /* COUNT and SIZE */
    const struct choice *choices;
};

static const struct choice order_choices[] = {{"layer", ORDER_LAYER}, {"batch", ORDER_BATCH}, {0}};
static const struct choice device_choices[] = {{"host", DEVICE_HOST}, {"cuda", DEVICE_CUDA}, {0}};
static const struct choice offload_choices[] = {{"none", HAUL_OFFLOAD_NONE},
                                                {"optimizer", HAUL_OFFLOAD_OPTIMIZER},
                                                {"all", HAUL_OFFLOAD_ALL},
                                                {0}};
static const struct choice dtype_choices[] = {
    {"bf16", HAUL_BF16}, {"fp16", HAUL_FP16}, {"fp32", HAUL_FP32}, {0}};
static const struct choice master_choices[] = {
    {"fp32", HAUL_MASTER_FP32}, {"split", HAUL_MASTER_SPLIT}, {0}};
static const struct choice model_choices[] = {
    {"gpt2", MODEL_GPT2}, {"7b", MODEL_7B}, {"13b", MODEL_13B}, {"70b", MODEL_70B}, {0}};
static const struct choice share_choices[] = {
    {"auto", HAUL_SHARE_AUTO}, {"gather", HAUL_SHARE_GATHER}, {"pull", HAUL_SHARE_PULL}, {0}};
static const struct choice io_choices[] = {
    {"auto", HAUL_IO_AUTO}, {"uring", HAUL_IO_URING}, {"threads", HAUL_IO_THREADS}, {0}};

#define AT(field) offsetof(struct args, field)

/* clang-format off */
static const struct flag flags[] = {
    {"data", TEXT, AT(data), "FILE  text to learn (any file; default: haul's own docs and sources)", 0, 0, NULL},
    {"steps", COUNT, AT(steps), "N  steps to train (100); measured of each row with --bench (7)", 1, 1000000000, NULL},
    {"model", CHOICE, AT(model), "gpt2|7b|13b|70b  layers, width, heads and vocabulary of that size; flags after it change them", 0, 0, model_choices},
    {"layers", COUNT, AT(layers), "N  blocks (4)", 1, 4096, NULL},
    {"dim", COUNT, AT(dim), "N  width of the model (128)", 1, 65536, NULL},
    {"heads", COUNT, AT(heads), "N  attention heads; divides --dim (4)", 1, 65536, NULL},
    {"seq", COUNT, AT(seq), "N  tokens in a sequence (128)", 1, 1 << 20, NULL},
    {"vocab", COUNT, AT(vocab), "N  rows of the token table: 256, the bytes; or more, as GPT-2's 50257, of which a file's bytes are single-byte tokens (256)", 256, 1 << 20, NULL},
    {"batch", COUNT, AT(batch), "N  sequences in a step (8)", 1, 1 << 20, NULL},
    {"accum", COUNT, AT(accum), "N  micro-batches that a step is cut into; divides --batch (1)", 1, 1 << 20, NULL},
    {"order", CHOICE, AT(order), "layer|batch  all micro-batches unit by unit, or one after the other (layer)", 0, 0, order_choices},
    {"stage", COUNT, AT(stage), "0..3  what is sharded over ranks (3)", 0, 3, NULL},
    {"ranks", COUNT, AT(ranks), "N  with --plan-only: plan for so many; to train with N, start by mpirun -n N", 1, 65536, NULL},
    {"share", CHOICE, AT(share), "auto|gather|pull  ranks of one node, stage 3: gather over the devices, or pull from shared memory (auto)", 0, 0, share_choices},
    {"offload", CHOICE, AT(offload), "none|optimizer|all  what may leave the device (all)", 0, 0, offload_choices},
    {"device", CHOICE, AT(device), "host|cuda  host emulates a device on the CPU; cuda starts train_gpt_cuda, which computes on the first GPU (host)", 0, 0, device_choices},
    {"device-mem", SIZE, AT(device_mem_bytes), "SIZE  device memory, 24GB or 512MiB; what is left over takes offloaded units back (no cap)", 1, INT64_MAX, NULL},
    {"host-mem", SIZE, AT(host_mem_bytes), "SIZE  host memory of the node for what is offloaded (what is free)", 1, INT64_MAX, NULL},
    {"nvme", DIRS, AT(nvme_dirs), "DIR[,DIR]  existing folders for what --host-mem has no room for (none)", 0, 0, NULL},
    {"nvme-mem", SIZE, AT(nvme_mem_bytes), "SIZE  room on them together (what is free)", 1, INT64_MAX, NULL},
    {"nvme-durable", SWITCH, AT(nvme_durable), " what rests there stays from run to run, twice the room: --save refers to it instead of copying it", 0, 0, NULL},
    {"io", CHOICE, AT(io), "auto|uring|threads  how files are read and written (auto)", 0, 0, io_choices},
    {"slots", COUNT, AT(slots), "N  host buffers through which records on nvme move (4)", 2, 1024, NULL},
    {"slot-bytes", SIZE, AT(slot_bytes), "SIZE  of each (the largest record, at most 32MiB)", 4096, INT64_MAX, NULL},
    {"stash", SWITCH, AT(stash), " keep the blocks' inputs in host memory from forward to backward, not on the device", 0, 0, NULL},
    {"stash-mem", SIZE, AT(stash_mem_bytes), "SIZE  host memory for them, room for at least three; the oldest go on to --nvme (all of them)", 1, INT64_MAX, NULL},
    {"link-gbps", NUMBER, AT(link_gbps), "X  speed of the emulated link, 1e9 bytes/s each way (as fast as memcpy)", 0, 0, NULL},
    {"window", COUNT, AT(window), "N  units on the device at once, with --offload all (2)", 1, 4096, NULL},
    {"dtype", CHOICE, AT(dtype), "bf16|fp16|fp32  of the parameters (bf16)", 0, 0, dtype_choices},
    {"grad-dtype", CHOICE, AT(grad_dtype), "bf16|fp16|fp32  in which gradients leave the device; fp16: with a dynamic loss scale (that of --dtype)", 0, 0, dtype_choices},
    {"master", CHOICE, AT(master), "fp32|split  records of 12 B a parameter, or of 10 with --dtype bf16 (fp32)", 0, 0, master_choices},
    {"lr", NUMBER, AT(lr), "X  learning rate after 20 steps of warm-up (0.002)", 0, 0, NULL},
    {"clip", NUMBER, AT(clip), "X  clip the gradient to this global norm; 0: never (1)", 0, 0, NULL},
    {"config", TEXT, AT(config), "FILE  settings from a DeepSpeed ds_config.json or one of haul's own, and from the environment; flags count before it", 0, 0, NULL},
    {"seed", COUNT, AT(seed), "N  fixes weights and batches (1)", 0, INT64_MAX, NULL},
    {"threads", COUNT, AT(threads), "N  threads of the optimizer (cores allowed)", 1, 1024, NULL},
    {"no-recompute", SWITCH, AT(no_recompute), " keep all activations instead of computing each block's again", 0, 0, NULL},
    {"no-overlap", SWITCH, AT(no_overlap), " each step waits for its own updates", 0, 0, NULL},
    {"plan-only", SWITCH, AT(plan_only), " print what would be reserved, and end", 0, 0, NULL},
    {"bench", SWITCH, AT(bench), " measure the same model with each --offload in turn, and print the three beside each other", 0, 0, NULL},
    {"json", SWITCH, AT(json), " print what --bench found as one JSON object", 0, 0, NULL},
    {"jsonl", TEXT, AT(jsonl), "FILE  one JSON object per step, and a summary", 0, 0, NULL},
    {"trace", TEXT, AT(trace), "FILE  what every lane did when, for Perfetto or chrome://tracing", 0, 0, NULL},
    {"save", TEXT, AT(save), "DIR  write checkpoints to this folder: at the end, on SIGTERM and Ctrl-C, and with --save-every", 0, 0, NULL},
    {"save-every", COUNT, AT(save_every), "N  also after every N steps (at the end alone)", 1, 1000000000, NULL},
    {"save-keep", COUNT, AT(save_keep), "N  the newest N stay, older ones go; 0: all stay (2)", 0, 1000000, NULL},
    {"resume", TEXT, AT(resume), "DIR  go on from the newest complete checkpoint in this folder, or from this one", 0, 0, NULL},
    {"init", TEXT, AT(init), "PATH  weights to begin with: a safetensors file, set or folder with GPT-2's names (fresh ones)", 0, 0, NULL},
    {"dump-init", TEXT, AT(dump_init), "FILE  write the weights before the first step, FP32, to FILE, which ends in .safetensors", 0, 0, NULL},
    {"export", TEXT, AT(export), "FILE  write the weights after the last step, likewise", 0, 0, NULL},
    {"digest", SWITCH, AT(digest), " print a fingerprint of parameters and moments last", 0, 0, NULL},
    {"quiet", SWITCH, AT(quiet), " no progress and no closing table", 0, 0, NULL},
    {"help", SWITCH, AT(help), " this text", 0, 0, NULL},
};
/* clang-format on */

#define STEPS       100
#define BENCH_STEPS 7

#define NFLAGS   (sizeof flags / sizeof *flags)
#define MAX_NAME 32

static unsigned min3(unsigned a, unsigned b, unsigned c)
{
    unsigned m = a < b ? a : b;

    return m < c ? m : c;
}

/* Levenshtein's distance of a to b, b shorter than MAX_NAME. */
static unsigned distance(const char *a, const char *b)
{
    unsigned row[MAX_NAME];
    size_t nb = strlen(b);

    for (size_t j = 0; j <= nb; j++)
        row[j] = (unsigned)j;
    for (size_t i = 1; a[i - 1] != '\0'; i++) {
        unsigned diagonal = row[0];

        row[0] = (unsigned)i;
        for (size_t j = 1; j <= nb; j++) {
            unsigned above = row[j];

            row[j] = min3(above + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1]));
            diagonal = above;
        }
    }
    return row[nb];
}

static const char *nearest_flag(const char *name)
{
    const struct flag *best = &flags[0];

    for (size_t f = 1; f < NFLAGS; f++)
        if (distance(name, flags[f].name) < distance(name, best->name))
            best = &flags[f];
    return best->name;
}

static int usage(const char *flag, const char *text, const char *value)
{
    fprintf(stderr, "train_gpt: --%s: %s, not '%.60s'\n", flag, text, value);
    return EXIT_USAGE;
}

static int set_number(const struct flag *flag, const char *text, double *out)
{
    char *end;
    double value = strtod(text, &end);

    if (end == text || *end != '\0' || !isfinite(value) || value < 0)
        return usage(flag->name, "takes a number, 0 or more", text);
    *out = value;
    return EXIT_OK;
}

static int set_choice(const struct flag *flag, const char *text, unsigned *out)
{
    char names[80];
    size_t at = 0;

    for (const struct choice *c = flag->choices; c->name != NULL; c++) {
        if (strcmp(text, c->name) == 0) {
            *out = c->value;
            return EXIT_OK;
        }
        at += (size_t)snprintf(names + at, sizeof names - at, "%s%s", at > 0 ? ", " : "", c->name);
    }
    fprintf(stderr, "train_gpt: --%s: one of %s, not '%.60s'\n", flag->name, names, text);
    return EXIT_USAGE;
}

static int set_count(const struct flag *flag, const char *text, uint64_t *out)
{
    uint64_t value;
    int rc = flag->kind == SIZE ? haul_parse_size(text, &value) : haul_parse_count(text, &value);
    char range[80];

    if (rc < 0) {
        fprintf(stderr, "train_gpt: --%s: %s\n", flag->name, haul_last_error());
        return EXIT_USAGE;
    }
    if (value < flag->min || value > flag->max) {
        snprintf(range, sizeof range, "takes %llu to %llu", (unsigned long long)flag->min,
                 (unsigned long long)flag->max);
        return usage(flag->name, range, text);
    }
    *out = value;
    return EXIT_OK;
}

/* Cut text at its commas. */
static int set_dirs(const struct flag *flag, char *text, struct args *out)
{
    char *rest = text, *dir;

    out->nnvme_dirs = 0;
    while ((dir = strsep(&rest, ",")) != NULL) {
        if (*dir == '\0')
            return usage(flag->name, "takes names of folders with a comma between them", text);
        if (out->nnvme_dirs == HAUL_MAX_DIRS)
            return usage(flag->name, "takes at most 16 folders; one too many is", dir);
        out->nvme_dirs[out->nnvme_dirs++] = dir;
    }
    return EXIT_OK;
}

static void set_model(struct args *out)
{
    static const uint64_t shape[][4] = {[MODEL_GPT2] = {12, 768, 12, 50257},
                                        [MODEL_7B] = {32, 4096, 32, 256},
                                        [MODEL_13B] = {40, 5120, 40, 256},
                                        [MODEL_70B] = {80, 8192, 64, 256}};

    out->layers = shape[out->model][0];
    out->dim = shape[out->model][1];
    out->heads = shape[out->model][2];
    out->vocab = shape[out->model][3];
}

static int set(const struct flag *flag, char *text, struct args *out)
{
    void *field = (char *)out + flag->offset;

    switch (flag->kind) {
    case COUNT:
    case SIZE:
        return set_count(flag, text, field);
    case NUMBER:
        return set_number(flag, text, field);
    case TEXT:
        *(const char **)field = text;
        break;
    case DIRS:
        return set_dirs(flag, text, out);
    case CHOICE:
        if (set_choice(flag, text, field) != EXIT_OK)
            return EXIT_USAGE;
        if (field == &out->model)
            set_model(out);
        break;
    case SWITCH:
        *(bool *)field = true;
        break;
    }
    return EXIT_OK;
}

/* The flag that word names, "--name" or "--name=value"; *value points past the '=' or is NULL. */
static const struct flag *find_flag(char *word, char **value)
{
    char *name = word + 2, *equals = strchr(name, '=');
    size_t n = equals != NULL ? (size_t)(equals - name) : strlen(name);

    *value = equals != NULL ? equals + 1 : NULL;
    for (size_t f = 0; f < NFLAGS; f++)
        if (strlen(flags[f].name) == n && strncmp(flags[f].name, name, n) == 0)
            return &flags[f];
    return NULL;
}

/* One flag at argv[i]; *used: words taken. */
static int parse_word(char **argv, int i, struct args *out, int *used)
{
    const struct flag *flag;
    char *value;

    if (strncmp(argv[i], "--", 2) != 0) {
        fprintf(stderr, "train_gpt: '%.60s' is not a flag; try --help\n", argv[i]);
        return EXIT_USAGE;
    }
    flag = find_flag(argv[i], &value);
    if (flag == NULL) {
        fprintf(stderr, "train_gpt: no flag '%.60s'; the nearest is --%s (try --help)\n", argv[i],
                nearest_flag(argv[i] + 2));
        return EXIT_USAGE;
    }
    *used = 1;
    if (flag->kind == SWITCH && value != NULL)
        return usage(flag->name, "takes no value", value);
    if (flag->kind != SWITCH && value == NULL) {
        value = argv[i + 1];
        *used = 2;
        if (value == NULL) {
            fprintf(stderr, "train_gpt: --%s needs a value\n", flag->name);
            return EXIT_USAGE;
        }
    }
    return set(flag, value, out);
}

static int contradiction(const char *text)
{
    fprintf(stderr, "train_gpt: %s\n", text);
    return EXIT_USAGE;
}

static int check_nvme(const struct args *args)
{
    if (args->nnvme_dirs == 0 &&
        ((args->nvme_mem_bytes != 0 && !args->plan_only) || args->io != HAUL_IO_AUTO ||
         args->slots != 0 || args->slot_bytes != 0 || (args->nvme_durable && !args->plan_only)))
        return contradiction("--nvme-mem, --nvme-durable, --io, --slots and --slot-bytes need "
                             "--nvme: otherwise nothing rests on nvme");
    if (args->nnvme_dirs != 0 && args->offload == HAUL_OFFLOAD_NONE && args->stash_mem_bytes == 0)
        return contradiction("--nvme needs --offload optimizer or all, or --stash-mem: otherwise "
                             "everything stays on the device");
    return EXIT_OK;
}

static int check_stash(const struct args *args)
{
    if (args->stash_mem_bytes != 0 && !args->stash)
        return contradiction("--stash-mem needs --stash: otherwise nothing is stashed");
    if (args->stash_mem_bytes != 0 && args->nnvme_dirs == 0)
        return contradiction("--stash-mem needs --nvme, for what it has no room for");
    return EXIT_OK;
}

static int check_dtypes(struct args *args)
{
    if (args->grad_dtype == HAUL_DTYPE_NONE)
        args->grad_dtype = args->dtype;
    if (args->dtype == HAUL_FP32 && args->grad_dtype != HAUL_FP32)
        return contradiction("--grad-dtype bf16 or fp16 with --dtype fp32: FP32 parameters have "
                             "FP32 gradients");
    if (args->master == HAUL_MASTER_SPLIT && args->dtype != HAUL_BF16)
        return contradiction("--master split needs --dtype bf16: the parameter is the upper half "
                             "of its master");
    return EXIT_OK;
}

/* Where a file that does not exist yet would be. */
static int place_of(const char *path, struct stat *folder, char name[PATH_MAX])
{
    char copy[PATH_MAX];

    if (strlen(path) >= sizeof copy)
        return -ENAMETOOLONG;
    strcpy(name, basename(strcpy(copy, path)));
    return stat(dirname(strcpy(copy, path)), folder) < 0 ? -errno : 0;
}

/* By any two names, whether it exists or not. */
static bool same_file(const char *a, const char *b)
{
    char name_a[PATH_MAX], name_b[PATH_MAX];
    struct stat sa, sb;
    int found = (stat(a, &sa) == 0) + (stat(b, &sb) == 0);

    if (found == 1)
        return false;
    if (found == 0 && (place_of(a, &sa, name_a) < 0 || place_of(b, &sb, name_b) < 0 ||
                       strcmp(name_a, name_b) != 0))
        return false;
    return sa.st_dev == sb.st_dev && sa.st_ino == sb.st_ino;
}

/* A long run must not end with a name that cannot be written. */
static int check_weights(const struct args *args)
{
    const char *const paths[] = {args->dump_init, args->export};
    static const char suffix[] = ".safetensors";
    struct stat folder;
    char name[PATH_MAX];

    for (unsigned i = 0; i < 2; i++) {
        size_t n = paths[i] == NULL ? 0 : strlen(paths[i]);

        if (paths[i] != NULL &&
            (n < sizeof suffix || strcmp(paths[i] + n - (sizeof suffix - 1), suffix) != 0))
            return usage(i == 0 ? "dump-init" : "export", "takes a name that ends in .safetensors",
                         paths[i]);
        if (paths[i] != NULL && (place_of(paths[i], &folder, name) < 0 || !S_ISDIR(folder.st_mode)))
            return usage(i == 0 ? "dump-init" : "export", "takes a file in a folder that is there",
                         paths[i]);
    }
    if (args->plan_only && (args->dump_init != NULL || args->export != NULL))
        return contradiction("--plan-only has no weights: leave out --dump-init and --export");
    return EXIT_OK;
}

static int check_bench(struct args *args)
{
    if (args->steps == 0)
        args->steps = args->bench ? BENCH_STEPS : STEPS;
    if (args->json && !args->bench)
        return contradiction("--json needs --bench; a run's steps go to --jsonl FILE");
    if (!args->bench)
        return EXIT_OK;
    if (args->offload != HAUL_OFFLOAD_ALL)
        return contradiction("--bench runs every --offload: leave that flag out");
    if (args->no_overlap || args->plan_only || args->digest || args->jsonl != NULL ||
        args->trace != NULL || args->dump_init != NULL || args->export != NULL ||
        args->save != NULL || args->resume != NULL || args->nvme_durable)
        return contradiction("--bench prints its own figures and keeps no state: leave out "
                             "--no-overlap, --plan-only, --digest, --jsonl, --trace, --dump-init, "
                             "--export, --save, --resume and --nvme-durable");
    if (args->steps > OFFLOAD_MAX_STEPS)
        return contradiction("--bench measures at most 1000 --steps");
    return EXIT_OK;
}

static int check_saves(const struct args *args)
{
    if (args->save == NULL && args->save_every != 0)
        return contradiction("--save-every needs --save, the folder");
    if (args->resume != NULL && (args->init != NULL || args->dump_init != NULL))
        return contradiction("--resume has the weights of the checkpoint: leave out --init and "
                             "--dump-init");
    if (args->plan_only && (args->save != NULL || args->resume != NULL))
        return contradiction("--plan-only has no state: leave out --save and --resume");
    return EXIT_OK;
}

/* Flags that cannot stand together; fills in what depends on another flag. */
static int check(struct args *args)
{
    if (args->dim % args->heads != 0) {
        fprintf(stderr, "train_gpt: --dim %llu is not divisible by --heads %llu\n",
                (unsigned long long)args->dim, (unsigned long long)args->heads);
        return EXIT_USAGE;
    }
    if (args->batch % args->accum != 0) {
        fprintf(stderr, "train_gpt: --batch %llu is not divisible by --accum %llu\n",
                (unsigned long long)args->batch, (unsigned long long)args->accum);
        return EXIT_USAGE;
    }
    if (args->batch / args->accum * args->seq > INT32_MAX)
        return contradiction("--batch / --accum * --seq: over 2^31 tokens in a micro-batch");
    if (check_nvme(args) != EXIT_OK || check_stash(args) != EXIT_OK ||
        check_dtypes(args) != EXIT_OK || check_weights(args) != EXIT_OK ||
        check_saves(args) != EXIT_OK || check_bench(args) != EXIT_OK)
        return EXIT_USAGE;
    if (args->ranks > 1 && !args->plan_only)
        return contradiction(
            "--ranks plans only; to train with N ranks: mpirun -n N train_gpt ...");
    if (args->device == DEVICE_CUDA && args->link_gbps > 0)
        return contradiction("--link-gbps needs --device host: a GPU's link is as fast as it is");
    if (!isfinite((float)args->lr))
        return contradiction("--lr: takes a number that FP32 holds, at most 3.4e38");
    if (args->jsonl != NULL && args->trace != NULL && same_file(args->jsonl, args->trace))
        return contradiction("--jsonl and --trace: the same file; each needs one of its own");
    if (args->plan_only && (args->digest || args->jsonl != NULL || args->trace != NULL))
        return contradiction("--plan-only trains nothing: leave out --digest, --jsonl and --trace");
    return EXIT_OK;
}

/* The file of --config, which is read before the flags. */
static int read_settings(int argc, char **argv, struct args *args)
{
    const struct flag *flag;
    char *value;

    for (int i = 1; i < argc; i++) {
        flag = strncmp(argv[i], "--", 2) == 0 ? find_flag(argv[i], &value) : NULL;
        if (flag != NULL && flag->offset == AT(config))
            args->config = value != NULL ? value : argv[i + 1];
    }
    return args->config != NULL ? settings_read(args->config, args) : EXIT_OK;
}

static int parse_words(int argc, char **argv, struct args *args)
{
    int used, rc = EXIT_OK;

    for (int i = 1; rc == EXIT_OK && i < argc; i += used)
        rc = parse_word(argv, i, args, &used);
    return rc == EXIT_OK && !args->help ? check(args) : rc;
}

int args_parse(int argc, char **argv, struct args *out)
{
    struct args args = {.layers = 4,
                        .dim = 128,
                        .heads = 4,
                        .seq = 128,
                        .vocab = 256,
                        .batch = 8,
                        .accum = 1,
                        .stage = 3,
                        .seed = 1,
                        .lr = 0.002,
                        .weight_decay = 0.01,
                        .loss_scale = 65536,
                        .loss_scale_window = 2000,
                        .clip = 1,
                        .save_keep = 2,
                        .device = compute_device,
                        .offload = HAUL_OFFLOAD_ALL,
                        .dtype = HAUL_BF16};
    int rc;

    haul_optim_init(&args.optim, HAUL_ADAMW);
    args.optim.beta2 = 0.95;
    rc = read_settings(argc, argv, &args);
    if (rc == EXIT_OK)
        rc = parse_words(argc, argv, &args);
    if (rc == EXIT_OK)
        *out = args;
    else
        haul_config_close(args.settings);
    return rc;
}

void args_print_help(void)
{
    puts("train_gpt: train a GPT on the bytes of any file, its state carried by haul.\n\n"
         "usage: train_gpt [--flag value | --flag=value]...\n");
    for (size_t f = 0; f < NFLAGS; f++) {
        const char *words = strstr(flags[f].help, "  ");
        char left[64];
        int n = words == NULL ? 0 : (int)(words - flags[f].help);

        snprintf(left, sizeof left, "--%s %.*s", flags[f].name, n, flags[f].help);
        printf("  %-28s %s\n", left, words == NULL ? flags[f].help + 1 : words + 2);
    }
    puts("\nSeveral ranks: mpirun -n N train_gpt ... Open MPI as root, in a container, with more "
         "ranks than "
         "cores:\n  mpirun --allow-run-as-root --oversubscribe "
         "--mca btl_vader_single_copy_mechanism none -n N train_gpt ...\n"
         "A rank that does not answer for TRAIN_GPT_TIMEOUT_S seconds (600) ends the others.");
}
