/* topo.h: cores, nodes and quotas, through hwloc and the cgroup. */
#ifndef HL_TOPO_H
#define HL_TOPO_H

#include <stdint.h>

struct hl_topo;

struct hl_topo_opts {
    const char *synthetic; /* hwloc synthetic description, for tests; NULL: this machine */
    const char *xml_path;  /* a recorded topology, for tests; NULL: this machine */
    const char *affinity;  /* "0-3,8", for tests; NULL: of this process, or all of a recorded one */
    const char *cgroup_root; /* default "/sys/fs/cgroup"; tests point at recorded trees */
    const char *proc_cgroup; /* default "/proc/self/cgroup" */
};

/* opts may be NULL. */
int hl_topo_open(const struct hl_topo_opts *opts, struct hl_topo **out);
void hl_topo_close(struct hl_topo *topo);

/* Physical cores in this process's affinity, SMT siblings counted once. >= 1 */
unsigned hl_topo_cores(const struct hl_topo *topo);
/* Hardware threads in the affinity. >= 1 */
unsigned hl_topo_pus(const struct hl_topo *topo);
unsigned hl_topo_nodes(const struct hl_topo *topo);
/* CPUs that the cgroup's quota allows (v1 cfs_quota, v2 cpu.max); 0: no quota */
double hl_topo_quota(const struct hl_topo *topo);
/* Threads for one of local_ranks processes: min(cores, quota rounded down but at least 1) /
 * local_ranks, >= 1 */
unsigned hl_topo_team(const struct hl_topo *topo, unsigned local_ranks);
/* Node (logical index) of the i-th core of the affinity; -1 unknown */
int hl_topo_core_node(const struct hl_topo *topo, unsigned core);
/* OS index of the first PU of the i-th core of the affinity, for binding threads. */
int hl_topo_core_pu(const struct hl_topo *topo, unsigned core);
/* Bind [p, p+bytes) to node; -ENOTSUP or -errno where refused. */
int hl_topo_bind(const struct hl_topo *topo, void *p, uint64_t bytes, int node);

/* Bind the calling thread to one PU. */
int hl_topo_bind_thread(int pu);

#endif
