/* wait.c: a spin lock for a few instructions, and the gate, a futex with a sleeper count. */
#include "wait.h"

#include <linux/futex.h>
#include <sched.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"

#define NS_PER_S 1000000000u
/* Past this many looks the holder has most likely lost its core. */
#define SPINS_BEFORE_YIELD 64

static inline void pause_cpu(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

void hl_spin_lock(struct hl_spin *s)
{
    int looks = 0;

    while (atomic_exchange_explicit(&s->held, 1, memory_order_acquire)) {
        while (atomic_load_explicit(&s->held, memory_order_relaxed)) {
            if (++looks % SPINS_BEFORE_YIELD)
                pause_cpu();
            else
                sched_yield();
        }
    }
}

void hl_spin_unlock(struct hl_spin *s)
{
    atomic_store_explicit(&s->held, 0, memory_order_release);
}

uint32_t hl_gate_look(struct hl_gate *g)
{
    return atomic_load(&g->count);
}

/* deadline NULL: no limit. Returns when count moved or the deadline passed. */
static void sleep_on(struct hl_gate *g, uint32_t seen, const struct timespec *deadline,
                     uint64_t deadline_ns)
{
    /* Sequentially consistent with wake: either it sees this sleeper, or the kernel, which compares
     * count once more, sees its bump. */
    atomic_fetch_add(&g->sleepers, 1);
    while (atomic_load(&g->count) == seen) {
        if (deadline && hl_clock_ns() >= deadline_ns)
            break;
        syscall(SYS_futex, &g->count, FUTEX_WAIT_BITSET_PRIVATE, seen, deadline, NULL,
                FUTEX_BITSET_MATCH_ANY);
    }
    atomic_fetch_sub(&g->sleepers, 1);
}

void hl_gate_sleep(struct hl_gate *g, uint32_t seen)
{
    sleep_on(g, seen, NULL, 0);
}

void hl_gate_sleep_for(struct hl_gate *g, uint32_t seen, uint64_t timeout_ns)
{
    uint64_t now_ns = hl_clock_ns(), deadline_ns = now_ns + timeout_ns;
    struct timespec ts;

    if (deadline_ns < now_ns) {
        sleep_on(g, seen, NULL, 0);
        return;
    }
    ts.tv_sec = (time_t)(deadline_ns / NS_PER_S);
    ts.tv_nsec = (long)(deadline_ns % NS_PER_S);
    sleep_on(g, seen, &ts, deadline_ns);
}

void hl_gate_wake(struct hl_gate *g)
{
    atomic_fetch_add(&g->count, 1);
    if (atomic_load(&g->sleepers))
        syscall(SYS_futex, &g->count, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}
