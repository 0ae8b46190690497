/*
 * slots.h: a fixed set of equal slots cut from one region.
 *
 * Take and give are a few atomic instructions, callable from any thread, and never allocate, wait or
 * fail other than by having no slot. Who wants to wait for one uses a gate of base's wait.h.
 */
#ifndef HL_SLOTS_H
#define HL_SLOTS_H

#include <stdint.h>

struct hl_slots;

/* nslots >= 1 slots of slot_bytes >= 1 from base on; the memory stays the caller's. */
int hl_slots_open(void *base, uint64_t slot_bytes, uint32_t nslots, struct hl_slots **out);
/* Slots that are still taken are forgotten. NULL is fine. */
void hl_slots_close(struct hl_slots *slots);

/* The lowest free slot (its cache and TLB entries are the warmest), or NULL when there is none. */
void *hl_slots_take(struct hl_slots *slots);
/* slot came from take; everything written to it before is seen by who takes it next. */
void hl_slots_give(struct hl_slots *slots, void *slot);

/* How many are free: exact when no other thread takes or gives, else a moment's view. */
uint32_t hl_slots_free(const struct hl_slots *slots);
/* 0 .. nslots-1, for arrays that run beside the slots. */
uint32_t hl_slots_index(const struct hl_slots *slots, const void *slot);

#endif
