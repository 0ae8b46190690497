/* engine.c: opening, describing the model, building and closing. */
#include <string.h>

#include "checked.h"
#include "engine_state.h"
#include "optim_check.h"
#include "placement.h"
#include "sys.h"
#include "team.h"

/* Sizes past these are mistakes, and sums of them would not fit 64 bits. */
#define MOST_BYTES (UINT64_C(1) << 62)
#define MOST_ELEMS (UINT64_C(1) << 58)

void haul_engine_opts_init(struct haul_engine_opts *opts)
{
    memset(opts, 0, sizeof *opts);
    opts->struct_size = sizeof *opts;
    opts->stage = 3;
    opts->offload = HAUL_OFFLOAD_ALL;
    opts->master = HAUL_MASTER_FP32;
    opts->grad_dtype = HAUL_BF16;
    haul_optim_init(&opts->optim, HAUL_ADAMW);
    opts->ngroups = 1;
    opts->passes = 1;
    opts->max_held = 1;
    opts->slots = 4;
    opts->loss_scale_window = 2000;
    opts->overlap = 1;
}

static int check_enums(const struct haul_engine_opts *o)
{
    if (o->stage > 3)
        return hl_fail(-EINVAL, "engine: stage %u; stages are 0, 1, 2 and 3", o->stage);
    if ((unsigned)o->offload > HAUL_OFFLOAD_ALL)
        return hl_fail(-EINVAL, "engine: offload %d is none of none, optimizer, all", o->offload);
    if ((unsigned)o->master > HAUL_MASTER_SPLIT)
        return hl_fail(-EINVAL, "engine: master form %d is neither fp32 nor split", o->master);
    if (o->grad_dtype != HAUL_BF16 && o->grad_dtype != HAUL_FP16 && o->grad_dtype != HAUL_FP32)
        return hl_fail(-EINVAL, "engine: grad_dtype %d; gradients travel in BF16, FP16 or FP32",
                       o->grad_dtype);
    if (o->optim.moment_dtype != HAUL_FP32)
        return hl_fail(-EINVAL,
                       "engine: records hold FP32 moments; set optim.moment_dtype to FP32");
    if (o->optim.kind != HAUL_ADAMW && o->optim.kind != HAUL_ADAM)
        return hl_fail(-EINVAL,
                       "engine: records are laid out for AdamW and Adam; optimizer %d is neither",
                       o->optim.kind);
    return 0;
}

/* What haul_optim_update() would refuse in every step. */
static int check_optim(const struct haul_optim *opt)
{
    const struct haul_optim_arrays none = {.struct_size = sizeof none, .grad_dtype = HAUL_FP32};
    const struct haul_optim_step first = {.struct_size = sizeof first, .step = 1, .grad_scale = 1};

    return hl_optim_check(opt, &none, &first);
}

static int check_sizes(const struct haul_engine_opts *o)
{
    uint64_t blocks = hl_div_up(o->stash_entry_bytes, HL_MOST_BLOCK_BYTES), stash;

    if (o->trainer_device_bytes > MOST_BYTES)
        return hl_fail(-EOVERFLOW, "engine: trainer_device_bytes %llu; at most 2^62",
                       (unsigned long long)o->trainer_device_bytes);
    if (o->slot_bytes > MOST_BYTES)
        return hl_fail(-EOVERFLOW, "engine: slot_bytes %llu; at most 2^62",
                       (unsigned long long)o->slot_bytes);
    if (o->stash_entry_bytes > MOST_BYTES ||
        hl_mul(blocks * HL_MOST_BLOCK_BYTES, o->stash_entries, &stash) < 0 || stash > MOST_BYTES)
        return hl_fail(-EOVERFLOW,
                       "engine: stash_entries %u of stash_entry_bytes %llu; at most 2^62 together",
                       o->stash_entries, (unsigned long long)o->stash_entry_bytes);
    return 0;
}

static int check_running(const struct haul_engine_opts *o)
{
    if (o->nthreads > HL_TEAM_MOST)
        return hl_fail(-EINVAL, "engine: nthreads %u; at most %u, or 0 for the cores allowed",
                       o->nthreads, HL_TEAM_MOST);
    if ((unsigned)o->share > HAUL_SHARE_PULL)
        return hl_fail(-EINVAL, "engine: share %d is none of auto, gather, pull", o->share);
    if (o->overlap != 0 && o->overlap != 1)
        return hl_fail(-EINVAL, "engine: overlap %d is neither 0 nor 1", o->overlap);
    if ((unsigned)o->io_method > HAUL_IO_THREADS)
        return hl_fail(-EINVAL, "engine: io_method %d is none of auto, uring, threads",
                       o->io_method);
    if (o->nvme_durable != 0 && o->nvme_durable != 1)
        return hl_fail(-EINVAL, "engine: nvme_durable %d is neither 0 nor 1", o->nvme_durable);
    if (o->nvme_durable && !o->nnvme_dirs && !o->plan_only)
        return hl_fail(-EINVAL, "engine: nvme_durable needs nvme_dirs, for the records to stay in");
    for (uint32_t i = 0; i < o->nnvme_dirs; i++)
        if (!o->nvme_dirs[i] || !*o->nvme_dirs[i])
            return hl_fail(-EINVAL, "engine: nvme_dirs[%u] names no directory", i);
    return 0;
}

static int check_comm(const struct haul_engine_opts *o)
{
    const struct haul_comm *c = o->comm;

    if (!c)
        return 0;
    if (!c->ops || c->ops->struct_size != sizeof *c->ops)
        return hl_fail(HAUL_E_ABI, "engine: a communicator with another table than haul/comm.h's");
    if (!o->plan_only &&
        (!c->ops->all_gather || !c->ops->all_to_all || !c->ops->all_reduce || !c->ops->barrier))
        return hl_fail(
            -EINVAL, "engine: the communicator's table lacks all_gather, all_to_all, all_reduce or "
                     "barrier");
    if (c->nlocal == 0 || c->local_rank >= c->nlocal || c->nlocal > c->nranks)
        return hl_fail(-EINVAL,
                       "engine: the communicator says local rank %u of %u on this node; set both",
                       c->local_rank, c->nlocal);
    if (c->dev != o->device)
        return hl_fail(-EINVAL,
                       "engine: the communicator was opened for another device; open it for the "
                       "engine's");
    if (c->nranks == 0 || c->rank >= c->nranks || c->nranks > 1u << 16)
        return hl_fail(-EINVAL, "engine: rank %u of %u; at most 65536 ranks", c->rank, c->nranks);
    return 0;
}

static int check_opts(const struct haul_engine_opts *o)
{
    int rc;

    if (o->struct_size != sizeof *o || o->optim.struct_size != sizeof o->optim)
        return hl_fail(HAUL_E_ABI, "engine: options were not set up by haul_engine_opts_init()");
    if (!o->device)
        return hl_fail(-EINVAL, "engine: no device; open one with haul_device_host_open()");
    if (o->ngroups == 0 || o->ngroups > 1u << 16)
        return hl_fail(-EINVAL, "engine: ngroups %u; 1 to 65536 parameter groups", o->ngroups);
    if (o->passes == 0 || o->passes > 1u << 16)
        return hl_fail(-EINVAL, "engine: passes %u; 1 to 65536 reduces a step", o->passes);
    if (o->max_held == 0)
        return hl_fail(-EINVAL, "engine: max_held 0; a trainer holds at least one unit");
    if (o->window != 0 && o->window < o->max_held)
        return hl_fail(-EINVAL, "engine: window %u is below max_held %u: what is held must fit",
                       o->window, o->max_held);
    if (o->max_held > 1024 || o->window > 1024)
        return hl_fail(-EINVAL, "engine: max_held %u, window %u; at most 1024", o->max_held,
                       o->window);
    if (o->slots < 2 || o->slots > 1024)
        return hl_fail(-EINVAL, "engine: slots %u; 2 to 1024", o->slots);
    if (o->nnvme_dirs > HAUL_MAX_DIRS || (o->nnvme_dirs && !o->nvme_dirs))
        return hl_fail(-EINVAL, "engine: %u nvme directories; at most %d, named in nvme_dirs",
                       o->nnvme_dirs, HAUL_MAX_DIRS);
    if (o->stash_entries > 1u << 20 || (o->stash_entries && !o->stash_entry_bytes))
        return hl_fail(-EINVAL,
                       "engine: %u stash entries of %llu bytes; at most 2^20, none of them empty",
                       o->stash_entries, (unsigned long long)o->stash_entry_bytes);
    if ((rc = check_enums(o)) < 0 || (rc = check_optim(&o->optim)) < 0 ||
        (rc = check_sizes(o)) < 0 || (rc = check_comm(o)) < 0)
        return rc;
    return check_running(o);
}

static int copy_dirs(struct haul_engine *e, const struct haul_engine_opts *opts)
{
    int rc = hl_sys_alloc_array(opts->nnvme_dirs, sizeof *e->nvme_dirs, (void **)&e->nvme_dirs);

    for (uint32_t i = 0; rc == 0 && i < opts->nnvme_dirs; i++)
        rc = hl_sys_strdup(opts->nvme_dirs[i], &e->nvme_dirs[i]);
    e->opts.nvme_dirs = (const char *const *)e->nvme_dirs;
    return rc;
}

int haul_engine_open(const struct haul_engine_opts *opts, struct haul_engine **out)
{
    struct haul_engine *e;
    int rc;

    if ((rc = hl_need("haul_engine_open", "opts", opts)) < 0 ||
        (rc = hl_need("haul_engine_open", "out", out)) < 0 || (rc = check_opts(opts)) < 0)
        return rc;
    rc = hl_sys_alloc(sizeof *e, (void **)&e);
    if (rc < 0)
        return rc;
    e->opts = *opts;
    if (e->opts.window == 0)
        e->opts.window = e->opts.max_held + 1;
    e->comm = e->opts.comm && e->opts.comm->nranks > 1 ? e->opts.comm : NULL;
    e->turns_hash = HL_HASH_START;
    e->nranks = e->comm ? e->comm->nranks : 1;
    e->rank = e->comm ? e->comm->rank : 0;
    if (e->opts.nthreads == 0)
        e->opts.nthreads = haul_optim_threads(e->comm ? e->comm->nlocal : 1);
    e->dev = opts->device;
    e->ops = opts->device->ops;
    e->demand = e->param_demand = -1;
    rc = copy_dirs(e, opts);
    if (rc == 0)
        rc = hl_loss_scale_open(e);
    if (rc < 0) {
        haul_engine_close(e);
        return rc;
    }
    *out = e;
    return 0;
}

static void free_unit(struct haul_unit *u)
{
    if (!u)
        return;
    for (uint32_t i = 0; u->tensors && i < u->ntensors; i++)
        hl_sys_free((void *)(uintptr_t)u->tensors[i].name);
    hl_sys_free(u->tensors);
    hl_sys_free(u->places);
    hl_sys_free(u->runs);
    hl_sys_free(u->param_offset);
    hl_sys_free(u->grad_offset);
    hl_sys_free(u->name);
    hl_sys_free(u);
}

void haul_engine_close(struct haul_engine *e)
{
    if (!e)
        return;
    hl_snapshot_abandon(e);
    hl_engine_stop(e);
    if (e->built)
        hl_engine_unreserve(e);
    for (uint32_t i = 0; i < e->nunits; i++)
        free_unit(e->units[i]);
    hl_sys_free(e->units);
    hl_sys_free(e->visits);
    hl_sys_free(e->update_order);
    for (uint32_t i = 0; e->nvme_dirs && i < e->opts.nnvme_dirs; i++)
        hl_sys_free(e->nvme_dirs[i]);
    hl_sys_free(e->nvme_dirs);
    hl_sys_free(e);
}

static int check_tensor(const struct haul_engine *e, const char *unit, const struct haul_tensor *t)
{
    if (!t->name || !*t->name)
        return hl_fail(-EINVAL, "unit %s: a tensor has no name", unit);
    if (t->ndims == 0 || t->ndims > HAUL_MAX_DIMS)
        return hl_fail(-EINVAL, "unit %s, tensor %s: %u dimensions; 1 to %d", unit, t->name,
                       t->ndims, HAUL_MAX_DIMS);
    if (t->dtype != HAUL_FP32 && t->dtype != HAUL_BF16 && t->dtype != HAUL_FP16)
        return hl_fail(-EINVAL, "unit %s, tensor %s: dtype %d is none of BF16, FP16, FP32", unit,
                       t->name, t->dtype);
    if (t->group >= e->opts.ngroups)
        return hl_fail(-EINVAL, "unit %s, tensor %s: group %u, but the engine has %u", unit,
                       t->name, t->group, e->opts.ngroups);
    if (t->dtype == HAUL_FP16 && e->opts.master == HAUL_MASTER_SPLIT)
        return hl_fail(-EINVAL, "unit %s, tensor %s: a split master needs BF16, not FP16", unit,
                       t->name);
    if (t->dtype != HAUL_FP32 && e->dtype16 != HAUL_DTYPE_NONE && t->dtype != e->dtype16)
        return hl_fail(-EINVAL, "unit %s, tensor %s: BF16 and FP16 cannot be mixed in one engine",
                       unit, t->name);
    return 0;
}

static int check_unit(const struct haul_engine *e, const struct haul_unit_desc *d)
{
    if (e->built)
        return hl_fail(HAUL_E_STATE, "engine: units can only be added before build");
    if (d->struct_size != sizeof *d)
        return hl_fail(HAUL_E_ABI,
                       "engine: unit description with struct_size %zu; this library's is %zu",
                       d->struct_size, sizeof *d);
    if (!d->name || !*d->name)
        return hl_fail(-EINVAL, "engine: a unit needs a name");
    if (d->ntensors && !d->tensors)
        return hl_fail(-EINVAL, "unit %s: %u tensors, but tensors is NULL", d->name, d->ntensors);
    for (uint32_t i = 0; i < e->nunits; i++)
        if (strcmp(e->units[i]->name, d->name) == 0)
            return hl_fail(-EINVAL, "engine: there is a unit %s already", d->name);
    if (d->grad_dtype != HAUL_DTYPE_NONE && d->grad_dtype != HAUL_FP32 &&
        d->grad_dtype != HAUL_BF16 && d->grad_dtype != HAUL_FP16)
        return hl_fail(-EINVAL, "unit %s: grad_dtype %d is none of FP32, BF16, FP16", d->name,
                       d->grad_dtype);
    for (uint32_t i = 0; i < d->ntensors; i++) {
        int rc = check_tensor(e, d->name, &d->tensors[i]);
        if (rc < 0)
            return rc;
        for (uint32_t j = 0; j < i; j++)
            if (strcmp(d->tensors[i].name, d->tensors[j].name) == 0)
                return hl_fail(-EINVAL, "unit %s: two tensors are named %s", d->name,
                               d->tensors[i].name);
    }
    return 0;
}

/* What this rank keeps of each span. */
static void make_ranges(struct haul_unit *u)
{
    const struct haul_engine *e = u->engine;

    for (unsigned s = 0; s < HL_NSPANS; s++) {
        const struct hl_span *sp = &u->layout.span[s];
        struct hl_range all = {0, sp->elems};
        u->shard[s] = (struct hl_range){e->rank * sp->shard_elems, sp->shard_elems};
        u->own[s] = e->opts.stage == 0 ? all : u->shard[s];
        u->rest[s] = e->opts.stage < 3 ? all : u->shard[s];
    }
}

/* The part of a tensor that this rank owns, counted from where its range begins. */
static struct hl_range owned_part(const struct haul_unit *u, const struct hl_place *pl)
{
    const struct hl_range *own = &u->own[pl->span];
    uint64_t first = pl->first_elem > own->first ? pl->first_elem : own->first;
    uint64_t end = pl->first_elem + pl->elems, own_end = own->first + own->elems;

    end = end < own_end ? end : own_end;
    return (struct hl_range){first - own->first, end > first ? end - first : 0};
}

/* Tensors of one group that follow each other in a span make one run. */
static void make_runs(struct haul_unit *u)
{
    for (unsigned s = 0; s < HL_NTRAIN; s++) {
        struct hl_run *run = NULL;
        for (uint32_t i = 0; i < u->ntensors; i++) {
            struct hl_range part = owned_part(u, &u->places[i]);
            if (u->places[i].span != s || part.elems == 0)
                continue;
            if (!run || run->group != u->tensors[i].group) {
                run = &u->runs[u->nruns++];
                *run = (struct hl_run){
                    .span = s, .group = u->tensors[i].group, .first_elem = part.first};
            }
            run->elems = part.first + part.elems - run->first_elem;
        }
    }
}

static void make_offsets(struct haul_unit *u)
{
    for (uint32_t i = 0; i < u->ntensors; i++) {
        const struct hl_place *pl = &u->places[i];
        u->param_offset[i] =
            hl_param_span_offset(u, pl->span) + pl->first_elem * hl_span_param_bytes(pl->span);
        if (pl->span == HL_TRAIN16)
            u->grad_offset[i] = pl->first_elem * hl_plan_dtype_bytes(u->buffer_dtype);
        else if (pl->span == HL_TRAIN32)
            u->grad_offset[i] = hl_grad_span_offset(u, HL_TRAIN32) + pl->first_elem * 4;
        else
            u->grad_offset[i] = UINT64_MAX;
    }
}

static int copy_tensors(struct haul_unit *u, const struct haul_unit_desc *d)
{
    int rc = hl_sys_alloc_array(d->ntensors, sizeof *u->tensors, (void **)&u->tensors);

    if (rc < 0)
        return rc;
    for (u->ntensors = 0; u->ntensors < d->ntensors; u->ntensors++) {
        char *name;
        rc = hl_sys_strdup(d->tensors[u->ntensors].name, &name);
        if (rc < 0)
            return rc;
        u->tensors[u->ntensors] = d->tensors[u->ntensors];
        u->tensors[u->ntensors].name = name;
    }
    return 0;
}

static int make_unit(struct haul_engine *e, const struct haul_unit_desc *d, struct haul_unit **out)
{
    struct haul_unit *u;
    uint32_t n = d->ntensors;
    int rc = hl_sys_alloc(sizeof *u, (void **)&u);

    if (rc < 0)
        return rc;
    u->engine = e;
    u->buffer_dtype = d->grad_dtype == HAUL_DTYPE_NONE ? HAUL_FP32 : d->grad_dtype;
    u->frame = u->grad_buffer = u->landing = u->publish_slot = u->last_frame = -1;
    if ((rc = hl_sys_strdup(d->name, &u->name)) < 0 || (rc = copy_tensors(u, d)) < 0 ||
        (rc = hl_sys_alloc_array(n, sizeof *u->places, (void **)&u->places)) < 0 ||
        (rc = hl_sys_alloc_array(n, sizeof *u->runs, (void **)&u->runs)) < 0 ||
        (rc = hl_sys_alloc_array(n, sizeof(uint64_t), (void **)&u->param_offset)) < 0 ||
        (rc = hl_sys_alloc_array(n, sizeof(uint64_t), (void **)&u->grad_offset)) < 0 ||
        (rc = hl_layout_make(u->tensors, n, e->nranks, u->places, &u->layout)) < 0) {
        free_unit(u);
        return rc;
    }
    make_ranges(u);
    make_runs(u);
    make_offsets(u);
    *out = u;
    return 0;
}

static int grow_units(struct haul_engine *e)
{
    struct haul_unit **more;
    uint32_t cap = e->units_cap ? e->units_cap * 2 : 16;

    if (e->nunits < e->units_cap)
        return 0;
    int rc = hl_sys_alloc_array(cap, sizeof *more, (void **)&more);
    if (rc < 0)
        return rc;
    if (e->nunits)
        memcpy(more, e->units, e->nunits * sizeof *more);
    hl_sys_free(e->units);
    e->units = more;
    e->units_cap = cap;
    return 0;
}

int haul_engine_add_unit(struct haul_engine *e, const struct haul_unit_desc *desc,
                         struct haul_unit **out)
{
    struct haul_unit *u = NULL;
    int rc;

    if ((rc = hl_need("haul_engine_add_unit", "engine", e)) < 0 ||
        (rc = hl_need("haul_engine_add_unit", "desc", desc)) < 0 ||
        (rc = hl_need("haul_engine_add_unit", "out", out)) < 0 || (rc = check_unit(e, desc)) < 0 ||
        (rc = grow_units(e)) < 0 || (rc = make_unit(e, desc, &u)) < 0)
        return rc;
    if (u->layout.elems > MOST_ELEMS - e->elems) {
        free_unit(u);
        return hl_fail(-EOVERFLOW,
                       "unit %s: with it, the engine's units have more than 2^58 elements",
                       desc->name);
    }
    e->planned = false;
    u->index = e->nunits;
    e->units[e->nunits++] = u;
    e->elems += u->layout.elems;
    for (uint32_t i = 0; i < u->ntensors; i++)
        if (u->tensors[i].dtype != HAUL_FP32)
            e->dtype16 = u->tensors[i].dtype;
    *out = u;
    return 0;
}

int haul_engine_visits(struct haul_engine *e, struct haul_unit *const *visits, uint32_t nvisits)
{
    uint32_t *list;
    int rc;

    if ((rc = hl_need("haul_engine_visits", "engine", e)) < 0 ||
        (rc = hl_need("haul_engine_visits", "visits", visits)) < 0)
        return rc;
    if (e->built)
        return hl_fail(HAUL_E_STATE, "engine: visits can only be declared before build");
    if (nvisits == 0)
        return hl_fail(-EINVAL, "engine: an order needs at least one visit");
    for (uint32_t i = 0; i < nvisits; i++)
        if (!visits[i] || visits[i]->engine != e)
            return hl_fail(-EINVAL, "engine: visit %u is not a unit of this engine", i);
    rc = hl_sys_alloc_array(nvisits, sizeof *list, (void **)&list);
    if (rc < 0)
        return rc;
    for (uint32_t i = 0; i < nvisits; i++)
        list[i] = visits[i]->index;
    hl_sys_free(e->visits);
    e->planned = false;
    e->visits = list;
    e->nvisits = nvisits;
    return 0;
}

int hl_engine_default_visits(struct haul_engine *e)
{
    if (e->visits)
        return 0;
    if (e->nunits == 0)
        return hl_fail(HAUL_E_STATE, "engine: add units before build");
    return haul_engine_visits(e, e->units, e->nunits);
}

int haul_engine_build(struct haul_engine *e)
{
    int rc = hl_need("haul_engine_build", "engine", e);

    if (rc < 0)
        return rc;
    if (e->built)
        return hl_fail(HAUL_E_STATE, "engine: built already");
    if (e->opts.plan_only)
        return hl_fail(HAUL_E_STATE,
                       "engine: opened with plan_only; haul_engine_ledger() has the plan");
    if ((rc = hl_engine_default_visits(e)) < 0 || (rc = hl_engine_plan(e)) < 0 ||
        (rc = hl_engine_reserve(e)) < 0) {
        if (e->comm && rc != HAUL_E_PLAN) /* a plan that does not fit is refused by all */
            hl_comm_abort(e->comm);
        return rc;
    }
    rc = hl_engine_start(e);
    if (rc < 0) {
        hl_engine_stop(e);
        hl_engine_unreserve(e);
        return rc;
    }
    e->built = true;
    hl_report_rebase(e);
    return 0;
}

int haul_engine_comm_counts(struct haul_engine *e, struct haul_comm_count *counts)
{
    int rc;

    if ((rc = hl_need("haul_engine_comm_counts", "engine", e)) < 0 ||
        (rc = hl_need("haul_engine_comm_counts", "counts", counts)) < 0)
        return rc;
    if (e->built && (rc = hl_turns_drain(e)) < 0)
        return rc;
    memcpy(counts, e->comm_counts, sizeof e->comm_counts);
    return 0;
}

int haul_engine_tier_bytes(struct haul_engine *e, enum haul_tier tier, uint64_t *planned,
                           uint64_t *peak)
{
    struct haul_device_mem mem = {.struct_size = sizeof mem};
    struct haul_pool_stats pool = {.struct_size = sizeof pool};
    struct haul_store_info store = {.struct_size = sizeof store};
    int rc;

    if ((rc = hl_need("haul_engine_tier_bytes", "engine", e)) < 0 ||
        (rc = hl_need("haul_engine_tier_bytes", "planned", planned)) < 0 ||
        (rc = hl_need("haul_engine_tier_bytes", "peak", peak)) < 0)
        return rc;
    if ((unsigned)tier >= HAUL_NTIERS)
        return hl_fail(-EINVAL, "engine: there is no tier %d", tier);
    if (!e->built)
        return hl_fail(HAUL_E_STATE, "engine: tiers can be measured after build");
    uint64_t measured = 0;
    if (tier == HAUL_TIER_DEVICE) {
        rc = e->ops->mem_info(e->dev, &mem);
        measured = mem.peak_bytes;
    } else if (tier == HAUL_TIER_HOST) {
        rc = haul_pool_stat(e->pool, &pool);
        measured = pool.taken_bytes;
    } else if (e->store) {
        rc = haul_store_get_info(e->store, &store);
        measured = store.file_bytes;
    }
    if (rc < 0)
        return rc;
    *planned = hl_ledger_bytes(&e->ledger, tier);
    *peak = measured;
    return 0;
}
