/* ckpt_file_read.c: a checkpoint opened for reading. What a file says of itself is held against the
 * manifest and against the model before it is used. */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arith.h"
#include "checksum.h"
#include "ckpt_file.h"
#include "fail.h"
#include "sys.h"
#include "sys_file.h"

/* ---- one file's header and table ---- */

static int open_file(struct hl_ckpt *ck, uint32_t rank)
{
    char name[HL_CKPT_FILE_NAME_BYTES];

    if (ck->fd >= 0 && ck->fd_rank == rank)
        return 0;
    hl_sys_close(ck->fd);
    hl_ckpt_file_name(rank, name);
    ck->fd = hl_sys_open(ck->dirfd, name, O_RDONLY, 0);
    ck->fd_rank = rank;
    if (ck->fd >= 0)
        return 0;
    return hl_fail(ck->fd, "%s/%s: %s", ck->dir, name,
                   ck->fd == -ENOENT ? "missing" : haul_strerror(ck->fd));
}

static int damaged(const struct hl_ckpt *ck, uint32_t rank, int rc, const char *why)
{
    return hl_fail(rc, "%s/rank-%05u.bin: %s", ck->dir, rank, why);
}

static int check_size(struct hl_ckpt *ck, uint32_t rank)
{
    const struct hl_ckpt_file *f = &ck->m.files[rank];
    struct stat st;
    int rc = hl_sys_fstat(ck->fd, &st);

    if (rc < 0)
        return rc;
    if (!S_ISREG(st.st_mode))
        return damaged(ck, rank, HAUL_E_FORMAT, "not a regular file");
    if ((uint64_t)st.st_size == f->bytes)
        return 0;
    return hl_fail((uint64_t)st.st_size < f->bytes ? HAUL_E_SHORT_IO : HAUL_E_FORMAT,
                   "%s/rank-%05u.bin: %lld bytes; the manifest says %" PRIu64, ck->dir, rank,
                   (long long)st.st_size, f->bytes);
}

static int check_header(struct hl_ckpt *ck, uint32_t rank)
{
    const struct hl_ckpt_file *f = &ck->m.files[rank];
    struct hl_ckpt_header h;
    int rc = f->bytes < sizeof h + sizeof(uint64_t) ? HAUL_E_SHORT_IO : 0;

    if (rc < 0)
        return damaged(ck, rank, rc, "too short for its header");
    if ((rc = hl_sys_pread_all(ck->fd, &h, sizeof h, 0)) < 0)
        return rc;
    if (memcmp(h.magic, HL_CKPT_MAGIC, sizeof h.magic) != 0)
        return damaged(ck, rank, HAUL_E_FORMAT, "not a data file of a checkpoint");
    if (hl_checksum(&h, sizeof h - sizeof h.sum) != h.sum)
        return damaged(ck, rank, HAUL_E_CHECKSUM, "the checksum of its header does not match");
    if (h.id != ck->m.id)
        return damaged(ck, rank, HAUL_E_FORMAT, "belongs to another checkpoint");
    if (h.rank != rank || h.nranks != ck->m.nranks)
        return hl_fail(HAUL_E_FORMAT,
                       "%s/rank-%05u.bin: is the file of rank %u of %u; files were renamed or "
                       "swapped",
                       ck->dir, rank, h.rank, h.nranks);
    if (h.version != ck->m.version || h.nblocks != f->nblocks || h.zero || h.zeros ||
        h.table_offset < sizeof h || h.table_offset > f->bytes - sizeof(uint64_t) ||
        (f->bytes - sizeof(uint64_t) - h.table_offset) / sizeof(struct hl_ckpt_block) !=
            f->nblocks ||
        (f->bytes - sizeof(uint64_t) - h.table_offset) % sizeof(struct hl_ckpt_block) != 0)
        return damaged(ck, rank, HAUL_E_FORMAT, "its header does not fit the manifest");
    return 0;
}

static int read_table(struct hl_ckpt *ck, uint32_t rank, struct hl_ckpt_block *blocks)
{
    const struct hl_ckpt_file *f = &ck->m.files[rank];
    uint64_t bytes = f->nblocks * sizeof *blocks, at = f->bytes - sizeof(uint64_t) - bytes, sum;
    int rc = hl_sys_pread_all(ck->fd, blocks, bytes, (off_t)at);

    if (rc == 0)
        rc = hl_sys_pread_all(ck->fd, &sum, sizeof sum, (off_t)(at + bytes));
    if (rc < 0)
        return rc;
    if (sum != f->table_sum || hl_checksum(blocks, bytes) != sum)
        return damaged(ck, rank, HAUL_E_CHECKSUM, "the checksum of its table does not match");
    return 0;
}

static int kind_fits(const struct hl_ckpt *ck, const struct haul_tensor *t, uint32_t kind)
{
    if (!hl_ckpt_is_kept(kind))
        return kind == hl_ckpt_kind_of(t);
    if (ck->m.version < HL_CKPT_VERSION_KEPT || t->frozen)
        return 0;
    return kind == HL_CKPT_KEPT_WHOLE ||
           (kind == HL_CKPT_KEPT_SPLIT ? t->dtype == HAUL_BF16 : t->dtype == HAUL_FP32);
}

static uint64_t padded_bytes(const struct hl_ckpt_block *b)
{
    return (hl_ckpt_bytes((enum hl_ckpt_kind)b->kind, b->n) + HL_CKPT_ALIGN - 1) / HL_CKPT_ALIGN *
           HL_CKPT_ALIGN;
}

static int block_fits(const struct hl_ckpt *ck, const struct hl_ckpt_block *b, uint64_t at)
{
    const struct hl_ckpt_unit *u;
    uint32_t t;

    if (b->unit >= ck->m.model.nunits || b->n == 0 || b->n > HL_CKPT_BLOCK_ELEMS)
        return 0;
    u = &ck->m.model.units[b->unit];
    if (b->first >= u->elems || b->n > u->elems - b->first)
        return 0;
    t = hl_ckpt_tensor_at(u, b->first);
    return b->first + b->n <= u->places[t].logical_elem + u->places[t].elems &&
           kind_fits(ck, &u->tensors[t], b->kind) && b->offset == at && b->bytes == padded_bytes(b);
}

/* Where the rank's store is: a file's last block, and only there. */
static int take_store(struct hl_ckpt *ck, uint32_t rank, const struct hl_ckpt_block *b, uint64_t at)
{
    void *mem;
    int rc;

    if (ck->m.version < HL_CKPT_VERSION_KEPT || b->unit || b->first || b->offset != at ||
        b->n > ck->m.files[rank].bytes || b->bytes != padded_bytes(b) ||
        b->bytes > ck->m.files[rank].bytes - at)
        return damaged(ck, rank, HAUL_E_FORMAT, "its table does not fit the model");
    rc = hl_sys_alloc(b->bytes, &mem);
    if (rc < 0)
        return rc;
    rc = hl_sys_pread_all(ck->fd, mem, b->bytes, (off_t)at);
    if (rc == 0 && hl_checksum(mem, b->bytes) != b->sum)
        rc = damaged(ck, rank, HAUL_E_CHECKSUM, "the checksum of its last block does not match");
    if (rc < 0) {
        hl_sys_free(mem);
        return rc;
    }
    if (hl_ckpt_store_decode(mem, b->n, &ck->stores[rank]) < 0)
        return damaged(ck, rank, HAUL_E_FORMAT, "what it says of a store is not possible");
    return 0;
}

/* Blocks follow each other from the header to the table: no byte belongs to nothing. */
static int take_table(struct hl_ckpt *ck, uint32_t rank, const struct hl_ckpt_block *blocks)
{
    const struct hl_ckpt_file *f = &ck->m.files[rank];
    uint64_t at = sizeof(struct hl_ckpt_header), kept = 0;

    for (uint64_t i = 0; i < f->nblocks; i++) {
        if (i + 1 == f->nblocks && blocks[i].kind == HL_CKPT_STORE) {
            int rc = take_store(ck, rank, &blocks[i], at);
            if (rc < 0)
                return rc;
            at += blocks[i].bytes;
            break;
        }
        kept += (uint64_t)hl_ckpt_is_kept(blocks[i].kind);
        if (!block_fits(ck, &blocks[i], at))
            return damaged(ck, rank, HAUL_E_FORMAT, "its table does not fit the model");
        at += blocks[i].bytes;
        ck->at[ck->nblocks++] = (struct hl_ckpt_at){blocks[i], rank};
    }
    if (at != f->bytes - sizeof(uint64_t) - f->nblocks * sizeof *blocks)
        return damaged(ck, rank, HAUL_E_FORMAT, "its blocks do not end where its table begins");
    if (kept && ck->stores[rank].head.nblocks == 0)
        return damaged(ck, rank, HAUL_E_FORMAT, "its records are in a store that it does not name");
    return 0;
}

static int read_file(struct hl_ckpt *ck, uint32_t rank)
{
    void *blocks;
    int rc = open_file(ck, rank);

    if (rc < 0 || (rc = check_size(ck, rank)) < 0 || (rc = check_header(ck, rank)) < 0)
        return rc;
    rc = hl_sys_alloc_array(ck->m.files[rank].nblocks, sizeof(struct hl_ckpt_block), &blocks);
    if (rc < 0)
        return rc;
    rc = read_table(ck, rank, blocks);
    if (rc == 0)
        rc = take_table(ck, rank, blocks);
    hl_sys_free(blocks);
    return rc;
}

/* ---- all files together ---- */

static int by_place(const void *a, const void *b)
{
    const struct hl_ckpt_block *x = &((const struct hl_ckpt_at *)a)->block;
    const struct hl_ckpt_block *y = &((const struct hl_ckpt_at *)b)->block;

    if (x->unit != y->unit)
        return x->unit < y->unit ? -1 : 1;
    return x->first < y->first ? -1 : x->first > y->first;
}

/* Every element once. */
static int check_cover(struct hl_ckpt *ck)
{
    uint64_t i = 0;

    for (uint32_t u = 0; u < ck->m.model.nunits; u++) {
        const struct hl_ckpt_unit *unit = &ck->m.model.units[u];
        uint64_t at = 0;
        ck->unit_at[u] = i;
        for (; i < ck->nblocks && ck->at[i].block.unit == u; i++) {
            if (ck->at[i].block.first != at)
                break;
            at += ck->at[i].block.n;
        }
        if (at != unit->elems || (i < ck->nblocks && ck->at[i].block.unit == u))
            return hl_fail(HAUL_E_FORMAT,
                           "%s: element %" PRIu64 " of unit %s is in no file, or in two", ck->dir,
                           at, unit->name);
    }
    ck->unit_at[ck->m.model.nunits] = i;
    return 0;
}

static int total_blocks(const struct hl_ckpt *ck, uint64_t *out)
{
    *out = 0;
    for (uint32_t r = 0; r < ck->m.nranks; r++) {
        const struct hl_ckpt_file *f = &ck->m.files[r];
        /* so that a manifest cannot ask for memory that no file backs */
        if (f->bytes / sizeof(struct hl_ckpt_block) < f->nblocks)
            return damaged(ck, r, HAUL_E_FORMAT, "the manifest has more blocks than fit in it");
        *out += f->nblocks;
    }
    return 0;
}

static int read_files(struct hl_ckpt *ck)
{
    uint64_t n;
    int rc = total_blocks(ck, &n);

    for (uint32_t r = 0; rc == 0 && r < ck->m.nranks; r++) { /* sizes first: memory follows them */
        rc = open_file(ck, r);
        if (rc == 0)
            rc = check_size(ck, r);
    }
    if (rc == 0)
        rc = hl_sys_alloc_array(n, sizeof *ck->at, (void **)&ck->at);
    if (rc == 0)
        rc = hl_sys_alloc_array((uint64_t)ck->m.model.nunits + 1, sizeof *ck->unit_at,
                                (void **)&ck->unit_at);
    if (rc == 0)
        rc = hl_sys_alloc_array(ck->m.nranks, sizeof *ck->stores, (void **)&ck->stores);
    for (uint32_t r = 0; rc == 0 && r < ck->m.nranks; r++)
        rc = read_file(ck, r);
    if (rc < 0)
        return rc;
    qsort(ck->at, ck->nblocks, sizeof *ck->at, by_place);
    return check_cover(ck);
}

static int open_parts(struct hl_ckpt *ck, const char *dir)
{
    int rc = hl_sys_strdup(dir, &ck->dir);

    if (rc < 0)
        return rc;
    ck->dirfd = hl_sys_open(AT_FDCWD, dir, O_RDONLY | O_DIRECTORY, 0);
    if (ck->dirfd < 0)
        return ck->dirfd;
    rc = hl_ckpt_manifest_read(ck->dirfd, dir, &ck->m);
    if (rc == 0)
        rc = hl_sys_alloc_aligned(4096, HL_CKPT_BLOCK_BYTES + HL_CKPT_ALIGN, (void **)&ck->buf);
    if (rc == 0)
        rc = hl_sys_alloc_array(HL_CKPT_BLOCK_ELEMS, sizeof *ck->wide, (void **)&ck->wide);
    return rc < 0 ? rc : read_files(ck);
}

int hl_ckpt_open(const char *dir, struct hl_ckpt **out)
{
    struct hl_ckpt *ck;
    int rc = hl_sys_alloc(sizeof *ck, (void **)&ck);

    if (rc < 0)
        return rc;
    ck->dirfd = ck->fd = -1;
    ck->held = UINT64_MAX;
    ck->records_rank = -1;
    rc = open_parts(ck, dir);
    if (rc < 0)
        hl_ckpt_close(ck);
    else
        *out = ck;
    return rc;
}

void hl_ckpt_close(struct hl_ckpt *ck)
{
    if (!ck)
        return;
    hl_sys_close(ck->fd);
    hl_sys_close(ck->dirfd);
    if (ck->records_rank >= 0)
        hl_ckpt_records_close(&ck->records);
    for (uint32_t r = 0; ck->stores && r < ck->m.nranks; r++)
        hl_ckpt_store_free(&ck->stores[r]);
    hl_sys_free(ck->stores);
    hl_sys_free(ck->kept);
    hl_sys_free(ck->wide);
    hl_sys_free(ck->buf);
    hl_sys_free(ck->unit_at);
    hl_sys_free(ck->at);
    hl_sys_free(ck->dir);
    hl_ckpt_manifest_free(&ck->m);
    hl_sys_free(ck);
}

/* ---- values ---- */

int hl_ckpt_records_of(struct hl_ckpt *ck, uint32_t rank, struct hl_ckpt_records **out)
{
    int rc = 0;

    if (ck->records_rank != rank) {
        if (ck->records_rank >= 0)
            hl_ckpt_records_close(&ck->records);
        ck->records_rank = -1;
        rc = hl_ckpt_records_open(ck->dir, ck->dirfd, &ck->stores[rank], rank, &ck->records);
    }
    if (rc < 0)
        return rc;
    ck->records_rank = rank;
    *out = &ck->records;
    return 0;
}

/* p, m and v of a block whose record is elsewhere. */
static int gather_kept(struct hl_ckpt *ck, const struct hl_ckpt_at *at)
{
    const struct hl_ckpt_block *b = &at->block;
    const void *rest = ck->buf + sizeof(struct hl_ckpt_kept);
    struct hl_ckpt_records *r;
    struct hl_ckpt_kept where;
    int rc = hl_ckpt_records_of(ck, at->rank, &r);

    if (rc == 0 && !ck->kept)
        rc = hl_sys_alloc_array(HL_CKPT_BLOCK_ELEMS, 3 * sizeof *ck->kept, (void **)&ck->kept);
    if (rc < 0)
        return rc;
    float *p = ck->kept, *m = p + b->n, *v = m + b->n;
    memcpy(&where, ck->buf, sizeof where);
    if ((rc = hl_ckpt_records_read(r, HL_CKPT_M, where.m, b->n * 4, m)) < 0 ||
        (rc = hl_ckpt_records_read(r, HL_CKPT_V, where.v, b->n * 4, v)) < 0)
        return rc;
    if (b->kind == HL_CKPT_KEPT_MOMENTS)
        memcpy(p, rest, b->n * 4);
    else if (b->kind == HL_CKPT_KEPT_WHOLE)
        rc = hl_ckpt_records_read(r, HL_CKPT_P, where.p, b->n * 4, p);
    else if ((rc = hl_ckpt_records_read(r, HL_CKPT_P, where.p, b->n * 2, ck->wide)) == 0)
        hl_arith_join(p, rest, (const uint16_t *)(void *)ck->wide, b->n, 1);
    return rc;
}

int hl_ckpt_read(struct hl_ckpt *ck, uint64_t i)
{
    const struct hl_ckpt_at *at = &ck->at[i];
    int rc;

    if (ck->held == i)
        return 0;
    ck->held = UINT64_MAX;
    rc = open_file(ck, at->rank);
    if (rc == 0)
        rc = hl_sys_pread_all(ck->fd, ck->buf, at->block.bytes, (off_t)at->block.offset);
    if (rc < 0)
        return rc;
    uint64_t found = hl_checksum(ck->buf, at->block.bytes);
    if (found != at->block.sum)
        return hl_fail(HAUL_E_CHECKSUM,
                       "%s/rank-%05u.bin: bytes %" PRIu64 " + %" PRIu64 " are damaged: checksum "
                       "%016" PRIx64 " expected, %016" PRIx64 " found",
                       ck->dir, at->rank, at->block.offset, at->block.bytes, at->block.sum, found);
    (void)hl_sys_drop_cache(ck->fd, (off_t)at->block.offset, (off_t)at->block.bytes);
    rc = hl_ckpt_is_kept(at->block.kind) ? gather_kept(ck, at) : 0;
    if (rc == 0)
        ck->held = i;
    return rc;
}

struct hl_ckpt_values hl_ckpt_values(struct hl_ckpt *ck, uint64_t i)
{
    const struct hl_ckpt_block *b = &ck->at[i].block;
    const struct hl_ckpt_unit *u = &ck->m.model.units[b->unit];
    const float *p = (const float *)ck->buf;

    if (hl_ckpt_is_kept(b->kind))
        return (struct hl_ckpt_values){ck->kept, ck->kept + b->n, ck->kept + 2 * b->n};
    if (b->kind == HL_CKPT_TRAINED)
        return (struct hl_ckpt_values){p, p + b->n, p + 2 * b->n};
    if (b->kind == HL_CKPT_FROZEN32)
        return (struct hl_ckpt_values){p, NULL, NULL};
    hl_arith_convert(ck->wide, HAUL_FP32, ck->buf, u->tensors[hl_ckpt_tensor_at(u, b->first)].dtype,
                     b->n, 1);
    return (struct hl_ckpt_values){ck->wide, NULL, NULL};
}

int hl_ckpt_read_user(const struct hl_ckpt *ck, void *out)
{
    struct stat st;
    int fd = hl_sys_open(ck->dirfd, HL_CKPT_USER_FILE, O_RDONLY, 0), rc;

    if (fd < 0)
        return hl_fail(fd, "%s/" HL_CKPT_USER_FILE ": %s", ck->dir,
                       fd == -ENOENT ? "missing" : haul_strerror(fd));
    rc = hl_sys_fstat(fd, &st);
    if (rc == 0 && (uint64_t)st.st_size != ck->m.user_bytes)
        rc = hl_fail(HAUL_E_FORMAT,
                     "%s/" HL_CKPT_USER_FILE ": %lld bytes; the manifest says %" PRIu64, ck->dir,
                     (long long)st.st_size, ck->m.user_bytes);
    if (rc == 0)
        rc = hl_sys_pread_all(fd, out, ck->m.user_bytes, 0);
    hl_sys_close(fd);
    if (rc == 0 && hl_checksum(out, ck->m.user_bytes) != ck->m.user_sum)
        rc = hl_fail(HAUL_E_CHECKSUM, "%s/" HL_CKPT_USER_FILE ": its checksum does not match",
                     ck->dir);
    return rc;
}

/* The block of a unit that holds flat element `at`. */
static uint64_t find_block(const struct hl_ckpt *ck, uint32_t unit, uint64_t at)
{
    uint64_t low = ck->unit_at[unit], high = ck->unit_at[unit + 1];

    while (high - low > 1) {
        uint64_t mid = low + (high - low) / 2;
        if (ck->at[mid].block.first <= at)
            low = mid;
        else
            high = mid;
    }
    return low;
}

int hl_ckpt_source(void *user, uint32_t unit, uint32_t tensor, uint64_t first, uint64_t n, float *p,
                   float *m, float *v)
{
    struct hl_ckpt *ck = user;
    uint64_t at = ck->m.model.units[unit].places[tensor].logical_elem + first;
    int rc = 0;

    for (uint64_t done = 0; rc == 0 && done < n;) {
        uint64_t i = find_block(ck, unit, at + done);
        const struct hl_ckpt_block *b = &ck->at[i].block;
        uint64_t skip = at + done - b->first, some = b->n - skip;
        if ((rc = hl_ckpt_read(ck, i)) < 0)
            break;
        some = some < n - done ? some : n - done;
        struct hl_ckpt_values from = hl_ckpt_values(ck, i);
        memcpy(p + done, from.p + skip, some * sizeof *p);
        if (m)
            memcpy(m + done, from.m + skip, some * sizeof *m);
        if (v)
            memcpy(v + done, from.v + skip, some * sizeof *v);
        done += some;
    }
    return rc;
}
