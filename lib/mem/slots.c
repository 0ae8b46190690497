/* slots.c: one bit a slot, set while it is free. Hot path: no allocation, lock, log or system call. */
#include "slots.h"

#include <assert.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stddef.h>

#include "fail.h"
#include "sys.h"

#define BITS 64

struct hl_slots {
    char *base;
    uint64_t slot_bytes;
    uint32_t nslots, nwords;
    _Atomic uint64_t free_bits[];
};

int hl_slots_open(void *base, uint64_t slot_bytes, uint32_t nslots, struct hl_slots **out)
{
    struct hl_slots *slots;
    uint64_t total_bytes;
    uint32_t nwords = nslots / BITS + (nslots % BITS != 0);
    void *p = NULL;
    int rc;

    if (!base || !slot_bytes || !nslots || __builtin_mul_overflow(slot_bytes, nslots, &total_bytes))
        return hl_fail(-EINVAL, "slots: %" PRIu32 " of %" PRIu64 " bytes", nslots, slot_bytes);
    rc = hl_sys_alloc_aligned(64, offsetof(struct hl_slots, free_bits) + nwords * sizeof(uint64_t),
                              &p);
    if (rc < 0)
        return rc;
    slots = p;
    slots->base = base;
    slots->slot_bytes = slot_bytes;
    slots->nslots = nslots;
    slots->nwords = nwords;
    for (uint32_t i = 0; i < nslots; i++)
        slots->free_bits[i / BITS] |= (uint64_t)1 << i % BITS;
    *out = slots;
    return 0;
}

void hl_slots_close(struct hl_slots *slots)
{
    hl_sys_free(slots);
}

void *hl_slots_take(struct hl_slots *slots)
{
    for (uint32_t w = 0; w < slots->nwords; w++) {
        uint64_t bits = atomic_load_explicit(&slots->free_bits[w], memory_order_relaxed);

        while (bits) { /* a failed exchange reloads bits */
            if (atomic_compare_exchange_weak_explicit(&slots->free_bits[w], &bits,
                                                      bits & (bits - 1), memory_order_acquire,
                                                      memory_order_relaxed))
                return slots->base +
                       ((uint64_t)w * BITS + (unsigned)__builtin_ctzll(bits)) * slots->slot_bytes;
        }
    }
    return NULL;
}

void hl_slots_give(struct hl_slots *slots, void *slot)
{
    uint32_t i = hl_slots_index(slots, slot);
    uint64_t bit = (uint64_t)1 << i % BITS, before;

    before = atomic_fetch_or_explicit(&slots->free_bits[i / BITS], bit, memory_order_release);
    assert(!(before & bit)); /* given twice */
    (void)before;
}

uint32_t hl_slots_free(const struct hl_slots *slots)
{
    uint32_t n = 0;

    for (uint32_t w = 0; w < slots->nwords; w++)
        n += (uint32_t)__builtin_popcountll(
            atomic_load_explicit(&slots->free_bits[w], memory_order_relaxed));
    return n;
}

uint32_t hl_slots_index(const struct hl_slots *slots, const void *slot)
{
    uint64_t offset = (uint64_t)((const char *)slot - slots->base);

    assert(offset % slots->slot_bytes == 0 && offset / slots->slot_bytes < slots->nslots);
    return (uint32_t)(offset / slots->slot_bytes);
}
