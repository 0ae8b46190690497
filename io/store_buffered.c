/* store_buffered.c: where direct I/O is refused, the page cache is kept small and clean by hand, so
 * that a store behaves like a drive and not like memory that fills up. */
#include "store.h"
#include "sys_file.h"

#define NBEHIND (sizeof((struct hl_dir *)0)->behind / sizeof *((struct hl_dir *)0)->behind)

/* Failures here cost speed only; a failed write-back shows up at the next flush. */
static void push_out_oldest(struct haul_store *s, uint32_t dir)
{
    struct hl_dir *d = &s->dirs[dir];
    off_t offset = (off_t)d->behind[0].offset, bytes = (off_t)d->behind[0].bytes;

    if (hl_sys_write_behind(s->fds[dir], offset, bytes, 1) == 0)
        (void)hl_sys_drop_cache(s->fds[dir], offset, bytes);
    d->nbehind--;
    for (uint32_t i = 0; i < d->nbehind; i++)
        d->behind[i] = d->behind[i + 1];
}

void hl_buffered_after(struct haul_store *s, uint32_t dir, int write, uint64_t offset,
                       uint64_t bytes)
{
    struct hl_dir *d = &s->dirs[dir];

    if (d->direct || d->tmpfs)
        return;
    if (!write) {
        (void)hl_sys_drop_cache(s->fds[dir], (off_t)offset, (off_t)bytes);
        return;
    }
    (void)hl_sys_write_behind(s->fds[dir], (off_t)offset, (off_t)bytes, 0);
    if (d->nbehind == NBEHIND)
        push_out_oldest(s, dir);
    d->behind[d->nbehind].offset = offset;
    d->behind[d->nbehind].bytes = bytes;
    d->nbehind++;
}
