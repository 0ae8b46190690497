/* weights.c: see weights.h. */
#include "weights.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "hf_names.h"
#include "trainer.h"

#define PIECE_ELEMS (1u << 16)

/* ---- reading ---- */

/* Unit u of a model of so many layers. */
static enum gpt_unit kind_of(const struct gpt_shape *shape, uint64_t u)
{
    return u == 0 ? GPT_EMBED : u == shape->layers + 1 ? GPT_FINAL : GPT_BLOCK;
}

/* The flag that makes this model's token or position table as the file's; "": none does. */
static void say_remedy(const struct haul_safetensors_info *info, const struct gpt_tensor *want,
                       char *out, size_t size)
{
    bool tokens = strcmp(want->name, "wte") == 0;

    *out = '\0';
    if (info->ndims != 2 || (!tokens && strcmp(want->name, "wpe") != 0))
        return;
    if (info->shape[1] != want->shape[1])
        snprintf(out, size, "; give --dim %" PRIu64, info->shape[1]);
    else if (!tokens && info->shape[0] < want->shape[0])
        snprintf(out, size, "; give --seq %" PRIu64 " or less", info->shape[0]);
    else if (tokens && info->shape[0] != want->shape[0] && info->shape[0] >= GPT_TOKENS)
        snprintf(out, size, "; give --vocab %" PRIu64, info->shape[0]);
}

/* A file where one is wrong for this model. */
static int unfit(const char *path, const struct haul_safetensors_info *info,
                 const struct gpt_tensor *want)
{
    char have[96] = "", model[64], remedy[64];
    size_t n = 0;

    for (uint32_t i = 0; i < info->ndims && i < 3; i++)
        n += (size_t)snprintf(have + n, sizeof have - n, "%s%" PRIu64, i ? ", " : "",
                              info->shape[i]);
    if (want->ndims == 2)
        snprintf(model, sizeof model, "%" PRIu64 ", %" PRIu64, want->shape[0], want->shape[1]);
    else
        snprintf(model, sizeof model, "%" PRIu64, want->shape[0]);
    say_remedy(info, want, remedy, sizeof remedy);
    fprintf(stderr,
            "train_gpt: --init %s: %s is %s (%s), this model's is (%s) in F32, BF16 or F16%s\n",
            path, info->name, info->dtype_name, have, model, remedy);
    return -1;
}

static int find(const struct weights *w, enum gpt_unit unit, uint64_t layer, uint32_t tensor,
                uint64_t *index, int *transposed)
{
    struct hf_tensor hf;
    char name[HF_NAME_BYTES + sizeof HF_PREFIX];

    hf_tensor_of(unit, layer, tensor, &hf);
    snprintf(name, sizeof name, "%s%s", w->prefix, hf.name);
    *transposed = hf.transposed;
    return haul_safetensors_find(w->file, name, index);
}

static int check_tensor(const struct weights *w, const char *path, enum gpt_unit unit,
                        uint64_t layer, uint32_t tensor)
{
    struct haul_safetensors_info info = {.struct_size = sizeof info};
    struct gpt_tensor want;
    uint64_t index;
    int transposed, more_rows = unit == GPT_EMBED && tensor == GPT_WPE, fits;

    if (find(w, unit, layer, tensor, &index, &transposed) < 0 ||
        haul_safetensors_get_info(w->file, index, &info) < 0) {
        fprintf(stderr, "train_gpt: --init: %s\n", haul_last_error());
        return -1;
    }
    gpt_unit_tensor(&w->shape, unit, tensor, &want);
    if (transposed) {
        uint64_t rows = want.shape[0];

        want.shape[0] = want.shape[1];
        want.shape[1] = rows;
    }
    fits = info.ndims == want.ndims && info.dtype != HAUL_DTYPE_NONE &&
           (info.shape[0] == want.shape[0] || (more_rows && info.shape[0] > want.shape[0])) &&
           (info.ndims == 1 || info.shape[1] == want.shape[1]);
    return fits ? 0 : unfit(path, &info, &want);
}

int weights_open(const char *path, const struct gpt_shape *shape, struct weights *out)
{
    struct weights w = {.shape = *shape, .prefix = ""};
    uint64_t index;
    int rc = 0;

    *out = w;
    if (path == NULL)
        return 0;
    if (haul_safetensors_open(path, &w.file) < 0) {
        fprintf(stderr, "train_gpt: --init: %s\n", haul_last_error());
        return -1;
    }
    if (haul_safetensors_find(w.file, HF_PREFIX "wte.weight", &index) == 0)
        w.prefix = HF_PREFIX;
    for (uint64_t u = 0; rc == 0 && u < shape->layers + 2; u++)
        for (uint32_t i = 0; rc == 0 && i < gpt_unit_ntensors(kind_of(shape, u)); i++)
            rc = check_tensor(&w, path, kind_of(shape, u), u - 1, i);
    if (rc < 0)
        weights_close(&w);
    else
        *out = w;
    return rc;
}

void weights_close(struct weights *w)
{
    haul_safetensors_close(w->file);
    free(w->turned);
    w->file = NULL;
    w->turned = NULL;
}

/* (rows, cols) of the model from (cols, rows) in the file, a row of the file at a time. */
static int turn(struct weights *w, uint64_t index, uint64_t rows, uint64_t cols)
{
    float *line = malloc(rows * sizeof *line);
    int rc = line == NULL ? -ENOMEM : 0;

    if (rc == 0 && w->turned == NULL)
        w->turned = malloc(4 * w->shape.dim * w->shape.dim * sizeof *w->turned); /* the largest */
    if (w->turned == NULL)
        rc = -ENOMEM;
    w->turned_index = UINT64_MAX;
    for (uint64_t c = 0; rc == 0 && c < cols; c++) {
        rc = haul_safetensors_read(w->file, index, c * rows, rows, line);
        for (uint64_t r = 0; rc == 0 && r < rows; r++)
            w->turned[r * cols + c] = line[r];
    }
    if (rc == 0)
        w->turned_index = index;
    free(line);
    return rc;
}

int weights_read(struct weights *w, enum gpt_unit unit, uint64_t layer, uint32_t tensor,
                 uint64_t first, uint64_t n, float *out)
{
    struct gpt_tensor info;
    uint64_t index;
    int transposed, rc = find(w, unit, layer, tensor, &index, &transposed);

    if (rc < 0 || !transposed)
        return rc < 0 ? rc : haul_safetensors_read(w->file, index, first, n, out);
    gpt_unit_tensor(&w->shape, unit, tensor, &info);
    if (w->turned == NULL || w->turned_index != index)
        rc = turn(w, index, info.shape[0], info.shape[1]);
    if (rc == 0)
        memcpy(out, w->turned + first, n * sizeof *out);
    return rc;
}

/* ---- writing ---- */

/* What is being written: on rank 0 to the file, on the others nowhere. */
struct dump {
    const struct trainer *t;
    struct haul_safetensors_writer *writer; /* NULL: another rank writes, or writing has failed */
    float *values, *turned;                 /* a tensor each */
    int rc; /* of writing: reading goes on, since all ranks read together */
    struct hl_time_left left;
    uint64_t done_bytes;
};

static uint64_t largest_tensor_elems(const struct gpt_shape *shape)
{
    uint64_t most = shape->seq > shape->vocab ? shape->seq : shape->vocab;

    return shape->dim * (most > 4 * shape->dim ? most : 4 * shape->dim);
}

static int dump_tensor(struct dump *d, uint32_t u, uint32_t i, uint64_t index)
{
    enum gpt_unit kind = trainer_kind(d->t, u);
    float *values = d->values;
    struct gpt_tensor info;
    struct hf_tensor hf;
    uint64_t n;
    int rc = 0;

    hf_tensor_of(kind, u - 1, i, &hf);
    gpt_unit_tensor(&d->t->shape, kind, i, &info);
    n = info.shape[0] * info.shape[1];
    for (uint64_t first = 0; rc == 0 && first < n; first += PIECE_ELEMS)
        rc = haul_tensor_read(d->t->units[u], i, first,
                              n - first < PIECE_ELEMS ? n - first : PIECE_ELEMS, values + first);
    d->done_bytes += n * sizeof(float);
    if (d->t->ranks->rank == 0 && !d->t->args->quiet)
        hl_time_left_at(&d->left, d->done_bytes);
    if (rc < 0 || d->writer == NULL || d->rc < 0)
        return rc;
    if (hf.transposed) {
        for (uint64_t r = 0; r < info.shape[0]; r++)
            for (uint64_t c = 0; c < info.shape[1]; c++)
                d->turned[c * info.shape[0] + r] = values[r * info.shape[1] + c];
        values = d->turned;
    }
    d->rc = haul_safetensors_writer_put(d->writer, index, 0, n, values);
    return 0;
}

/* A tensor of the model as the file has it, with the memory that its declaration points to. */
struct declared {
    struct haul_safetensors_decl decl;
    struct hf_tensor hf;
    uint64_t shape[2];
};

static void declare(const struct trainer *t, uint32_t u, uint32_t i, struct declared *out)
{
    struct gpt_tensor info;

    gpt_unit_tensor(&t->shape, trainer_kind(t, u), i, &info);
    hf_tensor_of(trainer_kind(t, u), u - 1, i, &out->hf);
    out->shape[out->hf.transposed] = info.shape[0];
    out->shape[!out->hf.transposed] = info.shape[1];
    out->decl = (struct haul_safetensors_decl){
        .name = out->hf.name, .dtype = HAUL_FP32, .ndims = info.ndims, .shape = out->shape};
}

static int open_writer(const struct trainer *t, const char *path,
                       struct haul_safetensors_writer **out)
{
    uint64_t n = (uint64_t)t->nunits * GPT_MAX_TENSORS, at = 0;
    struct declared *all = calloc(n, sizeof *all);
    struct haul_safetensors_decl *decls = calloc(n, sizeof *decls);
    int rc = all == NULL || decls == NULL ? -ENOMEM : 0;

    for (uint32_t u = 0; rc == 0 && u < t->nunits; u++)
        for (uint32_t i = 0; i < gpt_unit_ntensors(trainer_kind(t, u)); i++, at++) {
            declare(t, u, i, &all[at]);
            decls[at] = all[at].decl;
        }
    if (rc == 0)
        rc = haul_safetensors_writer_open(path, NULL, decls, at, out);
    free(all);
    free(decls);
    return rc;
}

static uint64_t count_bytes(const struct trainer *t)
{
    uint64_t n = 0;

    for (uint32_t u = 0; u < t->nunits; u++)
        n += gpt_unit_elems(&t->shape, trainer_kind(t, u));
    return n * sizeof(float);
}

int weights_write(const struct trainer *t, const char *path)
{
    uint64_t most = largest_tensor_elems(&t->shape), index = 0;
    struct dump d = {
        .t = t, .values = malloc(most * sizeof(float)), .turned = malloc(most * sizeof(float))};
    int rc = d.values == NULL || d.turned == NULL ? -ENOMEM : 0;

    hl_time_left_begin(&d.left, "writing weights", count_bytes(t), 1);
    if (rc == 0 && t->ranks->rank == 0)
        d.rc = open_writer(t, path, &d.writer);
    for (uint32_t u = 0; rc == 0 && u < t->nunits; u++)
        for (uint32_t i = 0; rc == 0 && i < gpt_unit_ntensors(trainer_kind(t, u)); i++)
            rc = dump_tensor(&d, u, i, index++);
    hl_time_left_end(&d.left);
    if (rc == 0)
        rc = d.rc;
    if (rc == 0 && d.writer != NULL)
        rc = haul_safetensors_writer_finish(d.writer);
    haul_safetensors_writer_close(d.writer);
    free(d.values);
    free(d.turned);
    return rc;
}
