#include <string.h>

#include "schedule.h"

uint64_t hl_order_len(const struct hl_order *o)
{
    return o->eval ? o->nvisits : 2ull * o->nvisits * o->passes;
}

uint32_t hl_order_unit(const struct hl_order *o, uint64_t k)
{
    uint64_t at = k % (2ull * o->nvisits);

    return o->visits[at < o->nvisits ? at : 2ull * o->nvisits - 1 - at];
}

uint64_t hl_order_next_use(const struct hl_order *o, uint32_t unit, uint64_t from)
{
    uint64_t len = hl_order_len(o), end = from + 2ull * o->nvisits;

    for (uint64_t k = from; k < len && k < end; k++)
        if (hl_order_unit(o, k) == unit)
            return k;
    return HL_NEVER;
}

uint64_t hl_order_follow(const struct hl_order *o, uint32_t unit, uint64_t pos, int *missed)
{
    uint64_t len = hl_order_len(o);

    *missed = 0;
    if (pos < len && hl_order_unit(o, pos) == unit)
        return pos + 1;
    *missed = 1;
    for (uint64_t d = 1; d < len + 1; d++) {
        if (pos + d < len && hl_order_unit(o, pos + d) == unit)
            return pos + d + 1;
        if (pos >= d && pos - d < len && hl_order_unit(o, pos - d) == unit)
            return pos - d + 1;
    }
    return pos;
}

void hl_order_updates(const struct hl_order *o, uint32_t nunits, uint32_t *out)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < o->nvisits; i++) {
        uint32_t j = 0;
        while (j < n && out[j] != o->visits[i])
            j++;
        if (j == n)
            out[n++] = o->visits[i];
    }
    for (uint32_t u = 0, nvisited = n; u < nunits; u++) {
        uint32_t j = 0;
        while (j < nvisited && out[j] != u)
            j++;
        if (j == nvisited)
            out[n++] = u;
    }
}

int hl_order_victim(const struct hl_order *o, uint64_t pos, uint64_t k,
                    const struct hl_frame *frames, uint32_t nframes)
{
    uint64_t last = k;
    int victim = -1;

    for (uint32_t i = 0; i < nframes; i++) {
        if (frames[i].pinned)
            continue;
        if (frames[i].unit < 0)
            return (int)i;
        uint64_t next = hl_order_next_use(o, (uint32_t)frames[i].unit, pos);
        if (next > last || (victim < 0 && k == pos) ||
            (victim >= 0 && next == last && frames[i].left < frames[victim].left)) {
            last = next;
            victim = (int)i;
        }
    }
    return victim;
}
