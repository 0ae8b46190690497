/* Clock, spin lock and gate. */
#include <pthread.h>
#include <signal.h>

#include "clock.h"
#include "suite.h"
#include "sys.h"
#include "wait.h"

#define MS 1000000u

Test(base_wait, the_clock_never_goes_back)
{
    uint64_t last = hl_clock_ns();

    for (int i = 0; i < 10000; i++) {
        uint64_t now = hl_clock_ns();

        cr_assert_geq(now, last);
        last = now;
    }
}

Test(base_wait, a_sleep_ends_at_or_after_its_deadline)
{
    uint64_t start = hl_clock_ns();

    hl_clock_sleep_until(start + 3 * MS);
    cr_assert_geq(hl_clock_ns(), start + 3 * MS);
    hl_clock_sleep_until(start); /* past: at once */
    hl_clock_sleep_until(0);
}

struct counter {
    struct hl_spin lock;
    long n; /* not atomic: the lock is what keeps it right */
};

static void *add_many(void *arg)
{
    struct counter *c = arg;

    for (int i = 0; i < 20000; i++) {
        hl_spin_lock(&c->lock);
        c->n++;
        hl_spin_unlock(&c->lock);
    }
    return NULL;
}

Test(base_wait, a_spin_lock_lets_one_in_at_a_time)
{
    struct counter c = {0};
    pthread_t threads[4];

    for (int i = 0; i < 4; i++)
        cr_assert_eq(hl_sys_thread("adder", add_many, &c, &threads[i]), 0);
    for (int i = 0; i < 4; i++)
        hl_sys_join(threads[i]);
    cr_assert_eq(c.n, 80000);
}

/* Two threads hand a number back and forth; a lost wake-up would hang. */
struct ping {
    struct hl_gate gate;
    _Atomic int turn;
    int rounds;
};

static void wait_turn(struct ping *p, int mine)
{
    for (;;) {
        uint32_t seen = hl_gate_look(&p->gate);

        if (atomic_load(&p->turn) == mine)
            return;
        hl_gate_sleep(&p->gate, seen);
    }
}

static void *pong(void *arg)
{
    struct ping *p = arg;

    for (int i = 0; i < p->rounds; i++) {
        wait_turn(p, 1);
        atomic_store(&p->turn, 0);
        hl_gate_wake(&p->gate);
    }
    return NULL;
}

Test(base_wait, a_gate_loses_no_wake_up)
{
    struct ping p = {.rounds = 5000};
    pthread_t thread;

    cr_assert_eq(hl_sys_thread("pong", pong, &p, &thread), 0);
    for (int i = 0; i < p.rounds; i++) {
        atomic_store(&p.turn, 1);
        hl_gate_wake(&p.gate);
        wait_turn(&p, 0);
    }
    hl_sys_join(thread);
    cr_assert_eq(atomic_load(&p.gate.sleepers), 0);
}

struct crowd {
    struct hl_gate gate;
    _Atomic int open, through;
};

static void *walk_through(void *arg)
{
    struct crowd *c = arg;

    for (;;) {
        uint32_t seen = hl_gate_look(&c->gate);

        if (atomic_load(&c->open))
            break;
        hl_gate_sleep(&c->gate, seen);
    }
    atomic_fetch_add(&c->through, 1);
    return NULL;
}

Test(base_wait, one_wake_lets_all_sleepers_through)
{
    struct crowd c = {0};
    pthread_t threads[8];

    for (int i = 0; i < 8; i++)
        cr_assert_eq(hl_sys_thread("walker", walk_through, &c, &threads[i]), 0);
    hl_clock_sleep_until(hl_clock_ns() + 5 * MS);
    cr_assert_eq(atomic_load(&c.through), 0);
    atomic_store(&c.open, 1);
    hl_gate_wake(&c.gate);
    for (int i = 0; i < 8; i++)
        hl_sys_join(threads[i]);
    cr_assert_eq(atomic_load(&c.through), 8);
}

Test(base_wait, a_timed_sleep_gives_up_in_time_and_never_early)
{
    struct hl_gate gate = {0};
    uint64_t start = hl_clock_ns();

    hl_gate_sleep_for(&gate, hl_gate_look(&gate), 5 * MS);
    cr_assert_geq(hl_clock_ns() - start, 5 * MS);
    hl_gate_sleep_for(&gate, hl_gate_look(&gate) + 1, UINT64_MAX); /* moved already: at once */
    hl_gate_sleep_for(&gate, hl_gate_look(&gate), 0);
    cr_assert_eq(atomic_load(&gate.sleepers), 0);
}

static void *report_mask(void *arg)
{
    sigset_t set;

    pthread_sigmask(SIG_SETMASK, NULL, &set);
    *(int *)arg =
        sigismember(&set, SIGINT) && sigismember(&set, SIGTERM) && sigismember(&set, SIGALRM);
    return NULL;
}

Test(base_wait, threads_block_signals_and_leave_the_makers_mask_alone)
{
    sigset_t before, after;
    pthread_t thread;
    int blocked = 0;

    pthread_sigmask(SIG_SETMASK, NULL, &before);
    cr_assert_eq(hl_sys_thread("masked", report_mask, &blocked, &thread), 0);
    hl_sys_join(thread);
    pthread_sigmask(SIG_SETMASK, NULL, &after);
    cr_assert(blocked);
    cr_assert_eq(sigismember(&before, SIGINT), sigismember(&after, SIGINT));
}
