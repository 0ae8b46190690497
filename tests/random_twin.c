/* random_twin.c: the same training on plain arrays. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "arith.h"
#include "random_model.h"
#include "random_values.h"

static int is_trained(const struct random_tensor *x)
{
    return !x->frozen && x->elems;
}

static uint32_t at(uint32_t u, uint32_t t)
{
    return u * RANDOM_MAX_TENSORS + t;
}

static void *zeroed(size_t n, size_t size)
{
    return calloc(n ? n : 1, size);
}

int random_twin_open(struct random_twin *w, const struct random_shape *sh)
{
    size_t n = (size_t)sh->nunits * RANDOM_MAX_TENSORS;

    *w = (struct random_twin){.shape = sh,
                              .p = zeroed(n, sizeof *w->p),
                              .m = zeroed(n, sizeof *w->m),
                              .v = zeroed(n, sizeof *w->v),
                              .grad = zeroed(n, sizeof *w->grad),
                              .nsteps = zeroed(sh->nunits, sizeof *w->nsteps)};
    for (uint32_t u = 0; u < sh->nunits; u++)
        for (uint32_t t = 0; t < sh->unit[u].ntensors; t++) {
            const struct random_tensor *x = &sh->unit[u].tensor[t];
            uint32_t k = at(u, t);
            w->p[k] = zeroed(x->elems, 4), w->m[k] = zeroed(x->elems, 4);
            w->v[k] = zeroed(x->elems, 4), w->grad[k] = zeroed(x->elems, 4);
            for (uint64_t i = 0; i < x->elems; i++)
                w->p[k][i] = narrow(x->frozen && !x->fp32 ? HAUL_BF16 : HAUL_FP32,
                                    initial(u, t, x->first + i));
        }
    return 0;
}

void random_twin_close(struct random_twin *w)
{
    for (uint32_t k = 0; k < w->shape->nunits * RANDOM_MAX_TENSORS; k++)
        free(w->p[k]), free(w->m[k]), free(w->v[k]), free(w->grad[k]);
    free(w->p), free(w->m), free(w->v), free(w->grad), free(w->nsteps);
}

static void twin_gradient(struct random_twin *w, uint32_t u, uint32_t t)
{
    const struct random_shape *sh = w->shape;
    const struct random_tensor *x = &sh->unit[u].tensor[t];
    enum haul_dtype published = x->fp32 ? HAUL_FP32 : HAUL_BF16;
    enum haul_dtype travel = x->fp32 ? HAUL_FP32 : sh->grad_dtype;
    enum haul_dtype buffer = x->fp32 ? HAUL_FP32 : sh->buffer_dtype;
    unsigned visits = sh->tied && u == 0 ? 2 : 1;
    float *grad = w->grad[at(u, t)];

    for (uint64_t i = 0; i < x->elems; i++)
        for (unsigned p = 0; p < sh->passes; p++) {
            float sum = 0, at_device = narrow(published, w->p[at(u, t)][i]);
            for (unsigned r = 0; r < nranks(sh); r++) {
                float b = 0;
                for (unsigned k = 0; k < visits && !leaves_out(sh, u, w->step, r); k++)
                    b = narrow(buffer,
                               b + gradient(at_device, x->first + i, w->step, p * nranks(sh) + r));
                b = narrow(travel, b);
                sum = r ? sum + b : b;
            }
            sum = nranks(sh) > 1 ? narrow_even(travel, sum) : sum;
            grad[i] = p ? grad[i] + sum : sum;
        }
}

static void twin_update(struct random_twin *w, uint32_t u, uint32_t t, double scale)
{
    const struct random_tensor *x = &w->shape->unit[u].tensor[t];
    struct haul_group_step groups[RANDOM_GROUPS];
    struct haul_optim adamw;
    uint32_t k = at(u, t);

    group_values(groups);
    haul_optim_init(&adamw, HAUL_ADAMW);
    struct haul_optim_arrays arrays = {.struct_size = sizeof arrays,
                                       .n = x->elems,
                                       .grad_dtype = HAUL_FP32,
                                       .grad = w->grad[k],
                                       .master = w->p[k],
                                       .m = w->m[k],
                                       .v = w->v[k]};
    struct haul_optim_step s = {.struct_size = sizeof s,
                                .step = w->nsteps[u],
                                .lr = groups[x->group].lr,
                                .weight_decay = groups[x->group].weight_decay,
                                .grad_scale = scale};
    if (haul_optim_update(&adamw, &arrays, &s, 1) < 0)
        fprintf(stderr, "twin: %s\n", haul_last_error());
}

/* Sums the squares of what takes part. Returns whether anything did. */
static int twin_gradients(struct random_twin *w, double *sum)
{
    int any = 0;

    for (uint32_t u = 0; u < w->shape->nunits; u++)
        for (uint32_t t = 0; t < w->shape->unit[u].ntensors; t++) {
            const struct random_tensor *x = &w->shape->unit[u].tensor[t];
            if (!is_trained(x) || is_left_out(w->shape, u, w->step))
                continue;
            any = 1;
            twin_gradient(w, u, t);
            for (uint64_t i = 0; i < x->elems; i++)
                *sum += (double)w->grad[at(u, t)][i] * w->grad[at(u, t)][i];
        }
    return any;
}

void random_twin_step(struct random_twin *w, double clip)
{
    const struct random_shape *sh = w->shape;
    double sum = 0, scale = 1.0 / (sh->passes * nranks(sh));

    w->step++;
    w->skipped = twin_gradients(w, &sum) && w->step == sh->inf_step;
    w->norm = w->skipped ? INFINITY : sqrt(sum) * scale;
    for (uint32_t u = 0; !w->skipped && u < sh->nunits; u++) {
        if (is_left_out(sh, u, w->step))
            continue;
        w->nsteps[u]++;
        for (uint32_t t = 0; t < sh->unit[u].ntensors; t++)
            if (is_trained(&sh->unit[u].tensor[t]))
                twin_update(w, u, t, scale * clip);
    }
}

int64_t random_compare(struct random_run *r, const struct random_twin *w)
{
    int64_t bad = 0;

    for (uint32_t u = 0; u < w->shape->nunits; u++)
        for (uint32_t t = 0; t < w->shape->unit[u].ntensors; t++) {
            const struct random_tensor *x = &w->shape->unit[u].tensor[t];
            float *got = zeroed(x->elems, sizeof *got);
            int rc = haul_tensor_read(r->unit[u], t, x->first, x->elems, got);
            for (uint64_t i = 0; rc == 0 && i < x->elems; i++)
                bad += hl_float_bits(got[i]) != hl_float_bits(w->p[at(u, t)][i]);
            free(got);
            if (rc < 0)
                return rc;
        }
    return bad;
}
