/* Units of more than 2^31 elements: no index, offset or count is cut to 32 bits on the way. */
#include <math.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "haul/size.h"
#include "hostmem.h"
#include "random_model.h"
#include "suite.h"

#define MANY (UINT64_C(0x80000000) + 35)
#define PART 5000u

static void check(int rc, const char *what)
{
    cr_assert_eq(rc, 0, "%s: %s: %s", what, haul_strerror(rc), haul_last_error());
}

static void need_memory(uint64_t bytes)
{
    struct hl_hostmem mem;
    char need[32], avail[32];

    check(hl_hostmem_read(NULL, NULL, &mem), "host memory");
    if (mem.avail_bytes < bytes)
        SKIP("%s of host memory: %s available by %s", haul_format_size(bytes, need, sizeof need),
             haul_format_size(mem.avail_bytes, avail, sizeof avail), mem.bound_by);
}

static void need_disk(uint64_t bytes)
{
    struct statvfs fs;
    char need[32];

    cr_assert_eq(statvfs(".", &fs), 0);
    if ((uint64_t)fs.f_bavail * fs.f_frsize < bytes)
        SKIP("%s of disk in the build folder", haul_format_size(bytes, need, sizeof need));
}

/* Held against the twin: parts of the large tensor at its ends, around 2^31 bytes and 2^31 elements, and
 * all of the small ones. */
static void check_parts(struct random_run *run)
{
    static const uint64_t first[] = {0, (UINT64_C(1) << 30) - PART / 2,
                                     (UINT64_C(1) << 31) - PART / 2, MANY - PART};
    struct random_unit unit = run->shape->unit[0];
    struct random_shape part = *run->shape;
    struct random_twin twin;

    part.unit = &unit;
    for (unsigned i = 0; i < sizeof first / sizeof *first; i++) {
        unit.tensor[0].first = first[i];
        unit.tensor[0].elems = MANY - first[i] < PART ? MANY - first[i] : PART;
        check(random_twin_open(&twin, &part), "twin");
        for (unsigned s = 0; s < run->step; s++)
            random_twin_step(&twin, 1);
        cr_assert_eq(random_compare(run, &twin), 0, "masters from element %llu on differ",
                     (unsigned long long)first[i]);
        random_twin_close(&twin);
    }
}

static struct random_shape shape_of(struct random_unit *unit)
{
    return (struct random_shape){
        .nunits = 1, .unit = unit, .passes = 1, .grad_dtype = HAUL_BF16, .buffer_dtype = HAUL_BF16};
}

static uint64_t train(const struct random_shape *shape, const struct random_place *place,
                      unsigned nsteps)
{
    struct haul_report report = {0};
    struct random_run run;
    uint64_t digest = 0;

    random_watch("a large unit", 3000);
    check(random_open(&run, shape, place), "open");
    for (unsigned s = 0; s < nsteps; s++) {
        check(random_step(&run, &report), "step");
        cr_assert(report.grad_norm > 0 && isfinite(report.grad_norm) && !report.skipped);
    }
    check_parts(&run);
    if (shape->unit[0].tensor[0].frozen) /* else every record would be read again */
        check(haul_engine_digest(run.engine, &digest), "digest");
    check(random_close(&run), "close");
    random_watch("", 0);
    return digest;
}

Test(engine_large, over_2_31_frozen_elements_before_trained_ones)
{
    struct random_unit unit = {
        .ntensors = 3,
        .tensor = {{.elems = MANY, .frozen = 1}, {.elems = 70001}, {.elems = 333, .fp32 = 1}}};
    struct random_shape shape = shape_of(&unit);
    struct random_place place = {.offload = HAUL_OFFLOAD_ALL, .window = 1};

    need_memory(UINT64_C(9500) << 20);
    uint64_t right = train(&shape, &place, 2);
    place.offload = HAUL_OFFLOAD_OPTIMIZER;
    cr_assert_eq(train(&shape, &place, 2), right, "offload optimizer");
    place.offload = HAUL_OFFLOAD_NONE;
    cr_assert_eq(train(&shape, &place, 2), right, "offload none");
}

/* Parameters, gradients, their two buffers and the window: 10 bytes an element; records on disk: 10. */
Test(engine_large, over_2_31_trained_elements_with_their_records_on_nvme)
{
    struct random_unit unit = {.ntensors = 2,
                               .tensor = {{.elems = MANY}, {.elems = 333, .fp32 = 1}}};
    struct random_shape shape = shape_of(&unit);
    struct random_place place = {
        .offload = HAUL_OFFLOAD_ALL, .master = HAUL_MASTER_SPLIT, .window = 1, .slots = 4};
    struct random_rest rest;
    char dir[] = "./large.XXXXXX";

    need_memory(MANY * 10 + (UINT64_C(700) << 20));
    need_disk(MANY * 10 + (UINT64_C(4) << 30));
    cr_assert_not_null(mkdtemp(dir));
    place.nvme_dir = dir;
    cr_assert(random_page_records(&shape, &place, 0));
    check(random_ledger(&shape, &place, &rest), "ledger");
    cr_assert_geq(rest.records[HAUL_TIER_NVME], MANY * 10);
    (void)train(&shape, &place, 1);
    cr_assert_eq(rmdir(dir), 0);
}
