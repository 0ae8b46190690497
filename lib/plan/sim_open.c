/* sim_open.c: everything that a simulation needs, allocated: nothing is later. */
#include <string.h>

#include "checked.h"
#include "fail.h"
#include "sim_state.h"
#include "sys.h"

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

/* In update order, as the pump reads them. */
static int list_chunks(struct sim *s)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < s->nunits; i++)
        n += s->unit[i].record_paged ? s->unit[i].ck.nchunks : 0;
    if (n > UINT32_MAX)
        return hl_fail(-EOVERFLOW, "sim: more than 2^32 chunks; make slot_bytes larger");
    int rc = ALLOC(s->paged, n);
    for (uint32_t i = 0; rc == 0 && i < s->nunits; i++) {
        const struct sim_unit *u = &s->unit[s->update_order[i]];
        for (uint32_t c = 0; u->record_paged && c < u->ck.nchunks; c++)
            s->paged[s->npaged++] = (struct sim_chunk){s->update_order[i], c};
    }
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

int hl_sim_open(const struct hl_sim_opts *o, struct sim *s)
{
    int rc;

    memset(s, 0, sizeof *s);
    s->o = o;
    s->demand = s->param_demand = -1;
    if ((rc = hl_sim_check(o)) < 0)
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
    if ((rc = hl_sim_place(s)) < 0 || (rc = list_chunks(s)) < 0 || (rc = alloc_streams(s)) < 0 ||
        (rc = alloc_rest(s)) < 0)
        return rc;
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
