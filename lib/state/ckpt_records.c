/*
 * ckpt_records.c: a checkpoint's records copied out of the store, beside its data files.
 *
 * Where the file system can share blocks between files nothing is moved: the store's next writes then go to blocks
 * that are free now. So room for all of it is asked for in both cases.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "ckpt_file.h"
#include "fail.h"
#include "sys.h"
#include "sys_file.h"

/* A window of the page cache. */
#define PUSH_BYTES (UINT64_C(8) << 20)

struct copying {
    struct hl_ckpt_records from;
    int fd;
    char *buf;
    bool shares; /* as long as the file system does */
    uint64_t pushed;
};

static int check_room(int dirfd, uint64_t bytes)
{
    struct hl_fs fs;
    int rc = hl_sys_statfs(dirfd, &fs);

    if (rc < 0 || fs.free_bytes >= bytes)
        return rc;
    return hl_fail(-ENOSPC, "records of %" PRIu64 " bytes to be copied, %" PRIu64 " are free",
                   bytes, fs.free_bytes);
}

/* 1: shared; 0: it is to be copied. */
static int share_block(struct copying *c, uint64_t i)
{
    const struct hl_store_place *p = &c->from.st->places[i];
    uint32_t bytes = c->from.st->head.block_bytes;
    int rc;

    if (!c->shares || p->bytes != bytes)
        return 0;
    rc = hl_sys_share_range(c->from.fd[p->dir], (off_t)p->at, bytes, c->fd, (off_t)(i * bytes));
    if (rc == -EOPNOTSUPP || rc == -EXDEV || rc == -EINVAL)
        c->shares = false;
    else if (rc < 0)
        return rc;
    return c->shares;
}

static void push_out(struct copying *c, uint64_t to)
{
    if (to - c->pushed < PUSH_BYTES)
        return;
    (void)hl_sys_write_behind(c->fd, (off_t)c->pushed, (off_t)(to - c->pushed), 1);
    (void)hl_sys_drop_cache(c->fd, (off_t)c->pushed, (off_t)(to - c->pushed));
    c->pushed = to;
}

static int copy_block(struct copying *c, uint64_t i)
{
    uint32_t bytes = c->from.st->head.block_bytes;
    int rc = share_block(c, i);

    if (rc != 0)
        return rc < 0 ? rc : 0;
    rc = hl_ckpt_records_block(&c->from, i, c->buf);
    if (rc == 0)
        rc = hl_sys_pwrite_all(c->fd, c->buf, bytes, (off_t)(i * bytes));
    if (rc == 0)
        push_out(c, (i + 1) * bytes);
    return rc;
}

static int copy_all(struct copying *c)
{
    uint64_t n = c->from.st->head.nblocks, bytes = n * c->from.st->head.block_bytes;
    int rc = check_room(c->fd, bytes);

    if (rc == 0)
        rc = hl_sys_ftruncate(c->fd, (off_t)bytes);
    if (rc == 0)
        rc = hl_sys_alloc_aligned(4096, c->from.st->head.block_bytes, (void **)&c->buf);
    for (uint64_t i = 0; rc == 0 && i < n; i++)
        rc = copy_block(c, i);
    hl_sys_free(c->buf);
    return rc < 0 ? rc : hl_sys_fsync(c->fd);
}

static int write_copy(struct hl_ckpt *ck, struct copying *c)
{
    char name[32], temp[40];
    int rc;

    hl_ckpt_records_name(c->from.rank, name);
    snprintf(temp, sizeof temp, "%s.tmp", name);
    rc = c->fd = hl_sys_open(ck->dirfd, temp, O_RDWR | O_CREAT | O_TRUNC, 0666);
    if (rc < 0)
        return rc;
    rc = copy_all(c);
    hl_sys_close(c->fd);
    if (rc == 0)
        rc = hl_sys_rename(ck->dirfd, temp, name);
    if (rc == 0)
        return hl_sys_fsync(ck->dirfd);
    char text[HL_ERROR_TEXT_BYTES];
    snprintf(text, sizeof text, "%s", haul_last_error());
    (void)hl_sys_unlink(ck->dirfd, temp);
    return hl_fail(rc, "checkpoint: %s/%s: %s", ck->dir, name, text);
}

int hl_ckpt_records_copy(const char *dir, uint32_t rank)
{
    struct copying c = {.shares = true};
    struct hl_ckpt *ck;
    int rc = hl_ckpt_open(dir, &ck);

    if (rc < 0)
        return rc;
    if (rank < ck->m.nranks && ck->stores[rank].head.nblocks &&
        (rc = hl_ckpt_records_open(dir, ck->dirfd, &ck->stores[rank], rank, &c.from)) == 0) {
        rc = c.from.copy < 0 ? write_copy(ck, &c) : 0;
        hl_ckpt_records_close(&c.from);
    }
    hl_ckpt_close(ck);
    return rc;
}
