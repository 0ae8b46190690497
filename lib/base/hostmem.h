/* hostmem.h: how much host memory this process may still take. */
#ifndef HL_HOSTMEM_H
#define HL_HOSTMEM_H

#include <stdint.h>

struct hl_hostmem {
    uint64_t meminfo_bytes; /* MemAvailable */
    /* limit - usage of the tightest cgroup, v1 or v2, walking up to the root; page cache that can be
     * dropped counts as free; UINT64_MAX: no limit */
    uint64_t cgroup_bytes;
    uint64_t rlimit_bytes; /* RLIMIT_AS less what is mapped; UINT64_MAX: no limit */
    uint64_t avail_bytes;  /* the least of them */
    const char *bound_by;  /* "meminfo", "cgroup" or "RLIMIT_AS" */
};

/* Roots NULL: /proc and /sys/fs/cgroup; tests point at recorded trees. */
int hl_hostmem_read(const char *proc_root, const char *cgroup_root, struct hl_hostmem *out);

#endif
