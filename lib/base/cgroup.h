/* cgroup.h: the cgroups above this process, v1 and v2, nearest first. */
#ifndef HL_CGROUP_H
#define HL_CGROUP_H

#include <stddef.h>

enum hl_cgroup_version { HL_CGROUP_V1 = 1, HL_CGROUP_V2 = 2 };

/* dir: one cgroup's directory, which need not exist. Negative ends the walk. */
typedef int (*hl_cgroup_fn)(void *user, enum hl_cgroup_version version, const char *dir);

/* Visit the process's cgroup for the controller ("cpu", "memory") and every one above it up to the
 * root of the mount. In a container the path that the kernel names is often not there below the
 * mount; walking up then ends at the mount's root, which is the container's own cgroup. No cgroups:
 * nothing is visited. Returns 0 or the first negative result. */
int hl_cgroup_walk(const char *proc_cgroup, const char *cgroup_root, const char *controller,
                   hl_cgroup_fn fn, void *user);

/* The text of dir/file; "" when it is not there. Returns its length or -errno. */
int hl_cgroup_read(const char *dir, const char *file, char *buf, size_t len);

#endif
