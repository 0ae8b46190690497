/* test_pager_special.c: single faults and single machines: what each does, and to whom. */
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "method.h"
#include "method_fault.h"

#define METHOD         (&hl_method_fault)
#define METHOD_BEGIN() hl_fault_arm(&(struct hl_fault_plan){.inner = &hl_method_threads})
#include "pager_case.h"

static void arm(enum hl_fault_kind kind, uint32_t rate)
{
    struct hl_fault_plan plan = {.inner = &hl_method_threads, .seed = 3};

    plan.rate[kind] = rate;
    hl_fault_arm(&plan);
}

static struct haul_store *open_verify(const char *dir, enum haul_verify verify)
{
    struct haul_store_opts o = small_opts(&dir);
    struct haul_store *s = NULL;

    o.verify = verify;
    MUST(open_store(&o, &s));
    MUST(haul_extent_create(s, 1, 4 * BLK));
    MUST(haul_extent_create(s, 2, 4 * BLK));
    return s;
}

Test(pager_special, a_hard_error_hits_its_request_alone)
{
    unsigned char *m = memory(4 * BLK);
    char dir[128];

    cr_assert(place_make(0, dir));
    struct haul_store *s = open_verify(dir, HAUL_VERIFY_ALWAYS);

    fill(m, 0, 4 * BLK, 1);
    MUST(haul_store_write(s, 1, 0, m, 4 * BLK));
    MUST(haul_store_write(s, 2, 0, m, 4 * BLK));
    arm(HL_FAULT_EIO, 1000);
    MUST_FAIL(-EIO, haul_store_read(s, 1, 0, m, BLK));
    cr_assert(strstr(haul_last_error(), "(scratch)") && strstr(haul_last_error(), "block 0"), "%s",
              haul_last_error());
    hl_fault_disarm();
    MUST(haul_store_read(s, 1, 0, m, 4 * BLK));
    cr_assert(filled(m, 0, 4 * BLK, 1));
    MUST(haul_store_read(s, 2, 0, m, 4 * BLK));
    cr_assert(filled(m, 0, 4 * BLK, 1));
    haul_store_close(s);
    place_remove(dir);
}

Test(pager_special, a_block_lost_by_a_failed_write_says_so_until_written_whole)
{
    static const enum haul_verify modes[] = {HAUL_VERIFY_ALWAYS, HAUL_VERIFY_OFF};
    unsigned char *m = memory(4 * BLK);
    char dir[128];

    for (int i = 0; i < 2; i++) {
        cr_assert(place_make(0, dir));
        struct haul_store *s = open_verify(dir, modes[i]);

        MUST(haul_store_write(s, 1, 0, m, 4 * BLK));
        arm(HL_FAULT_TORN, 1000);
        MUST_FAIL(-EIO, haul_store_write(s, 1, BLK, m, BLK));
        hl_fault_disarm();
        MUST_FAIL(-EIO, haul_store_read(s, 1, BLK + 5, m, 5));
        cr_assert(strstr(haul_last_error(), "write it again whole"), "%s", haul_last_error());
        MUST_FAIL(-EIO, haul_store_write(s, 1, BLK + 5, m, 5));
        MUST(haul_store_read(s, 1, 0, m, BLK));
        fill(m, BLK, BLK, 9);
        MUST(haul_store_write(s, 1, BLK, m, BLK));
        MUST(haul_store_read(s, 1, BLK, m, BLK));
        cr_assert(filled(m, BLK, BLK, 9));
        haul_store_close(s);
        place_remove(dir);
    }
}

Test(pager_special, transient_errors_are_retried_within_a_bound)
{
    static const enum hl_fault_kind kinds[] = {HL_FAULT_EAGAIN, HL_FAULT_EINTR, HL_FAULT_EBUSY,
                                               HL_FAULT_START_REFUSED};
    static const int codes[] = {-EAGAIN, -EINTR, -EBUSY, -EAGAIN};
    struct haul_store_stats st = {.struct_size = sizeof st};
    unsigned char *m = memory(BLK);
    char dir[128];

    cr_assert(place_make(0, dir));
    struct haul_store *s = open_verify(dir, HAUL_VERIFY_ALWAYS);

    MUST(haul_store_write(s, 1, 0, m, BLK));
    for (int i = 0; i < 4; i++) {
        arm(kinds[i], 700);
        MUST(haul_store_read(s, 1, 0, m, BLK));
        arm(kinds[i], 1000);
        MUST_FAIL(codes[i], haul_store_read(s, 1, 0, m, BLK));
    }
    hl_fault_disarm();
    MUST(haul_store_stat(s, &st));
    cr_assert_gt(st.retries, 4 * 30);
    haul_store_close(s);
    place_remove(dir);
}

static void note_progress(void *user, uint64_t done_bytes, uint64_t total_bytes)
{
    uint64_t *seen = user;

    seen[0] = done_bytes;
    seen[1] = total_bytes;
}

Test(pager_special, the_first_write_of_space_outlives_refusals_and_repeats)
{
    static const enum hl_fault_kind kinds[] = {HL_FAULT_START_REFUSED, HL_FAULT_STALE,
                                               HL_FAULT_SHORT_ALIGNED, HL_FAULT_EINTR};
    char dir[128];

    cr_assert(place_make(0, dir));
    for (uint32_t i = 0; i < 4; i++)
        for (uint32_t rate = 500; rate <= 1000; rate += 500) {
            const char *path = dir;
            struct haul_store_opts o = small_opts(&path);
            uint64_t seen[2] = {0};
            struct haul_store_info info = {.struct_size = sizeof info};
            struct haul_store *s;

            o.capacity_bytes = 50 * MIB; /* more pieces than are in flight at once */
            o.reserve = HAUL_RESERVE_WRITTEN;
            o.progress = note_progress;
            o.progress_user = seen;
            arm(kinds[i], rate);
            MUST(hl_store_open_with(&o, METHOD, &s));
            MUST(haul_store_get_info(s, &info));
            if (!info.direct || seen[1] == 0) { /* the space is not written through the method */
                hl_fault_disarm();
                haul_store_close(s);
                place_remove(dir);
                SKIP("a file system whose space is written once, directly");
            }
            cr_assert_gt(hl_fault_count(kinds[i]), 0, "kind %d", kinds[i]);
            cr_assert_gt(seen[1], 50 * MIB - 1);
            cr_assert_eq(seen[0], seen[1], "kind %d: %llu of %llu bytes written", kinds[i],
                         (unsigned long long)seen[0], (unsigned long long)seen[1]);
            hl_fault_disarm();
            haul_store_close(s);
        }
    place_remove(dir);
}

Test(pager_special, silent_damage_is_found_when_read)
{
    static const enum hl_fault_kind kinds[] = {HL_FAULT_LOST, HL_FAULT_MISDIRECT};
    unsigned char *m = memory(4 * BLK);
    char dir[128];

    for (int i = 0; i < 2; i++) {
        cr_assert(place_make(0, dir));
        struct haul_store *s = open_verify(dir, HAUL_VERIFY_ALWAYS);

        fill(m, 0, 4 * BLK, 1);
        MUST(haul_store_write(s, 1, 0, m, 4 * BLK));
        arm(kinds[i], 1000);
        fill(m, 2 * BLK, BLK, 2);
        MUST(haul_store_write(s, 1, 2 * BLK, m, BLK)); /* the drive said so */
        hl_fault_disarm();
        MUST_FAIL(HAUL_E_CHECKSUM, haul_store_read(s, 1, 2 * BLK, m, BLK));
        if (kinds[i] == HL_FAULT_MISDIRECT) /* the victim is its neighbour */
            MUST_FAIL(HAUL_E_CHECKSUM, haul_store_read(s, 1, BLK, m, BLK));
        MUST(haul_store_read(s, 1, 3 * BLK, m, BLK));
        arm(HL_FAULT_FLIP, 1000);
        MUST_FAIL(HAUL_E_CHECKSUM, haul_store_read(s, 1, 3 * BLK, m, BLK));
        haul_store_close(s);
        place_remove(dir);
    }
}

Test(pager_special, a_drive_of_4096_byte_sectors_is_never_asked_for_less)
{
    uint64_t n = 3 * BLK + 700;
    unsigned char *m = memory(n + 16);
    char dir[128];
    const char *d = dir;
    struct haul_store_opts o = small_opts(&d);
    struct haul_store *s;

    cr_assert(place_make(0, dir));
    o.verify = HAUL_VERIFY_OFF; /* parts are read as parts */
    MUST(open_store(&o, &s));
    s->dirs[0].align = s->dirs[0].mem_align = 4096;
    hl_fault_arm(&(struct hl_fault_plan){.inner = &hl_method_threads,
                                         .enforce_align = 4096,
                                         .align = 4096,
                                         .seed = 4,
                                         .rate = {[HL_FAULT_SHORT_UNALIGNED] = 300}});
    MUST(haul_extent_create(s, 1, n));
    for (unsigned skew = 0; skew < 16; skew += 5) {
        fill(m + skew, 0, n, skew);
        MUST(haul_store_write(s, 1, 0, m + skew, n));
        MUST(haul_store_write(s, 1, 511, m + skew + 511, 4096));
        memset(m, 0, n + 16);
        MUST(haul_store_read(s, 1, 0, m + skew, n));
        cr_assert(filled(m + skew, 0, n, skew));
        MUST(haul_store_read(s, 1, 512, m + skew, 1024));
        cr_assert(filled(m + skew, 512, 1024, skew));
        MUST(haul_store_read(s, 1, 8192, m, 4096));
        cr_assert(filled(m, 8192, 4096, skew));
    }
    haul_store_close(s);
    place_remove(dir);
}

Test(pager_special, direct_io_that_is_refused_later_gives_way_to_the_page_cache)
{
    struct haul_store_info info = {.struct_size = sizeof info};
    unsigned char *m = memory(BLK);
    char dir[128];
    const char *d = dir;
    struct haul_store_opts o = small_opts(&d);
    struct haul_store *s;

    cr_assert(place_make(0, dir));
    MUST(open_store(&o, &s));
    MUST(haul_store_get_info(s, &info));
    if (!info.direct) {
        haul_store_close(s);
        place_remove(dir);
        SKIP("direct I/O in the build directory");
    }
    MUST(haul_extent_create(s, 1, BLK));
    fill(m, 0, BLK, 1);
    /* Every transfer is refused as misaligned, as overlayfs does; one refusal is enough. */
    hl_fault_arm(&(struct hl_fault_plan){.inner = &hl_method_threads, .enforce_align = 1u << 30});
    MUST_FAIL(-EINVAL, haul_store_write(s, 1, 0, m, BLK));
    hl_fault_disarm();
    MUST(haul_store_get_info(s, &info));
    cr_assert_eq(info.direct, 0);
    MUST(haul_store_write(s, 1, 0, m, BLK));
    MUST(haul_store_read(s, 1, 0, m, BLK));
    cr_assert(filled(m, 0, BLK, 1));
    haul_store_close(s);
    place_remove(dir);
}

Test(pager_special, the_write_that_finds_no_space_says_so_and_the_rest_is_kept)
{
    unsigned char *m = memory(4 * BLK);
    char dir[128];
    const char *d = dir;
    struct haul_store_opts o = small_opts(&d);
    struct haul_store *s;

    cr_assert(place_make(0, dir));
    o.durable = 1;
    MUST(open_store(&o, &s));
    MUST(haul_extent_create(s, 1, 4 * BLK));
    fill(m, 0, 4 * BLK, 1);
    MUST(haul_store_write(s, 1, 0, m, 4 * BLK));
    MUST(haul_store_commit(s, 1, NULL, 0));
    hl_fault_arm(&(struct hl_fault_plan){.inner = &hl_method_threads, .enospc_after_writes = 3});
    MUST_FAIL(-ENOSPC, haul_store_write(s, 1, 0, m, 4 * BLK));
    cr_assert(strstr(haul_last_error(), "free some space"), "%s", haul_last_error());
    hl_fault_disarm();
    MUST(haul_store_read(s, 1, 0, m, 4 * BLK)); /* the failed blocks keep their old slot */
    cr_assert(filled(m, 0, 4 * BLK, 1));
    MUST(haul_store_write(s, 1, 0, m, 4 * BLK));
    MUST(haul_store_commit(s, 2, NULL, 0));
    haul_store_close(s);
    place_remove(dir);
}

Test(pager_special, a_truncated_file_is_a_short_transfer_and_not_zeros)
{
    unsigned char *m = memory(4 * BLK);
    char dir[128], path[256];
    const char *d = dir;
    struct haul_store_opts o = small_opts(&d);
    struct haul_store *s;

    for (int odd = 0; odd < 2; odd++) {
        cr_assert(place_make(0, dir));
        o.durable = 1;
        MUST(open_store(&o, &s));
        MUST(haul_extent_create(s, 1, 4 * BLK));
        MUST(haul_store_write(s, 1, 0, m, 4 * BLK));
        snprintf(path, sizeof path, "%s/haul.data", dir);
        cr_assert_eq(truncate(path, BLK + odd * 100), 0);
        MUST_FAIL(HAUL_E_SHORT_IO, haul_store_read(s, 1, BLK, m, BLK));
        cr_assert(strstr(haul_last_error(), "truncated"), "%s", haul_last_error());
        haul_store_close(s);
        place_remove(dir);
    }
}

/* ---- machines that refuse things: each in a child of its own ---- */

/* The child's exit code: 0 good, 77 skip, else the step that failed. */
static int in_child(int (*fn)(const char *dir), const char *dir)
{
    int status;
    pid_t child = fork();

    if (child == 0) {
        haul_log_set(NULL, NULL, HAUL_LOG_ERROR);
        _exit(fn(dir));
    }
    cr_assert_eq(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

static int use_store(const char *dir, struct haul_pool *pool, struct haul_store_info *info,
                     char *note)
{
    static unsigned char m[4 * BLK];
    struct haul_store_opts o = small_opts(&dir);
    struct haul_store *s;
    int bad;

    o.pool = pool;
    if (haul_store_open(&o, &s))
        return 10;
    fill(m, 0, sizeof m, 1);
    bad = haul_extent_create(s, 1, sizeof m) || haul_store_write(s, 1, 0, m, sizeof m) ||
          haul_store_read(s, 1, 0, m, sizeof m) || !filled(m, 0, sizeof m, 1);
    info->struct_size = sizeof *info;
    bad |= haul_store_get_info(s, info) != 0;
    snprintf(note, 640, "%s", info->method_note);
    info->method = strcmp(info->method, "uring") ? "threads" : "uring";
    haul_store_close(s);
    return bad ? 11 : 0;
}

static int refuse_uring(int err)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)err),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog prog = {sizeof code / sizeof *code, code};

    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog);
}

static int with_seccomp(const char *dir, int err, const char *word)
{
    struct haul_store_info info;
    struct haul_store_opts o = small_opts(&dir);
    struct haul_store *s;
    char note[640];
    int rc;

    if (refuse_uring(err))
        return 77;
    rc = use_store(dir, NULL, &info, note);
    if (rc)
        return rc;
    if (strcmp(info.method, "threads") || !strstr(note, word) || !strstr(note, "seccomp"))
        return 20;
    o.method = HAUL_IO_URING;
    return haul_store_open(&o, &s) == -err ? 0 : 21;
}

static int seccomp_eperm(const char *dir)
{
    return with_seccomp(dir, EPERM, "io_uring is not used");
}

static int seccomp_enosys(const char *dir)
{
    return with_seccomp(dir, ENOSYS, "the kernel has no io_uring, or");
}

Test(pager_special, a_seccomp_filter_leads_to_threads_with_the_reason)
{
    char dir[128];
    int rc;

    cr_assert(place_make(0, dir));
    rc = in_child(seccomp_eperm, dir);
    if (rc == 0)
        rc = in_child(seccomp_enosys, dir);
    place_remove(dir);
    if (rc == 77)
        SKIP("seccomp filters");
    cr_assert_eq(rc, 0, "step %d", rc);
}

static int ordinary_user(const char *dir)
{
    struct haul_pool_segment seg = {.bytes = 8 * MIB, .fd = -1};
    struct rlimit lim = {65536, 65536};
    struct haul_store_info info;
    struct haul_pool_opts po;
    struct haul_pool *pool;
    char note[640];
    int rc;

    if (setrlimit(RLIMIT_MEMLOCK, &lim) || setgid(65534) || setuid(65534))
        return 77;
    haul_pool_opts_init(&po);
    po.segments = &seg;
    po.nsegments = 1;
    if (haul_pool_open(&po, &pool))
        return 12;
    rc = use_store(dir, pool, &info, note);
    haul_pool_close(pool);
    if (rc)
        return rc;
    /* Registration is refused, said with both figures, and done without. */
    if (!strcmp(info.method, "uring") &&
        (info.fixed_buffers || !strstr(note, "65536") || !strstr(note, "ulimit -l")))
        return 22;
    return 0;
}

Test(pager_special, an_ordinary_user_with_64_kib_of_locked_memory_is_served)
{
    char dir[128];
    int rc;

    if (getuid())
        SKIP("root, to become an ordinary user from");
    snprintf(dir, sizeof dir, "/dev/shm/pager-XXXXXX");
    cr_assert_not_null(mkdtemp(dir));
    cr_assert_eq(chmod(dir, 0777), 0);
    rc = in_child(ordinary_user, dir);
    place_remove(dir);
    if (rc == 77)
        SKIP("changing the user");
    cr_assert_eq(rc, 0, "step %d", rc);
}

/* ---- file systems on loop devices ---- */

static int run_quietly(const char *fmt, const char *a, const char *b)
{
    char cmd[512];

    snprintf(cmd, sizeof cmd, fmt, a, b);
    return system(cmd);
}

static void on_loop(const char *fs, const char *mkfs, const char *losetup_args)
{
    char dir[128], image[160], loop[64] = "";
    struct haul_store_info info;
    char note[640];
    FILE *p;
    int rc;

    if (getuid() || run_quietly("command -v mkfs.%s >/dev/null 2>&1%s", fs, ""))
        SKIP("root and mkfs.%s", fs);
    cr_assert(place_make(0, dir));
    snprintf(image, sizeof image, "%s.image", dir);
    rc = run_quietly("truncate -s 400M %s%s", image, "");
    cr_assert_eq(rc, 0);
    snprintf(note, sizeof note, "losetup %s -f --show %s 2>/dev/null", losetup_args, image);
    p = popen(note, "r");
    if (!p || !fgets(loop, sizeof loop, p))
        loop[0] = '\0';
    if (p)
        pclose(p);
    loop[strcspn(loop, "\n")] = '\0';
    rc = !loop[0] || run_quietly(mkfs, loop, "") || mount(loop, dir, fs, 0, NULL);
    if (rc == 0) {
        rc = use_store(dir, NULL, &info, note);
        umount2(dir, MNT_DETACH);
    } else {
        rc = 77;
    }
    if (loop[0])
        run_quietly("losetup -d %s%s", loop, "");
    unlink(image);
    place_remove(dir);
    if (rc == 77)
        SKIP("a loop device with %s", fs);
    cr_assert_eq(rc, 0, "step %d", rc);
    if (losetup_args[0])
        cr_assert(!info.direct || info.align_bytes == 4096, "%u", info.align_bytes);
}

Test(pager_special, ext4_on_4096_byte_sectors)
{
    on_loop("ext4", "mkfs.ext4 -q %s%s >/dev/null 2>&1", "-b 4096");
}

Test(pager_special, xfs)
{
    on_loop("xfs", "mkfs.xfs -q %s%s >/dev/null 2>&1", "");
}

Test(pager_special, btrfs)
{
    on_loop("btrfs", "mkfs.btrfs -q %s%s >/dev/null 2>&1", "");
}
