/* method_choose.c: which method works here, found out by using it, and why another does not. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "fail.h"
#include "method.h"
#include "scratch_file.h"
#include "sys.h"
#include "sys_file.h"

#define TRY_TIMEOUT_NS 10000000000ull

/* One transfer, whole; a method may need a few turns. */
static int move_one(struct hl_method *m, int write, void *buf, uint32_t bytes)
{
    struct hl_transfer t = {
        .tag = 1, .write = write, .file = 0, .bytes = bytes, .offset = bytes, .buf = buf};
    struct hl_done done;
    int rc = m->ops->start(m, &t);

    while (rc == 0)
        rc = m->ops->reap(m, &done, 1, TRY_TIMEOUT_NS);
    if (rc < 0)
        return rc;
    if (done.result < 0)
        return hl_fail((int)done.result, "%s: trial %s: %s", m->ops->name, write ? "write" : "read",
                       haul_strerror((int)done.result));
    if (done.result != (int64_t)bytes)
        return hl_fail(HAUL_E_SHORT_IO, "%s: trial %s moved %lld of %u bytes", m->ops->name,
                       write ? "write" : "read", (long long)done.result, bytes);
    return 0;
}

/* mem: four pieces of align bytes; the second goes out, the fourth comes in. */
static int write_and_compare(struct hl_method *m, char *mem, uint32_t align)
{
    char *out = mem + align, *in = mem + 3 * (size_t)align;
    int rc;

    for (uint32_t i = 0; i < align; i++)
        out[i] = (char)(i * 7 + 3);
    rc = move_one(m, 1, out, align);
    if (rc < 0)
        return rc;
    rc = move_one(m, 0, in, align);
    if (rc < 0)
        return rc;
    if (memcmp(in, out, align))
        return hl_fail(-EIO, "%s: trial read gave other bytes than were written", m->ops->name);
    return 0;
}

int hl_method_try(const struct hl_method_ops *ops, int dirfd, uint32_t align, int direct)
{
    uint64_t bytes = 4ull * align;
    struct hl_method *m;
    struct haul_seg region;
    void *mem;
    int fd, rc;

    fd = hl_scratch_file(dirfd, direct ? O_DIRECT : 0);
    if (fd < 0)
        return fd;
    rc = hl_sys_map(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0, &mem);
    if (rc < 0)
        goto close_file;
    region = (struct haul_seg){mem, bytes};
    rc = ops->open(
        &(struct hl_method_args){
            .fds = &fd, .nfiles = 1, .depth = 4, .regions = &region, .nregions = 1},
        &m);
    if (rc < 0)
        goto unmap;
    rc = write_and_compare(m, mem, align);
    ops->close(m);
unmap:
    hl_sys_unmap(mem, bytes);
close_file:
    hl_sys_close(fd);
    return rc;
}

#ifdef HL_HAVE_URING
static const char *uring_remedy(int rc)
{
    char text[16] = "0";

    if (rc == -ENOSYS)
        return "the kernel has no io_uring, or a seccomp filter hides it (docker: --security-opt "
               "seccomp=...)";
    if (rc == -ENOMEM)
        return "raise RLIMIT_MEMLOCK (ulimit -l)";
    if (rc != -EPERM)
        return "the file system or the kernel refuses it";
    if (hl_sys_read_text("/proc/sys/kernel/io_uring_disabled", text, sizeof text) > 0 &&
        text[0] != '0')
        return "sysctl kernel.io_uring_disabled forbids it; set it to 0, or add the user to "
               "kernel.io_uring_group";
    return "a seccomp filter forbids it (docker: --security-opt seccomp=...)";
}
#endif

static int is_full(int rc)
{
    return rc == -ENOSPC || rc == -EDQUOT;
}

int hl_place_full(int rc, const char *path, int dirfd)
{
    char text[320];
    struct hl_fs fs;

    if (!is_full(rc))
        return rc;
    snprintf(text, sizeof text, "%s", haul_last_error());
    if (hl_sys_statfs(dirfd, &fs) < 0)
        return hl_fail(rc, "%s: %s; free some space there", path, text);
    return hl_fail(rc, "%s: %s; %llu bytes are free on its %s, free some space there", path, text,
                   (unsigned long long)fs.free_bytes, fs.name);
}

static int try_all(const struct hl_method_ops *ops, const struct hl_method_place *places,
                   uint32_t n)
{
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < n; i++)
        rc = hl_place_full(hl_method_try(ops, places[i].dirfd, places[i].align, places[i].direct),
                           places[i].path, places[i].dirfd);
    return rc;
}

int hl_method_choose(enum haul_io_method asked, const struct hl_method_place *places, uint32_t n,
                     char *note, uint32_t note_bytes, const struct hl_method_ops **out)
{
    int rc;

    note[0] = '\0';
    if (asked != HAUL_IO_THREADS) {
#ifdef HL_HAVE_URING
        rc = try_all(&hl_method_uring, places, n);
        if (rc == 0) {
            *out = &hl_method_uring;
            return 0;
        }
        if (is_full(rc)) /* any method would find it so */
            return rc;
        snprintf(note, note_bytes, "io_uring is not used: %s; %s", haul_last_error(),
                 uring_remedy(rc));
#else
        rc = -ENOSYS;
        snprintf(note, note_bytes, "io_uring is not used: this library was built without liburing");
#endif
        if (asked == HAUL_IO_URING)
            return hl_fail(rc, "%s", note);
        hl_log(HAUL_LOG_WARN, "%s; pread and pwrite threads take over", note);
    }
    rc = try_all(&hl_method_threads, places, n);
    if (rc == 0)
        *out = &hl_method_threads;
    return rc;
}
