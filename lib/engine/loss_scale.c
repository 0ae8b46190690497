/* loss_scale.c: the dynamic loss scale. Powers of two, so that scaling is exact. */
#include <math.h>

#include "engine_state.h"

#define LEAST_SCALE 1.0
#define MOST_SCALE  0x1p24

int hl_loss_scale_open(struct haul_engine *e)
{
    double s = e->opts.loss_scale;
    int exponent;

    if (s != 0 && (!isfinite(s) || s < LEAST_SCALE || s > MOST_SCALE || frexp(s, &exponent) != 0.5))
        return hl_fail(-EINVAL,
                       "engine: loss_scale %g; a power of two from 1 to 2^24, or 0 for none", s);
    if (e->opts.loss_scale_window == 0)
        return hl_fail(-EINVAL, "engine: loss_scale_window 0; at least one step");
    e->loss_scale = s == 0 ? 1 : s;
    return 0;
}

void hl_loss_scale_step(struct haul_engine *e, int skipped)
{
    if (e->opts.loss_scale == 0)
        return;
    if (skipped) {
        e->loss_scale = fmax(e->loss_scale / 2, LEAST_SCALE);
        e->nsteps_finite = 0;
    } else if (++e->nsteps_finite == e->opts.loss_scale_window) {
        e->loss_scale = fmin(e->loss_scale * 2, MOST_SCALE);
        e->nsteps_finite = 0;
    }
}

double haul_engine_loss_scale(const struct haul_engine *engine)
{
    return engine->loss_scale;
}
