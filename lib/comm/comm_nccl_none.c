/* comm_nccl_none.c: what stands for NCCL in a build without it. */
#include "fail.h"
#include "haul/nccl.h"

void haul_comm_nccl_opts_init(struct haul_comm_nccl_opts *opts)
{
    *opts = (struct haul_comm_nccl_opts){.struct_size = sizeof *opts, .timeout_s = 600};
}

int haul_comm_nccl_open(const struct haul_comm_nccl_opts *opts, struct haul_device *dev,
                        struct haul_comm **out)
{
    return hl_fail(HAUL_E_NCCL, "this haul was built without NCCL: build it with nvcc on PATH and "
                                "without -Dnccl=disabled");
}
