/* config_settings.c: haul's own settings, one row each: how they are called, read, bounded and shown. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config_state.h"
#include "fail.h"
#include "haul/size.h"
#include "json_text.h"
#include "nearest_word.h"
#include "sys.h"

enum kind { COUNT, WIDE, SIZE, REAL, SWITCH, CHOICE, DIRS };

struct choice {
    const char *name;
    int value;
};

static const struct choice offloads[] = {{"none", HAUL_OFFLOAD_NONE},
                                         {"optimizer", HAUL_OFFLOAD_OPTIMIZER},
                                         {"all", HAUL_OFFLOAD_ALL},
                                         {0}};
static const struct choice dtypes[] = {
    {"bf16", HAUL_BF16}, {"fp16", HAUL_FP16}, {"fp32", HAUL_FP32}, {0}};
static const struct choice masters[] = {
    {"fp32", HAUL_MASTER_FP32}, {"split", HAUL_MASTER_SPLIT}, {0}};
static const struct choice optimizers[] = {{"adamw", HAUL_ADAMW}, {"adam", HAUL_ADAM},
                                           {"lion", HAUL_LION},   {"adagrad", HAUL_ADAGRAD},
                                           {"sgd", HAUL_SGD},     {0}};
static const struct choice io_methods[] = {
    {"auto", HAUL_IO_AUTO}, {"uring", HAUL_IO_URING}, {"threads", HAUL_IO_THREADS}, {0}};

struct row {
    const char *key;
    enum kind kind;
    size_t offset;
    double min, max;
    const struct choice *choices;
};

#define AT(field) offsetof(struct haul_config_values, field)
#define BELOW_1   (1 - 0x1p-53)
#define MOST      0x1p62 /* of sizes */
#define MOST_WIDE 0x1p53 /* of counts: exact in JSON's numbers */

/* COUNT is uint32_t, WIDE and SIZE uint64_t, SWITCH and CHOICE int. */
static const struct row rows[HL_NSETTINGS] = {
    [HL_SET_STAGE] = {"stage", COUNT, AT(stage), 0, 3, NULL},
    [HL_SET_OFFLOAD] = {"offload", CHOICE, AT(offload), 0, 0, offloads},
    [HL_SET_DTYPE] = {"dtype", CHOICE, AT(dtype), 0, 0, dtypes},
    [HL_SET_GRAD_DTYPE] = {"grad_dtype", CHOICE, AT(grad_dtype), 0, 0, dtypes},
    [HL_SET_MASTER] = {"master", CHOICE, AT(master), 0, 0, masters},
    [HL_SET_OPTIMIZER] = {"optimizer", CHOICE, AT(optim.kind), 0, 0, optimizers},
    [HL_SET_LR] = {"lr", REAL, AT(lr), 0, 3.4e38, NULL},
    [HL_SET_WEIGHT_DECAY] = {"weight_decay", REAL, AT(weight_decay), 0, 3.4e38, NULL},
    [HL_SET_BETA1] = {"beta1", REAL, AT(optim.beta1), 0, BELOW_1, NULL},
    [HL_SET_BETA2] = {"beta2", REAL, AT(optim.beta2), 0, BELOW_1, NULL},
    [HL_SET_EPS] = {"eps", REAL, AT(optim.eps), 0, 3.4e38, NULL},
    [HL_SET_MOMENTUM] = {"momentum", REAL, AT(optim.momentum), 0, BELOW_1, NULL},
    [HL_SET_NESTEROV] = {"nesterov", SWITCH, AT(optim.nesterov), 0, 1, NULL},
    [HL_SET_BIAS_CORRECTION] = {"bias_correction", SWITCH, AT(optim.bias_correction), 0, 1, NULL},
    [HL_SET_CLIP_NORM] = {"clip_norm", REAL, AT(clip_norm), 0, 3.4e38, NULL},
    [HL_SET_LOSS_SCALE] = {"loss_scale", REAL, AT(loss_scale), 0, 0x1p24, NULL},
    [HL_SET_LOSS_SCALE_WINDOW] = {"loss_scale_window", COUNT, AT(loss_scale_window), 1, UINT32_MAX,
                                  NULL},
    [HL_SET_TRAIN_BATCH] = {"train_batch", WIDE, AT(train_batch), 1, MOST_WIDE, NULL},
    [HL_SET_MICRO_BATCH] = {"micro_batch", WIDE, AT(micro_batch), 1, MOST_WIDE, NULL},
    [HL_SET_ACCUMULATION] = {"accumulation", WIDE, AT(accumulation), 1, MOST_WIDE, NULL},
    [HL_SET_DEVICE_MEM] = {"device_mem", SIZE, AT(device_mem_bytes), 1, MOST, NULL},
    [HL_SET_HOST_MEM] = {"host_mem", SIZE, AT(host_mem_bytes), 1, MOST, NULL},
    [HL_SET_NVME_MEM] = {"nvme_mem", SIZE, AT(nvme_mem_bytes), 1, MOST, NULL},
    [HL_SET_NVME] = {"nvme", DIRS, AT(nvme_dirs), 0, 0, NULL},
    [HL_SET_SLOTS] = {"slots", COUNT, AT(slots), 2, 1024, NULL},
    [HL_SET_SLOT_BYTES] = {"slot_bytes", SIZE, AT(slot_bytes), 4096, MOST, NULL},
    [HL_SET_WINDOW] = {"window", COUNT, AT(window), 0, 1024, NULL},
    [HL_SET_MAX_HELD] = {"max_held", COUNT, AT(max_held), 1, 1024, NULL},
    [HL_SET_PASSES] = {"passes", COUNT, AT(passes), 1, 65536, NULL},
    [HL_SET_THREADS] = {"threads", COUNT, AT(nthreads), 0, 4096, NULL},
    [HL_SET_OVERLAP] = {"overlap", SWITCH, AT(overlap), 0, 1, NULL},
    [HL_SET_IO_METHOD] = {"io_method", CHOICE, AT(io_method), 0, 0, io_methods},
};

const char *hl_setting_key(enum hl_setting s)
{
    return rows[s].key;
}

enum hl_setting hl_setting_named(const char *key, size_t len)
{
    unsigned s = 0;

    while (s < HL_NSETTINGS && (strlen(rows[s].key) != len || strncmp(rows[s].key, key, len) != 0))
        s++;
    return (enum hl_setting)s;
}

const char *hl_setting_nearest(const char *key)
{
    const char *words[HL_NSETTINGS];

    for (unsigned s = 0; s < HL_NSETTINGS; s++)
        words[s] = rows[s].key;
    return hl_nearest_word(key, words, HL_NSETTINGS);
}

/* ---- writing a value ---- */

static void *field(struct haul_config *c, enum hl_setting s)
{
    return (char *)&c->values + rows[s].offset;
}

static void remember(struct haul_config *c, enum hl_setting s, const struct hl_origin *at)
{
    c->set[s].source = at->source;
    memcpy(c->set[s].where, at->where, sizeof c->set[s].where);
}

static int refuse_range(const struct row *r, double value, const struct hl_origin *at)
{
    char low[32], high[32];

    if (r->kind == SIZE)
        return hl_config_refuse(at, "is %.17g bytes; %s to %s", value,
                                haul_format_size((uint64_t)r->min, low, sizeof low),
                                haul_format_size((uint64_t)r->max, high, sizeof high));
    if (r->max == BELOW_1)
        return hl_config_refuse(at, "is %.17g; from 0 to below 1", value);
    return hl_config_refuse(at, "is %.17g; %.10g to %.10g", value, r->min, r->max);
}

/* Another rule has other defaults: what was set for the one before is gone. */
static void change_optimizer(struct haul_config *c, enum haul_optimizer kind)
{
    if (kind == c->values.optim.kind)
        return;
    haul_optim_init(&c->values.optim, kind);
    for (unsigned s = HL_SET_BETA1; s <= HL_SET_BIAS_CORRECTION; s++)
        c->set[s] = (struct hl_set_record){.source = HAUL_CONFIG_DEFAULT};
}

int hl_setting_from_number(struct haul_config *c, enum hl_setting s, double value,
                           const struct hl_origin *at)
{
    const struct row *r = &rows[s];

    if (r->kind != CHOICE && !(value >= r->min && value <= r->max))
        return refuse_range(r, value, at);
    if (s == HL_SET_OPTIMIZER)
        change_optimizer(c, (enum haul_optimizer)value);
    else if (r->kind == REAL)
        *(double *)field(c, s) = value;
    else if (value != floor(value))
        return hl_config_refuse(at, "is %.17g; a whole number", value);
    else if (r->kind == WIDE || r->kind == SIZE)
        *(uint64_t *)field(c, s) = (uint64_t)value;
    else
        *(uint32_t *)field(c, s) = (uint32_t)value; /* an int or an enum the same */
    remember(c, s, at);
    return 0;
}

static void set_wide(struct haul_config *c, enum hl_setting s, uint64_t value,
                     const struct hl_origin *at)
{
    *(uint64_t *)field(c, s) = value;
    remember(c, s, at);
}

/* ---- from text ---- */

static int choose(struct haul_config *c, enum hl_setting s, const char *text,
                  const struct hl_origin *at)
{
    char words[96], shown[HL_SHOWN_BYTES];
    size_t n = 0;

    for (const struct choice *choice = rows[s].choices; choice->name; choice++) {
        if (strcmp(choice->name, text) == 0)
            return hl_setting_from_number(c, s, choice->value, at);
        n += (size_t)snprintf(words + n, sizeof words - n, "%s%s", n ? ", " : "", choice->name);
    }
    return hl_config_refuse(at, "is \"%s\"; one of %s", hl_json_shown(text, shown, sizeof shown),
                            words);
}

static int size_from_text(struct haul_config *c, enum hl_setting s, const char *text,
                          const struct hl_origin *at)
{
    char why[256];
    uint64_t bytes;

    if (strcmp(text, "unlimited") == 0 && s != HL_SET_SLOT_BYTES) {
        set_wide(c, s, HAUL_UNLIMITED, at);
        return 0;
    }
    if (haul_parse_size(text, &bytes) < 0) {
        hl_json_shown(haul_last_error(), why, sizeof why);
        return hl_config_refuse(at, "%s", why);
    }
    if ((double)bytes < rows[s].min || (double)bytes > rows[s].max)
        return refuse_range(&rows[s], (double)bytes, at);
    set_wide(c, s, bytes, at);
    return 0;
}

static int number_from_text(struct haul_config *c, enum hl_setting s, const char *text,
                            const struct hl_origin *at)
{
    char *end, shown[HL_SHOWN_BYTES];
    double value = strtod(text, &end);
    uint64_t count;

    if (rows[s].kind != REAL && haul_parse_count(text, &count) == 0)
        return hl_setting_from_number(c, s, (double)count, at);
    if (end == text || *end || !isfinite(value))
        return hl_config_refuse(at, "is \"%s\"; a number",
                                hl_json_shown(text, shown, sizeof shown));
    return hl_setting_from_number(c, s, value, at);
}

static int switch_from_text(struct haul_config *c, enum hl_setting s, const char *text,
                            const struct hl_origin *at)
{
    static const char *const words[] = {"false", "true", "off", "on", "no", "yes", "0", "1"};
    char shown[HL_SHOWN_BYTES];

    for (unsigned i = 0; i < sizeof words / sizeof *words; i++)
        if (strcmp(words[i], text) == 0)
            return hl_setting_from_number(c, s, i % 2, at);
    return hl_config_refuse(at, "is \"%s\"; true or false",
                            hl_json_shown(text, shown, sizeof shown));
}

static void drop_dirs(struct haul_config *c)
{
    while (c->values.nnvme_dirs)
        hl_sys_free(c->dirs[--c->values.nnvme_dirs]);
}

int hl_setting_add_dir(struct haul_config *c, const char *dir, const struct hl_origin *at)
{
    uint32_t *n = &c->values.nnvme_dirs;
    int rc;

    if (!*dir)
        return hl_config_refuse(at, "names no directory");
    if (strchr(dir, ',') || strcmp(dir, "auto") == 0)
        return hl_config_refuse(at, "names a directory with a comma, or auto (./auto is one)");
    if (*n == HAUL_MAX_DIRS)
        return hl_config_refuse(at, "has more than %d directories", HAUL_MAX_DIRS);
    rc = hl_sys_strdup(dir, &c->dirs[*n]);
    if (rc < 0)
        return rc;
    ++*n;
    c->values.nvme_dirs = (const char *const *)c->dirs;
    remember(c, HL_SET_NVME, at);
    return 0;
}

/* With commas between. */
static int dirs_from_text(struct haul_config *c, const char *text, const struct hl_origin *at)
{
    char *copy, *rest, *dir;
    int rc = hl_sys_strdup(text, &copy);

    if (rc < 0)
        return rc;
    drop_dirs(c);
    rest = copy;
    while (rc == 0 && (dir = strsep(&rest, ",")))
        rc = hl_setting_add_dir(c, dir, at);
    hl_sys_free(copy);
    return rc;
}

int hl_setting_from_text(struct haul_config *c, enum hl_setting s, const char *text,
                         const struct hl_origin *at)
{
    if (strcmp(text, "auto") == 0 && rows[s].kind != CHOICE)
        return 0; /* as if it were not there */
    switch (rows[s].kind) {
    case CHOICE:
        return strcmp(text, "auto") == 0 && s != HL_SET_IO_METHOD ? 0 : choose(c, s, text, at);
    case SIZE:
        return size_from_text(c, s, text, at);
    case SWITCH:
        return switch_from_text(c, s, text, at);
    case DIRS:
        return dirs_from_text(c, text, at);
    case COUNT:
    case WIDE:
    case REAL:
        break;
    }
    return number_from_text(c, s, text, at);
}

/* ---- from JSON ---- */

static int dirs_from_json(struct haul_config *c, const json_t *list, const struct hl_origin *at)
{
    int rc = 0;

    drop_dirs(c);
    for (size_t i = 0; rc == 0 && i < json_array_size(list); i++) {
        const char *dir = json_string_value(json_array_get(list, i));

        rc = dir ? hl_setting_add_dir(c, dir, at)
                 : hl_config_refuse(at, "has an entry that is no text");
    }
    return rc;
}

int hl_setting_from_json(struct haul_config *c, enum hl_setting s, const json_t *value,
                         const struct hl_origin *at)
{
    static const char *const wanted[] = {[COUNT] = "a number",
                                         [WIDE] = "a number",
                                         [SIZE] = "a size, \"24GB\" or a number",
                                         [REAL] = "a number",
                                         [SWITCH] = "true or false",
                                         [CHOICE] = "a text",
                                         [DIRS] = "a list of texts"};
    enum kind kind = rows[s].kind;

    if (json_is_null(value))
        return 0;
    if (json_is_string(value))
        return hl_setting_from_text(c, s, json_string_value(value), at);
    if (json_is_boolean(value) && kind == SWITCH)
        return hl_setting_from_number(c, s, json_is_true(value), at);
    if (json_is_array(value) && kind == DIRS)
        return dirs_from_json(c, value, at);
    if (json_is_number(value) && kind != SWITCH && kind != CHOICE && kind != DIRS)
        return hl_setting_from_number(c, s, json_number_value(value), at);
    return hl_config_refuse(at, "is of the wrong type; %s", wanted[kind]);
}

/* ---- to text ---- */

static void size_text(enum hl_setting s, uint64_t value, char *out)
{
    if (value == HAUL_UNLIMITED)
        snprintf(out, HL_VALUE_BYTES, "unlimited");
    else if (value == HAUL_AUTO)
        snprintf(out, HL_VALUE_BYTES, "auto");
    else
        snprintf(out, HL_VALUE_BYTES, "%" PRIu64, value);
}

static void choice_text(const struct row *r, int value, char *out)
{
    const struct choice *choice = r->choices;

    while (choice->name && choice->value != value)
        choice++;
    snprintf(out, HL_VALUE_BYTES, "%s", choice->name ? choice->name : "auto");
}

/* 0 stands for the engine's choice where the setting has no such value. */
static void write_text(struct haul_config *c, enum hl_setting s)
{
    const struct row *r = &rows[s];
    char *out = c->set[s].text;
    void *at = field(c, s);

    switch (r->kind) {
    case COUNT:
        if ((s == HL_SET_WINDOW || s == HL_SET_THREADS) && *(uint32_t *)at == 0)
            snprintf(out, HL_VALUE_BYTES, "auto");
        else
            snprintf(out, HL_VALUE_BYTES, "%" PRIu32, *(uint32_t *)at);
        break;
    case WIDE:
    case SIZE:
        size_text(s, *(uint64_t *)at, out);
        break;
    case REAL:
        snprintf(out, HL_VALUE_BYTES, "%.17g", *(double *)at);
        for (int digits = 1; digits < 17; digits++) { /* as short as says it exactly */
            char shorter[HL_VALUE_BYTES];

            snprintf(shorter, sizeof shorter, "%.*g", digits, *(double *)at);
            if (strtod(shorter, NULL) == *(double *)at) {
                memcpy(out, shorter, sizeof shorter);
                break;
            }
        }
        break;
    case SWITCH:
        snprintf(out, HL_VALUE_BYTES, "%s", *(int *)at ? "true" : "false");
        break;
    case CHOICE:
        choice_text(r, *(int *)at, out);
        break;
    case DIRS:
        break;
    }
}

static int write_dirs(struct haul_config *c)
{
    size_t bytes = 1, n = 0;
    int rc;

    for (uint32_t i = 0; i < c->values.nnvme_dirs; i++)
        bytes += strlen(c->dirs[i]) + 1;
    rc = hl_sys_alloc(bytes, (void **)&c->dirs_text);
    for (uint32_t i = 0; rc == 0 && i < c->values.nnvme_dirs; i++)
        n += (size_t)snprintf(c->dirs_text + n, bytes - n, "%s%s", i ? "," : "", c->dirs[i]);
    return rc;
}

int hl_setting_write_texts(struct haul_config *c)
{
    for (unsigned s = 0; s < HL_NSETTINGS; s++)
        write_text(c, (enum hl_setting)s);
    return write_dirs(c);
}
