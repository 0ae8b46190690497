/* work_line.c: see work_line.h. Works come one after the other; a save's calls come from a thread of the library's,
 * whose end work_line_end() comes after. */
#include "work_line.h"

void work_line_at(void *user, enum haul_work work, uint64_t done_bytes, uint64_t total_bytes)
{
    static const char *const names[HAUL_NWORKS] = {
        [HAUL_WORK_STORE] = "making the store",
        [HAUL_WORK_FILL] = "filling",
        [HAUL_WORK_SAVE] = "saving",
        [HAUL_WORK_LOAD] = "loading",
    };
    struct work_line *line = user;

    if (line->begun != 1 + (int)work)
        hl_time_left_begin(&line->left, names[work], total_bytes, 1);
    line->begun = 1 + (int)work;
    if (work != HAUL_WORK_SAVE || atomic_load(&line->waiting))
        hl_time_left_at(&line->left, done_bytes);
}

void work_line_end(struct work_line *line)
{
    if (line->begun)
        hl_time_left_end(&line->left);
    line->begun = 0;
}
