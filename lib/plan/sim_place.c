/* sim_place.c: what each tier must hold, and units placed by budget as the engine's build does. */
#include <inttypes.h>
#include <string.h>

#include "checked.h"
#include "fail.h"
#include "sim_state.h"
#include "state_bytes.h"
#include "sys.h"

#define SLOT_BYTES_DEFAULT (UINT64_C(32) << 20)
#define BUFFER_ELEM_BYTES  4 /* the trainer adds in FP32 */

/* ---- sizes ---- */

static uint64_t round_up(uint64_t n, uint64_t step)
{
    return (n + step - 1) / step * step;
}

static uint64_t max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static int state_of(const struct sim *s, const struct sim_unit *u,
                    struct hl_state_bytes out[HAUL_NTIERS])
{
    const struct hl_sim_opts *o = s->o;
    const struct hl_state_form form = {.stage = o->ranks > 1 ? o->stage : 3,
                                       .offload = u->offload,
                                       .dtype = HAUL_BF16,
                                       .master = o->master,
                                       .grad_dtype = o->grad_bytes == 4 ? HAUL_FP32 : HAUL_BF16,
                                       .passes = s->passes};

    return hl_state_bytes(&form, u->elems, hl_div_up(u->elems, o->ranks), out);
}

/* The stash in the pool, as many entries as its share has room for, and at least three. */
static void size_stash(struct sim *s)
{
    const uint64_t host = s->o->stash_host_bytes;

    s->stash_slot_bytes = round_up(s->stash_entry_bytes, 4096);
    s->nsslots = s->nentries;
    if (s->nentries == 0 || host == HAUL_UNLIMITED || host / s->stash_slot_bytes >= s->nentries)
        return;
    s->stash_slot_bytes = round_up(s->stash_entry_bytes, s->block_bytes);
    s->nsslots = (uint32_t)max_u64(host / s->stash_slot_bytes, SIM_STASH_LEAST);
    s->nsslots = s->nsslots < s->nentries ? s->nsslots : s->nentries;
}

static void size_paging(struct sim *s)
{
    uint64_t record = 0, params = 0;

    for (uint32_t i = 0; i < s->nunits; i++) {
        const struct sim_unit *u = &s->unit[i];
        record = u->record_paged ? max_u64(record, u->record_bytes) : record;
        params = u->param_paged ? max_u64(params, 2 * u->rest) : params;
    }
    s->block_bytes = hl_block_for(max_u64(max_u64(record, params), s->stash_entry_bytes));
    s->nrslots = record ? s->o->slots : 0;
    s->nparam_slots = params ? SIM_PARAM_SLOTS : 0;
    s->param_slot_bytes = round_up(params, s->block_bytes);
    s->record_slot_bytes = round_up(record, s->block_bytes);
    uint64_t most = s->o->slot_bytes ? s->o->slot_bytes : SLOT_BYTES_DEFAULT;
    if (s->record_slot_bytes > most)
        s->record_slot_bytes = round_up(most, s->block_bytes);
    for (uint32_t i = 0; i < s->nunits; i++) {
        struct sim_unit *u = &s->unit[i];
        if (u->record_paged) {
            u->ck = (struct hl_chunking){.slot_bytes = s->record_slot_bytes, .elems = {u->own}};
            u->ck.master_bytes[0] = s->o->master == HAUL_MASTER_SPLIT ? 2 : 4;
            hl_chunking_make(&u->ck, s->block_bytes);
        }
        u->param_extent_bytes = u->param_paged ? round_up(2 * u->rest, s->block_bytes) : 0;
    }
    size_stash(s);
}

/* Every tier's bytes of a rank, as units are placed now. */
static int count(struct sim *s, uint64_t tier[HAUL_NTIERS])
{
    const struct hl_sim_opts *o = s->o;
    uint64_t window = 0, largest = 0, own = 0, publish = 0;

    size_paging(s);
    memset(tier, 0, HAUL_NTIERS * sizeof *tier);
    for (uint32_t i = 0; i < s->nunits; i++) {
        struct sim_unit *u = &s->unit[i];
        struct hl_state_bytes b[HAUL_NTIERS];
        int rc = state_of(s, u, b);
        if (rc < 0)
            return rc;
        if (u->record_paged)
            tier[HAUL_TIER_NVME] += u->ck.extent_bytes, b[HAUL_TIER_HOST].records = 0;
        if (u->param_paged)
            tier[HAUL_TIER_NVME] += u->param_extent_bytes, b[HAUL_TIER_HOST].params = 0;
        for (enum haul_tier t = HAUL_TIER_DEVICE; t <= HAUL_TIER_HOST; t++)
            tier[t] += b[t].params + b[t].grads + b[t].accumulators + b[t].records + b[t].hi;
        u->windowed = hl_sim_on_host(u) || (s->comm && o->stage == 3);
        window = u->windowed ? max_u64(window, 2 * u->elems) : window;
        largest = max_u64(largest, u->elems);
        own = u->offload == HAUL_OFFLOAD_NONE ? own : max_u64(own, u->own);
        if (u->offload == HAUL_OFFLOAD_OPTIMIZER && o->master == HAUL_MASTER_FP32)
            publish = max_u64(publish, 2 * u->own);
    }
    s->nframes = window ? o->window : 0;
    s->nlandings = own && s->passes > 1 ? s->nbuffers + 1 : 0;
    s->npublish = publish ? SIM_PUBLISH_SLOTS : 0;
    tier[HAUL_TIER_DEVICE] += s->nframes * window + s->nbuffers * largest * BUFFER_ELEM_BYTES +
                              largest * o->grad_bytes + o->trainer_device_bytes;
    tier[HAUL_TIER_HOST] += s->nlandings * own * o->grad_bytes + s->npublish * publish +
                            s->nrslots * s->record_slot_bytes +
                            s->nparam_slots * s->param_slot_bytes +
                            (uint64_t)s->nsslots * s->stash_slot_bytes;
    if (s->nsslots < s->nentries)
        tier[HAUL_TIER_NVME] += (uint64_t)s->nentries * s->stash_slot_bytes;
    return 0;
}

/* ---- placement, as the engine's place_units.c ---- */

struct sizes {
    uint64_t *bytes;
    uint8_t *chosen;
};

static struct sim_unit *unit_at(struct sim *s, uint32_t i)
{
    return &s->unit[s->update_order[i]];
}

static int place_on_device(struct sim *s, struct sizes *z, uint64_t tier[HAUL_NTIERS])
{
    const struct hl_sim_opts *o = s->o;
    const uint64_t used = tier[HAUL_TIER_DEVICE];

    if (o->offload == HAUL_OFFLOAD_NONE || o->device_mem_bytes == HAUL_UNLIMITED ||
        used >= o->device_mem_bytes)
        return 0;
    for (uint32_t i = 0; i < s->nunits; i++) {
        const struct sim_unit *u = unit_at(s, i);
        const uint64_t grads = o->stage == 1 && s->passes == 1 ? u->elems : u->own;
        z->bytes[i] = u->record_bytes + grads * (s->passes > 1 ? 4 : o->grad_bytes) +
                      (hl_sim_on_host(u) ? 2 * u->rest : 0);
    }
    (void)hl_place_evenly(z->bytes, s->nunits, o->device_mem_bytes - used, z->chosen);
    for (uint32_t i = 0; i < s->nunits; i++)
        if (z->chosen[i])
            unit_at(s, i)->offload = HAUL_OFFLOAD_NONE;
    return count(s, tier);
}

static void page_all(struct sim *s, bool params)
{
    for (uint32_t i = 0; i < s->nunits; i++) {
        struct sim_unit *u = &s->unit[i];
        u->record_paged = u->offload != HAUL_OFFLOAD_NONE;
        u->param_paged = params && hl_sim_on_host(u);
    }
}

static void take_back(struct sim *s, uint64_t room, bool params, struct sizes *z)
{
    for (uint32_t i = 0; i < s->nunits; i++) {
        const struct sim_unit *u = unit_at(s, i);
        z->bytes[i] =
            params ? (u->param_paged ? 2 * u->rest : 0) : (u->record_paged ? u->record_bytes : 0);
    }
    (void)hl_place_evenly(z->bytes, s->nunits, room, z->chosen);
    for (uint32_t i = 0; i < s->nunits; i++) {
        struct sim_unit *u = unit_at(s, i);
        if (z->chosen[i] && params)
            u->param_paged = false;
        else if (z->chosen[i])
            u->record_paged = false;
    }
}

static int place_on_nvme(struct sim *s, uint64_t budget, struct sizes *z,
                         uint64_t tier[HAUL_NTIERS])
{
    bool params = false;
    int rc;

    page_all(s, false);
    rc = count(s, tier);
    if (rc == 0 && tier[HAUL_TIER_HOST] > budget && s->o->offload == HAUL_OFFLOAD_ALL) {
        params = true;
        page_all(s, true);
        rc = count(s, tier);
    }
    if (rc < 0 || tier[HAUL_TIER_HOST] > budget)
        return rc;
    take_back(s, budget - tier[HAUL_TIER_HOST], params, z);
    return count(s, tier);
}

static int place_exactly(struct sim *s, struct sizes *z, uint64_t tier[HAUL_NTIERS])
{
    page_all(s, false);
    take_back(s, s->o->records_host_bytes, false, z);
    return count(s, tier);
}

static int verdict(const struct sim *s, const uint64_t tier[HAUL_NTIERS])
{
    static const char *const name[] = {"device", "host", "nvme"};
    const struct hl_sim_opts *o = s->o;
    const uint64_t budget[] = {o->device_mem_bytes, o->host_mem_bytes, o->nvme_mem_bytes};

    for (unsigned t = 0; t < HAUL_NTIERS; t++) {
        uint64_t need = tier[t] * (t == HAUL_TIER_DEVICE ? 1 : o->ranks_per_node);
        if (need > budget[t])
            return hl_fail(HAUL_E_PLAN,
                           "sim: %s needs %" PRIu64 " B%s, has %" PRIu64 " B: short by %" PRIu64
                           " B; raise the budget or offload more",
                           name[t], need, t == HAUL_TIER_DEVICE ? " a rank" : " a node", budget[t],
                           need - budget[t]);
    }
    return 0;
}

static int place(struct sim *s, struct sizes *z)
{
    const struct hl_sim_opts *o = s->o;
    const uint64_t host = o->host_mem_bytes == HAUL_UNLIMITED
                              ? HAUL_UNLIMITED
                              : o->host_mem_bytes / o->ranks_per_node;
    uint64_t *tier = s->result.tier_bytes;
    int rc = count(s, tier);

    if (rc == 0)
        rc = place_on_device(s, z, tier);
    if (rc == 0 && o->place_exactly)
        rc = place_exactly(s, z, tier);
    else if (rc == 0 && o->nvme_mem_bytes && tier[HAUL_TIER_HOST] > host)
        rc = place_on_nvme(s, host, z, tier);
    if (rc == 0)
        rc = verdict(s, tier);
    if (rc < 0)
        return rc;
    tier[HAUL_TIER_HOST] *= o->ranks_per_node;
    tier[HAUL_TIER_NVME] *= o->ranks_per_node;
    return 0;
}

static void count_paged(struct sim *s)
{
    double all = 0, rest = 0, records = 0, params = 0;

    for (uint32_t i = 0; i < s->nunits; i++) {
        const struct sim_unit *u = &s->unit[i];
        all += (double)u->own;
        rest += (double)u->rest;
        records += u->record_paged ? (double)u->own : 0;
        params += u->param_paged ? (double)u->rest : 0;
    }
    s->result.records_paged = all > 0 ? records / all : 0;
    s->result.params_paged = rest > 0 ? params / rest : 0;
}

int hl_sim_place(struct sim *s)
{
    struct sizes z = {NULL, NULL};
    int rc = hl_sys_alloc_array(s->nunits, sizeof *z.bytes, (void **)&z.bytes);

    if (rc == 0)
        rc = hl_sys_alloc_array(s->nunits, sizeof *z.chosen, (void **)&z.chosen);
    if (rc == 0)
        rc = place(s, &z);
    if (rc == 0)
        count_paged(s);
    hl_sys_free(z.bytes);
    hl_sys_free(z.chosen);
    return rc;
}
