/* random_shape.c: numbers and shapes of a seed. */
#include <math.h>
#include <stdlib.h>

#include "random_model.h"

/* splitmix64 */
uint64_t random_next(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);

    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

uint64_t random_in(uint64_t *state, uint64_t from, uint64_t to)
{
    return from + random_next(state) % (to - from + 1);
}

/* Like units, sizes over five orders of magnitude, or one unit that outweighs all others. */
static uint64_t unit_elems(uint64_t *s, unsigned flavour, uint32_t u, uint32_t nunits,
                           uint64_t elems)
{
    uint64_t mean = elems / nunits + 1;

    if (flavour == 0)
        return mean / 2 + random_in(s, 0, mean);
    if (flavour == 1)
        return random_in(s, 0, UINT64_C(1) << random_in(s, 0, 17));
    return u == nunits / 2 ? elems : random_in(s, 0, 64);
}

static void make_unit(struct random_unit *unit, uint64_t *s, uint64_t elems)
{
    unit->ntensors = (uint32_t)random_in(s, random_in(s, 0, 9) != 0, RANDOM_MAX_TENSORS);
    for (uint32_t t = 0; t < unit->ntensors; t++) {
        struct random_tensor *x = &unit->tensor[t];
        uint64_t kind = random_in(s, 0, 9);
        x->elems = kind == 0 ? 0 : kind == 1 ? 1 : random_in(s, 0, elems);
        x->elems |= kind == 2;
        x->fp32 = random_in(s, 0, 3) == 0;
        x->frozen = random_in(s, 0, 5) == 0;
        x->group = (uint32_t)random_in(s, 0, RANDOM_GROUPS - 1);
        elems -= x->elems < elems ? x->elems : elems;
        if (t + 1 == unit->ntensors)
            x->elems += elems;
    }
}

void random_shape_make(struct random_shape *shape, uint64_t seed, uint32_t max_units,
                       uint64_t elems)
{
    uint64_t s = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
    unsigned flavour = (unsigned)random_in(&s, 0, 3) % 3;
    uint64_t total = 0;

    *shape = (struct random_shape){.seed = seed, .nunits = (uint32_t)random_in(&s, 1, max_units)};
    shape->unit = calloc(shape->nunits, sizeof *shape->unit);
    for (uint32_t u = 0; u < shape->nunits; u++) {
        make_unit(&shape->unit[u], &s, unit_elems(&s, flavour, u, shape->nunits, elems));
        for (uint32_t t = 0; t < shape->unit[u].ntensors; t++)
            total += shape->unit[u].tensor[t].elems;
    }
    shape->nsteps = (unsigned)random_in(&s, 2, 4);
    shape->passes = random_in(&s, 0, 3) == 0 ? 2 : 1;
    shape->grad_dtype = random_in(&s, 0, 3) == 0 ? HAUL_FP32 : HAUL_BF16;
    shape->buffer_dtype = random_in(&s, 0, 3) == 0 ? HAUL_BF16 : HAUL_FP32;
    shape->tied = random_in(&s, 0, 2) == 0;
    shape->wander = random_in(&s, 0, 5) == 0;
    shape->leave_out = shape->nunits > 1 && random_in(&s, 0, 2) == 0 ? 2 : 0;
    shape->inf_step = random_in(&s, 0, 4) == 0 ? 2 : 0;
    /* noise of at most 1/2 and half a parameter: a norm near sqrt(n) / 2 */
    shape->clip =
        random_in(&s, 0, 1) ? sqrt((double)total) * (double)random_in(&s, 10, 70) / 100 : 0;
}

void random_shape_free(struct random_shape *shape)
{
    free(shape->unit);
    shape->unit = NULL;
}

struct random_shape random_shape_of(struct random_unit *unit, unsigned nunits, uint64_t elems)
{
    for (unsigned u = 0; u < nunits; u++)
        unit[u] = (struct random_unit){.ntensors = 1, .tensor = {{.elems = elems}}};
    return (struct random_shape){.seed = 1,
                                 .nunits = nunits,
                                 .unit = unit,
                                 .nsteps = 3,
                                 .passes = 1,
                                 .grad_dtype = HAUL_BF16,
                                 .buffer_dtype = HAUL_BF16};
}

struct random_shape random_even_shape(unsigned nranks)
{
    static struct random_unit unit[RANDOM_EVEN_UNITS];
    struct random_shape shape = random_shape_of(unit, RANDOM_EVEN_UNITS, RANDOM_EVEN_ELEMS);

    shape.buffer_dtype = HAUL_FP32;
    shape.nranks = nranks;
    return shape;
}
