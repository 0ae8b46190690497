/* ckpt_file_write.c: a rank's data file: header, blocks (ckpt_stream.c), table. */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "arith.h"
#include "checksum.h"
#include "ckpt_file.h"
#include "ckpt_stream.h"
#include "fail.h"
#include "sys.h"
#include "sys_file.h"

static uint64_t table_offset(const struct hl_ckpt_block *blocks, uint64_t nblocks)
{
    return nblocks ? blocks[nblocks - 1].offset + blocks[nblocks - 1].bytes
                   : sizeof(struct hl_ckpt_header);
}

static uint64_t file_bytes(const struct hl_ckpt_block *blocks, uint64_t nblocks)
{
    return table_offset(blocks, nblocks) + nblocks * sizeof *blocks + sizeof(uint64_t);
}

int hl_ckpt_file_size(const struct hl_ckpt_model *model, uint32_t nranks, uint32_t rank,
                      struct hl_ckpt_file *out)
{
    struct hl_ckpt_block *blocks;
    uint64_t n;
    int rc = hl_ckpt_cut(model, NULL, nranks, rank, sizeof(struct hl_ckpt_header), &blocks, &n);

    if (rc < 0)
        return rc;
    *out = (struct hl_ckpt_file){.bytes = file_bytes(blocks, n), .nblocks = n};
    hl_sys_free(blocks);
    return 0;
}

/* Of a file system that can: a full disk is known before anything is written. */
static int allocate(int fd, uint64_t bytes)
{
    int rc = hl_sys_fallocate(fd, 0, (off_t)bytes);

    if (rc == -EOPNOTSUPP || rc == -ENOSYS)
        return 0;
    return rc < 0 ? hl_fail(rc, "%" PRIu64 " bytes: %s", bytes, haul_strerror(rc)) : 0;
}

static int write_header(int fd, const struct hl_ckpt_manifest *m, uint32_t rank, uint64_t nblocks,
                        uint64_t table)
{
    struct hl_ckpt_header h = {.version = m->version,
                               .id = m->id,
                               .rank = rank,
                               .nranks = m->nranks,
                               .nblocks = nblocks,
                               .table_offset = table};

    memcpy(h.magic, HL_CKPT_MAGIC, sizeof h.magic);
    h.sum = hl_checksum(&h, sizeof h - sizeof h.sum);
    return hl_sys_pwrite_all(fd, &h, sizeof h, 0);
}

/* Whose state the blocks hold. */
struct fill {
    const struct hl_ckpt_model *model;
    const struct hl_ckpt_source *source;
    uint64_t done_bytes, total_bytes; /* of the blocks */
};

/* Where it is, and what of it is only here. */
static int fill_kept(const struct fill *f, const struct hl_ckpt_block *b, uint32_t t,
                     uint64_t first, char *buf)
{
    const struct hl_ckpt_keeper *keeper = f->source->keeper;
    const struct hl_ckpt_unit *u = &f->model->units[b->unit];
    struct hl_ckpt_kept where = {0};
    enum hl_ckpt_kind kind;
    char *rest = buf + sizeof where;
    int rc = 0;

    (void)keeper->part(keeper->user, b->unit, t, first, b->n, &kind, &where);
    memcpy(buf, &where, sizeof where);
    if (b->kind == HL_CKPT_KEPT_MOMENTS)
        rc = f->source->fn(f->source->user, b->unit, t, first, b->n, (float *)rest, NULL, NULL);
    if (b->kind != HL_CKPT_KEPT_SPLIT)
        return rc;
    float *p = (float *)(buf + HL_CKPT_BLOCK_ELEMS * 4); /* narrowed to where they belong */
    rc = f->source->fn(f->source->user, b->unit, t, first, b->n, p, NULL, NULL);
    if (rc == 0)
        hl_arith_convert(rest, u->tensors[t].dtype, p, HAUL_FP32, b->n, 1);
    return rc;
}

static int fill_block(const struct fill *f, const struct hl_ckpt_block *b, char *buf)
{
    const struct hl_ckpt_unit *u = &f->model->units[b->unit];
    uint32_t t = hl_ckpt_tensor_at(u, b->first);
    uint64_t first = b->first - u->places[t].logical_elem, n = b->n;
    uint64_t bytes = hl_ckpt_bytes((enum hl_ckpt_kind)b->kind, n);
    float *p = (float *)buf, *m = NULL, *v = NULL;
    int rc;

    if (hl_ckpt_is_kept(b->kind)) {
        rc = fill_kept(f, b, t, first, buf);
        memset(buf + bytes, 0, b->bytes - bytes);
        return rc;
    }
    if (b->kind == HL_CKPT_FROZEN16)
        p = (float *)(buf + HL_CKPT_BLOCK_ELEMS * 4); /* narrowed to where the block begins */
    if (b->kind == HL_CKPT_TRAINED) {
        m = p + n;
        v = m + n;
    }
    rc = f->source->fn(f->source->user, b->unit, t, first, n, p, m, v);
    if (rc < 0)
        return rc;
    if (b->kind == HL_CKPT_FROZEN16)
        hl_arith_convert(buf, u->tensors[t].dtype, p, HAUL_FP32, n, 1);
    memset(buf + bytes, 0, b->bytes - bytes);
    return 0;
}

static int fill_next(void *user, const struct hl_ckpt_block *b, char *buf)
{
    struct fill *f = user;
    int rc = fill_block(f, b, buf);

    f->done_bytes += b->bytes;
    if (rc == 0 && f->source->so_far)
        f->source->so_far(f->source->user, f->done_bytes, f->total_bytes);
    return rc;
}

static int all_filled(void *user)
{
    const struct fill *f = user;

    return f->source->done ? f->source->done(f->source->user) : 0;
}

/* When all else has been read, and the store has all of it. */
static int write_store(int fd, const struct hl_ckpt_keeper *keeper, struct hl_ckpt_block *b)
{
    void *mem;
    int rc = hl_sys_alloc(b->bytes, &mem);

    if (rc < 0)
        return rc;
    rc = keeper->store(keeper->user, mem);
    if (rc == 0) {
        b->sum = hl_checksum(mem, b->bytes);
        rc = hl_sys_pwrite_all(fd, mem, b->bytes, (off_t)b->offset);
    }
    hl_sys_free(mem);
    return rc;
}

static int write_table(int fd, const struct hl_ckpt_block *blocks, uint64_t nblocks,
                       struct hl_ckpt_file *out)
{
    uint64_t at = table_offset(blocks, nblocks), bytes = nblocks * sizeof *blocks;
    int rc;

    out->table_sum = hl_checksum(blocks, bytes);
    rc = hl_sys_pwrite_all(fd, blocks, bytes, (off_t)at);
    return rc < 0
               ? rc
               : hl_sys_pwrite_all(fd, &out->table_sum, sizeof out->table_sum, (off_t)(at + bytes));
}

static int write_all(int fd, const struct hl_ckpt_manifest *m, uint32_t rank,
                     const struct hl_ckpt_source *source, struct hl_ckpt_file *out)
{
    struct fill fill = {.model = &m->model, .source = source};
    const struct hl_ckpt_filler filler = {fill_next, all_filled, &fill};
    struct hl_ckpt_block *blocks;
    uint64_t n, kept = source->keeper != NULL;
    int rc = hl_ckpt_cut(&m->model, source->keeper, m->nranks, rank, sizeof(struct hl_ckpt_header),
                         &blocks, &n);

    if (rc < 0)
        return rc;
    out->nblocks = n;
    out->bytes = file_bytes(blocks, n);
    fill.total_bytes = table_offset(blocks, n - kept) - sizeof(struct hl_ckpt_header);
    rc = allocate(fd, out->bytes);
    if (rc == 0)
        rc = write_header(fd, m, rank, n, table_offset(blocks, n));
    if (rc == 0)
        rc = hl_ckpt_stream(fd, blocks, n - kept, &filler);
    if (rc == 0 && kept)
        rc = write_store(fd, source->keeper, &blocks[n - 1]);
    if (rc == 0)
        rc = write_table(fd, blocks, n, out);
    hl_sys_free(blocks);
    return rc < 0 ? rc : hl_sys_fsync(fd);
}

int hl_ckpt_file_write(int dirfd, const struct hl_ckpt_manifest *m, uint32_t rank,
                       const struct hl_ckpt_source *source, struct hl_ckpt_file *out)
{
    char name[HL_CKPT_FILE_NAME_BYTES], text[HL_ERROR_TEXT_BYTES];
    int fd, rc;

    hl_ckpt_file_name(rank, name);
    fd = hl_sys_open(dirfd, name, O_RDWR | O_CREAT | O_TRUNC, 0666);
    if (fd < 0)
        return fd;
    rc = write_all(fd, m, rank, source, out);
    hl_sys_close(fd);
    if (rc == 0)
        return 0;
    snprintf(text, sizeof text, "%s", haul_last_error());
    return hl_fail(rc, "checkpoint: %s: %s", name, text);
}
