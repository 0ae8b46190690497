/*
 * schedule.h: the order of a step, as arithmetic. Engine and simulator both ask here (R8).
 *
 * A training step is `passes` times (forward visits, backward visits); position k counts acquires from
 * the start of the step. An evaluation pass is the forward visits alone.
 */
#ifndef HL_SCHEDULE_H
#define HL_SCHEDULE_H

#include <stdint.h>

struct hl_order {
    const uint32_t *visits; /* (nvisits,) unit indices in forward order */
    uint32_t nvisits;
    uint32_t passes;
    int eval;
};

#define HL_NEVER UINT64_MAX

/* Positions in a step. */
uint64_t hl_order_len(const struct hl_order *o);

/* Unit at position k < len. */
uint32_t hl_order_unit(const struct hl_order *o, uint64_t k);

/* First position >= from at which unit is visited; HL_NEVER when this step does not visit it again. */
uint64_t hl_order_next_use(const struct hl_order *o, uint32_t unit, uint64_t from);

/* The trainer acquired unit while pos was expected: the position after the visit nearest to pos that
 * has this unit; *missed says whether it was not pos itself. A unit never visited leaves pos alone. */
uint64_t hl_order_follow(const struct hl_order *o, uint32_t unit, uint64_t pos, int *missed);

/* Units in the order their updates run: by first visit, then those never visited.
 * out has nunits entries. */
void hl_order_updates(const struct hl_order *o, uint32_t nunits, uint32_t *out);

struct hl_frame {
    int64_t unit;  /* what it holds; -1: nothing */
    int pinned;    /* held by the trainer, or being filled */
    uint64_t left; /* position at which the trainer last gave it back */
};

/* The frame to fill with a unit wanted at position k: an empty one, else the unpinned one whose unit is
 * used last, provided that is after k; -1: none, wait. With k = pos the need is immediate. Of equals the one
 * that was given back first: compute on it ends first. */
int hl_order_victim(const struct hl_order *o, uint64_t pos, uint64_t k,
                    const struct hl_frame *frames, uint32_t nframes);

#endif
