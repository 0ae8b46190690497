/* device_cuda_choose.c: which GPU, and which memory it is near to. */
#include <hwloc.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "device_cuda.h"
#include "sys.h"

#define UUID_TEXT 41 /* "GPU-8-4-4-4-12" and its end */

static void uuid_text(const CUuuid *uuid, char out[UUID_TEXT])
{
    const unsigned char *b = (const unsigned char *)uuid->bytes;

    snprintf(out, UUID_TEXT,
             "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0], b[1],
             b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14],
             b[15]);
}

static int matches(const struct hl_cuda_driver *drv, int ordinal, const char *want)
{
    char text[UUID_TEXT];
    CUdevice device;
    CUuuid uuid;
    int rc;

    if ((rc = HL_CU(drv, cuDeviceGet, &device, ordinal)) < 0 ||
        (rc = HL_CU(drv, cuDeviceGetUuid, &uuid, device)) < 0)
        return rc;
    uuid_text(&uuid, text);
    return strncasecmp(text, want, strlen(want)) == 0;
}

static int by_uuid(const struct hl_cuda_driver *drv, const char *want, int ndevices, int *ordinal)
{
    int found = 0;

    for (int i = 0; i < ndevices; i++) {
        int rc = matches(drv, i, want);

        if (rc < 0)
            return rc;
        if (rc && found++)
            return hl_fail(HAUL_E_DEVICE, "uuid \"%s\" begins that of more than one GPU", want);
        if (rc)
            *ordinal = i;
    }
    return found ? 0
                 : hl_fail(HAUL_E_DEVICE, "none of %d GPUs has uuid \"%s\": see nvidia-smi -L",
                           ndevices, want);
}

static int by_rank(int rank, int ndevices, int *ordinal)
{
    if (rank < 0 || (ndevices > 1 && rank >= ndevices))
        return hl_fail(-EINVAL, "local rank %d, but %d GPUs are visible: start one rank for each",
                       rank, ndevices);
    *ordinal = ndevices == 1 ? 0 : rank;
    return 0;
}

int hl_cuda_choose(const struct hl_cuda_driver *drv, const struct haul_device_cuda_opts *opts,
                   int *ordinal)
{
    int ndevices = 0, rc = HL_CU(drv, cuDeviceGetCount, &ndevices);

    if (rc < 0)
        return rc;
    if (ndevices == 0)
        return hl_fail(HAUL_E_DEVICE,
                       "the CUDA driver shows no GPU: is CUDA_VISIBLE_DEVICES empty?");
    if (opts->uuid)
        return by_uuid(drv, opts->uuid, ndevices, ordinal);
    if (opts->local_rank != -1)
        return by_rank(opts->local_rank, ndevices, ordinal);
    if (opts->ordinal < -1 || opts->ordinal >= ndevices)
        return hl_fail(HAUL_E_DEVICE, "there is no GPU %d: %d are visible", opts->ordinal,
                       ndevices);
    *ordinal = opts->ordinal == -1 ? 0 : opts->ordinal;
    return 0;
}

static int node_in(hwloc_topology_t topo, const char *pci)
{
    hwloc_obj_t at = hwloc_get_pcidev_by_busidstring(topo, pci), node;

    if (!at || hwloc_get_nbobjs_by_type(topo, HWLOC_OBJ_NUMANODE) < 2)
        return -1;
    at = hwloc_get_non_io_ancestor_obj(topo, at);
    if (!at || !at->nodeset || hwloc_bitmap_weight(at->nodeset) != 1)
        return -1;
    node = hwloc_get_numanode_obj_by_os_index(topo, (unsigned)hwloc_bitmap_first(at->nodeset));
    return node ? (int)node->logical_index : -1;
}

int hl_cuda_numa_node(const char *pci)
{
    hwloc_topology_t topo;
    int node = -1;

    /* Not knowing is no failure: the pool is then not bound. */
    if (hl_sys_attempt("hwloc_topology_init") < 0 || hwloc_topology_init(&topo) < 0)
        return -1;
    if (hwloc_topology_set_io_types_filter(topo, HWLOC_TYPE_FILTER_KEEP_IMPORTANT) == 0 &&
        hwloc_topology_load(topo) == 0)
        node = node_in(topo, pci);
    hwloc_topology_destroy(topo);
    return node;
}
