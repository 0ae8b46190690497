/* config_load.c: a configuration from its sources in their order, and what a user asks of it. */
#include <ctype.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config_state.h"
#include "fail.h"
#include "json_text.h"
#include "sys.h"

#define MOST_BYTES (1u << 20)
#define MOST_DEPTH 32

void haul_config_opts_init(struct haul_config_opts *opts)
{
    *opts = (struct haul_config_opts){.struct_size = sizeof *opts};
}

int hl_config_refuse(const struct hl_origin *at, const char *fmt, ...)
{
    char why[512];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(why, sizeof why, fmt, ap);
    va_end(ap);
    return hl_fail(HAUL_E_CONFIG, "%s%s%s %s", at->file ? at->file : "", at->file ? ": " : "",
                   at->where, why);
}

int hl_config_note(struct haul_config *c, const char *fmt, ...)
{
    char text[2048];
    va_list ap;
    int rc;

    if (c->nnotes == HL_MOST_NOTES)
        return 0;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    rc = hl_sys_strdup(text, &c->notes[c->nnotes]);
    c->nnotes += rc == 0;
    return rc;
}

static void set_defaults(struct haul_config *c)
{
    struct haul_engine_opts engine;

    haul_engine_opts_init(&engine);
    c->values = (struct haul_config_values){.stage = engine.stage,
                                            .offload = engine.offload,
                                            .master = engine.master,
                                            .dtype = HAUL_BF16,
                                            .optim = engine.optim,
                                            .lr = 1e-3,
                                            .loss_scale_window = engine.loss_scale_window,
                                            .slots = engine.slots,
                                            .max_held = engine.max_held,
                                            .passes = engine.passes,
                                            .overlap = engine.overlap};
}

/* ---- haul's own keys ---- */

static int unknown_own(struct haul_config *c, const struct hl_origin *at, const char *key,
                       int strict)
{
    const char *near = hl_setting_nearest(key);
    char text[128];

    snprintf(text, sizeof text, "is not a known key%s%s%s", near ? "; did you mean " : "",
             near ? near : "", near ? "?" : "");
    if (strict)
        return hl_config_refuse(at, "%s", text);
    hl_log(HAUL_LOG_WARN, "%s: %s %s", at->file, at->where, text);
    return hl_config_note(c, "%s %s", at->where, text);
}

static int read_own_key(struct haul_config *c, const char *name, const char *key,
                        const json_t *value)
{
    struct hl_origin at = {HAUL_CONFIG_FILE, name, ""};
    enum hl_setting s = hl_setting_named(key, strlen(key));
    char shown[HL_SHOWN_BYTES];

    snprintf(at.where, sizeof at.where, "haul.%s", hl_json_shown(key, shown, sizeof shown));
    return s < HL_NSETTINGS ? hl_setting_from_json(c, s, value, &at)
                            : unknown_own(c, &at, key, c->strict);
}

/* The optimizer first, since it brings defaults of its own; so too with flags. */
static int read_own(struct haul_config *c, const char *name, const json_t *own)
{
    struct hl_origin at = {HAUL_CONFIG_FILE, name, "haul"};
    const char *first = hl_setting_key(HL_SET_OPTIMIZER), *key;
    json_t *value;
    int rc = 0;

    if (!own || json_is_null(own))
        return 0;
    if (!json_is_object(own))
        return hl_config_refuse(&at, "is of the wrong type; an object");
    if (json_object_get(own, first))
        rc = read_own_key(c, name, first, json_object_get(own, first));
    json_object_foreach ((json_t *)(uintptr_t)own, key, value) {
        if (rc == 0 && strcmp(key, first) != 0)
            rc = read_own_key(c, name, key, value);
    }
    return rc;
}

/* HAUL_HOST_MEM of host_mem. */
static int read_environment(struct haul_config *c)
{
    int rc = 0;

    for (unsigned s = 0; rc == 0 && s < HL_NSETTINGS; s++) {
        struct hl_origin at = {HAUL_CONFIG_ENVIRONMENT, NULL, ""};
        const char *key = hl_setting_key((enum hl_setting)s), *text;
        size_t n = (size_t)snprintf(at.where, sizeof at.where, "HAUL_%s", key);

        for (size_t i = 0; i < n; i++)
            at.where[i] = (char)toupper((unsigned char)at.where[i]);
        text = getenv(at.where);
        if (text && *text)
            rc = hl_setting_from_text(c, (enum hl_setting)s, text, &at);
    }
    return rc;
}

static int read_flag(struct haul_config *c, const char *flag)
{
    struct hl_origin at = {HAUL_CONFIG_FLAG, NULL, ""};
    size_t n = strcspn(flag, "=");
    enum hl_setting s = hl_setting_named(flag, n);
    char key[HL_SHOWN_BYTES];

    hl_json_shown(flag, key, n + 1 < sizeof key ? n + 1 : sizeof key);
    snprintf(at.where, sizeof at.where, "%s", key);
    if (s == HL_NSETTINGS)
        return unknown_own(c, &at, key, 1);
    if (flag[n] == '\0')
        return hl_config_refuse(&at, "has no value; %s=VALUE", key);
    return hl_setting_from_text(c, s, flag + n + 1, &at);
}

static int is_optimizer(const char *flag)
{
    return hl_setting_named(flag, strcspn(flag, "=")) == HL_SET_OPTIMIZER;
}

static int read_flags(struct haul_config *c, const char *const *flags, uint32_t nflags)
{
    int rc = 0;

    for (uint32_t i = 0; i < nflags; i++)
        if (!flags[i])
            return hl_fail(-EINVAL, "haul_config_load: flags[%u] is NULL", i);
    for (uint32_t i = 0; rc == 0 && i < nflags; i++)
        if (is_optimizer(flags[i]))
            rc = read_flag(c, flags[i]);
    for (uint32_t i = 0; rc == 0 && i < nflags; i++)
        if (!is_optimizer(flags[i]))
            rc = read_flag(c, flags[i]);
    return rc;
}

/* ---- all sources ---- */

static int read_root(struct haul_config *c, const char *name, const json_t *root)
{
    struct hl_ds ds = {.file = name};
    int rc = hl_deepspeed_read(c, root, &ds);

    if (rc == 0)
        rc = hl_deepspeed_resolve(c, &ds);
    return rc ? rc : read_own(c, name, json_object_get(root, "haul"));
}

static int check_opts(const struct haul_config_opts *o)
{
    if (o->struct_size != sizeof *o)
        return hl_fail(HAUL_E_ABI, "haul_config_load: options were not set up by "
                                   "haul_config_opts_init()");
    if (o->nflags && !o->flags)
        return hl_fail(-EINVAL, "haul_config_load: %u flags, but flags is NULL", o->nflags);
    return 0;
}

/* root NULL: no file. */
static int load(const char *name, const json_t *root, const struct haul_config_opts *o,
                struct haul_config **out)
{
    struct haul_config *c;
    int rc = hl_sys_alloc(sizeof *c, (void **)&c);

    if (rc < 0)
        return rc;
    c->strict = o->strict;
    c->ranks = o->ranks;
    set_defaults(c);
    if (root)
        rc = read_root(c, name, root);
    if (rc == 0 && !o->no_environment)
        rc = read_environment(c);
    if (rc == 0)
        rc = read_flags(c, o->flags, o->nflags);
    if (rc == 0)
        rc = hl_config_finish(c);
    if (rc < 0) {
        haul_config_close(c);
        return rc;
    }
    *out = c;
    return 0;
}

int haul_config_parse(const char *name, const char *text, size_t bytes,
                      const struct haul_config_opts *opts, struct haul_config **out)
{
    struct haul_config_opts defaults;
    json_t *root;
    int rc;

    haul_config_opts_init(&defaults);
    opts = opts ? opts : &defaults;
    if ((rc = hl_need("haul_config_parse", "name", name)) < 0 ||
        (rc = hl_need("haul_config_parse", "text", text)) < 0 ||
        (rc = hl_need("haul_config_parse", "out", out)) < 0 || (rc = check_opts(opts)) < 0)
        return rc;
    if (bytes > MOST_BYTES)
        return hl_fail(HAUL_E_CONFIG, "%s: %zu bytes; at most %u are read", name, bytes,
                       MOST_BYTES);
    rc = hl_json_parse(name, HAUL_E_CONFIG, text, bytes, MOST_DEPTH, &root);
    if (rc < 0)
        return rc;
    rc = load(name, root, opts, out);
    json_decref(root);
    return rc;
}

static int load_file(const char *path, const struct haul_config_opts *opts,
                     struct haul_config **out)
{
    json_t *root;
    int fd = hl_sys_open(AT_FDCWD, path, O_RDONLY | O_NONBLOCK, 0), rc;

    if (fd < 0)
        return fd;
    rc = hl_json_load(path, HAUL_E_CONFIG, fd, MOST_BYTES, MOST_DEPTH, &root);
    hl_sys_close(fd);
    if (rc < 0)
        return rc;
    rc = load(path, root, opts, out);
    json_decref(root);
    return rc;
}

int haul_config_load(const char *path, const struct haul_config_opts *opts,
                     struct haul_config **out)
{
    struct haul_config_opts defaults;
    int rc;

    haul_config_opts_init(&defaults);
    opts = opts ? opts : &defaults;
    if ((rc = hl_need("haul_config_load", "out", out)) < 0 || (rc = check_opts(opts)) < 0)
        return rc;
    return path ? load_file(path, opts, out) : load(NULL, NULL, opts, out);
}

void haul_config_close(struct haul_config *c)
{
    if (!c)
        return;
    for (uint32_t i = 0; i < c->values.nnvme_dirs; i++)
        hl_sys_free(c->dirs[i]);
    for (uint32_t i = 0; i < c->nnotes; i++)
        hl_sys_free(c->notes[i]);
    hl_sys_free(c->dirs_text);
    hl_sys_free(c);
}

/* ---- what a user asks ---- */

const struct haul_config_values *haul_config_values(const struct haul_config *c)
{
    return &c->values;
}

uint32_t haul_config_count(const struct haul_config *c)
{
    return HL_NSETTINGS;
}

int haul_config_get_setting(const struct haul_config *c, uint32_t i,
                            struct haul_config_setting *out)
{
    int rc;

    if ((rc = hl_need("haul_config_get_setting", "config", c)) < 0 ||
        (rc = hl_need("haul_config_get_setting", "out", out)) < 0)
        return rc;
    if (out->struct_size != sizeof *out)
        return hl_fail(HAUL_E_ABI, "haul_config_get_setting: struct_size %zu; here it is %zu",
                       out->struct_size, sizeof *out);
    if (i >= HL_NSETTINGS)
        return hl_fail(-EINVAL, "haul_config_get_setting: setting %u of %d", i, HL_NSETTINGS);
    *out = (struct haul_config_setting){.struct_size = sizeof *out,
                                        .key = hl_setting_key((enum hl_setting)i),
                                        .value = i == HL_SET_NVME ? c->dirs_text : c->set[i].text,
                                        .source = c->set[i].source,
                                        .where = c->set[i].where};
    return 0;
}

const char *haul_config_note(const struct haul_config *c, uint32_t i)
{
    return i < c->nnotes ? c->notes[i] : NULL;
}

static void apply_engine(const struct haul_config_values *v, struct haul_engine_opts *o)
{
    o->stage = v->stage;
    o->offload = v->offload;
    o->master = v->master;
    o->grad_dtype = v->grad_dtype;
    o->optim = v->optim;
    o->device_mem_bytes = v->device_mem_bytes;
    o->host_mem_bytes = v->host_mem_bytes;
    o->nvme_mem_bytes = v->nvme_mem_bytes;
    o->nvme_dirs = v->nvme_dirs;
    o->nnvme_dirs = v->nnvme_dirs;
    o->passes = v->passes;
    o->max_held = v->max_held;
    o->window = v->window;
    o->slots = v->slots;
    o->slot_bytes = v->slot_bytes;
    o->nthreads = v->nthreads;
    o->overlap = v->overlap;
    o->io_method = v->io_method;
    o->loss_scale = v->loss_scale;
    o->loss_scale_window = v->loss_scale_window;
}

int haul_config_apply(const struct haul_config *c, struct haul_engine_opts *opts,
                      struct haul_step *step)
{
    int rc = hl_need("haul_config_apply", "config", c);

    if (rc < 0)
        return rc;
    if (opts && opts->struct_size != sizeof *opts)
        return hl_fail(HAUL_E_ABI, "haul_config_apply: opts was not set up by "
                                   "haul_engine_opts_init()");
    if (opts)
        apply_engine(&c->values, opts);
    if (step) {
        step->lr = c->values.lr;
        step->weight_decay = c->values.weight_decay;
        step->clip_norm = c->values.clip_norm;
    }
    return 0;
}
