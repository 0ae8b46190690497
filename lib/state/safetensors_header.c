/* safetensors_header.c: a header is untrusted input. */
#include "safetensors_header.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fail.h"
#include "json_text.h"
#include "sys.h"

#define METADATA "__metadata__"

static const struct hl_st_dtype dtypes[] = {
    {"F32", 32, HAUL_FP32},
    {"BF16", 16, HAUL_BF16},
    {"F16", 16, HAUL_FP16},
    {"F64", 64, HAUL_DTYPE_NONE},
    {"C64", 64, HAUL_DTYPE_NONE},
    {"I64", 64, HAUL_DTYPE_NONE},
    {"U64", 64, HAUL_DTYPE_NONE},
    {"I32", 32, HAUL_DTYPE_NONE},
    {"U32", 32, HAUL_DTYPE_NONE},
    {"I16", 16, HAUL_DTYPE_NONE},
    {"U16", 16, HAUL_DTYPE_NONE},
    {"I8", 8, HAUL_DTYPE_NONE},
    {"U8", 8, HAUL_DTYPE_NONE},
    {"BOOL", 8, HAUL_DTYPE_NONE},
    {"F8_E4M3", 8, HAUL_DTYPE_NONE},
    {"F8_E5M2", 8, HAUL_DTYPE_NONE},
    {"F8_E8M0", 8, HAUL_DTYPE_NONE},
    {"F8_E4M3FNUZ", 8, HAUL_DTYPE_NONE},
    {"F8_E5M2FNUZ", 8, HAUL_DTYPE_NONE},
    {"F6_E2M3", 6, HAUL_DTYPE_NONE},
    {"F6_E3M2", 6, HAUL_DTYPE_NONE},
    {"F4", 4, HAUL_DTYPE_NONE},
};

#define NDTYPES (sizeof dtypes / sizeof *dtypes)

const struct hl_st_dtype *hl_st_dtype_named(const char *name)
{
    for (size_t i = 0; i < NDTYPES; i++)
        if (strcmp(dtypes[i].name, name) == 0)
            return &dtypes[i];
    return NULL;
}

const struct hl_st_dtype *hl_st_dtype_of(enum haul_dtype dtype)
{
    for (size_t i = 0; i < NDTYPES; i++)
        if (dtype != HAUL_DTYPE_NONE && dtypes[i].haul == dtype)
            return &dtypes[i];
    return NULL;
}

/* What is being parsed, for messages. */
struct at {
    const char *what, *tensor;
};

static int refused(const struct at *at, const char *why)
{
    char shown[HL_SHOWN_BYTES];

    return hl_fail(HAUL_E_FORMAT, "%s: tensor '%s': %s", at->what,
                   hl_json_shown(at->tensor, shown, sizeof shown), why);
}

/* A JSON integer, 0 or more. */
static int is_count(const json_t *value)
{
    return json_is_integer(value) && json_integer_value(value) >= 0;
}

static int take_dtype(const struct at *at, const json_t *value, struct hl_st_tensor *out)
{
    char shown[HL_SHOWN_BYTES], why[HL_SHOWN_BYTES + 32];

    if (!json_is_string(value))
        return refused(at, "dtype is no text");
    out->dtype = hl_st_dtype_named(json_string_value(value));
    if (out->dtype)
        return 0;
    hl_json_shown(json_string_value(value), shown, sizeof shown);
    snprintf(why, sizeof why, "dtype '%s' is not known", shown);
    return refused(at, why);
}

static int take_shape(const struct at *at, const json_t *value, uint64_t *dims,
                      struct hl_st_tensor *out)
{
    size_t n = json_array_size(value);

    if (!json_is_array(value))
        return refused(at, "shape is no list");
    out->shape = dims;
    out->ndims = (uint32_t)n;
    out->nelems = 1;
    for (size_t i = 0; i < n; i++) {
        if (!is_count(json_array_get(value, i)))
            return refused(at, "shape has an entry that is no whole number, 0 or more");
        dims[i] = (uint64_t)json_integer_value(json_array_get(value, i));
        if (__builtin_mul_overflow(out->nelems, dims[i], &out->nelems))
            return refused(at, "shape has more than 2^64 elements");
    }
    return 0;
}

static int take_offsets(const struct at *at, const json_t *value, struct hl_st_tensor *out)
{
    const json_t *begin = json_array_get(value, 0), *end = json_array_get(value, 1);

    if (json_array_size(value) != 2 || !is_count(begin) || !is_count(end))
        return refused(at, "data_offsets is no list of two whole numbers, 0 or more");
    out->begin = (uint64_t)json_integer_value(begin);
    out->end = (uint64_t)json_integer_value(end);
    return out->begin > out->end ? refused(at, "data_offsets end before they begin") : 0;
}

static int check_size(const struct at *at, const struct hl_st_tensor *t, uint64_t data_bytes)
{
    char why[160];
    uint64_t bits;

    if (t->end > data_bytes) {
        snprintf(why, sizeof why,
                 "data_offsets end at %" PRIu64 ", past the file's %" PRIu64 " bytes of data",
                 t->end, data_bytes);
        return refused(at, why);
    }
    if (__builtin_mul_overflow(t->nelems, (uint64_t)t->dtype->bits, &bits))
        return refused(at, "shape has more than 2^64 bits");
    if (bits % 8 != 0)
        return refused(at, "its elements do not fill whole bytes");
    if (t->end - t->begin == bits / 8)
        return 0;
    snprintf(why, sizeof why,
             "data_offsets span %" PRIu64 " bytes, but shape and dtype take %" PRIu64,
             t->end - t->begin, bits / 8);
    return refused(at, why);
}

static int take_tensor(const struct at *at, json_t *value, uint64_t data_bytes, uint64_t *dims,
                       struct hl_st_tensor *out)
{
    int rc;

    if (!json_is_object(value))
        return refused(at, "no object");
    if (json_object_size(value) != 3 || !json_object_get(value, "dtype") ||
        !json_object_get(value, "shape") || !json_object_get(value, "data_offsets"))
        return refused(at, "its keys are not dtype, shape and data_offsets");
    out->name = at->tensor;
    rc = take_dtype(at, json_object_get(value, "dtype"), out);
    if (rc == 0)
        rc = take_shape(at, json_object_get(value, "shape"), dims, out);
    if (rc == 0)
        rc = take_offsets(at, json_object_get(value, "data_offsets"), out);
    return rc < 0 ? rc : check_size(at, out, data_bytes);
}

static int take_metadata(const char *what, json_t *value, struct hl_st_header *out)
{
    const char *key;
    json_t *text;

    if (!json_is_object(value))
        return hl_fail(HAUL_E_FORMAT, "%s: " METADATA " is no object", what);
    json_object_foreach (value, key, text)
        if (!json_is_string(text))
            return hl_fail(HAUL_E_FORMAT, "%s: " METADATA " has a value that is no text", what);
    out->metadata = value;
    return 0;
}

static int by_place(const void *a, const void *b)
{
    const struct hl_st_tensor *x = a, *y = b;

    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    if (x->end != y->end)
        return x->end < y->end ? -1 : 1;
    return strcmp(x->name, y->name);
}

/* Every byte of the data belongs to exactly one tensor. */
static int check_cover(const char *what, const struct hl_st_header *h, uint64_t data_bytes)
{
    char before[HL_SHOWN_BYTES], name[HL_SHOWN_BYTES];
    uint64_t covered = 0;

    for (uint64_t i = 0; i < h->ntensors; i++) {
        const struct hl_st_tensor *t = &h->tensors[i];

        hl_json_shown(t->name, name, sizeof name);
        if (t->begin < covered)
            return hl_fail(HAUL_E_FORMAT, "%s: tensors '%s' and '%s' overlap", what,
                           hl_json_shown(h->tensors[i - 1].name, before, sizeof before), name);
        if (t->begin > covered)
            return hl_fail(HAUL_E_FORMAT,
                           "%s: a hole of %" PRIu64 " bytes of data before tensor '%s'", what,
                           t->begin - covered, name);
        covered = t->end;
    }
    if (covered != data_bytes)
        return hl_fail(HAUL_E_FORMAT, "%s: %" PRIu64 " bytes after the last tensor", what,
                       data_bytes - covered);
    return 0;
}

/* Room for every tensor and for every dimension of every shape. */
static int allocate(struct hl_st_header *h)
{
    uint64_t ndims = 0;
    const char *name;
    json_t *value;
    int rc;

    json_object_foreach (h->root, name, value)
        ndims += json_array_size(json_object_get(value, "shape"));
    rc = hl_sys_alloc_array(json_object_size(h->root), sizeof *h->tensors, (void **)&h->tensors);
    return rc < 0 ? rc : hl_sys_alloc_array(ndims, sizeof *h->dims, (void **)&h->dims);
}

static int take_all(const char *what, uint64_t data_bytes, struct hl_st_header *h)
{
    uint64_t *dims = h->dims;
    const char *name;
    json_t *value;
    int rc = 0;

    json_object_foreach (h->root, name, value) {
        struct at at = {what, name};

        if (strcmp(name, METADATA) == 0) {
            rc = take_metadata(what, value, h);
        } else {
            rc = take_tensor(&at, value, data_bytes, dims, &h->tensors[h->ntensors]);
            dims += rc < 0 ? 0 : h->tensors[h->ntensors++].ndims;
        }
        if (rc < 0)
            return rc;
    }
    if (h->ntensors)
        qsort(h->tensors, h->ntensors, sizeof *h->tensors, by_place);
    return check_cover(what, h, data_bytes);
}

int hl_st_header_parse(const char *what, const char *text, size_t bytes, uint64_t data_bytes,
                       struct hl_st_header *out)
{
    struct hl_st_header h = {0};
    int rc;

    if (bytes == 0 || text[0] != '{')
        return hl_fail(HAUL_E_FORMAT, "%s: its header does not begin with '{'", what);
    rc = hl_json_parse(what, HAUL_E_FORMAT, text, bytes, HL_ST_DEPTH, &h.root);
    if (rc == 0)
        rc = allocate(&h);
    if (rc == 0)
        rc = take_all(what, data_bytes, &h);
    if (rc < 0) {
        hl_st_header_free(&h);
        return rc;
    }
    *out = h;
    return 0;
}

void hl_st_header_free(struct hl_st_header *h)
{
    hl_sys_free(h->tensors);
    hl_sys_free(h->dims);
    json_decref(h->root);
}
