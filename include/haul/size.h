/*
 * haul/size.h: sizes and counts as people write them.
 */
#ifndef HAUL_SIZE_H
#define HAUL_SIZE_H

#include "haul/error.h"

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Read a byte size: "24GB" (24e9), "24GiB" (24 * 2^30), "13e9", "4096", "1.5 TB".
 *
 * Suffixes K M G T P with B (powers of 1000) or iB (powers of 1024), any case
 * of the letters; a bare number is bytes. The value must be a whole number of
 * bytes, not negative, below 2^63.
 *
 * @param text  [in] the text; surrounding blanks are allowed
 * @param out   [out] bytes; written only on success
 *
 * Units      bytes
 * Threads    any
 * Blocks     no
 * Errors     0, or -EINVAL (not a size), -ERANGE (too large); haul_last_error() quotes the text
 */
HAUL_API HAUL_MUST_USE
int haul_parse_size(const char *text, uint64_t *out);

/**
 * Read a count: "13B" or "13e9" (13 billion), "70b", "125M", "64Mi", "7.5e9", "300".
 *
 * Suffixes K M B T are powers of 1000, Ki Mi Gi Ti powers of 1024, any case of
 * the letters. The value must be whole, not negative, below 2^63.
 *
 * Errors     0, or -EINVAL, -ERANGE; haul_last_error() quotes the text
 */
HAUL_API HAUL_MUST_USE
int haul_parse_count(const char *text, uint64_t *out);

/**
 * Write bytes for people: "6.50 GB", "512 B". Powers of 1000.
 *
 * @param bytes  [in]  the size
 * @param buf    [out] at least 16 characters
 * @param len    [in]  size of buf
 *
 * Returns buf.
 */
HAUL_API
const char *haul_format_size(uint64_t bytes, char *buf, size_t len);

#ifdef __cplusplus
}
#endif
#endif
