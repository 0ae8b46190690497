/* ckpt_kept.h: saves whose records stay in the ranks' durable stores. One rank's part; ckpt_saving.h has the order. */
#ifndef HL_CKPT_KEPT_H
#define HL_CKPT_KEPT_H

#include "ckpt_saving.h"

/* What a file needs to refer to this engine's records. */
void hl_ckpt_keeper_of(struct haul_engine *e, struct hl_ckpt_keeper *out);

/* A checkpoint that the store still serves, and that will stay after this save, is copied out: its records will be
 * overwritten. */
int hl_ckpt_kept_before(const struct hl_ckpt_saving *s);

/* The store's next generation, with this checkpoint as its witness. All is on the drive. */
int hl_ckpt_kept_prepare(const struct hl_ckpt_saving *s);

/* The checkpoint is complete. If it will stay when it is not the newest any more, copy its records now: nothing waits
 * for it. What fails here is told in the log, and comes up again at the next save. */
void hl_ckpt_kept_after(const struct hl_ckpt_saving *s);

#endif
