/*
 * passes.c: the order of a step, and the functions that run on the device.
 *
 * Layer order: each visit acquires its unit once and runs every micro-batch; one reduce a unit and step.
 * Batch order: each micro-batch goes forward and backward through all visits; one reduce each.
 */
#include "trainer.h"

/* Micro-batches [first, end). */
struct span {
    uint32_t first, end;
};

/* Where a micro-batch's kept arrays are: micro-batches share one place with --order batch. */
static uint32_t place(const struct trainer *t, uint32_t micro)
{
    return t->args->order == ORDER_LAYER ? micro : 0;
}

static uint64_t row_elems(const struct trainer *t)
{
    return t->shape.batch * t->shape.seq * t->shape.dim;
}

static real *boundary(const struct trainer *t, uint32_t micro, uint32_t i)
{
    return t->arena.boundaries + (place(t, micro) * (t->shape.layers + 2) + i) * row_elems(t);
}

static void bind_acts(const struct trainer *t, uint32_t micro, uint32_t block,
                      struct gpt_block_acts *out)
{
    uint64_t i = t->args->no_recompute ? place(t, micro) * t->shape.layers + block : 0;

    gpt_block_acts_bind(&t->shape, t->arena.acts + i * gpt_block_acts_elems(&t->shape), out);
}

/* On the device: 16-bit parameters to FP32, once per acquire. */
static void widen(void *user)
{
    const struct job *job = user;
    struct gpt_tensor tensor;
    const struct trainer *t = job->trainer;
    enum gpt_unit kind = trainer_kind(t, job->visit % t->nunits);
    void (*widen_tensor)(const struct gpt_shape *, real *, const uint16_t *, uint64_t) =
        t->args->dtype == HAUL_FP16 ? gpt_widen_fp16 : gpt_widen_bf16;

    for (uint32_t i = 0; i < gpt_unit_ntensors(kind); i++) {
        gpt_unit_tensor(&t->shape, kind, i, &tensor);
        widen_tensor(&t->shape, (real *)job->w[i], job->raw[i], tensor.shape[0] * tensor.shape[1]);
    }
}

static void forward(const struct job *job, const uint8_t *tokens)
{
    const struct trainer *t = job->trainer;
    uint32_t v = job->visit, final = t->nunits - 1;
    struct gpt_block_acts acts;

    if (v == 0) {
        gpt_embed_forward(&t->shape, job->w, tokens, boundary(t, job->micro, 0));
    } else if (v < final) {
        bind_acts(t, job->micro, v - 1, &acts);
        gpt_block_forward(&t->shape, job->w, boundary(t, job->micro, v - 1),
                          boundary(t, job->micro, v), &acts, &t->scratch);
    } else if (v == final) {
        gpt_final_forward(&t->shape, job->w, boundary(t, job->micro, v - 1),
                          boundary(t, job->micro, v), &t->scratch);
    } else {
        t->arena.losses[job->micro] = gpt_head_forward(
            &t->shape, job->w, boundary(t, job->micro, final), tokens, &t->scratch);
    }
}

static void block_backward(const struct job *job, real *d)
{
    const struct trainer *t = job->trainer;
    const real *x = boundary(t, job->micro, job->visit - 1);
    struct gpt_block_acts acts;

    bind_acts(t, job->micro, job->visit - 1, &acts);
    if (!t->args->no_recompute)
        gpt_block_forward(&t->shape, job->w, x, NULL, &acts, &t->scratch);
    gpt_block_backward(&t->shape, job->w, job->g, x, &acts, d, &t->scratch);
}

static void backward(const struct job *job, const uint8_t *tokens)
{
    const struct trainer *t = job->trainer;
    real *d = t->arena.dboundary + place(t, job->micro) * row_elems(t);
    uint32_t v = job->visit, final = t->nunits - 1;

    if (v > final)
        gpt_head_backward(&t->shape, job->w, job->g, boundary(t, job->micro, final), tokens,
                          (real)t->loss_scale, d, &t->scratch);
    else if (v == final)
        gpt_final_backward(&t->shape, job->w, job->g, boundary(t, job->micro, v - 1), d,
                           &t->scratch);
    else if (v > 0)
        block_backward(job, d);
    else
        gpt_embed_backward(&t->shape, job->g, tokens, d);
}

/* On the device: one unit, one micro-batch, one direction. */
static void compute(void *user)
{
    const struct job *job = user;
    const struct trainer *t = job->trainer;
    const uint8_t *tokens = t->arena.tokens + job->micro * t->shape.batch * (t->shape.seq + 1);

    if (job->backward)
        backward(job, tokens);
    else
        forward(job, tokens);
}

/* Pointers of the acquired unit: as they are when FP32, else into the widened copy. */
static void point_at_weights(const struct trainer *t, enum gpt_unit kind,
                             const struct haul_view *view, struct job *job)
{
    struct gpt_tensor tensor;
    uint64_t at = 0;

    for (uint32_t i = 0; i < gpt_unit_ntensors(kind); i++) {
        job->raw[i] = haul_view_tensor(view, i);
        job->w[i] = t->arena.weights == NULL ? job->raw[i] : t->arena.weights + at;
        gpt_unit_tensor(&t->shape, kind, i, &tensor);
        at += tensor.shape[0] * tensor.shape[1];
    }
}

static int launch(struct trainer *t, haul_device_fn fn, const struct job *job)
{
    struct job *slot;
    int rc = 0;

    if (t->njobs == TRAINER_JOBS) {
        rc = haul_device_stream_sync(t->device, t->stream);
        t->njobs = 0;
    }
    if (rc < 0)
        return rc;
    slot = &t->jobs[t->njobs++];
    *slot = *job;
    return haul_device_launch(t->device, t->stream, fn, slot);
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

static int visit(struct trainer *t, uint32_t v, bool back, struct span micros)
{
    uint32_t u = v % t->nunits;
    enum gpt_unit kind = trainer_kind(t, u);
    struct job job = {.trainer = t, .visit = v, .backward = back};
    struct haul_view view;
    int rc;

    rc = haul_unit_acquire(t->units[u], t->stream, &view);
    if (rc < 0)
        return rc;
    point_at_weights(t, kind, &view, &job);
    if (t->arena.weights != NULL)
        rc = launch(t, widen, &job);
    if (rc == 0 && back)
        rc = open_gradient(t, t->units[u], kind, &job);
    for (job.micro = micros.first; rc == 0 && job.micro < micros.end; job.micro++)
        rc = launch(t, compute, &job);
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

    t->njobs = 0; /* the last step ended with the stream done */
    if (t->args->order == ORDER_LAYER)
        return sweep(t, (struct span){0, accum});
    for (uint32_t m = 0; rc == 0 && m < accum; m++)
        rc = sweep(t, (struct span){m, m + 1});
    return rc;
}
