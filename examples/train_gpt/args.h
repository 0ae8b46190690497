/*
 * args.h: the command line of train_gpt.
 */
#ifndef TRAIN_GPT_ARGS_H
#define TRAIN_GPT_ARGS_H

#include <stdbool.h>
#include <stdint.h>
#include "haul/haul.h"

enum model { MODEL_OWN = 0, MODEL_GPT2, MODEL_7B, MODEL_13B, MODEL_70B };
enum order { ORDER_LAYER = 0, ORDER_BATCH };
enum device_kind { DEVICE_HOST = 0, DEVICE_CUDA };

/* Exit codes of the project's programs. */
enum { EXIT_OK = 0, EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_ENVIRONMENT = 3 };

struct args {
    const char *data;                      /* NULL: the project's own text */
    const char *jsonl;                     /* NULL: none */
    const char *trace;                     /* NULL: none */
    const char *init, *dump_init, *export; /* NULL: none */
    const char *save, *resume;             /* NULL: none */
    uint64_t save_every;                   /* 0: at the end alone */
    uint64_t save_keep;                    /* 0: all */
    bool with_digest;                      /* all ranks form it, for --digest or --jsonl */
    uint64_t steps, layers, dim, heads, seq;
    uint64_t vocab; /* 256: bytes; more: GPT-2's tokens, of which data has those of bytes */
    uint64_t batch; /* sequences in a step */
    uint64_t accum; /* micro-batches in a step */
    uint64_t stage, window, threads, seed;
    uint64_t ranks; /* --plan-only: as if there were so many; training: how many there are */
    uint32_t rank;
    uint64_t device_mem_bytes, host_mem_bytes, nvme_mem_bytes; /* 0: whatever there is */
    const char *nvme_dirs[HAUL_MAX_DIRS]; /* (nnvme_dirs,) parts of the command line */
    uint32_t nnvme_dirs;                  /* 0: no nvme tier */
    bool nvme_durable;                    /* records stay there */
    uint64_t slots, slot_bytes;           /* 0: the engine's defaults */
    uint64_t stash_mem_bytes;             /* 0: all of the stash */
    const char *config;                   /* NULL: none */
    struct haul_config *settings;         /* what it says; NULL: none */
    struct haul_optim optim;
    double weight_decay; /* of matrices */
    double loss_scale;   /* the first, where gradients travel in FP16 */
    uint32_t loss_scale_window;
    double lr, clip, link_gbps; /* clip 0: none; link_gbps 0: as fast as memcpy */
    unsigned model;             /* enum model */
    unsigned order;             /* enum order */
    unsigned device;            /* enum device_kind */
    unsigned offload;           /* enum haul_offload */
    unsigned dtype, grad_dtype; /* enum haul_dtype */
    unsigned master;            /* enum haul_master */
    unsigned share;             /* enum haul_share */
    unsigned io;                /* enum haul_io_method */
    bool stash, no_recompute, no_overlap, digest, quiet, plan_only, bench, json, help;
};

/**
 * Read the command line. Cuts the value of --nvme at its commas.
 *
 * @param out  [out] every field set, defaults where no flag was given
 *
 * Returns EXIT_OK, or EXIT_USAGE after one line on stderr.
 */
int args_parse(int argc, char **argv, struct args *out);

/* The flags, one a line, on stdout. */
void args_print_help(void);

#endif
