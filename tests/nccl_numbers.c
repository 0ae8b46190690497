/* nccl_numbers.c: what nccl_lib.h declares by itself is what NCCL's own header says. Compiling is the check. */
#include <nccl.h>

#include "nccl_lib.h"

#define SAME(ours, theirs) _Static_assert((int)(ours) == (int)(theirs), #ours)

SAME(NCCL_SUCCESS, ncclSuccess);
SAME(NCCL_IN_PROGRESS, ncclInProgress);
SAME(NCCL_INT8, ncclInt8);
SAME(NCCL_FLOAT16, ncclFloat16);
SAME(NCCL_FLOAT32, ncclFloat32);
SAME(NCCL_BFLOAT16, ncclBfloat16);
SAME(NCCL_SUM, ncclSum);
SAME(NCCL_LEAST_VERSION, NCCL_VERSION(2, 18, 0));
SAME(sizeof(struct nccl_id), sizeof(ncclUniqueId));

/* Newer ones append to it. */
#define SAME_PLACE(ours, theirs)                                                                   \
    SAME(offsetof(struct nccl_config, ours), offsetof(ncclConfig_t, theirs))
SAME_PLACE(size, size);
SAME_PLACE(magic, magic);
SAME_PLACE(version, version);
SAME_PLACE(blocking, blocking);
SAME_PLACE(cga_cluster_size, cgaClusterSize);
SAME_PLACE(min_ctas, minCTAs);
SAME_PLACE(max_ctas, maxCTAs);
SAME_PLACE(net_name, netName);
SAME_PLACE(split_share, splitShare);
