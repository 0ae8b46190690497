/* What fails while an engine is opened, described and built leaves nothing behind. */
#include <errno.h>

#include "suite.h"
#include "sys.h"
#include "toy_model.h"

static void nothing_alive(const int64_t before[HL_SYS_NKINDS], int64_t n)
{
    for (int k = 0; k < HL_SYS_NKINDS; k++)
        cr_assert_eq(hl_sys_live(k), before[k], "kind %d: %lld alive, %lld before call %lld failed",
                     k, (long long)hl_sys_live(k), (long long)before[k], (long long)n);
}

static void sweep(enum haul_offload offload)
{
    static struct toy t;
    struct toy_config c = {.offload = offload, .passes = 2, .tied = 1};
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
    sweep(HAUL_OFFLOAD_NONE);
}

Test(engine_faults, open_with_offload_optimizer_unwinds_from_every_failure)
{
    sweep(HAUL_OFFLOAD_OPTIMIZER);
}

Test(engine_faults, open_with_offload_all_unwinds_from_every_failure)
{
    sweep(HAUL_OFFLOAD_ALL);
}
