/*
 * fake_cuda.h: a libcuda.so.1 for tests, and how tests steer it. Never installed, and never a measurement.
 *
 * What it is: true asynchronous streams (a thread each), events as CUDA has them, device memory in an
 * address space of its own, strict checks of every argument, and the host build of haul's kernels behind
 * cuLaunchKernel. What it is not: fast, complete (only what device_cuda and haul doctor call), or able to
 * say anything about a GPU. The legacy default stream is one more stream: it orders nothing else.
 *
 * The functions below are exported beside the driver's; a test finds them with dlsym().
 */
#ifndef HAUL_TESTS_FAKE_CUDA_H
#define HAUL_TESTS_FAKE_CUDA_H

#include <stdint.h>

struct fake_cuda_config {
    int ndevices;         /* default 2 */
    int major;            /* compute capability; default 9 */
    int init_result;      /* of cuInit; default 0 */
    uint64_t mem_bytes;   /* of a device; default 2 GiB */
    uint64_t pin_bytes;   /* that can be registered altogether; default no limit */
    uint64_t pin_at_once; /* in one registration; default no limit */
    uint64_t seed;        /* of delays; 0 (default): none */
    unsigned delay_us;    /* longest delay; default 400 */
};

/* What is in force from now on; NULL: the defaults. Delays: of streams opened from now on. */
typedef void fake_cuda_configure_fn(const struct fake_cuda_config *config);

/* The n-th call of the driver from now (1 = the next; those for error texts not counted) gives result: a
 * call that makes or queues something then does nothing, one that releases or waits does so all the same.
 * 0 disarms. */
typedef void fake_cuda_fail_nth_fn(int64_t n, int result);
/* Calls since the last arm, and the one that the failure was delivered to; NULL: to none. */
typedef int64_t fake_cuda_calls_fn(void);
typedef const char *fake_cuda_failed_fn(void);
/* The n-th queued operation that runs from now on loses the context with result. */
typedef void fake_cuda_lose_nth_fn(int64_t n, int result);
/* After a loss: as a new process would find the driver. Everything must have been released. */
typedef void fake_cuda_revive_fn(void);

/* Streams, events, allocations, registrations, modules and retained contexts that are alive. */
typedef int64_t fake_cuda_live_fn(void);
/* Wrong uses found so far; each was told on stderr. */
typedef int64_t fake_cuda_violations_fn(void);

/* At unload, what is alive or was wrong is told on stderr and the process ends with code 99. */

#endif
