/* ckpt_convert.c: haul ckpt reshard, export and import: a checkpoint from and to other files. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt_new.h"
#include "ckpt_tool.h"
#include "haul/safetensors.h"
#include "time_left.h"

#define NAME_BYTES 512

/* The user's bytes of an open checkpoint; end it with free(). */
static int take_user(const struct hl_ckpt *ck, void **out)
{
    int rc;

    *out = malloc(ck->m.user_bytes + 1);
    if (*out == NULL)
        return -ENOMEM;
    rc = hl_ckpt_read_user(ck, *out);
    if (rc < 0)
        free(*out);
    return rc;
}

/* A source that says how far it is. */
struct counted {
    const struct hl_ckpt_source *source;
    struct hl_time_left left;
    uint64_t done_bytes;
};

static int read_counted(void *user, uint32_t unit, uint32_t tensor, uint64_t first, uint64_t n,
                        float *p, float *m, float *v)
{
    struct counted *c = user;

    c->done_bytes += hl_ckpt_tool_value_bytes(m != NULL, n);
    hl_time_left_at(&c->left, c->done_bytes);
    return c->source->fn(c->source->user, unit, tensor, first, n, p, m, v);
}

/* A checkpoint like ck, its values from a source, in root. what: is done meanwhile. */
static int write_new(const char *what, struct hl_ckpt *ck, struct hl_ckpt_manifest *m,
                     const struct hl_ckpt_source *source, const char *root)
{
    struct hl_ckpt_rest rest = {.user_bytes = ck->m.user_bytes};
    struct counted counted = {.source = source};
    const struct hl_ckpt_source counting = {.fn = read_counted, .user = &counted};
    char name[HL_CKPT_NAME_BYTES];
    void *user;
    int rc = take_user(ck, &user);

    if (rc < 0)
        return rc;
    rest.user = user;
    m->files = calloc(m->nranks, sizeof *m->files);
    hl_time_left_begin(&counted.left, what, hl_ckpt_tool_all_value_bytes(&m->model), 1);
    rc = m->files == NULL ? -ENOMEM : hl_ckpt_new_write(root, m, &counting, &rest, name);
    hl_time_left_end(&counted.left);
    if (rc == 0)
        printf("%s/%s\n", root, name);
    free(m->files);
    free(user);
    return rc;
}

int hl_ckpt_tool_reshard(const struct hl_command *cmd, const char *path, uint32_t nranks,
                         const char *root)
{
    struct hl_ckpt_source source = {.fn = hl_ckpt_source};
    struct hl_ckpt_manifest m;
    struct hl_ckpt *ck;
    int rc = hl_ckpt_tool_open(path, &ck);

    if (rc < 0)
        return hl_report_error(cmd, rc);
    m = ck->m;
    m.nranks = nranks;
    source.user = ck;
    rc = write_new("reshard", ck, &m, &source, root);
    hl_ckpt_close(ck);
    return rc < 0 ? hl_report_error(cmd, rc) : HL_EXIT_OK;
}

/* ---- export ---- */

/* What a tensor of a checkpoint is in the file: itself, and with --optimizer three more. */
enum part { WEIGHT = 0, MASTER, EXP_AVG, EXP_AVG_SQ, NPARTS };
static const char *const suffixes[NPARTS] = {"", ".master", ".exp_avg", ".exp_avg_sq"};

static void part_name(const struct hl_ckpt_unit *u, uint32_t t, enum part part, char *out)
{
    snprintf(out, NAME_BYTES, "%s.%s%s", u->name, u->tensors[t].name, suffixes[part]);
}

struct exporting {
    struct hl_ckpt *ck;
    enum haul_dtype dtype;
    int optimizer;
    struct haul_safetensors_decl *decls;
    char (*names)[NAME_BYTES];
    uint64_t n;
    float *p, *m, *v; /* (HL_CKPT_BLOCK_ELEMS,) */
    struct hl_time_left left;
    uint64_t done_bytes;
};

static unsigned parts_of(const struct exporting *x, const struct haul_tensor *t)
{
    return x->optimizer && !t->frozen ? NPARTS : 1;
}

static void declare(struct exporting *x)
{
    const struct hl_ckpt_model *model = &x->ck->m.model;

    for (uint32_t i = 0; i < model->nunits; i++)
        for (uint32_t t = 0; t < model->units[i].ntensors; t++) {
            const struct haul_tensor *tensor = &model->units[i].tensors[t];
            for (unsigned k = 0; k < parts_of(x, tensor); k++, x->n++) {
                enum haul_dtype own = x->dtype != HAUL_DTYPE_NONE ? x->dtype : tensor->dtype;
                part_name(&model->units[i], t, (enum part)k, x->names[x->n]);
                x->decls[x->n] =
                    (struct haul_safetensors_decl){.name = x->names[x->n],
                                                   .dtype = k == WEIGHT ? own : HAUL_FP32,
                                                   .ndims = tensor->ndims,
                                                   .shape = tensor->shape};
            }
        }
}

static uint64_t count_tensors(const struct hl_ckpt_model *model)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < model->nunits; i++)
        n += model->units[i].ntensors;
    return n;
}

static int export_open(struct exporting *x)
{
    uint64_t most = count_tensors(&x->ck->m.model) * NPARTS;

    x->decls = calloc(most + 1, sizeof *x->decls);
    x->names = calloc(most + 1, sizeof *x->names);
    x->p = malloc(3 * HL_CKPT_BLOCK_ELEMS * sizeof *x->p);
    if (x->decls == NULL || x->names == NULL || x->p == NULL)
        return -ENOMEM;
    x->m = x->p + HL_CKPT_BLOCK_ELEMS;
    x->v = x->m + HL_CKPT_BLOCK_ELEMS;
    declare(x);
    return 0;
}

static int put_tensor(struct exporting *x, struct haul_safetensors_writer *w, uint32_t u,
                      uint32_t t, uint64_t index)
{
    const struct hl_ckpt_unit *unit = &x->ck->m.model.units[u];
    unsigned nparts = parts_of(x, &unit->tensors[t]);
    const float *const from[NPARTS] = {x->p, x->p, x->m, x->v};
    uint64_t n = unit->places[t].elems;
    int trained = !unit->tensors[t].frozen, rc = 0;

    for (uint64_t at = 0; rc == 0 && at < n; at += HL_CKPT_BLOCK_ELEMS) {
        uint64_t some = n - at < HL_CKPT_BLOCK_ELEMS ? n - at : HL_CKPT_BLOCK_ELEMS;
        rc = hl_ckpt_source(x->ck, u, t, at, some, x->p, trained ? x->m : NULL,
                            trained ? x->v : NULL);
        for (unsigned k = 0; rc == 0 && k < nparts; k++)
            rc = haul_safetensors_writer_put(w, index + k, at, some, from[k]);
        x->done_bytes += hl_ckpt_tool_value_bytes(trained, some);
        hl_time_left_at(&x->left, x->done_bytes);
    }
    return rc;
}

static int put_all(struct exporting *x, struct haul_safetensors_writer *w)
{
    const struct hl_ckpt_model *model = &x->ck->m.model;
    uint64_t index = 0;
    int rc = 0;

    hl_time_left_begin(&x->left, "export", hl_ckpt_tool_all_value_bytes(model), 1);
    for (uint32_t u = 0; rc == 0 && u < model->nunits; u++)
        for (uint32_t t = 0; rc == 0 && t < model->units[u].ntensors; t++) {
            rc = put_tensor(x, w, u, t, index);
            index += parts_of(x, &model->units[u].tensors[t]);
        }
    hl_time_left_end(&x->left);
    return rc < 0 ? rc : haul_safetensors_writer_finish(w);
}

/* Keys and texts: step, loss_scale, loss_scale_finite_steps, and updates.UNIT for each unit. */
static int metadata_of(const struct hl_ckpt_manifest *m, const char ***out, uint32_t *n)
{
    uint32_t pairs = m->model.nunits + 3;
    const char **meta = calloc(2ull * pairs, sizeof *meta);
    char(*text)[NAME_BYTES] = calloc(2ull * pairs, sizeof *text);

    if (meta == NULL || text == NULL) {
        free(meta);
        free(text);
        return -ENOMEM;
    }
    for (uint32_t i = 0; i < 2 * pairs; i++)
        meta[i] = text[i];
    snprintf(text[0], NAME_BYTES, "step");
    snprintf(text[1], NAME_BYTES, "%" PRIu64, m->step);
    snprintf(text[2], NAME_BYTES, "loss_scale");
    snprintf(text[3], NAME_BYTES, "%.17g", m->loss_scale);
    snprintf(text[4], NAME_BYTES, "loss_scale_finite_steps");
    snprintf(text[5], NAME_BYTES, "%u", m->nsteps_finite);
    for (uint32_t u = 0; u < m->model.nunits; u++) {
        snprintf(text[6 + 2 * u], NAME_BYTES, "updates.%s", m->model.units[u].name);
        snprintf(text[7 + 2 * u], NAME_BYTES, "%" PRIu64, m->model.units[u].nsteps);
    }
    *out = meta;
    *n = pairs;
    return 0;
}

static void metadata_free(const char **meta)
{
    if (meta != NULL)
        free((void *)(uintptr_t)meta[0]);
    free(meta);
}

static int export_write(struct exporting *x, const char *file)
{
    struct haul_safetensors_writer_opts opts;
    struct haul_safetensors_writer *w;
    const char **meta = NULL;
    int rc = export_open(x);

    haul_safetensors_writer_opts_init(&opts);
    if (rc == 0)
        rc = metadata_of(&x->ck->m, &meta, &opts.nmetadata);
    opts.metadata = meta;
    if (rc == 0)
        rc = haul_safetensors_writer_open(file, &opts, x->decls, x->n, &w);
    if (rc == 0) {
        rc = put_all(x, w);
        haul_safetensors_writer_close(w);
    }
    metadata_free(meta);
    free(x->decls);
    free(x->names);
    free(x->p);
    return rc;
}

int hl_ckpt_tool_export(const struct hl_command *cmd, const char *path, const char *file,
                        enum haul_dtype dtype, int optimizer)
{
    struct exporting x = {.dtype = dtype, .optimizer = optimizer};
    int rc = hl_ckpt_tool_open(path, &x.ck);

    if (rc == 0) {
        rc = export_write(&x, file);
        hl_ckpt_close(x.ck);
    }
    return rc < 0 ? hl_report_error(cmd, rc) : HL_EXIT_OK;
}

/* ---- import ---- */

struct importing {
    struct haul_safetensors *st;
    const struct hl_ckpt_model *model;
};

static int read_values(const struct importing *x, const char *name, uint64_t nelems, uint64_t first,
                       uint64_t n, float *out)
{
    struct haul_safetensors_info info = {.struct_size = sizeof info};
    uint64_t index;
    int rc = haul_safetensors_find(x->st, name, &index);

    if (rc == 0)
        rc = haul_safetensors_get_info(x->st, index, &info);
    if (rc == 0 && info.nelems != nelems) {
        fprintf(stderr,
                "haul ckpt import: %s has %" PRIu64 " elements; the model's has %" PRIu64 "\n",
                name, info.nelems, nelems);
        return HAUL_E_FORMAT;
    }
    return rc < 0 ? rc : haul_safetensors_read(x->st, index, first, n, out);
}

static int has_part(const struct importing *x, uint32_t u, uint32_t t, enum part part)
{
    char name[NAME_BYTES];
    uint64_t index;

    part_name(&x->model->units[u], t, part, name);
    return haul_safetensors_find(x->st, name, &index) == 0;
}

static int import_source(void *user, uint32_t u, uint32_t t, uint64_t first, uint64_t n, float *p,
                         float *m, float *v)
{
    const struct importing *x = user;
    const struct hl_ckpt_unit *unit = &x->model->units[u];
    uint64_t elems = unit->places[t].elems;
    int trained = !unit->tensors[t].frozen;
    int moments = trained && has_part(x, u, t, EXP_AVG) && has_part(x, u, t, EXP_AVG_SQ);
    char name[NAME_BYTES];
    int rc;

    part_name(unit, t, trained && has_part(x, u, t, MASTER) ? MASTER : WEIGHT, name);
    rc = read_values(x, name, elems, first, n, p);
    if (rc < 0 || !trained)
        return rc;
    if (!moments) {
        memset(m, 0, n * sizeof *m);
        memset(v, 0, n * sizeof *v);
        return 0;
    }
    part_name(unit, t, EXP_AVG, name);
    rc = read_values(x, name, elems, first, n, m);
    part_name(unit, t, EXP_AVG_SQ, name);
    return rc < 0 ? rc : read_values(x, name, elems, first, n, v);
}

static uint64_t number_of(const struct haul_safetensors *st, const char *key)
{
    const char *text = haul_safetensors_metadata(st, key);

    return text == NULL ? 0 : strtoull(text, NULL, 10);
}

/* Steps from the file; the model is ck's, whose counts are set here. */
static void take_counters(const struct haul_safetensors *st, struct hl_ckpt_manifest *m)
{
    const char *scale = haul_safetensors_metadata(st, "loss_scale");
    char key[NAME_BYTES];

    m->step = number_of(st, "step");
    m->loss_scale = scale == NULL ? 0 : strtod(scale, NULL);
    m->nsteps_finite = (uint32_t)number_of(st, "loss_scale_finite_steps");
    for (uint32_t u = 0; u < m->model.nunits; u++) {
        snprintf(key, sizeof key, "updates.%s", m->model.units[u].name);
        m->model.units[u].nsteps = number_of(st, key);
    }
}

static int import_opened(struct hl_ckpt *ck, struct haul_safetensors *st, const char *root)
{
    struct importing x = {st, &ck->m.model};
    struct hl_ckpt_source source = {.fn = import_source, .user = &x};
    struct hl_ckpt_manifest m;

    take_counters(st, &ck->m);
    m = ck->m;
    return write_new("import", ck, &m, &source, root);
}

int hl_ckpt_tool_import(const struct hl_command *cmd, const char *file, const char *like,
                        const char *root)
{
    struct haul_safetensors *st;
    struct hl_ckpt *ck;
    int rc = hl_ckpt_tool_open(like, &ck);

    if (rc < 0)
        return hl_report_error(cmd, rc);
    rc = haul_safetensors_open(file, &st);
    if (rc == 0) {
        rc = import_opened(ck, st, root);
        haul_safetensors_close(st);
    }
    hl_ckpt_close(ck);
    return rc < 0 ? hl_report_error(cmd, rc) : HL_EXIT_OK;
}
