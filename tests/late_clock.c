/*
 * late_clock.c: under LD_PRELOAD, half a second passes between any two looks that the program itself takes at the
 * monotonic clock, so that what shows only in long work shows in short. libhaul's and libc's looks are as ever, and
 * so are their waits.
 */
#include <dlfcn.h>
#include <stdatomic.h>
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

__attribute__((visibility("default"))) int clock_gettime(clockid_t clock, struct timespec *t)
{
    static _Atomic long nlooks;
    Dl_info own, caller;

    if (syscall(SYS_clock_gettime, clock, t) < 0)
        return -1;
    if (clock == CLOCK_MONOTONIC && dladdr((void *)getauxval(AT_ENTRY), &own) &&
        dladdr(__builtin_return_address(0), &caller) && own.dli_fbase == caller.dli_fbase) {
        long n = atomic_fetch_add(&nlooks, 1);
        t->tv_nsec += n % 2 * 500000000;
        t->tv_sec += n / 2 + t->tv_nsec / 1000000000;
        t->tv_nsec %= 1000000000;
    }
    return 0;
}
