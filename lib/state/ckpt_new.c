/* ckpt_new.c: see ckpt_new.h. */
#include "ckpt_new.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "checksum.h"
#include "clock.h"
#include "fail.h"
#include "sys.h"
#include "sys_file.h"

/* A number that no other checkpoint has. */
static uint64_t make_id(const void *salt)
{
    const uint64_t words[] = {hl_clock_ns(), (uint64_t)getpid(), (uint64_t)time(NULL),
                              (uint64_t)(uintptr_t)salt};
    uint64_t id = hl_checksum(words, sizeof words);

    return id ? id : 1;
}

static int sync_parent(int rootfd)
{
    int fd = hl_sys_open(rootfd, "..", O_RDONLY | O_DIRECTORY, 0), rc;

    if (fd < 0)
        return fd;
    rc = hl_sys_fsync(fd);
    hl_sys_close(fd);
    return rc;
}

static int open_root(struct hl_ckpt_new *n)
{
    int rc = hl_sys_mkdir(n->root, 0777);

    if (rc < 0)
        return rc;
    n->rootfd = hl_sys_open(AT_FDCWD, n->root, O_RDONLY | O_DIRECTORY, 0);
    if (n->rootfd < 0)
        return n->rootfd;
    rc = hl_sys_lock_file(n->rootfd, 1);
    if (rc == -EWOULDBLOCK)
        return hl_fail(-EBUSY, "checkpoint: another process saves in %s", n->root);
    return rc < 0 ? rc : sync_parent(n->rootfd);
}

static int next_serial(struct hl_ckpt_new *n)
{
    struct hl_ckpt_entry *list;
    uint32_t nlisted;
    int rc = hl_ckpt_list(n->rootfd, n->root, &list, &nlisted);

    if (rc < 0)
        return rc;
    n->serial = nlisted && list[0].rc == 0 ? list[0].serial + 1 : 1;
    hl_sys_free(list);
    return 0;
}

static int make_place(struct hl_ckpt_new *n, const char *root, uint64_t step,
                      const struct hl_ckpt_rest *rest)
{
    int rc = hl_sys_strdup(root, &n->root);

    if (rc == 0)
        rc = open_root(n);
    if (rc == 0)
        rc = hl_ckpt_clean(n->rootfd, root);
    if (rc == 0)
        rc = hl_ckpt_retain(n->rootfd, root, rest->keep_last, rest->keep_every);
    if (rc == 0)
        rc = next_serial(n);
    if (rc == 0)
        rc = hl_ckpt_make_dir(n->rootfd, root, step, n->name);
    n->made = rc == 0;
    if (rc == 0)
        rc = n->dirfd = hl_sys_open(n->rootfd, n->name, O_RDONLY | O_DIRECTORY, 0);
    return rc < 0 ? rc : 0;
}

int hl_ckpt_new_open(const char *root, uint64_t step, const struct hl_ckpt_rest *rest,
                     struct hl_ckpt_new **out)
{
    struct hl_ckpt_new *n;
    int rc = hl_sys_alloc(sizeof *n, (void **)&n);

    if (rc < 0)
        return rc;
    n->rootfd = n->dirfd = -1;
    n->id = make_id(n);
    rc = make_place(n, root, step, rest);
    if (rc < 0)
        hl_ckpt_new_close(n);
    else
        *out = n;
    return rc;
}

static int publish_latest(struct hl_ckpt_new *n)
{
    char text[HL_CKPT_NAME_BYTES + 1];
    int bytes = snprintf(text, sizeof text, "%s\n", n->name);

    return hl_ckpt_publish(n->rootfd, HL_CKPT_LATEST, text, (size_t)bytes);
}

int hl_ckpt_new_commit(struct hl_ckpt_new *n, struct hl_ckpt_manifest *m,
                       const struct hl_ckpt_rest *rest)
{
    int rc;

    m->id = n->id;
    m->serial = n->serial;
    m->user_bytes = rest->user_bytes;
    m->user_sum = hl_checksum(rest->user, rest->user_bytes);
    rc = hl_ckpt_publish(n->dirfd, HL_CKPT_USER_FILE, rest->user, rest->user_bytes);
    if (rc == 0)
        rc = hl_ckpt_manifest_write(n->dirfd, m);
    if (rc < 0)
        return rc;
    n->complete = 1;
    rc = publish_latest(n);
    return rc < 0 ? rc : hl_ckpt_retain(n->rootfd, n->root, rest->keep_last, rest->keep_every);
}

static void take_back(struct hl_ckpt_new *n)
{
    char text[HL_ERROR_TEXT_BYTES];

    snprintf(text, sizeof text, "%s", haul_last_error());
    if (hl_ckpt_remove(n->rootfd, n->name) < 0)
        hl_log(HAUL_LOG_WARN, "checkpoint: what is left of %s/%s cannot be removed: %s", n->root,
               n->name, haul_last_error());
    (void)hl_fail_text(-EIO, text);
}

void hl_ckpt_new_close(struct hl_ckpt_new *n)
{
    if (!n)
        return;
    if (n->made && !n->complete)
        take_back(n);
    hl_sys_close(n->dirfd);
    hl_sys_close(n->rootfd);
    hl_sys_free(n->root);
    hl_sys_free(n);
}

int hl_ckpt_new_write(const char *root, struct hl_ckpt_manifest *m,
                      const struct hl_ckpt_source *source, const struct hl_ckpt_rest *rest,
                      char name[HL_CKPT_NAME_BYTES])
{
    struct hl_ckpt_new *n;
    int rc = hl_ckpt_new_open(root, m->step, rest, &n);

    if (rc < 0)
        return rc;
    m->id = n->id;
    m->version = 1;
    for (uint32_t r = 0; rc == 0 && r < m->nranks; r++)
        rc = hl_ckpt_file_write(n->dirfd, m, r, source, &m->files[r]);
    if (rc == 0)
        rc = hl_sys_fsync(n->dirfd);
    if (rc == 0)
        rc = hl_ckpt_new_commit(n, m, rest);
    if (rc == 0 && name)
        memcpy(name, n->name, sizeof n->name);
    hl_ckpt_new_close(n);
    return rc;
}
