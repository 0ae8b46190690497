/* test_pager_large.c: requests around 2 and 4 GiB, where 32-bit lengths end.
 *
 * The memory is one piece of 61 MiB mapped again and again, so that it costs little. 61 shares no
 * factor with powers of two: data that lands 2 or 4 GiB away from its place differs from what
 * belongs there. */
#include "method.h"
#include "pager_case.h"

#define PERIOD (61 * MIB)

static unsigned char *repeated(uint64_t bytes)
{
    int fd = memfd_create("large", MFD_CLOEXEC);
    unsigned char *p = mmap(NULL, bytes + PERIOD, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    cr_assert(fd >= 0 && p != MAP_FAILED);
    cr_assert_eq(ftruncate(fd, PERIOD), 0);
    for (uint64_t at = 0; at < bytes; at += PERIOD)
        cr_assert_eq((void *)(p + at),
                     mmap(p + at, PERIOD, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0));
    close(fd);
    return p;
}

static void stamp(unsigned char *p)
{
    for (uint64_t i = 0; i < PERIOD; i += 4096)
        memcpy(p + i, &i, sizeof i);
}

static int stamped(const unsigned char *p)
{
    for (uint64_t i = 0; i < PERIOD; i += 4096)
        if (memcmp(p + i, &i, sizeof i))
            return 0;
    return 1;
}

/* Blocks read alone, far apart. */
static void check_alone(struct haul_store *s, uint64_t bytes)
{
    unsigned char *m = memory(4096);

    for (uint64_t at = 0; at + 4096 <= bytes; at += 97 * MIB + 4096) {
        uint64_t want = at % PERIOD;

        MUST(haul_store_read(s, 1, at, m, 4096));
        cr_assert(!memcmp(m, &want, sizeof want), "at %llu", (unsigned long long)at);
    }
    free(m);
}

static void move_large(struct haul_store *s, unsigned char *p, uint64_t bytes)
{
    stamp(p);
    MUST(haul_store_write(s, 1, 0, p, bytes));
    memset(p, 0, PERIOD);
    MUST(haul_store_read(s, 1, 0, p, bytes));
    cr_assert(stamped(p), "%llu bytes", (unsigned long long)bytes);
    check_alone(s, bytes);
}

static void run_large(const struct hl_method_ops *ops)
{
    static const uint64_t sizes[] = {2048 * MIB - 4096, 2048 * MIB, 4096 * MIB, 4096 * MIB + 4096};
    unsigned char *p = repeated(4097 * MIB);
    struct haul_store_opts o;
    struct haul_store *s;
    char dir[128];
    const char *d = dir;

    cr_assert(place_make(0, dir));
    o = small_opts(&d);
    o.block_bytes = 1u << 20;
    o.capacity_bytes = 4097 * MIB;
    MUST(hl_store_open_with(&o, ops, &s));
    MUST(haul_extent_create(s, 1, 4096 * MIB + 4096));
    for (unsigned i = 0; i < 4; i++)
        move_large(s, p, sizes[i]);
    haul_store_close(s);
    place_remove(dir);
}

Test(pager_large, threads)
{
    run_large(&hl_method_threads);
}

Test(pager_large, chosen_method)
{
    run_large(NULL);
}
