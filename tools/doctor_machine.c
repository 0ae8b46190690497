/* doctor_machine.c: kernel, io_uring, memlock, pages, NUMA, memory, processors, optimizer. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "doctor.h"
#include "haul/optim.h"
#include "haul/size.h"
#include "hostmem.h"
#include "sys.h"
#include "topo.h"

static void check_kernel(struct hl_doctor *doc)
{
    struct utsname u;
    int major = 0, minor = 0;

    if (uname(&u) < 0 || sscanf(u.release, "%d.%d", &major, &minor) != 2) {
        hl_doctor_add(doc, "kernel", HL_HEALTH_WARN, NULL, "release cannot be read");
        return;
    }
    if (major < 5 || (major == 5 && minor < 14))
        hl_doctor_add(doc, "kernel", HL_HEALTH_WARN, "run Linux 5.14 or later, best 6.1",
                      "%s: no MADV_POPULATE_WRITE, and an early io_uring", u.release);
    else if (major < 6 || (major == 6 && minor < 1))
        hl_doctor_add(doc, "kernel", HL_HEALTH_OK, NULL,
                      "%s (6.1 adds DEFER_TASKRUN and the alignment of direct I/O)", u.release);
    else
        hl_doctor_add(doc, "kernel", HL_HEALTH_OK, NULL, "%s", u.release);
}

/* io_uring_params is 120 bytes of input and output; zeros ask for nothing special. */
static int try_ring(void)
{
    uint64_t params[15] = {0};
    const long fd = syscall(SYS_io_uring_setup, 4, params);

    if (fd < 0)
        return -errno;
    close((int)fd);
    return 0;
}

static void check_uring(struct hl_doctor *doc)
{
    char disabled[16];
    const int rc = try_ring();

    if (rc == 0) {
        hl_doctor_add(doc, "io_uring", HL_HEALTH_OK, NULL, "allowed");
        return;
    }
    if (rc == -EPERM &&
        hl_sys_probe_text("/proc/sys/kernel/io_uring_disabled", disabled, sizeof disabled) > 0 &&
        disabled[0] != '0')
        hl_doctor_add(doc, "io_uring", HL_HEALTH_WARN, "sysctl kernel.io_uring_disabled=0",
                      "switched off by kernel.io_uring_disabled=%c; threads do the I/O",
                      disabled[0]);
    else if (rc == -ENOSYS || rc == -EPERM)
        hl_doctor_add(doc, "io_uring", HL_HEALTH_WARN,
                      "in a container: run with a seccomp profile that allows io_uring_setup, "
                      "io_uring_enter and io_uring_register (docker: --security-opt seccomp=FILE)",
                      "%s; threads do the I/O",
                      rc == -ENOSYS ? "not in this kernel, or filtered" : "refused by a filter");
    else
        hl_doctor_add(doc, "io_uring", HL_HEALTH_WARN, rc == -ENOMEM ? "raise ulimit -l" : NULL,
                      "refused: %s; threads do the I/O", haul_strerror(rc));
}

/* CAP_IPC_LOCK is bit 14 of CapEff. */
static int may_lock_anything(void)
{
    char status[8192];
    const char *line;

    if (hl_sys_probe_text("/proc/self/status", status, sizeof status) <= 0)
        return 0;
    line = strstr(status, "CapEff:");
    return line != NULL && (strtoull(line + 7, NULL, 16) >> 14 & 1) != 0;
}

static void check_memlock(struct hl_doctor *doc)
{
    struct rlimit lim;
    char size[32];

    if (getrlimit(RLIMIT_MEMLOCK, &lim) < 0 || lim.rlim_cur == RLIM_INFINITY) {
        hl_doctor_add(doc, "memlock", HL_HEALTH_OK, NULL, "unlimited");
        return;
    }
    haul_format_size(lim.rlim_cur, size, sizeof size);
    if (may_lock_anything())
        hl_doctor_add(doc, "memlock", HL_HEALTH_OK, NULL, "limit %s, but CAP_IPC_LOCK is held",
                      size);
    else
        hl_doctor_add(
            doc, "memlock", HL_HEALTH_WARN,
            "ulimit -l unlimited (limits.conf: memlock; systemd: LimitMEMLOCK=infinity; docker: "
            "--ulimit memlock=-1)",
            "limit %s per user: larger pools are not registered with io_uring", size);
}

static unsigned long long meminfo(const char *key)
{
    char text[16384];
    const char *line;

    if (hl_sys_probe_text("/proc/meminfo", text, sizeof text) <= 0)
        return 0;
    line = strstr(text, key);
    return line != NULL ? strtoull(line + strlen(key), NULL, 10) : 0;
}

static void check_pages(struct hl_doctor *doc)
{
    char thp[128];
    const unsigned long long free_pages = meminfo("HugePages_Free:");
    const unsigned long long page_kib = meminfo("Hugepagesize:");
    const int have =
        hl_sys_probe_text("/sys/kernel/mm/transparent_hugepage/enabled", thp, sizeof thp);
    const int refused = have <= 0 || strstr(thp, "[never]") != NULL;

    if (refused && free_pages == 0)
        hl_doctor_add(
            doc, "huge pages", HL_HEALTH_WARN,
            "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled, or reserve pages "
            "in vm.nr_hugepages",
            "none: transparent ones are off and no others are reserved");
    else
        hl_doctor_add(doc, "huge pages", HL_HEALTH_OK, NULL,
                      "transparent: %s; reserved and free: %llu of %llu MiB",
                      refused                            ? "off"
                      : strstr(thp, "[madvise]") != NULL ? "when asked for"
                                                         : "always",
                      free_pages, page_kib / 1024);
}

static void check_numa(struct hl_doctor *doc, const struct hl_topo *topo)
{
    void *page;
    int rc;

    if (hl_topo_nodes(topo) <= 1) {
        hl_doctor_add(doc, "numa", HL_HEALTH_OK, NULL, "one node");
        return;
    }
    rc = hl_sys_map(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0, &page);
    if (rc < 0)
        return;
    rc = hl_topo_bind(topo, page, 4096, 0);
    hl_sys_unmap(page, 4096);
    if (rc < 0)
        hl_doctor_add(doc, "numa", HL_HEALTH_WARN, "docker: --cap-add SYS_NICE allows mbind",
                      "%u nodes, but binding memory is refused: pools may lie on a far node",
                      hl_topo_nodes(topo));
    else
        hl_doctor_add(doc, "numa", HL_HEALTH_OK, NULL, "%u nodes, memory can be bound",
                      hl_topo_nodes(topo));
}

static void check_memory(struct hl_doctor *doc)
{
    struct hl_hostmem mem;
    char avail[32], meminfo_size[32];

    if (hl_hostmem_read(NULL, NULL, &mem) < 0) {
        hl_doctor_add(doc, "memory", HL_HEALTH_WARN, NULL, "%s", haul_last_error());
        return;
    }
    haul_format_size(mem.avail_bytes, avail, sizeof avail);
    haul_format_size(mem.meminfo_bytes, meminfo_size, sizeof meminfo_size);
    if (strcmp(mem.bound_by, "meminfo") == 0)
        hl_doctor_add(doc, "memory", HL_HEALTH_OK, NULL, "%s may be taken; no tighter cgroup",
                      avail);
    else
        hl_doctor_add(doc, "memory", HL_HEALTH_OK, NULL,
                      "%s may be taken, bound by %s; the machine has %s available", avail,
                      mem.bound_by, meminfo_size);
}

static void check_cpu(struct hl_doctor *doc, const struct hl_topo *topo)
{
    const double quota = hl_topo_quota(topo);

    if (quota > 0 && quota < 1)
        hl_doctor_add(doc, "processors", HL_HEALTH_WARN,
                      "raise the cgroup's CPU quota (docker: --cpus)",
                      "%u cores, but a quota of %.2f", hl_topo_cores(topo), quota);
    else if (quota > 0)
        hl_doctor_add(doc, "processors", HL_HEALTH_OK, NULL,
                      "%u cores, %u threads, a quota of %.2f", hl_topo_cores(topo),
                      hl_topo_pus(topo), quota);
    else
        hl_doctor_add(doc, "processors", HL_HEALTH_OK, NULL, "%u cores, %u threads, no quota",
                      hl_topo_cores(topo), hl_topo_pus(topo));
}

static void check_optimizer(struct hl_doctor *doc)
{
    const char *variant = haul_optim_variant(), *omp = getenv("OMP_NUM_THREADS");
    const int slow = strcmp(variant, "c") == 0;

    hl_doctor_add(
        doc, "optimizer", slow ? HL_HEALTH_WARN : HL_HEALTH_OK,
        slow ? "AVX2 with FMA, AVX-512 or NEON is several times faster; is HAUL_CPU_MASK set?"
             : NULL,
        "%u threads, %s%s%s%s", haul_optim_threads(1), variant,
        omp != NULL ? " (OMP_NUM_THREADS=" : "", omp != NULL ? omp : "",
        omp != NULL ? " is ignored)" : "");
}

void hl_doctor_machine(struct hl_doctor *doc)
{
    struct hl_topo *topo;

    check_kernel(doc);
    check_uring(doc);
    check_memlock(doc);
    check_pages(doc);
    check_memory(doc);
    if (hl_topo_open(NULL, &topo) < 0) {
        hl_doctor_add(doc, "topology", HL_HEALTH_WARN, NULL, "%s", haul_last_error());
    } else {
        check_numa(doc, topo);
        check_cpu(doc, topo);
        hl_topo_close(topo);
    }
    check_optimizer(doc);
}
