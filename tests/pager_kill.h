/* pager_kill.h: SIGKILL at random instants. Included by test_pager_kill.c (few) and
 * test_pager_kill_long.c (many), which define NKILLS.
 *
 * A child writes 64 MiB over 8 extents and commits them as a generation, again and again. Whenever it
 * is killed, the store must open with a whole generation, not older than the last one that a commit
 * acknowledged, whose every byte is that generation's. With the volatile cache, what was not flushed
 * is lost as in a power cut. */
#include "method.h"
#include "method_fault.h"
#include "pager_case.h"

#define NEXTENTS     8u
#define EXTENT_BYTES (8 * MIB)

static void paint(uint64_t *p, uint32_t extent, uint64_t generation)
{
    for (uint64_t i = 0; i < EXTENT_BYTES / 8; i++)
        p[i] = (i + 1) * 0x9e3779b97f4a7c15ull ^ generation << 8 ^ extent;
}

static int painted(const uint64_t *p, uint32_t extent, uint64_t generation)
{
    for (uint64_t i = 0; i < EXTENT_BYTES / 8; i++)
        if (p[i] != ((i + 1) * 0x9e3779b97f4a7c15ull ^ generation << 8 ^ extent))
            return 0;
    return 1;
}

static int open_kill(const char *dir, const struct hl_method_ops *ops, struct haul_store **s)
{
    struct haul_store_opts o = small_opts(&dir);

    o.durable = 1;
    o.block_bytes = 1u << 20;
    o.capacity_bytes = NEXTENTS * EXTENT_BYTES;
    return hl_store_open_with(&o, ops, s);
}

static int write_generation(struct haul_store *s, uint64_t *mem, uint64_t generation)
{
    int rc = 0;

    for (uint32_t e = 0; rc == 0 && e < NEXTENTS; e++) {
        paint(mem, e, generation);
        rc = haul_store_write(s, e, 0, mem, EXTENT_BYTES / 2 + 12345);
        if (rc == 0) /* the halves meet within a block */
            rc = haul_store_write(s, e, EXTENT_BYTES / 2 + 12345,
                                  (char *)mem + EXTENT_BYTES / 2 + 12345, EXTENT_BYTES / 2 - 12345);
    }
    return rc;
}

/* Never returns. */
static void write_until_killed(const char *dir, const struct hl_method_ops *ops,
                               _Atomic uint64_t *acknowledged)
{
    uint64_t *mem = aligned_alloc(4096, EXTENT_BYTES), generation, bytes;
    struct haul_store *s;

    if (!mem || open_kill(dir, ops, &s))
        _exit(11);
    generation = haul_store_generation(s, NULL, NULL);
    for (uint32_t e = 0; e < NEXTENTS; e++)
        if (haul_extent_size(s, e, &bytes) && haul_extent_create(s, e, EXTENT_BYTES))
            _exit(12);
    for (;;) {
        generation++;
        if (write_generation(s, mem, generation))
            _exit(13);
        if (haul_store_commit(s, generation, &generation, sizeof generation))
            _exit(14);
        atomic_store(acknowledged, generation);
    }
}

static void check_store(const char *dir, uint64_t acknowledged, unsigned kill)
{
    uint64_t *mem = (uint64_t *)memory(EXTENT_BYTES), generation, damaged = 99, bytes;
    struct haul_store *s = NULL;
    const void *blob;

    MUST(open_kill(dir, NULL, &s));
    generation = haul_store_generation(s, &blob, &bytes);
    cr_assert_geq(generation, acknowledged, "kill %u: generation %d after %d was acknowledged",
                  kill, (int)generation, (int)acknowledged);
    if (generation) {
        cr_assert(bytes == 8 && !memcmp(blob, &generation, 8), "kill %u", kill);
        MUST(haul_store_verify(s, NULL, NULL, &damaged));
        cr_assert_eq(damaged, 0, "kill %u: %d blocks", kill, (int)damaged);
        for (uint32_t e = 0; e < NEXTENTS; e++) {
            MUST(haul_store_read(s, e, 0, mem, EXTENT_BYTES));
            cr_assert(painted(mem, e, generation), "kill %u extent %u is not of generation %d",
                      kill, e, (int)generation);
        }
    }
    haul_store_close(s);
    free(mem);
}

/* Until the second is acknowledged, 20 s at most. Returns about three commits' time in microseconds. */
static uint64_t wait_for_commit(_Atomic uint64_t *acknowledged)
{
    uint64_t ms = 0, first_ms = 0;

    for (; atomic_load(acknowledged) < 2 && ms < 20000; ms++) {
        if (atomic_load(acknowledged) == 0)
            first_ms = ms;
        usleep(1000);
    }
    return (ms - first_ms) * 3000 + 50000;
}

static void kill_many(const char *dir, const struct hl_method_ops *ops, unsigned nkills,
                      uint64_t seed)
{
    _Atomic uint64_t *acknowledged =
        mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    uint64_t state = seed, span_us = 1;

    for (unsigned i = 0; i < nkills; i++) {
        int status;
        pid_t child = fork();

        if (child == 0)
            write_until_killed(dir, ops, acknowledged);
        /* The first writes the space once, and shows how long a commit takes; later ones are hit
         * before, in and between commits. */
        if (i == 0)
            span_us = wait_for_commit(acknowledged);
        else
            usleep((useconds_t)(next_random(&state) % span_us));
        kill(child, SIGKILL);
        cr_assert_eq(waitpid(child, &status, 0), child);
        cr_assert(WIFSIGNALED(status), "the child gave up by itself: %d",
                  WIFEXITED(status) ? WEXITSTATUS(status) : -1);
        check_store(dir, atomic_load(acknowledged), i);
    }
    cr_assert_gt(atomic_load(acknowledged), 0, "nothing was ever committed");
    munmap((void *)(uintptr_t)acknowledged, 4096);
}

Test(pager_kill, a_killed_writer_leaves_a_whole_generation)
{
    char dir[128];

    cr_assert(place_make(0, dir));
    kill_many(dir, NULL, NKILLS, 1);
    place_remove(dir);
}

Test(pager_kill, a_power_cut_leaves_a_whole_generation)
{
    char dir[128];

    cr_assert(place_make(0, dir));
    hl_fault_arm(&(struct hl_fault_plan){
        .inner = &hl_method_threads, .seed = 5, .reorder = 1, .volatile_cache = 1});
    kill_many(dir, &hl_method_fault, NKILLS, 2);
    place_remove(dir);
}
