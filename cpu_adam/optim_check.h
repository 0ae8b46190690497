/* optim_check.h: what an update refuses, before it writes anything. */
#ifndef HL_OPTIM_CHECK_H
#define HL_OPTIM_CHECK_H

#include "haul/optim.h"

/* 0, or -EINVAL or HAUL_E_ABI with a text that names the argument. */
int hl_optim_check(const struct haul_optim *opt, const struct haul_optim_arrays *arrays,
                   const struct haul_optim_step *step);

/* Which moments an optimizer keeps. */
int hl_optim_has_m(const struct haul_optim *opt);
int hl_optim_has_v(const struct haul_optim *opt);

#endif
