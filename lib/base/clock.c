/* clock.c: CLOCK_MONOTONIC, which can neither fail nor go back. */
#include "clock.h"

#include <errno.h>
#include <time.h>

#define NS_PER_S 1000000000u

uint64_t hl_clock_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * NS_PER_S + (uint64_t)ts.tv_nsec;
}

void hl_clock_sleep_until(uint64_t deadline_ns)
{
    struct timespec ts = {.tv_sec = (time_t)(deadline_ns / NS_PER_S),
                          .tv_nsec = (long)(deadline_ns % NS_PER_S)};

    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &ts, NULL) == EINTR)
        ;
}
