/* optim_update.h: the update with its variant chosen by the caller: for tests and bench. */
#ifndef HL_OPTIM_UPDATE_H
#define HL_OPTIM_UPDATE_H

#include "kernel_table.h"

/* haul_optim_update() on one variant's kernels. */
int hl_optim_update_with(const struct hl_kernels *kernels, const struct haul_optim *opt,
                         const struct haul_optim_arrays *arrays, const struct haul_optim_step *step,
                         unsigned nthreads);

/* The constants of a step, with lr and weight_decay of the step itself. */
struct hl_step_consts hl_step_consts_of(const struct haul_optim *opt,
                                        const struct haul_optim_arrays *arrays,
                                        const struct haul_optim_step *step);

/* beta^t by squaring: the same bits whatever the C library's pow does. */
double hl_beta_power(double beta, uint64_t t);

#endif
