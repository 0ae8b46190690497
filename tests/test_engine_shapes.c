/* Models of every shape: one digest each, wherever their state rests, and the twin's bits. */
#include <math.h>
#include <unistd.h>

#include "random_model.h"
#include "suite.h"
#include "sys.h"

#define NSEEDS 50

static char dir[64];

static void make_dir(void)
{
    snprintf(dir, sizeof dir, "./shapes.XXXXXX");
    cr_assert_not_null(mkdtemp(dir));
}

static void remove_dir(void)
{
    cr_assert_eq(rmdir(dir), 0, "%s is not empty: a scratch store leaves nothing", dir);
}

static void check(int rc, const char *what)
{
    cr_assert_eq(rc, 0, "%s: %s: %s", what, haul_strerror(rc), haul_last_error());
}

/* ---- training one shape in one place ---- */

static void check_report(const struct haul_report *r, const struct random_twin *twin,
                         const char *what)
{
    double clip = twin->shape->clip > 0 && twin->norm > twin->shape->clip
                      ? twin->shape->clip / twin->norm
                      : 1;

    cr_assert_eq(r->skipped, twin->skipped, "%s, step %llu: skipped %d", what,
                 (unsigned long long)r->step, r->skipped);
    if (r->skipped)
        return;
    cr_assert(fabs(r->grad_norm - twin->norm) <= 1e-5 * twin->norm, "%s: norm %.9g, twin's %.9g",
              what, r->grad_norm, twin->norm);
    cr_assert(fabs(r->clip - clip) <= 1e-5, "%s: clip %.9g, twin's %.9g", what, r->clip, clip);
}

static void check_peaks(struct random_run *run, const char *what)
{
    for (int tier = 0; tier < HAUL_NTIERS; tier++) {
        uint64_t planned, peak;
        check(haul_engine_tier_bytes(run->engine, tier, &planned, &peak), what);
        cr_assert_eq(planned, peak, "%s, tier %d: planned %llu, measured %llu", what, tier,
                     (unsigned long long)planned, (unsigned long long)peak);
    }
}

/* twin NULL: this place is only held against the digest of another. */
static uint64_t train(const struct random_shape *shape, const struct random_place *place,
                      struct random_twin *twin, const char *what)
{
    struct haul_report report = {0};
    struct random_run run;
    uint64_t digest = 0;

    random_watch(what, 100);
    check(random_open(&run, shape, place), what);
    for (unsigned s = 0; s < shape->nsteps; s++) {
        check(random_step(&run, &report), what);
        if (!twin)
            continue;
        random_twin_step(twin, report.clip);
        check_report(&report, twin, what);
    }
    check(haul_engine_digest(run.engine, &digest), what);
    if (twin)
        cr_assert_eq(random_compare(&run, twin), 0, "%s: masters differ from the twin's", what);
    check_peaks(&run, what);
    check(random_close(&run), what);
    random_watch("", 0);
    return digest;
}

static uint64_t train_beside_twin(const struct random_shape *shape,
                                  const struct random_place *place, const char *what)
{
    struct random_twin twin;

    check(random_twin_open(&twin, shape), what);
    uint64_t digest = train(shape, place, &twin, what);
    random_twin_close(&twin);
    return digest;
}

/* ---- places ---- */

enum kind {
    DEVICE,
    HOST_OPTIMIZER,
    HOST_ALL,
    RECORDS_OPTIMIZER,
    RECORDS_ALL,
    PARAMS,
    MIXED,
    NKINDS
};
static const char *const kind_name[NKINDS] = {"device",
                                              "host, optimizer",
                                              "host, all",
                                              "records on nvme, optimizer",
                                              "records on nvme, all",
                                              "parameters on nvme",
                                              "mixed"};

/* What must not matter. */
static void draw_rest(struct random_place *p, uint64_t *s)
{
    p->master = random_in(s, 0, 1) ? HAUL_MASTER_SPLIT : HAUL_MASTER_FP32;
    p->nthreads = (unsigned)random_in(s, 1, 2);
    p->slots = (unsigned)random_in(s, 3, 8);
    p->window = (unsigned)random_in(s, 1, 4);
    p->no_overlap = (int)random_in(s, 0, 1);
    p->slot_bytes = random_in(s, 1, 3) * 60000;
    p->io_method = random_in(s, 0, 1) ? HAUL_IO_AUTO : HAUL_IO_THREADS;
    p->jitter_seed = random_in(s, 0, 2) == 0 ? random_next(s) : 0;
}

/* Half of the units' state back on the device, and half of the rest on nvme. */
static int mix(const struct random_shape *shape, struct random_place *p)
{
    struct random_rest host;

    p->nvme_dir = NULL;
    check(random_ledger(shape, p, &host), "mixed");
    p->device_mem =
        host.all[HAUL_TIER_DEVICE] + host.records[HAUL_TIER_HOST] / 2 + host.params[HAUL_TIER_HOST];
    p->nvme_dir = dir;
    return random_page_records(shape, p, 0.5);
}

/* 0 when the model is too small for this place. */
static int place_for(enum kind kind, const struct random_shape *shape, uint64_t *s,
                     struct random_place *p)
{
    static const double share[] = {0, 0.1, 0.3, 0.6, 0.9};
    double part = share[random_in(s, 0, 4)];

    *p = (struct random_place){.offload = HAUL_OFFLOAD_ALL};
    draw_rest(p, s);
    if (kind >= RECORDS_OPTIMIZER)
        p->nvme_dir = dir;
    if (kind == DEVICE)
        p->offload = HAUL_OFFLOAD_NONE;
    if (kind == HOST_OPTIMIZER || kind == RECORDS_OPTIMIZER ||
        (kind == MIXED && random_in(s, 0, 1)))
        p->offload = HAUL_OFFLOAD_OPTIMIZER;
    switch (kind) {
    case RECORDS_OPTIMIZER:
    case RECORDS_ALL:
        return random_page_records(shape, p, part);
    case PARAMS:
        return random_page_params(shape, p, part);
    case MIXED:
        return mix(shape, p);
    default:
        return 1;
    }
}

/* What the place is called after is there. */
static void check_rest(enum kind kind, const struct random_rest *r, const char *what)
{
    if (kind >= RECORDS_OPTIMIZER)
        cr_assert_gt(r->records[HAUL_TIER_NVME], 0, "%s: no records on nvme", what);
    if (kind == PARAMS)
        cr_assert_gt(r->params[HAUL_TIER_NVME], 0, "%s: no parameters on nvme", what);
    if (kind < RECORDS_OPTIMIZER)
        cr_assert_eq(r->all[HAUL_TIER_NVME], 0, "%s", what);
}

/* ---- the seeds ---- */

static unsigned nplaced[NKINDS], nbetween;

static void run_kind(enum kind kind, uint64_t seed, const struct random_shape *shape, uint64_t *s,
                     uint64_t right)
{
    struct random_place place;
    struct random_rest rest;
    char what[128];

    if (!place_for(kind, shape, s, &place))
        return;
    snprintf(what, sizeof what, "seed %llu, %s", (unsigned long long)seed, kind_name[kind]);
    check(random_ledger(shape, &place, &rest), what);
    check_rest(kind, &rest, what);
    nplaced[kind]++;
    nbetween += rest.records[HAUL_TIER_NVME] && rest.records[HAUL_TIER_HOST];
    uint64_t digest = train(shape, &place, NULL, what);
    cr_assert_eq(digest, right,
                 "%s (master %d, threads %u, slots %u, window %u, overlap %d, method %d): digest "
                 "%016llx, on the host %016llx",
                 what, place.master, place.nthreads, place.slots, place.window, !place.no_overlap,
                 place.io_method, (unsigned long long)digest, (unsigned long long)right);
}

static void run_seed(uint64_t seed)
{
    const struct random_place host = {
        .offload = HAUL_OFFLOAD_ALL, .nthreads = 1, .window = 2, .no_overlap = 1};
    struct random_shape shape;
    uint64_t s = seed + 77;
    char what[32];

    snprintf(what, sizeof what, "seed %llu", (unsigned long long)seed);
    random_shape_make(&shape, seed, seed % 2 ? 40 : 16, 250000);
    uint64_t right = train_beside_twin(&shape, &host, what);
    for (int kind = 0; kind < NKINDS; kind++)
        run_kind((enum kind)kind, seed, &shape, &s, right);
    random_shape_free(&shape);
}

Test(engine_shapes, fifty_random_models_have_one_digest_each_over_all_placements)
{
    make_dir();
    for (uint64_t seed = 0; seed < NSEEDS; seed++)
        run_seed(seed);
    for (int kind = 0; kind < NKINDS; kind++) {
        fprintf(stderr, "%-28s %2u of %d seeds\n", kind_name[kind], nplaced[kind], NSEEDS);
        cr_assert_gt(nplaced[kind], 9, "%s: only %u models of %d are large enough", kind_name[kind],
                     nplaced[kind], NSEEDS);
    }
    cr_assert_gt(nbetween, 20, "records rest on both tiers in %u runs only", nbetween);
    remove_dir();
}

/* ---- the corners ---- */

static void one_digest(const struct random_shape *shape, uint64_t seed)
{
    const struct random_place host = {.offload = HAUL_OFFLOAD_ALL, .nthreads = 1, .window = 2};
    uint64_t s = seed, right = train_beside_twin(shape, &host, "host");

    make_dir();
    for (int kind = 0; kind < NKINDS; kind++)
        run_kind((enum kind)kind, seed, shape, &s, right);
    remove_dir();
}

static struct random_shape shape_of(struct random_unit *units, uint32_t nunits)
{
    return (struct random_shape){.nunits = nunits,
                                 .unit = units,
                                 .nsteps = 3,
                                 .passes = 1,
                                 .grad_dtype = HAUL_BF16,
                                 .buffer_dtype = HAUL_FP32};
}

/* The smallest models there are: no tensors, tensors without elements, one element, one frozen one. */
Test(engine_shapes, models_of_no_and_of_one_element_train)
{
    static struct random_unit units[] = {
        {.ntensors = 0},
        {.ntensors = 2, .tensor = {{.elems = 0}, {.elems = 0, .fp32 = 1}}},
        {.ntensors = 1, .tensor = {{.elems = 1}}},
        {.ntensors = 1, .tensor = {{.elems = 1, .fp32 = 1}}},
        {.ntensors = 1, .tensor = {{.elems = 1, .frozen = 1}}},
    };
    struct random_shape shape;

    for (unsigned passes = 1; passes <= 2; passes++)
        for (uint32_t first = 0; first < 5; first++)
            for (uint32_t n = 1; first + n <= 5; n++) {
                shape = shape_of(units + first, n);
                shape.passes = passes;
                one_digest(&shape, 10 * first + n);
            }
}

Test(engine_shapes, one_unit_trains_alone)
{
    struct random_unit unit = {
        .ntensors = 3,
        .tensor = {{.elems = 100003}, {.elems = 7001, .fp32 = 1}, {.elems = 333, .frozen = 1}}};
    struct random_shape shape = shape_of(&unit, 1);

    for (int tied = 0; tied < 2; tied++) {
        shape.tied = tied;
        one_digest(&shape, 5 + (uint64_t)tied);
    }
    cr_assert_gt(nplaced[RECORDS_ALL], 0);
}

Test(engine_shapes, a_thousand_units_train)
{
    struct random_unit *units = calloc(1000, sizeof *units);
    struct random_shape shape = shape_of(units, 1000);

    shape.nsteps = 2;
    for (uint32_t u = 0; u < 1000; u++)
        units[u] = (struct random_unit){
            .ntensors = 2, .tensor = {{.elems = 200 + u % 61}, {.elems = u % 5, .fp32 = u & 1}}};
    one_digest(&shape, 8);
    for (int kind = 0; kind < NKINDS; kind++)
        cr_assert_gt(nplaced[kind], 0, "%s", kind_name[kind]);
    free(units);
}

/* Records of 6 MB go through slots of at most 2. */
Test(engine_shapes, a_unit_larger_than_a_slot_goes_through_it_in_pieces)
{
    struct random_unit units[6];
    struct random_shape shape = shape_of(units, 6);

    for (uint32_t u = 0; u < 6; u++)
        units[u] = (struct random_unit){
            .ntensors = 2, .tensor = {{.elems = 50001 + u}, {.elems = 5003, .fp32 = 1}}};
    units[3].tensor[0].elems = 500009;
    for (int split = 0; split < 2; split++) {
        struct random_place place = {.offload = HAUL_OFFLOAD_ALL,
                                     .master = split,
                                     .nthreads = 2,
                                     .slots = 3,
                                     .window = 1,
                                     .slot_bytes = 1 << 20};
        struct random_rest rest;
        uint64_t right = train_beside_twin(&shape, &place, "host");
        make_dir();
        place.nvme_dir = dir;
        cr_assert(random_page_records(&shape, &place, 0));
        check(random_ledger(&shape, &place, &rest), "ledger");
        cr_assert_gt(rest.records[HAUL_TIER_NVME], 4u << 20, "%llu bytes of records on nvme",
                     (unsigned long long)rest.records[HAUL_TIER_NVME]);
        cr_assert_eq(train(&shape, &place, NULL, "in pieces"), right);
        remove_dir();
    }
}
