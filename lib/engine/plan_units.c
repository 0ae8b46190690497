/* plan_units.c: from units and options to sizes and the ledger, before anything is reserved (R3). */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine_state.h"
#include "haul/size.h"
#include "hostmem.h"

bool hl_engine_params_on_host(const struct haul_engine *e)
{
    return e->opts.offload == HAUL_OFFLOAD_ALL;
}

bool hl_engine_records_on_device(const struct haul_engine *e)
{
    return e->opts.offload == HAUL_OFFLOAD_NONE;
}

enum haul_dtype hl_span_dtype(const struct haul_engine *e, unsigned span)
{
    return hl_span_param_bytes(span) == 4 ? HAUL_FP32 : e->dtype16;
}

enum haul_dtype hl_travel_dtype(const struct haul_engine *e, unsigned span)
{
    return span == HL_TRAIN32 ? HAUL_FP32 : e->opts.grad_dtype;
}

enum haul_dtype hl_rest_dtype(const struct haul_engine *e, unsigned span)
{
    return e->opts.passes > 1 ? HAUL_FP32 : hl_travel_dtype(e, span);
}

uint64_t hl_param_span_offset(const struct haul_unit *u, unsigned span)
{
    uint64_t off = 0;

    for (unsigned s = 0; s < span; s++)
        off += u->layout.span[s].elems * hl_span_param_bytes(s);
    return off;
}

uint64_t hl_grad_span_offset(const struct haul_unit *u, unsigned span)
{
    return span == HL_TRAIN16
               ? 0
               : u->layout.span[HL_TRAIN16].elems * hl_plan_dtype_bytes(u->buffer_dtype);
}

uint64_t hl_travel_span_offset(const struct haul_unit *u, unsigned span)
{
    enum haul_dtype dtype = hl_travel_dtype(u->engine, HL_TRAIN16);

    return span == HL_TRAIN16 ? 0 : u->layout.span[HL_TRAIN16].elems * hl_plan_dtype_bytes(dtype);
}

uint64_t hl_norm_blocks(const struct haul_unit *u, unsigned span)
{
    return (u->layout.span[span].shard_elems + HAUL_NORM_BLOCK - 1) / HAUL_NORM_BLOCK;
}

static uint64_t max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static uint64_t gathered_bytes(const struct haul_unit *u)
{
    return hl_param_span_offset(u, HL_NSPANS);
}

static uint64_t grad_bytes(const struct haul_unit *u)
{
    return hl_grad_span_offset(u, HL_TRAIN32) + u->layout.span[HL_TRAIN32].elems * 4;
}

static uint64_t travel_bytes(const struct haul_unit *u)
{
    return hl_travel_span_offset(u, HL_TRAIN32) + u->layout.span[HL_TRAIN32].elems * 4;
}

/* A line; several with one purpose in a tier are added up, empty ones left out. */
static void ledger_add(struct hl_ledger *l, enum haul_tier tier, const char *purpose,
                       uint64_t bytes)
{
    if (bytes == 0)
        return;
    for (uint32_t i = 0; i < l->nlines; i++)
        if (l->line[i].tier == tier && strcmp(l->line[i].purpose, purpose) == 0) {
            l->line[i].bytes += bytes;
            return;
        }
    struct haul_ledger_line *line = &l->line[l->nlines++];
    line->tier = tier;
    snprintf(line->purpose, sizeof line->purpose, "%s", purpose);
    line->bytes = bytes;
}

uint64_t hl_ledger_bytes(const struct hl_ledger *ledger, enum haul_tier tier)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < ledger->nlines; i++)
        if (ledger->line[i].tier == tier)
            sum += ledger->line[i].bytes;
    return sum;
}

/* The model state of all units, per tier: as the formulas say, and as laid out. */
static int sum_state(struct haul_engine *e, struct hl_state_bytes raw[HAUL_NTIERS],
                     struct hl_state_bytes padded[HAUL_NTIERS])
{
    for (uint32_t i = 0; i < e->nunits; i++)
        for (unsigned s = 0; s < HL_NSPANS; s++) {
            const struct hl_span *sp = &e->units[i]->layout.span[s];
            struct hl_state_form form = {.stage = 3,
                                         .offload = e->opts.offload,
                                         .dtype = hl_span_dtype(e, s),
                                         .master = e->opts.master,
                                         .grad_dtype = e->opts.grad_dtype,
                                         .passes = e->opts.passes,
                                         .frozen = s >= HL_NTRAIN};
            struct hl_state_bytes a[HAUL_NTIERS], b[HAUL_NTIERS];
            if (sp->elems == 0)
                continue;
            int rc = hl_state_bytes(&form, sp->used_elems, sp->used_elems, a);
            if (rc == 0)
                rc = hl_state_bytes(&form, sp->elems, sp->shard_elems, b);
            if (rc < 0)
                return rc;
            for (unsigned t = 0; t < HAUL_NTIERS; t++) {
                raw[t].params += a[t].params, padded[t].params += b[t].params;
                raw[t].grads += a[t].grads, padded[t].grads += b[t].grads;
                raw[t].accumulators += a[t].accumulators,
                    padded[t].accumulators += b[t].accumulators;
                raw[t].records += a[t].records, padded[t].records += b[t].records;
                raw[t].hi += a[t].hi, padded[t].hi += b[t].hi;
            }
        }
    return 0;
}

/* Regions of the pool start on page boundaries; device allocations are exact. */
static uint64_t region_bytes(enum haul_tier tier, uint64_t bytes)
{
    return tier == HAUL_TIER_HOST ? (bytes + 4095) / 4096 * 4096 : bytes;
}

static void ledger_state(struct haul_engine *e, enum haul_tier tier, const char *purpose,
                         uint64_t raw, uint64_t padded)
{
    ledger_add(&e->ledger, tier, purpose, raw);
    ledger_add(&e->ledger, tier, "padding", region_bytes(tier, padded) - raw);
}

static void ledger_buffer(struct haul_engine *e, enum haul_tier tier, const char *purpose,
                          uint64_t bytes)
{
    ledger_state(e, tier, purpose, bytes, bytes);
}

static uint32_t count_revisited(const struct haul_engine *e)
{
    uint32_t n = 0;

    for (uint32_t u = 0; u < e->nunits; u++) {
        uint32_t seen = 0;
        for (uint32_t k = 0; k < e->nvisits; k++)
            seen += e->visits[k] == u;
        n += seen > 1;
    }
    return n;
}

static void size_buffers(struct haul_engine *e)
{
    const struct haul_engine_opts *o = &e->opts;
    bool host_state = !hl_engine_records_on_device(e);

    e->window_bytes = e->grad_buffer_bytes = e->staging_bytes = e->landing_bytes = e->slot_bytes =
        0;
    for (uint32_t i = 0; i < e->nunits; i++) {
        const struct haul_unit *u = e->units[i];
        uint64_t t16 = u->layout.span[HL_TRAIN16].elems;
        e->window_bytes = max_u64(e->window_bytes, gathered_bytes(u));
        e->grad_buffer_bytes = max_u64(e->grad_buffer_bytes, grad_bytes(u));
        e->landing_bytes = max_u64(e->landing_bytes, travel_bytes(u));
        if (u->buffer_dtype != o->grad_dtype)
            e->staging_bytes = max_u64(e->staging_bytes, t16 * hl_plan_dtype_bytes(o->grad_dtype));
        e->slot_bytes = max_u64(e->slot_bytes, u->layout.span[HL_TRAIN16].shard_elems * 2);
    }
    e->nframes = hl_engine_params_on_host(e) ? o->window : 0;
    e->ngrad_buffers = 2 + count_revisited(e);
    e->nlandings = host_state && o->passes > 1 ? e->ngrad_buffers + 1 : 0;
    e->nslots =
        o->offload == HAUL_OFFLOAD_OPTIMIZER && o->master == HAUL_MASTER_FP32 && e->slot_bytes
            ? o->slots
            : 0;
}

static void write_ledger(struct haul_engine *e, const struct hl_state_bytes raw[HAUL_NTIERS])
{
    const struct hl_state_bytes *padded = e->state;

    e->ledger.nlines = 0;
    for (enum haul_tier t = 0; t < HAUL_NTIERS; t++) {
        ledger_state(e, t, "parameters", raw[t].params, padded[t].params);
        ledger_state(e, t, "gradients", raw[t].grads, padded[t].grads);
        ledger_state(e, t, "accumulators", raw[t].accumulators, padded[t].accumulators);
        ledger_state(e, t, "records", raw[t].records, padded[t].records);
        ledger_state(e, t, "hi copy", raw[t].hi, padded[t].hi);
    }
    ledger_buffer(e, HAUL_TIER_DEVICE, "window", e->nframes * e->window_bytes);
    ledger_buffer(e, HAUL_TIER_DEVICE, "gradient window", e->ngrad_buffers * e->grad_buffer_bytes);
    ledger_buffer(e, HAUL_TIER_DEVICE, "gradient staging", e->staging_bytes);
    ledger_buffer(e, HAUL_TIER_HOST, "landing slots", e->nlandings * e->landing_bytes);
    ledger_buffer(e, HAUL_TIER_HOST, "publish slots", e->nslots * e->slot_bytes);
    ledger_buffer(e, HAUL_TIER_HOST, "bounce", HL_BOUNCE_BYTES);
    if (hl_engine_records_on_device(e)) {
        uint64_t nblocks = 0;
        for (uint32_t i = 0; i < e->nunits; i++)
            for (unsigned s = 0; s < HL_NTRAIN; s++)
                nblocks += hl_norm_blocks(e->units[i], s);
        ledger_buffer(e, HAUL_TIER_DEVICE, "norm partials", nblocks * sizeof(float));
        ledger_buffer(e, HAUL_TIER_HOST, "norm partials", nblocks * sizeof(float));
    }
    ledger_add(&e->ledger, HAUL_TIER_DEVICE, "trainer", e->opts.trainer_device_bytes);
}

static const char *const tier_name[HAUL_NTIERS] = {"device", "host", "nvme"};

static int refuse(const struct haul_engine *e, const uint64_t budget[HAUL_NTIERS], const char *why)
{
    char text[HL_ERROR_TEXT_BYTES];
    size_t at = 0;

    for (uint32_t i = 0; i < e->ledger.nlines && at < sizeof text; i++) {
        const struct haul_ledger_line *l = &e->ledger.line[i];
        at += (size_t)snprintf(text + at, sizeof text - at, "  %-6s %-18s %20" PRIu64 " B\n",
                               tier_name[l->tier], l->purpose, l->bytes);
    }
    for (enum haul_tier t = 0; t < HAUL_NTIERS && at < sizeof text; t++) {
        uint64_t need = hl_ledger_bytes(&e->ledger, t);
        if (need > budget[t])
            at += (size_t)snprintf(text + at, sizeof text - at,
                                   "  %s needs %" PRIu64 " B, has %" PRIu64 " B: short by %" PRIu64
                                   " B\n",
                                   tier_name[t], need, budget[t], need - budget[t]);
    }
    return hl_fail(
        HAUL_E_PLAN,
        "the plan does not fit%s; nothing was reserved. Raise the budget, offload more, or make "
        "the model smaller:\n%s",
        why, text);
}

/* An emulated device takes its memory from the host, so host must have room for both. */
static int check_host(struct haul_engine *e, uint64_t budget[HAUL_NTIERS])
{
    struct hl_hostmem mem;
    uint64_t emulated = e->dev->in_host_memory ? hl_ledger_bytes(&e->ledger, HAUL_TIER_DEVICE) : 0;
    int rc = hl_hostmem_read(NULL, NULL, &mem);

    if (rc < 0)
        return rc;
    uint64_t room = mem.avail_bytes > emulated ? mem.avail_bytes - emulated : 0;
    if (e->opts.host_mem_bytes == HAUL_AUTO || room < e->opts.host_mem_bytes)
        budget[HAUL_TIER_HOST] = room;
    else
        budget[HAUL_TIER_HOST] = e->opts.host_mem_bytes;
    if (hl_ledger_bytes(&e->ledger, HAUL_TIER_HOST) <= budget[HAUL_TIER_HOST])
        return 0;
    char why[160], size[32];
    snprintf(why, sizeof why, " (host memory: %s available by %s%s)",
             haul_format_size(mem.avail_bytes, size, sizeof size), mem.bound_by,
             emulated ? ", less the emulated device's memory" : "");
    return refuse(e, budget, budget[HAUL_TIER_HOST] == room ? why : "");
}

static int check_budgets(struct haul_engine *e)
{
    struct haul_device_mem mem = {.struct_size = sizeof mem};
    uint64_t budget[HAUL_NTIERS] = {0, UINT64_MAX, UINT64_MAX};
    int rc = e->ops->mem_info(e->dev, &mem);

    if (rc < 0)
        return rc;
    /* A trainer that has already taken its share must not be counted twice. */
    uint64_t room = mem.total_bytes == UINT64_MAX ? UINT64_MAX : mem.total_bytes;
    budget[HAUL_TIER_DEVICE] = room;
    if (e->opts.device_mem_bytes != HAUL_AUTO && e->opts.device_mem_bytes < room)
        budget[HAUL_TIER_DEVICE] = e->opts.device_mem_bytes;
    if (hl_ledger_bytes(&e->ledger, HAUL_TIER_DEVICE) > budget[HAUL_TIER_DEVICE])
        return refuse(e, budget, "");
    return check_host(e, budget);
}

/* Write the ledger. */
static int make_ledger(struct haul_engine *e)
{
    struct hl_state_bytes raw[HAUL_NTIERS];
    int rc;

    memset(raw, 0, sizeof raw);
    memset(e->state, 0, sizeof e->state);
    rc = sum_state(e, raw, e->state);
    if (rc < 0)
        return rc;
    size_buffers(e);
    write_ledger(e, raw);
    return 0;
}

int hl_engine_plan(struct haul_engine *e)
{
    int rc = make_ledger(e);

    return rc < 0 ? rc : check_budgets(e);
}

int haul_engine_ledger(struct haul_engine *engine, uint32_t i, struct haul_ledger_line *out)
{
    if (!engine->built) {
        int rc = make_ledger(engine);
        if (rc < 0)
            return rc;
    }
    if (i >= engine->ledger.nlines)
        return -EINVAL;
    *out = engine->ledger.line[i];
    return 0;
}
