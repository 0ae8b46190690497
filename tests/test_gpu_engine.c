/*
 * The engine on a GPU, or on the fake driver. What computes are haul's own kernels, which every device has, so
 * one model runs everywhere: its digests are those of the emulated device in every placement (R1), and what
 * the device may hold is held to (R3).
 */
#include "haul/engine.h"
#include "test_cuda_fixture.h"

enum { UNITS = 6, TENSORS = 2, STEPS = 4, MOST_STEPS = 8 };

/* A unit: one BF16 tensor and one FP32 of so many elements. */
static uint64_t sizes[TENSORS];
static const enum haul_dtype dtypes[TENSORS] = {HAUL_BF16, HAUL_FP32};

struct model {
    struct haul_device *dev;
    void *stream;
    struct haul_engine *engine;
    struct haul_unit *unit[UNITS];
    float *acts;  /* (largest,) on the device: what forward saw of the unit before */
    float *noise; /* (largest + 64 * MOST_STEPS,) on the device */
    uint64_t peak_bytes;
};

static void check(int rc)
{
    cr_assert_eq(rc, 0, "%s: %s", haul_strerror(rc), haul_last_error());
}

static int fill(void *user, const char *unit, uint32_t tensor, uint64_t first, uint64_t n,
                float *out)
{
    for (uint64_t i = 0; i < n; i++)
        out[i] = (float)((first + i) * 31 % 1009) * 0x1p-9f - (float)(unit[0] - 'a' + tensor);
    return 0;
}

static uint64_t largest(void)
{
    return sizes[0] > sizes[1] ? sizes[0] : sizes[1];
}

static void add_unit(struct model *m, int u)
{
    char name[] = {(char)('a' + u), '\0'};
    struct haul_tensor tensors[TENSORS] = {
        {.name = "half", .ndims = 1, .shape = {sizes[0]}, .dtype = dtypes[0]},
        {.name = "full", .ndims = 1, .shape = {sizes[1]}, .dtype = dtypes[1]}};
    struct haul_unit_desc desc = {
        .struct_size = sizeof desc, .name = name, .tensors = tensors, .ntensors = TENSORS};

    check(haul_engine_add_unit(m->engine, &desc, &m->unit[u]));
}

static void describe(struct model *m, const struct haul_engine_opts *opts)
{
    struct haul_engine_opts o = *opts;

    o.device = m->dev;
    check(haul_engine_open(&o, &m->engine));
    for (int u = 0; u < UNITS; u++)
        add_unit(m, u);
}

static void open_compute(struct model *m)
{
    uint64_t n = largest() + 64 * MOST_STEPS;
    float *noise = malloc(4 * n);

    for (uint64_t i = 0; i < n; i++)
        noise[i] = (float)(i * 7919 % 2003) * 0x1p-8f - 4;
    check(haul_device_stream_open(m->dev, &m->stream));
    m->acts = device_mem(m->dev, 4 * largest());
    m->noise = device_mem(m->dev, 4 * n);
    check(haul_device_copy_h2d(m->dev, m->noise, noise, 4 * n, m->stream));
    check(haul_device_stream_sync(m->dev, m->stream));
    free(noise);
}

static void open_model(struct model *m, struct haul_device *dev,
                       const struct haul_engine_opts *opts)
{
    *m = (struct model){.dev = dev};
    describe(m, opts);
    check(haul_engine_build(m->engine));
    check(haul_engine_fill(m->engine, fill, NULL));
    open_compute(m);
}

static void close_model(struct model *m)
{
    struct haul_device_mem mem = {.struct_size = sizeof mem};

    check(haul_device_stream_sync(m->dev, m->stream));
    check(haul_device_mem_info(m->dev, &mem));
    m->peak_bytes = mem.peak_bytes;
    haul_engine_close(m->engine);
    haul_device_stream_close(m->dev, m->stream);
    haul_device_free(m->dev, m->acts);
    haul_device_free(m->dev, m->noise);
    check(haul_device_close(m->dev));
}

/* ---- a step: a gradient is what forward saw of the unit before, what backward sees, and noise ---- */

static int see(struct model *m, float *acc, const struct haul_view *w, int tensor, int first)
{
    return m->dev->ops->accumulate(m->dev, acc, haul_view_tensor(w, (uint32_t)tensor),
                                   dtypes[tensor], sizes[tensor], first, m->stream);
}

static void forward(struct model *m, int u)
{
    struct haul_view w;

    check(haul_unit_acquire(m->unit[u], m->stream, &w));
    for (int t = 0; t < TENSORS; t++)
        check(see(m, m->acts, &w, t, t == 0));
    check(haul_unit_release(m->unit[u], m->stream));
}

static void backward(struct model *m, int u, unsigned step)
{
    struct haul_view w, g;

    check(haul_unit_acquire(m->unit[u], m->stream, &w));
    check(haul_unit_grad(m->unit[u], m->stream, &g));
    for (int t = 0; t < TENSORS; t++) {
        float *grad = haul_view_tensor(&g, (uint32_t)t);
        uint64_t n = sizes[t];

        check(m->dev->ops->accumulate(m->dev, grad, m->acts, HAUL_FP32, n, 0, m->stream));
        check(see(m, grad, &w, t, 0));
        check(m->dev->ops->accumulate(m->dev, grad, m->noise + 64 * step, HAUL_FP32, n, 0,
                                      m->stream));
    }
    check(haul_unit_reduce(m->unit[u], m->stream));
    check(haul_unit_release(m->unit[u], m->stream));
}

static void step(struct model *m, unsigned s, unsigned passes)
{
    for (unsigned p = 0; p < passes; p++) {
        for (int u = 0; u < UNITS; u++)
            forward(m, u);
        for (int u = UNITS; u-- > 0;)
            backward(m, u, s);
    }
    check(haul_engine_step(m->engine, &(struct haul_step){.lr = 0.05, .clip_norm = 1}, NULL));
}

static uint64_t train(struct model *m, struct haul_device *dev, const struct haul_engine_opts *opts,
                      unsigned nsteps)
{
    uint64_t digest;

    open_model(m, dev, opts);
    for (unsigned s = 0; s < nsteps; s++)
        step(m, s, opts->passes);
    check(haul_engine_digest(m->engine, &digest));
    close_model(m);
    cr_assert_neq(digest, 0u);
    return digest;
}

static struct haul_device *open_cuda(uint64_t mem_bytes)
{
    struct haul_device_cuda_opts opts;
    struct haul_device *dev;

    haul_device_cuda_opts_init(&opts);
    opts.mem_bytes = mem_bytes;
    check(haul_device_cuda_open(&opts, &dev));
    return dev;
}

/* What the emulated device makes of it. */
static uint64_t on_host(unsigned passes, unsigned nsteps)
{
    struct haul_engine_opts o;
    struct haul_device *dev;
    struct model m;

    haul_engine_opts_init(&o);
    o.passes = passes;
    check(haul_device_host_open(NULL, &dev));
    return train(&m, dev, &o, nsteps);
}

/* ---- placements ---- */

struct row {
    enum haul_offload offload;
    enum haul_master master;
    unsigned window, slots;
    int no_overlap;
};

static const struct row rows[] = {
    {HAUL_OFFLOAD_NONE, HAUL_MASTER_FP32, 0, 0, 0},
    {HAUL_OFFLOAD_OPTIMIZER, HAUL_MASTER_FP32, 0, 0, 0},
    {HAUL_OFFLOAD_ALL, HAUL_MASTER_FP32, 0, 0, 0},
    {HAUL_OFFLOAD_NONE, HAUL_MASTER_SPLIT, 0, 0, 0},
    {HAUL_OFFLOAD_OPTIMIZER, HAUL_MASTER_SPLIT, 0, 3, 0},
    {HAUL_OFFLOAD_ALL, HAUL_MASTER_SPLIT, 1, 0, 0},
    {HAUL_OFFLOAD_ALL, HAUL_MASTER_FP32, 3, 0, 0},
    {HAUL_OFFLOAD_OPTIMIZER, HAUL_MASTER_FP32, 0, 0, 1},
    {HAUL_OFFLOAD_ALL, HAUL_MASTER_FP32, 1, 0, 1},
};
#define NROWS (sizeof rows / sizeof *rows)

static struct haul_engine_opts row_opts(const struct row *r, unsigned passes)
{
    struct haul_engine_opts o;

    haul_engine_opts_init(&o);
    o.offload = r->offload;
    o.master = r->master;
    o.passes = passes;
    o.window = r->window ? r->window : o.window;
    o.slots = r->slots ? r->slots : o.slots;
    o.overlap = !r->no_overlap;
    return o;
}

/* Odd ones, and on a GPU large enough to be under way for a while. */
static void choose_sizes(void)
{
    sizes[0] = on_true_gpu() ? 1200007 : 30011;
    sizes[1] = 4099;
}

Test(gpu_engine, every_placement_has_the_digest_of_the_emulated_device)
{
    struct model m;

    driver_load();
    choose_sizes();
    for (unsigned passes = 1; passes < 3; passes++) {
        uint64_t want = on_host(passes, STEPS);

        for (unsigned i = 0; i < NROWS; i++) {
            struct haul_engine_opts o = row_opts(&rows[i], passes);

            cr_assert_eq(train(&m, open_cuda(0), &o, STEPS), want, "row %u, %u passes", i, passes);
        }
    }
    fake_is_clean("trained");
}

/* The least host memory with which the model fits: all that can rest on nvme does. */
static uint64_t host_least(const struct haul_engine_opts *opts)
{
    struct haul_engine_opts o = *opts;
    struct model m = {.dev = open_cuda(0)};
    struct haul_ledger_line line;
    uint64_t bytes = 2 * 4096;

    o.host_mem_bytes = 1;
    describe(&m, &o);
    for (uint32_t i = 0; haul_engine_ledger(m.engine, i, &line) == 0; i++)
        bytes += line.tier == HAUL_TIER_HOST ? line.bytes : 0;
    haul_engine_close(m.engine);
    check(haul_device_close(m.dev));
    return bytes;
}

Test(gpu_engine, state_paged_to_nvme_has_the_digest_too)
{
    struct haul_engine_opts o = row_opts(&rows[2], 1);
    const char *dir = ".";
    uint64_t want;
    struct model m;

    driver_load();
    choose_sizes();
    sizes[0] *= 2; /* small ones would stay in host memory, slots taking more */
    want = on_host(1, STEPS);
    o.nvme_dirs = &dir;
    o.nnvme_dirs = 1;
    o.slots = 2;
    o.host_mem_bytes = host_least(&o);
    for (int method = HAUL_IO_AUTO; method <= HAUL_IO_THREADS; method += HAUL_IO_THREADS) {
        o.io_method = (enum haul_io_method)method;
        cr_assert_eq(train(&m, open_cuda(0), &o, STEPS), want, "method %d", method);
    }
    fake_is_clean("trained");
}

/* ---- more than the device holds ---- */

Test(gpu_engine, a_model_of_several_times_the_devices_memory_trains_within_it)
{
    struct haul_engine_opts o = row_opts(&rows[2], 1);
    uint64_t params, cap, want;
    struct model m;

    driver_load();
    sizes[0] = on_true_gpu() ? 20000003 : 300007; /* 1.9 GB of state on a GPU */
    sizes[1] = 1;
    params = UNITS * (sizes[0] + sizes[1]);
    cap = 9 * params;
    want = on_host(1, 2);
    o.device_mem_bytes = cap;
    /* acts and noise are the trainer's */
    o.trainer_device_bytes = 4 * (2 * largest() + 64 * MOST_STEPS);
    cr_assert_eq(train(&m, open_cuda(cap), &o, 2), want);
    cr_assert_lt(cap, 16 * params);
    cr_assert_leq(m.peak_bytes, cap);
    cr_assert_gt(m.peak_bytes, 2 * params / UNITS, "a window at least");
    fake_is_clean("trained");
}

/* ---- the stash ---- */

enum { ENTRIES = 8 };

static void stash_pattern(uint32_t *out, uint64_t words, unsigned entry)
{
    for (uint64_t i = 0; i < words; i++)
        out[i] = (uint32_t)(i * 2654435761u) ^ entry;
}

/* Two buffers in turn, as a trainer has them; a buffer is free once the next put is queued, the last one never
 * is. */
static void stash_round_trip(struct model *m, uint64_t words)
{
    uint64_t bytes = 4 * words;
    uint32_t *want = malloc(bytes), *got = malloc(bytes);
    char *buffer[2] = {device_mem(m->dev, bytes), device_mem(m->dev, bytes)};

    for (unsigned i = 0; i < ENTRIES; i++) {
        stash_pattern(want, words, i);
        check(haul_device_copy_h2d(m->dev, buffer[i % 2], want, bytes, m->stream));
        check(haul_device_stream_sync(m->dev, m->stream)); /* want is written again */
        check(haul_stash_put(m->engine, buffer[i % 2], bytes, m->stream));
    }
    for (unsigned i = ENTRIES; i-- > 0;) {
        if (i < ENTRIES - 1)
            check(m->dev->ops->fill(m->dev, buffer[i % 2], 0xee, bytes, m->stream));
        check(haul_stash_take(m->engine, buffer[i % 2], bytes, m->stream));
        check(haul_device_copy_d2h(m->dev, got, buffer[i % 2], bytes, m->stream));
        check(haul_device_stream_sync(m->dev, m->stream));
        stash_pattern(want, words, i);
        cr_assert_eq(memcmp(got, want, bytes), 0, "entry %u", i);
    }
    haul_device_free(m->dev, buffer[0]);
    haul_device_free(m->dev, buffer[1]);
    free(want);
    free(got);
}

Test(gpu_engine, what_was_stashed_comes_back_as_it_was)
{
    struct haul_engine_opts o = row_opts(&rows[2], 1);
    uint64_t words = on_true_gpu() ? 4000001 : 40001;
    struct model m;

    driver_load();
    choose_sizes();
    o.stash_entries = ENTRIES;
    o.stash_entry_bytes = 4 * words;
    open_model(&m, open_cuda(0), &o);
    for (int round = 0; round < 3; round++)
        stash_round_trip(&m, words);
    close_model(&m);
    fake_is_clean("stash");
}
