/* two_layers.c: a whole trainer. Two layers learn the sine of their inputs; parameters, gradients and
 * AdamW's state rest on host and nvme, and come to an emulated device when they are needed.
 *     two_layers DIRECTORY [STEPS]
 * Built with -DWITH_MPI and haul-mpi, it runs on as many ranks as mpirun starts. */
#include <haul/haul.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef WITH_MPI
#include <haul/mpi.h>
#endif

enum { NIN = 16, NHIDDEN = 2048, NOUT = 16, BATCH = 32 };

/* What lies on the device beside the engine's buffers. */
struct activations {
    float x[BATCH][NIN], target[BATCH][NOUT], h[BATCH][NHIDDEN], y[BATCH][NOUT], loss;
};

/* Of the layers, while they are held. Forward may still be queued when backward acquires: two sets. */
static struct haul_view ahead[2], back[2], grad[2];

static void must(int rc)
{
    if (rc < 0) {
        fprintf(stderr, "%s\n", haul_last_error());
        exit(1);
    }
}

static float widen(uint16_t bf16)
{
    uint32_t bits = (uint32_t)bf16 << 16;
    float out;

    memcpy(&out, &bits, sizeof out);
    return out;
}

/* Queued on the device: h = tanh(x W0' + b0) and y = h W1' + b1. W is (outputs, inputs), BF16; b FP32. */
static void forward(int layer, const float *in, int nin, float *out, int nout)
{
    const uint16_t *w = haul_view_tensor(&ahead[layer], 0);
    const float *b = haul_view_tensor(&ahead[layer], 1);

    for (int s = 0; s < BATCH; s++)
        for (int o = 0; o < nout; o++) {
            float sum = b[o];

            for (int i = 0; i < nin; i++)
                sum += widen(w[o * nin + i]) * in[s * nin + i];
            out[s * nout + o] = layer == 0 ? tanhf(sum) : sum;
        }
}

static void forward0(void *user)
{
    struct activations *a = user;

    forward(0, a->x[0], NIN, a->h[0], NHIDDEN);
}

static void forward1(void *user)
{
    struct activations *a = user;

    forward(1, a->h[0], NHIDDEN, a->y[0], NOUT);
}

/* dout (BATCH, nout) becomes gradients, which are added, and, unless din is NULL, din (BATCH, nin). */
static void backward(int layer, const float *in, int nin, const float *dout, int nout, float *din)
{
    const uint16_t *w = haul_view_tensor(&back[layer], 0);
    float *dw = haul_view_tensor(&grad[layer], 0), *db = haul_view_tensor(&grad[layer], 1);

    for (int s = 0; s < BATCH; s++)
        for (int o = 0; o < nout; o++) {
            float d = dout[s * nout + o];

            db[o] += d;
            for (int i = 0; i < nin; i++) {
                dw[o * nin + i] += d * in[s * nin + i];
                if (din != NULL)
                    din[s * nin + i] += d * widen(w[o * nin + i]);
            }
        }
}

static float dh[BATCH][NHIDDEN]; /* from the second layer's backward to the first's */

static void backward1(void *user)
{
    struct activations *a = user;

    a->loss = 0;
    for (int s = 0; s < BATCH; s++)
        for (int o = 0; o < NOUT; o++) {
            float off = a->y[s][o] - a->target[s][o];

            a->loss += off * off / (BATCH * NOUT);
            a->y[s][o] = 2 * off / (BATCH * NOUT);
        }
    memset(dh, 0, sizeof dh);
    backward(1, a->h[0], NHIDDEN, a->y[0], NOUT, dh[0]);
}

static void backward0(void *user)
{
    struct activations *a = user;

    for (int s = 0; s < BATCH; s++)
        for (int i = 0; i < NHIDDEN; i++)
            dh[s][i] *= 1 - a->h[s][i] * a->h[s][i];
    backward(0, a->x[0], NIN, dh[0], NHIDDEN, NULL);
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
    int second = strcmp(unit, "second") == 0;
    uint64_t state = 1000003 * (first + 1) + (uint64_t)second;

    (void)user;
    for (uint64_t i = 0; i < n; i++)
        out[i] = tensor == 1 ? 0 : uniform(&state) / sqrtf(second ? NHIDDEN : NIN);
    return 0;
}

static struct haul_engine *open_engine(struct haul_device *dev, struct haul_comm *comm,
                                       const char *dir, struct haul_unit *unit[2])
{
    const struct haul_tensor first[] = {{"w", 2, {NHIDDEN, NIN}, HAUL_BF16, 0, 0},
                                        {"b", 1, {NHIDDEN}, HAUL_FP32, 0, 0}};
    const struct haul_tensor second[] = {{"w", 2, {NOUT, NHIDDEN}, HAUL_BF16, 0, 0},
                                         {"b", 1, {NOUT}, HAUL_FP32, 0, 0}};
    struct haul_unit_desc desc[] = {{sizeof desc[0], "first", first, 2, HAUL_DTYPE_NONE},
                                    {sizeof desc[0], "second", second, 2, HAUL_DTYPE_NONE}};
    struct haul_engine_opts opts;
    struct haul_engine *engine;

    haul_engine_opts_init(&opts);
    opts.device = dev;
    opts.comm = comm;
    opts.trainer_device_bytes = sizeof(struct activations);
    opts.nvme_dirs = &dir;
    opts.nnvme_dirs = 1;
    opts.slots = 2;
    opts.slot_bytes = 64 << 10;
    opts.host_mem_bytes = 2000 << 10; /* too little for all records: some rest in dir */
    must(haul_engine_open(&opts, &engine));
    for (int u = 0; u < 2; u++)
        must(haul_engine_add_unit(engine, &desc[u], &unit[u]));
    must(haul_engine_build(engine));
    must(haul_engine_fill(engine, initial, NULL));
    return engine;
}

static void one_step(struct haul_device *dev, void *stream, struct haul_unit *const unit[2],
                     struct activations *on_device)
{
    const haul_device_fn forward_fn[] = {forward0, forward1};
    const haul_device_fn backward_fn[] = {backward0, backward1};

    for (int u = 0; u < 2; u++) {
        must(haul_unit_acquire(unit[u], stream, &ahead[u]));
        must(haul_device_launch(dev, stream, forward_fn[u], on_device));
        must(haul_unit_release(unit[u], stream));
    }
    for (int u = 1; u >= 0; u--) {
        must(haul_unit_acquire(unit[u], stream, &back[u]));
        must(haul_unit_grad(unit[u], stream, &grad[u]));
        must(haul_device_launch(dev, stream, backward_fn[u], on_device));
        must(haul_unit_reduce(unit[u], stream));
        must(haul_unit_release(unit[u], stream));
    }
}

/* The points of a step are the same in every run; ranks have their own. */
static void make_batch(struct activations *a, uint64_t step, uint32_t rank)
{
    uint64_t state = 77777 * step + rank;

    for (int s = 0; s < BATCH; s++) {
        for (int i = 0; i < NIN; i++)
            a->x[s][i] = uniform(&state);
        for (int o = 0; o < NOUT; o++)
            a->target[s][o] = sinf(3 * a->x[s][o]);
    }
}

static struct haul_comm *open_ranks(struct haul_device *dev)
{
    struct haul_comm *comm;

#ifdef WITH_MPI
    must(haul_comm_mpi_open(NULL, dev, &comm));
#else
    must(haul_comm_self_open(dev, &comm));
#endif
    return comm;
}

static void print_tiers(struct haul_engine *engine)
{
    static const char *const name[HAUL_NTIERS] = {"device", "host", "nvme"};
    uint64_t planned, peak;

    for (int t = 0; t < HAUL_NTIERS; t++) {
        must(haul_engine_tier_bytes(engine, (enum haul_tier)t, &planned, &peak));
        printf("%-6s %8" PRIu64 " B planned, %8" PRIu64 " B at most\n", name[t], planned, peak);
    }
}

static int train(struct haul_device *dev, const char *dir, uint64_t nsteps)
{
    static struct activations a;
    struct activations *on_device;
    struct haul_comm *comm = open_ranks(dev);
    struct haul_unit *unit[2];
    struct haul_engine *engine = open_engine(dev, comm, dir, unit);
    struct haul_step step = {
        .lr = 3e-3, .weight_decay = 0.01, .clip_norm = 1, .grad_scale = 1.0 / comm->nranks};
    struct haul_report report = {0};
    float first_loss = 0;
    void *stream, *mem;
    uint64_t digest;

    must(haul_device_alloc(dev, sizeof a, &mem));
    on_device = mem;
    must(haul_device_stream_open(dev, &stream));
    for (uint64_t t = 0; t < nsteps; t++) {
        make_batch(&a, t, comm->rank);
        must(haul_device_copy_h2d(dev, on_device, &a, sizeof a, stream));
        one_step(dev, stream, unit, on_device);
        must(haul_device_copy_d2h(dev, &a.loss, &on_device->loss, sizeof a.loss, stream));
        must(haul_engine_step(engine, &step, &report));
        must(haul_device_stream_sync(dev, stream));
        if (t == 0)
            first_loss = a.loss;
        if (comm->rank == 0 && (t % 50 == 0 || t + 1 == nsteps))
            printf("step %3" PRIu64 "  loss %.4f  norm %.3f  clip %.3f\n", t + 1, a.loss,
                   report.grad_norm, report.clip);
    }
    must(haul_engine_digest(engine, &digest));
    if (comm->rank == 0) {
        print_tiers(engine);
        printf("digest %016" PRIx64 "\n", digest);
    }
    haul_engine_close(engine);
    haul_comm_close(comm);
    haul_device_stream_close(dev, stream);
    haul_device_free(dev, mem);
    return a.loss < first_loss / 2 ? 0 : 1;
}

int main(int argc, char **argv)
{
    struct haul_device_host_opts opts;
    struct haul_device *dev;
    int rc;

#ifdef WITH_MPI
    int level;

    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
#endif
    if (argc < 2) {
        fprintf(stderr, "usage: two_layers DIRECTORY [STEPS]\n");
        return 2;
    }
    haul_device_host_opts_init(&opts);
    opts.mem_bytes = 1 << 20; /* of a device */
    opts.h2d_bytes_per_s = opts.d2h_bytes_per_s = 1e9;
    must(haul_device_host_open(&opts, &dev));
    rc = train(dev, argv[1], argc > 2 ? strtoull(argv[2], NULL, 10) : 300);
    must(haul_device_close(dev));
#ifdef WITH_MPI
    MPI_Finalize();
#endif
    return rc;
}
