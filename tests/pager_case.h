/*
 * pager_case.h: what the pager's suites share: places to run in, stores opened through the method
 * under test, and contents that can be checked byte by byte.
 *
 * A suite file defines METHOD (an expression of type const struct hl_method_ops *) and METHOD_BEGIN()
 * before it includes this.
 */
#ifndef HAUL_TESTS_PAGER_CASE_H
#define HAUL_TESTS_PAGER_CASE_H

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "suite.h"

#include "checksum.h"
#include "haul/pager.h"
#include "haul/pool.h"
#include "method_fault.h"
#include "store.h"
#include "store_kept.h"
#include "sys.h"

#define KIB 1024ull
#define MIB (1024ull * KIB)
#define BLK (64 * KIB)

/* ---- places: the build directory's file system, and tmpfs ---- */

static inline int place_make(unsigned i, char dir[128])
{
    static const char *const base[] = {".", "/dev/shm"};

    if (i >= 2)
        return 0;
    snprintf(dir, 128, "%s/pager-XXXXXX", base[i]);
    return mkdtemp(dir) != NULL;
}

static inline void place_empty(const char *dir)
{
    DIR *d = opendir(dir);
    struct dirent *e;
    char path[512];

    while (d && (e = readdir(d))) {
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        if (strcmp(e->d_name, ".") && strcmp(e->d_name, ".."))
            unlink(path);
    }
    if (d)
        closedir(d);
}

static inline void place_remove(const char *dir)
{
    place_empty(dir);
    rmdir(dir);
}

static inline unsigned place_count(const char *dir)
{
    DIR *d = opendir(dir);
    unsigned n = 0;

    while (d && readdir(d))
        n++;
    if (d)
        closedir(d);
    return n - 2;
}

#define FOR_EACH_PLACE(dir)                                                                        \
    for (unsigned place_ = 0; place_make(place_, dir); place_remove(dir), place_++)

/* ---- stores ---- */

static inline struct haul_store_opts small_opts(const char *const *dir)
{
    struct haul_store_opts o;

    haul_store_opts_init(&o);
    o.dirs = dir;
    o.ndirs = 1;
    o.capacity_bytes = 4 * MIB;
    o.block_bytes = BLK;
    o.read_depth = 6;
    o.write_depth = 5;
    o.max_requests = 32;
    o.reserve = HAUL_RESERVE_ALLOCATED;
    return o;
}

#define MUST(call)                                                                                 \
    do {                                                                                           \
        int must_ = (call);                                                                        \
        cr_assert_eq(must_, 0, "%s: %d %s", #call, must_, haul_last_error());                      \
    } while (0)

#define MUST_FAIL(code, call)                                                                      \
    do {                                                                                           \
        int must_ = (call);                                                                        \
        cr_assert_eq(must_, (code), "%s: %d, %s", #call, must_, haul_last_error());                \
        cr_assert(haul_last_error()[0] != '\0', "no text");                                        \
    } while (0)

#ifdef METHOD
static inline int open_store(const struct haul_store_opts *o, struct haul_store **s)
{
    METHOD_BEGIN();
    return hl_store_open_with(o, METHOD, s);
}

static inline struct haul_store *scratch(const char *dir, uint64_t extent_bytes)
{
    struct haul_store_opts o = small_opts(&dir);
    struct haul_store *s = NULL;

    o.capacity_bytes = haul_extent_cost(extent_bytes, o.block_bytes);
    MUST(open_store(&o, &s));
    MUST(haul_extent_create(s, 1, extent_bytes));
    return s;
}

static inline struct haul_store *durable(const char *dir, uint64_t generation)
{
    struct haul_store_opts o = small_opts(&dir);
    struct haul_store *s = NULL;

    o.durable = 1;
    o.generation = generation;
    MUST(open_store(&o, &s));
    return s;
}
#endif

/* ---- contents ---- */

/* Bytes that tell where they belong: position and seed mixed. */
static inline void fill(void *p, uint64_t first, uint64_t n, uint64_t seed)
{
    unsigned char *c = p;

    for (uint64_t i = 0; i < n; i++) {
        uint64_t x = (first + i) * 0x9e3779b97f4a7c15ull + seed * 0xbf58476d1ce4e5b9ull;

        c[i] = (unsigned char)(x >> 33 ^ x >> 57);
    }
}

static inline int filled(const void *p, uint64_t first, uint64_t n, uint64_t seed)
{
    const unsigned char *c = p;
    unsigned char want[256];

    for (uint64_t i = 0; i < n; i += sizeof want) {
        uint64_t piece = n - i < sizeof want ? n - i : sizeof want;

        fill(want, first + i, piece, seed);
        if (memcmp(c + i, want, piece))
            return 0;
    }
    return 1;
}

static inline int zero(const void *p, uint64_t n)
{
    const unsigned char *c = p;

    for (uint64_t i = 0; i < n; i++)
        if (c[i])
            return 0;
    return 1;
}

/* 4096-aligned, for the direct path; never freed (the case is a process of its own). */
static inline unsigned char *memory(uint64_t bytes)
{
    void *p = NULL;

    cr_assert_eq(posix_memalign(&p, 4096, bytes), 0);
    memset(p, 0xee, bytes);
    return p;
}

static inline uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15ull;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

#endif
