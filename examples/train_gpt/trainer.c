/* trainer.c: see trainer.h. */
#include "trainer.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include "compute.h"
#include "data.h"
#include "saves.h"

#define WARMUP_STEPS 20

/* Parameter groups: what weight decay applies to, and norms and biases. */
enum { GROUP_MATRICES = 0, GROUP_VECTORS, NGROUPS };

double trainer_lr(const struct args *args, uint64_t step)
{
    return step < WARMUP_STEPS ? args->lr * (double)step / WARMUP_STEPS : args->lr;
}

/* --- the trainer's own device memory --- */

/* count elements of size bytes each at *at, 64-byte aligned. Saturates. */
static uint64_t cut(uint64_t *at, uint64_t count, uint64_t size)
{
    uint64_t start = *at, n;

    if (__builtin_mul_overflow(count, size, &n) || __builtin_add_overflow(n, 63, &n) ||
        __builtin_add_overflow(start, n & ~63ull, at))
        *at = UINT64_MAX;
    return start;
}

static uint64_t times(uint64_t a, uint64_t b)
{
    uint64_t n;

    return __builtin_mul_overflow(a, b, &n) ? UINT64_MAX : n;
}

uint64_t trainer_largest_unit_elems(const struct gpt_shape *shape)
{
    uint64_t embed = gpt_unit_elems(shape, GPT_EMBED), block = gpt_unit_elems(shape, GPT_BLOCK);

    return embed > block ? embed : block;
}

static void *offset(void *base, uint64_t bytes)
{
    return base == NULL ? NULL : (char *)base + bytes;
}

/* Lay the arena out from base; with base NULL only its size is found. -EOVERFLOW: beyond counting. */
static int lay_out_arena(const struct args *args, const struct gpt_shape *shape, void *base,
                         struct arena *out)
{
    uint64_t rows = shape->batch * shape->seq * shape->dim, at = 0;
    uint64_t kept = args->order == ORDER_LAYER ? args->accum : 1;
    uint64_t nacts = args->no_recompute ? kept * shape->layers : 1;
    struct compute_bytes each;

    compute_bytes(args, shape, &each);
    out->base = base;
    out->tokens = offset(base, cut(&at, args->batch * (args->seq + 1), 1));
    out->losses = offset(base, cut(&at, args->accum, sizeof(double)));
    out->weights = NULL;
    if (each.weights > 0)
        out->weights = offset(base, cut(&at, each.weights, 1));
    out->kept = (uint32_t)kept;
    out->nboundaries = args->stash ? STASH_BUFFERS : (uint32_t)shape->layers + 2;
    out->stash_bytes = times(times(kept, rows), sizeof(real));
    out->boundaries = offset(base, cut(&at, times(kept * out->nboundaries, rows), sizeof(real)));
    out->dboundary = offset(base, cut(&at, times(kept, rows), sizeof(real)));
    out->acts = offset(base, cut(&at, times(nacts, each.block_acts), 1));
    out->block_acts_bytes = each.block_acts;
    out->scratch = offset(base, cut(&at, each.scratch, 1));
    out->bytes = at;
    return at == UINT64_MAX || at > INT64_MAX ? -EOVERFLOW : 0;
}

static int open_arena(struct trainer *t)
{
    void *base;
    int rc = haul_device_alloc(t->device, t->arena.bytes, &base);

    if (rc < 0)
        return rc;
    return lay_out_arena(t->args, &t->shape, base, &t->arena);
}

/* --- the engine --- */

static int open_engine(struct trainer *t)
{
    const struct args *args = t->args;
    struct haul_engine_opts opts;

    haul_engine_opts_init(&opts);
    opts.device = t->device;
    opts.comm = t->ranks->comm;
    opts.plan_only = args->plan_only;
    opts.share = (enum haul_share)args->share;
    opts.stage = (uint32_t)args->stage;
    opts.offload = (enum haul_offload)args->offload;
    opts.master = (enum haul_master)args->master;
    opts.grad_dtype = (enum haul_dtype)args->grad_dtype;
    opts.loss_scale = args->grad_dtype == HAUL_FP16 ? args->loss_scale : 0;
    opts.loss_scale_window = args->loss_scale_window;
    opts.optim = args->optim;
    opts.ngroups = NGROUPS;
    opts.device_mem_bytes = args->device_mem_bytes;
    opts.host_mem_bytes = args->host_mem_bytes;
    opts.nvme_mem_bytes = args->nvme_mem_bytes;
    opts.nvme_dirs = args->nvme_dirs;
    opts.nnvme_dirs = args->nnvme_dirs;
    opts.nvme_durable = args->nvme_durable;
    opts.io_method = (enum haul_io_method)args->io;
    opts.slots = args->slots != 0 ? (uint32_t)args->slots : opts.slots;
    opts.slot_bytes = args->slot_bytes;
    opts.stash_entries = args->stash ? (uint32_t)args->layers : 0;
    opts.stash_entry_bytes = args->stash ? t->arena.stash_bytes : 0;
    opts.stash_host_bytes = args->stash_mem_bytes;
    opts.trace_events = args->trace != NULL ? TRAINER_TRACE_EVENTS : 0;
    opts.trainer_device_bytes = t->arena.bytes;
    opts.passes = args->order == ORDER_BATCH ? (uint32_t)args->accum : 1;
    opts.window = args->window != 0 ? (uint32_t)args->window : opts.window;
    t->window = opts.window != 0 ? opts.window : opts.max_held + 1;
    opts.nthreads = (uint32_t)args->threads;
    opts.overlap = !args->no_overlap;
    opts.work = args->quiet || t->ranks->rank != 0 ? NULL : work_line_at;
    opts.work_user = &t->work;
    return haul_engine_open(&opts, &t->engine);
}

void trainer_unit_name(const struct trainer *t, uint32_t u, char *out, size_t size)
{
    if (trainer_kind(t, u) == GPT_BLOCK)
        snprintf(out, size, "block.%u", u - 1);
    else
        snprintf(out, size, "%s", u == 0 ? "embed" : "final");
}

static int add_unit(struct trainer *t, uint32_t u)
{
    enum gpt_unit kind = trainer_kind(t, u);
    struct haul_tensor tensors[GPT_MAX_TENSORS] = {0};
    struct gpt_tensor tensor;
    char name[32];
    struct haul_unit_desc desc = {.struct_size = sizeof desc,
                                  .name = name,
                                  .tensors = tensors,
                                  .ntensors = gpt_unit_ntensors(kind),
                                  .grad_dtype = HAUL_FP32};

    trainer_unit_name(t, u, name, sizeof name);
    for (uint32_t i = 0; i < desc.ntensors; i++) {
        gpt_unit_tensor(&t->shape, kind, i, &tensor);
        tensors[i] = (struct haul_tensor){.name = tensor.name,
                                          .ndims = tensor.ndims,
                                          .shape = {tensor.shape[0], tensor.shape[1]},
                                          .dtype = (enum haul_dtype)t->args->dtype,
                                          .group = tensor.decay ? GROUP_MATRICES : GROUP_VECTORS};
    }
    return haul_engine_add_unit(t->engine, &desc, &t->units[u]);
}

static int add_units(struct trainer *t)
{
    struct haul_unit **visits = calloc(t->nvisits, sizeof *visits);
    int rc = visits == NULL ? -ENOMEM : 0;

    for (uint32_t u = 0; rc == 0 && u < t->nunits; u++)
        rc = add_unit(t, u);
    for (uint32_t v = 0; rc == 0 && v < t->nvisits; v++)
        visits[v] = t->units[v % t->nunits];
    if (rc == 0)
        rc = haul_engine_visits(t->engine, visits, t->nvisits);
    free(visits);
    return rc;
}

/* --- fresh weights --- */

struct filling {
    const struct trainer *trainer;
    struct weights *weights;
    uint64_t seed;
};

/* A normal number for each (seed, tensor, i), by Box and Muller: pieces may come in any order. */
static double normal(uint64_t seed, uint64_t stream, uint64_t i)
{
    double u = 1 - (double)(data_hash(seed, stream, 2 * i) >> 11) * 0x1p-53;
    double v = (double)(data_hash(seed, stream, 2 * i + 1) >> 11) * 0x1p-53;

    return sqrt(-2 * log(u)) * cos(2 * M_PI * v);
}

static uint32_t unit_index(const struct trainer *t, const char *name)
{
    char each[32];

    for (uint32_t u = 0; u < t->nunits; u++) {
        trainer_unit_name(t, u, each, sizeof each);
        if (strcmp(each, name) == 0)
            return u;
    }
    return 0;
}

static int fill_tensor(void *user, const char *unit, uint32_t tensor, uint64_t first, uint64_t n,
                       float *out)
{
    const struct filling *filling = user;
    const struct trainer *t = filling->trainer;
    uint32_t u = unit_index(t, unit);
    struct gpt_tensor info;

    if (filling->weights->file != NULL)
        return weights_read(filling->weights, trainer_kind(t, u), u - 1, tensor, first, n, out);
    gpt_unit_tensor(&t->shape, trainer_kind(t, u), tensor, &info);
#pragma omp parallel for schedule(static) num_threads(t->shape.nthreads)
    for (uint64_t i = 0; i < n; i++) {
        out[i] = (float)info.init_value;
        if (info.init_std > 0)
            out[i] =
                (float)(info.init_std *
                        normal(filling->seed, (uint64_t)u * GPT_MAX_TENSORS + tensor, first + i));
    }
    return 0;
}

/* Batches are drawn from the seed itself, weights from its complement. */
static int fill(struct trainer *t)
{
    struct filling filling = {t, &t->weights, ~t->args->seed};
    int rc = haul_engine_fill(t->engine, fill_tensor, &filling);

    work_line_end(&t->work);
    weights_close(&t->weights);
    if (rc == 0 && t->args->dump_init != NULL)
        rc = weights_write(t, t->args->dump_init);
    return rc;
}

/* --- open and close --- */

static int allocate_host(struct trainer *t)
{
    const struct args *args = t->args;

    t->units = calloc(t->nunits, sizeof(struct haul_unit *));
    t->tokens = malloc(args->batch * (args->seq + 1));
    t->losses = calloc(args->accum, sizeof *t->losses);
    return t->units == NULL || t->tokens == NULL || t->losses == NULL ? -ENOMEM : 0;
}

static int open_rest(struct trainer *t)
{
    int rc = ranks_connect(t->ranks, t->args, t->device);

    if (rc == 0)
        rc = open_engine(t);
    if (rc == 0)
        rc = add_units(t);
    if (rc < 0 || t->args->plan_only)
        return rc;
    rc = haul_engine_build(t->engine);
    work_line_end(&t->work);
    if (rc == 0)
        rc = open_arena(t);
    if (rc == 0)
        rc = haul_device_stream_open(t->device, &t->stream);
    if (rc == 0)
        rc = compute_bind(t);
    if (rc < 0)
        return rc;
    return t->args->resume != NULL ? saves_load(t) : fill(t);
}

int trainer_open(const struct args *args, struct ranks *ranks, struct trainer *out)
{
    struct trainer *t = out;
    uint32_t layers = (uint32_t)args->layers;
    int rc, code = EXIT_FAILED;

    *t =
        (struct trainer){.args = args, .ranks = ranks, .nunits = layers + 2, .nvisits = layers + 3};
    t->seed = args->seed;
    t->shape = (struct gpt_shape){.layers = args->layers,
                                  .dim = args->dim,
                                  .heads = args->heads,
                                  .seq = args->seq,
                                  .vocab = args->vocab,
                                  .batch = args->batch / args->accum,
                                  .nthreads = haul_optim_threads(ranks->nlocal)};
    if (lay_out_arena(args, &t->shape, NULL, &t->arena) < 0) {
        fprintf(stderr, "train_gpt: activations of more than 2^63 bytes; lower --batch, --seq, "
                        "--dim or --layers\n");
        return EXIT_USAGE;
    }
    if (weights_open(args->init, &t->shape, &t->weights) < 0)
        return EXIT_FAILED;
    rc = allocate_host(t);
    if (rc == 0)
        rc = compute_open(t);
    if (rc == HAUL_E_DEVICE)
        code = EXIT_ENVIRONMENT;
    if (rc == 0)
        rc = open_rest(t);
    if (rc == 0)
        return EXIT_OK;
    trainer_complain(t, rc);
    trainer_close(t);
    return code;
}

const char *trainer_error(int rc)
{
    if (compute_error()[0] != '\0')
        return compute_error();
    return haul_last_error()[0] != '\0' ? haul_last_error() : haul_strerror(rc);
}

void trainer_complain(const struct trainer *t, int rc)
{
    const char *text = t->text[0] != '\0' ? t->text : trainer_error(rc);

    if (t->ranks->nranks > 1)
        fprintf(stderr, "train_gpt: rank %u: %s\n", t->ranks->rank, text);
    else
        fprintf(stderr, "train_gpt: %s\n", text);
}

void trainer_close(struct trainer *t)
{
    if (t->stream != NULL)
        haul_device_stream_close(t->device, t->stream);
    compute_close(t);
    haul_engine_close(t->engine);
    ranks_disconnect(t->ranks);
    haul_device_free(t->device, t->arena.base);
    haul_device_close(t->device);
    weights_close(&t->weights);
    free(t->units);
    free(t->tokens);
    free(t->losses);
}

/* --- a step --- */

int trainer_step(struct trainer *t, uint64_t step, bool stop, double *loss,
                 struct haul_report *report)
{
    const struct args *args = t->args;
    double lr = trainer_lr(args, step), sum = 0;
    struct haul_group_step groups[NGROUPS] = {
        [GROUP_MATRICES] = {lr, args->weight_decay}, [GROUP_VECTORS] = {lr, 0}};
    struct haul_step end = {.struct_size = sizeof end,
                            .groups = groups,
                            .clip_norm = args->clip,
                            .grad_scale = 1.0 / (double)(args->accum * args->ranks),
                            .stop = stop};
    int rc;

    t->loss_scale = haul_engine_loss_scale(t->engine);
    rc = haul_device_copy_h2d(t->device, t->arena.tokens, t->tokens, args->batch * (args->seq + 1),
                              t->stream);
    if (rc == 0)
        rc = passes_queue(t);
    if (rc == 0)
        rc = haul_device_copy_d2h(t->device, t->losses, t->arena.losses,
                                  args->accum * sizeof *t->losses, t->stream);
    if (rc == 0)
        rc = haul_device_stream_sync(t->device, t->stream);
    if (rc == 0)
        rc = haul_engine_step(t->engine, &end, report);
    if (rc < 0)
        return rc;
    for (uint64_t m = 0; m < args->accum; m++)
        sum += t->losses[m];
    *loss = sum / (double)args->accum;
    rc = ranks_mean(t->ranks, loss);
    if (rc < 0 && haul_engine_sync(t->engine) < 0) /* it may know why the ranks have parted */
        return -EIO;
    return rc;
}
