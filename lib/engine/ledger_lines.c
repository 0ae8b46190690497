/* ledger_lines.c: from units and the tiers they rest in to every byte that will be reserved (R3). */
#include <stdio.h>
#include <string.h>

#include "checked.h"
#include "engine_state.h"

/* Slots through which parameters are published to the device's shards, and paged parameters move. */
#define PUBLISH_SLOTS      2
#define PARAM_SLOTS        3
#define SLOT_BYTES_DEFAULT (UINT64_C(32) << 20)

static uint64_t max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Sums and products that leave 64 bits stay at TOO_MANY, which hl_engine_make_ledger() refuses. */
#define TOO_MANY UINT64_MAX

static uint64_t plus(uint64_t a, uint64_t b)
{
    uint64_t sum;

    return __builtin_add_overflow(a, b, &sum) ? TOO_MANY : sum;
}

static uint64_t times(uint64_t n, uint64_t bytes)
{
    uint64_t product;

    return __builtin_mul_overflow(n, bytes, &product) ? TOO_MANY : product;
}

static uint64_t round_up(uint64_t n, uint64_t step)
{
    return times(hl_div_up(n, step), step);
}

/* A line; several with one purpose in a tier are added up, empty ones left out. */
static void ledger_add(struct hl_ledger *l, enum haul_tier tier, const char *purpose,
                       uint64_t bytes)
{
    if (bytes == 0)
        return;
    for (uint32_t i = 0; i < l->nlines; i++)
        if (l->line[i].tier == tier && strcmp(l->line[i].purpose, purpose) == 0) {
            l->line[i].bytes = plus(l->line[i].bytes, bytes);
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
            sum = plus(sum, ledger->line[i].bytes);
    return sum;
}

/* ---- model state ---- */

static void add_bytes(struct hl_state_bytes *to, const struct hl_state_bytes *from)
{
    to->params = plus(to->params, from->params);
    to->grads = plus(to->grads, from->grads);
    to->accumulators = plus(to->accumulators, from->accumulators);
    to->records = plus(to->records, from->records);
    to->hi = plus(to->hi, from->hi);
}

/* Paged pieces rest on nvme instead of host. */
static void page_out(const struct haul_unit *u, struct hl_state_bytes tier[HAUL_NTIERS])
{
    struct hl_state_bytes *host = &tier[HAUL_TIER_HOST], *nvme = &tier[HAUL_TIER_NVME];

    if (u->record_paged) {
        nvme->records = host->records;
        host->records = 0;
    }
    if (u->param_paged) {
        nvme->params = host->params;
        host->params = 0;
    }
}

/* One span: as the formulas say, and as laid out. */
static int add_span(const struct haul_unit *u, unsigned s, struct hl_state_bytes raw[HAUL_NTIERS],
                    struct hl_state_bytes padded[HAUL_NTIERS])
{
    const struct haul_engine *e = u->engine;
    const struct hl_span *sp = &u->layout.span[s];
    struct hl_state_form form = {.stage = e->nranks > 1 ? e->opts.stage : 3,
                                 .offload = u->offload,
                                 .dtype = hl_span_dtype(e, s),
                                 .master = e->opts.master,
                                 .grad_dtype = e->opts.grad_dtype,
                                 .passes = e->opts.passes,
                                 .frozen = s >= HL_NTRAIN};
    struct hl_state_bytes a[HAUL_NTIERS], b[HAUL_NTIERS];

    if (sp->elems == 0)
        return 0;
    /* what does not divide by the ranks counts as padding */
    int rc = hl_state_bytes(&form, sp->used_elems, sp->used_elems / e->nranks, a);
    if (rc == 0)
        rc = hl_state_bytes(&form, sp->elems, sp->shard_elems, b);
    if (rc < 0)
        return rc;
    page_out(u, a);
    page_out(u, b);
    for (unsigned t = 0; t < HAUL_NTIERS; t++) {
        add_bytes(&raw[t], &a[t]);
        add_bytes(&padded[t], &b[t]);
    }
    return 0;
}

static int sum_state(struct haul_engine *e, struct hl_state_bytes raw[HAUL_NTIERS])
{
    memset(raw, 0, HAUL_NTIERS * sizeof *raw);
    memset(e->state, 0, sizeof e->state);
    for (uint32_t i = 0; i < e->nunits; i++)
        for (unsigned s = 0; s < HL_NSPANS; s++) {
            int rc = add_span(e->units[i], s, raw, e->state);
            if (rc < 0)
                return rc;
        }
    return 0;
}

/* ---- buffers ---- */

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

/* What the ranks send each other of a gradient, and their sums on the way to the host. */
static void size_sums(struct haul_engine *e)
{
    e->scratch_bytes = e->reduced_bytes = 0;
    for (uint32_t i = 0; e->comm && i < e->nunits; i++) {
        const struct haul_unit *u = e->units[i];
        for (unsigned s = 0; s < HL_NTRAIN; s++)
            e->scratch_bytes = max_u64(
                e->scratch_bytes, hl_comm_reduce_scratch_bytes(e->nranks, hl_travel_dtype(e, s),
                                                               u->layout.span[s].shard_elems));
        if (!hl_unit_records_on_device(u) || e->opts.passes > 1)
            e->reduced_bytes = max_u64(e->reduced_bytes, hl_land_bytes(u));
    }
}

static void size_buffers(struct haul_engine *e)
{
    const struct haul_engine_opts *o = &e->opts;
    bool windowed = false, landing = false;

    e->window_bytes = e->grad_buffer_bytes = e->staging_bytes = e->landing_bytes = e->slot_bytes =
        0;
    size_sums(e);
    for (uint32_t i = 0; i < e->nunits; i++) {
        const struct haul_unit *u = e->units[i];
        uint64_t t16 = u->layout.span[HL_TRAIN16].elems;
        e->grad_buffer_bytes = max_u64(e->grad_buffer_bytes, hl_grad_bytes(u));
        if (u->buffer_dtype != o->grad_dtype || e->comm)
            e->staging_bytes = max_u64(e->staging_bytes, t16 * hl_plan_dtype_bytes(o->grad_dtype));
        if (e->comm) /* zeros for FP32 tensors too */
            e->staging_bytes = max_u64(e->staging_bytes, u->layout.span[HL_TRAIN32].elems * 4);
        if (hl_unit_windowed(u)) {
            e->window_bytes = max_u64(e->window_bytes, hl_gathered_bytes(u));
            windowed = true;
        }
        if (!hl_unit_records_on_device(u)) {
            e->landing_bytes = max_u64(e->landing_bytes, hl_land_bytes(u));
            landing = o->passes > 1;
        }
        e->slot_bytes = max_u64(e->slot_bytes, hl_publish_bytes(u));
    }
    e->nframes = windowed ? o->window : 0;
    e->ngrad_buffers = 2 + count_revisited(e);
    e->nlandings = landing ? e->ngrad_buffers + 1 : 0;
    e->nslots = e->slot_bytes ? PUBLISH_SLOTS : 0;
}

/* Slots and extents of what is paged. */
static void size_paging(struct haul_engine *e)
{
    uint64_t record = 0, params = 0;

    e->store_bytes = e->kept_bytes = 0;
    for (uint32_t i = 0; i < e->nunits; i++) {
        const struct haul_unit *u = e->units[i];
        if (u->record_paged)
            record = max_u64(record, hl_record_bytes(u));
        if (u->param_paged)
            params = max_u64(params, hl_param_rest_bytes(u));
    }
    e->block_bytes = hl_block_for(max_u64(max_u64(record, params), e->opts.stash_entry_bytes));
    e->nrecord_slots = record ? e->opts.slots : 0;
    e->nparam_slots = params ? PARAM_SLOTS : 0;
    e->param_slot_bytes = round_up(params, e->block_bytes);
    e->record_slot_bytes = round_up(record, e->block_bytes);
    uint64_t most = e->opts.slot_bytes ? e->opts.slot_bytes : SLOT_BYTES_DEFAULT;
    if (e->record_slot_bytes > most)
        e->record_slot_bytes = round_up(most, e->block_bytes);
    for (uint32_t i = 0; i < e->nunits; i++) {
        struct haul_unit *u = e->units[i];
        if (u->record_paged) {
            u->ck = (struct hl_chunking){.slot_bytes = e->record_slot_bytes};
            for (unsigned s = 0; s < HL_NTRAIN; s++) {
                u->ck.elems[s] = u->own[s].elems;
                u->ck.master_bytes[s] = hl_record_master_bytes(u, s);
            }
            hl_chunking_make(&u->ck, e->block_bytes);
            u->kept_at = e->kept_bytes;
            e->kept_bytes += u->ck.extent_bytes;
            e->store_bytes += u->ck.extent_bytes;
        }
        u->param_extent_bytes =
            u->param_paged ? round_up(hl_param_rest_bytes(u), e->block_bytes) : 0;
        e->store_bytes += u->param_extent_bytes;
    }
    e->durable = e->opts.nvme_durable && e->kept_bytes;
    hl_stash_size(e);
    e->store_bytes += hl_stash_nvme_bytes(e);
}

/* ---- the ledger ---- */

/* Regions of the pool start on page boundaries; device allocations are exact. */
static uint64_t region_bytes(enum haul_tier tier, uint64_t bytes)
{
    return tier == HAUL_TIER_HOST ? round_up(bytes, 4096) : bytes;
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

static void ledger_partials(struct haul_engine *e)
{
    uint64_t nblocks = 0;

    for (uint32_t i = 0; i < e->nunits; i++)
        for (unsigned s = 0; hl_unit_records_on_device(e->units[i]) && s < HL_NTRAIN; s++)
            nblocks += hl_norm_blocks(e->units[i], s);
    ledger_buffer(e, HAUL_TIER_DEVICE, "norm partials", nblocks * sizeof(float));
    ledger_buffer(e, HAUL_TIER_HOST, "norm partials", nblocks * sizeof(float));
}

static void ledger_paging(struct haul_engine *e, const struct hl_state_bytes *raw)
{
    ledger_buffer(e, HAUL_TIER_HOST, "record slots", times(e->nrecord_slots, e->record_slot_bytes));
    ledger_buffer(e, HAUL_TIER_HOST, "parameter slots",
                  times(e->nparam_slots, e->param_slot_bytes));
    ledger_buffer(e, HAUL_TIER_HOST, "pager bounce", e->store_bytes ? e->block_bytes : 0);
    ledger_add(&e->ledger, HAUL_TIER_NVME, "parameters", raw->params);
    ledger_add(&e->ledger, HAUL_TIER_NVME, "records", raw->records);
    ledger_add(&e->ledger, HAUL_TIER_NVME, "stash", hl_stash_nvme_bytes(e));
    ledger_add(&e->ledger, HAUL_TIER_NVME, "padding",
               e->store_bytes - raw->params - raw->records - hl_stash_nvme_bytes(e));
    if (e->durable) /* a write never replaces what a generation needs */
        ledger_add(&e->ledger, HAUL_TIER_NVME, "generations", e->store_bytes);
    ledger_buffer(e, HAUL_TIER_HOST, "stash", times(e->stash.nslots, e->stash.slot_bytes));
}

/* What makes a line smaller. */
static const char *remedy(const char *purpose)
{
    static const char *const of[][2] = {{"window", "opts.window"},
                                        {"landing slots", "opts.passes to 1"},
                                        {"record slots", "opts.slots or opts.slot_bytes"},
                                        {"stash", "opts.stash_entries or opts.stash_entry_bytes"},
                                        {"trainer", "opts.trainer_device_bytes"}};

    for (unsigned i = 0; i < sizeof of / sizeof of[0]; i++)
        if (strcmp(of[i][0], purpose) == 0)
            return of[i][1];
    return "the sizes of the units";
}

/* The largest line is to blame for a tier beyond counting. */
static int check_ledger(const struct hl_ledger *l)
{
    uint64_t sum[HAUL_NTIERS] = {0};
    const struct haul_ledger_line *most = l->line;
    bool fits = true;

    for (uint32_t i = 0; i < l->nlines; i++) {
        fits &= hl_mul_add(&sum[l->line[i].tier], l->line[i].bytes, 1) == 0;
        if (l->line[i].bytes > most->bytes)
            most = &l->line[i];
    }
    if (fits)
        return 0;
    return hl_fail(-EOVERFLOW, "engine: with %s, a tier has more than 2^63 bytes; lower %s",
                   most->purpose, remedy(most->purpose));
}

int hl_engine_make_ledger(struct haul_engine *e)
{
    struct hl_state_bytes raw[HAUL_NTIERS];
    int rc = sum_state(e, raw);

    if (rc < 0)
        return rc;
    size_buffers(e);
    size_paging(e);
    e->ledger.nlines = 0;
    for (enum haul_tier t = HAUL_TIER_DEVICE; t <= HAUL_TIER_HOST; t++) {
        ledger_state(e, t, "parameters", raw[t].params, e->state[t].params);
        ledger_state(e, t, "gradients", raw[t].grads, e->state[t].grads);
        ledger_state(e, t, "accumulators", raw[t].accumulators, e->state[t].accumulators);
        ledger_state(e, t, "records", raw[t].records, e->state[t].records);
        ledger_state(e, t, "hi copy", raw[t].hi, e->state[t].hi);
    }
    ledger_buffer(e, HAUL_TIER_DEVICE, "window", times(e->nframes, e->window_bytes));
    ledger_buffer(e, HAUL_TIER_DEVICE, "gradient window",
                  times(e->ngrad_buffers, e->grad_buffer_bytes));
    ledger_buffer(e, HAUL_TIER_DEVICE, "gradient staging", e->staging_bytes);
    ledger_buffer(e, HAUL_TIER_DEVICE, "gradient sums",
                  plus(e->scratch_bytes, times(2, e->reduced_bytes)));
    ledger_buffer(e, HAUL_TIER_HOST, "landing slots", times(e->nlandings, e->landing_bytes));
    ledger_buffer(e, HAUL_TIER_HOST, "publish slots", times(e->nslots, e->slot_bytes));
    ledger_buffer(e, HAUL_TIER_HOST, "peer versions", hl_peers_bytes(e));
    ledger_buffer(e, HAUL_TIER_HOST, "bounce", HL_BOUNCE_BYTES);
    ledger_partials(e);
    ledger_paging(e, &raw[HAUL_TIER_NVME]);
    ledger_add(&e->ledger, HAUL_TIER_DEVICE, "trainer", e->opts.trainer_device_bytes);
    return check_ledger(&e->ledger);
}
