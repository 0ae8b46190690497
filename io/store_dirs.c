/* store_dirs.c: directories, locks, data files, and the space in them. */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "scratch_file.h"
#include "store.h"
#include "store_kept.h"
#include "stripe_file.h"
#include "sys.h"
#include "sys_file.h"

#define LOCK_NAME "haul.lock"

/* ---- directories and locks ---- */

static int held_by(const struct hl_dir *d)
{
    char pid[32] = "";
    ssize_t n = pread(d->lock_fd, pid, sizeof pid - 1, 0);

    pid[n > 0 ? n : 0] = '\0';
    pid[strcspn(pid, "\n")] = '\0';
    return hl_fail(-EBUSY, "%s is in use by process %s; one durable store has one owner", d->path,
                   pid[0] ? pid : "unknown (a reader)");
}

/* The lock dies with its holder; the pid in the file is for people. */
static int lock_dir(const struct haul_store *s, struct hl_dir *d)
{
    char pid[32];
    int rc, n;

    rc = hl_sys_open(d->dirfd, LOCK_NAME, s->opts.read_only ? O_RDONLY : O_RDWR | O_CREAT, 0600);
    if (rc < 0)
        return rc;
    d->lock_fd = rc;
    rc = hl_sys_lock_file(d->lock_fd, !s->opts.read_only);
    if (rc == -EWOULDBLOCK)
        return held_by(d);
    if (rc < 0 || s->opts.read_only)
        return rc;
    n = snprintf(pid, sizeof pid, "%d\n", (int)getpid());
    rc = hl_sys_ftruncate(d->lock_fd, 0);
    if (rc == 0)
        rc = hl_sys_pwrite_all(d->lock_fd, pid, (size_t)n, 0);
    return hl_place_full(rc, d->path, d->dirfd);
}

static int open_dir(struct haul_store *s, struct hl_dir *d, const char *path)
{
    int rc;

    if (strlen(path) >= sizeof d->path)
        return hl_fail(-ENAMETOOLONG, "directory name of %zu characters", strlen(path));
    snprintf(d->path, sizeof d->path, "%s", path);
    snprintf(d->label, sizeof d->label, "%s/%s", path,
             s->opts.durable ? HL_STORE_DATA_NAME : "(scratch)");
    if (!s->opts.read_only) {
        rc = hl_sys_mkdir(path, 0700);
        if (rc < 0)
            return rc;
    }
    rc = hl_sys_open(AT_FDCWD, path, O_RDONLY | O_DIRECTORY, 0);
    if (rc < 0)
        return rc;
    d->dirfd = rc;
    return 0;
}

/* Two names of one directory would share its data file, or its space. */
static int check_distinct(const struct haul_store *s)
{
    struct stat st[HAUL_MAX_DIRS];

    for (uint32_t i = 0; i < s->ndirs; i++) {
        int rc = hl_sys_fstat(s->dirs[i].dirfd, &st[i]);

        if (rc < 0)
            return rc;
        for (uint32_t j = 0; j < i; j++)
            if (st[i].st_dev == st[j].st_dev && st[i].st_ino == st[j].st_ino)
                return hl_fail(-EINVAL,
                               "dirs[%u] (%s) is the same directory as dirs[%u] (%s); name each "
                               "one once",
                               i, s->dirs[i].path, j, s->dirs[j].path);
    }
    return 0;
}

int hl_dirs_open(struct haul_store *s, const struct haul_store_opts *opts)
{
    int rc;

    for (uint32_t i = 0; i < s->ndirs; i++) {
        s->dirs[i].weight = opts->dir_weights ? opts->dir_weights[i] : 1;
        rc = open_dir(s, &s->dirs[i], opts->dirs[i]);
        if (rc < 0)
            return rc;
    }
    /* Before anything is written in them. */
    rc = check_distinct(s);
    for (uint32_t i = 0; rc == 0 && i < s->ndirs; i++)
        rc = s->opts.durable ? lock_dir(s, &s->dirs[i]) : hl_scratch_sweep(s->dirs[i].dirfd);
    return rc;
}

/* The kernel lets go of a ring's files some time after the ring has ended: without cutting it short, a
 * scratch file would keep its space until then. */
void hl_dirs_close(struct haul_store *s)
{
    for (uint32_t i = 0; i < s->ndirs; i++) {
        if (s->fds[i] >= 0 && !s->opts.durable)
            (void)hl_sys_ftruncate(s->fds[i], 0);
        hl_sys_close(s->fds[i]);
        hl_sys_close(s->dirs[i].lock_fd);
        hl_sys_close(s->dirs[i].dirfd);
    }
}

/* ---- data files and their alignment ---- */

static int open_data(const struct haul_store *s, const struct hl_dir *d, int flags)
{
    if (!s->opts.durable)
        return hl_scratch_file(d->dirfd, flags);
    return hl_sys_open(d->dirfd, HL_STORE_DATA_NAME,
                       flags | (s->opts.read_only ? O_RDONLY : O_RDWR | O_CREAT), 0600);
}

/* What the file asks for, or else the least of two sizes that works. 0: direct I/O does not. */
static uint32_t direct_align(struct hl_dir *d, int fd)
{
    uint32_t mem = 0, offset = 0;
    int known = hl_sys_dio_align(fd, &mem, &offset);

    if (known > 0) {
        d->mem_align = mem;
        return mem ? offset : 0;
    }
    for (uint32_t align = 512; align <= 4096; align *= 8) {
        d->mem_align = align;
        if (hl_method_try(&hl_method_threads, d->dirfd, align, 1) == 0)
            return align;
    }
    return 0;
}

static void note_buffered(struct haul_store *s, const struct hl_dir *d, const char *why)
{
    size_t n = strlen(s->direct_note);

    snprintf(s->direct_note + n, sizeof s->direct_note - n,
             "%s%s (%s): %s, so transfers go through the page cache", n ? "; " : "", d->path, d->fs,
             why);
}

static int use_buffered(struct haul_store *s, uint32_t i, const char *why)
{
    struct hl_dir *d = &s->dirs[i];
    int rc;

    if (s->opts.direct == HAUL_DIRECT_ON)
        return hl_fail(-EINVAL, "%s (%s): %s, and direct I/O was required", d->path, d->fs, why);
    note_buffered(s, d, why);
    d->direct = 0;
    d->align = 4096; /* whole pages: nothing is read to be overwritten */
    d->mem_align = 1;
    if (s->fds[i] >= 0)
        return hl_sys_set_flags(s->fds[i], O_DIRECT, 0);
    rc = open_data(s, d, 0);
    if (rc < 0)
        return rc;
    s->fds[i] = rc;
    return 0;
}

static int open_file(struct haul_store *s, uint32_t i)
{
    struct hl_dir *d = &s->dirs[i];
    struct hl_fs fs;
    int rc = hl_sys_statfs(d->dirfd, &fs);

    if (rc < 0)
        return rc;
    d->fs = fs.name;
    d->tmpfs = !strcmp(fs.name, "tmpfs");
    if (s->opts.direct == HAUL_DIRECT_OFF)
        return use_buffered(s, i, "direct I/O is switched off");
    rc = open_data(s, d, O_DIRECT);
    if (rc == -EINVAL)
        return use_buffered(s, i, "the file system refuses O_DIRECT");
    if (rc < 0)
        return rc;
    s->fds[i] = rc;
    d->align = direct_align(d, rc);
    if (!d->align)
        return use_buffered(s, i, "the file system cannot do direct I/O on this file");
    d->direct = 1;
    return 0;
}

int hl_dirs_files(struct haul_store *s)
{
    s->align = s->mem_align = 1;
    for (uint32_t i = 0; i < s->ndirs; i++) {
        struct hl_dir *d = &s->dirs[i];
        struct stat st;
        int rc = open_file(s, i);

        if (rc == 0)
            rc = hl_sys_fstat(s->fds[i], &st);
        if (rc < 0)
            return rc;
        d->file_bytes = (uint64_t)st.st_size;
        if (s->opts.block_bytes % d->align)
            return hl_fail(-EINVAL, "block_bytes %u is not a multiple of the %u that %s asks for",
                           s->opts.block_bytes, d->align, d->path);
        s->align = d->align > s->align ? d->align : s->align;
        s->mem_align = d->mem_align > s->mem_align ? d->mem_align : s->mem_align;
    }
    return 0;
}

/* ---- space ---- */

/* Cells in proportion to the weights, none lost to rounding; a directory never gets fewer than the
 * manifest says it has. */
static int share_out(struct haul_store *s)
{
    uint64_t ncells = s->opts.capacity_bytes / s->opts.block_bytes, left = ncells;
    double sum = 0;

    for (uint32_t i = 0; i < s->ndirs; i++)
        sum += s->dirs[i].weight;
    if (ncells > UINT32_MAX)
        return hl_fail(-EINVAL, "capacity of %" PRIu64 " blocks; at most 2^32 - 1 (larger blocks)",
                       ncells);
    for (uint32_t i = 0; i < s->ndirs; i++) {
        struct hl_dir *d = &s->dirs[i];
        uint64_t want = (uint64_t)((double)ncells * d->weight / sum + 0.5);

        want = want > left || i + 1 == s->ndirs ? left : want;
        left -= want;
        d->ncells = (uint32_t)(want > d->ncells ? want : d->ncells);
    }
    return 0;
}

static int no_space(const struct hl_dir *d, uint64_t more, uint64_t free_bytes)
{
    return hl_fail(-ENOSPC, "%s needs %" PRIu64 " bytes more, %" PRIu64 " are free on its %s",
                   d->label, more, free_bytes, d->fs);
}

static int lengthen(struct haul_store *s, uint32_t i, uint64_t want)
{
    struct hl_dir *d = &s->dirs[i];
    uint64_t more = want - d->file_bytes;
    struct hl_fs fs;
    int rc;

    if (s->opts.reserve == HAUL_RESERVE_NONE)
        return hl_sys_ftruncate(s->fds[i], (off_t)want);
    rc = hl_sys_statfs(d->dirfd, &fs);
    if (rc < 0)
        return rc;
    if (more > fs.free_bytes)
        return no_space(d, more, fs.free_bytes);
    rc = hl_sys_fallocate(s->fds[i], (off_t)d->file_bytes, (off_t)more);
    if (rc == -EOPNOTSUPP) /* then writing it once is what reserves it */
        return hl_sys_ftruncate(s->fds[i], (off_t)want);
    if (rc == -ENOSPC || rc == -EDQUOT) {
        (void)hl_sys_ftruncate(s->fds[i], (off_t)d->file_bytes); /* give back what it got */
        return no_space(d, more, fs.free_bytes);
    }
    return rc;
}

/* Copy-on-write file systems allocate anew at every write, and tmpfs has no extents: there writing
 * once gains nothing. */
static int worth_writing(const struct haul_store *s, const struct hl_dir *d)
{
    return s->opts.reserve == HAUL_RESERVE_WRITTEN && !d->tmpfs && strcmp(d->fs, "btrfs") &&
           strcmp(d->fs, "zfs");
}

int hl_dirs_reserve(struct haul_store *s)
{
    int rc = share_out(s);

    for (uint32_t i = 0; rc == 0 && i < s->ndirs; i++) {
        struct hl_dir *d = &s->dirs[i];
        uint64_t want = (uint64_t)d->ncells * s->nslots * s->opts.block_bytes;

        if (want > d->file_bytes)
            rc = lengthen(s, i, want);
        if (rc < 0)
            break;
        d->file_bytes = want > d->file_bytes ? want : d->file_bytes;
        if (!worth_writing(s, d))
            d->written_bytes = d->file_bytes;
    }
    return rc < 0 ? rc : hl_write_once(s);
}
