/* fuzz_safetensors.c: the header of a safetensors file, whatever bytes it has.
 *
 * Input: 2 bytes, little-endian, of data behind the header; the header. What is accepted must keep what
 * safetensors_header.h promises. */
#include <stdlib.h>
#include <string.h>

#include "fail.h"
#include "safetensors_header.h"
#include "sys.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(int condition)
{
    if (!condition)
        abort();
}

/* Tensors cover the data in their order, each as long as its elements. */
static void check(const struct hl_st_header *h, uint64_t data_bytes)
{
    uint64_t covered = 0;

    for (uint64_t i = 0; i < h->ntensors; i++) {
        const struct hl_st_tensor *t = &h->tensors[i];
        uint64_t n = 1;

        for (uint32_t d = 0; d < t->ndims; d++)
            n *= t->shape[d];
        must(n == t->nelems && t->begin == covered && t->end >= t->begin);
        must((t->end - t->begin) * 8 == n * t->dtype->bits);
        must(t->name[strlen(t->name)] == '\0' && hl_st_dtype_named(t->dtype->name) == t->dtype);
        covered = t->end;
    }
    must(covered == data_bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hl_st_header header;
    uint64_t data_bytes;
    int rc;

    if (size < 2)
        return 0;
    data_bytes = data[0] + 256u * data[1];
    rc = hl_st_header_parse("fuzz", (const char *)data + 2, size - 2, data_bytes, &header);
    must(rc == 0 || (rc == HAUL_E_FORMAT && haul_last_error()[0] != '\0'));
    if (rc == 0) {
        check(&header, data_bytes);
        hl_st_header_free(&header);
    }
    must(hl_sys_live(HL_SYS_MEM) == 0);
    return 0;
}
