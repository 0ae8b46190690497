/* Topologies described, recorded and real; quotas from recorded cgroup trees. */
#include <errno.h>

#include "fail.h"
#include "recorded_tree.h"
#include "suite.h"
#include "sys.h"
#include "topo.h"

static struct hl_topo *open_described(const char *synthetic, const char *affinity)
{
    struct hl_topo_opts opts = {.synthetic = synthetic,
                                .affinity = affinity,
                                .cgroup_root = "/nowhere",
                                .proc_cgroup = "/nowhere"};
    struct hl_topo *topo = NULL;

    cr_assert_eq(hl_topo_open(&opts, &topo), 0, "%s: %s", synthetic, haul_last_error());
    return topo;
}

Test(base_topo, two_nodes_of_eight_cores)
{
    struct hl_topo *t = open_described("numa:2 core:8 pu:1", NULL);

    cr_assert_eq(hl_topo_cores(t), 16);
    cr_assert_eq(hl_topo_pus(t), 16);
    cr_assert_eq(hl_topo_nodes(t), 2);
    for (unsigned i = 0; i < 16; i++) {
        cr_assert_eq(hl_topo_core_node(t, i), i < 8 ? 0 : 1);
        cr_assert_eq(hl_topo_core_pu(t, i), (int)i);
    }
    cr_assert_eq(hl_topo_core_node(t, 16), -1);
    cr_assert_eq(hl_topo_core_pu(t, 16), -1);
    hl_topo_close(t);
}

Test(base_topo, smt_siblings_count_once)
{
    struct hl_topo *t = open_described("numa:2 core:8 pu:2", NULL);

    cr_assert_eq(hl_topo_cores(t), 16);
    cr_assert_eq(hl_topo_pus(t), 32);
    for (unsigned i = 0; i < 16; i++)
        cr_assert_eq(hl_topo_core_pu(t, i), (int)(2 * i));
    hl_topo_close(t);
}

Test(base_topo, one_node)
{
    struct hl_topo *t = open_described("numa:1 core:4 pu:1", NULL);

    cr_assert_eq(hl_topo_cores(t), 4);
    cr_assert_eq(hl_topo_nodes(t), 1);
    cr_assert_eq(hl_topo_core_node(t, 3), 0);
    hl_topo_close(t);
}

Test(base_topo, the_affinity_narrows_cores_and_picks_the_allowed_sibling)
{
    /* cores 0, 1 and 5 (of node 1), by one sibling each, and both siblings of core 6 */
    struct hl_topo *t = open_described("numa:2 core:4 pu:2", "1,3,10,12-13");

    cr_assert_eq(hl_topo_cores(t), 4);
    cr_assert_eq(hl_topo_pus(t), 5);
    cr_assert_eq(hl_topo_core_pu(t, 0), 1);
    cr_assert_eq(hl_topo_core_pu(t, 1), 3);
    cr_assert_eq(hl_topo_core_pu(t, 2), 10);
    cr_assert_eq(hl_topo_core_pu(t, 3), 12);
    cr_assert_eq(hl_topo_core_node(t, 1), 0);
    cr_assert_eq(hl_topo_core_node(t, 2), 1);
    hl_topo_close(t);
}

Test(base_topo, an_affinity_outside_the_machine_is_refused)
{
    struct hl_topo_opts opts = {.synthetic = "numa:1 core:2 pu:1", .affinity = "7"};
    struct hl_topo *topo = NULL;

    cr_assert_eq(hl_topo_open(&opts, &topo), -EINVAL);
    opts.affinity = "no list";
    cr_assert_eq(hl_topo_open(&opts, &topo), -EINVAL);
    opts = (struct hl_topo_opts){.synthetic = "rubbish"};
    cr_assert_eq(hl_topo_open(&opts, &topo), -EINVAL);
    opts = (struct hl_topo_opts){.xml_path = "/nowhere.xml"};
    cr_assert_lt(hl_topo_open(&opts, &topo), 0);
    cr_assert_null(topo);
}

/* Four processors of two threads' worth in a package; processor 1 is offline: its core has no PU left
 * and only the complete sets tell of it. */
static const char offline_xml[] =
    "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
    "<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n"
    "<topology version=\"2.0\">\n"
    "<object type=\"Machine\" os_index=\"0\" cpuset=\"0x0000000d\" complete_cpuset=\"0x0000000f\" "
    "allowed_cpuset=\"0x0000000d\" nodeset=\"0x00000001\" complete_nodeset=\"0x00000001\" "
    "allowed_nodeset=\"0x00000001\" gp_index=\"1\">\n"
    "<object type=\"NUMANode\" os_index=\"0\" cpuset=\"0x0000000d\" complete_cpuset=\"0x0000000f\" "
    "nodeset=\"0x00000001\" complete_nodeset=\"0x00000001\" gp_index=\"2\" "
    "local_memory=\"1073741824\"/>\n"
    "<object type=\"Core\" os_index=\"0\" cpuset=\"0x00000001\" complete_cpuset=\"0x00000003\" "
    "nodeset=\"0x00000001\" complete_nodeset=\"0x00000001\" gp_index=\"3\">\n"
    "<object type=\"PU\" os_index=\"0\" cpuset=\"0x00000001\" complete_cpuset=\"0x00000001\" "
    "nodeset=\"0x00000001\" complete_nodeset=\"0x00000001\" gp_index=\"4\"/>\n"
    "</object>\n"
    "<object type=\"Core\" os_index=\"1\" cpuset=\"0x0000000c\" complete_cpuset=\"0x0000000c\" "
    "nodeset=\"0x00000001\" complete_nodeset=\"0x00000001\" gp_index=\"5\">\n"
    "<object type=\"PU\" os_index=\"2\" cpuset=\"0x00000004\" complete_cpuset=\"0x00000004\" "
    "nodeset=\"0x00000001\" complete_nodeset=\"0x00000001\" gp_index=\"6\"/>\n"
    "<object type=\"PU\" os_index=\"3\" cpuset=\"0x00000008\" complete_cpuset=\"0x00000008\" "
    "nodeset=\"0x00000001\" complete_nodeset=\"0x00000001\" gp_index=\"7\"/>\n"
    "</object>\n"
    "</object>\n"
    "</topology>\n";

Test(base_topo, offline_processors_are_not_counted)
{
    struct tree tree = tree_make();
    struct hl_topo_opts opts = {.cgroup_root = "/nowhere", .proc_cgroup = "/nowhere"};
    struct hl_topo *t = NULL;

    tree_write(&tree, "offline.xml", offline_xml);
    opts.xml_path = tree_path(&tree, "offline.xml");
    cr_assert_eq(hl_topo_open(&opts, &t), 0, "%s", haul_last_error());
    cr_assert_eq(hl_topo_cores(t), 2);
    cr_assert_eq(hl_topo_pus(t), 3);
    cr_assert_eq(hl_topo_core_pu(t, 0), 0);
    cr_assert_eq(hl_topo_core_pu(t, 1), 2);
    hl_topo_close(t);
    tree_remove(&tree);
}

/* A machine of 16 cores in the recorded tree: its quota, and the team of one of local_ranks. */
static void check_quota(const struct tree *tree, double quota, unsigned local_ranks, unsigned team)
{
    char root[128], proc[128];
    struct hl_topo_opts opts = {
        .synthetic = "numa:2 core:8 pu:2", .cgroup_root = root, .proc_cgroup = proc};
    struct hl_topo *t = NULL;

    snprintf(root, sizeof root, "%s/cgroup", tree->root);
    snprintf(proc, sizeof proc, "%s/proc_cgroup", tree->root);
    cr_assert_eq(hl_topo_open(&opts, &t), 0, "%s", haul_last_error());
    cr_assert_float_eq(hl_topo_quota(t), quota, 1e-12, "%g", hl_topo_quota(t));
    cr_assert_eq(hl_topo_team(t, local_ranks), team, "%u", hl_topo_team(t, local_ranks));
    hl_topo_close(t);
}

Test(base_topo, no_cgroup_means_no_quota)
{
    struct tree t = tree_make();

    check_quota(&t, 0, 1, 16);
    check_quota(&t, 0, 0, 16);
    check_quota(&t, 0, 4, 4);
    check_quota(&t, 0, 5, 3);
    check_quota(&t, 0, 100, 1);
    tree_remove(&t);
}

Test(base_topo, v2_the_tightest_quota_above_counts)
{
    struct tree t = tree_make();

    tree_write(&t, "proc_cgroup", "0::/user.slice/job.scope\n");
    tree_write(&t, "cgroup/user.slice/job.scope/cpu.max", "max 100000\n");
    check_quota(&t, 0, 1, 16);
    tree_write(&t, "cgroup/user.slice/cpu.max", "250000 100000\n");
    check_quota(&t, 2.5, 1, 2);
    tree_write(&t, "cgroup/user.slice/job.scope/cpu.max", "800000 100000\n");
    check_quota(&t, 2.5, 1, 2);
    tree_write(&t, "cgroup/user.slice/job.scope/cpu.max", "50000 100000\n");
    check_quota(&t, 0.5, 1, 1);
    tree_write(&t, "cgroup/user.slice/job.scope/cpu.max", "12800000 100000\n");
    tree_write(&t, "cgroup/user.slice/cpu.max", "6400000 100000\n");
    check_quota(&t, 64, 2, 8);
    tree_remove(&t);
}

Test(base_topo, v2_in_a_container_the_root_of_the_mount_counts)
{
    struct tree t = tree_make();

    tree_write(&t, "proc_cgroup", "0::/docker/0123abcd\n");
    tree_write(&t, "cgroup/cpu.max", "400000 100000\n");
    check_quota(&t, 4, 1, 4);
    tree_write(&t, "proc_cgroup", "0::/../../elsewhere\n");
    check_quota(&t, 4, 2, 2);
    tree_write(&t, "proc_cgroup", "0::/\n");
    check_quota(&t, 4, 1, 4);
    tree_remove(&t);
}

Test(base_topo, v1_quota_and_period_are_read_under_either_mount_name)
{
    struct tree t = tree_make();

    tree_write(&t, "proc_cgroup",
               "5:memory:/job\n4:cpu,cpuacct:/job/step\n1:name=systemd:/\n0::/\n");
    tree_write(&t, "cgroup/cpu,cpuacct/job/step/cpu.cfs_quota_us", "-1\n");
    tree_write(&t, "cgroup/cpu,cpuacct/job/step/cpu.cfs_period_us", "100000\n");
    check_quota(&t, 0, 1, 16);
    tree_write(&t, "cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "600000\n");
    tree_write(&t, "cgroup/cpu,cpuacct/job/cpu.cfs_period_us", "200000\n");
    check_quota(&t, 3, 1, 3);
    tree_write(&t, "cgroup/cpu/cpu.cfs_quota_us", "200000\n");
    tree_write(&t, "cgroup/cpu/cpu.cfs_period_us", "100000\n");
    check_quota(&t, 2, 1, 2);
    tree_remove(&t);
}

Test(base_topo, a_cpuset_line_is_not_the_cpu_controller)
{
    struct tree t = tree_make();

    tree_write(&t, "proc_cgroup", "3:cpuset:/\n2:cpuacct:/\n");
    tree_write(&t, "cgroup/cpu/cpu.cfs_quota_us", "100000\n");
    tree_write(&t, "cgroup/cpu/cpu.cfs_period_us", "100000\n");
    check_quota(&t, 0, 1, 16);
    tree_remove(&t);
}

Test(base_topo, v2_beside_v1_is_found_under_unified)
{
    struct tree t = tree_make();

    tree_write(&t, "proc_cgroup", "2:memory:/\n0::/a\n");
    tree_write(&t, "cgroup/unified/a/cpu.max", "700000 100000\n");
    check_quota(&t, 7, 1, 7);
    tree_remove(&t);
}

Test(base_topo, nonsense_in_quota_files_is_no_quota)
{
    struct tree t = tree_make();

    tree_write(&t, "proc_cgroup", "garbage\n:::\n0::\n7:cpu:/\n");
    tree_write(&t, "cgroup/cpu.max", "lots\n");
    tree_write(&t, "cgroup/cpu/cpu.cfs_quota_us", "100000\n");
    tree_write(&t, "cgroup/cpu/cpu.cfs_period_us", "0\n");
    check_quota(&t, 0, 1, 16);
    tree_remove(&t);
}

Test(base_topo, this_machine_agrees_with_the_kernel)
{
    struct hl_topo *t = NULL;
    cpu_set_t set;

    cr_assert_eq(sched_getaffinity(0, sizeof set, &set), 0);
    cr_assert_eq(hl_topo_open(NULL, &t), 0, "%s", haul_last_error());
    cr_assert_eq((int)hl_topo_pus(t), CPU_COUNT(&set));
    cr_assert_geq(hl_topo_cores(t), 1);
    cr_assert_leq(hl_topo_cores(t), hl_topo_pus(t));
    cr_assert_geq(hl_topo_nodes(t), 1);
    cr_assert_geq(hl_topo_team(t, 1), 1);
    cr_assert_leq(hl_topo_team(t, 1), hl_topo_cores(t));
    for (unsigned i = 0; i < hl_topo_cores(t); i++) {
        cr_assert(CPU_ISSET(hl_topo_core_pu(t, i), &set));
        cr_assert_geq(hl_topo_core_node(t, i), 0);
    }
    hl_topo_close(t);
    hl_topo_close(NULL);
}

Test(base_topo, binding_where_it_cannot_be_done_is_refused)
{
    struct hl_topo *t = open_described("numa:2 core:1 pu:1", NULL);
    char page[4096];

    cr_assert_eq(hl_topo_bind(t, page, sizeof page, 1), -ENOTSUP);
    cr_assert_eq(hl_topo_bind(t, page, sizeof page, 2), -EINVAL);
    cr_assert_eq(hl_topo_bind(t, page, sizeof page, -1), -EINVAL);
    cr_assert_not_null(strstr(haul_last_error(), "the machine has 2"), "%s", haul_last_error());
    hl_topo_close(t);
}

Test(base_topo, open_unwinds_from_every_failure)
{
    struct tree tree = tree_make();
    char root[128], proc[128];
    struct hl_topo_opts opts = {.cgroup_root = root, .proc_cgroup = proc};
    int64_t mem = hl_sys_live(HL_SYS_MEM), fds = hl_sys_live(HL_SYS_FD);
    int64_t n;

    tree_write(&tree, "proc_cgroup", "4:cpu,cpuacct:/a\n0::/b\n");
    tree_write(&tree, "cgroup/cpu/a/cpu.cfs_quota_us", "200000\n");
    tree_write(&tree, "cgroup/cpu/a/cpu.cfs_period_us", "100000\n");
    tree_write(&tree, "cgroup/b/cpu.max", "300000 100000\n");
    snprintf(root, sizeof root, "%s/cgroup", tree.root);
    snprintf(proc, sizeof proc, "%s/proc_cgroup", tree.root);
    for (n = 1;; n++) {
        struct hl_topo *t = NULL;
        int rc;

        hl_sys_fail_nth(n, ENOMEM);
        rc = hl_topo_open(&opts, &t);
        if (!hl_sys_failed()) {
            cr_assert_eq(rc, 0);
            cr_assert_float_eq(hl_topo_quota(t), 2, 1e-12);
            hl_topo_close(t);
            break;
        }
        cr_assert_eq(rc, -ENOMEM, "call %lld: %d", (long long)n, rc);
        cr_assert_null(t);
        cr_assert_eq(hl_sys_live(HL_SYS_MEM), mem, "call %lld", (long long)n);
        cr_assert_eq(hl_sys_live(HL_SYS_FD), fds, "call %lld", (long long)n);
    }
    hl_sys_fail_nth(0, 0);
    cr_assert_gt(n, 10, "the sweep reached only %lld calls", (long long)n);
    cr_assert_eq(hl_sys_live(HL_SYS_MEM), mem);
    tree_remove(&tree);
}
