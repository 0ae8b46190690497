/* topo.c: hwloc tells cores and nodes, the cgroup tells how many of them may run. */
#include "topo.h"

#include <hwloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "cgroup.h"
#include "fail.h"
#include "sys.h"

struct core {
    int pu;   /* OS index */
    int node; /* logical index, -1 unknown */
};

struct hl_topo {
    hwloc_topology_t hw;
    struct core *cores;
    unsigned ncores, npus, nnodes;
    double quota; /* CPUs; 0: none */
};

static int refused(const char *what)
{
    int rc = errno ? -errno : -ENOMEM;

    return hl_fail(rc, "hwloc: %s: %s", what, haul_strerror(rc));
}

static int set_source(hwloc_topology_t hw, const struct hl_topo_opts *opts)
{
    if (opts->synthetic && hwloc_topology_set_synthetic(hw, opts->synthetic) < 0)
        return hl_fail(-EINVAL, "hwloc does not know the topology '%s'", opts->synthetic);
    if (opts->xml_path && hwloc_topology_set_xml(hw, opts->xml_path) < 0)
        return hl_fail(-EINVAL, "%s is not an hwloc topology", opts->xml_path);
    return 0;
}

static int load(const struct hl_topo_opts *opts, hwloc_topology_t *out)
{
    hwloc_topology_t hw;
    int rc = hl_sys_attempt("hwloc_topology_load");

    if (rc < 0)
        return rc;
    errno = 0;
    if (hwloc_topology_init(&hw) < 0)
        return refused("hwloc_topology_init");
    rc = set_source(hw, opts);
    if (rc == 0 && hwloc_topology_load(hw) < 0)
        rc = refused("hwloc_topology_load");
    if (rc < 0) {
        hwloc_topology_destroy(hw);
        return rc;
    }
    *out = hw;
    return 0;
}

/* hwloc lists the threads of the process, and gives up with EAGAIN when they come and go meanwhile. */
static int read_process_binding(hwloc_topology_t hw, hwloc_bitmap_t set)
{
    int rc = -1;

    for (int attempt = 0; attempt < 1000; attempt++) {
        errno = 0;
        rc = hwloc_get_proc_cpubind(hw, getpid(), set, HWLOC_CPUBIND_PROCESS);
        if (rc == 0 || errno != EAGAIN)
            break;
    }
    return rc;
}

/* The processors that this process may use: the union over its threads, so that one thread that has
 * bound itself does not narrow what the others get. */
static int read_affinity(hwloc_topology_t hw, const char *list, hwloc_bitmap_t set)
{
    int rc = hl_sys_attempt("hwloc_get_proc_cpubind");

    if (rc < 0)
        return rc;
    errno = 0;
    if (list) {
        if (hwloc_bitmap_list_sscanf(set, list) < 0)
            return hl_fail(-EINVAL, "'%s' is not a list of processors", list);
    } else if (!hwloc_topology_is_thissystem(hw)) {
        if (hwloc_bitmap_copy(set, hwloc_topology_get_allowed_cpuset(hw)) < 0)
            return refused("hwloc_bitmap_copy");
    } else if (read_process_binding(hw, set) < 0) {
        return refused("hwloc_get_proc_cpubind");
    }
    if (hwloc_bitmap_and(set, set, hwloc_topology_get_topology_cpuset(hw)) < 0)
        return refused("hwloc_bitmap_and");
    if (hwloc_bitmap_iszero(set))
        return hl_fail(-EINVAL, "this process may not run on any processor of the topology");
    return 0;
}

static int node_of(hwloc_topology_t hw, hwloc_obj_t obj)
{
    int os_index = obj->nodeset ? hwloc_bitmap_first(obj->nodeset) : -1;
    hwloc_obj_t node;

    if (os_index < 0)
        return -1;
    node = hwloc_get_numanode_obj_by_os_index(hw, (unsigned)os_index);
    return node ? (int)node->logical_index : -1;
}

/* The first processor that both sets hold, -1 when none. */
static int first_common(hwloc_const_cpuset_t a, hwloc_const_cpuset_t b)
{
    int pu = hwloc_bitmap_first(a);

    while (pu >= 0 && !hwloc_bitmap_isset(b, (unsigned)pu))
        pu = hwloc_bitmap_next(a, pu);
    return pu;
}

/* cores needs room for every object of the type. */
static unsigned list_cores(hwloc_topology_t hw, hwloc_obj_type_t type, hwloc_const_cpuset_t allowed,
                           struct core *cores)
{
    hwloc_obj_t obj = NULL;
    unsigned n = 0;

    while ((obj = hwloc_get_next_obj_by_type(hw, type, obj))) {
        int pu = first_common(obj->cpuset, allowed);

        if (pu >= 0)
            cores[n++] = (struct core){.pu = pu, .node = node_of(hw, obj)};
    }
    return n;
}

static int find_cores(struct hl_topo *topo, const char *affinity)
{
    /* Some virtual machines show processors but no cores. */
    hwloc_obj_type_t type =
        hwloc_get_nbobjs_by_type(topo->hw, HWLOC_OBJ_CORE) > 0 ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU;
    int nobjs = hwloc_get_nbobjs_by_type(topo->hw, type);
    hwloc_bitmap_t set;
    void *cores = NULL;
    int rc = hl_sys_attempt("hwloc_bitmap_alloc");

    if (rc < 0)
        return rc;
    set = hwloc_bitmap_alloc();
    if (!set)
        return hl_fail(-ENOMEM, "out of memory for a processor set");
    rc = read_affinity(topo->hw, affinity, set);
    if (rc == 0)
        rc = hl_sys_alloc_array((size_t)nobjs, sizeof *topo->cores, &cores);
    if (rc == 0) {
        topo->cores = cores;
        topo->ncores = list_cores(topo->hw, type, set, topo->cores);
        topo->npus = (unsigned)hwloc_bitmap_weight(set);
        topo->nnodes = (unsigned)hwloc_get_nbobjs_by_type(topo->hw, HWLOC_OBJ_NUMANODE);
    }
    hwloc_bitmap_free(set);
    return rc;
}

/* quota / period of one cgroup; 0 when it has none. */
static int read_quota(enum hl_cgroup_version version, const char *dir, double *cpus)
{
    char text[64] = "", period_text[64] = "";
    long long quota_us = 0, period_us = 0;
    int rc;

    if (version == HL_CGROUP_V2) {
        rc = hl_cgroup_read(dir, "cpu.max", text, sizeof text);
        if (rc < 0)
            return rc;
        if (sscanf(text, "%lld %lld", &quota_us, &period_us) != 2)
            quota_us = 0; /* absent, or "max 100000" */
    } else {
        rc = hl_cgroup_read(dir, "cpu.cfs_quota_us", text, sizeof text);
        if (rc < 0)
            return rc;
        rc = hl_cgroup_read(dir, "cpu.cfs_period_us", period_text, sizeof period_text);
        if (rc < 0)
            return rc;
        quota_us = strtoll(text, NULL, 10); /* -1: none */
        period_us = strtoll(period_text, NULL, 10);
    }
    *cpus = quota_us > 0 && period_us > 0 ? (double)quota_us / (double)period_us : 0;
    return 0;
}

static int visit(void *user, enum hl_cgroup_version version, const char *dir)
{
    double *least = user, cpus;
    int rc = read_quota(version, dir, &cpus);

    if (rc < 0)
        return rc;
    if (cpus > 0 && (*least <= 0 || cpus < *least))
        *least = cpus;
    return 0;
}

static int find_quota(struct hl_topo *topo, const struct hl_topo_opts *opts)
{
    const char *root = opts->cgroup_root ? opts->cgroup_root : "/sys/fs/cgroup";
    const char *proc = opts->proc_cgroup ? opts->proc_cgroup : "/proc/self/cgroup";

    return hl_cgroup_walk(proc, root, "cpu", visit, &topo->quota);
}

int hl_topo_open(const struct hl_topo_opts *opts, struct hl_topo **out)
{
    static const struct hl_topo_opts defaults;
    struct hl_topo *topo;
    void *p = NULL;
    int rc;

    if (!opts)
        opts = &defaults;
    rc = hl_sys_alloc(sizeof *topo, &p);
    if (rc < 0)
        return rc;
    topo = p;
    rc = load(opts, &topo->hw);
    if (rc < 0)
        goto free_topo;
    rc = find_cores(topo, opts->affinity);
    if (rc < 0)
        goto destroy_hw;
    rc = find_quota(topo, opts);
    if (rc < 0)
        goto free_cores;
    *out = topo;
    return 0;

free_cores:
    hl_sys_free(topo->cores);
destroy_hw:
    hwloc_topology_destroy(topo->hw);
free_topo:
    hl_sys_free(topo);
    return rc;
}

void hl_topo_close(struct hl_topo *topo)
{
    if (!topo)
        return;
    hl_sys_free(topo->cores);
    hwloc_topology_destroy(topo->hw);
    hl_sys_free(topo);
}

unsigned hl_topo_cores(const struct hl_topo *topo)
{
    return topo->ncores;
}

unsigned hl_topo_pus(const struct hl_topo *topo)
{
    return topo->npus;
}

unsigned hl_topo_nodes(const struct hl_topo *topo)
{
    return topo->nnodes;
}

double hl_topo_quota(const struct hl_topo *topo)
{
    return topo->quota;
}

unsigned hl_topo_team(const struct hl_topo *topo, unsigned local_ranks)
{
    unsigned n = topo->ncores;

    if (topo->quota > 0 && topo->quota < n)
        n = topo->quota < 1 ? 1 : (unsigned)topo->quota;
    if (local_ranks > 1)
        n /= local_ranks;
    return n ? n : 1;
}

int hl_topo_core_node(const struct hl_topo *topo, unsigned core)
{
    return core < topo->ncores ? topo->cores[core].node : -1;
}

int hl_topo_core_pu(const struct hl_topo *topo, unsigned core)
{
    return core < topo->ncores ? topo->cores[core].pu : -1;
}

int hl_topo_bind(const struct hl_topo *topo, void *p, uint64_t bytes, int node)
{
    hwloc_obj_t obj = node < 0 ? NULL : hwloc_get_obj_by_type(topo->hw, HWLOC_OBJ_NUMANODE, node);
    int rc = hl_sys_attempt("mbind");

    if (rc < 0)
        return rc;
    if (!obj)
        return hl_fail(-EINVAL, "there is no NUMA node %d: the machine has %u", node, topo->nnodes);
    if (!hwloc_topology_is_thissystem(topo->hw)) /* where hwloc would say yes and do nothing */
        return hl_fail(-ENOTSUP, "memory cannot be bound to node %d of a recorded topology", node);
    errno = 0;
    if (hwloc_set_area_membind(topo->hw, p, bytes, obj->nodeset, HWLOC_MEMBIND_BIND,
                               HWLOC_MEMBIND_BYNODESET) < 0) {
        rc = errno == ENOSYS || errno == 0 ? -ENOTSUP : -errno;
        return hl_fail(rc, "cannot bind memory to NUMA node %d: %s", node, haul_strerror(rc));
    }
    return 0;
}

int hl_topo_bind_thread(int pu)
{
    return hl_sys_bind_thread(pu);
}
