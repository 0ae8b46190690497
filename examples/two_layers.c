/* two_layers.c: a whole trainer. Two layers learn the sine of their inputs; parameters, gradients and AdamW's
 * state rest on host and nvme, and come to an emulated device when they are needed.
 *     two_layers DIRECTORY [STEPS [CHECKPOINTS]]
 * With CHECKPOINTS it goes on from the newest one there, and saves at the end. Built with -DWITH_MPI and
 * haul-mpi, it runs on as many ranks as mpirun starts. */
#include <errno.h>
#include <haul/haul.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#ifdef WITH_MPI
#include <haul/mpi.h>
#endif

enum { NIN = 16, NHIDDEN = 2048, NOUT = 16, BATCH = 32 };

/* What lies on the device beside the engine's buffers; arrays are (BATCH, width). */
struct activations {
    float x[BATCH * NIN], h[BATCH * NHIDDEN], y[BATCH * NOUT], dh[BATCH * NHIDDEN], loss;
};

/* out = in W' + b; W (nout, nin) in BF16, b FP32. Forward may still be queued when backward acquires: two views. */
struct layer {
    int nin, nout;
    float *in, *out, *dout, *din; /* din NULL: the first layer, whose outputs pass through tanh */
    struct haul_unit *unit;
    struct haul_view ahead, back, grad;
};

static void must(int rc)
{
    if (rc < 0)
        exit((fprintf(stderr, "%s\n", haul_last_error()), 1));
}

static float widen(uint16_t bf16)
{
    return (union {
               uint32_t bits;
               float value;
           }){(uint32_t)bf16 << 16}
        .value;
}

/* Forward, loss and backward are queued on the device. */
static void forward(void *user)
{
    const struct layer *l = user;
    const uint16_t *w = haul_view_tensor(&l->ahead, 0);
    const float *b = haul_view_tensor(&l->ahead, 1);

    for (int k = 0; k < BATCH * l->nout; k++) {
        const int row = k / l->nout, o = k % l->nout;
        float sum = b[o];

        for (int i = 0; i < l->nin; i++)
            sum += widen(w[o * l->nin + i]) * l->in[row * l->nin + i];
        l->out[k] = l->din ? sum : tanhf(sum);
    }
}

/* Mean square; what backward begins with takes the place of the outputs. */
static void loss(void *user)
{
    struct activations *a = user;

    a->loss = 0;
    for (int k = 0; k < BATCH * NOUT; k++) {
        a->y[k] -= sinf(3 * a->x[k]);
        a->loss += a->y[k] * a->y[k] / (BATCH * NOUT);
        a->y[k] *= 2.0f / (BATCH * NOUT);
    }
}

/* Gradients are added to what is in their buffers. */
static void backward(void *user)
{
    const struct layer *l = user;
    const uint16_t *w = haul_view_tensor(&l->back, 0);
    float *dw = haul_view_tensor(&l->grad, 0), *db = haul_view_tensor(&l->grad, 1);

    for (int k = 0; k < BATCH * l->nout; k++) {
        const int row = k / l->nout * l->nin, o = k % l->nout;
        const float d = l->dout[k] * (l->din ? 1 : 1 - l->out[k] * l->out[k]);

        db[o] += d;
        for (int i = 0; i < l->nin; i++) {
            dw[o * l->nin + i] += d * l->in[row + i];
            if (l->din)
                l->din[row + i] = (o ? l->din[row + i] : 0) + d * widen(w[o * l->nin + i]);
        }
    }
}

static float uniform(uint64_t *state) /* in [-1, 1) */
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (float)(int32_t)(*state >> 32) / 2147483648.0f;
}

/* Weights as wide as their inputs allow; biases, which are tensor 1, zero. */
static int initial(void *user, const char *unit, uint32_t tensor, uint64_t first, uint64_t n,
                   float *out)
{
    const float nin = (float)((struct layer *)user)[unit[0] - '0'].nin;
    uint64_t state = 1000003 * (first + 1);

    for (uint64_t i = 0; i < n; i++)
        out[i] = tensor == 1 ? 0 : uniform(&state) / sqrtf(nin);
    return 0;
}

/* From a checkpoint, or anew. Returns the steps that have been taken. */
static uint64_t begin(struct haul_engine *engine, struct layer layer[2], const char *root)
{
    struct haul_checkpoint_info info = {0};

    for (int i = 0; i < 2; i++) {
        const uint64_t nin = (uint64_t)layer[i].nin, nout = (uint64_t)layer[i].nout;
        const struct haul_tensor t[] = {
            {.name = "w", .ndims = 2, .shape = {nout, nin}, .dtype = HAUL_BF16},
            {.name = "b", .ndims = 1, .shape = {nout}, .dtype = HAUL_FP32}};
        const struct haul_unit_desc desc = {sizeof desc, i ? "1" : "0", t, 2, HAUL_DTYPE_NONE};

        must(haul_engine_add_unit(engine, &desc, &layer[i].unit));
    }
    must(haul_engine_build(engine));
    must(haul_engine_fill(engine, initial, layer));
    int rc = root ? haul_checkpoint_load(engine, root, NULL, &info) : 0;
    must(rc == -ENOENT ? 0 : rc);
    return info.step;
}

static void one_step(struct haul_device *dev, void *stream, struct layer layer[2],
                     void *activations)
{
    for (struct layer *l = layer; l < layer + 2; l++) {
        must(haul_unit_acquire(l->unit, stream, &l->ahead));
        must(haul_device_launch(dev, stream, forward, l));
        must(haul_unit_release(l->unit, stream));
    }
    must(haul_device_launch(dev, stream, loss, activations));
    for (struct layer *l = layer + 2; l-- > layer;) {
        must(haul_unit_acquire(l->unit, stream, &l->back));
        must(haul_unit_grad(l->unit, stream, &l->grad));
        must(haul_device_launch(dev, stream, backward, l));
        must(haul_unit_reduce(l->unit, stream));
        must(haul_unit_release(l->unit, stream));
    }
}

static void train(const struct haul_engine_opts *opts, uint64_t nsteps, const char *root)
{
    static struct activations a; /* of the host: what goes up is x, what comes down the loss */
    struct haul_step step = {
        .lr = 3e-3, .weight_decay = 0.01, .clip_norm = 1, .grad_scale = 1.0 / opts->comm->nranks};
    struct haul_report report = {0};
    struct haul_engine *engine;
    void *stream, *mem;
    uint64_t digest;

    must(haul_device_alloc(opts->device, sizeof a, &mem));
    must(haul_device_stream_open(opts->device, &stream));
    must(haul_engine_open(opts, &engine));
    struct activations *d = mem;
    struct layer layer[2] = {
        {.nin = NIN, .nout = NHIDDEN, .in = d->x, .out = d->h, .dout = d->dh},
        {.nin = NHIDDEN, .nout = NOUT, .in = d->h, .out = d->y, .dout = d->y, .din = d->dh}};
    for (uint64_t t = begin(engine, layer, root); t < nsteps; t++) {
        uint64_t state =
            77777 * t + opts->comm->rank; /* the points of a step are the same in every run */
        for (int i = 0; i < BATCH * NIN; i++)
            a.x[i] = uniform(&state);
        must(haul_device_copy_h2d(opts->device, d->x, a.x, sizeof a.x, stream));
        one_step(opts->device, stream, layer, d);
        must(haul_device_copy_d2h(opts->device, &a.loss, &d->loss, sizeof a.loss, stream));
        must(haul_engine_step(engine, &step, &report));
        must(haul_device_stream_sync(opts->device, stream));
        if (opts->comm->rank == 0 && (t % 50 == 0 || t + 1 == nsteps))
            printf("step %3" PRIu64 "  loss %.4f  norm %.3f\n", t + 1, a.loss, report.grad_norm);
    }
    must(root ? haul_checkpoint_save(engine, root, NULL) : 0);
    must(haul_engine_digest(engine, &digest));
    if (opts->comm->rank == 0)
        printf("digest %016" PRIx64 "\n", digest);
    haul_engine_close(engine);
    haul_device_stream_close(opts->device, stream);
    haul_device_free(opts->device, mem);
}

int main(int argc, char **argv)
{
    struct haul_device_host_opts device;
    struct haul_engine_opts opts;

    if (argc < 2)
        return fprintf(stderr, "usage: two_layers DIRECTORY [STEPS [CHECKPOINTS]]\n"), 2;
    haul_device_host_opts_init(&device);
    device.mem_bytes = 3 << 19; /* of a device */
    device.h2d_bytes_per_s = device.d2h_bytes_per_s = 1e9;
    haul_engine_opts_init(&opts);
    opts.trainer_device_bytes = sizeof(struct activations);
    opts.nvme_dirs = (const char *const *)argv + 1;
    opts.nnvme_dirs = 1;
    opts.slots = 2;
    opts.slot_bytes = 64 << 10;
    opts.host_mem_bytes = 2000 << 10; /* too little for all records: some rest in DIRECTORY */
    must(haul_device_host_open(&device, &opts.device));
#ifdef WITH_MPI
    must(MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &(int){0}));
    must(haul_comm_mpi_open(NULL, opts.device, &opts.comm));
#else
    must(haul_comm_self_open(opts.device, &opts.comm));
#endif
    train(&opts, argc > 2 ? strtoull(argv[2], NULL, 10) : 300, argc > 3 ? argv[3] : NULL);
    haul_comm_close(opts.comm);
#ifdef WITH_MPI
    MPI_Finalize();
#endif
    return haul_device_close(opts.device) < 0;
}
