/* ckpt_behind.h: a save whose files are written while training goes on. */
#ifndef HL_CKPT_BEHIND_H
#define HL_CKPT_BEHIND_H

#include "ckpt_saving.h"

/* Collective. Takes over s; after an error s is ended. */
int hl_ckpt_behind_begin(struct hl_ckpt_saving *s);

/* Collective: wait for the one under way, if there is one, and give its result. */
int hl_ckpt_behind_wait(struct haul_engine *e);

#endif
