/* ckpt_agree.h: ranks hold their results against each other. */
#ifndef HL_CKPT_AGREE_H
#define HL_CKPT_AGREE_H

#include "haul/engine.h"

/* All ranks: 0 when all bring 0. Else every rank returns the same code, with a text that names a rank it
 * comes from. what: "save" or "load". */
int hl_ckpt_agree(struct haul_engine *e, const char *what, int rc);

#endif
