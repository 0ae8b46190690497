/* json_text.c: parsing with bounds. */
#include "json_text.h"

#include <string.h>
#include <sys/stat.h>

#include "fail.h"
#include "sys.h"

const char *hl_json_shown(const char *text, char *buf, size_t len)
{
    size_t n = 0;

    for (; text[n] && n + 1 < len; n++)
        buf[n] = (unsigned char)text[n] < 0x20 || text[n] == 0x7f ? '?' : text[n];
    buf[n] = '\0';
    return buf;
}

/* The most brackets open at once, strings left out. Of text that is no JSON any number: the parser
 * refuses that. */
static size_t nesting(const char *text, size_t bytes)
{
    size_t open = 0, most = 0;
    int in_string = 0;

    for (size_t i = 0; i < bytes; i++) {
        char c = text[i];

        if (in_string) {
            i += c == '\\';
            in_string = c != '"';
        } else if (c == '"') {
            in_string = 1;
        } else if (c == '{' || c == '[') {
            most = ++open > most ? open : most;
        } else if ((c == '}' || c == ']') && open) {
            open--;
        }
    }
    return most;
}

int hl_json_parse(const char *what, int code, const char *text, size_t bytes, unsigned depth,
                  json_t **out)
{
    char shown[JSON_ERROR_TEXT_LENGTH];
    size_t nested = nesting(text, bytes);
    json_error_t where;
    json_t *root;
    int rc = hl_sys_attempt("parse JSON");

    if (rc < 0)
        return rc;
    if (nested > depth)
        return hl_fail(code, "%s: JSON nested %zu deep; at most %u makes sense", what, nested,
                       depth);
    root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &where);
    if (!root)
        return hl_fail(code, "%s: not JSON, line %d: %s", what, where.line,
                       hl_json_shown(where.text, shown, sizeof shown));
    if (!json_is_object(root)) {
        json_decref(root);
        return hl_fail(code, "%s: JSON, but no object", what);
    }
    *out = root;
    return 0;
}

int hl_json_load(const char *what, int code, int fd, size_t most_bytes, unsigned depth,
                 json_t **out)
{
    struct stat st;
    size_t bytes;
    void *text;
    int rc = hl_sys_fstat(fd, &st);

    if (rc < 0)
        return rc;
    if (!S_ISREG(st.st_mode))
        return hl_fail(code, "%s: not a regular file", what);
    if ((uint64_t)st.st_size > most_bytes)
        return hl_fail(code, "%s: %lld bytes of JSON; at most %zu are read", what,
                       (long long)st.st_size, most_bytes);
    bytes = (size_t)st.st_size;
    rc = hl_sys_alloc(bytes, &text);
    if (rc < 0)
        return rc;
    rc = hl_sys_pread_all(fd, text, bytes, 0);
    if (rc == 0)
        rc = hl_json_parse(what, code, text, bytes, depth, out);
    hl_sys_free(text);
    return rc;
}
