/* ckpt_store.c: what a checkpoint says of a store: its text, checked, and reading from there. */
#include "ckpt_store.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "checksum.h"
#include "fail.h"
#include "sys.h"
#include "sys_file.h"

/* ---- the last block of a rank's file ---- */

uint64_t hl_ckpt_store_bytes(const struct hl_ckpt_store_header *head, const char *const *dirs)
{
    uint64_t bytes = sizeof *head + head->nblocks * sizeof(struct hl_store_place);

    for (uint32_t i = 0; i < head->ndirs; i++)
        bytes += strlen(dirs[i]) + 1;
    return bytes;
}

void hl_ckpt_store_encode(const struct hl_ckpt_store_header *head,
                          const struct hl_store_place *places, const char *const *dirs, void *out)
{
    char *at = out;

    memcpy(at, head, sizeof *head);
    at += sizeof *head;
    memcpy(at, places, head->nblocks * sizeof *places);
    at += head->nblocks * sizeof *places;
    for (uint32_t i = 0; i < head->ndirs; i++) {
        memcpy(at, dirs[i], strlen(dirs[i]) + 1);
        at += strlen(dirs[i]) + 1;
    }
}

static int place_fits(const struct hl_ckpt_store_header *h, const struct hl_store_place *p)
{
    if (p->bytes == 0)
        return 1;
    return p->dir < h->ndirs && p->bytes <= h->block_bytes && p->at % 4096 == 0 &&
           p->at <= (uint64_t)INT64_MAX - h->block_bytes;
}

int hl_ckpt_store_decode(void *mem, uint64_t bytes, struct hl_ckpt_store *out)
{
    struct hl_ckpt_store_header *h = &out->head;
    const char *text, *end = (const char *)mem + bytes;

    out->mem = mem;
    if (bytes < sizeof *h)
        return -1;
    memcpy(h, mem, sizeof *h);
    if (h->ndirs == 0 || h->ndirs > HAUL_MAX_DIRS || h->block_bytes == 0 || h->block_bytes % 4096 ||
        h->block_bytes > HL_CKPT_MOST_STORE_BLOCK || h->nblocks == 0 ||
        h->nblocks > (bytes - sizeof *h) / sizeof *out->places)
        return -1;
    out->places = (const struct hl_store_place *)((char *)mem + sizeof *h);
    for (uint64_t i = 0; i < h->nblocks; i++)
        if (!place_fits(h, &out->places[i]))
            return -1;
    text = (const char *)(out->places + h->nblocks);
    for (uint32_t i = 0; i < h->ndirs; i++) {
        const char *nul = memchr(text, '\0', (size_t)(end - text));
        if (!nul || nul == text)
            return -1;
        out->dirs[i] = text;
        text = nul + 1;
    }
    return 0;
}

void hl_ckpt_store_free(struct hl_ckpt_store *st)
{
    hl_sys_free(st->mem);
    st->mem = NULL;
}

/* ---- the records space ---- */

void hl_ckpt_records_name(uint32_t rank, char name[32])
{
    snprintf(name, 32, "records-%05u.bin", rank);
}

static int gone(const struct hl_ckpt_records *r)
{
    return hl_fail(-ESTALE,
                   "%s: the records of rank %u were in %s, which has generation %" PRIu64
                   " no more; they were not copied",
                   r->dir, r->rank, r->st->dirs[0], r->st->head.generation);
}

/* 1: the store still has the generation, 0: not. */
static int is_there(const struct hl_ckpt_records *r)
{
    uint64_t list[16];
    uint32_t n = 0;
    int rc = haul_store_generations(r->st->dirs[0], list, 16, &n);

    if (rc == -ENOENT || rc == -ENOTDIR)
        return 0;
    if (rc < 0)
        return rc;
    for (uint32_t i = 0; i < n && i < 16; i++)
        if (list[i] == r->st->head.generation)
            return 1;
    return 0;
}

static int open_data(struct hl_ckpt_records *r)
{
    int rc = is_there(r);

    if (rc <= 0)
        return rc < 0 ? rc : gone(r);
    for (uint32_t i = 0; i < r->st->head.ndirs; i++) {
        int dir = hl_sys_open(AT_FDCWD, r->st->dirs[i], O_RDONLY | O_DIRECTORY, 0);
        r->fd[i] = dir < 0 ? dir : hl_sys_open(dir, HL_STORE_DATA_NAME, O_RDONLY, 0);
        hl_sys_close(dir);
        if (r->fd[i] < 0)
            return hl_fail(r->fd[i], "%s/" HL_STORE_DATA_NAME ": %s", r->st->dirs[i],
                           haul_strerror(r->fd[i]));
    }
    return 0;
}

static int check_copy(const struct hl_ckpt_records *r)
{
    uint64_t want = r->st->head.nblocks * r->st->head.block_bytes;
    struct stat st;
    int rc = hl_sys_fstat(r->copy, &st);

    if (rc < 0 || (uint64_t)st.st_size == want)
        return rc;
    return hl_fail((uint64_t)st.st_size < want ? HAUL_E_SHORT_IO : HAUL_E_FORMAT,
                   "%s/records-%05u.bin: %lld bytes; the records are %" PRIu64, r->dir, r->rank,
                   (long long)st.st_size, want);
}

int hl_ckpt_records_open(const char *dir, int dirfd, const struct hl_ckpt_store *st, uint32_t rank,
                         struct hl_ckpt_records *out)
{
    struct hl_ckpt_records r = {.dir = dir, .dirfd = dirfd, .st = st, .rank = rank};
    char name[32];
    int rc;

    for (unsigned i = 0; i < HAUL_MAX_DIRS; i++)
        r.fd[i] = -1;
    for (unsigned i = 0; i < HL_CKPT_NARRAYS; i++)
        r.held[i].block = UINT64_MAX;
    hl_ckpt_records_name(rank, name);
    r.copy = hl_sys_open(dirfd, name, O_RDONLY, 0);
    rc = r.copy >= 0 ? check_copy(&r) : r.copy == -ENOENT ? open_data(&r) : r.copy;
    if (rc < 0)
        hl_ckpt_records_close(&r);
    else
        *out = r;
    return rc;
}

void hl_ckpt_records_close(struct hl_ckpt_records *r)
{
    hl_sys_close(r->copy);
    for (unsigned i = 0; i < HAUL_MAX_DIRS; i++)
        hl_sys_close(r->fd[i]);
    for (unsigned i = 0; i < HL_CKPT_NARRAYS; i++)
        hl_sys_free(r->held[i].mem);
}

static int damaged(const struct hl_ckpt_records *r, uint64_t block, uint64_t at, uint64_t found)
{
    const struct hl_store_place *p = &r->st->places[block];
    char name[32];

    hl_ckpt_records_name(r->rank, name);
    if (r->copy < 0 && is_there(r) == 0)
        return gone(r);
    return hl_fail(HAUL_E_CHECKSUM,
                   "%s/%s: bytes %" PRIu64 " + %u are damaged: checksum %016" PRIx64
                   " expected, %016" PRIx64 " found",
                   r->copy < 0 ? r->st->dirs[p->dir] : r->dir,
                   r->copy < 0 ? HL_STORE_DATA_NAME : name, at, p->bytes, p->sum, found);
}

/* What was never written, and what follows what was, is zeros. */
static int rest_is_zero(const struct hl_ckpt_records *r, const char *buf, uint32_t from)
{
    for (uint32_t i = from; i < r->st->head.block_bytes; i++)
        if (buf[i])
            return 0;
    return 1;
}

int hl_ckpt_records_block(struct hl_ckpt_records *r, uint64_t block, char *out)
{
    const struct hl_store_place *p = &r->st->places[block];
    uint32_t bytes = r->st->head.block_bytes;
    uint64_t at = r->copy < 0 ? p->at : block * bytes, found;
    int fd = r->copy < 0 ? r->fd[p->dir] : r->copy, rc;

    if (r->copy < 0 && p->bytes == 0) {
        memset(out, 0, bytes);
        return 0;
    }
    rc = hl_sys_pread_all(fd, out, r->copy < 0 ? p->bytes : bytes, (off_t)at);
    if (rc < 0)
        return rc;
    (void)hl_sys_drop_cache(fd, (off_t)at, (off_t)bytes);
    if (r->copy < 0)
        memset(out + p->bytes, 0, bytes - p->bytes);
    found = hl_checksum(out, p->bytes);
    if ((p->bytes && found != p->sum) || !rest_is_zero(r, out, p->bytes))
        return damaged(r, block, at, found);
    return 0;
}

static int hold(struct hl_ckpt_records *r, enum hl_ckpt_array which, uint64_t block)
{
    int rc = 0;

    if (!r->held[which].mem)
        rc = hl_sys_alloc_aligned(4096, r->st->head.block_bytes, (void **)&r->held[which].mem);
    if (rc < 0 || r->held[which].block == block)
        return rc;
    r->held[which].block = UINT64_MAX;
    rc = hl_ckpt_records_block(r, block, r->held[which].mem);
    if (rc == 0)
        r->held[which].block = block;
    return rc;
}

int hl_ckpt_records_read(struct hl_ckpt_records *r, enum hl_ckpt_array which, uint64_t at,
                         uint64_t bytes, void *out)
{
    const uint32_t block_bytes = r->st->head.block_bytes;
    uint64_t all = r->st->head.nblocks * block_bytes;

    if (at > all || bytes > all - at)
        return hl_fail(HAUL_E_FORMAT, "%s/rank-%05u.bin: a block is past the end of the records",
                       r->dir, r->rank);
    for (uint64_t done = 0; done < bytes;) {
        uint64_t skip = (at + done) % block_bytes, some = block_bytes - skip;
        int rc = hold(r, which, (at + done) / block_bytes);
        if (rc < 0)
            return rc;
        some = some < bytes - done ? some : bytes - done;
        memcpy((char *)out + done, r->held[which].mem + skip, some);
        done += some;
    }
    return 0;
}
