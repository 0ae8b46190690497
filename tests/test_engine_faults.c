/* What fails while an engine is opened, described and built leaves nothing behind. */
#include <errno.h>
#include <unistd.h>

#include "suite.h"
#include "sys.h"
#include "toy_model.h"

static void nothing_alive(const int64_t before[HL_SYS_NKINDS], int64_t n)
{
    for (int k = 0; k < HL_SYS_NKINDS; k++)
        cr_assert_eq(hl_sys_live(k), before[k], "kind %d: %lld alive, %lld before call %lld failed",
                     k, (long long)hl_sys_live(k), (long long)before[k], (long long)n);
}

/* Every call; under tools that take minutes for that, fewer of the later ones. */
static int64_t next_call(int64_t n)
{
    return n + (UNDER_THREAD_SANITIZER || under_valgrind() ? 1 + n / 16 : 1);
}

static void sweep(struct toy_config c)
{
    static struct toy t;
    int64_t before[HL_SYS_NKINDS], n;

    /* What is set up once per process (topology, team) is not this test's. */
    cr_assert_eq(toy_open(&t, &c, 2, 4), 0, "%s", haul_last_error());
    toy_close(&t);
    for (int k = 0; k < HL_SYS_NKINDS; k++)
        before[k] = hl_sys_live(k);
    for (n = 1; n < 5000; n = next_call(n)) {
        cr_assert_eq(hl_sys_fail_nth(n, ENOMEM), 0);
        int rc = toy_open(&t, &c, 2, 4);
        int delivered = hl_sys_failed();
        hl_sys_fail_nth(0, 0);
        if (rc == 0)
            toy_close(&t);
        nothing_alive(before, n);
        if (!delivered)
            break;
    }
    cr_assert_lt(n, 5000);
    cr_assert_gt(n, 20, "only %lld fallible calls?", (long long)n);
}

Test(engine_faults, open_with_offload_none_unwinds_from_every_failure)
{
    sweep((struct toy_config){.offload = HAUL_OFFLOAD_NONE, .passes = 2, .tied = 1});
}

Test(engine_faults, open_with_offload_optimizer_unwinds_from_every_failure)
{
    sweep((struct toy_config){.offload = HAUL_OFFLOAD_OPTIMIZER, .passes = 2, .tied = 1});
}

Test(engine_faults, open_with_offload_all_unwinds_from_every_failure)
{
    sweep((struct toy_config){.offload = HAUL_OFFLOAD_ALL, .passes = 2, .tied = 1});
}

/* ---- a drive that fails in the middle ---- */

static struct toy_config paged(const char *dir)
{
    struct toy_config c = {.offload = HAUL_OFFLOAD_ALL,
                           .nvme_dir = dir,
                           .slot_bytes = 200000,
                           .slots = 3,
                           .io_method = HAUL_IO_THREADS,
                           .host_mem = 1};
    uint64_t sum[HAUL_NTIERS], of[HAUL_NTIERS];

    cr_assert_eq(toy_ledger(&c, 6, 1500, sum, "records", of), 0, "%s", haul_last_error());
    c.host_mem = sum[HAUL_TIER_HOST] + 8192;
    return c;
}

/* Train three steps with the n-th transfer failing; 1 when the failure was delivered. */
static int train_failing(const struct toy_config *c, int64_t n, int err)
{
    static struct toy t;
    int rc, again, delivered;

    cr_assert_eq(toy_open(&t, c, 6, 1500), 0, "%s", haul_last_error());
    cr_assert_eq(toy_step(&t, NULL), 0);
    toy_twin_step(&t);
    cr_assert_eq(hl_sys_fail_nth(n, err), 0);
    for (int s = 0; s < 3; s++) {
        if ((rc = toy_step(&t, NULL)) < 0)
            break;
        toy_twin_step(&t);
    }
    if (rc == 0)
        rc = haul_engine_sync(t.engine);
    int64_t bad = rc == 0 ? toy_compare(&t) : 0;
    again = rc < 0 ? toy_step(&t, NULL) : 0;
    delivered = hl_sys_failed();
    hl_sys_fail_nth(0, 0);
    if (rc < 0) {
        cr_assert_eq(rc, -err, "call %lld: %s: %s", (long long)n, haul_strerror(rc),
                     haul_last_error());
        cr_assert_eq(again, rc, "the engine went on after %s", haul_strerror(rc));
        cr_assert(strlen(haul_last_error()) > 10);
    } else {
        cr_assert_neq(bad, INT64_MAX);
        cr_assert(bad == 0 || bad == -1, "call %lld: %lld masters are wrong", (long long)n,
                  (long long)bad);
    }
    toy_close(&t);
    return delivered;
}

static void fail_every_transfer(int err)
{
    char dir[] = "./faults.XXXXXX";
    int64_t before[HL_SYS_NKINDS], n;

    cr_assert_not_null(mkdtemp(dir));
    struct toy_config c = paged(dir);
    train_failing(&c, 1 << 30, err);
    for (int k = 0; k < HL_SYS_NKINDS; k++)
        before[k] = hl_sys_live(k);
    for (n = 1; n < 400 && train_failing(&c, n, err); n += 1 + n / 8)
        nothing_alive(before, n);
    cr_assert_gt(n, 30, "only %lld transfers?", (long long)n);
    cr_assert_eq(rmdir(dir), 0);
}

Test(engine_faults, open_with_paging_unwinds_from_every_failure)
{
    char dir[] = "./faults.XXXXXX";
    struct toy_config c = {.offload = HAUL_OFFLOAD_ALL,
                           .nvme_dir = dir,
                           .slots = 2,
                           .io_method = HAUL_IO_THREADS,
                           .host_mem = 1};
    uint64_t sum[HAUL_NTIERS], of[HAUL_NTIERS];

    cr_assert_not_null(mkdtemp(dir));
    cr_assert_eq(toy_ledger(&c, 2, 4, sum, "records", of), 0, "%s", haul_last_error());
    c.host_mem = sum[HAUL_TIER_HOST] + 8192;
    sweep(c);
    cr_assert_eq(rmdir(dir), 0);
}

Test(engine_faults, a_failing_drive_ends_the_run_with_its_error_or_the_right_bits)
{
    fail_every_transfer(EIO);
}

Test(engine_faults, a_transfer_refused_for_a_moment_is_not_noticed)
{
    char dir[] = "./faults.XXXXXX";
    static struct toy t;

    cr_assert_not_null(mkdtemp(dir));
    struct toy_config c = paged(dir);
    for (int64_t n = 1; n < 60; n += 7) {
        cr_assert_eq(toy_open(&t, &c, 6, 1500), 0, "%s", haul_last_error());
        cr_assert_eq(hl_sys_fail_nth(n, EAGAIN), 0);
        for (int s = 0; s < 3; s++) {
            cr_assert_eq(toy_step(&t, NULL), 0, "call %lld: %s", (long long)n, haul_last_error());
            toy_twin_step(&t);
        }
        cr_assert_eq(haul_engine_sync(t.engine), 0);
        hl_sys_fail_nth(0, 0);
        cr_assert_eq(toy_compare(&t), 0);
        toy_close(&t);
    }
    cr_assert_eq(rmdir(dir), 0);
}

/* ---- what no engine can be opened or built with ---- */

static struct haul_device *open_device(void)
{
    struct haul_device *dev;

    cr_assert_eq(haul_device_host_open(NULL, &dev), 0, "%s", haul_last_error());
    return dev;
}

static struct haul_engine_opts good_opts(struct haul_device *dev)
{
    struct haul_engine_opts o;

    haul_engine_opts_init(&o);
    o.device = dev;
    return o;
}

static void says(int rc, int want, const char *word)
{
    cr_assert_eq(rc, want, "%s: %d, not %d: %s", word, rc, want, haul_last_error());
    cr_assert_not_null(strstr(haul_last_error(), word), "not named %s: %s", word,
                       haul_last_error());
}

/* After the change to o, open is refused and names the option. */
#define REFUSED(want, word, change)                                                                \
    do {                                                                                           \
        struct haul_engine_opts o = good_opts(dev);                                                \
        struct haul_engine *e = NULL;                                                              \
        (change);                                                                                  \
        says(haul_engine_open(&o, &e), want, word);                                                \
        cr_assert_null(e);                                                                         \
    } while (0)

Test(engine_faults, open_refuses_sizes_beyond_counting)
{
    struct haul_device *dev = open_device();

    for (int shift = 42; shift < 64; shift++)
        REFUSED(-EOVERFLOW, "stash_entry_bytes",
                (o.stash_entries = 1u << 20, o.stash_entry_bytes = (UINT64_C(1) << shift) + 1));
    REFUSED(-EOVERFLOW, "stash_entry_bytes",
            (o.stash_entries = 4, o.stash_entry_bytes = UINT64_C(1) << 62));
    REFUSED(-EOVERFLOW, "stash_entry_bytes",
            (o.stash_entries = 1, o.stash_host_bytes = 1, o.stash_entry_bytes = UINT64_MAX));
    REFUSED(-EOVERFLOW, "trainer_device_bytes", o.trainer_device_bytes = UINT64_MAX);
    REFUSED(-EOVERFLOW, "trainer_device_bytes", o.trainer_device_bytes = (UINT64_C(1) << 62) + 1);
    REFUSED(-EOVERFLOW, "slot_bytes", o.slot_bytes = UINT64_MAX);
    cr_assert_eq(haul_device_close(dev), 0);
}

Test(engine_faults, open_refuses_what_no_step_could_run_with)
{
    const char *none[] = {"./there", NULL}, *empty = "";
    struct haul_device *dev = open_device();

    REFUSED(-EINVAL, "amsgrad", o.optim.amsgrad = 1);
    REFUSED(-EINVAL, "beta1", o.optim.beta1 = 1);
    REFUSED(-EINVAL, "beta2", o.optim.beta2 = -0.1);
    REFUSED(-EINVAL, "eps", o.optim.eps = -1);
    REFUSED(-EINVAL, "moment_dtype", o.optim.moment_dtype = HAUL_BF16);
    REFUSED(-EINVAL, "optimizer", o.optim.kind = HAUL_SGD);
    REFUSED(-EINVAL, "io_method", o.io_method = HAUL_IO_THREADS + 1);
    REFUSED(-EINVAL, "io_method", o.io_method = -1);
    REFUSED(-EINVAL, "overlap", o.overlap = 2);
    REFUSED(-EINVAL, "nthreads", o.nthreads = 4097);
    REFUSED(-EINVAL, "slots", o.slots = 1);
    REFUSED(-EINVAL, "slots", o.slots = 1025);
    REFUSED(-EINVAL, "nvme_dirs[1]", (o.nvme_dirs = none, o.nnvme_dirs = 2));
    REFUSED(-EINVAL, "nvme_dirs[0]", (o.nvme_dirs = &empty, o.nnvme_dirs = 1));
    cr_assert_eq(haul_device_close(dev), 0);
}

static int add_elems(struct haul_engine *e, const char *name, uint64_t elems)
{
    struct haul_tensor w = {.name = "w", .ndims = 1, .shape = {elems}, .dtype = HAUL_BF16};
    struct haul_unit_desc d = {.struct_size = sizeof d, .name = name, .tensors = &w, .ntensors = 1};
    struct haul_unit *u;

    return haul_engine_add_unit(e, &d, &u);
}

Test(engine_faults, add_unit_refuses_more_elements_than_can_be_counted)
{
    struct haul_device *dev = open_device();
    struct haul_engine_opts o = good_opts(dev);
    struct haul_engine *e;

    cr_assert_eq(haul_engine_open(&o, &e), 0, "%s", haul_last_error());
    says(add_elems(e, "over", (UINT64_C(1) << 58) + 1), -EOVERFLOW, "2^58");
    cr_assert_eq(add_elems(e, "half", UINT64_C(1) << 57), 0, "%s", haul_last_error());
    cr_assert_eq(add_elems(e, "other_half", UINT64_C(1) << 57), 0, "%s", haul_last_error());
    says(add_elems(e, "one_more", 1), -EOVERFLOW, "one_more");
    says(haul_engine_build(e), HAUL_E_PLAN, "short by");
    haul_engine_close(e);
    cr_assert_eq(haul_device_close(dev), 0);
}

Test(engine_faults, build_refuses_a_tier_beyond_counting)
{
    struct haul_device *dev = open_device();
    struct haul_engine_opts o = good_opts(dev);
    struct haul_ledger_line line;
    struct haul_engine *e;

    /* 1024 buffers of 2^54 elements of 2 bytes: 2^65 */
    o.window = 1024;
    cr_assert_eq(haul_engine_open(&o, &e), 0, "%s", haul_last_error());
    cr_assert_eq(add_elems(e, "u", UINT64_C(1) << 54), 0, "%s", haul_last_error());
    says(haul_engine_build(e), -EOVERFLOW, "opts.window");
    says(haul_engine_ledger(e, 0, &line), -EOVERFLOW, "opts.window");
    haul_engine_close(e);

    /* 2^62 for the trainer and two buffers of 2^58 elements of 4 bytes: past 2^62, not past 2^63 */
    o = good_opts(dev);
    o.trainer_device_bytes = UINT64_C(1) << 62;
    cr_assert_eq(haul_engine_open(&o, &e), 0, "%s", haul_last_error());
    cr_assert_eq(add_elems(e, "u", UINT64_C(1) << 58), 0, "%s", haul_last_error());
    says(haul_engine_build(e), HAUL_E_PLAN, "short by");
    haul_engine_close(e);
    cr_assert_eq(haul_device_close(dev), 0);
}

/* ---- arguments that are missing ---- */

static int fill_ones(void *user, const char *unit, uint32_t tensor, uint64_t first, uint64_t n,
                     float *out)
{
    (void)user, (void)unit, (void)tensor, (void)first;
    for (uint64_t i = 0; i < n; i++)
        out[i] = 1;
    return 0;
}

#define NEEDS(arg, call) says(call, -EINVAL, arg " is NULL")

Test(engine_faults, open_and_description_name_a_missing_argument)
{
    struct haul_device *dev = open_device();
    struct haul_engine_opts o = good_opts(dev);
    struct haul_unit_desc d = {.struct_size = sizeof d, .name = "u", .ntensors = 1};
    struct haul_ledger_line line;
    struct haul_engine *e;
    struct haul_unit *u;
    uint32_t nlines = 0;

    NEEDS("opts", haul_engine_open(NULL, &e));
    NEEDS("out", haul_engine_open(&o, NULL));
    cr_assert_eq(haul_engine_open(&o, &e), 0, "%s", haul_last_error());
    NEEDS("tensors", haul_engine_add_unit(e, &d, &u));
    d.ntensors = 0;
    NEEDS("engine", haul_engine_add_unit(NULL, &d, &u));
    NEEDS("desc", haul_engine_add_unit(e, NULL, &u));
    NEEDS("out", haul_engine_add_unit(e, &d, NULL));
    cr_assert_eq(haul_engine_add_unit(e, &d, &u), 0, "none of these took the name: %s",
                 haul_last_error());
    NEEDS("engine", haul_engine_visits(NULL, &u, 1));
    NEEDS("visits", haul_engine_visits(e, NULL, 1));
    NEEDS("engine", haul_engine_build(NULL));
    NEEDS("engine", haul_engine_ledger(NULL, 0, &line));
    NEEDS("out", haul_engine_ledger(e, 0, NULL));
    while (haul_engine_ledger(e, nlines, &line) == 0)
        nlines++;
    cr_assert_gt(nlines, 0);
    says(haul_engine_ledger(e, nlines, &line), -EINVAL, "haul_engine_ledger: line");
    haul_engine_close(e);
    cr_assert_eq(haul_device_close(dev), 0);
}

Test(engine_faults, calls_on_a_built_engine_name_a_missing_argument_and_change_nothing)
{
    static struct toy t;
    struct toy_config c = {.offload = HAUL_OFFLOAD_ALL, .trace_events = 64};
    struct haul_step step = {.lr = 0.1};
    struct haul_trace_event event;
    uint64_t planned, digest;
    struct haul_view view;
    uint32_t n;

    cr_assert_eq(toy_open(&t, &c, 3, 4), 0, "%s", haul_last_error());
    struct haul_engine *e = t.engine;
    struct haul_unit *u = t.units[0].unit;
    uint64_t before = toy_digest(&t);
    float x = 7;

    NEEDS("engine", haul_engine_tier_bytes(NULL, HAUL_TIER_HOST, &planned, &planned));
    NEEDS("planned", haul_engine_tier_bytes(e, HAUL_TIER_HOST, NULL, &planned));
    NEEDS("peak", haul_engine_tier_bytes(e, HAUL_TIER_HOST, &planned, NULL));
    NEEDS("engine", haul_engine_fill(NULL, fill_ones, NULL));
    NEEDS("fn", haul_engine_fill(e, NULL, NULL));
    NEEDS("unit", haul_tensor_read(NULL, 0, 0, 1, &x));
    NEEDS("out", haul_tensor_read(u, 0, 0, 1, NULL));
    NEEDS("unit", haul_tensor_write(NULL, 0, 0, 1, &x));
    NEEDS("values", haul_tensor_write(u, 0, 0, 1, NULL));
    NEEDS("unit", haul_unit_acquire(NULL, t.stream, &view));
    NEEDS("view", haul_unit_acquire(u, t.stream, NULL));
    NEEDS("unit", haul_unit_release(NULL, t.stream));
    says(haul_unit_release(u, t.stream), HAUL_E_STATE, "released more often");
    cr_assert_eq(haul_unit_acquire(u, t.stream, &view), 0, "%s", haul_last_error());
    NEEDS("unit", haul_unit_grad(NULL, t.stream, &view));
    NEEDS("view", haul_unit_grad(u, t.stream, NULL));
    NEEDS("unit", haul_unit_reduce(NULL, t.stream));
    says(haul_unit_reduce(u, t.stream), HAUL_E_STATE, "without haul_unit_grad");
    NEEDS("view", haul_unit_acquire(u, t.stream, NULL));
    cr_assert_eq(haul_unit_release(u, t.stream), 0, "%s", haul_last_error());
    says(haul_unit_release(u, t.stream), HAUL_E_STATE, "released more often");
    NEEDS("engine", haul_engine_pass(NULL, HAUL_PASS_EVAL));
    says(haul_engine_pass(e, HAUL_PASS_EVAL + 1), -EINVAL, "pass 2");
    says(haul_engine_pass(e, -1), -EINVAL, "pass -1");
    NEEDS("engine", haul_engine_step(NULL, &step, NULL));
    NEEDS("step", haul_engine_step(e, NULL, NULL));
    NEEDS("engine", haul_engine_sync(NULL));
    NEEDS("engine", haul_engine_digest(NULL, &digest));
    NEEDS("out", haul_engine_digest(e, NULL));
    NEEDS("engine", haul_engine_trace(NULL, &event, 1, &n, NULL));
    NEEDS("events", haul_engine_trace(e, NULL, 1, &n, NULL));
    NEEDS("n", haul_engine_trace(e, &event, 1, NULL, NULL));
    NEEDS("engine", haul_stash_put(NULL, &x, 4, t.stream));
    NEEDS("src", haul_stash_put(e, NULL, 4, t.stream));
    NEEDS("engine", haul_stash_take(NULL, &x, 4, t.stream));
    NEEDS("dst", haul_stash_take(e, NULL, 4, t.stream));

    cr_assert_eq(toy_digest(&t), before, "a refused call changed the state");
    cr_assert_eq(toy_step(&t, NULL), 0, "%s", haul_last_error());
    toy_twin_step(&t);
    cr_assert_eq(haul_engine_sync(e), 0, "%s", haul_last_error());
    cr_assert_eq(toy_compare(&t), 0);
    toy_close(&t);
}
