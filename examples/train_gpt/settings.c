/* settings.c: see settings.h. */
#include "settings.h"

#include <stdio.h>
#include <string.h>

/* Somebody has said it: it is not merely the default. */
static bool is_said(const struct haul_config *config, const char *key)
{
    struct haul_config_setting setting = {.struct_size = sizeof setting};

    for (uint32_t i = 0; haul_config_get_setting(config, i, &setting) == 0; i++)
        if (strcmp(setting.key, key) == 0)
            return setting.source != HAUL_CONFIG_DEFAULT;
    return false;
}

static uint64_t budget(uint64_t bytes)
{
    return bytes == HAUL_UNLIMITED ? 0 : bytes;
}

static void take_placement(const struct haul_config_values *v, struct args *args)
{
    args->stage = v->stage;
    args->offload = v->offload;
    args->master = v->master;
    args->device_mem_bytes = budget(v->device_mem_bytes);
    args->host_mem_bytes = budget(v->host_mem_bytes);
    args->nvme_mem_bytes = budget(v->nvme_mem_bytes);
    args->nnvme_dirs = v->nnvme_dirs;
    for (uint32_t i = 0; i < v->nnvme_dirs; i++)
        args->nvme_dirs[i] = v->nvme_dirs[i];
    args->slot_bytes = v->slot_bytes;
    args->window = v->window;
    args->threads = v->nthreads;
    args->no_overlap = !v->overlap;
    args->io = v->io_method;
}

/* Of what train_gpt has defaults of its own for, only what somebody has said. */
static void take_training(const struct haul_config *config, const struct haul_config_values *v,
                          struct args *args)
{
    static const char *const hyper[] = {"optimizer", "beta1",    "beta2",          "eps",
                                        "momentum",  "nesterov", "bias_correction"};

    for (unsigned i = 0; i < sizeof hyper / sizeof *hyper; i++)
        if (is_said(config, hyper[i]))
            args->optim = v->optim;
    args->lr = is_said(config, "lr") ? v->lr : args->lr;
    args->clip = is_said(config, "clip_norm") ? v->clip_norm : args->clip;
    args->weight_decay = is_said(config, "weight_decay") ? v->weight_decay : args->weight_decay;
    args->slots = is_said(config, "slots") ? v->slots : args->slots;
    args->dtype = v->dtype;
    args->grad_dtype = is_said(config, "grad_dtype") ? v->grad_dtype : HAUL_DTYPE_NONE;
    args->loss_scale = v->loss_scale != 0 ? v->loss_scale : args->loss_scale;
    args->loss_scale_window = v->loss_scale_window;
}

static void take_batches(const struct haul_config_values *v, struct args *args)
{
    if (v->accumulation != 0)
        args->accum = v->accumulation;
    if (v->train_batch != 0)
        args->batch = v->train_batch;
    else if (v->micro_batch != 0)
        args->batch = v->micro_batch * args->accum;
}

int settings_read(const char *path, struct args *args)
{
    struct haul_config *config;
    int rc = haul_config_load(path, NULL, &config);

    if (rc < 0) {
        fprintf(stderr, "train_gpt: --config: %s\n", haul_last_error());
        return rc == HAUL_E_CONFIG ? EXIT_USAGE : EXIT_FAILED;
    }
    take_placement(haul_config_values(config), args);
    take_training(config, haul_config_values(config), args);
    take_batches(haul_config_values(config), args);
    args->settings = config;
    return EXIT_OK;
}
