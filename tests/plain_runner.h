/* plain_runner.h: Criterion's names on a plain main. Included by suite.h only. */
#ifndef HAUL_TESTS_PLAIN_RUNNER_H
#define HAUL_TESTS_PLAIN_RUNNER_H

#include <math.h>
#include <setjmp.h>

struct plain_case {
    const char *suite, *name;
    void (*fn)(void);
    struct plain_case *next;
};

extern struct plain_case *plain_cases;
void plain_fail(const char *file, int line, const char *expr, const char *fmt, ...)
    __attribute__((noreturn, format(printf, 4, 5)));
void plain_skip(const char *fmt, ...) __attribute__((noreturn, format(printf, 1, 2)));

#define Test(s, n, ...)                                                                            \
    static void s##_##n##_body(void);                                                              \
    static struct plain_case s##_##n##_case = {#s, #n, s##_##n##_body, NULL};                      \
    __attribute__((constructor)) static void s##_##n##_register(void)                              \
    {                                                                                              \
        s##_##n##_case.next = plain_cases;                                                         \
        plain_cases = &s##_##n##_case;                                                             \
    }                                                                                              \
    static void s##_##n##_body(void)

#define PLAIN_CHECK(cond, text, ...)                                                               \
    do {                                                                                           \
        if (!(cond))                                                                               \
            plain_fail(__FILE__, __LINE__, text, " " __VA_ARGS__);                                 \
    } while (0)

#define cr_assert(c, ...)           PLAIN_CHECK(c, #c, __VA_ARGS__)
#define cr_assert_not(c, ...)       PLAIN_CHECK(!(c), "!" #c, __VA_ARGS__)
#define cr_assert_eq(a, b, ...)     PLAIN_CHECK((a) == (b), #a " == " #b, __VA_ARGS__)
#define cr_assert_neq(a, b, ...)    PLAIN_CHECK((a) != (b), #a " != " #b, __VA_ARGS__)
#define cr_assert_lt(a, b, ...)     PLAIN_CHECK((a) < (b), #a " < " #b, __VA_ARGS__)
#define cr_assert_leq(a, b, ...)    PLAIN_CHECK((a) <= (b), #a " <= " #b, __VA_ARGS__)
#define cr_assert_gt(a, b, ...)     PLAIN_CHECK((a) > (b), #a " > " #b, __VA_ARGS__)
#define cr_assert_geq(a, b, ...)    PLAIN_CHECK((a) >= (b), #a " >= " #b, __VA_ARGS__)
#define cr_assert_null(a, ...)      PLAIN_CHECK((a) == NULL, #a " is NULL", __VA_ARGS__)
#define cr_assert_not_null(a, ...)  PLAIN_CHECK((a) != NULL, #a " is not NULL", __VA_ARGS__)
#define cr_assert_str_eq(a, b, ...) PLAIN_CHECK(strcmp(a, b) == 0, #a " equals " #b, __VA_ARGS__)
#define cr_assert_float_eq(a, b, eps, ...)                                                         \
    PLAIN_CHECK(fabs((double)(a) - (double)(b)) <= (eps), #a " ~ " #b, __VA_ARGS__)
#define cr_log_info(...) (fprintf(stderr, __VA_ARGS__), fputc('\n', stderr))
#define SKIP(...)        plain_skip(__VA_ARGS__)

#endif
