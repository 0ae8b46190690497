/* rank_terms.c: before anything is planned, all ranks hold what they were told against each other. */
#include <inttypes.h>
#include <string.h>

#include "engine_state.h"

/* What must be the same on all ranks. Words that differ are named. */
struct term {
    const char *name;
    uint64_t value;
    bool is_hash; /* says nothing to a reader */
};

uint64_t hl_hash(uint64_t h, const void *data, size_t n)
{
    const unsigned char *p = data;

    for (size_t i = 0; i < n; i++)
        h = (h ^ p[i]) * UINT64_C(0x100000001b3);
    return h;
}

static uint64_t mix_word(uint64_t h, uint64_t word)
{
    return hl_hash(h, &word, sizeof word);
}

static uint64_t hash_units(const struct haul_engine *e)
{
    uint64_t h = HL_HASH_START;

    for (uint32_t i = 0; i < e->nunits; i++) {
        const struct haul_unit *u = e->units[i];
        h = mix_word(hl_hash(h, u->name, strlen(u->name)), u->ntensors);
        h = mix_word(h, u->buffer_dtype);
        for (uint32_t t = 0; t < u->ntensors; t++) {
            const struct haul_tensor *x = &u->tensors[t];
            h = hl_hash(h, x->name, strlen(x->name));
            h = hl_hash(h, x->shape, x->ndims * sizeof *x->shape);
            h = mix_word(mix_word(mix_word(h, x->dtype), x->group), x->frozen != 0);
        }
    }
    return h;
}

static uint64_t hash_optim(const struct haul_optim *o)
{
    uint64_t h = mix_word(HL_HASH_START, o->kind);
    const double d[] = {o->beta1, o->beta2, o->eps, o->momentum};

    return mix_word(hl_hash(h, d, sizeof d), (uint64_t)(o->bias_correction != 0));
}

static uint64_t is_size(uint64_t budget)
{
    return budget != HAUL_AUTO && budget != HAUL_UNLIMITED;
}

int hl_ranks_agree(struct haul_engine *e)
{
    const struct haul_engine_opts *o = &e->opts;
    const struct term term[] = {
        {"the number of units", e->nunits, false},
        {"the number of parameters", e->elems, false},
        {"the units' names, tensors, shapes, dtypes or groups", hash_units(e), true},
        {"the order of visits", hl_hash(HL_HASH_START, e->visits, e->nvisits * sizeof *e->visits),
         true},
        {"opts.stage", o->stage, false},
        {"opts.offload", o->offload, false},
        {"opts.master", o->master, false},
        {"opts.grad_dtype", o->grad_dtype, false},
        {"opts.optim", hash_optim(&o->optim), true},
        {"opts.ngroups", o->ngroups, false},
        {"opts.passes", o->passes, false},
        {"opts.max_held", o->max_held, false},
        {"opts.window", o->window, false},
        {"opts.slots", o->slots, false},
        {"opts.slot_bytes", o->slot_bytes, false},
        {"opts.overlap", (uint64_t)o->overlap, false},
        {"opts.share", e->shares, false},
        {"opts.stash_entries", o->stash_entries, false},
        {"opts.stash_entry_bytes", o->stash_entry_bytes, false},
        {"opts.trainer_device_bytes", o->trainer_device_bytes, false},
        {"opts.loss_scale", (uint64_t)o->loss_scale, false},
        {"opts.loss_scale_window", o->loss_scale_window, false},
        {"whether opts.device_mem_bytes is a size", is_size(o->device_mem_bytes), false},
        {"whether opts.nvme_dirs are given", o->nnvme_dirs != 0, false},
        {"opts.nvme_durable", (uint64_t)o->nvme_durable, false},
    };
    enum { N = sizeof term / sizeof term[0] };
    uint64_t word[2 * N];
    int rc;

    if (!e->comm)
        return 0;
    for (unsigned i = 0; i < N; i++) {
        word[i] = term[i].value;
        word[N + i] = ~term[i].value;
    }
    rc = hl_comm_all_reduce(e->comm, e->comm_counts, HAUL_COMM_MAX_U64, word, 2 * N);
    for (unsigned i = 0; rc == 0 && i < N; i++)
        if (word[i] != ~word[N + i] && term[i].is_hash)
            rc = hl_fail(HAUL_E_PLAN,
                         "the ranks do not agree on %s; give all ranks the same model and options",
                         term[i].name);
        else if (word[i] != ~word[N + i])
            rc = hl_fail(HAUL_E_PLAN,
                         "the ranks do not agree on %s: rank %u has %" PRIu64
                         ", others from %" PRIu64 " to %" PRIu64
                         "; give all ranks the same model and options",
                         term[i].name, e->rank, term[i].value, ~word[N + i], word[i]);
    return rc;
}

/* ---- calls that all ranks make ---- */

int hl_ranks_failed(struct haul_engine *e, int rc)
{
    int own = hl_engine_check(e);

    if (own < 0)
        return own;
    hl_engine_fail(e, rc);
    return rc;
}

int hl_ranks_enter(struct haul_engine *e, const char *call, uint64_t args, int rc)
{
    uint64_t h = mix_word(hl_hash(HL_HASH_START, call, strlen(call)), args);
    uint64_t word[3] = {h, ~h, rc < 0};
    int rc_comm;

    if (!e->comm)
        return rc;
    if (hl_engine_check(e) < 0)
        return hl_engine_check(e);
    rc_comm = hl_comm_all_reduce(e->comm, e->comm_counts, HAUL_COMM_MAX_U64, word, 3);
    if (rc_comm < 0)
        return hl_ranks_failed(e, rc_comm);
    if (rc < 0)
        return rc;
    if (word[2])
        return hl_fail(HAUL_E_STATE, "%s: another rank's call was refused; its error says why",
                       call);
    if (word[0] != ~word[1])
        return hl_fail(HAUL_E_STATE,
                       "%s: another rank makes another call, or this one with other arguments; all "
                       "ranks make it alike",
                       call);
    return 0;
}

int hl_ranks_leave(struct haul_engine *e, const char *call, int rc)
{
    uint64_t failed = rc < 0;
    int rc_comm;

    if (!e->comm)
        return rc;
    rc_comm = hl_comm_all_reduce(e->comm, e->comm_counts, HAUL_COMM_MAX_U64, &failed, 1);
    if (rc < 0)
        return rc;
    if (rc_comm < 0)
        return hl_ranks_failed(e, rc_comm);
    return failed
               ? hl_fail(HAUL_E_STATE, "%s: it failed on another rank, whose error says why", call)
               : 0;
}
