/*
 * suite.h: the assertions that every suite uses.
 *
 * Two runners: Criterion (each case in a process of its own), and with HAUL_PLAIN_RUNNER a plain main
 * that runs the cases one after the other in one process, for the thread sanitizer, under which
 * Criterion 2.4.1 aborts. Suites use only what both provide:
 *
 *   Test(suite, name) { ... }
 *   cr_assert(cond, "format", ...)   and _eq _neq _lt _leq _gt _geq _null _not_null _str_eq _float_eq
 *   SKIP("what is missing: %s", ...) ends the case as skipped, by name
 */
#ifndef HAUL_TESTS_SUITE_H
#define HAUL_TESTS_SUITE_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What these tools replace cannot be tested under them: skip it, by name. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define UNDER_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define UNDER_SANITIZER 1
#endif
#endif
#ifndef UNDER_SANITIZER
#define UNDER_SANITIZER 0
#endif

/* The one that looks at threads is many times as slow. */
#if defined(__SANITIZE_THREAD__)
#define UNDER_THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define UNDER_THREAD_SANITIZER 1
#endif
#endif
#ifndef UNDER_THREAD_SANITIZER
#define UNDER_THREAD_SANITIZER 0
#endif

static inline int under_valgrind(void)
{
    const char *preload = getenv("LD_PRELOAD");

    return preload && strstr(preload, "vgpreload") != NULL;
}

#ifdef HAUL_PLAIN_RUNNER
#include "plain_runner.h"
#else
#include <criterion/criterion.h>
#define SKIP(...)                                                                                  \
    do {                                                                                           \
        cr_skip_test(__VA_ARGS__);                                                                 \
    } while (0)
#endif

#endif
