/*
 * haul/error.h: result codes, error texts and the log.
 *
 * Every function of haul that can fail returns int: 0 (or a count) when it did
 * what was asked, a negative code when it did not. Codes from -1 to -4095 are
 * -errno as the kernel gave it; haul's own begin at -10001. Nothing in the
 * library prints, exits or aborts.
 */
#ifndef HAUL_ERROR_H
#define HAUL_ERROR_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define HAUL_API          __attribute__((visibility("default")))
#define HAUL_MUST_USE     __attribute__((warn_unused_result))
#define HAUL_PRINTF(f, a) __attribute__((format(printf, f, a)))
#else
#define HAUL_API
#define HAUL_MUST_USE
#define HAUL_PRINTF(f, a)
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* name, number, text for haul_strerror(). Append only: numbers are ABI. */
#define HAUL_ERRORS(X)                                                                             \
    X(HAUL_E_SHORT_IO, -10001, "short read or write")                                              \
    X(HAUL_E_CHECKSUM, -10002, "checksum does not match the data")                                 \
    X(HAUL_E_DEVICE, -10003, "device error")                                                       \
    X(HAUL_E_NCCL, -10004, "NCCL error")                                                           \
    X(HAUL_E_MPI, -10005, "MPI error")                                                             \
    X(HAUL_E_STATE, -10006, "call not allowed in this state")                                      \
    X(HAUL_E_PLAN, -10007, "the plan does not fit the budgets")                                    \
    X(HAUL_E_CONFIG, -10008, "invalid configuration")                                              \
    X(HAUL_E_ABI, -10009, "struct_size unknown to this version of the library")                    \
    X(HAUL_E_FORMAT, -10010, "a file is not what its format asks for")

enum haul_error {
#define HAUL_ERROR_ENUM(name, number, text) name = number,
    HAUL_ERRORS(HAUL_ERROR_ENUM)
#undef HAUL_ERROR_ENUM
};

/**
 * Text of a result code.
 *
 * @param rc  [in] what a haul function returned
 *
 * Ownership  static or thread-local storage: valid until the next call by this thread
 * Threads    any
 * Blocks     no
 * Errors     never fails; an unknown code gives "unknown error N"
 */
HAUL_API
const char *haul_strerror(int rc);

/**
 * What failed last in this thread, on what, and what to do about it.
 *
 * Written by the function that detected the failure; kept until the next
 * failure in the same thread. "" when nothing has failed yet.
 *
 * Ownership  thread-local storage, valid until the next haul call by this thread
 * Threads    any; each thread sees its own
 * Blocks     no
 */
HAUL_API
const char *haul_last_error(void);

/**
 * For authors of what haul is handed (a communicator of their own): say what failed, as haul does.
 *
 * @param rc   [in] returned as it is
 * @param fmt  [in] as for printf: what failed, on what, what to do
 *
 * Threads    any; sets the calling thread's haul_last_error()
 * Blocks     no
 */
HAUL_API
int haul_error_set(int rc, const char *fmt, ...) HAUL_PRINTF(2, 3);

enum haul_log_level { HAUL_LOG_ERROR = 0, HAUL_LOG_WARN = 1, HAUL_LOG_INFO = 2, HAUL_LOG_DEBUG = 3 };

typedef void (*haul_log_fn)(void *user, enum haul_log_level level, const char *text);

/**
 * Choose where log lines go. Without this call warnings go to stderr and
 * nothing below warning is shown.
 *
 * @param fn     [in] called with one line, no newline; NULL restores the default
 * @param user   [in] handed to fn
 * @param level  [in] the least important level that is still delivered
 *
 * Threads    any; fn may be called from several threads at once
 * Blocks     no
 */
HAUL_API
void haul_log_set(haul_log_fn fn, void *user, enum haul_log_level level);

/**
 * Version of the library that is running, "MAJOR.MINOR.PATCH".
 *
 * Ownership  static
 * Threads    any
 */
HAUL_API
const char *haul_version(void);

#ifdef __cplusplus
}
#endif
#endif
