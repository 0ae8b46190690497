/* safetensors_read.c: looking tensors up, and their values as FP32. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "arith.h"
#include "fail.h"
#include "json_text.h"
#include "nearest_word.h"
#include "safetensors_set.h"
#include "sys.h"

#define PIECE_ELEMS   8192u  /* 16-bit values widened at a time */
#define MOST_COMPARED 20000u /* names, for the nearest: a message must not take seconds */

uint64_t haul_safetensors_count(const struct haul_safetensors *st)
{
    return st ? st->ntensors : 0;
}

static int check_index(const struct haul_safetensors *st, const char *call, uint64_t index)
{
    int rc = hl_need(call, "st", st);

    if (rc == 0 && index >= st->ntensors)
        return hl_fail(-EINVAL, "%s: tensor %" PRIu64 " of %" PRIu64, call, index, st->ntensors);
    return rc;
}

int haul_safetensors_get_info(const struct haul_safetensors *st, uint64_t index,
                              struct haul_safetensors_info *out)
{
    const struct hl_st_tensor *t;
    int rc = check_index(st, "haul_safetensors_get_info", index);

    if (rc == 0)
        rc = hl_need("haul_safetensors_get_info", "out", out);
    if (rc < 0)
        return rc;
    if (out->struct_size != sizeof *out)
        return hl_fail(HAUL_E_ABI, "haul_safetensors_get_info: struct_size %zu; here it is %zu",
                       out->struct_size, sizeof *out);
    t = &st->tensors[index];
    *out = (struct haul_safetensors_info){.struct_size = sizeof *out,
                                          .name = t->name,
                                          .dtype_name = t->dtype->name,
                                          .dtype = t->dtype->haul,
                                          .ndims = t->ndims,
                                          .shape = t->shape,
                                          .nelems = t->nelems,
                                          .nbytes = t->end - t->begin,
                                          .file = st->files[t->file].path};
    return 0;
}

static int not_found(const struct haul_safetensors *st, const char *name)
{
    char shown[HL_SHOWN_BYTES], other[HL_SHOWN_BYTES];
    const char *path = st->nfiles ? st->files[0].path : "an empty set", *near = NULL;

    /* One at a time: the distance to the best so far decides. */
    for (uint64_t i = 0; st->ntensors <= MOST_COMPARED && i < st->ntensors; i++) {
        const char *pair[2] = {near ? near : st->by_name[i]->name, st->by_name[i]->name};

        near = hl_nearest_word(name, pair, 2);
    }
    hl_json_shown(name, shown, sizeof shown);
    if (!near)
        return hl_fail(-ENOENT, "%s%s: no tensor '%s'", path, st->nfiles > 1 ? ", ..." : "", shown);
    return hl_fail(-ENOENT, "%s%s: no tensor '%s'; the nearest is '%s'", path,
                   st->nfiles > 1 ? ", ..." : "", shown, hl_json_shown(near, other, sizeof other));
}

int haul_safetensors_find(const struct haul_safetensors *st, const char *name, uint64_t *index)
{
    uint64_t low = 0, high;
    int rc;

    if ((rc = hl_need("haul_safetensors_find", "st", st)) < 0 ||
        (rc = hl_need("haul_safetensors_find", "name", name)) < 0 ||
        (rc = hl_need("haul_safetensors_find", "index", index)) < 0)
        return rc;
    high = st->ntensors;
    while (low < high) {
        uint64_t mid = low + (high - low) / 2;
        int order = strcmp(st->by_name[mid]->name, name);

        if (order == 0) {
            *index = (uint64_t)(st->by_name[mid] - st->tensors);
            return 0;
        }
        low = order < 0 ? mid + 1 : low;
        high = order < 0 ? high : mid;
    }
    return not_found(st, name);
}

const char *haul_safetensors_metadata(const struct haul_safetensors *st, const char *key)
{
    const char *text = NULL;

    for (uint32_t i = 0; st && key && !text && i < st->nfiles; i++)
        text = json_string_value(json_object_get(st->files[i].header.metadata, key));
    return text;
}

static int read_16(const struct hl_st_file *f, const struct hl_st_tensor *t, uint64_t first,
                   uint64_t n, float *out)
{
    uint16_t piece[PIECE_ELEMS];

    for (uint64_t done = 0; done < n;) {
        uint64_t now = n - done < PIECE_ELEMS ? n - done : PIECE_ELEMS;
        int rc = hl_sys_pread_all(f->fd, piece, now * 2,
                                  (off_t)(f->data_at + t->begin + 2 * (first + done)));

        if (rc < 0)
            return rc;
        hl_arith_convert(out + done, HAUL_FP32, piece, t->dtype->haul, now, 1);
        done += now;
    }
    return 0;
}

int haul_safetensors_read(const struct haul_safetensors *st, uint64_t index, uint64_t first,
                          uint64_t n, float *out)
{
    const struct hl_st_tensor *t;
    const struct hl_st_file *f;
    char shown[HL_SHOWN_BYTES];
    int rc = check_index(st, "haul_safetensors_read", index);

    if (rc == 0 && n)
        rc = hl_need("haul_safetensors_read", "out", out);
    if (rc < 0)
        return rc;
    t = &st->tensors[index];
    f = &st->files[t->file];
    hl_json_shown(t->name, shown, sizeof shown);
    if (t->dtype->haul == HAUL_DTYPE_NONE)
        return hl_fail(-EINVAL, "%s: tensor '%s' is %s; F32, BF16 and F16 can be read", f->path,
                       shown, t->dtype->name);
    if (first > t->nelems || n > t->nelems - first)
        return hl_fail(
            -EINVAL, "%s: tensor '%s' has %" PRIu64 " values; asked for %" PRIu64 " from %" PRIu64,
            f->path, shown, t->nelems, n, first);
    if (t->dtype->haul != HAUL_FP32)
        return read_16(f, t, first, n, out);
    return hl_sys_pread_all(f->fd, out, n * 4, (off_t)(f->data_at + t->begin + 4 * first));
}
