/* config_deepspeed.c: the keys that DeepSpeed documents, and the walk over a file that has them. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "config_state.h"
#include "fail.h"
#include "json_text.h"
#include "nearest_word.h"

struct row {
    const char *path;
    enum hl_ds_kind kind;
    enum hl_ds_key key; /* HL_DS_NONE: known, and without a counterpart here */
    double min, max;
};

#define ANY_COUNT 0, 0x1p62
#define ZERO      "zero_optimization."
#define OPT       ZERO "offload_optimizer."
#define PARAM     ZERO "offload_param."
#define ADAM      "optimizer.params."

/* clang-format off */
static const struct row rows[] = {
    {"train_batch_size", HL_DS_COUNT, HL_DS_TRAIN_BATCH, 1, 0x1p62},
    {"train_micro_batch_size_per_gpu", HL_DS_COUNT, HL_DS_MICRO_BATCH, 1, 0x1p62},
    {"gradient_accumulation_steps", HL_DS_COUNT, HL_DS_ACCUMULATION, 1, 0x1p62},
    {"gradient_clipping", HL_DS_REAL, HL_DS_CLIPPING, 0, 3.4e38},
    {"communication_data_type", HL_DS_TEXT, HL_DS_COMM_DTYPE, 0, 0},
    {"prescale_gradients", HL_DS_SWITCH, 0, 0, 0},
    {"gradient_predivide_factor", HL_DS_REAL, 0, 0, 3.4e38},
    {"gradient_allreduce_op", HL_DS_TEXT, 0, 0, 0},
    {"managed_gradient_accumulation", HL_DS_SWITCH, 0, 0, 0},
    {"sparse_gradients", HL_DS_SWITCH, 0, 0, 0},
    {"disable_allgather", HL_DS_SWITCH, 0, 0, 0},
    {"zero_allow_untested_optimizer", HL_DS_SWITCH, 0, 0, 0},
    {"zero_force_ds_cpu_optimizer", HL_DS_SWITCH, 0, 0, 0},
    {"steps_per_print", HL_DS_COUNT, 0, ANY_COUNT},
    {"wall_clock_breakdown", HL_DS_SWITCH, 0, 0, 0},
    {"dump_state", HL_DS_SWITCH, 0, 0, 0},
    {"log_level", HL_DS_ANY, 0, 0, 0},
    {"vocabulary_size", HL_DS_COUNT, 0, ANY_COUNT},
    {"sequence_parallel_size", HL_DS_COUNT, 0, ANY_COUNT},
    {"memory_breakdown", HL_DS_SWITCH, 0, 0, 0},
    {"dataloader_drop_last", HL_DS_SWITCH, 0, 0, 0},
    {"seq_parallel_communication_data_type", HL_DS_TEXT, 0, 0, 0},
    {"graph_harvesting", HL_DS_SWITCH, 0, 0, 0},
    {"use_data_before_expert_parallelism", HL_DS_SWITCH, 0, 0, 0},
    {"bf16.enabled", HL_DS_SWITCH, HL_DS_BF16, 0, 0},
    {"bf16.immediate_grad_update", HL_DS_SWITCH, 0, 0, 0},
    {"bf16.check_grad_overflow", HL_DS_SWITCH, 0, 0, 0},
    {"bf16.bf16_master_weights_and_grads", HL_DS_SWITCH, 0, 0, 0},
    {"bf16.bf16_optimizer_states", HL_DS_SWITCH, 0, 0, 0},
    {"bfloat16.enabled", HL_DS_SWITCH, HL_DS_BF16, 0, 0},
    {"fp16.enabled", HL_DS_SWITCH, HL_DS_FP16, 0, 0},
    {"fp16.auto_cast", HL_DS_SWITCH, 0, 0, 0},
    {"fp16.loss_scale", HL_DS_REAL, HL_DS_LOSS_SCALE, 0, 3.4e38},
    {"fp16.initial_scale_power", HL_DS_COUNT, HL_DS_SCALE_POWER, 0, 127},
    {"fp16.loss_scale_window", HL_DS_COUNT, HL_DS_SCALE_WINDOW, 1, 4294967295.0},
    {"fp16.hysteresis", HL_DS_COUNT, HL_DS_HYSTERESIS, ANY_COUNT},
    {"fp16.consecutive_hysteresis", HL_DS_SWITCH, 0, 0, 0},
    {"fp16.min_loss_scale", HL_DS_REAL, HL_DS_MIN_SCALE, 0, 3.4e38},
    {"fp16.fp16_master_weights_and_grads", HL_DS_SWITCH, 0, 0, 0},
    {"optimizer.type", HL_DS_TEXT, HL_DS_OPTIMIZER, 0, 0},
    {"optimizer.legacy_fusion", HL_DS_SWITCH, 0, 0, 0},
    {ADAM "lr", HL_DS_REAL, HL_DS_LR, 0, 3.4e38},
    {ADAM "betas", HL_DS_LIST, HL_DS_BETAS, 0, 0},
    {ADAM "eps", HL_DS_REAL, HL_DS_EPS, 0, 3.4e38},
    {ADAM "weight_decay", HL_DS_REAL, HL_DS_WEIGHT_DECAY, 0, 3.4e38},
    {ADAM "bias_correction", HL_DS_SWITCH, HL_DS_BIAS_CORRECTION, 0, 0},
    {ADAM "adam_w_mode", HL_DS_SWITCH, HL_DS_ADAM_W_MODE, 0, 0},
    {ADAM "amsgrad", HL_DS_SWITCH, HL_DS_AMSGRAD, 0, 0},
    {ADAM "momentum", HL_DS_REAL, HL_DS_MOMENTUM, 0, 3.4e38},
    {ADAM "nesterov", HL_DS_SWITCH, HL_DS_NESTEROV, 0, 0},
    {ADAM "torch_adam", HL_DS_SWITCH, 0, 0, 0},
    {ADAM "fused", HL_DS_SWITCH, 0, 0, 0},
    {ADAM "foreach", HL_DS_SWITCH, 0, 0, 0},
    {ADAM "set_grad_none", HL_DS_SWITCH, 0, 0, 0},
    {ADAM "fp32_optimizer_states", HL_DS_SWITCH, 0, 0, 0},
    {"scheduler", HL_DS_ANY, 0, 0, 0},
    {ZERO "stage", HL_DS_COUNT, HL_DS_STAGE, 0, 3},
    {ZERO "cpu_offload", HL_DS_SWITCH, HL_DS_CPU_OFFLOAD, 0, 0},
    {ZERO "cpu_offload_param", HL_DS_SWITCH, HL_DS_CPU_OFFLOAD_PARAM, 0, 0},
    {ZERO "cpu_offload_params", HL_DS_SWITCH, HL_DS_CPU_OFFLOAD_PARAM, 0, 0},
    {ZERO "cpu_offload_use_pin_memory", HL_DS_SWITCH, 0, 0, 0},
    {OPT "device", HL_DS_TEXT, HL_DS_OPT_DEVICE, 0, 0},
    {OPT "nvme_path", HL_DS_TEXT, HL_DS_OPT_NVME_PATH, 0, 0},
    {OPT "buffer_count", HL_DS_COUNT, HL_DS_OPT_BUFFER_COUNT, ANY_COUNT},
    {OPT "buffer_size", HL_DS_COUNT, 0, ANY_COUNT},
    {OPT "ratio", HL_DS_REAL, HL_DS_OPT_RATIO, 0, 1},
    {OPT "pin_memory", HL_DS_SWITCH, 0, 0, 0},
    {OPT "pipeline", HL_DS_SWITCH, 0, 0, 0},
    {OPT "pipeline_read", HL_DS_SWITCH, 0, 0, 0},
    {OPT "pipeline_write", HL_DS_SWITCH, 0, 0, 0},
    {OPT "fast_init", HL_DS_SWITCH, 0, 0, 0},
    {OPT "super_offload", HL_DS_SWITCH, 0, 0, 0},
    {OPT "convert_grad_on_cpu", HL_DS_SWITCH, 0, 0, 0},
    {OPT "cpuadam_cores_perc", HL_DS_REAL, 0, 0, 1},
    {PARAM "device", HL_DS_TEXT, HL_DS_PARAM_DEVICE, 0, 0},
    {PARAM "nvme_path", HL_DS_TEXT, HL_DS_PARAM_NVME_PATH, 0, 0},
    {PARAM "buffer_count", HL_DS_COUNT, 0, ANY_COUNT},
    {PARAM "buffer_size", HL_DS_COUNT, 0, ANY_COUNT},
    {PARAM "max_in_cpu", HL_DS_COUNT, 0, ANY_COUNT},
    {PARAM "pin_memory", HL_DS_SWITCH, 0, 0, 0},
    {ZERO "sub_group_size", HL_DS_COUNT, 0, ANY_COUNT},
    {ZERO "allgather_partitions", HL_DS_SWITCH, 0, 0, 0},
    {ZERO "allgather_bucket_size", HL_DS_COUNT, 0, ANY_COUNT},
    {ZERO "overlap_comm", HL_DS_SWITCH, 0, 0, 0},
    {ZERO "reduce_scatter", HL_DS_SWITCH, 0, 0, 0},
    {ZERO "reduce_bucket_size", HL_DS_COUNT, 0, ANY_COUNT},
    {ZERO "contiguous_gradients", HL_DS_SWITCH, 0, 0, 0},
    {ZERO "use_multi_rank_bucket_allreduce", HL_DS_SWITCH, 0, 0, 0},
    {ZERO "load_from_fp32_weights", HL_DS_SWITCH, 0, 0, 0},
    {ZERO "elastic_checkpoint", HL_DS_SWITCH, 0, 0, 0},
    {ZERO "round_robin_gradients", HL_DS_SWITCH, 0, 0, 0},
    {ZERO "ignore_unused_parameters", HL_DS_SWITCH, 0, 0, 0},
    {ZERO "legacy_stage1", HL_DS_SWITCH, 0, 0, 0},
    {ZERO "compute_grad_norm", HL_DS_SWITCH, 0, 0, 0},
    {ZERO "parameter_alignment", HL_DS_SWITCH, 0, 0, 0},
    {ZERO "stage3_max_live_parameters", HL_DS_COUNT, 0, ANY_COUNT},
    {ZERO "stage3_max_reuse_distance", HL_DS_COUNT, 0, ANY_COUNT},
    {ZERO "stage3_prefetch_bucket_size", HL_DS_COUNT, 0, ANY_COUNT},
    {ZERO "stage3_param_persistence_threshold", HL_DS_COUNT, 0, ANY_COUNT},
    {ZERO "stage3_model_persistence_threshold", HL_DS_COUNT, 0, 0, 0x1p63},
    {ZERO "stage3_gather_16bit_weights_on_model_save", HL_DS_SWITCH, 0, 0, 0},
    {ZERO "stage3_gather_fp16_weights_on_model_save", HL_DS_SWITCH, 0, 0, 0},
    {ZERO "stage3_module_granularity_threshold", HL_DS_COUNT, 0, ANY_COUNT},
    {ZERO "stage3_use_all_reduce_for_fetch_params", HL_DS_SWITCH, 0, 0, 0},
    {ZERO "stage3_allgather_sequential", HL_DS_SWITCH, 0, 0, 0},
    {ZERO "prefetch_bucket_size", HL_DS_COUNT, 0, ANY_COUNT},
    {ZERO "param_persistence_threshold", HL_DS_COUNT, 0, ANY_COUNT},
    {ZERO "model_persistence_threshold", HL_DS_COUNT, 0, 0, 0x1p63},
    {ZERO "max_live_parameters", HL_DS_COUNT, 0, ANY_COUNT},
    {ZERO "max_reuse_distance", HL_DS_COUNT, 0, ANY_COUNT},
    {ZERO "gather_16bit_weights_on_model_save", HL_DS_SWITCH, 0, 0, 0},
    {ZERO "module_granularity_threshold", HL_DS_COUNT, 0, ANY_COUNT},
    {ZERO "use_all_reduce_for_fetch_params", HL_DS_SWITCH, 0, 0, 0},
    {ZERO "allgather_sequential", HL_DS_SWITCH, 0, 0, 0},
    {ZERO "stage3_partition_stream_chunk_size", HL_DS_COUNT, 0, ANY_COUNT},
    {ZERO "save_muon_momentum_buffer_in_memory", HL_DS_SWITCH, 0, 0, 0},
    {ZERO "zero_hpz_partition_size", HL_DS_COUNT, 0, ANY_COUNT},
    {ZERO "zero_quantized_weights", HL_DS_SWITCH, 0, 0, 0},
    {ZERO "zero_quantized_nontrainable_weights", HL_DS_SWITCH, 0, 0, 0},
    {ZERO "zero_quantized_gradients", HL_DS_SWITCH, 0, 0, 0},
    {ZERO "zeropp_loco_param", HL_DS_ANY, 0, 0, 0},
    {ZERO "mics_shard_size", HL_DS_ANY, 0, 0, 0},
    {ZERO "mics_hierarchical_params_gather", HL_DS_SWITCH, 0, 0, 0},
    {ZERO "memory_efficient_linear", HL_DS_SWITCH, 0, 0, 0},
    {ZERO "pipeline_loading_checkpoint", HL_DS_SWITCH, 0, 0, 0},
    {ZERO "override_module_apply", HL_DS_SWITCH, 0, 0, 0},
    {ZERO "log_trace_cache_warnings", HL_DS_SWITCH, 0, 0, 0},
    {ZERO "enable_sanity_checks", HL_DS_SWITCH, 0, 0, 0},
    {ZERO "leaf_module", HL_DS_ANY, 0, 0, 0},
    {ZERO "zenflow", HL_DS_ANY, 0, 0, 0},
    {"aio.block_size", HL_DS_COUNT, 0, ANY_COUNT},
    {"aio.queue_depth", HL_DS_COUNT, 0, ANY_COUNT},
    {"aio.thread_count", HL_DS_COUNT, 0, ANY_COUNT},
    {"aio.intra_op_parallelism", HL_DS_COUNT, 0, ANY_COUNT},
    {"aio.single_submit", HL_DS_SWITCH, 0, 0, 0},
    {"aio.overlap_events", HL_DS_SWITCH, 0, 0, 0},
    {"aio.use_gds", HL_DS_SWITCH, 0, 0, 0},
    {"activation_checkpointing", HL_DS_ANY, 0, 0, 0},
    {"amp", HL_DS_ANY, 0, 0, 0},
    {"autotuning", HL_DS_ANY, 0, 0, 0},
    {"checkpoint", HL_DS_ANY, 0, 0, 0},
    {"comet", HL_DS_ANY, 0, 0, 0},
    {"comms_logger", HL_DS_ANY, 0, 0, 0},
    {"compile", HL_DS_ANY, 0, 0, 0},
    {"compression_training", HL_DS_ANY, 0, 0, 0},
    {"csv_monitor", HL_DS_ANY, 0, 0, 0},
    {"curriculum_learning", HL_DS_ANY, 0, 0, 0},
    {"data_efficiency", HL_DS_ANY, 0, 0, 0},
    {"data_types", HL_DS_ANY, 0, 0, 0},
    {"eigenvalue", HL_DS_ANY, 0, 0, 0},
    {"elasticity", HL_DS_ANY, 0, 0, 0},
    {"expert_parallel", HL_DS_ANY, 0, 0, 0},
    {"flops_profiler", HL_DS_ANY, 0, 0, 0},
    {"hybrid_engine", HL_DS_ANY, 0, 0, 0},
    {"monitor_config", HL_DS_ANY, 0, 0, 0},
    {"nebula", HL_DS_ANY, 0, 0, 0},
    {"pipeline", HL_DS_ANY, 0, 0, 0},
    {"progressive_layer_drop", HL_DS_ANY, 0, 0, 0},
    {"quantize_training", HL_DS_ANY, 0, 0, 0},
    {"sparse_attention", HL_DS_ANY, 0, 0, 0},
    {"tensor_parallel", HL_DS_ANY, 0, 0, 0},
    {"tensorboard", HL_DS_ANY, 0, 0, 0},
    {"timers", HL_DS_ANY, 0, 0, 0},
    {"torch_autocast", HL_DS_ANY, 0, 0, 0},
    {"wandb", HL_DS_ANY, 0, 0, 0},
    {"weight_quantization", HL_DS_ANY, 0, 0, 0},
};
/* clang-format on */

#define NROWS      (sizeof rows / sizeof *rows)
#define PATH_BYTES HL_WHERE_BYTES

/* A key's place in the file; longer ones are cut. */
struct walk {
    struct haul_config *config;
    struct hl_ds *ds;
};

static struct hl_origin at_path(const struct hl_ds *ds, const char *path)
{
    struct hl_origin at = {HAUL_CONFIG_FILE, ds->file, ""};

    hl_json_shown(path, at.where, sizeof at.where);
    return at;
}

/* ---- values ---- */

static int wrong_type(const struct hl_origin *at, const struct row *r)
{
    static const char *const wanted[] = {
        [HL_DS_COUNT] = "a whole number", [HL_DS_REAL] = "a number",
        [HL_DS_SWITCH] = "true or false", [HL_DS_TEXT] = "a text",
        [HL_DS_LIST] = "a list",          [HL_DS_ANY] = "anything"};

    return hl_config_refuse(at, "is of the wrong type; %s", wanted[r->kind]);
}

static int take_number(const struct row *r, const json_t *value, const struct hl_origin *at,
                       struct hl_ds_value *out)
{
    double x = json_number_value(value);

    if (!json_is_number(value))
        return wrong_type(at, r);
    if (r->kind == HL_DS_COUNT && x != floor(x))
        return hl_config_refuse(at, "is %.17g; a whole number", x);
    if (!(x >= r->min && x <= r->max))
        return hl_config_refuse(at, "is %.17g; %.10g to %.10g", x, r->min, r->max);
    out->number = x;
    return 0;
}

static int take_value(const struct row *r, const json_t *value, const struct hl_origin *at,
                      struct hl_ds_value *out)
{
    const char *text = json_string_value(value);

    out->path = r->path;
    out->given = 1;
    if (text && strcmp(text, "auto") == 0) {
        out->given = 2;
        return 0;
    }
    switch (r->kind) {
    case HL_DS_COUNT:
    case HL_DS_REAL:
        return take_number(r, value, at, out);
    case HL_DS_SWITCH:
        out->number = json_is_true(value);
        return json_is_boolean(value) ? 0 : wrong_type(at, r);
    case HL_DS_TEXT:
        out->text = text;
        return text ? 0 : wrong_type(at, r);
    case HL_DS_LIST:
        out->json = value;
        return json_is_array(value) ? 0 : wrong_type(at, r);
    case HL_DS_ANY:
        break;
    }
    return 0;
}

static void add_unused(struct hl_ds *ds, const char *path)
{
    size_t n = strlen(ds->unused);

    ds->nunused++;
    if (n + strlen(path) + 3 < sizeof ds->unused)
        snprintf(ds->unused + n, sizeof ds->unused - n, "%s%s", n ? ", " : "", path);
}

static int take_row(struct walk *w, const struct row *r, const json_t *value)
{
    struct hl_origin at = at_path(w->ds, r->path);
    struct hl_ds_value taken = {0};
    int rc;

    if (json_is_null(value))
        return 0;
    rc = take_value(r, value, &at, &taken);
    if (rc < 0)
        return rc;
    if (r->key != HL_DS_NONE)
        w->ds->v[r->key] = taken;
    else if (strcmp(r->path, "scheduler") == 0)
        return hl_config_note(w->config, "scheduler: not used; the trainer gives each step its "
                                         "learning rate");
    else
        add_unused(w->ds, r->path);
    return 0;
}

/* ---- keys ---- */

static const struct row *find_row(const char *path)
{
    for (size_t i = 0; i < NROWS; i++)
        if (strcmp(rows[i].path, path) == 0)
            return &rows[i];
    return NULL;
}

static int has_children(const char *path)
{
    size_t n = strlen(path);

    for (size_t i = 0; i < NROWS; i++)
        if (strncmp(rows[i].path, path, n) == 0 && rows[i].path[n] == '.')
            return 1;
    return 0;
}

/* The full path of the known key that was meant: beside it, else one of that name anywhere. */
static const char *nearest_path(const char *parent, const char *key, char out[PATH_BYTES])
{
    char buf[NROWS + 1][64];
    const char *words[NROWS + 1], *word;
    size_t n = strlen(parent);
    uint32_t nwords = 0;

    for (size_t i = 0; i < NROWS; i++)
        if (n == 0 || (strncmp(rows[i].path, parent, n) == 0 && rows[i].path[n] == '.')) {
            const char *rest = rows[i].path + n + (n > 0);

            snprintf(buf[nwords], sizeof *buf, "%.*s", (int)strcspn(rest, "."), rest);
            words[nwords] = buf[nwords];
            nwords++;
        }
    if (n == 0)
        words[nwords++] = "haul";
    word = hl_nearest_word(key, words, nwords);
    if (word) {
        snprintf(out, PATH_BYTES, "%s%s%s", parent, n ? "." : "", word);
        return out;
    }
    for (size_t i = 0; i < NROWS; i++) {
        const char *dot = strrchr(rows[i].path, '.');

        words[i] = dot ? dot + 1 : rows[i].path;
    }
    word = hl_nearest_word(key, words, NROWS);
    for (size_t i = 0; word && i < NROWS; i++)
        if (words[i] == word)
            return rows[i].path;
    return NULL;
}

static int unknown(struct walk *w, const char *parent, const char *key, const char *path)
{
    struct hl_origin at = at_path(w->ds, path);
    char near[PATH_BYTES], text[2 * PATH_BYTES + 80];
    const char *nearest = nearest_path(parent, key, near);

    if (nearest)
        snprintf(text, sizeof text, "is not a known key; did you mean %s?", nearest);
    else
        snprintf(text, sizeof text, "is not a known key");
    if (w->config->strict)
        return hl_config_refuse(&at, "%s", text);
    hl_log(HAUL_LOG_WARN, "%s: %s %s", at.file, at.where, text);
    return hl_config_note(w->config, "%s %s", at.where, text);
}

static int read_object(struct walk *w, const char *parent, json_t *object);

static int read_key(struct walk *w, const char *parent, const char *key, json_t *value)
{
    char path[PATH_BYTES];
    const struct row *r;
    struct hl_origin at;

    snprintf(path, sizeof path, "%s%s%s", parent, *parent ? "." : "", key);
    r = find_row(path);
    if (r)
        return take_row(w, r, value);
    if (!has_children(path))
        return unknown(w, parent, key, path);
    if (json_is_null(value))
        return 0;
    if (json_is_object(value))
        return read_object(w, path, value);
    at = at_path(w->ds, path);
    if (!json_is_boolean(value) || strcmp(path, "zero_optimization") != 0)
        return hl_config_refuse(&at, "is of the wrong type; an object");
    w->ds->v[HL_DS_STAGE] = (struct hl_ds_value){
        .given = 1, .number = json_is_true(value), .path = "zero_optimization"};
    return 0;
}

static int read_object(struct walk *w, const char *parent, json_t *object)
{
    const char *key;
    json_t *value;

    json_object_foreach (object, key, value) {
        int rc;

        if (!*parent && strcmp(key, "haul") == 0)
            continue;
        w->ds->any = 1;
        rc = read_key(w, parent, key, value);
        if (rc < 0)
            return rc;
    }
    return 0;
}

int hl_deepspeed_read(struct haul_config *c, const json_t *root, struct hl_ds *out)
{
    struct walk w = {c, out};
    int rc = read_object(&w, "", (json_t *)(uintptr_t)root);

    if (rc < 0 || !out->nunused)
        return rc;
    return hl_config_note(c, "%u keys have no counterpart here: %s", out->nunused, out->unused);
}
