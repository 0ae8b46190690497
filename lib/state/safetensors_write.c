/* safetensors_write.c: the writer: files of the right size at open, values in pieces, names at finish. */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "arith.h"
#include "fail.h"
#include "json_text.h"
#include "safetensors_set.h"
#include "safetensors_writer.h"
#include "sys.h"
#include "sys_file.h"

#define MOST_NAME 200 /* what is put behind it must fit a file name too */

void haul_safetensors_writer_opts_init(struct haul_safetensors_writer_opts *opts)
{
    *opts = (struct haul_safetensors_writer_opts){.struct_size = sizeof *opts};
}

static int check_opts(const struct haul_safetensors_writer_opts *o)
{
    if (o->struct_size != sizeof *o)
        return hl_fail(HAUL_E_ABI, "safetensors: options were not set up by "
                                   "haul_safetensors_writer_opts_init()");
    if (o->nmetadata && !o->metadata)
        return hl_fail(-EINVAL, "safetensors: %u metadata, but metadata is NULL", o->nmetadata);
    for (uint32_t i = 0; i < 2 * o->nmetadata; i++)
        if (!o->metadata[i])
            return hl_fail(-EINVAL, "safetensors: metadata[%u] is NULL", i);
    return 0;
}

static int open_dir_of(struct haul_safetensors_writer *w, const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    size_t n = strlen(name);
    char dir[4096];
    int rc;

    if (n <= strlen(HL_ST_SUFFIX) || strcmp(name + n - strlen(HL_ST_SUFFIX), HL_ST_SUFFIX) != 0)
        return hl_fail(-EINVAL, "safetensors: %.200s: the name must end in " HL_ST_SUFFIX, path);
    if (n > MOST_NAME || name - path >= (ptrdiff_t)sizeof dir)
        return hl_fail(-ENAMETOOLONG, "safetensors: %.100s...: the name is too long", path);
    snprintf(dir, sizeof dir, "%.*s", slash ? (int)(slash - path + 1) : 1, slash ? path : ".");
    rc = hl_sys_strdup(name, &w->name);
    if (rc < 0)
        return rc;
    rc = hl_sys_open(AT_FDCWD, dir, O_RDONLY | O_DIRECTORY, 0);
    w->dirfd = rc < 0 ? -1 : rc;
    return rc < 0 ? rc : 0;
}

static int take_metadata(struct haul_safetensors_writer *w,
                         const struct haul_safetensors_writer_opts *o)
{
    w->metadata = json_pack("{s:s}", "format", "pt");
    if (!w->metadata)
        return hl_fail(-ENOMEM, "out of memory: metadata of a safetensors file");
    for (uint32_t i = 0; i < o->nmetadata; i++)
        if (json_object_set_new(w->metadata, o->metadata[2 * i],
                                json_string(o->metadata[2 * i + 1])) < 0)
            return hl_fail(-EINVAL, "safetensors: metadata %u is not UTF-8", i);
    return 0;
}

/* All of the file's space, so that a full drive is found now; where the file system cannot, its size. */
static int allocate_file(int fd, uint64_t bytes)
{
    int rc = hl_sys_fallocate(fd, 0, (off_t)bytes);

    return rc == -EOPNOTSUPP ? hl_sys_ftruncate(fd, (off_t)bytes) : rc;
}

static int create_shard(struct haul_safetensors_writer *w,
                        const struct haul_safetensors_decl *decls, uint32_t s)
{
    struct hl_st_shard *shard = &w->shards[s];
    size_t bytes;
    void *text;
    int rc = hl_st_layout_header(w, decls, s, &text, &bytes);

    if (rc < 0)
        return rc;
    rc = hl_st_publish_create(w, shard->name, &shard->temp, &shard->fd);
    if (rc == 0)
        rc = allocate_file(shard->fd, bytes + shard->data_bytes);
    if (rc == 0)
        rc = hl_sys_pwrite_all(shard->fd, text, bytes, 0);
    hl_sys_free(text);
    return rc;
}

static int open_parts(struct haul_safetensors_writer *w, const char *path,
                      const struct haul_safetensors_writer_opts *o,
                      const struct haul_safetensors_decl *decls, uint64_t ndecls)
{
    int rc = open_dir_of(w, path);

    if (rc == 0)
        rc = take_metadata(w, o);
    if (rc == 0)
        rc = hl_st_layout_make(w, decls, ndecls, o->shard_bytes);
    if (rc == 0)
        rc = hl_st_publish_names(w);
    if (rc == 0)
        rc = hl_sys_alloc_array(HL_ST_PIECE_ELEMS, sizeof *w->piece, (void **)&w->piece);
    for (uint32_t s = 0; rc == 0 && s < w->nshards; s++)
        rc = create_shard(w, decls, s);
    return rc;
}

int haul_safetensors_writer_open(const char *path, const struct haul_safetensors_writer_opts *opts,
                                 const struct haul_safetensors_decl *decls, uint64_t ndecls,
                                 struct haul_safetensors_writer **out)
{
    struct haul_safetensors_writer_opts defaults;
    struct haul_safetensors_writer *w;
    int rc;

    haul_safetensors_writer_opts_init(&defaults);
    opts = opts ? opts : &defaults;
    if ((rc = hl_need("haul_safetensors_writer_open", "path", path)) < 0 ||
        (rc = hl_need("haul_safetensors_writer_open", "out", out)) < 0 ||
        (ndecls && (rc = hl_need("haul_safetensors_writer_open", "decls", decls)) < 0) ||
        (rc = check_opts(opts)) < 0 || (rc = hl_sys_alloc(sizeof *w, (void **)&w)) < 0)
        return rc;
    w->dirfd = -1;
    rc = open_parts(w, path, opts, decls, ndecls);
    if (rc < 0) {
        haul_safetensors_writer_close(w);
        return rc;
    }
    *out = w;
    return 0;
}

static int put_16(const struct haul_safetensors_writer *w, const struct hl_st_slot *slot,
                  uint64_t at, uint64_t n, const float *values)
{
    for (uint64_t done = 0; done < n;) {
        uint64_t now = n - done < HL_ST_PIECE_ELEMS ? n - done : HL_ST_PIECE_ELEMS;
        int rc;

        hl_arith_convert(w->piece, slot->dtype->haul, values + done, HAUL_FP32, now, 1);
        rc =
            hl_sys_pwrite_all(w->shards[slot->shard].fd, w->piece, now * 2, (off_t)(at + 2 * done));
        if (rc < 0)
            return rc;
        done += now;
    }
    return 0;
}

int haul_safetensors_writer_put(struct haul_safetensors_writer *w, uint64_t index, uint64_t first,
                                uint64_t n, const float *values)
{
    struct hl_st_slot *slot;
    int rc = hl_need("haul_safetensors_writer_put", "w", w);

    if (rc == 0 && n)
        rc = hl_need("haul_safetensors_writer_put", "values", values);
    if (rc < 0)
        return rc;
    if (w->finished)
        return hl_fail(HAUL_E_STATE, "safetensors: %s is finished already", w->name);
    if (index >= w->nslots)
        return hl_fail(-EINVAL, "safetensors: tensor %" PRIu64 " of %" PRIu64, index, w->nslots);
    slot = &w->slots[index];
    if (first != slot->written || n > slot->nelems - first)
        return hl_fail(-EINVAL,
                       "safetensors: %" PRIu64 " values from %" PRIu64
                       " of tensor '%.80s', which has "
                       "%" PRIu64 "; the next is %" PRIu64,
                       n, first, slot->name, slot->nelems, slot->written);
    if (slot->dtype->haul == HAUL_FP32)
        rc = hl_sys_pwrite_all(w->shards[slot->shard].fd, values, n * 4,
                               (off_t)(slot->at + 4 * first));
    else
        rc = put_16(w, slot, slot->at + 2 * first, n, values);
    slot->written += rc == 0 ? n : 0;
    return rc;
}

int haul_safetensors_writer_finish(struct haul_safetensors_writer *w)
{
    int rc = hl_need("haul_safetensors_writer_finish", "w", w);

    if (rc < 0)
        return rc;
    if (w->finished)
        return hl_fail(HAUL_E_STATE, "safetensors: %s is finished already", w->name);
    for (uint64_t i = 0; i < w->nslots; i++)
        if (w->slots[i].written != w->slots[i].nelems)
            return hl_fail(HAUL_E_STATE,
                           "safetensors: tensor '%.80s' has %" PRIu64 " of its %" PRIu64 " values",
                           w->slots[i].name, w->slots[i].written, w->slots[i].nelems);
    w->finished = 1; /* one try: a failure half way through the names cannot be repeated */
    for (uint32_t s = 0; rc == 0 && s < w->nshards; s++)
        rc = hl_sys_fsync(w->shards[s].fd);
    return rc < 0 ? rc : hl_st_publish(w);
}

/* Undoing must not be made to fail, nor change the text of what failed before. */
static void drop_shard(struct haul_safetensors_writer *w, struct hl_st_shard *shard)
{
    hl_sys_close(shard->fd);
    if (shard->temp)
        (void)hl_sys_unlink(w->dirfd, shard->temp);
    hl_sys_free(shard->temp);
    hl_sys_free(shard->name);
}

void haul_safetensors_writer_close(struct haul_safetensors_writer *w)
{
    char text[HL_ERROR_TEXT_BYTES];

    if (!w)
        return;
    snprintf(text, sizeof text, "%s", haul_last_error());
    for (uint32_t s = 0; s < w->nshards && w->shards; s++)
        drop_shard(w, &w->shards[s]);
    for (uint64_t i = 0; i < w->nslots; i++)
        hl_sys_free(w->slots[i].name);
    hl_sys_free(w->slots);
    hl_sys_free(w->shards);
    hl_sys_free(w->piece);
    hl_sys_free(w->name);
    hl_sys_free(w->index_name);
    json_decref(w->metadata);
    hl_sys_close(w->dirfd);
    hl_sys_free(w);
    hl_fail_text(0, text);
}
