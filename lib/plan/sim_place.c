/*
 * sim_place.c: options checked, units placed by budget as the engine's build does, and everything a
 * simulation needs allocated: nothing is later.
 */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "checked.h"
#include "fail.h"
#include "sim_state.h"
#include "state_bytes.h"
#include "sys.h"

#define SLOT_BYTES_DEFAULT (UINT64_C(32) << 20)
#define BUFFER_ELEM_BYTES  4 /* the trainer adds in FP32 */

void hl_sim_opts_init(struct hl_sim_opts *o)
{
    memset(o, 0, sizeof *o);
    o->ranks = o->ranks_per_node = 1;
    o->stage = 3;
    o->offload = HAUL_OFFLOAD_ALL;
    o->grad_bytes = 2;
    o->device_mem_bytes = o->host_mem_bytes = o->nvme_mem_bytes = HAUL_UNLIMITED;
    o->accum = 1;
    o->recompute = 1;
    o->stash_host_bytes = HAUL_UNLIMITED;
    o->overlap = 1;
    o->window = 2;
    o->slots = 4;
}

/* ---- checks ---- */

static int check_rates(const struct hl_sim_rates *r)
{
    const struct {
        const char *name;
        double value;
    } all[] = {{"flops_per_s", r->flops_per_s},
               {"device_mem_bytes_per_s", r->device_mem_bytes_per_s},
               {"h2d_bytes_per_s", r->h2d_bytes_per_s},
               {"d2h_bytes_per_s", r->d2h_bytes_per_s},
               {"mem_bytes_per_s", r->mem_bytes_per_s},
               {"optim_bytes_per_s", r->optim_bytes_per_s},
               {"drive_read_bytes_per_s", r->drive_read_bytes_per_s},
               {"drive_write_bytes_per_s", r->drive_write_bytes_per_s},
               {"drive_mixed_bytes_per_s", r->drive_mixed_bytes_per_s},
               {"comm_bytes_per_s", r->comm_bytes_per_s},
               {"net_bytes_per_s", r->net_bytes_per_s},
               {"mem_per_link_byte", r->mem_per_link_byte},
               {"mem_per_drive_byte", r->mem_per_drive_byte}};
    const double latency[] = {r->link_latency_s, r->drive_latency_s, r->comm_latency_s};

    for (unsigned i = 0; i < sizeof all / sizeof *all; i++)
        if (!(all[i].value > 0) || !isfinite(all[i].value))
            return hl_fail(-EINVAL, "sim: rate %s is %g; it must be above 0", all[i].name,
                           all[i].value);
    for (unsigned i = 0; i < sizeof latency / sizeof *latency; i++)
        if (!(latency[i] >= 0) || !isfinite(latency[i]))
            return hl_fail(-EINVAL, "sim: a latency is %g s; it must not be below 0", latency[i]);
    return 0;
}

static int check_model(const struct hl_sim_model *m)
{
    if (m->nunits < 1 || m->nunits > HL_SIM_MAX_UNITS || m->nvisits < 1 ||
        m->nvisits > 2 * HL_SIM_MAX_UNITS)
        return hl_fail(-EINVAL, "sim: a model of %u units and %u visits", m->nunits, m->nvisits);
    for (uint32_t i = 0; i < m->nunits; i++)
        if (m->elems[i] > UINT64_C(1) << 50)
            return hl_fail(-EOVERFLOW, "sim: unit %u has more than 2^50 parameters", i);
    for (uint32_t i = 0; i < m->nvisits; i++)
        if (m->visits[i].unit >= m->nunits)
            return hl_fail(-EINVAL, "sim: visit %u is of unit %u of %u", i, m->visits[i].unit,
                           m->nunits);
    return 0;
}

static int check(const struct hl_sim_opts *o)
{
    int rc = check_model(&o->model);

    if (rc == 0)
        rc = check_rates(&o->rates);
    if (rc < 0)
        return rc;
    if (o->ranks < 1 || o->ranks > 1u << 20 || o->ranks_per_node < 1 ||
        o->ranks_per_node > o->ranks)
        return hl_fail(-EINVAL, "sim: %u ranks, %u to a node", o->ranks, o->ranks_per_node);
    if (o->stage > 3 || (unsigned)o->offload > HAUL_OFFLOAD_ALL)
        return hl_fail(-EINVAL, "sim: stage %u, offload %d", o->stage, (int)o->offload);
    if (o->grad_bytes != 2 && o->grad_bytes != 4)
        return hl_fail(-EINVAL, "sim: grad_bytes %u; 2 or 4", o->grad_bytes);
    if (o->window < 1 || o->slots < 2 || o->slots > 4096)
        return hl_fail(-EINVAL, "sim: window %u, slots %u; at least 1, and 2 to 4096", o->window,
                       o->slots);
    if (o->accum < 1 || o->accum > 1024)
        return hl_fail(-EINVAL, "sim: accum %u; 1 to 1024", o->accum);
    if (!(o->tokens >= 0) || !isfinite(o->tokens) || !(o->forward_s >= 0) || !(o->backward_s >= 0))
        return hl_fail(-EINVAL, "sim: tokens and times must not be below 0");
    return 0;
}

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

static uint32_t count_revisited(const struct sim *s)
{
    uint32_t n = 0;

    for (uint32_t u = 0; u < s->nunits; u++) {
        uint32_t seen = 0;
        for (uint32_t k = 0; k < s->order.nvisits; k++)
            seen += s->visits[k] == u;
        n += seen > 1;
    }
    return n < SIM_GRAD_BUFFERS - 2 ? n : SIM_GRAD_BUFFERS - 2;
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

/* ---- opening ---- */

static void make_units(struct sim *s)
{
    const struct hl_sim_opts *o = s->o;

    for (uint32_t i = 0; i < s->nunits; i++) {
        struct sim_unit *u = &s->unit[i];
        const uint64_t shard = hl_div_up(o->model.elems[i], o->ranks);
        u->elems = o->model.elems[i];
        u->own = o->stage == 0 ? u->elems : shard;
        u->rest = o->stage == 3 ? shard : u->elems;
        u->travel = u->own * o->grad_bytes;
        u->record_bytes = u->own * (o->master == HAUL_MASTER_SPLIT ? 10 : 12);
        u->offload = o->offload;
        u->frame = u->last_frame = u->publish_slot = -1;
    }
}

static void make_stash(struct sim *s)
{
    const struct hl_sim_opts *o = s->o;
    double most = 0;

    for (uint32_t k = 0; o->stash && k < o->model.nvisits; k++) {
        const double each = o->model.visits[k].stash_bytes;
        s->nentries += each > 0;
        most = each > most ? each : most;
    }
    s->stash_entry_bytes = (uint64_t)(most * o->tokens / o->ranks / s->passes);
    if (s->stash_entry_bytes == 0)
        s->nentries = 0;
}

#define ALLOC(field, n) hl_sys_alloc_array(n, sizeof *(field), (void **)&(field))

static int alloc_orders(struct sim *s)
{
    const struct hl_sim_opts *o = s->o;
    int rc;

    if ((rc = ALLOC(s->unit, s->nunits)) < 0 || (rc = ALLOC(s->update_order, s->nunits)) < 0 ||
        (rc = ALLOC(s->visits, o->model.nvisits)) < 0)
        return rc;
    for (uint32_t k = 0; k < o->model.nvisits; k++)
        s->visits[k] = o->model.visits[k].unit;
    s->order = (struct hl_order){s->visits, o->model.nvisits, s->passes, 0};
    hl_order_updates(&s->order, s->nunits, s->update_order);
    return 0;
}

static int place_all(struct sim *s)
{
    struct sizes z = {NULL, NULL};
    int rc = ALLOC(z.bytes, s->nunits);

    if (rc == 0)
        rc = ALLOC(z.chosen, s->nunits);
    if (rc == 0)
        rc = place(s, &z);
    hl_sys_free(z.bytes);
    hl_sys_free(z.chosen);
    return rc;
}

/* In update order, as the pump reads them. */
static int list_chunks(struct sim *s)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < s->nunits; i++)
        n += s->unit[i].record_paged ? s->unit[i].ck.nchunks : 0;
    if (n > UINT32_MAX)
        return hl_fail(-EOVERFLOW, "sim: more than 2^32 chunks; make slot_bytes larger");
    int rc = ALLOC(s->paged, n);
    for (uint32_t i = 0; rc == 0 && i < s->nunits; i++)
        for (uint32_t c = 0; unit_at(s, i)->record_paged && c < unit_at(s, i)->ck.nchunks; c++)
            s->paged[s->npaged++] = (struct sim_chunk){s->update_order[i], c};
    return rc;
}

/* A stream holds what a step can put into it before any of it is done. */
static int alloc_streams(struct sim *s)
{
    const uint64_t len = hl_order_len(&s->order);
    const uint64_t most[SIM_NSTREAMS] = {
        [SIM_COMPUTE] = 6 * len + 64,
        [SIM_H2D] = 4 * len + 4ull * s->nunits + 64,
        [SIM_D2H] = 4 * len + 4ull * s->nunits + 64,
        [SIM_COMM] = 4 * len + 4ull * s->nunits + 64,
        [SIM_UPDATE] = 2ull * s->nunits + 16,
        [SIM_READ] = s->nrslots + s->nsslots + 16ull,
        [SIM_WRITE] = s->nrslots + s->nsslots + 16ull,
        [SIM_HOST] = 8,
    };
    int rc = 0;

    for (unsigned i = 0; rc == 0 && i < SIM_NSTREAMS; i++) {
        s->stream[i].nring = (uint32_t)most[i];
        rc = ALLOC(s->stream[i].ring, most[i]);
    }
    return rc;
}

static int alloc_rest(struct sim *s)
{
    const uint64_t len = hl_order_len(&s->order);
    int rc;

    s->njobs = s->nturns = (uint32_t)(4 * len + 2ull * s->nunits + 4ull * s->o->window + 64);
    if ((rc = ALLOC(s->frame, s->nframes)) < 0 || (rc = ALLOC(s->wframe, s->nframes)) < 0 ||
        (rc = ALLOC(s->rslot, s->nrslots)) < 0 || (rc = ALLOC(s->entry, s->nentries)) < 0 ||
        (rc = ALLOC(s->sslot, s->nsslots)) < 0 || (rc = ALLOC(s->jobs, s->njobs)) < 0 ||
        (rc = ALLOC(s->turns, s->nturns)) < 0)
        return rc;
    for (uint32_t i = 0; i < s->nframes; i++)
        s->frame[i].unit = -1;
    for (uint32_t i = 0; i < SIM_PARAM_SLOTS; i++)
        s->pframe[i].unit = -1;
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

int hl_sim_open(const struct hl_sim_opts *o, struct sim *s)
{
    int rc;

    memset(s, 0, sizeof *s);
    s->o = o;
    s->demand = s->param_demand = -1;
    if ((rc = check(o)) < 0)
        return rc;
    s->nunits = o->model.nunits;
    s->passes = o->batch_order ? o->accum : 1;
    s->comm = o->ranks > 1;
    s->in_turn = s->comm && o->stage > 0;
    s->share = 1.0 / o->ranks_per_node;
    if ((rc = alloc_orders(s)) < 0)
        return rc;
    make_units(s);
    make_stash(s);
    s->nbuffers = 2 + count_revisited(s);
    if ((rc = place_all(s)) < 0 || (rc = list_chunks(s)) < 0 || (rc = alloc_streams(s)) < 0 ||
        (rc = alloc_rest(s)) < 0)
        return rc;
    count_paged(s);
    return 0;
}

void hl_sim_close(struct sim *s)
{
    for (unsigned i = 0; i < SIM_NSTREAMS; i++)
        hl_sys_free(s->stream[i].ring);
    hl_sys_free(s->unit);
    hl_sys_free(s->update_order);
    hl_sys_free(s->visits);
    hl_sys_free(s->frame);
    hl_sys_free(s->wframe);
    hl_sys_free(s->rslot);
    hl_sys_free(s->entry);
    hl_sys_free(s->sslot);
    hl_sys_free(s->jobs);
    hl_sys_free(s->turns);
    hl_sys_free(s->paged);
}
