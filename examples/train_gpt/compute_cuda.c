/* compute_cuda.c: the model on a GPU: matrix products in BF16 with FP32 sums, the rest in kernels. */
#include <errno.h>
#include <stdlib.h>

#include "compute.h"
#include "cuda_gpt.h"

const enum device_kind compute_device = DEVICE_CUDA;

struct compute {
    struct gpu *gpu;
    struct cuda_gpt model;
};

/* The workspace of cuBLAS, and then the model's scratch, begin at 256 bytes; the arena's parts at 64. */
#define SCRATCH_SLACK 192

/* Parameters are computed with in BF16. */
void compute_bytes(const struct args *args, const struct gpt_shape *shape,
                   struct compute_bytes *out)
{
    uint64_t n = trainer_largest_unit_elems(shape), scratch = cuda_gpt_scratch_bytes(shape);

    *out = (struct compute_bytes){.block_acts = cuda_gpt_acts_bytes(shape), .scratch = UINT64_MAX};
    if (args->dtype != HAUL_BF16 && __builtin_mul_overflow(n, sizeof(gk_half), &out->weights))
        out->weights = UINT64_MAX;
    if (scratch < INT64_MAX)
        out->scratch = scratch + GPU_WORKSPACE_BYTES + SCRATCH_SLACK;
}

int compute_open(struct trainer *t)
{
    struct haul_device_cuda_opts opts;
    int rc;

    haul_device_cuda_opts_init(&opts);
    opts.local_rank = (int32_t)t->ranks->local_rank;
    opts.mem_bytes = t->args->device_mem_bytes;
    rc = haul_device_cuda_open(&opts, &t->device);
    if (rc < 0)
        return rc;
    t->compute = calloc(1, sizeof *t->compute);
    return t->compute == NULL ? -ENOMEM : gpu_open(t->ranks->local_rank, &t->compute->gpu);
}

int compute_bind(struct trainer *t)
{
    struct compute *c = t->compute;
    char *workspace = (char *)(((uintptr_t)t->arena.scratch + SCRATCH_SLACK) & ~(uintptr_t)255);

    cuda_gpt_bind(c->gpu, &t->shape, workspace + GPU_WORKSPACE_BYTES, &c->model);
    return gpu_bind(c->gpu, t->stream, workspace);
}

const char *compute_error(void)
{
    return gpu_error();
}

void compute_close(struct trainer *t)
{
    if (t->compute != NULL)
        gpu_close(t->compute->gpu);
    free(t->compute);
}

static void point_at_weights(const struct job *job, const gk_half *w[GPT_MAX_TENSORS])
{
    for (uint32_t i = 0; i < gpt_unit_ntensors(job_unit(job)); i++)
        w[i] = job_weight(job, i, sizeof *w[i]);
}

int compute_weights(const struct job *job)
{
    const struct trainer *t = job->trainer;
    enum gpt_unit unit = job_unit(job);
    gk_half *out = t->arena.weights;
    struct gpt_tensor tensor;

    for (uint32_t i = 0; i < gpt_unit_ntensors(unit); i++) {
        struct gk_args args = {.raw = job->raw[i], .x = job->raw[i], .y16 = out};

        gpt_unit_tensor(&t->shape, unit, i, &tensor);
        args.n = tensor.shape[0] * tensor.shape[1];
        gpu_launch(t->compute->gpu, t->args->dtype == HAUL_FP16 ? GK_narrow_fp16 : GK_narrow,
                   &args);
        out += args.n;
    }
    return gpu_status(t->compute->gpu);
}

static void forward(const struct job *job, const gk_half *const *w)
{
    const struct cuda_gpt *m = &job->trainer->compute->model;
    struct cuda_gpt_acts acts;

    switch (job->part) {
    case GPT_PART_EMBED:
        cuda_gpt_embed_forward(m, w, job->tokens, job->y);
        break;
    case GPT_PART_BLOCK:
        cuda_gpt_acts_bind(&m->shape, job->acts, &acts);
        cuda_gpt_block_forward(m, w, job->x, job->y, &acts);
        break;
    case GPT_PART_FINAL:
        cuda_gpt_final_forward(m, w, job->x, job->y);
        break;
    case GPT_PART_HEAD:
        cuda_gpt_head_forward(m, w, job->x, job->tokens, job->loss);
        break;
    }
}

static void block_backward(const struct job *job, const gk_half *const *w)
{
    const struct cuda_gpt *m = &job->trainer->compute->model;
    struct cuda_gpt_acts acts;

    cuda_gpt_acts_bind(&m->shape, job->acts, &acts);
    if (!job->trainer->args->no_recompute)
        cuda_gpt_block_forward(m, w, job->x, NULL, &acts);
    cuda_gpt_block_backward(m, w, job->g, job->x, &acts, job->d);
}

static void backward(const struct job *job, const gk_half *const *w)
{
    const struct cuda_gpt *m = &job->trainer->compute->model;

    switch (job->part) {
    case GPT_PART_EMBED:
        cuda_gpt_embed_backward(m, job->g, job->tokens, job->d);
        break;
    case GPT_PART_BLOCK:
        block_backward(job, w);
        break;
    case GPT_PART_FINAL:
        cuda_gpt_final_backward(m, w, job->g, job->x, job->d);
        break;
    case GPT_PART_HEAD:
        cuda_gpt_head_backward(m, w, job->g, job->x, job->tokens, (gk_real)job->trainer->loss_scale,
                               job->d);
        break;
    }
}

int compute_run(const struct job *job)
{
    const gk_half *w[GPT_MAX_TENSORS];

    point_at_weights(job, w);
    if (job->backward)
        backward(job, w);
    else
        forward(job, w);
    return gpu_status(job->trainer->compute->gpu);
}
