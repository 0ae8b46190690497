#include "schedule.h"
#include "suite.h"

static const uint32_t tied[] = {0, 1, 2, 0};
static const struct hl_order order = {tied, 4, 2, 0};

Test(schedule, a_step_is_forward_then_backward_per_pass)
{
    static const uint32_t want[] = {0, 1, 2, 0, 0, 2, 1, 0, 0, 1, 2, 0, 0, 2, 1, 0};

    cr_assert_eq(hl_order_len(&order), 16);
    for (unsigned k = 0; k < 16; k++)
        cr_assert_eq(hl_order_unit(&order, k), want[k], "position %u", k);
}

Test(schedule, next_use_looks_no_further_than_the_step)
{
    cr_assert_eq(hl_order_next_use(&order, 1, 0), 1);
    cr_assert_eq(hl_order_next_use(&order, 1, 2), 6);
    cr_assert_eq(hl_order_next_use(&order, 1, 15), HL_NEVER);
    cr_assert_eq(hl_order_next_use(&order, 7, 0), HL_NEVER);
}

Test(schedule, evaluation_is_forward_alone)
{
    struct hl_order eval = {tied, 4, 2, 1};

    cr_assert_eq(hl_order_len(&eval), 4);
    cr_assert_eq(hl_order_next_use(&eval, 2, 3), HL_NEVER);
}

Test(schedule, following_a_trainer_off_the_order_finds_the_nearest_visit)
{
    int missed;

    cr_assert_eq(hl_order_follow(&order, 0, 0, &missed), 1);
    cr_assert_eq(missed, 0);
    cr_assert_eq(hl_order_follow(&order, 2, 1, &missed), 3, "a skipped unit");
    cr_assert_eq(missed, 1);
    cr_assert_eq(hl_order_follow(&order, 1, 2, &missed), 2, "a repeated unit");
    cr_assert_eq(missed, 1);
    cr_assert_eq(hl_order_follow(&order, 9, 5, &missed), 5, "an unknown unit");
    cr_assert_eq(missed, 1);
}

Test(schedule, updates_run_by_first_visit_and_then_the_unvisited)
{
    static const uint32_t visits[] = {3, 1, 3};
    struct hl_order o = {visits, 3, 1, 0};
    uint32_t out[5];
    static const uint32_t want[] = {3, 1, 0, 2, 4};

    hl_order_updates(&o, 5, out);
    cr_assert_eq(memcmp(out, want, sizeof want), 0);
}

Test(schedule, the_frame_given_up_is_the_one_needed_last)
{
    static const uint32_t visits[] = {0, 1, 2, 3};
    struct hl_order o = {visits, 4, 1, 0};
    struct hl_frame full[] = {{0, 0, 0}, {1, 0, 0}}, holding[] = {{0, 1, 0}, {1, 0, 0}},
                    empty[] = {{1, 1, 0}, {-1, 0, 0}};

    /* at position 2, for unit 2: unit 1 is needed at 6, unit 0 at 7 */
    cr_assert_eq(hl_order_victim(&o, 2, 2, full, 2), 0);
    cr_assert_eq(hl_order_victim(&o, 2, 2, holding, 2), 1, "what is held stays");
    cr_assert_eq(hl_order_victim(&o, 2, 2, empty, 2), 1, "an empty frame first");
    /* at position 0, for unit 2 at position 2: unit 1 comes sooner, unit 0 now */
    cr_assert_eq(hl_order_victim(&o, 0, 2, full, 2), -1,
                 "nothing is thrown out for what comes later");
    struct hl_frame pinned[] = {{0, 1, 0}, {1, 1, 0}};
    cr_assert_eq(hl_order_victim(&o, 2, 2, pinned, 2), -1);
}

/* Units that the step does not visit again: the one whose compute ends first, wherever its frame stands. */
Test(schedule, of_frames_not_needed_again_the_one_given_back_first)
{
    static const uint32_t visits[] = {0, 1, 2, 3};
    struct hl_order o = {visits, 4, 1, 0};
    /* backward: unit 3 was given back at position 5, unit 2 at 6; unit 1 is wanted */
    struct hl_frame early[] = {{3, 0, 5}, {2, 0, 6}}, late[] = {{2, 0, 6}, {3, 0, 5}};

    cr_assert_eq(hl_order_victim(&o, 6, 6, early, 2), 0);
    cr_assert_eq(hl_order_victim(&o, 6, 6, late, 2), 1);
    cr_assert_eq(hl_order_victim(&o, 6, 7, early, 2), 0, "and ahead of time");
    cr_assert_eq(hl_order_victim(&o, 6, 7, late, 2), 1, "and ahead of time");
}
