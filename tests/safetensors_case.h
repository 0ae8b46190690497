/* safetensors_case.h: files of the format written out by hand, in a temporary directory. */
#ifndef HAUL_TESTS_SAFETENSORS_CASE_H
#define HAUL_TESTS_SAFETENSORS_CASE_H

#include <errno.h>
#include <stdbool.h>

#include "haul/safetensors.h"
#include "recorded_tree.h"

/* A file: the length, this JSON, these bytes of zeros. */
static inline const char *case_file(const struct tree *t, const char *name, const char *json,
                                    size_t data_bytes)
{
    const char *path = tree_path(t, name);
    uint64_t n = strlen(json);
    FILE *f = fopen(path, "wb");

    cr_assert_not_null(f, "%s", path);
    for (int i = 0; i < 8; i++)
        fputc((int)(n >> 8 * i & 255), f);
    fputs(json, f);
    for (size_t i = 0; i < data_bytes; i++)
        fputc(0, f);
    fclose(f);
    return path;
}

static inline bool case_exists(const char *path)
{
    return access(path, F_OK) == 0;
}

static inline uint32_t case_bits(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof bits);
    return bits;
}

#endif
