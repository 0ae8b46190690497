/* Host memory headroom from recorded /proc and cgroup trees. */
#include <errno.h>

#include "fail.h"
#include "hostmem.h"
#include "recorded_tree.h"
#include "suite.h"
#include "sys.h"

#define MIB ((uint64_t)1 << 20)

/* As the kernel writes it: 16 GiB available. */
static void write_machine(const struct tree *t)
{
    tree_write(t, "proc/meminfo",
               "MemTotal:       24611148 kB\nMemFree:        20000000 kB\n"
               "MemAvailable:   16777216 kB\nBuffers:             100 kB\n");
    tree_write(t, "proc/self/limits",
               "Limit                     Soft Limit           Hard Limit           Units     \n"
               "Max data size             unlimited            unlimited            bytes     \n"
               "Max address space         unlimited            unlimited            bytes     \n");
    tree_write(t, "proc/self/status", "Name:\thaul\nVmPeak:\t 2000000 kB\nVmSize:\t 1048576 kB\n");
}

static struct hl_hostmem read_tree(const struct tree *t)
{
    struct hl_hostmem mem = {0};

    cr_assert_eq(hl_hostmem_read(tree_path(t, "proc"), tree_path(t, "cgroup"), &mem), 0, "%s",
                 haul_last_error());
    return mem;
}

Test(base_hostmem, without_limits_the_machine_bounds)
{
    struct tree t = tree_make();
    struct hl_hostmem mem;

    write_machine(&t);
    mem = read_tree(&t);
    cr_assert_eq(mem.meminfo_bytes, 16384 * MIB);
    cr_assert_eq(mem.cgroup_bytes, UINT64_MAX);
    cr_assert_eq(mem.rlimit_bytes, UINT64_MAX);
    cr_assert_eq(mem.avail_bytes, 16384 * MIB);
    cr_assert_str_eq(mem.bound_by, "meminfo");
    tree_remove(&t);
}

Test(base_hostmem, v2_the_tightest_cgroup_bounds_and_droppable_cache_is_free)
{
    struct tree t = tree_make();
    struct hl_hostmem mem;

    write_machine(&t);
    tree_write(&t, "proc/self/cgroup", "0::/jobs/one\n");
    tree_write(&t, "cgroup/jobs/one/memory.max", "max\n");
    tree_write(&t, "cgroup/jobs/one/memory.current", "104857600\n");
    tree_write(&t, "cgroup/jobs/one/memory.stat", "anon 1\ninactive_file 4194304\n");
    cr_assert_eq(read_tree(&t).cgroup_bytes, UINT64_MAX);

    tree_write(&t, "cgroup/jobs/memory.max", "1073741824\n"); /* 1024 MiB */
    tree_write(&t, "cgroup/jobs/memory.current", "209715200\n");
    tree_write(&t, "cgroup/jobs/memory.stat",
               "anon 104857600\ntotal_inactive_file 1\nactive_file 7\ninactive_file 52428800\n");
    mem = read_tree(&t);
    cr_assert_eq(mem.cgroup_bytes, (1024 - 200 + 50) * MIB);
    cr_assert_eq(mem.avail_bytes, mem.cgroup_bytes);
    cr_assert_str_eq(mem.bound_by, "cgroup");

    tree_write(&t, "cgroup/jobs/one/memory.max",
               "536870912\n"); /* 512 MiB, 100 used, 4 droppable */
    cr_assert_eq(read_tree(&t).cgroup_bytes, (512 - 100 + 4) * MIB);
    tree_write(&t, "cgroup/jobs/one/memory.high", "268435456\n");
    cr_assert_eq(read_tree(&t).cgroup_bytes, (256 - 100 + 4) * MIB);
    tree_write(&t, "cgroup/jobs/one/memory.current", "999999999\n"); /* over: nothing left */
    cr_assert_eq(read_tree(&t).cgroup_bytes, 0);
    tree_remove(&t);
}

Test(base_hostmem, v1_limit_usage_and_cache_are_read)
{
    struct tree t = tree_make();

    write_machine(&t);
    tree_write(&t, "proc/self/cgroup", "9:name=systemd:/\n4:memory:/job\n1:cpu:/\n0::/\n");
    tree_write(&t, "cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    tree_write(&t, "cgroup/memory/memory.usage_in_bytes", "20000000000\n");
    cr_assert_eq(read_tree(&t).cgroup_bytes, UINT64_MAX);
    tree_write(&t, "cgroup/memory/job/memory.limit_in_bytes", "2147483648\n");
    tree_write(&t, "cgroup/memory/job/memory.usage_in_bytes", "1073741824\n");
    tree_write(&t, "cgroup/memory/job/memory.stat",
               "cache 300\ninactive_file 1048576\ntotal_inactive_file 268435456\n");
    cr_assert_eq(read_tree(&t).cgroup_bytes, (2048 - 1024 + 256) * MIB);
    cr_assert_str_eq(read_tree(&t).bound_by, "cgroup");
    tree_remove(&t);
}

Test(base_hostmem, in_a_container_the_root_of_the_mount_bounds)
{
    struct tree t = tree_make();

    write_machine(&t);
    tree_write(&t, "proc/self/cgroup", "4:memory:/docker/abc\n0::/docker/abc\n");
    tree_write(&t, "cgroup/memory/memory.limit_in_bytes", "1073741824\n");
    tree_write(&t, "cgroup/memory/memory.usage_in_bytes", "0\n");
    cr_assert_eq(read_tree(&t).avail_bytes, 1024 * MIB);
    tree_write(&t, "cgroup/memory.max", "536870912\n");
    cr_assert_eq(read_tree(&t).avail_bytes, 512 * MIB);
    tree_remove(&t);
}

Test(base_hostmem, the_address_space_limit_bounds_less_what_is_mapped)
{
    struct tree t = tree_make();
    struct hl_hostmem mem;

    write_machine(&t);
    tree_write(&t, "proc/self/limits",
               "Max address space         4294967296           unlimited            bytes     \n");
    mem = read_tree(&t);
    cr_assert_eq(mem.rlimit_bytes, (4096 - 1024) * MIB);
    cr_assert_eq(mem.avail_bytes, (4096 - 1024) * MIB);
    cr_assert_str_eq(mem.bound_by, "RLIMIT_AS");
    tree_write(&t, "proc/self/limits",
               "Max address space         1000               unlimited            bytes     \n");
    cr_assert_eq(read_tree(&t).avail_bytes, 0);
    tree_remove(&t);
}

Test(base_hostmem, a_machine_that_does_not_say_is_an_error)
{
    struct tree t = tree_make();
    struct hl_hostmem mem = {.avail_bytes = 7};

    cr_assert_eq(hl_hostmem_read(tree_path(&t, "proc"), tree_path(&t, "cgroup"), &mem), -ENOENT);
    tree_write(&t, "proc/meminfo", "MemTotal: 5 kB\n");
    cr_assert_eq(hl_hostmem_read(tree_path(&t, "proc"), tree_path(&t, "cgroup"), &mem), -ENODATA);
    cr_assert_eq(mem.avail_bytes, 7);
    tree_remove(&t);
}

Test(base_hostmem, this_machine_has_some_and_not_more_than_it_holds)
{
    struct hl_hostmem mem;

    cr_assert_eq(hl_hostmem_read(NULL, NULL, &mem), 0, "%s", haul_last_error());
    cr_assert_gt(mem.avail_bytes, 0);
    cr_assert_leq(mem.meminfo_bytes,
                  (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE));
}

Test(base_hostmem, read_reports_every_failure)
{
    struct tree t = tree_make();
    int64_t fds = hl_sys_live(HL_SYS_FD), n;

    write_machine(&t);
    tree_write(&t, "proc/self/cgroup", "4:memory:/\n0::/\n");
    tree_write(&t, "proc/self/limits", "Max address space   4294967296  unlimited  bytes\n");
    tree_write(&t, "cgroup/memory/memory.limit_in_bytes", "1073741824\n");
    tree_write(&t, "cgroup/memory/memory.usage_in_bytes", "0\n");
    for (n = 1;; n++) {
        struct hl_hostmem mem = {.avail_bytes = 7};
        int rc;

        hl_sys_fail_nth(n, EIO);
        rc = hl_hostmem_read(tree_path(&t, "proc"), tree_path(&t, "cgroup"), &mem);
        if (!hl_sys_failed())
            break;
        cr_assert_eq(rc, -EIO, "call %lld: %d", (long long)n, rc);
        cr_assert_eq(mem.avail_bytes, 7);
        cr_assert_eq(hl_sys_live(HL_SYS_FD), fds);
    }
    hl_sys_fail_nth(0, 0);
    cr_assert_gt(n, 10);
    tree_remove(&t);
}
