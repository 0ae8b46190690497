/* hostmem.c: the least of what the machine, the cgroups and the address-space limit leave. */
#include "hostmem.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cgroup.h"
#include "fail.h"
#include "sys.h"

#define PROC_TEXT_BYTES 16384
/* v1 writes "no limit" as the largest whole page below 2^63. */
#define V1_NO_LIMIT ((uint64_t)1 << 62)

/* The number after a line's key; 0 and *out untouched when the key is not there or not a number. */
static int find_number(const char *text, const char *key, uint64_t *out)
{
    size_t n = strlen(key);

    for (const char *p = text; p && *p; p = strchr(p, '\n')) {
        char *end;
        uint64_t v;

        p += *p == '\n';
        if (strncmp(p, key, n) != 0)
            continue;
        v = strtoull(p + n, &end, 10);
        if (end == p + n)
            return 0;
        *out = v;
        return 1;
    }
    return 0;
}

static int proc_text(const char *proc_root, const char *file, int needed, char *buf)
{
    char path[PATH_MAX];

    snprintf(path, sizeof path, "%s/%s", proc_root, file);
    if (needed)
        return hl_sys_read_text(path, buf, PROC_TEXT_BYTES);
    return hl_sys_probe_text(path, buf, PROC_TEXT_BYTES);
}

static int read_meminfo(const char *proc_root, uint64_t *out)
{
    char text[PROC_TEXT_BYTES];
    uint64_t kib;
    int rc = proc_text(proc_root, "meminfo", 1, text);

    if (rc < 0)
        return rc;
    if (!find_number(text, "MemAvailable:", &kib))
        return hl_fail(-ENODATA, "%s/meminfo has no MemAvailable line", proc_root);
    *out = kib * 1024;
    return 0;
}

static int read_rlimit(const char *proc_root, uint64_t *out)
{
    char text[PROC_TEXT_BYTES];
    uint64_t limit, kib = 0;
    int rc = proc_text(proc_root, "self/limits", 0, text);

    if (rc < 0)
        return rc;
    if (!find_number(text, "Max address space", &limit))
        return 0; /* "unlimited" */
    rc = proc_text(proc_root, "self/status", 0, text);
    if (rc < 0)
        return rc;
    find_number(text, "VmSize:", &kib);
    *out = limit > kib * 1024 ? limit - kib * 1024 : 0;
    return 0;
}

/* 1 and *out when the file holds a number, 0 when it is absent or says "max". */
static int read_number(const char *dir, const char *file, uint64_t *out)
{
    char text[64];
    int rc = hl_cgroup_read(dir, file, text, sizeof text);

    return rc < 0 ? rc : find_number(text, "", out);
}

struct memory_files {
    const char *limits[2], *usage, *droppable;
};

static const struct memory_files files_v1 = {
    {"memory.limit_in_bytes", NULL}, "memory.usage_in_bytes", "total_inactive_file "};
/* Past memory.high the kernel stalls the process instead of ending it: as little use to us. */
static const struct memory_files files_v2 = {
    {"memory.max", "memory.high"}, "memory.current", "inactive_file "};

static int cgroup_limit(const struct memory_files *f, const char *dir, uint64_t *limit)
{
    int found = 0;

    for (int i = 0; i < 2 && f->limits[i]; i++) {
        uint64_t v;
        int rc = read_number(dir, f->limits[i], &v);

        if (rc < 0)
            return rc;
        if (rc == 0 || v >= V1_NO_LIMIT)
            continue;
        *limit = found && *limit < v ? *limit : v;
        found = 1;
    }
    return found;
}

static int visit(void *user, enum hl_cgroup_version version, const char *dir)
{
    const struct memory_files *f = version == HL_CGROUP_V1 ? &files_v1 : &files_v2;
    uint64_t *least = user, limit, usage = 0, droppable = 0, avail;
    char text[PROC_TEXT_BYTES];
    int rc = cgroup_limit(f, dir, &limit);

    if (rc <= 0)
        return rc;
    rc = read_number(dir, f->usage, &usage);
    if (rc < 0)
        return rc;
    rc = hl_cgroup_read(dir, "memory.stat", text, sizeof text);
    if (rc < 0)
        return rc;
    find_number(text, f->droppable, &droppable);
    usage = usage > droppable ? usage - droppable : 0;
    avail = limit > usage ? limit - usage : 0;
    if (avail < *least)
        *least = avail;
    return 0;
}

int hl_hostmem_read(const char *proc_root, const char *cgroup_root, struct hl_hostmem *out)
{
    struct hl_hostmem mem = {.cgroup_bytes = UINT64_MAX, .rlimit_bytes = UINT64_MAX};
    char proc_cgroup[PATH_MAX];
    int rc;

    if (!proc_root)
        proc_root = "/proc";
    if (!cgroup_root)
        cgroup_root = "/sys/fs/cgroup";
    if (strlen(proc_root) + sizeof "/self/cgroup" > sizeof proc_cgroup)
        return hl_fail(-ENAMETOOLONG, "%.200s is too long", proc_root);
    snprintf(proc_cgroup, sizeof proc_cgroup, "%s/self/cgroup", proc_root);
    rc = read_meminfo(proc_root, &mem.meminfo_bytes);
    if (rc < 0)
        return rc;
    rc = hl_cgroup_walk(proc_cgroup, cgroup_root, "memory", visit, &mem.cgroup_bytes);
    if (rc < 0)
        return rc;
    rc = read_rlimit(proc_root, &mem.rlimit_bytes);
    if (rc < 0)
        return rc;

    mem.avail_bytes = mem.meminfo_bytes;
    mem.bound_by = "meminfo";
    if (mem.cgroup_bytes < mem.avail_bytes) {
        mem.avail_bytes = mem.cgroup_bytes;
        mem.bound_by = "cgroup";
    }
    if (mem.rlimit_bytes < mem.avail_bytes) {
        mem.avail_bytes = mem.rlimit_bytes;
        mem.bound_by = "RLIMIT_AS";
    }
    *out = mem;
    return 0;
}
