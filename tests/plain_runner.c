/* Runs every registered case in one process; argv: names (or parts of names) to run. PLAIN_SKIP in the
 * environment: parts of names, apart by white space, to skip because a tool cannot run them. TAP on stdout. */
#include <stdarg.h>

#include "suite.h"

struct plain_case *plain_cases;
static jmp_buf plain_out;

static void say(const char *fmt, va_list ap)
{
    vprintf(fmt, ap);
    putchar('\n');
}

void plain_fail(const char *file, int line, const char *expr, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    printf("# %s:%d: failed: %s:", file, line, expr);
    say(fmt, ap);
    va_end(ap);
    longjmp(plain_out, 1);
}

void plain_skip(const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    printf("# skipped: ");
    say(fmt, ap);
    va_end(ap);
    longjmp(plain_out, 2);
}

static int skipped(const struct plain_case *c)
{
    char full[256], parts[1024], *rest = parts, *part;

    snprintf(full, sizeof full, "%s.%s", c->suite, c->name);
    snprintf(parts, sizeof parts, "%s", getenv("PLAIN_SKIP") ? getenv("PLAIN_SKIP") : "");
    while ((part = strsep(&rest, " \n")))
        if (*part && strstr(full, part))
            return 1;
    return 0;
}

static int wanted(const struct plain_case *c, int argc, char **argv)
{
    char full[256];

    if (argc < 2)
        return 1;
    snprintf(full, sizeof full, "%s.%s", c->suite, c->name);
    for (int i = 1; i < argc; i++)
        if (strstr(full, argv[i]))
            return 1;
    return 0;
}

int main(int argc, char **argv)
{
    static struct plain_case *reversed;
    static int n, failed;

    while (plain_cases) {
        struct plain_case *c = plain_cases;
        plain_cases = c->next;
        c->next = reversed;
        reversed = c;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (; reversed; reversed = reversed->next) {
        if (!wanted(reversed, argc, argv))
            continue;
        n++;
        int rc = setjmp(plain_out);
        if (rc == 0 && skipped(reversed))
            plain_skip("PLAIN_SKIP names it");
        if (rc == 0)
            reversed->fn();
        failed += rc == 1;
        printf("%s %d - %s::%s%s\n", rc == 1 ? "not ok" : "ok", n, reversed->suite, reversed->name,
               rc == 2 ? " # SKIP" : "");
    }
    printf("1..%d\n", n);
    return failed != 0;
}
