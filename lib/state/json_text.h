/* json_text.h: JSON that nobody vouches for. Everything that jansson would take too far (depth, size,
 * duplicate keys) is bounded here. */
#ifndef HL_JSON_TEXT_H
#define HL_JSON_TEXT_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

/**
 * Parse text as one JSON object.
 *
 * @param what   [in]  the file, for messages
 * @param code   [in]  result code of a refusal
 * @param depth  [in]  objects and arrays that may be open at once
 * @param out    [out] end it with json_decref()
 *
 * Errors  0, code (text names the line), or an injected failure
 */
int hl_json_parse(const char *what, int code, const char *text, size_t bytes, unsigned depth,
                  json_t **out);

/* The same of an open file of at most most_bytes. */
int hl_json_load(const char *what, int code, int fd, size_t most_bytes, unsigned depth,
                 json_t **out);

/* Of text from a file, what may be shown on a terminal: control characters become '?', the rest is cut
 * at len - 1 bytes. Returns buf. */
const char *hl_json_shown(const char *text, char *buf, size_t len);

#define HL_SHOWN_BYTES 96

#endif
