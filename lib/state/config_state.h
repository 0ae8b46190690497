/*
 * config_state.h: what a configuration holds while it is read, and after.
 *
 *   config_load.c       the order: file, environment, flags; notes; what a user calls
 *   config_settings.c   haul's own settings: one table; from JSON and from text
 *   config_deepspeed.c  DeepSpeed's keys: one table; the walk over a file; unknown keys
 *   config_resolve.c    what DeepSpeed's keys mean for settings; what must fit together
 */
#ifndef HL_CONFIG_STATE_H
#define HL_CONFIG_STATE_H

#include <jansson.h>

#include "haul/config.h"

enum hl_setting {
    HL_SET_STAGE = 0,
    HL_SET_OFFLOAD,
    HL_SET_DTYPE,
    HL_SET_GRAD_DTYPE,
    HL_SET_MASTER,
    HL_SET_OPTIMIZER,
    HL_SET_LR,
    HL_SET_WEIGHT_DECAY,
    HL_SET_BETA1,
    HL_SET_BETA2,
    HL_SET_EPS,
    HL_SET_MOMENTUM,
    HL_SET_NESTEROV,
    HL_SET_BIAS_CORRECTION,
    HL_SET_CLIP_NORM,
    HL_SET_LOSS_SCALE,
    HL_SET_LOSS_SCALE_WINDOW,
    HL_SET_TRAIN_BATCH,
    HL_SET_MICRO_BATCH,
    HL_SET_ACCUMULATION,
    HL_SET_DEVICE_MEM,
    HL_SET_HOST_MEM,
    HL_SET_NVME_MEM,
    HL_SET_NVME,
    HL_SET_SLOTS,
    HL_SET_SLOT_BYTES,
    HL_SET_WINDOW,
    HL_SET_MAX_HELD,
    HL_SET_PASSES,
    HL_SET_THREADS,
    HL_SET_OVERLAP,
    HL_SET_IO_METHOD,
    HL_NSETTINGS
};

#define HL_WHERE_BYTES 128
#define HL_VALUE_BYTES 96
#define HL_MOST_NOTES  64

/* Where a value stands. */
struct hl_origin {
    enum haul_config_source source;
    const char *file;           /* of the file's name, for messages; NULL: not from a file */
    char where[HL_WHERE_BYTES]; /* key path, variable or flag */
};

struct hl_set_record {
    enum haul_config_source source;
    char where[HL_WHERE_BYTES];
    char text[HL_VALUE_BYTES]; /* of the value; NVME has its own */
};

struct haul_config {
    struct haul_config_values values;
    struct hl_set_record set[HL_NSETTINGS];
    char *dirs[HAUL_MAX_DIRS];
    char *dirs_text;
    char *notes[HL_MOST_NOTES];
    uint32_t nnotes;
    int strict;
    uint32_t ranks;
};

/* ---- settings ---- */

const char *hl_setting_key(enum hl_setting s);
/* The setting with that key, or HL_NSETTINGS. */
enum hl_setting hl_setting_named(const char *key, size_t len);
/* The nearest key, or NULL. */
const char *hl_setting_nearest(const char *key);

/* Set from a value of JSON, from text, from a number (of a setting that has one; a choice: its value).
 * HAUL_E_CONFIG with the origin and what is wrong. */
int hl_setting_from_json(struct haul_config *c, enum hl_setting s, const json_t *value,
                         const struct hl_origin *at);
int hl_setting_from_text(struct haul_config *c, enum hl_setting s, const char *text,
                         const struct hl_origin *at);
int hl_setting_from_number(struct haul_config *c, enum hl_setting s, double value,
                           const struct hl_origin *at);
/* Add one directory. */
int hl_setting_add_dir(struct haul_config *c, const char *dir, const struct hl_origin *at);
/* Fill in text of all values. */
int hl_setting_write_texts(struct haul_config *c);

/* HAUL_E_CONFIG, "FILE: KEY why" or "VARIABLE why". */
int hl_config_refuse(const struct hl_origin *at, const char *fmt, ...) HAUL_PRINTF(2, 3);
int hl_config_note(struct haul_config *c, const char *fmt, ...) HAUL_PRINTF(2, 3);

/* ---- DeepSpeed ---- */

enum hl_ds_kind {
    HL_DS_COUNT = 0, /* a whole number */
    HL_DS_REAL,
    HL_DS_SWITCH,
    HL_DS_TEXT,
    HL_DS_LIST, /* of numbers */
    HL_DS_ANY,  /* not looked into */
};

/* Keys that are looked at by name; all others only have a type. */
enum hl_ds_key {
    HL_DS_NONE = 0,
    HL_DS_TRAIN_BATCH,
    HL_DS_MICRO_BATCH,
    HL_DS_ACCUMULATION,
    HL_DS_CLIPPING,
    HL_DS_COMM_DTYPE,
    HL_DS_STAGE,
    HL_DS_OPT_DEVICE,
    HL_DS_OPT_NVME_PATH,
    HL_DS_OPT_BUFFER_COUNT,
    HL_DS_OPT_RATIO,
    HL_DS_PARAM_DEVICE,
    HL_DS_PARAM_NVME_PATH,
    HL_DS_CPU_OFFLOAD,
    HL_DS_CPU_OFFLOAD_PARAM,
    HL_DS_OPTIMIZER,
    HL_DS_LR,
    HL_DS_BETAS,
    HL_DS_EPS,
    HL_DS_WEIGHT_DECAY,
    HL_DS_BIAS_CORRECTION,
    HL_DS_ADAM_W_MODE,
    HL_DS_AMSGRAD,
    HL_DS_MOMENTUM,
    HL_DS_NESTEROV,
    HL_DS_FP16,
    HL_DS_LOSS_SCALE,
    HL_DS_SCALE_POWER,
    HL_DS_SCALE_WINDOW,
    HL_DS_HYSTERESIS,
    HL_DS_MIN_SCALE,
    HL_DS_BF16,
    HL_DS_NKEYS
};

struct hl_ds_value {
    int given;          /* 1: a value of the right type; 2: "auto" */
    double number;      /* SWITCH: 0 or 1 */
    const char *text;   /* TEXT */
    const json_t *json; /* LIST */
    const char *path;
};

struct hl_ds {
    struct hl_ds_value v[HL_DS_NKEYS];
    int any; /* a key beside "haul" is there */
    const char *file;
    char unused[1024]; /* keys without a counterpart, with ", " between */
    unsigned nunused;
};

/* Walk over the whole file but for "haul". */
int hl_deepspeed_read(struct haul_config *c, const json_t *root, struct hl_ds *out);

/* ---- resolve ---- */

/* Give settings what DeepSpeed's keys mean. */
int hl_deepspeed_resolve(struct haul_config *c, const struct hl_ds *ds);
/* After all sources: what follows from other settings, and what must fit together. */
int hl_config_finish(struct haul_config *c);

#endif
