/* sys_file.c: files and file systems, with the failure switch of sys.c. */
#include "sys_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "fail.h"
#include "sys.h"

/* -errno, with the text "what: why". */
static int refused(const char *what)
{
    int rc = -errno;

    return hl_fail(rc, "%s: %s", what, haul_strerror(rc));
}

static int refused_on(const char *what, const char *path)
{
    int rc = -errno;

    return hl_fail(rc, "%s %s: %s", what, path, haul_strerror(rc));
}

ssize_t hl_sys_pread(int fd, void *buf, size_t n, off_t off)
{
    int rc = hl_sys_attempt("pread");
    ssize_t got;

    if (rc < 0)
        return rc;
    got = pread(fd, buf, n, off);
    return got < 0 ? -errno : got;
}

ssize_t hl_sys_pwrite(int fd, const void *buf, size_t n, off_t off)
{
    int rc = hl_sys_attempt("pwrite");
    ssize_t put;

    if (rc < 0)
        return rc;
    put = pwrite(fd, buf, n, off);
    return put < 0 ? -errno : put;
}

int hl_sys_fsync(int fd)
{
    int rc = hl_sys_attempt("fsync");

    if (rc < 0)
        return rc;
    return fsync(fd) < 0 ? refused("fsync") : 0;
}

int hl_sys_fdatasync(int fd)
{
    int rc = hl_sys_attempt("fdatasync");

    if (rc < 0)
        return rc;
    return fdatasync(fd) < 0 ? refused("fdatasync") : 0;
}

int hl_sys_write_behind(int fd, off_t off, off_t n, int wait)
{
    unsigned flags = SYNC_FILE_RANGE_WRITE;
    int rc = hl_sys_attempt("sync_file_range");

    if (rc < 0)
        return rc;
    if (wait)
        flags |= SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WAIT_AFTER;
    return sync_file_range(fd, off, n, flags) < 0 ? refused("sync_file_range") : 0;
}

int hl_sys_drop_cache(int fd, off_t off, off_t n)
{
    int rc = hl_sys_attempt("posix_fadvise");

    if (rc < 0)
        return rc;
    rc = -posix_fadvise(fd, off, n, POSIX_FADV_DONTNEED);
    return rc < 0 ? hl_fail(rc, "posix_fadvise: %s", haul_strerror(rc)) : 0;
}

int hl_sys_fallocate(int fd, off_t off, off_t n)
{
    int rc = hl_sys_attempt("fallocate");

    if (rc < 0)
        return rc;
    while (fallocate(fd, 0, off, n) < 0)
        if (errno != EINTR)
            return refused("fallocate");
    return 0;
}

int hl_sys_share_range(int from, off_t from_off, off_t n, int to, off_t to_off)
{
    struct file_clone_range range = {.src_fd = from,
                                     .src_offset = (uint64_t)from_off,
                                     .src_length = (uint64_t)n,
                                     .dest_offset = (uint64_t)to_off};
    int rc = hl_sys_attempt("clone");

    if (rc < 0)
        return rc;
    if (ioctl(to, FICLONERANGE, &range) == 0)
        return 0;
    return errno == ENOTTY ? -EOPNOTSUPP : refused("clone");
}

int hl_sys_rename(int dirfd, const char *from, const char *to)
{
    int rc = hl_sys_attempt("rename");

    if (rc < 0)
        return rc;
    return renameat(dirfd, from, dirfd, to) < 0 ? refused_on("rename to", to) : 0;
}

int hl_sys_unlink(int dirfd, const char *path)
{
    int rc = hl_sys_attempt("unlink");

    if (rc < 0)
        return rc;
    return unlinkat(dirfd, path, 0) < 0 ? refused_on("unlink", path) : 0;
}

int hl_sys_rmdir(int dirfd, const char *path)
{
    int rc = hl_sys_attempt("rmdir");

    if (rc < 0)
        return rc;
    return unlinkat(dirfd, path, AT_REMOVEDIR) < 0 ? refused_on("rmdir", path) : 0;
}

int hl_sys_real_path(const char *path, char *out, size_t len)
{
    char whole[PATH_MAX];
    int rc = hl_sys_attempt("realpath");

    if (rc < 0)
        return rc;
    if (!realpath(path, whole))
        return refused_on("realpath of", path);
    if (strlen(whole) >= len)
        return hl_fail(-ENAMETOOLONG, "%s: too long a name", whole);
    memcpy(out, whole, strlen(whole) + 1);
    return 0;
}

int hl_sys_mkdir(const char *path, mode_t mode)
{
    int rc = hl_sys_attempt("mkdir");

    if (rc < 0)
        return rc;
    return mkdir(path, mode) < 0 && errno != EEXIST ? refused_on("mkdir", path) : 0;
}

int hl_sys_lock_file(int fd, int exclusive)
{
    int rc = hl_sys_attempt("flock");

    if (rc < 0)
        return rc;
    return flock(fd, (exclusive ? LOCK_EX : LOCK_SH) | LOCK_NB) < 0 ? refused("flock") : 0;
}

int hl_sys_set_flags(int fd, int clear, int set)
{
    int rc = hl_sys_attempt("fcntl"), flags;

    if (rc < 0)
        return rc;
    flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, (flags & ~clear) | set) < 0)
        return refused("fcntl");
    return 0;
}

/* Magic numbers of statfs(2); some are in no installed header. */
static const struct {
    int64_t magic;
    const char *name;
} fs_names[] = {
    {0xef53, "ext4"},         {0x58465342, "xfs"},    {0x9123683e, "btrfs"}, {0x01021994, "tmpfs"},
    {0x794c7630, "overlay"},  {0x2fc12fc1, "zfs"},    {0xf2f52010, "f2fs"},  {0x6969, "nfs"},
    {0x65735546, "fuse"},     {0x0bd00bd0, "lustre"}, {0x47504653, "gpfs"},  {0x01021997, "9p"},
    {0x6a656a63, "virtiofs"},
};

int hl_sys_statfs(int fd, struct hl_fs *out)
{
    int rc = hl_sys_attempt("fstatfs");
    struct statfs s;

    if (rc < 0)
        return rc;
    if (fstatfs(fd, &s) < 0)
        return refused("fstatfs");
    out->magic = (int64_t)(uint32_t)s.f_type;
    out->free_bytes = (uint64_t)s.f_bavail * (uint64_t)s.f_bsize;
    out->name = "unknown";
    for (size_t i = 0; i < sizeof fs_names / sizeof *fs_names; i++)
        if (fs_names[i].magic == out->magic)
            out->name = fs_names[i].name;
    return 0;
}

int hl_sys_dio_align(int fd, uint32_t *mem_bytes, uint32_t *offset_bytes)
{
    int rc = hl_sys_attempt("statx");
    struct statx x;

    if (rc < 0)
        return rc;
    if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &x) < 0)
        return refused("statx");
    if (!(x.stx_mask & STATX_DIOALIGN))
        return 0;
    *mem_bytes = x.stx_dio_mem_align;
    *offset_bytes = x.stx_dio_offset_align;
    return 1;
}

int hl_sys_names(int dirfd, hl_sys_name_fn fn, void *user)
{
    int fd = hl_sys_open(dirfd, ".", O_RDONLY | O_DIRECTORY, 0);
    int rc = 0, walk;
    struct dirent *entry;
    DIR *dir;

    if (fd < 0)
        return fd;
    /* closedir() closes what it was given; the counted descriptor stays ours. */
    walk = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    dir = walk < 0 ? NULL : fdopendir(walk);
    if (!dir) {
        rc = refused("read a directory");
        if (walk >= 0)
            close(walk);
        hl_sys_close(fd);
        return rc;
    }
    while (rc >= 0 && (entry = readdir(dir)))
        if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, ".."))
            rc = fn(user, entry->d_name);
    closedir(dir);
    hl_sys_close(fd);
    return rc < 0 ? rc : 0;
}
