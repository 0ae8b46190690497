/* random_model.c: through the engine. */
#include <math.h>
#include <signal.h>
#include <unistd.h>

#include "arith.h"
#include "random_model.h"
#include "random_values.h"
#include "suite.h"

static char hang_text[160];

/* Out of a handler, past locks that are held: all that is left to this process is to say why it ends. Should
 * even that hang, the next alarm ends it. */
static void hang(int sig)
{
    signal(sig, SIG_DFL);
    alarm(10);
    cr_assert(0, "%s hangs", hang_text);
}

void random_watch(const char *name, unsigned seconds)
{
    alarm(0);
    snprintf(hang_text, sizeof hang_text, "%s", name);
    signal(SIGALRM, hang);
    alarm(seconds * (UNDER_SANITIZER || under_valgrind() ? 10 : 1));
}

/* ---- through the engine ---- */

struct random_work {
    struct random_run *run;
    uint32_t unit;
    struct haul_view w, g;
    unsigned step, pass, depth;
    uint32_t *stashed;
    float sum; /* forward reads something of every tensor */
};

static float load(const void *p, int fp32, uint64_t i)
{
    return fp32 ? ((const float *)p)[i] : hl_bf16_to_float(((const uint16_t *)p)[i]);
}

static void add(void *p, int fp32, uint64_t i, float x)
{
    if (fp32)
        ((float *)p)[i] += x;
    else
        ((uint16_t *)p)[i] = hl_bf16_from_float(load(p, 0, i) + x);
}

static uint32_t stash_word(const struct random_work *k, uint64_t i)
{
    return (uint32_t)hash((k->step * 1009ull + k->pass) * 10007ull + k->depth * 101ull + i * i);
}

static void check_stash(void *arg)
{
    struct random_work *k = arg;

    for (uint64_t i = 0; i < k->run->stash_bytes / 4; i++)
        k->run->nstash_wrong += k->stashed[i] != stash_word(k, i);
}

static void forward(void *arg)
{
    struct random_work *k = arg;
    const struct random_unit *u = &k->run->shape->unit[k->unit];

    for (uint64_t i = 0; i < k->run->stash_bytes / 4; i++)
        k->stashed[i] = stash_word(k, i);

    k->sum = 0;
    for (uint32_t t = 0; t < u->ntensors; t++)
        if (u->tensor[t].elems)
            k->sum += load(haul_view_tensor(&k->w, t), u->tensor[t].fp32, u->tensor[t].elems - 1);
}

static void backward(void *arg)
{
    struct random_work *k = arg;
    const struct random_shape *sh = k->run->shape;
    const struct random_unit *u = &sh->unit[k->unit];

    for (uint32_t t = 0; t < u->ntensors; t++) {
        const struct random_tensor *x = &u->tensor[t];
        void *g = haul_view_tensor(&k->g, t), *w = haul_view_tensor(&k->w, t);
        int wide = x->fp32 || sh->buffer_dtype == HAUL_FP32;
        if (!g)
            continue;
        for (uint64_t i = 0; i < x->elems; i++)
            add(g, wide, i,
                gradient(load(w, x->fp32, i), i, k->step, k->pass * nranks(sh) + k->run->rank));
        if (k->step == sh->inf_step && x->elems && k->run->rank == nranks(sh) - 1)
            add(g, wide, 0, INFINITY);
    }
}

static int fill(void *user, const char *unit, uint32_t tensor, uint64_t first, uint64_t n,
                float *out)
{
    uint32_t u = (uint32_t)atoi(unit + 1);

    (void)user;
    for (uint64_t i = 0; i < n; i++)
        out[i] = initial(u, tensor, first + i);
    return 0;
}

static int add_units(struct random_run *r)
{
    static const char *const names[RANDOM_MAX_TENSORS] = {"a", "b", "c", "d", "e", "f"};
    const struct random_shape *sh = r->shape;
    struct haul_unit **visits = malloc((sh->nunits + 1) * sizeof *visits);
    int rc = 0;

    for (uint32_t u = 0; rc == 0 && u < sh->nunits; u++) {
        struct haul_tensor tensors[RANDOM_MAX_TENSORS];
        char name[16];
        snprintf(name, sizeof name, "u%u", u);
        for (uint32_t t = 0; t < sh->unit[u].ntensors; t++) {
            const struct random_tensor *x = &sh->unit[u].tensor[t];
            tensors[t] = (struct haul_tensor){.name = names[t],
                                              .ndims = 1,
                                              .shape = {x->elems},
                                              .dtype = x->fp32 ? HAUL_FP32 : HAUL_BF16,
                                              .group = x->group,
                                              .frozen = x->frozen};
        }
        struct haul_unit_desc d = {.struct_size = sizeof d,
                                   .name = name,
                                   .tensors = tensors,
                                   .ntensors = sh->unit[u].ntensors,
                                   .grad_dtype = sh->buffer_dtype};
        rc = haul_engine_add_unit(r->engine, &d, &r->unit[u]);
        visits[u] = r->unit[u];
    }
    visits[sh->nunits] = visits[0];
    if (rc == 0)
        rc = haul_engine_visits(r->engine, visits, sh->nunits + (sh->tied != 0));
    free(visits);
    return rc;
}

static int engine_open(struct random_run *r, const struct random_place *pl)
{
    struct haul_engine_opts o;

    haul_engine_opts_init(&o);
    o.device = r->dev;
    o.stage = pl->world ? pl->stage : 3;
    o.comm = r->comm;
    o.share = pl->share;
    o.offload = pl->offload;
    o.master = pl->master;
    o.grad_dtype = r->shape->grad_dtype;
    o.passes = r->shape->passes;
    o.window = pl->window;
    o.nthreads = pl->nthreads;
    o.slots = pl->slots ? pl->slots : 2;
    o.overlap = !pl->no_overlap;
    o.ngroups = RANDOM_GROUPS;
    o.device_mem_bytes = pl->device_mem;
    o.host_mem_bytes = pl->host_mem;
    o.nvme_dirs = &pl->nvme_dir;
    o.nnvme_dirs = pl->nvme_dir != NULL;
    o.nvme_durable = pl->nvme_durable;
    o.slot_bytes = pl->slot_bytes;
    o.io_method = pl->io_method;
    if (pl->stash_bytes) {
        o.stash_entries = r->shape->nunits + 1;
        o.stash_entry_bytes = pl->stash_bytes;
        o.stash_host_bytes = 1; /* as little as there can be */
        o.trainer_device_bytes = 3 * pl->stash_bytes;
    }
    return haul_engine_open(&o, &r->engine);
}

static int comm_open(struct random_run *r, const struct random_place *pl)
{
    r->rank = pl->rank;
    if (pl->world)
        r->comm =
            thread_comm_open(pl->world, pl->rank, r->dev, pl->timeout_s > 0 ? pl->timeout_s : 30);
    return 0;
}

/* Device, stream, engine and units; not built. */
static int describe(struct random_run *r, const struct random_shape *shape,
                    const struct random_place *place)
{
    struct haul_device_host_opts d;
    int rc;

    *r = (struct random_run){.shape = shape, .stash_bytes = place->stash_bytes};
    r->unit = calloc(shape->nunits, sizeof *r->unit);
    r->work = calloc(2ull * (shape->nunits + 1) * shape->passes, sizeof *r->work);
    haul_device_host_opts_init(&d);
    d.jitter_seed = place->jitter_seed;
    if ((rc = haul_device_host_open(&d, &r->dev)) < 0 ||
        (rc = haul_device_stream_open(r->dev, &r->stream)) < 0 || (rc = comm_open(r, place)) < 0 ||
        (rc = engine_open(r, place)) < 0 || (rc = add_units(r)) < 0)
        (void)random_close(r);
    return rc;
}

int random_open(struct random_run *r, const struct random_shape *shape,
                const struct random_place *place)
{
    int rc = describe(r, shape, place);

    if (rc < 0)
        return rc;
    for (unsigned i = 0; rc == 0 && place->stash_bytes && i < 3; i++)
        rc = haul_device_alloc(r->dev, place->stash_bytes, &r->stash_buffer[i]);
    if (rc < 0 || (rc = haul_engine_build(r->engine)) < 0 ||
        (rc = haul_engine_fill(r->engine, fill, NULL)) < 0)
        (void)random_close(r);
    return rc;
}

int random_close(struct random_run *r)
{
    if (r->stream && haul_device_stream_sync(r->dev, r->stream) < 0)
        fprintf(stderr, "trainer's stream: %s\n", haul_last_error());
    haul_engine_close(r->engine);
    for (unsigned i = 0; i < 3; i++)
        haul_device_free(r->dev, r->stash_buffer[i]);
    if (r->stream)
        haul_device_stream_close(r->dev, r->stream);
    haul_comm_close(r->comm);
    int rc = haul_device_close(r->dev);
    free(r->unit);
    free(r->work);
    memset(r, 0, sizeof *r);
    return rc;
}

static int visit_forward(struct random_run *r, uint32_t u, unsigned pass)
{
    struct random_work *k = &r->work[r->nwork++];
    int rc = haul_unit_acquire(r->unit[u], r->stream, &k->w);

    if (rc < 0)
        return rc;
    *k = (struct random_work){
        .run = r, .unit = u, .w = k->w, .step = r->step, .pass = pass, .depth = r->depth};
    k->stashed = r->stash_buffer[r->depth++ & 1];
    rc = haul_device_launch(r->dev, r->stream, forward, k);
    if (rc == 0 && r->stash_bytes)
        rc = haul_stash_put(r->engine, k->stashed, r->stash_bytes, r->stream);
    return rc < 0 ? rc : haul_unit_release(r->unit[u], r->stream);
}

static int take_stashed(struct random_run *r, struct random_work *k)
{
    k->stashed = r->stash_buffer[2];
    k->depth = --r->depth;
    if (!r->stash_bytes)
        return 0;
    int rc = haul_stash_take(r->engine, k->stashed, r->stash_bytes, r->stream);
    return rc < 0 ? rc : haul_device_launch(r->dev, r->stream, check_stash, k);
}

static int visit_backward(struct random_run *r, uint32_t u, unsigned pass, int more_visits)
{
    struct random_work *k = &r->work[r->nwork++];
    int rc = haul_unit_acquire(r->unit[u], r->stream, &k->w);

    if (rc < 0)
        return rc;
    *k = (struct random_work){.run = r, .unit = u, .w = k->w, .step = r->step, .pass = pass};
    rc = take_stashed(r, k);
    if (rc < 0 || leaves_out(r->shape, u, r->step, r->rank))
        return rc < 0 ? rc : haul_unit_release(r->unit[u], r->stream);
    rc = haul_unit_grad(r->unit[u], r->stream, &k->g);
    if (rc == 0)
        rc = haul_device_launch(r->dev, r->stream, backward, k);
    if (rc == 0 && !more_visits)
        rc = haul_unit_reduce(r->unit[u], r->stream);
    return rc < 0 ? rc : haul_unit_release(r->unit[u], r->stream);
}

static int one_pass(struct random_run *r, unsigned pass)
{
    uint32_t n = r->shape->nunits, first = r->shape->wander ? r->step % n : 0;
    int rc = 0, tied = r->shape->tied;

    for (uint32_t u = 0; rc == 0 && u < n; u++)
        rc = visit_forward(r, (first + u) % n, pass);
    if (rc == 0 && tied)
        rc = visit_forward(r, 0, pass);
    if (rc == 0 && tied)
        rc = visit_backward(r, 0, pass, 1);
    for (uint32_t u = n; rc == 0 && u-- > 0;)
        rc = visit_backward(r, u, pass, 0);
    return rc;
}

int random_step(struct random_run *r, struct haul_report *report)
{
    struct haul_group_step groups[RANDOM_GROUPS];
    struct haul_step step = {.struct_size = sizeof step,
                             .groups = groups,
                             .clip_norm = r->shape->clip,
                             .grad_scale = 1.0 / (r->shape->passes * nranks(r->shape))};
    int rc = 0;

    r->nwork = r->depth = 0;
    r->step++;
    group_values(groups);
    for (unsigned p = 0; rc == 0 && p < r->shape->passes; p++)
        rc = one_pass(r, p);
    if (rc == 0)
        rc = haul_engine_step(r->engine, &step, report);
    /* What a failed step has queued still uses work[]. */
    if (rc < 0 && haul_device_stream_sync(r->dev, r->stream) < 0)
        fprintf(stderr, "trainer's stream: %s\n", haul_last_error());
    return rc;
}

/* ---- budgets ---- */

const struct random_spot random_spots[RANDOM_SPOTS] = {
    {.name = "none", .offload = HAUL_OFFLOAD_NONE},
    {.name = "optimizer", .offload = HAUL_OFFLOAD_OPTIMIZER},
    {.name = "all", .offload = HAUL_OFFLOAD_ALL},
    {.name = "records on nvme, optimizer", .offload = HAUL_OFFLOAD_OPTIMIZER, .records = 0.3},
    {.name = "records on nvme, all", .offload = HAUL_OFFLOAD_ALL, .records = 0.3},
    {.name = "parameters on nvme", .offload = HAUL_OFFLOAD_ALL, .params = 0.3},
};

int random_ledger(const struct random_shape *shape, const struct random_place *place,
                  struct random_rest *out)
{
    struct haul_ledger_line line;
    struct random_run r;
    int rc = describe(&r, shape, place);

    if (rc < 0)
        return rc;
    memset(out, 0, sizeof *out);
    for (uint32_t i = 0; haul_engine_ledger(r.engine, i, &line) == 0; i++) {
        out->all[line.tier] += line.bytes;
        if (strcmp(line.purpose, "records") == 0)
            out->records[line.tier] += line.bytes;
        if (strcmp(line.purpose, "parameters") == 0)
            out->params[line.tier] += line.bytes;
        if (strcmp(line.purpose, "parameter slots") == 0)
            out->param_slots += line.bytes;
    }
    return random_close(&r);
}

/* A budget above the one with everything paged that can be paged, and below the one with nothing paged. */
static int between(const struct random_shape *shape, struct random_place *place, uint64_t from,
                   double share, uint64_t range)
{
    struct random_place none = *place;
    struct random_rest all;

    none.nvme_dir = NULL;
    none.nvme_durable = 0;
    none.host_mem = 0;
    if (random_ledger(shape, &none, &all) < 0 || from + 8192 >= all.all[HAUL_TIER_HOST])
        return 0;
    place->host_mem = from + 8192 + (uint64_t)(share * (double)range);
    if (place->host_mem >= all.all[HAUL_TIER_HOST])
        place->host_mem = all.all[HAUL_TIER_HOST] - 1;
    return 1;
}

int random_page_records(const struct random_shape *shape, struct random_place *place, double share)
{
    struct random_rest least;

    place->host_mem = 1;
    if (random_ledger(shape, place, &least) < 0)
        return 0;
    /* parameters come back, and their slots go */
    uint64_t from = least.all[HAUL_TIER_HOST] - least.param_slots + least.params[HAUL_TIER_NVME] +
                    (least.params[HAUL_TIER_NVME] ? 8192 : 0);
    return between(shape, place, from, share, least.records[HAUL_TIER_NVME]);
}

int random_page_params(const struct random_shape *shape, struct random_place *place, double share)
{
    struct random_rest least;

    place->host_mem = 1;
    if (random_ledger(shape, place, &least) < 0 ||
        least.params[HAUL_TIER_NVME] < least.param_slots + 16384)
        return 0;
    return between(shape, place, least.all[HAUL_TIER_HOST], share,
                   least.params[HAUL_TIER_NVME] - least.param_slots - 16384);
}
