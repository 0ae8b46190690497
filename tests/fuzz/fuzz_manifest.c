/* fuzz_manifest.c: a checkpoint's manifest, whatever bytes it has. Its checksum is not looked at here: it keeps
 * out accidents, not intent. */
#include <stdlib.h>
#include <string.h>

#include "ckpt_manifest.h"
#include "fail.h"
#include "sys.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(int condition)
{
    if (!condition)
        abort();
}

static void check_unit(const struct hl_ckpt_unit *u)
{
    uint64_t elems = 0;

    must(u->name[0] != '\0');
    for (uint32_t t = 0; t < u->ntensors; t++) {
        const struct haul_tensor *tensor = &u->tensors[t];
        uint64_t n = 1;

        must(tensor->name[0] != '\0' && tensor->ndims >= 1 && tensor->ndims <= HAUL_MAX_DIMS);
        for (uint32_t d = 0; d < tensor->ndims; d++)
            n *= tensor->shape[d];
        if (n > 0)
            must(hl_ckpt_tensor_at(u, elems) == t && hl_ckpt_tensor_at(u, elems + n - 1) == t);
        elems += n;
    }
    must(elems == u->elems && elems <= UINT64_C(1) << 58);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hl_ckpt_manifest m;
    int rc = hl_ckpt_manifest_parse("fuzz", (const char *)data, size, &m);

    must(rc == 0 || ((rc == HAUL_E_FORMAT || rc == HAUL_E_CONFIG) && haul_last_error()[0] != '\0'));
    if (rc == 0) {
        must(m.nranks >= 1 && m.nranks <= HL_CKPT_MOST_RANKS);
        must(m.loss_scale >= 0 && m.loss_scale <= 0x1p24);
        for (uint32_t u = 0; u < m.model.nunits; u++)
            check_unit(&m.model.units[u]);
        must(hl_ckpt_model_match("fuzz", &m.model, &m.model) == 0);
        hl_ckpt_manifest_free(&m);
    }
    must(hl_sys_live(HL_SYS_MEM) == 0);
    return 0;
}
