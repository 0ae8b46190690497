/*
 * wait.h: the only ways in which haul's threads wait for each other.
 *
 * hl_spin guards a few instructions. hl_gate is a counter that sleepers watch: a waker bumps it after
 * changing state; a sleeper reads it, checks its condition, and sleeps only if it has not moved since.
 *
 *     for (;;) {
 *         uint32_t seen = hl_gate_look(&g);
 *         if (condition())
 *             break;
 *         hl_gate_sleep(&g, seen);
 *     }
 *
 * Both start zeroed. A gate must outlive the last hl_gate_wake() on it, which may still look at it
 * after the sleeper has gone: join the wakers first.
 */
#ifndef HL_WAIT_H
#define HL_WAIT_H

#include <stdatomic.h>
#include <stdint.h>

struct hl_spin {
    atomic_int held;
};

void hl_spin_lock(struct hl_spin *s);
void hl_spin_unlock(struct hl_spin *s);

struct hl_gate {
    _Atomic uint32_t count;
    _Atomic uint32_t sleepers;
};

uint32_t hl_gate_look(struct hl_gate *g);
/* Sleep (futex) while count == seen. */
void hl_gate_sleep(struct hl_gate *g, uint32_t seen);
/* The same, but no longer than timeout_ns. */
void hl_gate_sleep_for(struct hl_gate *g, uint32_t seen, uint64_t timeout_ns);
/* Bump and wake all sleepers; no system call when there are none. */
void hl_gate_wake(struct hl_gate *g);

#endif
