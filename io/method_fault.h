/*
 * method_fault.h: a method that wraps another one and misbehaves from a seed. For tests; it is in a
 * library of its own that nothing installed links.
 *
 * Rates are per 1000 transfers. A transfer meets at most one fault; delay, reordering and stale
 * completions come on top.
 */
#ifndef HL_METHOD_FAULT_H
#define HL_METHOD_FAULT_H

#include "method.h"

enum hl_fault_kind {
    HL_FAULT_NONE = 0,
    /* transient: the store must hide them */
    HL_FAULT_SHORT_ALIGNED,
    HL_FAULT_SHORT_UNALIGNED,
    HL_FAULT_EAGAIN,
    HL_FAULT_EINTR,
    HL_FAULT_EBUSY,
    HL_FAULT_START_REFUSED, /* start() itself returns -EAGAIN */
    HL_FAULT_DELAY,         /* the completion comes some reaps later */
    HL_FAULT_STALE,         /* the completion comes twice */
    /* hard: the store must report them */
    HL_FAULT_EIO,
    HL_FAULT_ENOSPC,
    HL_FAULT_TORN, /* part of a write reaches the drive, then EIO */
    /* silent: the store must find them when it reads */
    HL_FAULT_LOST,      /* a write is reported done and is not */
    HL_FAULT_MISDIRECT, /* a write lands somewhere else */
    HL_FAULT_FLIP,      /* a read brings one wrong bit */
    HL_NFAULTS
};

struct hl_fault_plan {
    const struct hl_method_ops *inner;
    uint64_t seed;
    uint32_t rate[HL_NFAULTS];
    uint32_t align; /* of what the inner method is asked; default 512 */
    uint32_t
        enforce_align; /* transfers not aligned to this: -EINVAL, as a 4Kn drive does; 0: off */
    int reorder;
    uint64_t enospc_after_writes; /* from that write on, every write: -ENOSPC; 0: off */
    /* Writes stay in memory until flush; what a kill loses is then what a power cut loses. Some reach
     * the drive early, some of those in part. */
    int volatile_cache;
};

/* Takes effect for transfers begun from now on (inner and volatile_cache: for the next open). */
void hl_fault_arm(const struct hl_fault_plan *plan);
/* Everything works again; inner stays. */
void hl_fault_disarm(void);
/* How often a kind was delivered since the last arm. */
uint64_t hl_fault_count(enum hl_fault_kind kind);

extern const struct hl_method_ops hl_method_fault;

#endif
