/*
 * work_line.h: what a run says on a terminal while it makes its store, fills, saves or loads: how far it is. It
 * says nothing in the first two seconds of each, and nothing where standard error is no terminal.
 */
#ifndef TRAIN_GPT_WORK_LINE_H
#define TRAIN_GPT_WORK_LINE_H

#include <stdatomic.h>

#include <haul/haul.h>

#include "../../tools/time_left.h"

struct work_line {
    struct hl_time_left left;
    int begun;           /* 1 + the enum haul_work of `left`; 0: none */
    _Atomic int waiting; /* a save is waited for; behind steps it has no line */
};

/* A haul_work_fn; user: struct work_line *. */
void work_line_at(void *user, enum haul_work work, uint64_t done_bytes, uint64_t total_bytes);

/* Before other lines, when no work is under way: takes the line away. */
void work_line_end(struct work_line *line);

#endif
