/*
 * The engine on the CUDA back end over the fake driver: the digests of the emulated device, in every
 * placement, under delays from many seeds; and every call of the driver made to fail.
 */
#include "test_cuda_fixture.h"
#include "toy_model.h"

static void check(int rc)
{
    cr_assert_eq(rc, 0, "%s: %s", haul_strerror(rc), haul_last_error());
}

static const struct toy_config rows[] = {
    {.offload = HAUL_OFFLOAD_NONE},
    {.offload = HAUL_OFFLOAD_OPTIMIZER},
    {.offload = HAUL_OFFLOAD_ALL},
    {.offload = HAUL_OFFLOAD_OPTIMIZER, .slots = 3, .max_held = 2},
    {.offload = HAUL_OFFLOAD_ALL, .window = 1},
    {.offload = HAUL_OFFLOAD_ALL, .window = 3, .max_held = 2, .nthreads = 2},
    {.offload = HAUL_OFFLOAD_NONE, .master = HAUL_MASTER_SPLIT},
    {.offload = HAUL_OFFLOAD_OPTIMIZER, .master = HAUL_MASTER_SPLIT},
    {.offload = HAUL_OFFLOAD_ALL, .master = HAUL_MASTER_SPLIT, .window = 2},
    {.offload = HAUL_OFFLOAD_ALL, .no_overlap = 1},
    {.offload = HAUL_OFFLOAD_OPTIMIZER, .no_overlap = 1},
};
#define NROWS (sizeof rows / sizeof *rows)

static struct toy_config row_of(unsigned i, int cuda)
{
    struct toy_config c = rows[i];

    c.tied = c.frozen = 1;
    c.cuda = cuda;
    return c;
}

/* A few steps, a look at the values between them, a few more. */
static uint64_t train(const struct toy_config *c, unsigned nunits, unsigned nsteps)
{
    static struct toy t;
    uint64_t digest;

    check(toy_open(&t, c, nunits, 40));
    for (unsigned s = 0; s < nsteps; s++) {
        check(toy_step(&t, NULL));
        if (s == nsteps / 2)
            cr_assert_neq(toy_digest(&t), 0u);
    }
    digest = toy_digest(&t);
    toy_close(&t);
    cr_assert_neq(digest, 0u);
    return digest;
}

static uint64_t on_host(unsigned passes, enum haul_dtype buffer, unsigned nunits, unsigned nsteps)
{
    struct toy_config c = row_of(2, 0);

    c.passes = passes;
    c.buffer_dtype = buffer;
    return train(&c, nunits, nsteps);
}

Test(cuda_engine, every_placement_has_the_digest_of_the_emulated_device)
{
    for (unsigned passes = 1; passes < 3; passes++)
        for (int b = HAUL_FP32; b <= HAUL_BF16; b++) {
            uint64_t want = on_host(passes, b, 5, 4);

            fake_load();
            for (unsigned i = 0; i < NROWS; i++) {
                struct toy_config c = row_of(i, 1);

                c.passes = passes;
                c.buffer_dtype = b;
                cr_assert_eq(train(&c, 5, 4), want, "row %u, %u passes, buffer %d", i, passes, b);
            }
        }
    fake_is_clean("trained");
}

/* Missing waits show here: streams are held back at random, some of them at every operation. */
Test(cuda_engine, digests_do_not_depend_on_delays)
{
    uint64_t want[2] = {on_host(1, HAUL_FP32, 5, 4), on_host(2, HAUL_FP32, 5, 4)};

    fake_load();
    for (unsigned seed = 1; seed <= fake_seeds(24); seed++) {
        struct toy_config c = row_of(seed % NROWS, 1);

        c.passes = 1 + seed / NROWS % 2;
        fake.configure(&(struct fake_cuda_config){.seed = seed});
        cr_assert_eq(train(&c, 5, 4), want[c.passes - 1], "seed %u, row %u, %u passes", seed,
                     seed % (unsigned)NROWS, c.passes);
    }
    fake_is_clean("trained");
}

Test(cuda_engine, pageable_host_memory_gives_the_same_digest)
{
    uint64_t want = on_host(1, HAUL_FP32, 5, 4);

    fake_load();
    haul_log_set(NULL, NULL, HAUL_LOG_ERROR);
    for (unsigned i = 0; i < 4; i++) {
        struct toy_config c = row_of(i, 1);

        fake.configure(&(struct fake_cuda_config){.seed = 3 + i, .pin_bytes = 1});
        cr_assert_eq(train(&c, 5, 4), want, "row %u", i);
    }
    haul_log_set(NULL, NULL, HAUL_LOG_WARN);
    fake_is_clean("trained");
}

/* Two steps; the first error on the way, with everything closed again. */
static int try_to_train(const struct toy_config *c, uint64_t *digest)
{
    static struct toy t;
    int rc = toy_open(&t, c, 3, 4);

    if (rc < 0)
        return rc;
    for (int s = 0; rc == 0 && s < 2; s++)
        rc = toy_step(&t, NULL);
    if (rc == 0)
        rc = haul_engine_digest(t.engine, digest);
    toy_close(&t);
    return rc;
}

/* Each call of the driver fails in turn. What is released while it fails cannot be reported; what then
 * trains on must have the right digest. */
static void sweep(unsigned row, int result)
{
    struct toy_config c = row_of(row, 1);
    struct census before;
    uint64_t want = 0, got = 0;
    int64_t n, nerrors = 0;

    fake_load();
    check(try_to_train(&c, &want));
    before = census_take();
    haul_log_set(NULL, NULL, HAUL_LOG_ERROR);
    for (n = 1; n < 100000; n++) {
        fake.fail_nth(n, result);
        int rc = try_to_train(&c, &got);
        int delivered = fake.failed() != NULL;

        fake.fail_nth(0, 0);
        nerrors += rc < 0;
        cr_assert(rc < 0 || got == want, "call %lld: another digest", (long long)n);
        cr_assert(rc == 0 || strlen(haul_last_error()) > 0);
        fake_is_clean("a call failed");
        census_same(&before);
        if (!delivered)
            break;
        if (n > 400 && !getenv("HAUL_FAKE_SEEDS")) /* then the same again, step after step */
            n += 6;
    }
    haul_log_set(NULL, NULL, HAUL_LOG_WARN);
    cr_log_info("row %u: %lld calls, %lld errors", row, (long long)n - 1, (long long)nerrors);
    cr_assert_lt(n, 100000);
    cr_assert_gt(nerrors, 100, "only %lld errors", (long long)nerrors);
}

Test(cuda_engine, every_failing_call_is_an_error_with_offload_none)
{
    sweep(0, CUDA_UNKNOWN);
}

Test(cuda_engine, every_failing_call_is_an_error_with_offload_optimizer)
{
    sweep(1, CUDA_NO_MEMORY);
}

Test(cuda_engine, every_failing_call_is_an_error_with_offload_all)
{
    sweep(2, CUDA_INVALID);
}

/* The context is lost while work runs: the engine says so, and closes. */
Test(cuda_engine, a_context_lost_at_any_moment_is_an_error_and_everything_closes)
{
    struct toy_config c = row_of(2, 1);
    struct census before;
    uint64_t digest;
    int rc = -1;

    fake_load();
    check(try_to_train(&c, &digest));
    before = census_take();
    haul_log_set(NULL, NULL, HAUL_LOG_ERROR);
    for (int64_t n = 1; rc < 0; n += 5) {
        fake.lose_nth(n, CUDA_ILLEGAL);
        rc = try_to_train(&c, &digest);
        cr_assert(rc == 0 || rc == HAUL_E_DEVICE, "operation %lld: %d", (long long)n, rc);
        fake_is_clean("a lost context");
        fake.revive();
        census_same(&before);
    }
}
