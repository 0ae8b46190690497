/* safetensors_layout.c: which tensor goes into which file, and where in it; headers and index. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fail.h"
#include "json_text.h"
#include "safetensors_writer.h"
#include "sys.h"

#define MOST_SHARDS 99999u
#define MOST_BYTES  (UINT64_C(1) << 62)

static int refused(const char *name, const char *why)
{
    char shown[HL_SHOWN_BYTES];

    return hl_fail(-EINVAL, "safetensors: tensor '%s': %s",
                   hl_json_shown(name ? name : "", shown, sizeof shown), why);
}

static int take_decl(const struct haul_safetensors_decl *d, struct hl_st_slot *slot)
{
    uint64_t n = 1;
    int rc;

    if (!d->name)
        return refused(d->name, "it has no name");
    if (strcmp(d->name, "__metadata__") == 0)
        return refused(d->name, "the format keeps this name for itself");
    if (d->ndims && !d->shape)
        return refused(d->name, "shape is NULL");
    slot->dtype = hl_st_dtype_of(d->dtype);
    if (!slot->dtype)
        return refused(d->name, "dtype is none of FP32, BF16, FP16");
    for (uint32_t i = 0; i < d->ndims; i++)
        if (__builtin_mul_overflow(n, d->shape[i], &n) || n > MOST_BYTES / 4)
            return hl_fail(-EOVERFLOW, "safetensors: tensor '%.80s' has more than 2^60 elements",
                           d->name);
    rc = hl_sys_strdup(d->name, &slot->name);
    slot->nelems = n;
    slot->bytes = n * slot->dtype->bits / 8;
    return rc;
}

/* Fill files one after the other, in the order of the declarations. */
static int assign(struct haul_safetensors_writer *w, uint64_t shard_bytes)
{
    uint64_t filled = 0;
    uint32_t shard = 0;

    for (uint64_t i = 0; i < w->nslots; i++) {
        struct hl_st_slot *slot = &w->slots[i];

        if (slot->bytes > MOST_BYTES - filled)
            return hl_fail(-EOVERFLOW, "safetensors: more than 2^62 bytes in one file");
        if (shard_bytes && filled &&
            slot->bytes > shard_bytes - (filled < shard_bytes ? filled : shard_bytes)) {
            filled = 0;
            if (++shard == MOST_SHARDS)
                return hl_fail(-EINVAL, "safetensors: shard_bytes %" PRIu64 " makes over %u files",
                               shard_bytes, MOST_SHARDS);
        }
        slot->shard = shard;
        filled += slot->bytes;
    }
    w->nshards = shard + 1;
    return 0;
}

/* Places in the data: tensors of wide elements first, so that every one is aligned. */
static void place(struct haul_safetensors_writer *w)
{
    static const uint32_t widths[] = {32, 16};

    for (unsigned k = 0; k < sizeof widths / sizeof *widths; k++)
        for (uint64_t i = 0; i < w->nslots; i++) {
            struct hl_st_slot *slot = &w->slots[i];

            if (slot->dtype->bits != widths[k])
                continue;
            slot->at = w->shards[slot->shard].data_bytes;
            w->shards[slot->shard].data_bytes += slot->bytes;
        }
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static int check_unique(const struct haul_safetensors_writer *w)
{
    char **names;
    int rc = hl_sys_alloc_array(w->nslots, sizeof *names, (void **)&names);

    if (rc < 0)
        return rc;
    for (uint64_t i = 0; i < w->nslots; i++)
        names[i] = w->slots[i].name;
    if (w->nslots)
        qsort(names, w->nslots, sizeof *names, by_text);
    for (uint64_t i = 1; rc == 0 && i < w->nslots; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            rc = refused(names[i], "declared twice");
    hl_sys_free(names);
    return rc;
}

int hl_st_layout_make(struct haul_safetensors_writer *w, const struct haul_safetensors_decl *decls,
                      uint64_t ndecls, uint64_t shard_bytes)
{
    int rc = hl_sys_alloc_array(ndecls, sizeof *w->slots, (void **)&w->slots);

    if (rc < 0)
        return rc;
    for (; w->nslots < ndecls; w->nslots++) {
        rc = take_decl(&decls[w->nslots], &w->slots[w->nslots]);
        if (rc < 0)
            return rc;
    }
    rc = check_unique(w);
    if (rc == 0)
        rc = assign(w, shard_bytes);
    if (rc == 0)
        rc = hl_sys_alloc_array(w->nshards, sizeof *w->shards, (void **)&w->shards);
    if (rc < 0)
        return rc;
    for (uint32_t s = 0; s < w->nshards; s++)
        w->shards[s].fd = -1;
    place(w);
    return 0;
}

static json_t *shape_json(const struct haul_safetensors_decl *d)
{
    json_t *shape = json_array();

    for (uint32_t i = 0; i < d->ndims; i++)
        if (json_array_append_new(shape, json_integer((json_int_t)d->shape[i])) < 0) {
            json_decref(shape);
            return NULL;
        }
    return shape;
}

static int add_tensor(json_t *root, const struct haul_safetensors_decl *d,
                      const struct hl_st_slot *s)
{
    json_t *entry, *name = json_string(d->name);

    if (!name)
        return refused(d->name, "the name is not UTF-8");
    json_decref(name);
    entry = json_pack("{s:s, s:o, s:[I, I]}", "dtype", s->dtype->name, "shape", shape_json(d),
                      "data_offsets", (json_int_t)s->at, (json_int_t)(s->at + s->bytes));
    if (!entry || json_object_set_new(root, d->name, entry) < 0)
        return hl_fail(-ENOMEM, "out of memory: the header of tensor '%.80s'", d->name);
    return 0;
}

static int fill_root(const struct haul_safetensors_writer *w,
                     const struct haul_safetensors_decl *decls, uint32_t shard, json_t *root)
{
    static const uint32_t widths[] = {32, 16};

    if (json_object_set(root, "__metadata__", w->metadata) < 0)
        return hl_fail(-ENOMEM, "out of memory: a header");
    for (unsigned k = 0; k < sizeof widths / sizeof *widths; k++)
        for (uint64_t i = 0; i < w->nslots; i++) {
            const struct hl_st_slot *slot = &w->slots[i];
            int rc;

            if (slot->shard != shard || slot->dtype->bits != widths[k])
                continue;
            rc = add_tensor(root, &decls[i], slot);
            if (rc < 0)
                return rc;
        }
    return 0;
}

/* The length, the JSON, and blanks up to where the data is aligned. */
static int print_header(const json_t *root, void **text, size_t *bytes)
{
    size_t n = json_dumpb(root, NULL, 0, JSON_COMPACT), whole;
    unsigned char *p;
    int rc;

    if (n == 0)
        return hl_fail(-ENOMEM, "out of memory: a header");
    whole = (HL_ST_LENGTH_BYTES + n + HL_ST_ALIGN - 1) / HL_ST_ALIGN * HL_ST_ALIGN;
    if (whole - HL_ST_LENGTH_BYTES > HL_ST_HEADER_MOST)
        return hl_fail(-EOVERFLOW,
                       "safetensors: a header of %zu bytes, at most %llu are allowed: use "
                       "shard_bytes, or fewer tensors",
                       n, HL_ST_HEADER_MOST);
    rc = hl_sys_alloc(whole, text);
    if (rc < 0)
        return rc;
    p = *text;
    memset(p, ' ', whole);
    for (unsigned i = 0; i < HL_ST_LENGTH_BYTES; i++)
        p[i] = (unsigned char)((uint64_t)(whole - HL_ST_LENGTH_BYTES) >> 8 * i);
    json_dumpb(root, (char *)p + HL_ST_LENGTH_BYTES, n, JSON_COMPACT);
    *bytes = whole;
    return 0;
}

int hl_st_layout_header(struct haul_safetensors_writer *w,
                        const struct haul_safetensors_decl *decls, uint32_t shard, void **text,
                        size_t *bytes)
{
    int rc = hl_sys_attempt("build a header");
    json_t *root;

    if (rc < 0)
        return rc;
    root = json_object();
    if (!root)
        return hl_fail(-ENOMEM, "out of memory: a header");
    rc = fill_root(w, decls, shard, root);
    if (rc == 0)
        rc = print_header(root, text, bytes);
    json_decref(root);
    if (rc < 0)
        return rc;
    w->shards[shard].header_bytes = *bytes - HL_ST_LENGTH_BYTES;
    for (uint64_t i = 0; i < w->nslots; i++)
        if (w->slots[i].shard == shard)
            w->slots[i].at += *bytes;
    return 0;
}

int hl_st_layout_index(const struct haul_safetensors_writer *w, json_t **out)
{
    json_t *map = json_object(), *root;
    uint64_t total = 0;
    int lost = 0;

    for (uint64_t i = 0; i < w->nslots; i++) {
        const struct hl_st_slot *slot = &w->slots[i];

        total += slot->bytes;
        lost |= json_object_set_new(map, slot->name, json_string(w->shards[slot->shard].name)) < 0;
    }
    root =
        json_pack("{s:{s:I}, s:o}", "metadata", "total_size", (json_int_t)total, "weight_map", map);
    if (root && !lost) {
        *out = root;
        return 0;
    }
    json_decref(root);
    return hl_fail(-ENOMEM, "out of memory: the index of a set");
}
