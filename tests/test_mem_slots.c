/* Slots: taken once, given back, never handed out twice. */
#include <errno.h>
#include <stdatomic.h>

#include "fail.h"
#include "slots.h"
#include "suite.h"
#include "sys.h"

Test(mem_slots, each_slot_is_handed_out_once_lowest_first)
{
    static const uint32_t counts[] = {1, 2, 63, 64, 65, 128, 200};
    static char memory[200 * 100];

    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        struct hl_slots *s = NULL;
        uint32_t n = counts[c];

        cr_assert_eq(hl_slots_open(memory, 100, n, &s), 0);
        cr_assert_eq(hl_slots_free(s), n);
        for (uint32_t i = 0; i < n; i++) {
            char *p = hl_slots_take(s);

            cr_assert(p == memory + 100 * i, "slot %u of %u", i, n);
            cr_assert_eq(hl_slots_index(s, p), i);
            cr_assert_eq(hl_slots_free(s), n - i - 1);
        }
        cr_assert_null(hl_slots_take(s));
        hl_slots_give(s, memory + 100 * (n - 1));
        cr_assert_eq(hl_slots_free(s), 1);
        cr_assert(hl_slots_take(s) == memory + 100 * (n - 1));
        cr_assert_null(hl_slots_take(s));
        hl_slots_close(s);
    }
}

Test(mem_slots, the_lowest_slot_given_back_is_taken_next)
{
    static char memory[70 * 64];
    struct hl_slots *s = NULL;

    cr_assert_eq(hl_slots_open(memory, 64, 70, &s), 0);
    while (hl_slots_take(s))
        ;
    hl_slots_give(s, memory + 64 * 68);
    hl_slots_give(s, memory + 64 * 5);
    cr_assert(hl_slots_take(s) == memory + 64 * 5);
    cr_assert(hl_slots_take(s) == memory + 64 * 68);
    hl_slots_close(s);
}

Test(mem_slots, open_refuses_what_is_no_set_of_slots)
{
    char memory[8];
    struct hl_slots *s = NULL;

    cr_assert_eq(hl_slots_open(NULL, 8, 1, &s), -EINVAL);
    cr_assert_eq(hl_slots_open(memory, 0, 1, &s), -EINVAL);
    cr_assert_eq(hl_slots_open(memory, 8, 0, &s), -EINVAL);
    cr_assert_eq(hl_slots_open(memory, UINT64_MAX / 2, 3, &s), -EINVAL);
    cr_assert_null(s);
    hl_slots_close(NULL);
}

Test(mem_slots, open_unwinds_from_every_failure_and_nothing_allocates_later)
{
    static char memory[64];
    struct hl_slots *s = NULL;
    int64_t mem = hl_sys_live(HL_SYS_MEM);

    hl_sys_fail_nth(1, ENOMEM);
    cr_assert_eq(hl_slots_open(memory, 8, 8, &s), -ENOMEM);
    cr_assert_null(s);
    cr_assert_eq(hl_sys_live(HL_SYS_MEM), mem);
    cr_assert_eq(hl_slots_open(memory, 8, 8, &s), 0);
    hl_sys_fail_nth(0, 0);
    hl_slots_give(s, hl_slots_take(s));
    cr_assert_eq(hl_sys_calls(), 0);
    hl_slots_close(s);
    cr_assert_eq(hl_sys_live(HL_SYS_MEM), mem);
}

#define NSLOTS 70

struct crew {
    struct hl_slots *slots;
    int owners[NSLOTS]; /* not atomic: only a slot's holder touches its entry */
    _Atomic int doubles;
};

static void *take_and_give(void *arg)
{
    struct crew *c = arg;

    for (int i = 0; i < 20000; i++) {
        void *p = hl_slots_take(c->slots);
        uint32_t at;

        if (!p)
            continue;
        at = hl_slots_index(c->slots, p);
        if (c->owners[at]++)
            atomic_fetch_add(&c->doubles, 1);
        c->owners[at]--;
        hl_slots_give(c->slots, p);
    }
    return NULL;
}

Test(mem_slots, no_slot_has_two_holders)
{
    static char memory[NSLOTS];
    static struct crew c;
    pthread_t threads[4];

    cr_assert_eq(hl_slots_open(memory, 1, NSLOTS, &c.slots), 0);
    while (hl_slots_free(c.slots) > 2) /* leave two, over which four threads contend */
        hl_slots_take(c.slots);
    for (int i = 0; i < 4; i++)
        cr_assert_eq(hl_sys_thread("crew", take_and_give, &c, &threads[i]), 0);
    for (int i = 0; i < 4; i++)
        hl_sys_join(threads[i]);
    cr_assert_eq(atomic_load(&c.doubles), 0);
    cr_assert_eq(hl_slots_free(c.slots), 2);
    hl_slots_close(c.slots);
}
