/* optim_check.c: every way in which an update can be asked for wrongly. */
#include <math.h>
#include <stdio.h>

#include "arith.h"
#include "fail.h"
#include "optim_check.h"

#define CALL "haul_optim_update: "

int hl_optim_has_m(const struct haul_optim *opt)
{
    return opt->kind == HAUL_ADAMW || opt->kind == HAUL_ADAM || opt->kind == HAUL_LION ||
           (opt->kind == HAUL_SGD && opt->momentum != 0);
}

int hl_optim_has_v(const struct haul_optim *opt)
{
    return opt->kind == HAUL_ADAMW || opt->kind == HAUL_ADAM || opt->kind == HAUL_ADAGRAD;
}

static int check_sizes(const struct haul_optim *opt, const struct haul_optim_arrays *arrays,
                       const struct haul_optim_step *step)
{
    if (!opt || !arrays || !step)
        return hl_fail(-EINVAL, CALL "%s is NULL", !opt ? "opt" : !arrays ? "arrays" : "step");
    if (opt->struct_size != sizeof *opt)
        return hl_fail(HAUL_E_ABI, CALL "opt->struct_size is %zu, not %zu; call haul_optim_init",
                       opt->struct_size, sizeof *opt);
    if (arrays->struct_size != sizeof *arrays)
        return hl_fail(HAUL_E_ABI, CALL "arrays->struct_size is %zu, not %zu", arrays->struct_size,
                       sizeof *arrays);
    if (step->struct_size != sizeof *step)
        return hl_fail(HAUL_E_ABI, CALL "step->struct_size is %zu, not %zu", step->struct_size,
                       sizeof *step);
    return 0;
}

/* NaN fails the comparisons too. */
static int check_unit(const char *name, double x)
{
    return x >= 0 && x < 1 ? 0 : hl_fail(-EINVAL, CALL "%s is %g, not in [0, 1)", name, x);
}

static int check_optim(const struct haul_optim *opt)
{
    int rc;

    if ((int)opt->kind < HAUL_ADAMW || opt->kind > HAUL_SGD)
        return hl_fail(-EINVAL, CALL "opt->kind is %d, not an enum haul_optimizer", (int)opt->kind);
    if (opt->amsgrad)
        return hl_fail(-EINVAL, CALL "opt->amsgrad is set; haul does not keep the maximum of v. "
                                     "Leave it 0");
    if (opt->moment_dtype != HAUL_FP32 && opt->moment_dtype != HAUL_BF16)
        return hl_fail(-EINVAL, CALL "opt->moment_dtype is %d; use HAUL_FP32 or HAUL_BF16",
                       (int)opt->moment_dtype);
    if ((rc = check_unit("opt->beta1", opt->beta1)) < 0 ||
        (rc = check_unit("opt->beta2", opt->beta2)) < 0 ||
        (rc = check_unit("opt->momentum", opt->momentum)) < 0)
        return rc;
    if (!(opt->eps >= 0 && isfinite(opt->eps)))
        return hl_fail(-EINVAL, CALL "opt->eps is %g; it must be finite and >= 0", opt->eps);
    if (opt->nesterov && opt->kind == HAUL_SGD && opt->momentum == 0)
        return hl_fail(-EINVAL, CALL "opt->nesterov needs opt->momentum above 0");
    return 0;
}

static int check_rates(const char *where, double lr, double weight_decay)
{
    if (!isfinite(lr))
        return hl_fail(-EINVAL, CALL "%slr is %g; it must be finite", where, lr);
    if (!(weight_decay >= 0 && isfinite(weight_decay)))
        return hl_fail(-EINVAL, CALL "%sweight_decay is %g; it must be finite and >= 0", where,
                       weight_decay);
    return 0;
}

static int check_step(const struct haul_optim_step *step, uint64_t n)
{
    uint64_t left = n;
    char where[48];
    int rc;

    if (!step->step)
        return hl_fail(-EINVAL, CALL "step->step is 0; the first update is step 1");
    if (!isfinite(step->grad_scale))
        return hl_fail(-EINVAL, CALL "step->grad_scale is %g; it must be finite", step->grad_scale);
    if (!step->parts)
        return check_rates("step->", step->lr, step->weight_decay);
    for (uint64_t i = 0; i < step->nparts; i++) {
        const struct haul_optim_part *part = &step->parts[i];

        snprintf(where, sizeof where, "step->parts[%llu].", (unsigned long long)i);
        if ((rc = check_rates(where, part->lr, part->weight_decay)) < 0)
            return rc;
        if (part->n > left)
            return hl_fail(-EINVAL, CALL "%sn reaches past arrays->n", where);
        left -= part->n;
    }
    if (left)
        return hl_fail(-EINVAL, CALL "step->parts cover %llu elements, arrays->n is %llu",
                       (unsigned long long)(n - left), (unsigned long long)n);
    return 0;
}

static int is_grad_dtype(enum haul_dtype dtype)
{
    return dtype == HAUL_FP32 || dtype == HAUL_BF16 || dtype == HAUL_FP16;
}

static int check_forms(const struct haul_optim_arrays *a)
{
    if (!is_grad_dtype(a->grad_dtype))
        return hl_fail(-EINVAL, CALL "arrays->grad_dtype is %d; use HAUL_FP32, BF16 or FP16",
                       (int)a->grad_dtype);
    if (a->param_dtype != HAUL_DTYPE_NONE && a->param_dtype != HAUL_BF16 &&
        a->param_dtype != HAUL_FP16)
        return hl_fail(-EINVAL, CALL "arrays->param_dtype is %d; use HAUL_BF16, FP16 or NONE",
                       (int)a->param_dtype);
    if (a->master_form != HAUL_MASTER_FP32 && a->master_form != HAUL_MASTER_SPLIT)
        return hl_fail(-EINVAL, CALL "arrays->master_form is %d, not an enum haul_master",
                       (int)a->master_form);
    if (a->master_form == HAUL_MASTER_SPLIT && a->param_dtype != HAUL_BF16)
        return hl_fail(-EINVAL, CALL "arrays->master_form is SPLIT, which needs "
                                     "arrays->param_dtype BF16");
    if (a->n > PTRDIFF_MAX / 4)
        return hl_fail(-EINVAL, CALL "arrays->n is more than memory can hold");
    return 0;
}

struct span {
    const char *name;
    uintptr_t at;
    uint64_t bytes; /* 0: not used */
};

static int check_spans(const struct span *s, int n)
{
    for (int i = 0; i < n; i++) {
        if (!s[i].bytes)
            continue;
        if (!s[i].at)
            return hl_fail(-EINVAL, CALL "arrays->%s is NULL", s[i].name);
        if (s[i].at + s[i].bytes < s[i].at)
            return hl_fail(-EINVAL, CALL "arrays->%s wraps around the end of memory", s[i].name);
        for (int j = 0; j < i; j++)
            if (s[j].bytes && s[i].at < s[j].at + s[j].bytes && s[j].at < s[i].at + s[i].bytes)
                return hl_fail(-EINVAL, CALL "arrays->%s and arrays->%s overlap", s[j].name,
                               s[i].name);
    }
    return 0;
}

static int check_arrays(const struct haul_optim *opt, const struct haul_optim_arrays *a)
{
    uint64_t moment = hl_dtype_bytes(opt->moment_dtype);
    const struct span spans[] = {
        {"grad", (uintptr_t)a->grad, a->n * hl_dtype_bytes(a->grad_dtype)},
        {"master", (uintptr_t)a->master, a->n * (a->master_form == HAUL_MASTER_SPLIT ? 2 : 4)},
        {"m", (uintptr_t)a->m, hl_optim_has_m(opt) ? a->n * moment : 0},
        {"v", (uintptr_t)a->v, hl_optim_has_v(opt) ? a->n * moment : 0},
        {"param", (uintptr_t)a->param, a->n * hl_dtype_bytes(a->param_dtype)},
    };

    return check_spans(spans, sizeof spans / sizeof *spans);
}

int hl_optim_check(const struct haul_optim *opt, const struct haul_optim_arrays *arrays,
                   const struct haul_optim_step *step)
{
    int rc;

    if ((rc = check_sizes(opt, arrays, step)) < 0 || (rc = check_optim(opt)) < 0 ||
        (rc = check_forms(arrays)) < 0 || (rc = check_step(step, arrays->n)) < 0)
        return rc;
    return check_arrays(opt, arrays);
}
