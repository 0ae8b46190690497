/* fail.h: how the library reports. The function that detects a failure calls hl_fail once; callers
 * above it only pass the code on. */
#ifndef HL_FAIL_H
#define HL_FAIL_H

#include <errno.h>
#include "haul/error.h"

/* Store the text as this thread's haul_last_error() and return rc. */
int hl_fail(int rc, const char *fmt, ...) HAUL_PRINTF(2, 3);

/* Store an already formatted text (taken from another thread's failure) and return rc. */
int hl_fail_text(int rc, const char *text);

/* An argument of a public call: 0, or -EINVAL with a text that names the call and the argument that is NULL. */
int hl_need(const char *call, const char *name, const void *arg);

/* Log one line; filtered by level before formatting. */
void hl_log(enum haul_log_level level, const char *fmt, ...) HAUL_PRINTF(2, 3);

/* Size of the stored text; longer ones are cut. A ledger fits. */
#define HL_ERROR_TEXT_BYTES 4096

#endif
