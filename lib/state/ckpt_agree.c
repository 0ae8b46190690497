/* ckpt_agree.c: see ckpt_agree.h. */
#include "ckpt_agree.h"

#include <stdio.h>
#include <string.h>

#include "fail.h"
#include "snapshot.h"

#define TEXT_BYTES 512

/* From the rank that has it to all others. */
static int share_text(struct haul_engine *e, int mine, char text[TEXT_BYTES])
{
    uint64_t words[TEXT_BYTES / sizeof(uint64_t)] = {0};
    int rc;

    if (mine)
        snprintf((char *)words, sizeof words, "%s", haul_last_error());
    rc = hl_snapshot_all_reduce(e, HAUL_COMM_SUM_U64, words, TEXT_BYTES / sizeof(uint64_t));
    memcpy(text, words, TEXT_BYTES);
    text[TEXT_BYTES - 1] = '\0';
    return rc;
}

int hl_ckpt_agree(struct haul_engine *e, const char *what, int rc)
{
    uint32_t nranks, rank = hl_snapshot_rank(e, &nranks);
    /* the largest: any error before none; of several, one of the highest rank */
    uint64_t word = rc < 0 ? (uint64_t)(rank + 1) << 32 | (uint64_t)(uint32_t)-rc : 0;
    char text[TEXT_BYTES];
    int rc_comm;

    if (nranks == 1)
        return rc;
    rc_comm = hl_snapshot_all_reduce(e, HAUL_COMM_MAX_U64, &word, 1);
    if (rc_comm == 0 && word)
        rc_comm = share_text(e, word >> 32 == rank + 1, text);
    if (rc_comm < 0)
        return rc < 0 ? rc : rc_comm;
    if (word == 0 || word >> 32 == rank + 1)
        return rc;
    return hl_fail(-(int)(uint32_t)word, "checkpoint: %s ends on all ranks: rank %u failed: %s",
                   what, (unsigned)(word >> 32) - 1, text);
}
