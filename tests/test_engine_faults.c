/* What fails while an engine is opened, described and built leaves nothing behind. */
#include <errno.h>
#include <unistd.h>

#include "suite.h"
#include "sys.h"
#include "toy_model.h"

static void nothing_alive(const int64_t before[HL_SYS_NKINDS], int64_t n)
{
    for (int k = 0; k < HL_SYS_NKINDS; k++)
        cr_assert_eq(hl_sys_live(k), before[k], "kind %d: %lld alive, %lld before call %lld failed",
                     k, (long long)hl_sys_live(k), (long long)before[k], (long long)n);
}

static void sweep(struct toy_config c)
{
    static struct toy t;
    int64_t before[HL_SYS_NKINDS], n;

    /* What is set up once per process (topology, team) is not this test's. */
    cr_assert_eq(toy_open(&t, &c, 2, 4), 0, "%s", haul_last_error());
    toy_close(&t);
    for (int k = 0; k < HL_SYS_NKINDS; k++)
        before[k] = hl_sys_live(k);
    for (n = 1; n < 5000; n++) {
        cr_assert_eq(hl_sys_fail_nth(n, ENOMEM), 0);
        int rc = toy_open(&t, &c, 2, 4);
        int delivered = hl_sys_failed();
        hl_sys_fail_nth(0, 0);
        if (rc == 0)
            toy_close(&t);
        nothing_alive(before, n);
        if (!delivered)
            break;
    }
    cr_assert_lt(n, 5000);
    cr_assert_gt(n, 20, "only %lld fallible calls?", (long long)n);
}

Test(engine_faults, open_with_offload_none_unwinds_from_every_failure)
{
    sweep((struct toy_config){.offload = HAUL_OFFLOAD_NONE, .passes = 2, .tied = 1});
}

Test(engine_faults, open_with_offload_optimizer_unwinds_from_every_failure)
{
    sweep((struct toy_config){.offload = HAUL_OFFLOAD_OPTIMIZER, .passes = 2, .tied = 1});
}

Test(engine_faults, open_with_offload_all_unwinds_from_every_failure)
{
    sweep((struct toy_config){.offload = HAUL_OFFLOAD_ALL, .passes = 2, .tied = 1});
}

/* ---- a drive that fails in the middle ---- */

static struct toy_config paged(const char *dir)
{
    struct toy_config c = {.offload = HAUL_OFFLOAD_ALL,
                           .nvme_dir = dir,
                           .slot_bytes = 200000,
                           .slots = 3,
                           .io_method = HAUL_IO_THREADS,
                           .host_mem = 1};
    uint64_t sum[HAUL_NTIERS], of[HAUL_NTIERS];

    cr_assert_eq(toy_ledger(&c, 6, 1500, sum, "records", of), 0, "%s", haul_last_error());
    c.host_mem = sum[HAUL_TIER_HOST] + 8192;
    return c;
}

/* Train three steps with the n-th transfer failing; 1 when the failure was delivered. */
static int train_failing(const struct toy_config *c, int64_t n, int err)
{
    static struct toy t;
    int rc, again, delivered;

    cr_assert_eq(toy_open(&t, c, 6, 1500), 0, "%s", haul_last_error());
    cr_assert_eq(toy_step(&t, NULL), 0);
    toy_twin_step(&t);
    cr_assert_eq(hl_sys_fail_nth(n, err), 0);
    for (int s = 0; s < 3; s++) {
        if ((rc = toy_step(&t, NULL)) < 0)
            break;
        toy_twin_step(&t);
    }
    if (rc == 0)
        rc = haul_engine_sync(t.engine);
    int64_t bad = rc == 0 ? toy_compare(&t) : 0;
    again = rc < 0 ? toy_step(&t, NULL) : 0;
    delivered = hl_sys_failed();
    hl_sys_fail_nth(0, 0);
    if (rc < 0) {
        cr_assert_eq(rc, -err, "call %lld: %s: %s", (long long)n, haul_strerror(rc),
                     haul_last_error());
        cr_assert_eq(again, rc, "the engine went on after %s", haul_strerror(rc));
        cr_assert(strlen(haul_last_error()) > 10);
    } else {
        cr_assert_neq(bad, INT64_MAX);
        cr_assert(bad == 0 || bad == -1, "call %lld: %lld masters are wrong", (long long)n,
                  (long long)bad);
    }
    toy_close(&t);
    return delivered;
}

static void fail_every_transfer(int err)
{
    char dir[] = "./faults.XXXXXX";
    int64_t before[HL_SYS_NKINDS], n;

    cr_assert_not_null(mkdtemp(dir));
    struct toy_config c = paged(dir);
    train_failing(&c, 1 << 30, err);
    for (int k = 0; k < HL_SYS_NKINDS; k++)
        before[k] = hl_sys_live(k);
    for (n = 1; n < 400 && train_failing(&c, n, err); n += 1 + n / 8)
        nothing_alive(before, n);
    cr_assert_gt(n, 30, "only %lld transfers?", (long long)n);
    cr_assert_eq(rmdir(dir), 0);
}

Test(engine_faults, open_with_paging_unwinds_from_every_failure)
{
    char dir[] = "./faults.XXXXXX";
    struct toy_config c = {.offload = HAUL_OFFLOAD_ALL,
                           .nvme_dir = dir,
                           .slots = 2,
                           .io_method = HAUL_IO_THREADS,
                           .host_mem = 1};
    uint64_t sum[HAUL_NTIERS], of[HAUL_NTIERS];

    cr_assert_not_null(mkdtemp(dir));
    cr_assert_eq(toy_ledger(&c, 2, 4, sum, "records", of), 0, "%s", haul_last_error());
    c.host_mem = sum[HAUL_TIER_HOST] + 8192;
    sweep(c);
    cr_assert_eq(rmdir(dir), 0);
}

Test(engine_faults, a_failing_drive_ends_the_run_with_its_error_or_the_right_bits)
{
    fail_every_transfer(EIO);
}

Test(engine_faults, a_transfer_refused_for_a_moment_is_not_noticed)
{
    char dir[] = "./faults.XXXXXX";
    static struct toy t;

    cr_assert_not_null(mkdtemp(dir));
    struct toy_config c = paged(dir);
    for (int64_t n = 1; n < 60; n += 7) {
        cr_assert_eq(toy_open(&t, &c, 6, 1500), 0, "%s", haul_last_error());
        cr_assert_eq(hl_sys_fail_nth(n, EAGAIN), 0);
        for (int s = 0; s < 3; s++) {
            cr_assert_eq(toy_step(&t, NULL), 0, "call %lld: %s", (long long)n, haul_last_error());
            toy_twin_step(&t);
        }
        cr_assert_eq(haul_engine_sync(t.engine), 0);
        hl_sys_fail_nth(0, 0);
        cr_assert_eq(toy_compare(&t), 0);
        toy_close(&t);
    }
    cr_assert_eq(rmdir(dir), 0);
}
