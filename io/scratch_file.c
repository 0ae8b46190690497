/* scratch_file.c: O_TMPFILE, and what to do where a file system has none. */
#include "scratch_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"
#include "fail.h"
#include "sys.h"
#include "sys_file.h"

#define PREFIX ".haul-scratch."

static int named_file(int dirfd, int flags)
{
    char name[64];
    int fd, rc;

    snprintf(name, sizeof name, PREFIX "%d.%llu", (int)getpid(), (unsigned long long)hl_clock_ns());
    fd = hl_sys_open(dirfd, name, O_RDWR | O_CREAT | O_EXCL | flags, 0600);
    if (fd < 0)
        return fd;
    /* The lock tells a sweeping process that the maker lives; one that came first removes the name. */
    rc = hl_sys_lock_file(fd, 1);
    if (rc == 0 || rc == -EWOULDBLOCK)
        rc = hl_sys_unlink(dirfd, name);
    if (rc < 0 && rc != -ENOENT) {
        unlinkat(dirfd, name, 0);
        hl_sys_close(fd);
        return rc;
    }
    return fd;
}

int hl_scratch_file(int dirfd, int flags)
{
    int fd = hl_sys_open(dirfd, ".", O_TMPFILE | O_RDWR | flags, 0600);

    if (fd == -EOPNOTSUPP || fd == -EISDIR || fd == -ENOENT)
        fd = named_file(dirfd, flags);
    return fd;
}

static int sweep_one(void *user, const char *name)
{
    int dirfd = *(int *)user, fd;

    if (strncmp(name, PREFIX, strlen(PREFIX)))
        return 0;
    fd = hl_sys_open(dirfd, name, O_RDWR, 0);
    if (fd < 0)
        return fd == -ENOENT ? 0 : fd;
    if (hl_sys_lock_file(fd, 1) == 0)
        unlinkat(dirfd, name, 0);
    hl_sys_close(fd);
    return 0;
}

int hl_scratch_sweep(int dirfd)
{
    return hl_sys_names(dirfd, sweep_one, &dirfd);
}
