/* ckpt_root.c: see ckpt_root.h. */
#include "ckpt_root.h"

#include <ctype.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt_manifest.h"
#include "fail.h"
#include "sys.h"
#include "sys_file.h"

#define PREFIX      "step-"
#define STEP_DIGITS 10
#define MOST_NAMED  10000u

/* step-0000000100, step-0000000100.2 */
static int is_name(const char *name)
{
    size_t digits;

    if (strncmp(name, PREFIX, sizeof PREFIX - 1) != 0 || strlen(name) >= HL_CKPT_NAME_BYTES)
        return 0;
    name += sizeof PREFIX - 1;
    digits = strspn(name, "0123456789");
    name += digits;
    if (digits < STEP_DIGITS || (*name && *name != '.'))
        return 0;
    return !*name || (name[1] && name[1 + strspn(name + 1, "0123456789")] == '\0');
}

/* ---- listing ---- */

struct listing {
    struct hl_ckpt_entry *list;
    uint32_t n, cap;
};

static int take_name(void *user, const char *name)
{
    struct listing *l = user;

    if (!is_name(name))
        return 0;
    if (l->n < l->cap)
        snprintf(l->list[l->n].name, HL_CKPT_NAME_BYTES, "%s", name);
    l->n++;
    return 0;
}

static void look_at(int rootfd, const char *root, struct hl_ckpt_entry *e)
{
    struct hl_ckpt_manifest m;
    char dir[1024];
    int fd = hl_sys_open(rootfd, e->name, O_RDONLY | O_DIRECTORY, 0);

    snprintf(dir, sizeof dir, "%s/%s", root, e->name);
    e->rc = fd < 0 ? fd : hl_ckpt_manifest_read(fd, dir, &m);
    if (fd == -ENOENT) /* removed meanwhile */
        e->rc = -ESTALE;
    hl_sys_close(fd);
    if (e->rc < 0) {
        snprintf(e->why, sizeof e->why, "%s", haul_last_error());
        return;
    }
    e->id = m.id;
    e->serial = m.serial;
    e->step = m.step;
    hl_ckpt_manifest_free(&m);
}

static int newest_first(const void *a, const void *b)
{
    const struct hl_ckpt_entry *x = a, *y = b;

    if ((x->rc < 0) != (y->rc < 0))
        return x->rc < 0 ? 1 : -1;
    if (x->serial != y->serial)
        return x->serial > y->serial ? -1 : 1;
    return -strcmp(x->name, y->name);
}

int hl_ckpt_list(int rootfd, const char *root, struct hl_ckpt_entry **out, uint32_t *n)
{
    struct listing l = {0};
    int rc = hl_sys_names(rootfd, take_name, &l);

    l.cap = l.n + 8; /* one may be made meanwhile */
    if (rc == 0)
        rc = hl_sys_alloc_array(l.cap, sizeof *l.list, (void **)&l.list);
    if (rc < 0)
        return rc;
    l.n = 0;
    rc = hl_sys_names(rootfd, take_name, &l);
    if (rc < 0) {
        hl_sys_free(l.list);
        return rc;
    }
    l.n = l.n < l.cap ? l.n : l.cap;
    for (uint32_t i = 0; i < l.n; i++)
        look_at(rootfd, root, &l.list[i]);
    qsort(l.list, l.n, sizeof *l.list, newest_first);
    *out = l.list;
    *n = l.n;
    return 0;
}

int hl_ckpt_is_one(const char *path)
{
    int dir = hl_sys_open(AT_FDCWD, path, O_RDONLY | O_DIRECTORY, 0), fd;

    if (dir < 0)
        return dir;
    fd = hl_sys_open(dir, HL_CKPT_MANIFEST, O_RDONLY, 0);
    hl_sys_close(fd);
    hl_sys_close(dir);
    return fd >= 0 || fd != -ENOENT;
}

int hl_ckpt_choose(const char *path, char *out, size_t len)
{
    struct hl_ckpt_entry *list;
    uint32_t n;
    int fd, rc = hl_ckpt_is_one(path);

    if (rc < 0)
        return rc;
    if (rc == 1)
        return (size_t)snprintf(out, len, "%s", path) < len ? 0 : -ENAMETOOLONG;
    fd = hl_sys_open(AT_FDCWD, path, O_RDONLY | O_DIRECTORY, 0);
    rc = fd < 0 ? fd : hl_ckpt_list(fd, path, &list, &n);
    hl_sys_close(fd);
    if (rc < 0)
        return rc;
    if (n == 0 || list[0].rc < 0)
        rc = hl_fail(-ENOENT, "%s: no complete checkpoint%s%s", path, n ? ": " : "",
                     n ? list[0].why : "");
    else if ((size_t)snprintf(out, len, "%s/%s", path, list[0].name) >= len)
        rc = -ENAMETOOLONG;
    hl_sys_free(list);
    return rc;
}

/* ---- making and removing ---- */

static int exists(int rootfd, const char *name)
{
    int fd = hl_sys_open(rootfd, name, O_RDONLY, 0);

    hl_sys_close(fd);
    return fd >= 0 ? 1 : fd == -ENOENT ? 0 : fd;
}

int hl_ckpt_make_dir(int rootfd, const char *root, uint64_t step, char name[HL_CKPT_NAME_BYTES])
{
    char path[4096];
    int rc = 1;

    for (uint32_t i = 1; rc == 1 && i < MOST_NAMED; i++) {
        int at = snprintf(name, HL_CKPT_NAME_BYTES, PREFIX "%0*" PRIu64, STEP_DIGITS, step);
        if (i > 1)
            snprintf(name + at, HL_CKPT_NAME_BYTES - (size_t)at, ".%u", i);
        rc = exists(rootfd, name);
    }
    if (rc != 0)
        return rc < 0 ? rc
                      : hl_fail(-EEXIST, "checkpoint: %s has %u of step %" PRIu64, root,
                                MOST_NAMED - 1, step);
    if ((size_t)snprintf(path, sizeof path, "%s/%s", root, name) >= sizeof path)
        return hl_fail(-ENAMETOOLONG, "checkpoint: %s: too long a name", root);
    rc = hl_sys_mkdir(path, 0777);
    if (rc == 0 && (rc = hl_sys_fsync(rootfd)) < 0)
        (void)hl_sys_rmdir(rootfd, name);
    return rc;
}

static int unlink_one(void *user, const char *name)
{
    return hl_sys_unlink(*(int *)user, name);
}

int hl_ckpt_remove(int rootfd, const char *name)
{
    int fd = hl_sys_open(rootfd, name, O_RDONLY | O_DIRECTORY, 0), rc;

    if (fd < 0)
        return fd;
    rc = hl_sys_unlink(fd, HL_CKPT_MANIFEST);
    if (rc == 0)
        rc = hl_sys_fsync(fd);
    if (rc == 0 || rc == -ENOENT)
        rc = hl_sys_names(fd, unlink_one, &fd);
    hl_sys_close(fd);
    return rc < 0 ? rc : hl_sys_rmdir(rootfd, name);
}

int hl_ckpt_clean(int rootfd, const char *root)
{
    struct hl_ckpt_entry *list;
    uint32_t n;
    int rc = hl_ckpt_list(rootfd, root, &list, &n);

    if (rc < 0)
        return rc;
    for (uint32_t i = 0; rc == 0 && i < n; i++)
        if (list[i].rc == -ENOENT)
            rc = hl_ckpt_remove(rootfd, list[i].name);
    hl_sys_free(list);
    return rc;
}

int hl_ckpt_retain(int rootfd, const char *root, uint32_t keep_last, uint64_t keep_every)
{
    struct hl_ckpt_entry *list;
    uint32_t n;
    int rc;

    if (keep_last == 0)
        return 0;
    rc = hl_ckpt_list(rootfd, root, &list, &n);
    if (rc < 0)
        return rc;
    for (uint32_t i = keep_last; i < n && list[i].rc == 0; i++) {
        if (keep_every && list[i].step % keep_every == 0)
            continue;
        if (hl_ckpt_remove(rootfd, list[i].name) < 0)
            hl_log(HAUL_LOG_WARN, "checkpoint: %s/%s should go and cannot be removed: %s", root,
                   list[i].name, haul_last_error());
    }
    hl_sys_free(list);
    return 0;
}
