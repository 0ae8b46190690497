/*
 * haul/config.h: settings from a file that people already have, the environment and the command line.
 *
 * A DeepSpeed ds_config.json is read as it is: what haul has a counterpart for takes effect, what it has
 * none for is named in a note. haul's own keys stand beside it in an object "haul":
 *
 *     { "zero_optimization": { "stage": 3, "offload_optimizer": { "device": "cpu" } },
 *       "bf16": { "enabled": true }, "gradient_clipping": 1.0,
 *       "haul": { "host_mem": "200GB", "master": "split" } }
 *
 * Of one setting, a flag counts before the environment (HAUL_HOST_MEM for host_mem), that before
 * the "haul" object, that before DeepSpeed's keys, and those before the default.
 *
 *     struct haul_config *config;
 *     rc = haul_config_load("ds_config.json", NULL, &config);
 *     rc = haul_config_apply(config, &engine_opts, &step);
 *     ... haul_engine_open() ...
 *     haul_config_close(config);
 *
 * docs/configuration.md has every key.
 */
#ifndef HAUL_CONFIG_H
#define HAUL_CONFIG_H

#include "haul/engine.h"

#ifdef __cplusplus
extern "C" {
#endif

struct haul_config;

struct haul_config_opts {
    size_t struct_size;
    int strict;               /* 1: an unknown key is an error; 0 (default): a warning in the log */
    int no_environment;       /* 1: variables HAUL_... are not read; default 0 */
    const char *const *flags; /* (nflags,) "key=value" with haul's own keys; read at load, not kept */
    uint32_t nflags;
    uint32_t ranks;           /* N, which batch sizes must agree with; 0 (default): not known */
};

HAUL_API
void haul_config_opts_init(struct haul_config_opts *opts);

/**
 * Read a configuration.
 *
 * @param path  [in]  a JSON file of at most 1 MiB, or NULL: only environment and flags
 * @param opts  [in]  or NULL for the defaults
 * @param out   [out] end it with haul_config_close(); written only on success
 *
 * Units      sizes as haul_parse_size() reads them, or a number of bytes
 * Threads    any; the environment must not change meanwhile
 * Blocks     yes: reads the file
 * Errors     0, HAUL_E_CONFIG (text has the file and the key's path: wrong type, out of range, contradicting,
 *            or with strict unknown), -ENOENT, -EACCES, -ENOMEM, HAUL_E_ABI
 * Source     the configuration keys that DeepSpeed documents
 */
HAUL_API HAUL_MUST_USE
int haul_config_load(const char *path, const struct haul_config_opts *opts, struct haul_config **out);

/* The same from text in memory; name is for messages. */
HAUL_API HAUL_MUST_USE
int haul_config_parse(const char *name, const char *text, size_t bytes,
                      const struct haul_config_opts *opts, struct haul_config **out);

/* NULL is fine. */
HAUL_API
void haul_config_close(struct haul_config *config);

/* Effective values. Later versions append. */
struct haul_config_values {
    uint32_t stage;
    enum haul_offload offload;
    enum haul_master master;
    enum haul_dtype dtype;      /* of parameters */
    enum haul_dtype grad_dtype; /* in which gradients travel */
    struct haul_optim optim;
    double lr, weight_decay;    /* for a trainer without a schedule of its own */
    double clip_norm;           /* 0: no clipping */
    double loss_scale;          /* first one; 0: none */
    uint32_t loss_scale_window;
    uint64_t train_batch, micro_batch, accumulation; /* sequences of all ranks in a step, of one rank in a
                                                        micro-batch, micro-batches; 0: not said */
    uint64_t device_mem_bytes, host_mem_bytes, nvme_mem_bytes; /* HAUL_AUTO, HAUL_UNLIMITED or bytes */
    const char *const *nvme_dirs; /* (nnvme_dirs,) valid until close */
    uint32_t nnvme_dirs;
    uint32_t slots, window, max_held, passes, nthreads; /* window, nthreads 0: the engine's default */
    uint64_t slot_bytes;                                /* likewise */
    int overlap;
    enum haul_io_method io_method;
};

/* The effective values, owned by config. */
HAUL_API
const struct haul_config_values *haul_config_values(const struct haul_config *config);

enum haul_config_source {
    HAUL_CONFIG_DEFAULT = 0, HAUL_CONFIG_FILE, HAUL_CONFIG_ENVIRONMENT, HAUL_CONFIG_FLAG
};

struct haul_config_setting {
    size_t struct_size;
    const char *key;   /* haul's own, as in "haul": { } */
    const char *value; /* effective, as text that may stand there; texts are valid until close */
    enum haul_config_source source;
    const char *where; /* the file's key, the variable or the flag; of a default why, or "" */
};

/* Settings there are. */
HAUL_API
uint32_t haul_config_count(const struct haul_config *config);

/* Setting i. Errors  0, -EINVAL (no such setting), HAUL_E_ABI (struct_size; set it before the call) */
HAUL_API HAUL_MUST_USE
int haul_config_get_setting(const struct haul_config *config, uint32_t i,
                            struct haul_config_setting *out);

/* What was read and has no effect, or another one than where it comes from: one sentence each. NULL past
 * the last. */
HAUL_API
const char *haul_config_note(const struct haul_config *config, uint32_t i);

/**
 * Put the values into options for an engine and into a step.
 *
 * Only fields that a configuration has change; the rest stays as the init functions left it.
 *
 * @param opts  [in,out] initialised; nvme_dirs then points into config, which must live until
 *                       haul_engine_open(). May be NULL
 * @param step  [in,out] learning rate, decay, clip norm. May be NULL
 *
 * Errors     0, -EINVAL, HAUL_E_ABI (opts not initialised)
 */
HAUL_API HAUL_MUST_USE
int haul_config_apply(const struct haul_config *config, struct haul_engine_opts *opts,
                      struct haul_step *step);

#ifdef __cplusplus
}
#endif
#endif
