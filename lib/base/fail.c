/* fail.c: result codes as text, this thread's last error, and the log sink. */
#include "fail.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "wait.h"

static _Thread_local char last_error[HL_ERROR_TEXT_BYTES];
static _Thread_local char unknown_text[32];

/* The library's only mutable state that is not behind a handle (sys.c's live counts aside). */
static struct {
    struct hl_spin lock; /* fn and user change together */
    atomic_int level;
    haul_log_fn fn;
    void *user;
} sink = {.level = HAUL_LOG_WARN};

const char *haul_strerror(int rc)
{
    const char *text = NULL;

    switch (rc) {
    case 0:
        return "success";
#define ERROR_TEXT(name, number, words)                                                            \
    case number:                                                                                   \
        return words;
        HAUL_ERRORS(ERROR_TEXT)
#undef ERROR_TEXT
    default:
        break;
    }
    if (rc < 0 && rc >= -4095)
        text = strerrordesc_np(-rc);
    if (text)
        return text;
    snprintf(unknown_text, sizeof unknown_text, "unknown error %d", rc);
    return unknown_text;
}

const char *haul_last_error(void)
{
    return last_error;
}

const char *haul_version(void)
{
    return HAUL_VERSION;
}

int hl_fail(int rc, const char *fmt, ...)
{
    /* Formatted apart, since an argument may be haul_last_error() itself. */
    char text[HL_ERROR_TEXT_BYTES];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    memcpy(last_error, text, strlen(text) + 1);
    return rc;
}

int haul_error_set(int rc, const char *fmt, ...)
{
    char text[HL_ERROR_TEXT_BYTES];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return hl_fail_text(rc, text);
}

int hl_fail_text(int rc, const char *text)
{
    size_t n = strnlen(text, sizeof last_error - 1);

    memmove(last_error, text, n);
    last_error[n] = '\0';
    return rc;
}

void haul_log_set(haul_log_fn fn, void *user, enum haul_log_level level)
{
    hl_spin_lock(&sink.lock);
    sink.fn = fn;
    sink.user = user;
    atomic_store(&sink.level, (int)level);
    hl_spin_unlock(&sink.lock);
}

static void to_stderr(enum haul_log_level level, const char *text)
{
    static const char *const names[] = {"error", "warning", "info", "debug"};

    fprintf(stderr, "haul: %s: %s\n", names[level], text);
}

int hl_need(const char *call, const char *name, const void *arg)
{
    return arg ? 0 : hl_fail(-EINVAL, "%s: %s is NULL", call, name);
}

void hl_log(enum haul_log_level level, const char *fmt, ...)
{
    char text[HL_ERROR_TEXT_BYTES];
    haul_log_fn fn;
    void *user;
    va_list ap;

    if ((int)level > atomic_load_explicit(&sink.level, memory_order_relaxed))
        return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    for (char *p = strchr(text, '\n'); p; p = strchr(p, '\n'))
        *p = ' '; /* the sink is promised one line */

    hl_spin_lock(&sink.lock);
    fn = sink.fn;
    user = sink.user;
    hl_spin_unlock(&sink.lock); /* so that fn may itself call haul_log_set() */
    if (fn)
        fn(user, level, text);
    else
        to_stderr(level, text);
}
