/* verify.c: read everything and check it. */
#include <sys/mman.h>

#include "store.h"
#include "sys.h"

#define MAX_DEPTH 8

struct verifier {
    struct haul_store *s;
    haul_damage_fn fn;
    void *user;
    uint64_t ndamaged;
    uint32_t depth, next; /* ring of requests */
    char *mem;            /* depth blocks */
    struct {
        uint64_t token, block;
        uint32_t extent;
    } slots[MAX_DEPTH];
};

static int finish(struct verifier *v, uint32_t i)
{
    int rc;

    if (!v->slots[i].token)
        return 0;
    rc = haul_store_wait(v->s, v->slots[i].token);
    v->slots[i].token = 0;
    if (rc == 0)
        return 0;
    if (rc != HAUL_E_CHECKSUM && rc != HAUL_E_SHORT_IO && rc != -EIO)
        return rc;
    v->ndamaged++;
    if (v->fn)
        v->fn(v->user, &(struct haul_damage){.extent = v->slots[i].extent,
                                             .block = v->slots[i].block,
                                             .rc = rc,
                                             .text = haul_last_error()});
    return 0;
}

static int read_block(struct verifier *v, const struct hl_extent *ext, uint64_t block)
{
    uint32_t i = v->next;
    struct haul_io io = {.extent = ext->id,
                         .offset = block * v->s->opts.block_bytes,
                         .buf = v->mem + (uint64_t)i * v->s->opts.block_bytes,
                         .bytes = hl_block_len(v->s, ext, block)};
    int rc = finish(v, i);

    if (rc < 0)
        return rc;
    v->slots[i].extent = ext->id;
    v->slots[i].block = block;
    v->next = (i + 1) % v->depth;
    return hl_store_submit(v->s, &io, 1, &v->slots[i].token);
}

static int read_all(struct verifier *v)
{
    int rc = 0;

    for (uint32_t id = 0; rc == 0 && id < v->s->extents_len; id++) {
        const struct hl_extent *ext = v->s->extents[id];

        for (uint64_t b = 0; rc == 0 && ext && b < ext->nblocks; b++)
            rc = read_block(v, ext, b);
    }
    for (uint32_t i = 0; i < v->depth; i++) {
        int last = finish(v, (v->next + i) % v->depth);

        rc = rc < 0 ? rc : last;
    }
    return rc;
}

int haul_store_verify(struct haul_store *store, haul_damage_fn fn, void *user, uint64_t *ndamaged)
{
    struct verifier v = {.s = store, .fn = fn, .user = user, .depth = MAX_DEPTH};
    uint64_t bytes;
    void *mem;
    int rc = HL_GIVEN(store);

    rc = rc ? rc : HL_GIVEN(ndamaged);
    if (rc < 0)
        return rc;
    if (!store->opts.durable && store->opts.verify == HAUL_VERIFY_OFF)
        return hl_fail(-EINVAL, "a scratch store with verify off keeps no checksums");
    if (v.depth > store->opts.max_requests)
        v.depth = store->opts.max_requests;
    bytes = (uint64_t)v.depth * store->opts.block_bytes;
    rc = hl_sys_map(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0, &mem);
    if (rc < 0)
        return rc;
    v.mem = mem;
    rc = read_all(&v);
    hl_sys_unmap(mem, bytes);
    if (rc == 0)
        *ndamaged = v.ndamaged;
    return rc;
}
