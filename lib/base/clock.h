/* clock.h: one monotonic time line for everything. */
#ifndef HL_CLOCK_H
#define HL_CLOCK_H

#include <stdint.h>

/* CLOCK_MONOTONIC in nanoseconds. */
uint64_t hl_clock_ns(void);

/* Sleep until hl_clock_ns() >= deadline_ns. */
void hl_clock_sleep_until(uint64_t deadline_ns);

#endif
