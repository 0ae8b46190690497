/* config_resolve.c: what DeepSpeed's keys mean for haul's settings, and what settings must agree on. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "config_state.h"
#include "fail.h"
#include "json_text.h"

#define MOST_SCALE_POWER 24 /* of the engine's dynamic loss scale */

static struct hl_origin origin(const struct hl_ds *ds, enum hl_ds_key key)
{
    struct hl_origin at = {HAUL_CONFIG_FILE, ds->file, ""};

    snprintf(at.where, sizeof at.where, "%s", ds->v[key].path ? ds->v[key].path : "");
    return at;
}

static int is_set(const struct hl_ds *ds, enum hl_ds_key key)
{
    return ds->v[key].given == 1;
}

static int is_on(const struct hl_ds *ds, enum hl_ds_key key)
{
    return is_set(ds, key) && ds->v[key].number != 0;
}

/* A default that is not haul's own, because the file is DeepSpeed's. */
static int set_default(struct haul_config *c, enum hl_setting s, double value, const char *why)
{
    struct hl_origin at = {HAUL_CONFIG_DEFAULT, NULL, ""};

    snprintf(at.where, sizeof at.where, "%s", why);
    return hl_setting_from_number(c, s, value, &at);
}

static int pass_on(struct haul_config *c, const struct hl_ds *ds, enum hl_ds_key key,
                   enum hl_setting s)
{
    struct hl_origin at = origin(ds, key);

    if (ds->v[key].given == 2)
        snprintf(c->set[s].where, sizeof c->set[s].where, "%s is \"auto\"", ds->v[key].path);
    return is_set(ds, key) ? hl_setting_from_number(c, s, ds->v[key].number, &at) : 0;
}

/* ---- offload ---- */

enum place { KEPT, TO_HOST, TO_NVME };

static int take_device(const struct hl_ds *ds, enum hl_ds_key key, enum place *out)
{
    static const char *const names[] = {[KEPT] = "none", [TO_HOST] = "cpu", [TO_NVME] = "nvme"};
    struct hl_origin at = origin(ds, key);
    char shown[HL_SHOWN_BYTES];

    *out = KEPT;
    for (unsigned i = 0; is_set(ds, key) && i < 3; i++)
        if (strcmp(ds->v[key].text, names[i]) == 0) {
            *out = (enum place)i;
            return 0;
        }
    if (!is_set(ds, key))
        return 0;
    return hl_config_refuse(&at, "is \"%s\"; none, cpu or nvme",
                            hl_json_shown(ds->v[key].text, shown, sizeof shown));
}

static int has_dir(const struct haul_config *c, const char *dir)
{
    for (uint32_t i = 0; i < c->values.nnvme_dirs; i++)
        if (strcmp(c->dirs[i], dir) == 0)
            return 1;
    return 0;
}

/* The directory of one of the two, which may be the other's too. */
static int take_path(struct haul_config *c, const struct hl_ds *ds, enum place place,
                     enum hl_ds_key device, enum hl_ds_key path)
{
    struct hl_origin at = origin(ds, path), from = origin(ds, device);

    if (place != TO_NVME)
        return is_set(ds, path) ? hl_config_note(c, "%s: not used, since the device is not nvme",
                                                 ds->v[path].path)
                                : 0;
    if (!is_set(ds, path))
        return hl_config_refuse(&from, "is nvme, but nvme_path beside it names no directory");
    return has_dir(c, ds->v[path].text) ? 0 : hl_setting_add_dir(c, ds->v[path].text, &at);
}

static int set_offload(struct haul_config *c, const struct hl_ds *ds, enum place opt,
                       enum place param)
{
    enum hl_ds_key key = HL_DS_NONE;
    enum haul_offload offload = HAUL_OFFLOAD_NONE;
    struct hl_origin at;

    if (param != KEPT || is_on(ds, HL_DS_CPU_OFFLOAD_PARAM)) {
        key = param != KEPT ? HL_DS_PARAM_DEVICE : HL_DS_CPU_OFFLOAD_PARAM;
        offload = HAUL_OFFLOAD_ALL;
    } else if (opt != KEPT || is_on(ds, HL_DS_CPU_OFFLOAD)) {
        key = opt != KEPT ? HL_DS_OPT_DEVICE : HL_DS_CPU_OFFLOAD;
        offload = HAUL_OFFLOAD_OPTIMIZER;
    }
    if (key == HL_DS_NONE)
        return set_default(c, HL_SET_OFFLOAD, HAUL_OFFLOAD_NONE,
                           "no device in offload_optimizer or "
                           "offload_param");
    at = origin(ds, key);
    return hl_setting_from_number(c, HL_SET_OFFLOAD, offload, &at);
}

static int resolve_offload(struct haul_config *c, const struct hl_ds *ds)
{
    enum place opt, param;
    int rc = take_device(ds, HL_DS_OPT_DEVICE, &opt);

    if (rc == 0)
        rc = take_device(ds, HL_DS_PARAM_DEVICE, &param);
    if (rc == 0)
        rc = set_offload(c, ds, opt, param);
    if (rc == 0)
        rc = take_path(c, ds, opt, HL_DS_OPT_DEVICE, HL_DS_OPT_NVME_PATH);
    if (rc == 0)
        rc = take_path(c, ds, param, HL_DS_PARAM_DEVICE, HL_DS_PARAM_NVME_PATH);
    if (rc == 0 && param != KEPT && opt == KEPT)
        rc = hl_config_note(c, "%s: haul offloads records with parameters",
                            ds->v[HL_DS_PARAM_DEVICE].path);
    if (rc == 0 && (opt == TO_NVME || param == TO_NVME))
        rc = hl_config_note(c, "device nvme: what host_mem has room for stays in host memory");
    if (rc == 0 && is_set(ds, HL_DS_OPT_RATIO) && ds->v[HL_DS_OPT_RATIO].number < 1)
        rc = hl_config_note(c, "%s: not used; what device_mem has room for stays on the device",
                            ds->v[HL_DS_OPT_RATIO].path);
    if (rc == 0 && opt == TO_NVME && is_set(ds, HL_DS_OPT_BUFFER_COUNT) &&
        ds->v[HL_DS_OPT_BUFFER_COUNT].number >= 2)
        rc = pass_on(c, ds, HL_DS_OPT_BUFFER_COUNT, HL_SET_SLOTS);
    return rc;
}

/* ---- dtypes ---- */

static int resolve_loss_scale(struct haul_config *c, const struct hl_ds *ds)
{
    double power = is_set(ds, HL_DS_SCALE_POWER) ? ds->v[HL_DS_SCALE_POWER].number : 16;
    struct hl_origin at = origin(ds, HL_DS_SCALE_POWER), fixed = origin(ds, HL_DS_LOSS_SCALE);
    double scale = ds->v[HL_DS_LOSS_SCALE].number;
    int rc = 0;

    if (is_on(ds, HL_DS_LOSS_SCALE)) {
        rc = hl_setting_from_number(c, HL_SET_LOSS_SCALE, scale, &fixed);
        if (rc == 0)
            rc = hl_setting_from_number(c, HL_SET_LOSS_SCALE_WINDOW, UINT32_MAX, &fixed);
        return rc ? rc
                  : hl_config_note(c, "%s: never doubled, but halved by an overflow", fixed.where);
    }
    if (power > MOST_SCALE_POWER) {
        rc = hl_config_note(c, "%s: 2^%.0f; haul's loss scale ends at 2^%d", at.where, power,
                            MOST_SCALE_POWER);
        power = MOST_SCALE_POWER;
    }
    if (rc == 0 && is_set(ds, HL_DS_SCALE_POWER))
        rc = hl_setting_from_number(c, HL_SET_LOSS_SCALE, exp2(power), &at);
    else if (rc == 0)
        rc = set_default(c, HL_SET_LOSS_SCALE, exp2(power), "2^16 with fp16");
    if (rc == 0 && is_set(ds, HL_DS_SCALE_WINDOW))
        return pass_on(c, ds, HL_DS_SCALE_WINDOW, HL_SET_LOSS_SCALE_WINDOW);
    return rc ? rc : set_default(c, HL_SET_LOSS_SCALE_WINDOW, 1000, "1000 with fp16");
}

static int note_scale_rules(struct haul_config *c, const struct hl_ds *ds)
{
    int rc = 0;

    if (is_set(ds, HL_DS_HYSTERESIS) && ds->v[HL_DS_HYSTERESIS].number != 1)
        rc = hl_config_note(c, "%s: not used; the first overflow halves the scale",
                            ds->v[HL_DS_HYSTERESIS].path);
    if (rc == 0 && is_set(ds, HL_DS_MIN_SCALE) && ds->v[HL_DS_MIN_SCALE].number != 1)
        rc =
            hl_config_note(c, "%s: not used; the scale may fall to 1", ds->v[HL_DS_MIN_SCALE].path);
    return rc;
}

static int resolve_dtype(struct haul_config *c, const struct hl_ds *ds)
{
    struct hl_origin bf16 = origin(ds, HL_DS_BF16), fp16 = origin(ds, HL_DS_FP16);
    int rc;

    if (is_on(ds, HL_DS_BF16) && is_on(ds, HL_DS_FP16))
        return hl_config_refuse(&fp16, "is true, and so is %s; one of them", bf16.where);
    if (is_on(ds, HL_DS_FP16)) {
        rc = hl_setting_from_number(c, HL_SET_DTYPE, HAUL_FP16, &fp16);
        if (rc == 0)
            rc = resolve_loss_scale(c, ds);
        return rc ? rc : note_scale_rules(c, ds);
    }
    if (is_on(ds, HL_DS_BF16))
        return hl_setting_from_number(c, HL_SET_DTYPE, HAUL_BF16, &bf16);
    if (ds->v[HL_DS_BF16].given == 2 || ds->v[HL_DS_FP16].given == 2)
        return set_default(c, HL_SET_DTYPE, HAUL_BF16, "bf16 or fp16 is \"auto\"");
    return set_default(c, HL_SET_DTYPE, HAUL_FP32, "neither bf16 nor fp16 is enabled");
}

static int resolve_comm_dtype(struct haul_config *c, const struct hl_ds *ds)
{
    struct hl_origin at = origin(ds, HL_DS_COMM_DTYPE);

    return is_set(ds, HL_DS_COMM_DTYPE)
               ? hl_setting_from_text(c, HL_SET_GRAD_DTYPE, ds->v[HL_DS_COMM_DTYPE].text, &at)
               : 0;
}

/* ---- optimizer ---- */

static int resolve_betas(struct haul_config *c, const struct hl_ds *ds)
{
    const json_t *list = ds->v[HL_DS_BETAS].json;
    struct hl_origin at = origin(ds, HL_DS_BETAS);
    int rc;

    if (!is_set(ds, HL_DS_BETAS))
        return 0;
    if (json_array_size(list) != 2 || !json_is_number(json_array_get(list, 0)) ||
        !json_is_number(json_array_get(list, 1)))
        return hl_config_refuse(&at, "is no list of two numbers");
    rc = hl_setting_from_number(c, HL_SET_BETA1, json_number_value(json_array_get(list, 0)), &at);
    return rc ? rc
              : hl_setting_from_number(c, HL_SET_BETA2, json_number_value(json_array_get(list, 1)),
                                       &at);
}

/* In DeepSpeed "Adam" decays as AdamW does unless adam_w_mode is false. */
static int resolve_type(struct haul_config *c, const struct hl_ds *ds)
{
    static const struct {
        const char *name;
        enum haul_optimizer kind;
    } types[] = {{"adam", HAUL_ADAMW},
                 {"adamw", HAUL_ADAMW},
                 {"lion", HAUL_LION},
                 {"adagrad", HAUL_ADAGRAD},
                 {"sgd", HAUL_SGD}};
    struct hl_origin at = origin(ds, HL_DS_OPTIMIZER);
    char shown[HL_SHOWN_BYTES];
    const char *name = ds->v[HL_DS_OPTIMIZER].text;

    if (!is_set(ds, HL_DS_OPTIMIZER))
        return 0;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        enum haul_optimizer kind = types[i].kind;

        if (strcasecmp(types[i].name, name) != 0)
            continue;
        if (i == 0 && is_set(ds, HL_DS_ADAM_W_MODE) && !is_on(ds, HL_DS_ADAM_W_MODE))
            kind = HAUL_ADAM;
        return hl_setting_from_number(c, HL_SET_OPTIMIZER, kind, &at);
    }
    return hl_config_refuse(&at, "is \"%s\"; haul has Adam, AdamW, Lion, Adagrad and SGD",
                            hl_json_shown(name, shown, sizeof shown));
}

static int resolve_optimizer(struct haul_config *c, const struct hl_ds *ds)
{
    static const struct {
        enum hl_ds_key from;
        enum hl_setting to;
    } same[] = {{HL_DS_LR, HL_SET_LR},
                {HL_DS_EPS, HL_SET_EPS},
                {HL_DS_WEIGHT_DECAY, HL_SET_WEIGHT_DECAY},
                {HL_DS_BIAS_CORRECTION, HL_SET_BIAS_CORRECTION},
                {HL_DS_MOMENTUM, HL_SET_MOMENTUM},
                {HL_DS_NESTEROV, HL_SET_NESTEROV}};
    struct hl_origin amsgrad = origin(ds, HL_DS_AMSGRAD);
    int rc = resolve_type(c, ds);

    if (rc == 0 && c->values.optim.kind == HAUL_SGD && is_set(ds, HL_DS_OPTIMIZER) &&
        !is_set(ds, HL_DS_MOMENTUM))
        rc = set_default(c, HL_SET_MOMENTUM, 0, "of SGD there");
    if (rc == 0)
        rc = resolve_betas(c, ds);
    for (size_t i = 0; rc == 0 && i < sizeof same / sizeof *same; i++)
        rc = pass_on(c, ds, same[i].from, same[i].to);
    if (rc == 0 && is_on(ds, HL_DS_AMSGRAD))
        rc = hl_config_refuse(&amsgrad, "is true; haul has no AMSGrad");
    return rc;
}

int hl_deepspeed_resolve(struct haul_config *c, const struct hl_ds *ds)
{
    int rc = 0;

    if (!ds->any)
        return 0;
    if (is_set(ds, HL_DS_STAGE))
        rc = pass_on(c, ds, HL_DS_STAGE, HL_SET_STAGE);
    else
        rc = set_default(c, HL_SET_STAGE, 0, "no zero_optimization.stage");
    if (rc == 0)
        rc = resolve_offload(c, ds);
    if (rc == 0)
        rc = resolve_dtype(c, ds);
    if (rc == 0)
        rc = resolve_comm_dtype(c, ds);
    if (rc == 0)
        rc = resolve_optimizer(c, ds);
    if (rc == 0)
        rc = set_default(c, HL_SET_CLIP_NORM, 1, "no gradient_clipping: 1 there");
    if (rc == 0)
        rc = pass_on(c, ds, HL_DS_CLIPPING, HL_SET_CLIP_NORM);
    if (rc == 0)
        rc = pass_on(c, ds, HL_DS_TRAIN_BATCH, HL_SET_TRAIN_BATCH);
    if (rc == 0)
        rc = pass_on(c, ds, HL_DS_MICRO_BATCH, HL_SET_MICRO_BATCH);
    return rc ? rc : pass_on(c, ds, HL_DS_ACCUMULATION, HL_SET_ACCUMULATION);
}

/* ---- what must agree ---- */

static int clash(const struct haul_config *c, enum hl_setting s, const char *why)
{
    const struct hl_set_record *set = &c->set[s];

    return hl_fail(HAUL_E_CONFIG, "%s%s%s%s: %s", hl_setting_key(s), *set->where ? " (" : "",
                   set->where, *set->where ? ")" : "", why);
}

/* *out is a / b, which must come out even, where it is not said and they are. */
static int derive(struct haul_config *c, enum hl_setting s, uint64_t a, uint64_t b, uint64_t *out)
{
    struct hl_origin at = {HAUL_CONFIG_DEFAULT, NULL, "from the other batch sizes"};

    if (*out || !a || !b)
        return 0;
    if (a % b)
        return clash(c, HL_SET_TRAIN_BATCH, "the other batch sizes do not divide it");
    return hl_setting_from_number(c, s, (double)(a / b), &at);
}

/* What is not said and follows, with the number of ranks known. */
static int derive_batches(struct haul_config *c)
{
    struct haul_config_values *v = &c->values;
    struct hl_origin at = {HAUL_CONFIG_DEFAULT, NULL, "from the other batch sizes"};
    uint64_t n = c->ranks, product;
    int rc = 0;

    if (!v->accumulation && !v->train_batch != !v->micro_batch)
        rc = set_default(c, HL_SET_ACCUMULATION, 1, "one of the other batch sizes is not said");
    if (rc == 0 && !v->train_batch && v->micro_batch)
        rc = hl_setting_from_number(c, HL_SET_TRAIN_BATCH,
                                    (double)v->micro_batch * (double)v->accumulation * (double)n,
                                    &at);
    if (rc < 0 || __builtin_mul_overflow(v->accumulation, n, &product))
        return rc ? rc : clash(c, HL_SET_ACCUMULATION, "too many for this many ranks");
    rc = derive(c, HL_SET_MICRO_BATCH, v->train_batch, product, &v->micro_batch);
    if (rc < 0 || __builtin_mul_overflow(v->micro_batch, n, &product))
        return rc ? rc : clash(c, HL_SET_MICRO_BATCH, "too many for this many ranks");
    return derive(c, HL_SET_ACCUMULATION, v->train_batch, product, &v->accumulation);
}

/* train_batch = micro_batch * accumulation * ranks, as far as they are known. */
static int finish_batches(struct haul_config *c)
{
    struct haul_config_values *v = &c->values;
    uint64_t n = c->ranks, product;
    int rc = n ? derive_batches(c) : 0;

    if (rc < 0 || !v->train_batch || !v->micro_batch || !v->accumulation)
        return rc;
    if (__builtin_mul_overflow(v->micro_batch, v->accumulation, &product) ||
        v->train_batch % product || (n && v->train_batch / product != n))
        return clash(c, HL_SET_TRAIN_BATCH,
                     "is not micro_batch times accumulation times the number of ranks");
    return 0;
}

static int is_power_of_two(double x)
{
    int exponent;

    return x >= 1 && frexp(x, &exponent) == 0.5;
}

static int finish_dtypes(struct haul_config *c)
{
    struct haul_config_values *v = &c->values;
    int rc = 0;

    if (v->grad_dtype == HAUL_DTYPE_NONE)
        rc = set_default(c, HL_SET_GRAD_DTYPE, v->dtype, "that of dtype");
    if (rc == 0 && v->loss_scale == 0 && v->grad_dtype == HAUL_FP16 &&
        c->set[HL_SET_LOSS_SCALE].source == HAUL_CONFIG_DEFAULT)
        rc = set_default(c, HL_SET_LOSS_SCALE, 65536, "2^16 with fp16");
    if (rc < 0)
        return rc;
    if (v->loss_scale != 0 && !is_power_of_two(v->loss_scale))
        return clash(c, HL_SET_LOSS_SCALE, "a power of two from 1 to 2^24, or 0 for none");
    if (v->master == HAUL_MASTER_SPLIT && v->dtype != HAUL_BF16)
        return clash(c, HL_SET_MASTER,
                     "split needs dtype bf16: the parameter is the upper half of "
                     "its master");
    if (v->dtype == HAUL_FP32 && v->grad_dtype != HAUL_FP32)
        return clash(c, HL_SET_GRAD_DTYPE, "FP32 parameters have FP32 gradients");
    return 0;
}

int hl_config_finish(struct haul_config *c)
{
    const struct haul_config_values *v = &c->values;
    int rc = finish_dtypes(c);

    if (rc == 0)
        rc = finish_batches(c);
    if (rc < 0)
        return rc;
    if (v->window && v->window < v->max_held)
        return clash(c, HL_SET_WINDOW, "below max_held: what is held must fit");
    return hl_setting_write_texts(c);
}
