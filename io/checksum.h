/* checksum.h: XXH3-64, the seedless form, as `xxhsum -H3` prints it. */
#ifndef HL_CHECKSUM_H
#define HL_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

uint64_t hl_checksum(const void *p, size_t bytes);

#endif
