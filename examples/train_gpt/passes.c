/*
 * passes.c: the order of a step: which unit, which micro-batch, which way.
 *
 * Layer order: each visit acquires its unit once and runs every micro-batch; one reduce a unit and step.
 * Batch order: each micro-batch goes forward and backward through all visits; one reduce each.
 */
#include "compute.h"

const void *job_weight(const struct job *job, uint32_t i, size_t elem_bytes)
{
    const struct trainer *t = job->trainer;
    const char *at = t->arena.weights;
    struct gpt_tensor tensor;

    if (at == NULL)
        return job->raw[i];
    for (uint32_t before = 0; before < i; before++) {
        gpt_unit_tensor(&t->shape, job_unit(job), before, &tensor);
        at += tensor.shape[0] * tensor.shape[1] * elem_bytes;
    }
    return at;
}

/* Micro-batches [first, end). */
struct span {
    uint32_t first, end;
};

/* Where a micro-batch's kept arrays are: micro-batches share one place with --order batch. */
static uint32_t place(const struct trainer *t, uint32_t micro)
{
    return micro % t->arena.kept;
}

static uint64_t row_elems(const struct trainer *t)
{
    return t->shape.batch * t->shape.seq * t->shape.dim;
}

static real *boundary(const struct trainer *t, uint32_t micro, uint32_t i)
{
    return t->arena.boundaries +
           ((uint64_t)(i % t->arena.nboundaries) * t->arena.kept + place(t, micro)) * row_elems(t);
}

static void *block_acts(const struct trainer *t, uint32_t micro, uint32_t block)
{
    uint64_t i = t->args->no_recompute ? place(t, micro) * t->shape.layers + block : 0;

    return (char *)t->arena.acts + i * t->arena.block_acts_bytes;
}

/* The arrays of one micro-batch at the job's visit. */
static void point_at_micro(const struct trainer *t, uint32_t v, uint32_t micro, struct job *job)
{
    uint32_t final = t->nunits - 1;

    job->tokens = t->arena.tokens + micro * t->shape.batch * (t->shape.seq + 1);
    job->loss = &t->arena.losses[micro];
    job->d = t->arena.dboundary + place(t, micro) * row_elems(t);
    job->x = v == 0 ? NULL : boundary(t, micro, v - 1);
    job->y = v > final ? NULL : boundary(t, micro, v);
    if (job->part == GPT_PART_BLOCK)
        job->acts = block_acts(t, micro, v - 1);
}

static int open_gradient(struct trainer *t, struct haul_unit *unit, enum gpt_unit kind,
                         struct job *job)
{
    struct haul_view view;
    int rc = haul_unit_grad(unit, t->stream, &view);

    for (uint32_t i = 0; rc == 0 && i < gpt_unit_ntensors(kind); i++)
        job->g[i] = haul_view_tensor(&view, i);
    return rc;
}

/* The embedding's gradient is complete only at its second visit of a backward pass, which is visit 0. */
static bool completes_gradient(const struct trainer *t, uint32_t visit)
{
    return visit < t->nunits;
}

/* Boundary i is a block's input. */
static bool is_stashed(const struct trainer *t, uint32_t i)
{
    return t->args->stash && i < t->shape.layers;
}

/* The input of the block that this visit goes back through, before it; see stash_output(). */
static int unstash_input(struct trainer *t, uint32_t v)
{
    if (v == 0 || !is_stashed(t, v - 1))
        return 0;
    return haul_stash_take(t->engine, boundary(t, 0, v - 1), t->arena.stash_bytes, t->stream);
}

/* What this visit has computed, for all micro-batches kept. The stream waits for the put before, so the
 * buffer of boundary i - 1 may be written from visit i + 1 on; its next turn is visit i + 2. */
static int stash_output(struct trainer *t, uint32_t v)
{
    if (!is_stashed(t, v))
        return 0;
    return haul_stash_put(t->engine, boundary(t, 0, v), t->arena.stash_bytes, t->stream);
}

static enum gpt_part part_of(const struct trainer *t, uint32_t v)
{
    return v == t->nunits ? GPT_PART_HEAD : (enum gpt_part)trainer_kind(t, v);
}

static int visit(struct trainer *t, uint32_t v, bool back, struct span micros)
{
    uint32_t u = v % t->nunits;
    enum gpt_unit kind = trainer_kind(t, u);
    struct job job = {.trainer = t, .part = part_of(t, v), .backward = back};
    struct haul_view view;
    int rc;

    rc = haul_unit_acquire(t->units[u], t->stream, &view);
    if (rc < 0)
        return rc;
    for (uint32_t i = 0; i < gpt_unit_ntensors(kind); i++)
        job.raw[i] = haul_view_tensor(&view, i);
    if (t->arena.weights != NULL)
        rc = compute_weights(&job);
    if (rc == 0 && back)
        rc = open_gradient(t, t->units[u], kind, &job);
    if (rc == 0 && back)
        rc = unstash_input(t, v);
    for (uint32_t m = micros.first; rc == 0 && m < micros.end; m++) {
        point_at_micro(t, v, m, &job);
        rc = compute_run(&job);
    }
    if (rc == 0 && !back)
        rc = stash_output(t, v);
    if (rc == 0 && back && completes_gradient(t, v))
        rc = haul_unit_reduce(t->units[u], t->stream);
    return rc < 0 ? rc : haul_unit_release(t->units[u], t->stream);
}

static int sweep(struct trainer *t, struct span micros)
{
    int rc = 0;

    for (uint32_t v = 0; rc == 0 && v < t->nvisits; v++)
        rc = visit(t, v, false, micros);
    for (uint32_t v = t->nvisits; rc == 0 && v-- > 0;)
        rc = visit(t, v, true, micros);
    return rc;
}

int passes_queue(struct trainer *t)
{
    uint32_t accum = (uint32_t)t->args->accum;
    int rc = 0;

    if (t->args->order == ORDER_LAYER)
        return sweep(t, (struct span){0, accum});
    for (uint32_t m = 0; rc == 0 && m < accum; m++)
        rc = sweep(t, (struct span){m, m + 1});
    return rc;
}
