/* bench_adam.c: the arena, the turns, and one case beside its roofs. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "arith.h"
#include "bench_adam.h"
#include "bench_roof.h"
#include "clock.h"
#include "fail.h"
#include "hostmem.h"
#include "optim_update.h"
#include "sys.h"
#include "team.h"

#define PAGE (UINT64_C(2) << 20)

/* Arrays at one offset within a page meet in one memory channel: 3% slower. */
#define STAGGER (21 * 64)

/* Bytes per element that every case can need: gradient, the same in FP32, master, m, v, 16 bits. */
#define ARENA_BYTES_PER_ELEM (4 + 4 + 4 + 4 + 4 + 2)

static int fits(uint64_t bytes)
{
    struct hl_hostmem mem;
    int rc = hl_hostmem_read(NULL, NULL, &mem);

    if (rc < 0)
        return rc;
    if (bytes > mem.avail_bytes)
        return hl_fail(-ENOMEM, "the arrays take %llu bytes, %s leaves %llu; pass fewer --elems",
                       (unsigned long long)bytes, mem.bound_by,
                       (unsigned long long)mem.avail_bytes);
    return 0;
}

static char *carve(char **next, uint64_t bytes)
{
    char *p = *next;

    *next += (bytes + PAGE - 1) / PAGE * PAGE + STAGGER;
    return p;
}

struct paint {
    char *p;
    uint64_t elem_bytes;
};

/* 3c3c3c3c is 0.0115 as FP32, 0.0115 as BF16, 1.06 as FP16: no denormals, no NaN. */
static void paint_share(void *ctx, uint64_t begin, uint64_t end)
{
    struct paint *t = ctx;

    memset(t->p + begin * t->elem_bytes, 0x3c, (end - begin) * t->elem_bytes);
}

static void paint(const struct hl_bench_opts *opts, char *p, uint64_t elem_bytes)
{
    struct paint t = {p, elem_bytes};

    hl_team_run_apart(opts->threads, opts->elems, paint_share, &t);
}

int hl_bench_arena_open(const struct hl_bench_opts *opts, struct hl_bench_arena *out)
{
    struct hl_bench_arena a = {.bytes = opts->elems * ARENA_BYTES_PER_ELEM + 8 * PAGE};
    char *next;
    void *base;
    int rc = fits(a.bytes);

    if (rc < 0)
        return rc;
    rc = hl_sys_map(NULL, a.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0,
                    &base);
    if (rc < 0)
        return rc;
    a.base = base;
    hl_sys_madvise(a.base, a.bytes, MADV_HUGEPAGE); /* without them it is slower, not wrong */
    a.bound = hl_team_bind(0, 1, opts->threads) == 0;
    next = a.base + (PAGE - (uintptr_t)a.base % PAGE) % PAGE;
    a.grad = carve(&next, opts->elems * 4);
    a.grad32 = carve(&next, opts->elems * 4);
    a.master = carve(&next, opts->elems * 4);
    a.m = carve(&next, opts->elems * 4);
    a.v = carve(&next, opts->elems * 4);
    a.param = carve(&next, opts->elems * 2);
    paint(opts, a.grad, 4);
    paint(opts, a.grad32, 4);
    paint(opts, a.master, 4);
    paint(opts, a.m, 4);
    paint(opts, a.v, 4);
    paint(opts, a.param, 2);
    *out = a;
    return 0;
}

void hl_bench_arena_close(struct hl_bench_arena *arena)
{
    hl_sys_unmap(arena->base, arena->bytes);
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

int hl_bench_turns(const struct hl_bench_opts *opts, int (*const *run)(void *ctx, unsigned which),
                   void *ctx, unsigned n, struct hl_bench_time *out)
{
    double *taken;
    void *memory;
    int rc = hl_sys_alloc_array((size_t)n * (opts->repeats + 1), sizeof *taken, &memory);

    if (rc < 0)
        return rc;
    taken = memory;
    for (unsigned r = 0; rc == 0 && r <= opts->repeats; r++)
        for (unsigned k = 0; rc == 0 && k < n; k++) {
            unsigned i = (k + r) % n; /* nobody always follows the same neighbour */
            uint64_t start = hl_clock_ns();

            rc = run[i](ctx, i);
            taken[i * (opts->repeats + 1) + r] = (double)(hl_clock_ns() - start);
        }
    for (unsigned i = 0; rc == 0 && i < n; i++) {
        double *t = taken + i * (opts->repeats + 1) + 1; /* round 0 warms up */

        qsort(t, opts->repeats, sizeof *t, ascending);
        out[i].median_ns = (t[(opts->repeats - 1) / 2] + t[opts->repeats / 2]) / 2;
        out[i].fastest_ns = t[0];
        out[i].slowest_ns = t[opts->repeats - 1];
    }
    hl_sys_free(taken);
    return rc;
}

struct turn {
    const struct hl_bench_opts *opts;
    const struct hl_bench_arena *arena;
    const struct hl_bench_case *c;
    const struct hl_kernels *kernels;
    struct haul_optim_arrays arrays;
    struct hl_roof_shape shape;
    unsigned which;
    uint64_t step;
};

static int run_update(void *ctx, unsigned which)
{
    struct turn *t = ctx;
    struct haul_optim_step s = {.struct_size = sizeof s,
                                .step = ++t->step,
                                .lr = 1e-6,
                                .weight_decay = 0.01,
                                .grad_scale = 0.5};

    return hl_optim_update_with(t->kernels, &t->c->opt, &t->arrays, &s, t->opts->threads);
}

static void move_share(void *ctx, uint64_t begin, uint64_t end)
{
    struct turn *t = ctx;
    const struct hl_roof_arrays a = {.grad = t->arena->grad,
                                     .master = t->arena->master,
                                     .moment = {t->arena->m, t->arena->v},
                                     .param = t->arena->param};

    hl_roof_move(&t->shape, (enum hl_roof_way)t->which, &a, begin, end);
}

static int run_roof(void *ctx, unsigned which)
{
    struct turn *t = ctx;

    t->which = which;
    hl_team_run(t->opts->threads, t->opts->elems, move_share, t);
    return 0;
}

static void sumsq_share(void *ctx, uint64_t begin, uint64_t end)
{
    float partial[256]; /* of 1 Mi elements at a time; the values do not matter here */
    struct turn *t = ctx;
    const enum hl_grad_form form = hl_grad_form_of(t->c->grad);
    const uint64_t most = sizeof partial / sizeof *partial * HAUL_NORM_BLOCK;

    for (uint64_t n; begin < end; begin += n) {
        n = end - begin < most ? end - begin : most;
        t->kernels->sumsq[form](partial, t->arena->grad + begin * t->shape.grad_bytes, n);
    }
}

static int run_norm(void *ctx, unsigned which)
{
    struct turn *t = ctx;

    hl_team_run(t->opts->threads, t->opts->elems, sumsq_share, t);
    return 0;
}

static void read_share(void *ctx, uint64_t begin, uint64_t end)
{
    struct turn *t = ctx;

    hl_roof_read(t->arena->grad + begin * t->shape.grad_bytes, (end - begin) * t->shape.grad_bytes,
                 t->which == 1);
}

static int run_read(void *ctx, unsigned which)
{
    struct turn *t = ctx;

    t->which = which;
    hl_team_run(t->opts->threads, t->opts->elems, read_share, t);
    return 0;
}

static int is_split(const struct hl_bench_case *c)
{
    return c->master == HAUL_MASTER_SPLIT;
}

static struct hl_roof_shape shape_of(const struct hl_bench_case *c)
{
    enum haul_optimizer kind = c->opt.kind;
    struct hl_roof_shape s = {
        .grad_bytes = (unsigned)hl_dtype_bytes(c->grad),
        .master_bytes = is_split(c) ? 2 : 4,
        .moment_bytes = (unsigned)hl_dtype_bytes(c->opt.moment_dtype),
        .nmoments = kind == HAUL_ADAMW || kind == HAUL_ADAM    ? 2
                    : kind == HAUL_SGD && c->opt.momentum == 0 ? 0
                                                               : 1,
        .param = is_split(c) ? 2 : c->out != HAUL_DTYPE_NONE,
    };

    if (s.nmoments == 0)
        s.moment_bytes = 4;
    return s;
}

int hl_bench_run(const struct hl_bench_opts *opts, const struct hl_bench_arena *arena,
                 const struct hl_bench_case *c, struct hl_bench_result *out)
{
    int (*run[HL_NROOFS + 1])(void *, unsigned);
    struct hl_bench_time time[HL_NROOFS + 1], *kernel, *roof;
    unsigned nroofs = c->norm ? 2 : HL_NROOFS, best = 0;
    struct turn t = {.opts = opts, .arena = arena, .c = c, .shape = shape_of(c)};
    double n = (double)opts->elems;
    int rc;

    t.kernels = hl_kernels_of(c->isa);
    t.arrays = (struct haul_optim_arrays){.struct_size = sizeof t.arrays,
                                          .n = opts->elems,
                                          .grad_dtype = c->grad,
                                          .param_dtype = c->out,
                                          .master_form = c->master,
                                          .grad = arena->grad,
                                          .master = arena->master,
                                          .m = arena->m,
                                          .v = arena->v,
                                          .param = arena->param};
    for (unsigned i = 0; i < nroofs; i++)
        run[i] = c->norm ? run_read : run_roof;
    run[nroofs] = c->norm ? run_norm : run_update;
    rc = hl_bench_turns(opts, run, &t, nroofs + 1, time);
    if (rc < 0)
        return rc;
    for (unsigned i = 1; i < nroofs; i++)
        if (time[i].median_ns < time[best].median_ns)
            best = i;
    out->bytes_per_elem = c->norm ? t.shape.grad_bytes : hl_roof_bytes(&t.shape);
    kernel = &time[nroofs];
    roof = &time[best];
    out->ns_per_elem = kernel->median_ns / n;
    out->roof_ns_per_elem = roof->median_ns / n;
    out->fastest_ns_per_elem = kernel->fastest_ns / n;
    out->fastest_roof_ns_per_elem = roof->fastest_ns / n;
    out->gb_per_s = out->bytes_per_elem / out->ns_per_elem;
    out->ratio_to_roof = out->roof_ns_per_elem / out->ns_per_elem;
    out->spread = (kernel->slowest_ns - kernel->fastest_ns) / kernel->median_ns;
    out->roof = hl_roof_name((enum hl_roof_way)best);
    return 0;
}
