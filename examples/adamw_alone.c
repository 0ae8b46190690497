/* adamw_alone.c: the optimizers over plain arrays. No engine, no device: a line is fitted to points, with
 * the gradient clipped to norm 1.   adamw_alone */
#include <haul/optim.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define NPOINTS 64

static void must(int rc)
{
    if (rc < 0) {
        fprintf(stderr, "%s\n", haul_last_error());
        exit(1);
    }
}

/* Points of y = 3 x - 2; the gradient of the mean squared error of y = p[0] x + p[1]. */
static double error_of_line(const float p[2], float grad[2])
{
    double sum = 0, by_slope = 0, by_offset = 0;

    for (int i = 0; i < NPOINTS; i++) {
        double x = 2.0 * i / (NPOINTS - 1) - 1;
        double off = p[0] * x + p[1] - (3 * x - 2);

        sum += off * off;
        by_slope += 2 * off * x;
        by_offset += 2 * off;
    }
    grad[0] = (float)(by_slope / NPOINTS);
    grad[1] = (float)(by_offset / NPOINTS);
    return sum / NPOINTS;
}

int main(void)
{
    float p[2] = {0}, grad[2], m[2] = {0}, v[2] = {0};
    double error = 0, sumsq;
    int finite;
    struct haul_optim adamw;
    struct haul_optim_arrays line = {.struct_size = sizeof line,
                                     .n = 2,
                                     .grad_dtype = HAUL_FP32,
                                     .grad = grad,
                                     .master = p,
                                     .m = m,
                                     .v = v};
    struct haul_optim_step step = {.struct_size = sizeof step, .lr = 0.05};

    haul_optim_init(&adamw, HAUL_ADAMW);
    for (step.step = 1; step.step <= 400; step.step++) {
        error = error_of_line(p, grad);
        must(haul_norm_sumsq(grad, HAUL_FP32, 2, 1, &sumsq, &finite));
        step.grad_scale = sumsq > 1 ? 1 / sqrt(sumsq) : 1;
        must(haul_optim_update(&adamw, &line, &step, 1));
    }
    printf("%s kernel: y = %.3f x %+.3f, mean squared error %.1e\n", haul_optim_variant(), p[0],
           p[1], error);
    return fabsf(p[0] - 3) < 0.01f && fabsf(p[1] + 2) < 0.01f ? 0 : 1;
}
