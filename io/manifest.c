/* manifest.c: encoding, decoding and publishing of manifests. */
#include "manifest.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checksum.h"
#include "sys.h"
#include "sys_file.h"

#define MAGIC     "HAULMNF1"
#define VERSION   1
#define TEMP_NAME "manifest.tmp"
#define PREFIX    "manifest."

struct disk_header {
    char magic[8];
    uint32_t version, block_bytes;
    uint64_t store_id, generation, written_bytes;
    uint32_t ndirs, nextents;
    uint64_t nblocks, blob_bytes;
    uint32_t ncells[HAUL_MAX_DIRS];
};

struct disk_extent {
    uint32_t id, zero;
    uint64_t bytes, nblocks;
};

struct disk_block {
    uint64_t sum, generation;
    uint32_t cell, bytes;
    uint8_t dir, slot, zero[6];
};

static void file_name(uint64_t generation, char name[48])
{
    snprintf(name, 48, PREFIX "%" PRIu64, generation);
}

static uint64_t round_8(uint64_t n)
{
    return (n + 7) & ~7ull;
}

static uint64_t total_bytes(const struct disk_header *h)
{
    return sizeof *h + (uint64_t)h->nextents * sizeof(struct disk_extent) +
           h->nblocks * sizeof(struct disk_block) + round_8(h->blob_bytes) + sizeof(uint64_t);
}

/* ---- writing ---- */

static void fill_header(const struct haul_store *s, uint64_t generation, uint64_t blob_bytes,
                        struct disk_header *h)
{
    memset(h, 0, sizeof *h);
    memcpy(h->magic, MAGIC, sizeof h->magic);
    h->version = VERSION;
    h->block_bytes = s->opts.block_bytes;
    h->store_id = s->store_id;
    h->generation = generation;
    h->written_bytes = s->written_before + s->write.s.disk_bytes;
    h->ndirs = s->ndirs;
    h->blob_bytes = blob_bytes;
    for (uint32_t i = 0; i < s->ndirs; i++)
        h->ncells[i] = s->dirs[i].ncells;
    for (uint32_t id = 0; id < s->extents_len; id++)
        if (s->extents[id] && !s->extents[id]->passing) {
            h->nextents++;
            h->nblocks += s->extents[id]->nblocks;
        }
}

static void fill_block(const struct hl_block *blk, uint64_t generation, struct disk_block *out)
{
    *out = (struct disk_block){.sum = blk->sum,
                               .generation = blk->generation ? blk->generation : generation,
                               .cell = blk->cell,
                               .bytes = blk->bytes,
                               .dir = blk->dir,
                               .slot = blk->slot};
}

static void fill_body(const struct haul_store *s, const struct disk_header *h, char *at)
{
    struct disk_extent *ext = (struct disk_extent *)at;
    struct disk_block *blk = (struct disk_block *)(ext + h->nextents);

    for (uint32_t id = 0; id < s->extents_len; id++) {
        const struct hl_extent *e = s->extents[id];

        if (!e || e->passing)
            continue;
        *ext++ = (struct disk_extent){.id = id, .bytes = e->bytes, .nblocks = e->nblocks};
        for (uint64_t b = 0; b < e->nblocks; b++)
            fill_block(&e->blocks[b], h->generation, blk++);
    }
}

static int encode(const struct haul_store *s, uint64_t generation, const void *blob,
                  uint64_t blob_bytes, void **out, uint64_t *bytes)
{
    struct disk_header h;
    uint64_t sum;
    void *mem;
    char *p;
    int rc;

    fill_header(s, generation, blob_bytes, &h);
    *bytes = total_bytes(&h);
    rc = hl_sys_alloc(*bytes, &mem);
    if (rc < 0)
        return rc;
    p = mem;
    memcpy(p, &h, sizeof h);
    fill_body(s, &h, p + sizeof h);
    if (blob_bytes)
        memcpy(p + *bytes - sizeof sum - round_8(blob_bytes), blob, blob_bytes);
    sum = hl_checksum(p, *bytes - sizeof sum);
    memcpy(p + *bytes - sizeof sum, &sum, sizeof sum);
    *out = mem;
    return 0;
}

static int write_temp(int dirfd, const void *p, uint64_t bytes)
{
    int fd = hl_sys_open(dirfd, TEMP_NAME, O_WRONLY | O_CREAT | O_TRUNC, 0600), rc;

    if (fd < 0)
        return fd;
    rc = hl_sys_pwrite_all(fd, p, bytes, 0);
    if (rc == 0)
        rc = hl_sys_fsync(fd);
    hl_sys_close(fd);
    if (rc < 0)
        (void)hl_sys_unlink(dirfd, TEMP_NAME);
    return rc;
}

static int publish(int dirfd, uint64_t generation, int *lost)
{
    char name[48], text[HL_ERROR_TEXT_BYTES];
    int rc;

    file_name(generation, name);
    rc = hl_sys_rename(dirfd, TEMP_NAME, name);
    if (rc < 0) {
        (void)hl_sys_unlink(dirfd, TEMP_NAME);
        return rc;
    }
    rc = hl_sys_fsync(dirfd);
    if (rc == 0)
        return 0;
    /* It may or may not be there after a power loss: take it back, so that it is not. */
    snprintf(text, sizeof text, "%s", haul_last_error());
    *lost = hl_sys_unlink(dirfd, name) < 0;
    return hl_fail_text(rc, text);
}

int hl_manifest_write(const struct haul_store *s, uint64_t generation, const void *blob,
                      uint64_t blob_bytes, int *lost)
{
    int dirfd = s->dirs[0].dirfd, rc;
    uint64_t bytes;
    void *mem;

    *lost = 0;
    rc = encode(s, generation, blob, blob_bytes, &mem, &bytes);
    if (rc < 0)
        return rc;
    rc = write_temp(dirfd, mem, bytes);
    if (rc == 0)
        rc = publish(dirfd, generation, lost);
    hl_sys_free(mem);
    return rc;
}

int hl_manifest_remove(int dirfd, uint64_t generation)
{
    char name[48];
    int rc;

    file_name(generation, name);
    rc = hl_sys_unlink(dirfd, name);
    if (rc < 0 && rc != -ENOENT)
        return rc;
    return hl_sys_fsync(dirfd);
}

/* ---- reading ---- */

static int damaged(const char *dir, uint64_t generation, const char *what)
{
    return hl_fail(HAUL_E_CHECKSUM, "%s/" PREFIX "%" PRIu64 " is damaged: %s", dir, generation,
                   what);
}

static int check(const char *dir, uint64_t generation, const char *p, uint64_t bytes)
{
    const struct disk_header *h = (const struct disk_header *)p;
    uint64_t sum;

    if (bytes < sizeof *h + sizeof sum || memcmp(h->magic, MAGIC, sizeof h->magic))
        return damaged(dir, generation, "not a manifest");
    memcpy(&sum, p + bytes - sizeof sum, sizeof sum);
    if (hl_checksum(p, bytes - sizeof sum) != sum)
        return damaged(dir, generation, "its checksum does not match");
    if (h->version != VERSION)
        return hl_fail(HAUL_E_CONFIG,
                       "%s/" PREFIX "%" PRIu64 " has version %u; this library reads %d", dir,
                       generation, h->version, VERSION);
    if (h->generation != generation || total_bytes(h) != bytes || h->ndirs > HAUL_MAX_DIRS ||
        h->ndirs == 0 || h->block_bytes == 0)
        return damaged(dir, generation, "its header does not fit its name and size");
    return 0;
}

static int block_fits(const struct disk_header *h, const struct disk_block *b)
{
    return b->dir < h->ndirs && b->cell < h->ncells[b->dir] && b->slot <= HL_SLOT_NONE &&
           b->bytes <= h->block_bytes;
}

static int decode_extent(const struct disk_header *h, const struct disk_extent *e,
                         const struct disk_block *blk, struct hl_extent **out)
{
    struct hl_extent *ext;
    int rc = hl_extent_alloc(e->id, e->bytes, e->nblocks, &ext);

    if (rc < 0)
        return rc;
    for (uint64_t b = 0; b < e->nblocks; b++) {
        if (!block_fits(h, &blk[b])) {
            hl_extent_free(ext);
            return -EINVAL;
        }
        ext->blocks[b] = (struct hl_block){.sum = blk[b].sum,
                                           .generation = blk[b].generation,
                                           .cell = blk[b].cell,
                                           .bytes = blk[b].bytes,
                                           .dir = blk[b].dir,
                                           .slot = blk[b].slot,
                                           .held = HL_SLOT_NONE,
                                           .older = HL_SLOT_NONE};
    }
    *out = ext;
    return 0;
}

static int decode_extents(const struct disk_header *h, const char *p, struct hl_manifest *m)
{
    const struct disk_extent *e = (const struct disk_extent *)(p + sizeof *h);
    const struct disk_block *blk = (const struct disk_block *)(e + h->nextents);
    uint64_t left = h->nblocks;

    for (uint32_t i = 0; i < h->nextents; i++) {
        int rc;

        if (e[i].id >= HAUL_MAX_EXTENTS || e[i].nblocks > left || !e[i].bytes ||
            e[i].nblocks != (e[i].bytes - 1) / h->block_bytes + 1)
            return -EINVAL;
        rc = decode_extent(h, &e[i], blk, &m->extents[i]);
        if (rc < 0)
            return rc;
        m->nextents++;
        blk += e[i].nblocks;
        left -= e[i].nblocks;
    }
    return 0;
}

static int decode(const char *p, uint64_t bytes, struct hl_manifest *m)
{
    const struct disk_header *h = (const struct disk_header *)p;
    void *mem;
    int rc;

    m->store_id = h->store_id;
    m->generation = h->generation;
    m->written_bytes = h->written_bytes;
    m->block_bytes = h->block_bytes;
    m->ndirs = h->ndirs;
    memcpy(m->ncells, h->ncells, sizeof m->ncells);
    rc = hl_sys_alloc_array(h->nextents, sizeof *m->extents, &mem);
    if (rc < 0)
        return rc;
    m->extents = mem;
    rc = decode_extents(h, p, m);
    if (rc < 0 || !h->blob_bytes)
        return rc;
    rc = hl_sys_alloc(h->blob_bytes, &m->blob);
    if (rc < 0)
        return rc;
    m->blob_bytes = h->blob_bytes;
    memcpy(m->blob, p + bytes - sizeof(uint64_t) - round_8(h->blob_bytes), h->blob_bytes);
    return 0;
}

static int slurp(int dirfd, uint64_t generation, void **out, uint64_t *bytes)
{
    char name[48];
    struct stat st;
    int fd, rc;

    file_name(generation, name);
    fd = hl_sys_open(dirfd, name, O_RDONLY, 0);
    if (fd < 0)
        return fd;
    rc = hl_sys_fstat(fd, &st);
    if (rc == 0)
        rc = hl_sys_alloc((size_t)st.st_size, out);
    if (rc == 0) {
        *bytes = (uint64_t)st.st_size;
        rc = hl_sys_pread_all(fd, *out, *bytes, 0);
        if (rc < 0)
            hl_sys_free(*out);
    }
    hl_sys_close(fd);
    return rc;
}

int hl_manifest_read(int dirfd, const char *dir, uint64_t generation, struct hl_manifest *out)
{
    struct hl_manifest m = {0};
    uint64_t bytes = 0;
    void *p;
    int rc = slurp(dirfd, generation, &p, &bytes);

    if (rc < 0)
        return rc;
    rc = check(dir, generation, p, bytes);
    if (rc == 0)
        rc = decode(p, bytes, &m);
    if (rc == -EINVAL)
        rc = damaged(dir, generation, "an extent or a block does not fit");
    hl_sys_free(p);
    if (rc < 0)
        hl_manifest_free(&m);
    else
        *out = m;
    return rc;
}

void hl_manifest_free(struct hl_manifest *m)
{
    for (uint32_t i = 0; i < m->nextents; i++)
        hl_extent_free(m->extents[i]);
    hl_sys_free(m->extents);
    hl_sys_free(m->blob);
    *m = (struct hl_manifest){0};
}

struct listing {
    int dirfd, clean;
    uint64_t *list;
    uint32_t n, capacity;
};

static int list_one(void *user, const char *name)
{
    struct listing *l = user;
    unsigned long long generation;
    char *end;

    if (strncmp(name, PREFIX, strlen(PREFIX)))
        return 0;
    if (!strcmp(name, TEMP_NAME))
        return l->clean ? hl_sys_unlink(l->dirfd, name) : 0;
    generation = strtoull(name + strlen(PREFIX), &end, 10);
    if (*end || !generation)
        return 0;
    if (l->n < l->capacity)
        l->list[l->n] = generation;
    l->n++;
    return 0;
}

static int ascending(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

/* More than two stand there only when something went wrong; this many are looked at. */
#define MAX_LISTED 1024

int hl_manifest_list(int dirfd, int clean, uint64_t **list, uint32_t *n)
{
    struct listing l = {.dirfd = dirfd, .clean = clean, .capacity = MAX_LISTED};
    void *mem;
    int rc = hl_sys_alloc_array(MAX_LISTED, sizeof *l.list, &mem);

    if (rc < 0)
        return rc;
    l.list = mem;
    rc = hl_sys_names(dirfd, list_one, &l);
    if (rc < 0) {
        hl_sys_free(mem);
        return rc;
    }
    *n = l.n < MAX_LISTED ? l.n : MAX_LISTED;
    qsort(l.list, *n, sizeof *l.list, ascending);
    *list = l.list;
    return 0;
}

int haul_store_generations(const char *dir, uint64_t *out, uint32_t max, uint32_t *n)
{
    int dirfd, rc = HL_GIVEN(dir);
    uint64_t *list;
    uint32_t found;

    rc = rc || !max ? rc : HL_GIVEN(out);
    rc = rc ? rc : HL_GIVEN(n);
    if (rc < 0)
        return rc;
    dirfd = hl_sys_open(AT_FDCWD, dir, O_RDONLY | O_DIRECTORY, 0);
    if (dirfd < 0)
        return dirfd;
    rc = hl_manifest_list(dirfd, 0, &list, &found);
    hl_sys_close(dirfd);
    if (rc < 0)
        return rc;
    for (uint32_t i = 0; i < found && i < max; i++)
        out[i] = list[i];
    *n = found;
    hl_sys_free(list);
    return 0;
}
