/* ckpt_model.c: see ckpt_model.h. */
#include "ckpt_model.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "fail.h"
#include "snapshot.h"
#include "sys.h"

/* ---- making ---- */

static void free_unit(struct hl_ckpt_unit *u)
{
    for (uint32_t t = 0; u->tensors && t < u->ntensors; t++)
        hl_sys_free((void *)(uintptr_t)u->tensors[t].name);
    hl_sys_free(u->tensors);
    hl_sys_free(u->places);
    hl_sys_free(u->name);
}

void hl_ckpt_model_free(struct hl_ckpt_model *model)
{
    for (uint32_t i = 0; i < model->nunits; i++)
        free_unit(&model->units[i]);
    hl_sys_free(model->units);
    *model = (struct hl_ckpt_model){0};
}

static int grow(struct hl_ckpt_model *model)
{
    uint32_t cap = model->cap ? model->cap * 2 : 16;
    void *more;
    int rc;

    if (model->nunits < model->cap)
        return 0;
    if ((rc = hl_sys_alloc_array(cap, sizeof *model->units, &more)) < 0)
        return rc;
    if (model->nunits)
        memcpy(more, model->units, model->nunits * sizeof *model->units);
    hl_sys_free(model->units);
    model->units = more;
    model->cap = cap;
    return 0;
}

static int copy_tensors(struct hl_ckpt_unit *u, const struct haul_tensor *tensors,
                        uint32_t ntensors)
{
    int rc = hl_sys_alloc_array(ntensors, sizeof *u->tensors, (void **)&u->tensors);

    for (; rc == 0 && u->ntensors < ntensors; u->ntensors++) {
        char *name;
        if ((rc = hl_sys_strdup(tensors[u->ntensors].name, &name)) < 0)
            break;
        u->tensors[u->ntensors] = tensors[u->ntensors];
        u->tensors[u->ntensors].name = name;
    }
    return rc;
}

int hl_ckpt_model_add(struct hl_ckpt_model *model, const char *name, uint64_t nsteps,
                      const struct haul_tensor *tensors, uint32_t ntensors)
{
    struct hl_ckpt_unit u = {.nsteps = nsteps};
    struct hl_layout layout = {.elems = 0};
    int rc = grow(model);

    if (rc == 0)
        rc = hl_sys_strdup(name, &u.name);
    if (rc == 0)
        rc = copy_tensors(&u, tensors, ntensors);
    if (rc == 0)
        rc = hl_sys_alloc_array(ntensors, sizeof *u.places, (void **)&u.places);
    if (rc == 0)
        rc = hl_layout_make(u.tensors, ntensors, 1, u.places, &layout);
    if (rc < 0) {
        free_unit(&u);
        return rc;
    }
    u.elems = layout.elems;
    model->units[model->nunits++] = u;
    return 0;
}

int hl_ckpt_model_of(const struct haul_engine *e, struct hl_ckpt_model *out)
{
    struct hl_ckpt_model model = {0};
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < hl_snapshot_nunits(e); i++) {
        struct hl_snapshot_unit u;
        hl_snapshot_unit(e, i, &u);
        rc = hl_ckpt_model_add(&model, u.name, u.nsteps, u.tensors, u.ntensors);
    }
    if (rc < 0)
        hl_ckpt_model_free(&model);
    else
        *out = model;
    return rc;
}

/* ---- comparing ---- */

const char *hl_ckpt_dtype_name(enum haul_dtype dtype)
{
    return dtype == HAUL_FP32 ? "fp32" : dtype == HAUL_BF16 ? "bf16" : "fp16";
}

static void shape_text(const struct haul_tensor *t, char *out, size_t len)
{
    size_t at = 0;

    for (uint32_t d = 0; d < t->ndims && at < len; d++)
        at += (size_t)snprintf(out + at, len - at, "%s%" PRIu64, d ? ", " : "", t->shape[d]);
}

static int same_shape(const struct haul_tensor *a, const struct haul_tensor *b)
{
    return a->ndims == b->ndims && memcmp(a->shape, b->shape, a->ndims * sizeof *a->shape) == 0;
}

static int match_tensor(const char *what, const char *unit, const struct haul_tensor *saved,
                        const struct haul_tensor *t)
{
    char a[96], b[96];

    if (strcmp(saved->name, t->name) != 0)
        return hl_fail(HAUL_E_CONFIG, "%s: unit %s has tensor %s where the engine has %s", what,
                       unit, saved->name, t->name);
    if (!same_shape(saved, t)) {
        shape_text(saved, a, sizeof a);
        shape_text(t, b, sizeof b);
        return hl_fail(HAUL_E_CONFIG, "%s: unit %s, tensor %s is (%s), the engine's is (%s)", what,
                       unit, t->name, a, b);
    }
    if (saved->dtype != t->dtype)
        return hl_fail(HAUL_E_CONFIG, "%s: unit %s, tensor %s is %s, the engine's is %s", what,
                       unit, t->name, hl_ckpt_dtype_name(saved->dtype),
                       hl_ckpt_dtype_name(t->dtype));
    if (!saved->frozen != !t->frozen)
        return hl_fail(HAUL_E_CONFIG, "%s: unit %s, tensor %s is %s, the engine's is %s", what,
                       unit, t->name, saved->frozen ? "frozen" : "trained",
                       t->frozen ? "frozen" : "trained");
    return 0;
}

static int match_unit(const char *what, const struct hl_ckpt_unit *saved,
                      const struct hl_ckpt_unit *u)
{
    int rc = 0;

    if (strcmp(saved->name, u->name) != 0)
        return hl_fail(HAUL_E_CONFIG, "%s: has unit %s where the engine has %s", what, saved->name,
                       u->name);
    if (saved->ntensors != u->ntensors)
        return hl_fail(HAUL_E_CONFIG, "%s: unit %s has %u tensors, the engine's has %u", what,
                       u->name, saved->ntensors, u->ntensors);
    for (uint32_t t = 0; rc == 0 && t < u->ntensors; t++)
        rc = match_tensor(what, u->name, &saved->tensors[t], &u->tensors[t]);
    return rc;
}

int hl_ckpt_model_match(const char *what, const struct hl_ckpt_model *saved,
                        const struct hl_ckpt_model *model)
{
    int rc = 0;

    if (saved->nunits != model->nunits)
        return hl_fail(HAUL_E_CONFIG, "%s: is of %u units, the engine has %u", what, saved->nunits,
                       model->nunits);
    for (uint32_t i = 0; rc == 0 && i < model->nunits; i++)
        rc = match_unit(what, &saved->units[i], &model->units[i]);
    return rc;
}

uint32_t hl_ckpt_tensor_at(const struct hl_ckpt_unit *u, uint64_t at)
{
    uint32_t low = 0, high = u->ntensors;

    while (high - low > 1) { /* the last that begins at or before it: past those without elements */
        uint32_t mid = low + (high - low) / 2;
        if (u->places[mid].logical_elem <= at)
            low = mid;
        else
            high = mid;
    }
    return low;
}

/* ---- cutting ---- */

enum hl_ckpt_kind hl_ckpt_kind_of(const struct haul_tensor *t)
{
    if (!t->frozen)
        return HL_CKPT_TRAINED;
    return t->dtype == HAUL_FP32 ? HL_CKPT_FROZEN32 : HL_CKPT_FROZEN16;
}

uint64_t hl_ckpt_bytes(enum hl_ckpt_kind kind, uint64_t n)
{
    static const uint64_t each[HL_CKPT_NKINDS] = {12, 2, 4, 0, 2, 4, 1};

    return n * each[kind] + (hl_ckpt_is_kept(kind) ? sizeof(struct hl_ckpt_kept) : 0);
}

struct cutter {
    const struct hl_ckpt_keeper *keeper;
    struct hl_ckpt_block *blocks; /* NULL: only count */
    uint64_t nblocks, at;
};

static void put_block(struct cutter *c, uint32_t unit, enum hl_ckpt_kind kind, uint64_t first,
                      uint64_t n)
{
    uint64_t bytes = (hl_ckpt_bytes(kind, n) + HL_CKPT_ALIGN - 1) / HL_CKPT_ALIGN * HL_CKPT_ALIGN;

    if (c->blocks)
        c->blocks[c->nblocks] = (struct hl_ckpt_block){
            .unit = unit, .kind = kind, .first = first, .n = n, .offset = c->at, .bytes = bytes};
    c->nblocks++;
    c->at += bytes;
}

/* What of a tensor lies in the shard of its span that begins at `begin`. */
static void cut_tensor(struct cutter *c, const struct hl_ckpt_unit *u, uint32_t unit, uint32_t t,
                       const struct hl_place *pl, const struct hl_span *span, uint32_t rank)
{
    uint64_t begin = rank * span->shard_elems, shard_end = begin + span->shard_elems;
    uint64_t first = pl->first_elem > begin ? pl->first_elem : begin;
    uint64_t end = pl->first_elem + pl->elems, n;
    enum hl_ckpt_kind kind = hl_ckpt_kind_of(&u->tensors[t]);
    struct hl_ckpt_kept where;

    end = end < shard_end ? end : shard_end;
    for (; first < end; first += n) {
        n = end - first < HL_CKPT_BLOCK_ELEMS ? end - first : HL_CKPT_BLOCK_ELEMS;
        if (c->keeper)
            n = c->keeper->part(c->keeper->user, unit, t, first - pl->first_elem, n, &kind, &where);
        put_block(c, unit, kind, pl->logical_elem + first - pl->first_elem, n);
    }
}

/* Span by span, as a paged record's chunks hold them: each is read once. */
static int cut_unit(struct cutter *c, const struct hl_ckpt_unit *u, uint32_t unit, uint32_t nranks,
                    uint32_t rank)
{
    struct hl_layout layout;
    struct hl_place *places;
    int rc = hl_sys_alloc_array(u->ntensors, sizeof *places, (void **)&places);

    if (rc < 0)
        return rc;
    rc = hl_layout_make(u->tensors, u->ntensors, nranks, places, &layout);
    for (unsigned s = 0; rc == 0 && s < HL_NSPANS; s++)
        for (uint32_t t = 0; t < u->ntensors; t++)
            if (places[t].span == s)
                cut_tensor(c, u, unit, t, &places[t], &layout.span[s], rank);
    hl_sys_free(places);
    return rc;
}

static int cut(struct cutter *c, const struct hl_ckpt_model *model, uint32_t nranks, uint32_t rank)
{
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < model->nunits; i++)
        rc = cut_unit(c, &model->units[i], i, nranks, rank);
    if (rc == 0 && c->keeper)
        put_block(c, 0, HL_CKPT_STORE, 0, c->keeper->store_bytes);
    return rc;
}

int hl_ckpt_cut(const struct hl_ckpt_model *model, const struct hl_ckpt_keeper *keeper,
                uint32_t nranks, uint32_t rank, uint64_t at, struct hl_ckpt_block **out,
                uint64_t *nblocks)
{
    struct cutter c = {.keeper = keeper, .at = at};
    void *mem;
    int rc = cut(&c, model, nranks, rank);

    if (rc == 0)
        rc = hl_sys_alloc_array(c.nblocks, sizeof *c.blocks, &mem);
    if (rc < 0)
        return rc;
    c = (struct cutter){.keeper = keeper, .at = at, .blocks = mem};
    rc = cut(&c, model, nranks, rank);
    if (rc < 0) {
        hl_sys_free(mem);
        return rc;
    }
    *out = mem;
    *nblocks = c.nblocks;
    return 0;
}
