/* neon_topo.c: in place of lib/base/topo.c where there is no hwloc for the target: one core. */
#include <errno.h>

#include "topo.h"

int hl_topo_open(const struct hl_topo_opts *opts, struct hl_topo **out)
{
    (void)opts;
    (void)out;
    return -ENOTSUP;
}

void hl_topo_close(struct hl_topo *topo)
{
    (void)topo;
}

unsigned hl_topo_team(const struct hl_topo *topo, unsigned local_ranks)
{
    (void)topo;
    (void)local_ranks;
    return 1;
}

unsigned hl_topo_cores(const struct hl_topo *topo)
{
    (void)topo;
    return 1;
}

int hl_topo_core_pu(const struct hl_topo *topo, unsigned core)
{
    (void)topo;
    (void)core;
    return 0;
}

int hl_topo_core_node(const struct hl_topo *topo, unsigned core)
{
    (void)topo;
    (void)core;
    return -1;
}

int hl_topo_bind_thread(int pu)
{
    (void)pu;
    return -ENOTSUP;
}
