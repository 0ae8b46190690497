/* stripe_file.c: haul.stripe, one short text per directory, and the first write of reserved space. */
#include "stripe_file.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "sys.h"
#include "sys_file.h"

#define NAME      "haul.stripe"
#define TEMP_NAME "haul.stripe.tmp"
#define FORMAT    "haul-stripe 1\nstore %016" PRIx64 "\ndirectory %u of %u\nwritten %" PRIu64 "\n"
#define SCAN      "haul-stripe 1 store %" SCNx64 " directory %u of %u written %" SCNu64

struct stripe {
    uint64_t store_id, written_bytes;
    uint32_t index, ndirs;
};

/* -ENOENT when there is none. */
static int read_stripe(const struct hl_dir *d, struct stripe *out)
{
    char text[256] = "";
    ssize_t n;
    int fd = hl_sys_open(d->dirfd, NAME, O_RDONLY, 0);

    if (fd < 0)
        return fd;
    n = hl_sys_read(fd, text, sizeof text - 1);
    hl_sys_close(fd);
    if (n < 0)
        return (int)n;
    if (sscanf(text, SCAN, &out->store_id, &out->index, &out->ndirs, &out->written_bytes) != 4)
        return hl_fail(HAUL_E_CONFIG, "%s/" NAME " is not a stripe file", d->path);
    return 0;
}

int hl_stripe_write(const struct haul_store *s, uint32_t dir)
{
    const struct hl_dir *d = &s->dirs[dir];
    char text[256];
    int fd, rc, n;

    n = snprintf(text, sizeof text, FORMAT, s->store_id, dir, s->ndirs, d->written_bytes);
    fd = hl_sys_open(d->dirfd, TEMP_NAME, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd < 0)
        return fd;
    rc = hl_sys_pwrite_all(fd, text, (size_t)n, 0);
    if (rc == 0)
        rc = hl_sys_fsync(fd);
    hl_sys_close(fd);
    if (rc == 0)
        rc = hl_sys_rename(d->dirfd, TEMP_NAME, NAME);
    if (rc == 0)
        rc = hl_sys_fsync(d->dirfd);
    return hl_place_full(rc, d->path, d->dirfd);
}

static int foreign(const struct hl_dir *d, const struct stripe *f, uint32_t want, uint32_t ndirs)
{
    return hl_fail(HAUL_E_CONFIG,
                   "%s is directory %u of %u of store %016" PRIx64
                   ", not directory %u of %u of this one; name the store's own directories in "
                   "order, or remove haul.* and manifest.* there if that data is not needed",
                   d->path, f->index, f->ndirs, f->store_id, want, ndirs);
}

int hl_stripe_check(struct haul_store *s, int fresh)
{
    for (uint32_t i = 0; i < s->ndirs; i++) {
        struct hl_dir *d = &s->dirs[i];
        struct stripe f;
        int rc = read_stripe(d, &f);

        if (rc == -ENOENT && fresh)
            continue;
        if (rc < 0)
            return rc;
        if (fresh && i == 0) /* made, but nothing was ever prepared */
            s->store_id = f.store_id;
        if (f.store_id != s->store_id || f.index != i || f.ndirs != s->ndirs)
            return foreign(d, &f, i, s->ndirs);
        if (f.written_bytes > d->written_bytes)
            d->written_bytes = f.written_bytes;
    }
    return 0;
}

/* ---- writing space once ---- */

#define PIECE_BYTES (4u << 20)
#define DEPTH       8

struct filler {
    struct haul_store *s;
    struct hl_method *m;
    char *zeros;
    struct hl_transfer pieces[DEPTH]; /* tag % DEPTH: index; bytes 0: free */
    uint64_t serial;
    uint32_t inflight;
    uint64_t done_bytes, total_bytes;
};

static int unwritable(const struct filler *f, uint32_t dir, int rc)
{
    const struct hl_dir *d = &f->s->dirs[dir];

    rc = hl_fail(rc, "first write of the space reserved in %s: %s", d->label, haul_strerror(rc));
    return hl_place_full(rc, d->path, d->dirfd);
}

static void report(const struct filler *f)
{
    if (f->s->opts.progress)
        f->s->opts.progress(f->s->opts.progress_user, f->done_bytes, f->total_bytes);
}

/* Past the method. */
static int write_alone(const struct filler *f, const struct hl_transfer *t)
{
    int rc = hl_sys_pwrite_all(f->s->fds[t->file], f->zeros, t->bytes, (off_t)t->offset);

    return rc < 0 ? unwritable(f, t->file, rc) : 0;
}

/* A piece that did not go out whole goes out again, alone. */
static int finish_piece(struct filler *f, const struct hl_done *done)
{
    struct hl_transfer *t = &f->pieces[done->tag % DEPTH];
    int rc = 0;

    if (!t->bytes || t->tag != done->tag) /* comes a second time */
        return 0;
    if (done->result == -ENOSPC || done->result == -EDQUOT || done->result == -EIO)
        rc = unwritable(f, t->file, (int)done->result);
    else if (done->result != (int64_t)t->bytes)
        rc = write_alone(f, t);
    f->done_bytes += t->bytes;
    t->bytes = 0;
    f->inflight--;
    return rc;
}

static int reap_pieces(struct filler *f)
{
    struct hl_done done[DEPTH];
    int n = f->m->ops->reap(f->m, done, DEPTH, HL_WAIT_FOREVER), rc = 0;

    if (n < 0) {
        f->inflight = 0; /* the method is dead and answers no more */
        return n;
    }
    for (int i = 0; i < n; i++) {
        int one = finish_piece(f, &done[i]);

        rc = rc < 0 ? rc : one;
    }
    if (n > 0)
        report(f);
    return rc;
}

static int start_piece(struct filler *f, uint32_t dir, uint64_t at)
{
    uint64_t left = f->s->dirs[dir].file_bytes - at;
    uint32_t i = 0;
    int rc;

    while (f->pieces[i].bytes)
        i++;
    f->pieces[i] = (struct hl_transfer){.tag = ++f->serial * DEPTH + i,
                                        .write = 1,
                                        .file = dir,
                                        .bytes = left < PIECE_BYTES ? (uint32_t)left : PIECE_BYTES,
                                        .offset = at,
                                        .buf = f->zeros};
    rc = f->m->ops->start(f->m, &f->pieces[i]);
    uint32_t bytes = f->pieces[i].bytes;
    if (rc == 0) {
        f->inflight++;
        return (int)bytes;
    }
    if (rc == -EAGAIN && !f->inflight) { /* nothing whose end could be waited for */
        rc = write_alone(f, &f->pieces[i]);
        f->done_bytes += bytes;
        f->pieces[i].bytes = 0;
        report(f);
        return rc < 0 ? rc : (int)bytes;
    }
    f->pieces[i].bytes = 0;
    return rc == -EAGAIN ? 0 : unwritable(f, dir, rc);
}

static int fill_file(struct filler *f, uint32_t dir)
{
    uint64_t at = f->s->dirs[dir].written_bytes;
    int rc = 0;

    while (rc >= 0 && at < f->s->dirs[dir].file_bytes) {
        rc = start_piece(f, dir, at);
        at += rc > 0 ? (uint64_t)rc : 0;
        if (rc == 0 || f->inflight == DEPTH)
            rc = reap_pieces(f);
    }
    while (f->inflight) {
        int last = reap_pieces(f);

        rc = rc < 0 ? rc : last;
    }
    return rc < 0 ? rc : f->m->ops->flush(f->m, dir);
}

static int fill_files(struct filler *f)
{
    struct haul_store *s = f->s;
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < s->ndirs; i++) {
        if (s->dirs[i].written_bytes >= s->dirs[i].file_bytes)
            continue;
        rc = fill_file(f, i);
        if (rc < 0)
            break;
        s->dirs[i].written_bytes = s->dirs[i].file_bytes;
        if (s->opts.durable)
            rc = hl_stripe_write(s, i);
    }
    return rc;
}

int hl_write_once(struct haul_store *s)
{
    struct filler f = {.s = s};
    struct haul_pool_segment seg = {.bytes = PIECE_BYTES};
    struct haul_pool_opts opts;
    struct haul_pool *pool;
    void *mem;
    int rc;

    for (uint32_t i = 0; i < s->ndirs; i++)
        if (s->dirs[i].file_bytes > s->dirs[i].written_bytes)
            f.total_bytes += s->dirs[i].file_bytes - s->dirs[i].written_bytes;
    if (!f.total_bytes)
        return 0;
    haul_pool_opts_init(&opts);
    opts.segments = &seg;
    opts.nsegments = 1;
    rc = haul_pool_open(&opts, &pool);
    if (rc < 0)
        return rc;
    rc = haul_pool_take(pool, "zeros", PIECE_BYTES, &mem);
    if (rc < 0)
        goto close_pool;
    f.zeros = mem;
    rc = s->method_ops->open(
        &(struct hl_method_args){.fds = s->fds, .nfiles = s->ndirs, .depth = DEPTH}, &f.m);
    if (rc < 0)
        goto close_pool;
    rc = fill_files(&f);
    f.m->ops->close(f.m);
close_pool:
    haul_pool_close(pool);
    return rc;
}
