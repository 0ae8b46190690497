/* The pinned pool: exact sizes, resident pages, refusals instead of signals. */
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fail.h"
#include "mem_case.h"
#include "suite.h"
#include "sys.h"

#define HUGE ((uint64_t)2 << 20)

static struct haul_pool *open_ok(const struct haul_pool_opts *opts)
{
    struct haul_pool *pool = NULL;

    cr_assert_eq(haul_pool_open(opts, &pool), 0, "%s", haul_last_error());
    cr_assert_not_null(pool);
    return pool;
}

static struct haul_pool_stats stat_of(const struct haul_pool *pool)
{
    struct haul_pool_stats stats = {.struct_size = sizeof stats};

    cr_assert_eq(haul_pool_stat(pool, &stats), 0, "%s", haul_last_error());
    return stats;
}

/* How many pages of the range are not resident. */
static unsigned absent_pages(void *p, uint64_t bytes)
{
    static unsigned char seen[1 << 16];
    unsigned n = 0;

    cr_assert_leq(bytes / PAGE, sizeof seen);
    cr_assert_eq(mincore(p, bytes, seen), 0);
    for (uint64_t i = 0; i < bytes / PAGE; i++)
        n += !(seen[i] & 1);
    return n;
}

static int64_t live_total(void)
{
    return hl_sys_live(HL_SYS_MEM) + hl_sys_live(HL_SYS_MAP) + hl_sys_live(HL_SYS_FD) +
           hl_sys_live(HL_SYS_THREAD);
}

Test(mem_pool, options_have_the_size_and_offsets_of_the_abi)
{
    cr_assert_eq(sizeof(struct haul_pool_segment), 16);
    cr_assert_eq(sizeof(struct haul_pool_opts), 40);
    cr_assert_eq(offsetof(struct haul_pool_opts, segments), 8);
    cr_assert_eq(offsetof(struct haul_pool_opts, nsegments), 16);
    cr_assert_eq(offsetof(struct haul_pool_opts, numa_node), 20);
    cr_assert_eq(offsetof(struct haul_pool_opts, pages), 24);
    cr_assert_eq(offsetof(struct haul_pool_opts, touch_threads), 28);
    cr_assert_eq(offsetof(struct haul_pool_opts, lock), 32);
    cr_assert_eq(sizeof(struct haul_pool_stats), 48);
}

Test(mem_pool, a_segment_takes_its_size_in_whole_pages_and_no_more)
{
    static const uint64_t sizes[] = {
        1, PAGE, PAGE + 1, HUGE - 1, HUGE, 2 * HUGE + 5000, 20 * HUGE + 1};
    static const enum haul_pages kinds[] = {HAUL_PAGES_AUTO, HAUL_PAGES_THP, HAUL_PAGES_SMALL};

    for (size_t k = 0; k < 3 * 2; k++) {
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            struct haul_pool_segment seg = {.bytes = sizes[i], .shared = k >= 3, .fd = -1};
            struct haul_pool_opts opts = opts_for(&seg, 1);
            struct haul_pool *pool;
            uint64_t bytes = 0, rounded = (sizes[i] + PAGE - 1) / PAGE * PAGE;
            void *start = NULL;
            int fd;

            opts.pages = kinds[k % 3];
            pool = open_ok(&opts);
            cr_assert_eq(stat_of(pool).bytes, rounded);
            cr_assert_eq(haul_pool_segment_info(pool, 0, &start, &bytes, &fd), 0);
            cr_assert_eq(bytes, rounded);
            cr_assert_eq((uintptr_t)start % HUGE, 0);
            cr_assert_eq(fd >= 0, k >= 3);
            cr_assert_eq(absent_pages(start, bytes), 0);
            memset(start, 0x5a, sizes[i]);
            haul_pool_close(pool);
        }
    }
}

Test(mem_pool, small_pages_are_small_and_none_counts_as_huge)
{
    struct haul_pool_segment seg = {.bytes = 8 * HUGE};
    struct haul_pool_opts opts = opts_for(&seg, 1);
    struct haul_pool *pool;

    opts.pages = HAUL_PAGES_SMALL;
    pool = open_ok(&opts);
    cr_assert_eq(stat_of(pool).huge_bytes, 0);
    cr_assert_eq(stat_of(pool).hugetlb_bytes, 0);
    haul_pool_close(pool);
}

static int sysfs_says(const char *path, const char *word)
{
    char text[256] = "";

    return hl_sys_probe_text(path, text, sizeof text) > 0 && strstr(text, word) != NULL;
}

Test(mem_pool, transparent_huge_pages_back_every_whole_2_mib)
{
    struct haul_pool_segment segs[] = {{.bytes = 8 * HUGE + PAGE}, {.bytes = 4 * HUGE}};
    struct haul_pool_opts opts = opts_for(segs, 2);
    struct haul_pool *pool;
    uint64_t huge;

    if (!sysfs_says("/sys/kernel/mm/transparent_hugepage/enabled", "[madvise]") &&
        !sysfs_says("/sys/kernel/mm/transparent_hugepage/enabled", "[always]"))
        SKIP("transparent huge pages");
    opts.pages = HAUL_PAGES_THP;
    pool = open_ok(&opts);
    huge = stat_of(pool).huge_bytes;
    cr_assert_eq(stat_of(pool).hugetlb_bytes, 0);
    haul_pool_close(pool);
    if (huge < 12 * HUGE)
        SKIP("unfragmented memory: %llu of %llu bytes became huge", (unsigned long long)huge,
             (unsigned long long)(12 * HUGE));
    cr_assert_eq(huge, 12 * HUGE);
}

static int write_sysctl(const char *path, int value)
{
    char text[16];
    int fd = open(path, O_WRONLY), n = snprintf(text, sizeof text, "%d", value), ok;

    if (fd < 0)
        return 0;
    ok = write(fd, text, (size_t)n) == n;
    close(fd);
    return ok;
}

static int free_hugetlb(void)
{
    char text[32] = "0";

    hl_sys_probe_text("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", text,
                      sizeof text);
    return atoi(text);
}

struct hugetlb_run {
    int rc, too_many_rc, auto_rc, handed_in_rc;
    struct haul_pool_stats first, fallback, handed_in;
    char too_many_text[512];
};

static int open_and_stat(const struct haul_pool_opts *opts, struct haul_pool **pool,
                         struct haul_pool_stats *stats)
{
    int rc = haul_pool_open(opts, pool);

    *stats = (struct haul_pool_stats){.struct_size = sizeof *stats};
    return rc < 0 ? rc : haul_pool_stat(*pool, stats);
}

/* With six reserved: all of them, then one too many, then AUTO, then a second mapping of its memfd.
 * Asserts nothing, since the reservation is to be undone whatever comes out. */
static void run_on_hugetlb(struct hugetlb_run *r)
{
    struct haul_pool_segment segs[] = {{.bytes = 4 * HUGE + 5000},
                                       {.bytes = 2 * HUGE, .shared = 1, .fd = -1}};
    struct haul_pool_opts opts = opts_for(segs, 2), second = opts_for(&segs[1], 1);
    struct haul_pool *pool = NULL, *other = NULL;
    uint64_t bytes;
    void *start;

    opts.pages = HAUL_PAGES_HUGETLB;
    r->rc = open_and_stat(&opts, &pool, &r->first);
    haul_pool_close(pool);
    pool = NULL;

    segs[0].bytes = 7 * HUGE;
    r->too_many_rc = haul_pool_open(&opts, &pool);
    snprintf(r->too_many_text, sizeof r->too_many_text, "%s", haul_last_error());
    if (r->too_many_rc == 0)
        return;

    opts.pages = HAUL_PAGES_AUTO;
    r->auto_rc = open_and_stat(&opts, &pool, &r->fallback);
    if (r->auto_rc < 0)
        return;
    r->handed_in_rc = haul_pool_segment_info(pool, 1, &start, &bytes, &segs[1].fd);
    if (r->handed_in_rc == 0)
        r->handed_in_rc = open_and_stat(&second, &other, &r->handed_in);
    haul_pool_close(other);
    haul_pool_close(pool);
}

#define NR_HUGEPAGES "/proc/sys/vm/nr_hugepages"

Test(mem_pool, hugetlb_backs_the_whole_2_mib_and_small_pages_the_tail)
{
    struct hugetlb_run r = {0};
    char text[32] = "";
    int reserved;

    hl_sys_probe_text(NR_HUGEPAGES, text, sizeof text);
    if (under_valgrind())
        SKIP("hugetlb pages: valgrind maps ordinary ones");
    if (strcmp(text, "0\n") != 0)
        SKIP("a machine on which nobody else has hugetlb pages reserved");
    write_sysctl(NR_HUGEPAGES, 6);
    reserved = free_hugetlb();
    if (reserved == 6)
        run_on_hugetlb(&r);
    write_sysctl(NR_HUGEPAGES, 0);
    if (reserved != 6)
        SKIP("six hugetlb pages (root, and unfragmented memory)");
    if (r.rc == -ENOMEM)
        SKIP("six hugetlb pages to ourselves: another process was quicker");

    cr_assert_eq(r.rc, 0);
    cr_assert_eq(r.first.bytes, 6 * HUGE + 2 * PAGE);
    cr_assert_eq(r.first.hugetlb_bytes, 6 * HUGE);
    cr_assert_eq(r.first.huge_bytes, 6 * HUGE);
    cr_assert_eq(r.too_many_rc, -ENOMEM);
    cr_assert_not_null(strstr(r.too_many_text, "vm.nr_hugepages"), "%s", r.too_many_text);
    cr_assert_eq(r.auto_rc, 0);
    cr_assert_eq(r.fallback.bytes, 9 * HUGE);
    cr_assert_eq(r.fallback.hugetlb_bytes, 2 * HUGE, "seven were not to be had");
    cr_assert_eq(r.handed_in_rc, 0);
    cr_assert_eq(r.handed_in.hugetlb_bytes, 2 * HUGE);
}

/* Nothing of it could lie on a huge page, however many are free. */
Test(mem_pool, a_segment_below_one_hugetlb_page_is_refused_and_not_put_on_small_ones)
{
    struct haul_pool_segment segs[] = {{.bytes = PAGE}, {.bytes = HUGE - PAGE}};
    struct haul_pool_opts opts = opts_for(segs, 1);
    struct haul_pool *pool = NULL;

    opts.pages = HAUL_PAGES_HUGETLB;
    for (int i = 0; i < 2; i++) {
        opts.segments = &segs[i];
        cr_assert_eq(haul_pool_open(&opts, &pool), -ENOMEM);
        cr_assert_null(pool);
        cr_assert_not_null(strstr(haul_last_error(), "one 2 MiB page"), "%s", haul_last_error());
        cr_assert_not_null(strstr(haul_last_error(), i ? "2093056" : "4096"));
    }
}

Test(mem_pool, a_null_for_the_pool_is_refused_by_name)
{
    struct haul_pool_segment seg = {.bytes = PAGE};
    struct haul_pool_opts opts = opts_for(&seg, 1);

    cr_assert_eq(haul_pool_open(&opts, NULL), -EINVAL);
    cr_assert_not_null(strstr(haul_last_error(), "out"), "%s", haul_last_error());
}

Test(mem_pool, without_hugetlb_pages_asking_for_them_is_refused)
{
    struct haul_pool_segment seg = {.bytes = 4 * HUGE};
    struct haul_pool_opts opts = opts_for(&seg, 1);
    struct haul_pool *pool = NULL;

    if (under_valgrind())
        SKIP("hugetlb pages: valgrind maps ordinary ones");
    if (free_hugetlb() >= 4)
        SKIP("a machine without free hugetlb pages");
    opts.pages = HAUL_PAGES_HUGETLB;
    cr_assert_eq(haul_pool_open(&opts, &pool), -ENOMEM);
    cr_assert_null(pool);
    seg.shared = 1;
    seg.fd = -1;
    cr_assert_eq(haul_pool_open(&opts, &pool), -ENOMEM);
    seg.bytes = HUGE + PAGE;
    cr_assert_eq(haul_pool_open(&opts, &pool), -EINVAL);
    cr_assert_not_null(strstr(haul_last_error(), "whole 2 MiB"), "%s", haul_last_error());
}

Test(mem_pool, a_memfd_is_seen_by_who_maps_it_and_keeps_its_bytes)
{
    struct haul_pool_segment seg = {.bytes = 3 * HUGE + PAGE, .shared = 1, .fd = -1};
    struct haul_pool_opts opts = opts_for(&seg, 1);
    struct haul_pool *first = open_ok(&opts), *second;
    uint64_t bytes;
    char *a, *b;
    void *p;
    int fd, fd2;

    cr_assert_eq(haul_pool_segment_info(first, 0, &p, &bytes, &fd), 0);
    a = p;
    for (uint64_t i = 0; i < bytes; i += 511)
        a[i] = (char)(i * 7);
    seg.fd = fd;
    second = open_ok(&opts);
    cr_assert_eq(haul_pool_segment_info(second, 0, &p, &bytes, &fd2), 0);
    b = p;
    cr_assert_eq(fd2, fd);
    cr_assert(a != b);
    cr_assert_eq(memcmp(a, b, bytes), 0);
    b[12345] = 99;
    cr_assert_eq(a[12345], 99);
    haul_pool_close(second);
    cr_assert_geq(fcntl(fd, F_GETFD), 0, "a memfd handed in stays open");
    a[0] = 1;
    haul_pool_close(first);
}

Test(mem_pool, a_memfd_too_small_is_refused)
{
    int fd = memfd_create("small", 0);
    struct haul_pool_segment seg = {.bytes = 8 * PAGE, .shared = 1, .fd = fd};
    struct haul_pool_opts opts = opts_for(&seg, 1);
    struct haul_pool *pool = NULL;

    cr_assert_eq(ftruncate(fd, 7 * PAGE), 0);
    cr_assert_eq(haul_pool_open(&opts, &pool), -EINVAL);
    cr_assert_not_null(strstr(haul_last_error(), "28672"), "%s", haul_last_error());
    seg.fd = 9999;
    cr_assert_eq(haul_pool_open(&opts, &pool), -EBADF);
    cr_assert_null(pool);
    close(fd);
}

Test(mem_pool, bad_options_are_refused_by_name)
{
    struct haul_pool_segment seg = {.bytes = PAGE};
    struct haul_pool_opts opts = opts_for(&seg, 1);
    struct haul_pool *pool = NULL;

    cr_assert_eq(haul_pool_open(NULL, &pool), -EINVAL);
    opts.struct_size = 0;
    cr_assert_eq(haul_pool_open(&opts, &pool), HAUL_E_ABI);
    opts = opts_for(&seg, 0);
    cr_assert_eq(haul_pool_open(&opts, &pool), -EINVAL);
    opts = opts_for(NULL, 1);
    cr_assert_eq(haul_pool_open(&opts, &pool), -EINVAL);
    opts = opts_for(&seg, 1);
    opts.pages = (enum haul_pages)9;
    cr_assert_eq(haul_pool_open(&opts, &pool), -EINVAL);
    opts.pages = HAUL_PAGES_AUTO;
    seg.bytes = 0;
    cr_assert_eq(haul_pool_open(&opts, &pool), -EINVAL);
    seg.bytes = ((uint64_t)1 << 47) + 1;
    cr_assert_eq(haul_pool_open(&opts, &pool), -EINVAL);
    seg.bytes = UINT64_MAX;
    cr_assert_eq(haul_pool_open(&opts, &pool), -EINVAL);
    cr_assert_not_null(strstr(haul_last_error(), "18446744073709551615"), "%s", haul_last_error());
    seg.bytes = PAGE;
    opts.numa_node = 1000;
    cr_assert_eq(haul_pool_open(&opts, &pool), -EINVAL);
    cr_assert_not_null(strstr(haul_last_error(), "no NUMA node 1000"), "%s", haul_last_error());
    cr_assert_null(pool);
    haul_pool_close(NULL);
}

Test(mem_pool, more_than_the_machine_has_is_refused_before_it_is_touched)
{
    uint64_t physical = (uint64_t)sysconf(_SC_PHYS_PAGES) * PAGE;
    struct haul_pool_segment seg = {.bytes = physical + (64u << 20)};
    struct haul_pool_opts opts = opts_for(&seg, 1);
    struct haul_pool *pool = NULL;
    int64_t live = live_total();
    int rc = haul_pool_open(&opts, &pool);

    cr_assert_eq(rc, -ENOMEM, "%s", haul_last_error());
    cr_assert_null(pool);
    cr_assert_eq(live_total(), live);
}

Test(mem_pool, regions_are_cut_in_order_on_page_boundaries_until_full)
{
    struct haul_pool_segment segs[] = {{.bytes = 10 * PAGE}, {.bytes = 4 * PAGE}};
    struct haul_pool_opts opts = opts_for(segs, 2);
    struct haul_pool *pool = open_ok(&opts);
    struct haul_pool_stats stats;
    void *a = NULL, *b = NULL, *c = NULL, *none = NULL, *s0, *s1;
    const char *name;
    uint64_t bytes;
    int fd;

    cr_assert_eq(haul_pool_segment_info(pool, 0, &s0, &bytes, &fd), 0);
    cr_assert_eq(fd, -1);
    cr_assert_eq(haul_pool_segment_info(pool, 1, &s1, &bytes, &fd), 0);
    cr_assert_eq(haul_pool_segment_info(pool, 2, &none, &bytes, &fd), -EINVAL);
    cr_assert_eq(haul_pool_take(pool, "gradients", 3 * PAGE + 1, &a), 0);
    cr_assert_eq(haul_pool_take(pool, "records", 5 * PAGE, &b), 0);
    cr_assert(a == s0);
    cr_assert((char *)b == (char *)s0 + 4 * PAGE);
    cr_assert_eq(haul_pool_take(pool, "slots", 2 * PAGE, &c), 0);
    cr_assert(c == s1, "a region does not straddle segments");

    cr_assert_eq(haul_pool_take(pool, "more", 3 * PAGE, &none), -ENOSPC);
    cr_assert_null(none);
    cr_assert_not_null(strstr(haul_last_error(), "8192 are left"), "%s", haul_last_error());
    cr_assert_not_null(strstr(haul_last_error(), "more"), "%s", haul_last_error());
    cr_assert_eq(haul_pool_take(pool, "more", UINT64_MAX, &none), -ENOSPC);
    cr_assert_eq(haul_pool_take(pool, "more", 0, &none), -EINVAL);
    cr_assert_eq(haul_pool_take(pool, "", 1, &none), -EINVAL);
    cr_assert_eq(haul_pool_take(pool, NULL, 1, &none), -EINVAL);
    cr_assert_eq(haul_pool_take(pool, "a name that is 32 characters long", 1, &none), -EINVAL);
    cr_assert_eq(haul_pool_take(pool, "a name of thirty-one characters", 1, &c), 0);

    stats = stat_of(pool);
    cr_assert_eq(stats.bytes, 14 * PAGE);
    cr_assert_eq(stats.taken_bytes, (4 + 5 + 2 + 1) * PAGE);
    cr_assert_eq(stats.nregions, 4);
    cr_assert_eq(stats.bound_node, -1);
    cr_assert_eq(haul_pool_region(pool, 0, &name, &none, &bytes), 0);
    cr_assert_str_eq(name, "gradients");
    cr_assert(none == a);
    cr_assert_eq(bytes, 3 * PAGE + 1);
    cr_assert_eq(haul_pool_region(pool, 3, &name, &none, &bytes), 0);
    cr_assert_str_eq(name, "a name of thirty-one characters");
    cr_assert_eq(haul_pool_region(pool, 4, &name, &none, &bytes), -EINVAL);
    stats.struct_size = 3;
    cr_assert_eq(haul_pool_stat(pool, &stats), HAUL_E_ABI);
    haul_pool_close(pool);
}

Test(mem_pool, hundreds_of_regions_keep_their_names_and_bytes)
{
    struct haul_pool_segment seg = {.bytes = 500 * PAGE};
    struct haul_pool_opts opts = opts_for(&seg, 1);
    struct haul_pool *pool = open_ok(&opts);
    char name[32];
    const char *found;
    uint64_t bytes;
    void *p = NULL, *again;

    for (uint32_t i = 0; i < 500; i++) {
        snprintf(name, sizeof name, "unit %u", i);
        cr_assert_eq(haul_pool_take(pool, name, 1 + i * 8, &p), 0, "%s", haul_last_error());
    }
    for (uint32_t i = 0; i < 500; i++) {
        snprintf(name, sizeof name, "unit %u", i);
        cr_assert_eq(haul_pool_region(pool, i, &found, &again, &bytes), 0);
        cr_assert_str_eq(found, name);
        cr_assert_eq(bytes, 1 + i * 8);
    }
    cr_assert_eq(stat_of(pool).taken_bytes, 500 * PAGE);
    haul_pool_close(pool);
}

Test(mem_pool, a_growing_list_of_regions_survives_a_failed_allocation)
{
    struct haul_pool_segment seg = {.bytes = 40 * PAGE};
    struct haul_pool_opts opts = opts_for(&seg, 1);
    struct haul_pool *pool = open_ok(&opts);
    void *p = NULL, *q = NULL;

    for (int i = 0; i < 16; i++)
        cr_assert_eq(haul_pool_take(pool, "r", PAGE, &p), 0);
    hl_sys_fail_nth(1, ENOMEM);
    cr_assert_eq(haul_pool_take(pool, "r", PAGE, &q), -ENOMEM);
    hl_sys_fail_nth(0, 0);
    cr_assert_null(q);
    cr_assert_eq(stat_of(pool).taken_bytes, 16 * PAGE);
    cr_assert_eq(haul_pool_take(pool, "r", PAGE, &q), 0);
    cr_assert((char *)q == (char *)p + PAGE);
    haul_pool_close(pool);
}

static int warnings;

static void count_warnings(void *user, enum haul_log_level level, const char *text)
{
    (void)user;
    (void)text;
    warnings += level == HAUL_LOG_WARN;
}

Test(mem_pool, a_bound_pool_says_its_node_and_an_unbound_one_warned_once)
{
    struct haul_pool_segment segs[] = {{.bytes = PAGE}, {.bytes = PAGE}, {.bytes = PAGE}};
    struct haul_pool_opts opts = opts_for(segs, 3);
    struct haul_pool *pool;

    opts.numa_node = 0;
    warnings = 0;
    haul_log_set(count_warnings, NULL, HAUL_LOG_WARN);
    pool = open_ok(&opts);
    haul_log_set(NULL, NULL, HAUL_LOG_WARN);
    if (stat_of(pool).bound_node == -1)
        cr_assert_eq(warnings, 1);
    else
        cr_assert_eq(warnings, 0);
    cr_assert_leq(stat_of(pool).bound_node, 0);
    haul_pool_close(pool);
}

/* Every call fails once with err. What the pool can do without (hugetlb pages, binding, a collapse) may
 * fail and the pool still opens; then it is whole. Returns how many failures were survived. */
static int sweep(const struct haul_pool_opts *opts, int err)
{
    int64_t live = live_total(), n;
    int survived = 0;

    haul_log_set(count_warnings, NULL, HAUL_LOG_WARN);
    for (n = 1;; n++) {
        struct haul_pool *pool = NULL;
        int rc, failed;

        hl_sys_fail_nth(n, err);
        rc = haul_pool_open(opts, &pool);
        failed = hl_sys_failed();
        hl_sys_fail_nth(0, 0);
        if (rc == 0) {
            for (uint32_t i = 0; i < opts->nsegments; i++) {
                uint64_t bytes;
                void *p;
                int fd;

                cr_assert_eq(haul_pool_segment_info(pool, i, &p, &bytes, &fd), 0);
                cr_assert_eq(absent_pages(p, bytes), 0, "call %lld", (long long)n);
            }
            survived += failed;
        } else {
            cr_assert_eq(rc, -err, "call %lld: %d", (long long)n, rc);
            cr_assert_null(pool);
            cr_assert_gt(strlen(haul_last_error()), 0);
        }
        haul_pool_close(pool);
        cr_assert_eq(live_total(), live, "call %lld leaks", (long long)n);
        if (!failed)
            break;
    }
    haul_log_set(NULL, NULL, HAUL_LOG_WARN);
    cr_assert_gt(n, 15, "the sweep reached only %lld calls", (long long)n);
    return survived;
}

Test(mem_pool, open_unwinds_from_every_failure)
{
    struct haul_pool_segment segs[] = {{.bytes = 2 * HUGE + 3 * PAGE},
                                       {.bytes = HUGE + PAGE, .shared = 1, .fd = -1}};
    struct haul_pool_opts opts = opts_for(segs, 2);

    opts.pages = HAUL_PAGES_SMALL;
    opts.touch_threads = 2;
    cr_assert_eq(sweep(&opts, ENOMEM), 0, "nothing here can be done without");
    opts.pages = HAUL_PAGES_AUTO;
    sweep(&opts, ENOMEM);
    opts.touch_threads = 0;
    opts.numa_node = 0;
    sweep(&opts, ENOMEM);
}

Test(mem_pool, without_populate_write_pages_are_touched_one_by_one)
{
    struct haul_pool_segment seg = {.bytes = 2 * HUGE + 3 * PAGE};
    struct haul_pool_opts opts = opts_for(&seg, 1);

    opts.touch_threads = 1;
    opts.pages = HAUL_PAGES_SMALL;
    /* -EINVAL is how an older kernel answers MADV_NOHUGEPAGE (1) and each of 3 MADV_POPULATE_WRITE */
    cr_assert_eq(sweep(&opts, EINVAL), 4);
}
