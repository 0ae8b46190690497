/* store_open.c: options, opening and closing. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "clock.h"
#include "store.h"
#include "stripe_file.h"
#include "sys.h"

/* CPU work (checks, merges) holds transfers a little longer than the drive does. */
#define EXTRA_XFERS 8

void haul_store_opts_init(struct haul_store_opts *opts)
{
    *opts = (struct haul_store_opts){
        .struct_size = sizeof *opts,
        .block_bytes = 4u << 20,
        .read_depth = 12,
        .write_depth = 12,
        .max_requests = 256,
        .bounce_blocks = 4,
        .verify_every = 16,
    };
}

static int out_of_range(const char *name, uint64_t value, uint64_t least, uint64_t most)
{
    if (value >= least && value <= most)
        return 0;
    return hl_fail(-EINVAL, "%s is %" PRIu64 ", allowed are %" PRIu64 " to %" PRIu64, name, value,
                   least, most);
}

static int check_weights(const struct haul_store_opts *o)
{
    for (uint32_t i = 0; o->dir_weights && i < o->ndirs; i++)
        if (!(o->dir_weights[i] > 0 && o->dir_weights[i] < 1e30))
            return hl_fail(-EINVAL, "dir_weights[%u] is %g; weights are positive", i,
                           o->dir_weights[i]);
    return 0;
}

static int check_dirs(const struct haul_store_opts *o)
{
    if (!o->dirs)
        return hl_fail(-EINVAL, "dirs is NULL");
    for (uint32_t i = 0; i < o->ndirs; i++)
        if (!o->dirs[i])
            return hl_fail(-EINVAL, "dirs[%u] is NULL; %u directories (ndirs) are to be named", i,
                           o->ndirs);
    return 0;
}

static int check_opts(const struct haul_store_opts *o)
{
    int rc = 0;

    if (!o)
        return hl_need("haul_store_open", "opts", o);
    if (o->struct_size != sizeof *o)
        return hl_fail(HAUL_E_ABI, "haul_store_opts were not initialised");
    rc = rc ? rc : out_of_range("ndirs", o->ndirs, 1, HAUL_MAX_DIRS);
    rc = rc ? rc : out_of_range("block_bytes", o->block_bytes, 4096, 1u << 30);
    rc = rc ? rc : out_of_range("read_depth", o->read_depth, 1, 1024);
    rc = rc ? rc : out_of_range("write_depth", o->write_depth, 1, 1024);
    rc = rc ? rc : out_of_range("max_requests", o->max_requests, 1, 65536);
    rc = rc ? rc : out_of_range("bounce_blocks", o->bounce_blocks, 1, 4096);
    rc = rc ? rc : out_of_range("verify_every", o->verify_every, 1, UINT32_MAX);
    rc = rc ? rc : out_of_range("method", o->method, 0, HAUL_IO_THREADS);
    rc = rc ? rc : out_of_range("direct", o->direct, 0, HAUL_DIRECT_OFF);
    rc = rc ? rc : out_of_range("verify", o->verify, 0, HAUL_VERIFY_OFF);
    rc = rc ? rc : out_of_range("reserve", o->reserve, 0, HAUL_RESERVE_NONE);
    rc = rc ? rc : check_weights(o);
    rc = rc ? rc : check_dirs(o);
    if (rc < 0)
        return rc;
    if (o->block_bytes % 4096)
        return hl_fail(-EINVAL, "block_bytes is %u, no multiple of 4096", o->block_bytes);
    if (!o->durable && (!o->capacity_bytes || o->read_only || o->generation))
        return hl_fail(-EINVAL, "a scratch store needs a capacity, and is neither read_only nor of "
                                "some generation");
    return 0;
}

static int alloc_tables(struct haul_store *s)
{
    void *mem;
    int rc;

    s->nxfers = s->opts.read_depth + s->opts.write_depth + EXTRA_XFERS;
    rc = hl_sys_alloc_array(s->opts.max_requests, sizeof *s->ops, &mem);
    if (rc < 0)
        return rc;
    s->ops = mem;
    rc = hl_sys_alloc_array(s->nxfers, sizeof *s->xfers, &mem);
    if (rc < 0)
        return rc;
    s->xfers = mem;
    rc = hl_sys_alloc_array(s->nxfers, sizeof *s->reaped, &mem);
    if (rc < 0)
        return rc;
    s->reaped = mem;
    rc = hl_sys_alloc_array(s->opts.bounce_blocks, sizeof *s->bounce_free, &mem);
    if (rc < 0)
        return rc;
    s->bounce_free = mem;
    return 0;
}

static void link_tables(struct haul_store *s)
{
    for (uint32_t i = s->opts.max_requests; i-- > 0;) {
        atomic_store(&s->ops[i].generation, 1);
        s->ops[i].next = s->free_ops;
        s->free_ops = &s->ops[i];
    }
    for (uint32_t i = s->nxfers; i-- > 0;) {
        s->xfers[i].next = s->free_xfers;
        s->free_xfers = &s->xfers[i];
    }
    for (uint32_t i = s->opts.bounce_blocks; i-- > 0;)
        s->bounce_free[s->nbounce_free++] = i;
    s->read.limit = s->opts.read_depth;
    s->write.limit = s->opts.write_depth;
}

static void free_tables(struct haul_store *s)
{
    hl_sys_free(s->bounce_free);
    hl_sys_free(s->reaped);
    hl_sys_free(s->xfers);
    hl_sys_free(s->ops);
}

static int take_bounce_memory(struct haul_store *s)
{
    uint64_t bytes = (uint64_t)s->opts.bounce_blocks * s->opts.block_bytes;
    struct haul_pool_segment seg = {.bytes = bytes, .fd = -1};
    struct haul_pool *pool = s->opts.pool;
    struct haul_pool_opts opts;
    void *mem;
    int rc;

    if (!pool) {
        haul_pool_opts_init(&opts);
        opts.segments = &seg;
        opts.nsegments = 1;
        rc = haul_pool_open(&opts, &s->own_pool);
        if (rc < 0)
            return rc;
        pool = s->own_pool;
    }
    rc = haul_pool_take(pool, "pager bounce", bytes, &mem);
    if (rc == 0)
        s->bounce_mem = mem;
    return rc;
}

static int choose_method(struct haul_store *s, const struct hl_method_ops *ops)
{
    struct hl_method_place places[HAUL_MAX_DIRS];

    s->method_ops = ops ? ops : &hl_method_threads;
    if (ops)
        return 0;
    /* A read-only store may stand where nothing can be written: then nothing can be tried either. */
    if (s->opts.read_only)
        return 0;
    for (uint32_t i = 0; i < s->ndirs; i++) {
        uint32_t align =
            s->dirs[i].align > s->dirs[i].mem_align ? s->dirs[i].align : s->dirs[i].mem_align;

        places[i] =
            (struct hl_method_place){s->dirs[i].path, s->dirs[i].dirfd, align, s->dirs[i].direct};
    }
    return hl_method_choose(s->opts.method, places, s->ndirs, s->method_note, sizeof s->method_note,
                            &s->method_ops);
}

/* What is on disk: directories, generation, files, space. */
static int open_disk(struct haul_store *s, const struct haul_store_opts *opts,
                     const struct hl_method_ops *ops)
{
    int rc = hl_dirs_open(s, opts);

    if (rc == 0 && s->opts.durable)
        rc = hl_durable_load(s, opts);
    if (rc == 0 && s->opts.durable && !s->generation && !opts->capacity_bytes)
        rc = hl_fail(-EINVAL, "a new durable store in %s needs a capacity", s->dirs[0].path);
    if (rc == 0)
        rc = hl_dirs_files(s);
    if (rc == 0)
        rc = choose_method(s, ops);
    if (rc == 0 && s->opts.durable && !s->generation)
        rc = hl_durable_stripes(s);
    if (rc == 0 && !s->opts.read_only)
        rc = hl_dirs_reserve(s);
    return rc < 0 ? rc : hl_cells_init(s);
}

static void close_disk(struct haul_store *s)
{
    hl_extents_free_all(s);
    hl_cells_free_all(s);
    hl_dirs_close(s);
    hl_sys_free(s->blob);
}

static void start_values(struct haul_store *s, const struct haul_store_opts *opts)
{
    s->opts = *opts;
    s->opts.capacity_bytes = haul_extent_cost(opts->capacity_bytes, opts->block_bytes);
    s->ndirs = opts->ndirs;
    s->nslots = opts->durable ? 2 : 1;
    s->opened_ns = hl_clock_ns();
    for (uint32_t i = 0; i < HAUL_MAX_DIRS; i++)
        s->fds[i] = s->dirs[i].dirfd = s->dirs[i].lock_fd = -1;
}

static void take_note(struct haul_store *s)
{
    const char *note = "";
    size_t n = strlen(s->method_note);

    if (s->method->ops->note)
        note = s->method->ops->note(s->method, &s->fixed_buffers);
    if (!note[0])
        return;
    snprintf(s->method_note + n, sizeof s->method_note - n, "%s%s", n ? "; " : "", note);
    if (s->opts.pool)
        hl_log(HAUL_LOG_WARN, "%s", note);
}

int hl_store_open_with(const struct haul_store_opts *opts, const struct hl_method_ops *ops,
                       struct haul_store **out)
{
    struct haul_store *s;
    void *mem;
    int rc = check_opts(opts);

    if (rc == 0)
        rc = hl_sys_alloc(sizeof *s, &mem);
    if (rc < 0)
        return rc;
    s = mem;
    start_values(s, opts);
    rc = open_disk(s, opts, ops);
    if (rc < 0)
        goto close_disk;
    rc = alloc_tables(s);
    if (rc < 0)
        goto free_tables;
    link_tables(s);
    rc = take_bounce_memory(s);
    if (rc < 0)
        goto close_pool;
    rc = hl_loop_start(s);
    if (rc < 0)
        goto close_pool;
    take_note(s);
    *out = s;
    return 0;

close_pool:
    haul_pool_close(s->own_pool);
free_tables:
    free_tables(s);
close_disk:
    close_disk(s);
    hl_sys_free(s);
    return rc;
}

int haul_store_open(const struct haul_store_opts *opts, struct haul_store **out)
{
    int rc = HL_GIVEN(out);

    return rc < 0 ? rc : hl_store_open_with(opts, NULL, out);
}

void haul_store_close(struct haul_store *store)
{
    if (!store)
        return;
    haul_store_drain(store);
    hl_loop_stop(store);
    haul_pool_close(store->own_pool);
    free_tables(store);
    close_disk(store);
    hl_sys_free(store);
}
