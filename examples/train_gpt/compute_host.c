/* compute_host.c: the model in FP32 on the CPU, as functions that run on the emulated device. */
#include <errno.h>
#include <stdlib.h>

#include "compute.h"

const enum device_kind compute_device = DEVICE_HOST;

/* Jobs that may be queued before the trainer waits for the stream. */
#define NJOBS 4096

struct compute {
    struct gpt_scratch scratch;
    uint32_t njobs; /* queued since the stream was last known to be done */
    struct job jobs[NJOBS];
};

void compute_bytes(const struct args *args, const struct gpt_shape *shape,
                   struct compute_bytes *out)
{
    uint64_t weights = args->dtype == HAUL_FP32 ? 0 : trainer_largest_unit_elems(shape);

    *out = (struct compute_bytes){weights, gpt_block_acts_elems(shape), gpt_scratch_elems(shape)};
    for (uint64_t *bytes = &out->weights; bytes <= &out->scratch; bytes++)
        if (__builtin_mul_overflow(*bytes, sizeof(real), bytes))
            *bytes = UINT64_MAX;
}

int compute_open(struct trainer *t)
{
    struct haul_device_host_opts opts;

    gpt_model_init();
    haul_device_host_opts_init(&opts);
    opts.mem_bytes = t->args->device_mem_bytes;
    opts.h2d_bytes_per_s = opts.d2h_bytes_per_s = t->args->link_gbps * 1e9;
    t->compute = calloc(1, sizeof *t->compute);
    return t->compute == NULL ? -ENOMEM : haul_device_host_open(&opts, &t->device);
}

int compute_bind(struct trainer *t)
{
    gpt_scratch_bind(&t->shape, t->arena.scratch, &t->compute->scratch);
    return 0;
}

const char *compute_error(void)
{
    return "";
}

void compute_close(struct trainer *t)
{
    free(t->compute);
}

/* --- on the device --- */

static void point_at_weights(const struct job *job, const real *w[GPT_MAX_TENSORS])
{
    for (uint32_t i = 0; i < gpt_unit_ntensors(job_unit(job)); i++)
        w[i] = job_weight(job, i, sizeof *w[i]);
}

/* 16-bit parameters to FP32, once per acquire. */
static void widen(void *user)
{
    const struct job *job = user;
    const struct trainer *t = job->trainer;
    enum gpt_unit unit = job_unit(job);
    real *out = t->arena.weights;
    struct gpt_tensor tensor;
    void (*widen_tensor)(const struct gpt_shape *, real *, const uint16_t *, uint64_t) =
        t->args->dtype == HAUL_FP16 ? gpt_widen_fp16 : gpt_widen_bf16;

    for (uint32_t i = 0; i < gpt_unit_ntensors(unit); i++) {
        gpt_unit_tensor(&t->shape, unit, i, &tensor);
        widen_tensor(&t->shape, out, job->raw[i], tensor.shape[0] * tensor.shape[1]);
        out += tensor.shape[0] * tensor.shape[1];
    }
}

static void forward(const struct job *job, const real *const *w)
{
    const struct gpt_shape *shape = &job->trainer->shape;
    const struct gpt_scratch *scratch = &job->trainer->compute->scratch;
    struct gpt_block_acts acts;

    switch (job->part) {
    case GPT_PART_EMBED:
        gpt_embed_forward(shape, w, job->tokens, job->y);
        break;
    case GPT_PART_BLOCK:
        gpt_block_acts_bind(shape, job->acts, &acts);
        gpt_block_forward(shape, w, job->x, job->y, &acts, scratch);
        break;
    case GPT_PART_FINAL:
        gpt_final_forward(shape, w, job->x, job->y, scratch);
        break;
    case GPT_PART_HEAD:
        *job->loss = gpt_head_forward(shape, w, job->x, job->tokens, scratch);
        break;
    }
}

static void block_backward(const struct job *job, const real *const *w)
{
    const struct trainer *t = job->trainer;
    const struct gpt_scratch *scratch = &t->compute->scratch;
    struct gpt_block_acts acts;

    gpt_block_acts_bind(&t->shape, job->acts, &acts);
    if (!t->args->no_recompute)
        gpt_block_forward(&t->shape, w, job->x, NULL, &acts, scratch);
    gpt_block_backward(&t->shape, w, job->g, job->x, &acts, job->d, scratch);
}

static void backward(const struct job *job, const real *const *w)
{
    const struct trainer *t = job->trainer;
    const struct gpt_scratch *scratch = &t->compute->scratch;

    switch (job->part) {
    case GPT_PART_EMBED:
        gpt_embed_backward(&t->shape, job->g, job->tokens, job->d);
        break;
    case GPT_PART_BLOCK:
        block_backward(job, w);
        break;
    case GPT_PART_FINAL:
        gpt_final_backward(&t->shape, w, job->g, job->x, job->d, scratch);
        break;
    case GPT_PART_HEAD:
        gpt_head_backward(&t->shape, w, job->g, job->x, job->tokens, (real)t->loss_scale, job->d,
                          scratch);
        break;
    }
}

static void compute(void *user)
{
    const struct job *job = user;
    const real *w[GPT_MAX_TENSORS];

    point_at_weights(job, w);
    if (job->backward)
        backward(job, w);
    else
        forward(job, w);
}

/* --- queueing --- */

static int launch(haul_device_fn fn, const struct job *job)
{
    struct trainer *t = job->trainer;
    struct compute *c = t->compute;
    struct job *slot;
    int rc = 0;

    if (c->njobs == NJOBS) {
        rc = haul_device_stream_sync(t->device, t->stream);
        c->njobs = 0;
    }
    if (rc < 0)
        return rc;
    slot = &c->jobs[c->njobs++];
    *slot = *job;
    return haul_device_launch(t->device, t->stream, fn, slot);
}

int compute_weights(const struct job *job)
{
    return launch(widen, job);
}

int compute_run(const struct job *job)
{
    return launch(compute, job);
}
