/* ckpt_inspect.c: haul ckpt inspect. Key names of --json are a contract: append only. */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>

#include "ckpt_tool.h"
#include "haul/size.h"

static void shape_text(const struct haul_tensor *t, char *out, size_t len)
{
    size_t at = 0;

    for (uint32_t d = 0; d < t->ndims && at < len; d++)
        at += (size_t)snprintf(out + at, len - at, "%s%" PRIu64, d ? ", " : "", t->shape[d]);
}

static uint64_t unit_bytes(const struct hl_ckpt *ck, uint32_t u)
{
    uint64_t bytes = 0;

    for (uint64_t i = ck->unit_at[u]; i < ck->unit_at[u + 1]; i++)
        bytes += ck->at[i].block.bytes;
    return bytes;
}

static void print_unit(const struct hl_ckpt *ck, uint32_t i)
{
    const struct hl_ckpt_unit *u = &ck->m.model.units[i];
    char size[32], shape[96];

    printf("\n%s: %" PRIu64 " parameters, %" PRIu64 " updates, %s\n", u->name, u->elems, u->nsteps,
           haul_format_size(unit_bytes(ck, i), size, sizeof size));
    for (uint32_t t = 0; t < u->ntensors; t++) {
        shape_text(&u->tensors[t], shape, sizeof shape);
        printf("  %-28s %s (%s)%s\n", u->tensors[t].name, hl_ckpt_dtype_name(u->tensors[t].dtype),
               shape, u->tensors[t].frozen ? ", frozen" : "");
    }
}

/* Of records that the files refer to. */
static uint64_t kept_bytes(const struct hl_ckpt *ck)
{
    uint64_t bytes = 0;

    for (uint32_t r = 0; r < ck->m.nranks; r++)
        bytes += ck->stores[r].head.nblocks * ck->stores[r].head.block_bytes;
    return bytes;
}

static void print_table(const struct hl_ckpt *ck)
{
    const struct hl_ckpt_manifest *m = &ck->m;
    uint64_t elems = 0;
    char size[32];

    for (uint32_t i = 0; i < m->model.nunits; i++)
        elems += m->model.units[i].elems;
    printf("checkpoint  %s\nversion     %u\nstep        %" PRIu64 "\n", ck->dir, m->version,
           m->step);
    printf("id          %016" PRIx64 ", the %" PRIu64 ". of its root\n", m->id, m->serial);
    if (m->loss_scale != 0)
        printf("loss scale  %g, %u steps without overflow\n", m->loss_scale, m->nsteps_finite);
    printf("parameters  %" PRIu64 " in %u units\n", elems, m->model.nunits);
    printf("size        %s in files of %u ranks\n",
           haul_format_size(hl_ckpt_tool_bytes(ck), size, sizeof size), m->nranks);
    if (kept_bytes(ck) != 0)
        printf("records     %s in the ranks' stores, or copied\n",
               haul_format_size(kept_bytes(ck), size, sizeof size));
    printf("user        %" PRIu64 " bytes\n", m->user_bytes);
    for (uint32_t i = 0; i < m->model.nunits; i++)
        print_unit(ck, i);
}

static json_t *unit_json(const struct hl_ckpt *ck, uint32_t i)
{
    const struct hl_ckpt_unit *u = &ck->m.model.units[i];
    json_t *tensors = json_array();

    for (uint32_t t = 0; t < u->ntensors; t++) {
        json_t *shape = json_array();
        for (uint32_t d = 0; d < u->tensors[t].ndims; d++)
            json_array_append_new(shape, json_integer((json_int_t)u->tensors[t].shape[d]));
        json_array_append_new(tensors,
                              json_pack("{s:s, s:s, s:o, s:b}", "name", u->tensors[t].name, "dtype",
                                        hl_ckpt_dtype_name(u->tensors[t].dtype), "shape", shape,
                                        "frozen", u->tensors[t].frozen != 0));
    }
    return json_pack("{s:s, s:I, s:I, s:I, s:o}", "name", u->name, "parameters",
                     (json_int_t)u->elems, "updates", (json_int_t)u->nsteps, "bytes",
                     (json_int_t)unit_bytes(ck, i), "tensors", tensors);
}

static void print_json(const struct hl_ckpt *ck)
{
    const struct hl_ckpt_manifest *m = &ck->m;
    json_t *units = json_array(), *root;
    char id[17];

    snprintf(id, sizeof id, "%016" PRIx64, m->id);
    for (uint32_t i = 0; i < m->model.nunits; i++)
        json_array_append_new(units, unit_json(ck, i));
    root = json_pack("{s:s, s:i, s:s, s:I, s:I, s:i, s:I, s:I, s:I, s:f, s:o}", "path", ck->dir,
                     "version", (int)m->version, "id", id, "serial", (json_int_t)m->serial, "step",
                     (json_int_t)m->step, "ranks", (int)m->nranks, "bytes",
                     (json_int_t)hl_ckpt_tool_bytes(ck), "kept_bytes", (json_int_t)kept_bytes(ck),
                     "user_bytes", (json_int_t)m->user_bytes, "loss_scale", m->loss_scale, "units",
                     units);
    if (root != NULL)
        json_dumpf(root, stdout, JSON_INDENT(2));
    putchar('\n');
    json_decref(root);
}

int hl_ckpt_tool_inspect(const struct hl_command *cmd, const char *path, int json)
{
    struct hl_ckpt *ck;
    int rc = hl_ckpt_tool_open(path, &ck);

    if (rc < 0)
        return hl_report_error(cmd, rc);
    if (json)
        print_json(ck);
    else
        print_table(ck);
    hl_ckpt_close(ck);
    return HL_EXIT_OK;
}
