/* checksum.c: XXH3-64 with the best instructions of the CPU. */
#include "checksum.h"

#ifdef HL_XXH_DISPATCH
#include <xxh_x86dispatch.h>

uint64_t hl_checksum(const void *p, size_t bytes)
{
    return XXH3_64bits_dispatch(p, bytes);
}
#else
#define XXH_INLINE_ALL
#include <xxhash.h>

uint64_t hl_checksum(const void *p, size_t bytes)
{
    return XXH3_64bits(p, bytes);
}
#endif
