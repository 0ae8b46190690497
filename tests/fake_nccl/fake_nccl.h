/*
 * fake_nccl.h: a libnccl.so.2 for tests, and how tests steer it. Never installed, and never a measurement.
 *
 * What it is: the functions that haul calls, between processes of one machine, as host functions of the
 * fake driver's streams; non-blocking communicators that are in progress until they are asked again; checks
 * of every argument. A rank that is missed is waited for until the communicator is aborted, as by NCCL.
 *
 * The functions below are exported beside NCCL's; a test finds them with dlsym().
 */
#ifndef HAUL_TESTS_FAKE_NCCL_H
#define HAUL_TESTS_FAKE_NCCL_H

#include <stdint.h>

/* What ncclCommGetAsyncError answers from now on, on every communicator of this process; 0: the truth. */
typedef void fake_nccl_break_fn(int result);
/* What ncclGetVersion answers; default 22800. */
typedef void fake_nccl_version_fn(int version);
/* The n-th call from now (1 = the next) that can fail gives result and does nothing. 0 disarms. */
typedef void fake_nccl_fail_nth_fn(int64_t n, int result);
/* Whether the failure was delivered. */
typedef int fake_nccl_failed_fn(void);

/* Communicators that are alive, and wrong uses found so far; each was told on stderr. */
typedef int64_t fake_nccl_live_fn(void);
typedef int64_t fake_nccl_violations_fn(void);

#endif
