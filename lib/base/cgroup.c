/* cgroup.c: finds the directories; what stands in them is read by topo.c and hostmem.c. */
#include "cgroup.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "fail.h"
#include "sys.h"

#define PROC_CGROUP_BYTES 16384

struct walk {
    hl_cgroup_fn fn;
    void *user;
    const char *root;
    enum hl_cgroup_version version;
};

/* root/mount/path, then its parents down to root/mount itself. */
static int walk_up(const struct walk *w, const char *mount, const char *path)
{
    char dir[PATH_MAX];
    size_t base;
    int n, rc;

    if (strncmp(path, "/..", 3) == 0)
        path = ""; /* outside this process's cgroup namespace */
    n = snprintf(dir, sizeof dir, "%s%s%s", w->root, *mount ? "/" : "", mount);
    base = (size_t)n;
    if (base + strlen(path) >= sizeof dir)
        return hl_fail(-ENAMETOOLONG, "cgroup path %.200s is too long", path);
    strcpy(dir + base, path);
    for (;;) {
        char *slash = strrchr(dir + base, '/');

        if (slash && !slash[1]) { /* "/" itself, or a trailing one */
            *slash = '\0';
            continue;
        }
        rc = w->fn(w->user, w->version, dir);
        if (rc < 0 || !slash)
            return rc < 0 ? rc : 0;
        *slash = '\0';
    }
}

/* v1 mounts carry the name of the controller, or of all that share the hierarchy. */
static int walk_v1(struct walk *w, const char *controllers, const char *controller,
                   const char *path)
{
    int rc;

    w->version = HL_CGROUP_V1;
    rc = walk_up(w, controller, path);
    if (rc < 0 || strcmp(controllers, controller) == 0)
        return rc;
    return walk_up(w, controllers, path);
}

/* v2 is mounted at the root, or beside v1 as "unified". */
static int walk_v2(struct walk *w, const char *path)
{
    int rc;

    w->version = HL_CGROUP_V2;
    rc = walk_up(w, "", path);
    return rc < 0 ? rc : walk_up(w, "unified", path);
}

static int has_word(const char *list, const char *word)
{
    size_t n = strlen(word);

    for (const char *p = list; p; p = strchr(p, ',')) {
        p += *p == ',';
        if (strncmp(p, word, n) == 0 && (p[n] == ',' || !p[n]))
            return 1;
    }
    return 0;
}

int hl_cgroup_walk(const char *proc_cgroup, const char *cgroup_root, const char *controller,
                   hl_cgroup_fn fn, void *user)
{
    char text[PROC_CGROUP_BYTES], *line, *rest = text;
    struct walk w = {.fn = fn, .user = user, .root = cgroup_root};
    int rc = hl_sys_probe_text(proc_cgroup, text, sizeof text);

    /* lines "4:memory:/path" (v1) and "0::/path" (v2) */
    while (rc >= 0 && (line = strsep(&rest, "\n"))) {
        const char *id = strsep(&line, ":");
        const char *controllers = strsep(&line, ":");

        if (!line)
            continue;
        if (strcmp(id, "0") == 0 && !*controllers)
            rc = walk_v2(&w, line);
        else if (has_word(controllers, controller))
            rc = walk_v1(&w, controllers, controller, line);
    }
    return rc < 0 ? rc : 0;
}

int hl_cgroup_read(const char *dir, const char *file, char *buf, size_t len)
{
    char path[PATH_MAX];
    int n = snprintf(path, sizeof path, "%s/%s", dir, file);

    if (n < 0 || (size_t)n >= sizeof path)
        return hl_fail(-ENAMETOOLONG, "cgroup path %.200s is too long", dir);
    return hl_sys_probe_text(path, buf, len);
}
