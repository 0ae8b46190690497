/*
 * The engine with ranks that reach each other through NCCL, over fakes of the driver and of the library: a
 * process a rank. What it must give is what ranks with emulated devices give over another communicator.
 */
#include <pthread.h>

#include "arith.h"
#include "haul/engine.h"
#include "nccl_ranks.h"
#include "thread_comm.h"

enum { MOST_RANKS = 4, NUNITS = 5, NSTEPS = 4, NCASES = 12 };

/* Odd sizes; the last one has fewer elements than there are ranks. */
static const uint64_t elems[NUNITS] = {1003, 64, 2001, 517, 3};

/* What the ranks leave for the case to look at, in memory that they share. */
static struct {
    uint64_t digest[NCASES][MOST_RANKS];
    double norm[NCASES][MOST_RANKS];
} * told;

/* ---- a model whose gradients depend on the parameters that the device sees, and on the rank ---- */

struct model {
    struct haul_device *dev;
    void *stream;
    struct haul_engine *engine;
    struct haul_unit *unit[NUNITS];
    uint32_t rank;
    uint64_t step;
};

struct work {
    struct haul_view w, g;
    uint64_t n, step;
    uint32_t rank;
};

static float noise(uint64_t i, uint64_t step, uint32_t rank)
{
    uint64_t x = (i * 31 + step * 7 + rank * 1009 + 1) * UINT64_C(0x9e3779b97f4a7c15);

    return (float)(x >> 40) * 0x1p-24f - 0.5f;
}

static void backward(void *user)
{
    const struct work *k = user;
    const uint16_t *p = haul_view_tensor(&k->w, 0);
    float *g = haul_view_tensor(&k->g, 0);

    for (uint64_t i = 0; i < k->n; i++)
        g[i] += hl_bf16_to_float(p[i]) * 0.5f + noise(i, k->step, k->rank);
}

static int fill_value(void *user, const char *unit, uint32_t tensor, uint64_t first, uint64_t n,
                      float *out)
{
    for (uint64_t i = 0; i < n; i++)
        out[i] = noise(first + i, (uint64_t)unit[1], 77);
    return 0;
}

static int add_units(struct model *m)
{
    for (int u = 0; u < NUNITS; u++) {
        char name[3] = {'u', (char)('0' + u), 0};
        struct haul_tensor t = {.name = "w", .ndims = 1, .shape = {elems[u]}, .dtype = HAUL_BF16};
        struct haul_unit_desc d = {
            .struct_size = sizeof d, .name = name, .tensors = &t, .ntensors = 1};
        int rc = haul_engine_add_unit(m->engine, &d, &m->unit[u]);

        if (rc < 0)
            return rc;
    }
    return 0;
}

static int model_open(struct model *m, struct haul_comm *comm, void *stream, unsigned stage,
                      enum haul_offload offload)
{
    struct haul_engine_opts o;
    int rc;

    *m = (struct model){.dev = comm->dev, .stream = stream, .rank = comm->rank};
    haul_engine_opts_init(&o);
    o.device = comm->dev;
    o.comm = comm;
    o.stage = stage;
    o.offload = offload;
    o.nthreads = 1;
    if ((rc = haul_engine_open(&o, &m->engine)) < 0 || (rc = add_units(m)) < 0 ||
        (rc = haul_engine_build(m->engine)) < 0)
        return rc;
    return haul_engine_fill(m->engine, fill_value, NULL);
}

static int pass_forward(struct model *m)
{
    struct haul_view w;
    int rc = 0;

    for (int u = 0; rc == 0 && u < NUNITS; u++) {
        rc = haul_unit_acquire(m->unit[u], m->stream, &w);
        if (rc == 0)
            rc = haul_unit_release(m->unit[u], m->stream);
    }
    return rc;
}

static int pass_backward(struct model *m, struct work *work)
{
    int rc = 0;

    for (int u = NUNITS; rc == 0 && u-- > 0;) {
        struct work *k = &work[u];

        *k = (struct work){.n = elems[u], .step = m->step, .rank = m->rank};
        if ((rc = haul_unit_acquire(m->unit[u], m->stream, &k->w)) < 0 ||
            (rc = haul_unit_grad(m->unit[u], m->stream, &k->g)) < 0 ||
            (rc = haul_device_launch(m->dev, m->stream, backward, k)) < 0 ||
            (rc = haul_unit_reduce(m->unit[u], m->stream)) < 0)
            return rc;
        rc = haul_unit_release(m->unit[u], m->stream);
    }
    return rc;
}

static int model_step(struct model *m, struct haul_report *report)
{
    struct work work[NUNITS];
    struct haul_step step = {
        .struct_size = sizeof step, .lr = 1e-2, .weight_decay = 0.1, .clip_norm = 10};
    int rc;

    m->step++;
    rc = pass_forward(m);
    if (rc == 0)
        rc = pass_backward(m, work);
    if (rc == 0)
        rc = haul_engine_step(m->engine, &step, report);
    if (haul_device_stream_sync(m->dev, m->stream) < 0 && rc == 0)
        rc = HAUL_E_DEVICE; /* what is queued still uses work */
    return rc;
}

/* ---- one digest ---- */

static const enum haul_offload offload_of[3] = {HAUL_OFFLOAD_NONE, HAUL_OFFLOAD_OPTIMIZER,
                                                HAUL_OFFLOAD_ALL};

/* Stage and offload c of this rank: its digest and last norm. */
static void train(struct haul_comm *comm, void *stream, int c)
{
    struct haul_report report = {.struct_size = sizeof report};
    struct model m;

    MUST(model_open(&m, comm, stream, (unsigned)c / 3, offload_of[c % 3]) == 0);
    for (int s = 0; s < NSTEPS; s++)
        MUST(model_step(&m, &report) == 0);
    MUST(haul_engine_digest(m.engine, &told->digest[c][comm->rank]) == 0);
    told->norm[c][comm->rank] = report.grad_norm;
    haul_engine_close(m.engine);
}

static void train_all(struct rank *r)
{
    open_comm(r);
    for (int c = 0; c < NCASES; c++)
        train(r->comm, r->stream, c);
    haul_comm_close(r->comm);
}

/* The reference: threads, emulated devices, stage 3. */
struct twin {
    struct haul_comm *comm;
    void *stream;
};

static void *twin_main(void *user)
{
    struct twin *t = user;

    train(t->comm, t->stream, NCASES - 1);
    return NULL;
}

static void reference(int nranks, uint64_t *digest, double *norm)
{
    struct thread_world *world = thread_world_open((uint32_t)nranks);
    pthread_t thread[MOST_RANKS];
    struct twin twin[MOST_RANKS];

    for (int i = 0; i < nranks; i++) {
        struct haul_device *dev = device_plain();

        twin[i] = (struct twin){thread_comm_open(world, (uint32_t)i, dev, 60), device_stream(dev)};
        cr_assert_eq(pthread_create(&thread[i], NULL, twin_main, &twin[i]), 0);
    }
    for (int i = 0; i < nranks; i++) {
        struct haul_device *dev = twin[i].comm->dev;

        pthread_join(thread[i], NULL);
        haul_device_stream_close(dev, twin[i].stream);
        haul_comm_close(twin[i].comm);
        cr_assert_eq(haul_device_close(dev), 0);
    }
    thread_world_close(world);
    *digest = told->digest[NCASES - 1][0];
    *norm = told->norm[NCASES - 1][0];
}

static void share(void)
{
    told = mmap(NULL, sizeof *told, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq((void *)told, MAP_FAILED);
}

static void one_digest(int nranks)
{
    uint64_t digest = 0;
    double norm = 0;

    share();
    run_ranks(nranks, 60, train_all); /* the forks come before this process has threads */
    for (int c = 0; c < NCASES; c++)
        for (int r = 0; r < nranks; r++) {
            digest = digest ? digest : told->digest[c][r];
            cr_assert_eq(told->digest[c][r], digest, "%d ranks, stage %d, offload %d, rank %d",
                         nranks, c / 3, c % 3, r);
        }
    norm = told->norm[0][0];
    uint64_t want = 0;
    double want_norm = 0;
    reference(nranks, &want, &want_norm);
    cr_assert_eq(digest, want, "%d ranks: other bits than over threads", nranks);
    cr_assert_eq(norm, want_norm, "%d ranks", nranks);
    munmap(told, sizeof *told);
}

Test(engine_nccl, two_ranks_have_the_digest_of_emulated_devices_in_every_stage)
{
    one_digest(2);
}

Test(engine_nccl, four_ranks_have_the_digest_of_emulated_devices_in_every_stage)
{
    one_digest(4);
}

/* ---- a rank dies ---- */

/* In the middle of a step: the others come back with an error, and close. */
static void lose_one(struct rank *r)
{
    struct haul_report report = {.struct_size = sizeof report};
    uint64_t begin;
    struct model m;
    int rc = 0;

    open_comm(r);
    MUST(model_open(&m, r->comm, r->stream, 3, HAUL_OFFLOAD_ALL) == 0);
    MUST(model_step(&m, &report) == 0);
    begin = hl_clock_ns();
    if (r->rank == 1) {
        MUST(pass_forward(&m) == 0);
        raise(SIGKILL);
    }
    for (int s = 0; rc == 0 && s < 3; s++)
        rc = model_step(&m, &report);
    MUST(rc < 0);
    MUST(hl_clock_ns() - begin < 20 * NS_PER_S);
    haul_engine_close(m.engine);
    haul_comm_close(r->comm);
}

Test(engine_nccl, of_a_rank_that_is_killed_the_others_come_back_with_an_error)
{
    run_ranks_but(1, 4, 1, lose_one);
}
