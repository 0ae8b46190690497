/*
 * Every wait between streams, one by one: slow compute that looks at what it was given twice, over
 * streams that are held back at random. Whatever overtakes a use shows in what the use saw. The waits are
 * named in tests/mutants, which takes each away and requires that a suite fails.
 */
#include "arith.h"
#include "haul/engine.h"
#include "test_cuda_fixture.h"

enum { UNITS = 5, UNITS_PAGED = 12, STEPS = 3 };
enum { MOST = UNITS_PAGED * 5 * STEPS };

static void check(int rc)
{
    cr_assert_eq(rc, 0, "%s: %s", haul_strerror(rc), haul_last_error());
}

/* What one use of a unit saw of its parameters, before and after a pause. */
struct use {
    struct haul_view w, g;
    double saw[2];
    unsigned step;
    int unit;
};

struct run {
    struct haul_device *dev;
    void *stream;
    struct haul_engine *engine;
    struct haul_unit *unit[UNITS_PAGED];
    int nunits;
    struct use use[MOST];
    unsigned nuses;
    uint64_t digest;
};

static int elems; /* of a unit; the same for all runs of a case */

static void pause_us(unsigned us)
{
    hl_clock_sleep_until(hl_clock_ns() + us * UINT64_C(1000));
}

static double sum_of(const struct haul_view *w)
{
    const uint16_t *p = haul_view_tensor(w, 0);
    double sum = 0;

    for (int i = 0; i < elems; i++)
        sum += (double)hl_bf16_to_float(p[i]) * (1 + i % 3);
    return sum;
}

static void look(void *user)
{
    struct use *u = user;

    u->saw[0] = sum_of(&u->w);
    pause_ms(1);
    u->saw[1] = sum_of(&u->w);
}

/* In two halves, so that what is taken away in between is missing; another unit's would show. */
static void look_and_write(void *user)
{
    struct use *u = user;
    float *g = haul_view_tensor(&u->g, 0);

    for (int half = 0; half < 2; half++) {
        u->saw[half] = sum_of(&u->w);
        for (int i = half * elems / 2; i < (half + 1) * elems / 2; i++)
            g[i] += (float)(i % 7 + 1) * 0.125f + (float)u->step + 4 * (float)u->unit;
        pause_us(half ? 0 : 100); /* short: copies of gradients fall behind */
    }
}

static int fill(void *user, const char *unit, uint32_t tensor, uint64_t first, uint64_t n,
                float *out)
{
    for (uint64_t i = 0; i < n; i++)
        out[i] = (float)(unit[1] - 'a' + 1) + (float)((first + i) % 5) * 0.25f;
    return 0;
}

/* The least host memory with which the units fit: all that can rest on nvme does. */
static uint64_t host_least(int nunits, const struct haul_engine_opts *opts,
                           const struct haul_unit_desc *desc)
{
    struct haul_engine_opts o = *opts;
    struct haul_ledger_line line;
    struct haul_engine *engine;
    struct haul_unit *unit;
    uint64_t bytes = 2 * 4096;

    o.host_mem_bytes = 1;
    check(haul_engine_open(&o, &engine));
    for (int i = 0; i < nunits; i++) {
        struct haul_unit_desc d = *desc;
        char name[] = {(char)('a' + i), '\0'};

        d.name = name;
        check(haul_engine_add_unit(engine, &d, &unit));
    }
    for (uint32_t i = 0; haul_engine_ledger(engine, i, &line) == 0; i++)
        bytes += line.tier == HAUL_TIER_HOST ? line.bytes : 0;
    haul_engine_close(engine);
    return bytes;
}

static void open_run(struct run *r, const struct haul_engine_opts *opts)
{
    struct haul_engine_opts o = *opts;
    struct haul_tensor tensor = {.name = "w", .ndims = 1, .shape = {elems}, .dtype = HAUL_BF16};
    char name[] = "u0";
    struct haul_unit_desc d = {
        .struct_size = sizeof d, .name = name, .tensors = &tensor, .ntensors = 1};

    o.device = r->dev;
    o.host_mem_bytes = o.nnvme_dirs ? host_least(r->nunits, &o, &d) : o.host_mem_bytes;
    check(haul_device_stream_open(r->dev, &r->stream));
    check(haul_engine_open(&o, &r->engine));
    for (int i = 0; i < r->nunits; i++) {
        name[1] = (char)('a' + i);
        check(haul_engine_add_unit(r->engine, &d, &r->unit[i]));
    }
    check(haul_engine_build(r->engine));
    check(haul_engine_fill(r->engine, fill, NULL));
}

static void close_run(struct run *r)
{
    check(haul_device_stream_sync(r->dev, r->stream));
    haul_engine_close(r->engine);
    haul_device_stream_close(r->dev, r->stream);
    check(haul_device_close(r->dev));
}

static void forward(struct run *r, unsigned step)
{
    for (int i = 0; i < r->nunits; i++) {
        struct use *u = &r->use[r->nuses++];

        u->step = step;
        check(haul_unit_acquire(r->unit[i], r->stream, &u->w));
        check(haul_device_launch(r->dev, r->stream, look, u));
        check(haul_unit_release(r->unit[i], r->stream));
    }
}

static void backward(struct run *r, unsigned step)
{
    for (int i = r->nunits; i-- > 0;) {
        struct use *u = &r->use[r->nuses++];

        u->step = step;
        u->unit = i;
        check(haul_unit_acquire(r->unit[i], r->stream, &u->w));
        check(haul_unit_grad(r->unit[i], r->stream, &u->g));
        check(haul_device_launch(r->dev, r->stream, look_and_write, u));
        check(haul_unit_reduce(r->unit[i], r->stream));
        check(haul_unit_release(r->unit[i], r->stream));
    }
}

/* An evaluation stands between backward and step(): its compute still runs when the updates come. */
static void train(struct run *r, const struct haul_engine_opts *opts)
{
    open_run(r, opts);
    r->nuses = 0;
    for (unsigned s = 0; s < STEPS; s++) {
        for (unsigned pass = 0; pass < opts->passes; pass++) {
            forward(r, s);
            backward(r, s);
        }
        check(haul_engine_pass(r->engine, HAUL_PASS_EVAL));
        forward(r, s);
        check(haul_engine_step(r->engine, &(struct haul_step){.lr = 0.05}, NULL));
    }
    check(haul_engine_digest(r->engine, &r->digest));
    close_run(r);
}

static void compare(const struct run *got, const struct run *want, const char *where, unsigned seed)
{
    cr_assert_eq(got->nuses, want->nuses);
    for (unsigned i = 0; i < got->nuses; i++)
        for (int k = 0; k < 2; k++)
            cr_assert_eq(got->use[i].saw[k], want->use[i].saw[k],
                         "%s, seed %u: use %u saw %.9g, not %.9g", where, seed, i,
                         got->use[i].saw[k], want->use[i].saw[k]);
    cr_assert_eq(got->digest, want->digest, "%s, seed %u", where, seed);
}

static struct haul_engine_opts engine_opts(enum haul_offload offload, enum haul_master master,
                                           unsigned passes)
{
    struct haul_engine_opts o;

    haul_engine_opts_init(&o);
    o.offload = offload;
    o.master = master;
    o.passes = passes;
    o.window = 1;
    o.slots = 2;
    o.nthreads = 1;
    return o;
}

/* The emulated device, nothing overlapping. */
static void reference(struct run *r, int nunits, unsigned passes)
{
    struct haul_engine_opts o = engine_opts(HAUL_OFFLOAD_ALL, HAUL_MASTER_FP32, passes);

    o.overlap = 0;
    r->nunits = nunits;
    check(haul_device_host_open(NULL, &r->dev));
    train(r, &o);
}

static void hold_with(struct haul_engine_opts o, int nunits, unsigned nseeds, const char *where)
{
    static struct run want, got;

    fake_load();
    for (o.passes = 1; o.passes < 3; o.passes++) {
        reference(&want, nunits, o.passes);
        got.nunits = nunits;
        for (unsigned seed = 1; seed <= nseeds; seed++) {
            fake.configure(&(struct fake_cuda_config){.seed = seed, .delay_us = 1500});
            check(haul_device_cuda_open(NULL, &got.dev));
            train(&got, &o);
            compare(&got, &want, where, seed);
        }
    }
    fake_is_clean(where);
}

static void hold(enum haul_offload offload, enum haul_master master, const char *where)
{
    elems = 3000;
    hold_with(engine_opts(offload, master, 1), UNITS, fake_seeds(10), where);
}

Test(cuda_order, no_use_is_overtaken_with_offload_none)
{
    hold(HAUL_OFFLOAD_NONE, HAUL_MASTER_FP32, "none");
}

Test(cuda_order, no_use_is_overtaken_with_offload_optimizer)
{
    hold(HAUL_OFFLOAD_OPTIMIZER, HAUL_MASTER_FP32, "optimizer");
}

Test(cuda_order, no_use_is_overtaken_with_offload_optimizer_and_a_split_master)
{
    hold(HAUL_OFFLOAD_OPTIMIZER, HAUL_MASTER_SPLIT, "optimizer, split");
}

Test(cuda_order, no_use_is_overtaken_with_offload_all)
{
    hold(HAUL_OFFLOAD_ALL, HAUL_MASTER_FP32, "all");
}

/* Parameters and records come and go through a few slots. */
Test(cuda_order, no_use_is_overtaken_with_state_paged_to_nvme)
{
    struct haul_engine_opts o = engine_opts(HAUL_OFFLOAD_ALL, HAUL_MASTER_FP32, 1);
    const char *dir = ".";

    o.nvme_dirs = &dir;
    o.nnvme_dirs = 1;
    o.io_method = HAUL_IO_THREADS;
    elems = 40000; /* small ones would stay in host memory, slots taking more */
    hold_with(o, UNITS_PAGED, fake_seeds(5), "paged");
}

/* ---- the stash ---- */

enum { ENTRIES = 6, WORDS = 20000 };

struct checkpoint {
    uint32_t *at; /* (WORDS,) on the device */
    uint32_t value, wrong;
};

static void write_checkpoint(void *user)
{
    struct checkpoint *c = user;

    for (int half = 0; half < 2; half++) {
        for (int i = half * WORDS / 2; i < (half + 1) * WORDS / 2; i++)
            c->at[i] = c->value + (uint32_t)i;
        pause_ms(half ? 0 : 1);
    }
}

static void read_checkpoint(void *user)
{
    struct checkpoint *c = user;

    for (int look2 = 0; look2 < 2; look2++) {
        for (int i = 0; i < WORDS; i++)
            c->wrong += c->at[i] != c->value + (uint32_t)i;
        pause_ms(look2 ? 0 : 1);
    }
}

static void stash_round(struct run *r, unsigned seed)
{
    static struct checkpoint c[2 * ENTRIES];
    uint64_t bytes = WORDS * sizeof(uint32_t);
    uint32_t *buffer[2] = {device_mem(r->dev, bytes), device_mem(r->dev, bytes)};

    for (unsigned i = 0; i < ENTRIES; i++) {
        c[i] = (struct checkpoint){buffer[i % 2], seed * 1000003u + i * 7919u, 0};
        check(haul_device_launch(r->dev, r->stream, write_checkpoint, &c[i]));
        check(haul_stash_put(r->engine, buffer[i % 2], bytes, r->stream));
    }
    for (unsigned i = 0; i < ENTRIES; i++) {
        struct checkpoint *back = &c[ENTRIES + i];

        *back = (struct checkpoint){buffer[i % 2], c[ENTRIES - 1 - i].value, 0};
        check(haul_stash_take(r->engine, buffer[i % 2], bytes, r->stream));
        check(haul_device_launch(r->dev, r->stream, read_checkpoint, back));
    }
    check(haul_device_stream_sync(r->dev, r->stream));
    for (unsigned i = 0; i < ENTRIES; i++)
        cr_assert_eq(c[ENTRIES + i].wrong, 0u, "seed %u: entry %u, %u words are wrong", seed,
                     ENTRIES - 1 - i, c[ENTRIES + i].wrong);
    haul_device_free(r->dev, buffer[0]);
    haul_device_free(r->dev, buffer[1]);
}

Test(cuda_order, no_checkpoint_on_the_stash_is_overtaken)
{
    static struct run r;
    struct haul_engine_opts o = engine_opts(HAUL_OFFLOAD_ALL, HAUL_MASTER_FP32, 1);

    fake_load();
    elems = 3000;
    o.stash_entries = ENTRIES;
    o.stash_entry_bytes = WORDS * sizeof(uint32_t);
    for (unsigned seed = 1; seed <= fake_seeds(10); seed++) {
        fake.configure(&(struct fake_cuda_config){.seed = seed, .delay_us = 1500});
        r.nunits = UNITS;
        check(haul_device_cuda_open(NULL, &r.dev));
        open_run(&r, &o);
        for (int round = 0; round < 2; round++)
            stash_round(&r, seed);
        close_run(&r);
    }
    fake_is_clean("stash");
}
