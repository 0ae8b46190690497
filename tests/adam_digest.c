/*
 * adam_digest.c: prints one line of hash for every optimizer, layout and fill, from the best variant of
 * the machine it runs on. neon_check.sh compares the lines of two machines.
 */
#include <stdio.h>

#include "adam_case.h"

static uint64_t mix(uint64_t hash, const void *p, uint64_t bytes)
{
    for (uint64_t i = 0; i < bytes; i++)
        hash = (hash ^ ((const unsigned char *)p)[i]) * 0x100000001b3u;
    return hash;
}

static int digest(int kind, enum haul_dtype grad, enum haul_dtype param, enum haul_dtype moment,
                  int fill)
{
    struct haul_optim_arrays shape = {
        .n = 4 * 4096 + 77, .grad_dtype = grad, .param_dtype = param, .first = 99};
    struct haul_optim_step s = {
        .struct_size = sizeof s, .lr = 1e-2, .weight_decay = 0.1, .grad_scale = 0.7};
    uint64_t hash = 0xcbf29ce484222325u;
    struct haul_optim opt;
    struct adam_case c;
    double sum;
    int finite;

    haul_optim_init(&opt, (enum haul_optimizer)kind);
    opt.moment_dtype = moment;
    opt.nesterov = fill & 1;
    if (param == HAUL_DTYPE_NONE) {
        shape.param_dtype = HAUL_BF16;
        shape.master_form = HAUL_MASTER_SPLIT;
    }
    if (adam_case_open(&c, &opt, &shape, 2))
        return 1;
    adam_case_fill(&c, (enum adam_fill)fill, 1);
    for (s.step = 1; s.step <= 3; s.step++)
        if (haul_optim_update(&opt, &c.arrays, &s, 1) < 0)
            return 1;
    for (int i = 0; i < ADAM_NARRAYS; i++)
        hash = mix(hash, c.memory[i], c.bytes[i]);
    if (haul_norm_sumsq(c.arrays.grad, grad, shape.n, 1, &sum, &finite) < 0)
        return 1;
    /* the sum means something only when every element is finite */
    printf("%d %d %d %d %d %016llx %a %d\n", kind, (int)grad, (int)param, (int)moment, fill,
           (unsigned long long)hash, finite ? sum : 0, finite);
    adam_case_close(&c);
    return 0;
}

int main(void)
{
    static const enum haul_dtype grads[] = {HAUL_FP32, HAUL_BF16, HAUL_FP16};
    static const enum haul_dtype params[] = {HAUL_DTYPE_NONE, HAUL_BF16, HAUL_FP16};
    int rc = 0;

    fprintf(stderr, "variant %s\n", haul_optim_variant());
    for (int kind = HAUL_ADAMW; kind <= HAUL_SGD; kind++)
        for (int g = 0; g < 3; g++)
            for (int p = 0; p < 3; p++)
                for (int fill = ADAM_PLAIN; fill <= ADAM_DENORMAL; fill++) {
                    rc |= digest(kind, grads[g], params[p], HAUL_FP32, fill);
                    rc |= digest(kind, grads[g], params[p], HAUL_BF16, fill);
                }
    return rc;
}
