/* ckpt_agree.c: see ckpt_agree.h. */
#include "ckpt_agree.h"

#include "fail.h"
#include "snapshot.h"

int hl_ckpt_agree(struct haul_engine *e, const char *what, int rc)
{
    uint32_t nranks, rank = hl_snapshot_rank(e, &nranks);
    /* the largest: any error before none; of several, one of the highest rank */
    uint64_t word = rc < 0 ? (uint64_t)(rank + 1) << 32 | (uint64_t)(uint32_t)-rc : 0;
    int rc_comm = hl_snapshot_all_reduce(e, HAUL_COMM_MAX_U64, &word, 1);

    if (rc_comm < 0)
        return rc < 0 ? rc : rc_comm;
    if (word == 0 || word >> 32 == rank + 1)
        return rc;
    int theirs = -(int)(uint32_t)word;
    return hl_fail(theirs, "checkpoint: %s ends on all ranks: rank %u failed: %s", what,
                   (unsigned)(word >> 32) - 1, haul_strerror(theirs));
}
