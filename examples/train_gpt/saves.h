/*
 * saves.h: checkpoints of a run.
 *
 *   saves_load   --resume: the engine's state, the step and the seed of the run that saved it
 *   saves_step   --save: after a step, when it is one to save after
 */
#ifndef TRAIN_GPT_SAVES_H
#define TRAIN_GPT_SAVES_H

#include "trainer.h"

/* Instead of fresh weights. Sets t->nsteps and t->seed. 0, or an error of haul. */
HAUL_MUST_USE
int saves_load(struct trainer *t);

/**
 * Save after every --save-every steps, behind the ones that follow, and after the last one.
 *
 * A save that fails is told on stderr, and training goes on: the checkpoint before it is still there.
 *
 * @param last  [in] no step follows
 *
 * Returns EXIT_OK, or EXIT_FAILED when the last save of the run failed.
 */
int saves_step(struct trainer *t, uint64_t step, bool last);

#endif
