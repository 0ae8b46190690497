/* store_cells.c: which places of the data files are taken, and which comes next. Blocks go to the
 * directory that lags most behind its weight, so that a run of blocks is spread as the weights say. */
#include "store.h"
#include "sys.h"

static void mark_extent(struct haul_store *s, const struct hl_extent *ext)
{
    for (uint64_t b = 0; b < ext->nblocks; b++)
        hl_cell_mark(s, ext->blocks[b].dir, ext->blocks[b].cell);
}

int hl_cells_init(struct haul_store *s)
{
    s->opts.capacity_bytes = 0;
    for (uint32_t i = 0; i < s->ndirs; i++) {
        struct hl_dir *d = &s->dirs[i];
        void *mem;
        int rc = hl_sys_alloc_array(d->ncells / 64 + 1, sizeof *d->used, &mem);

        if (rc < 0)
            return rc;
        d->used = mem;
        d->nfree = d->ncells;
        s->opts.capacity_bytes += (uint64_t)d->ncells * s->opts.block_bytes;
    }
    for (uint32_t id = 0; id < s->extents_len; id++)
        if (s->extents[id])
            mark_extent(s, s->extents[id]);
    for (const struct hl_extent *ext = s->dropped; ext; ext = ext->next)
        mark_extent(s, ext);
    return 0;
}

void hl_cells_free_all(struct haul_store *s)
{
    for (uint32_t i = 0; i < s->ndirs; i++)
        hl_sys_free(s->dirs[i].used);
}

uint64_t hl_cells_free_count(const struct haul_store *s)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < s->ndirs; i++)
        n += s->dirs[i].nfree;
    return n;
}

/* The directory with the least used share of its weight; ncells are in proportion to weights, so
 * (used + 1) / ncells is what to compare. */
static struct hl_dir *pick_dir(struct haul_store *s)
{
    struct hl_dir *best = NULL;

    for (uint32_t i = 0; i < s->ndirs; i++) {
        struct hl_dir *d = &s->dirs[i];

        if (!d->nfree)
            continue;
        if (!best || (uint64_t)(d->ncells - d->nfree + 1) * best->ncells <
                         (uint64_t)(best->ncells - best->nfree + 1) * d->ncells)
            best = d;
    }
    return best;
}

static int is_used(const struct hl_dir *d, uint32_t cell)
{
    return (d->used[cell / 64] >> (cell % 64)) & 1;
}

int hl_cell_take(struct haul_store *s, uint8_t *dir, uint32_t *cell)
{
    struct hl_dir *d = pick_dir(s);
    uint32_t c;

    if (!d)
        return -ENOSPC;
    for (c = d->next_cell; c >= d->ncells || is_used(d, c);)
        c = c + 1 >= d->ncells ? 0 : c + 1;
    d->next_cell = c + 1;
    *dir = (uint8_t)(d - s->dirs);
    *cell = c;
    hl_cell_mark(s, *dir, c);
    return 0;
}

void hl_cell_mark(struct haul_store *s, uint8_t dir, uint32_t cell)
{
    struct hl_dir *d = &s->dirs[dir];

    if (is_used(d, cell))
        return; /* two generations share it */
    d->used[cell / 64] |= 1ull << (cell % 64);
    d->nfree--;
}

void hl_cell_give(struct haul_store *s, uint8_t dir, uint32_t cell)
{
    struct hl_dir *d = &s->dirs[dir];

    d->used[cell / 64] &= ~(1ull << (cell % 64));
    d->nfree++;
}
