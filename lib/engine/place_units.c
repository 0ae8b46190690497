/*
 * place_units.c: which unit's state rests in which tier, from three budgets, before anything is reserved.
 *
 * Device room that is left over (when a budget was given) takes whole units back. What the host has no
 * room for goes to nvme: records first, since a record moves twice its size in a step and a parameter
 * shard three times its own. Gradients, slots and the copy of hi stay: they are the floor of a budget.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine_state.h"
#include "haul/size.h"
#include "hostmem.h"
#include "sys.h"
#include "sys_file.h"

static const char *const tier_name[HAUL_NTIERS] = {"device", "host", "nvme"};

struct budgets {
    uint64_t bytes[HAUL_NTIERS];
    char host_note[160]; /* why the host budget is what it is; "" when the caller set it */
};

/* Arrays over the units in update order, for one planning. */
struct sizes {
    uint64_t *bytes;
    uint8_t *chosen;
};

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static bool is_set(uint64_t budget)
{
    return budget != HAUL_AUTO && budget != HAUL_UNLIMITED;
}

/* Planned as given, not held against this machine. */
static bool takes_given(const struct haul_engine *e, uint64_t budget)
{
    return e->opts.plan_only && is_set(budget);
}

static bool has_nvme(const struct haul_engine *e)
{
    return e->opts.nnvme_dirs || takes_given(e, e->opts.nvme_mem_bytes);
}

static int read_device_budget(const struct haul_engine *e, uint64_t *out)
{
    struct haul_device_mem mem = {.struct_size = sizeof mem};
    int rc = e->ops->mem_info(e->dev, &mem);

    if (rc < 0)
        return rc;
    *out = is_set(e->opts.device_mem_bytes) ? least(e->opts.device_mem_bytes, mem.total_bytes)
                                            : mem.total_bytes;
    return 0;
}

/* An emulated device takes its memory from the host, so the host must have room for both. */
static int read_host_budget(const struct haul_engine *e, struct budgets *b)
{
    uint32_t nlocal = e->comm ? e->comm->nlocal : 1; /* ranks of a node share what is free */
    uint64_t emulated = e->dev->in_host_memory ? hl_ledger_bytes(&e->ledger, HAUL_TIER_DEVICE) : 0;
    struct hl_hostmem mem;
    char size[32];
    int rc = hl_hostmem_read(NULL, NULL, &mem);

    if (rc < 0)
        return rc;
    uint64_t avail = mem.avail_bytes / nlocal;
    uint64_t room = avail > emulated ? avail - emulated : 0;
    b->bytes[HAUL_TIER_HOST] =
        is_set(e->opts.host_mem_bytes) ? least(e->opts.host_mem_bytes, room) : room;
    if (takes_given(e, e->opts.host_mem_bytes))
        b->bytes[HAUL_TIER_HOST] = e->opts.host_mem_bytes;
    b->host_note[0] = '\0';
    if (b->bytes[HAUL_TIER_HOST] == room)
        snprintf(b->host_note, sizeof b->host_note, " (host memory: %s available by %s%s)",
                 haul_format_size(mem.avail_bytes, size, sizeof size), mem.bound_by,
                 emulated ? ", less the emulated device's memory" : "");
    return 0;
}

static int read_nvme_budget(const struct haul_engine *e, uint64_t *out)
{
    uint64_t free_bytes = 0;

    for (uint32_t i = 0; i < e->opts.nnvme_dirs; i++) {
        struct hl_fs fs;
        int fd = hl_sys_open(AT_FDCWD, e->opts.nvme_dirs[i], O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
        int rc = fd < 0 ? fd : hl_sys_statfs(fd, &fs);
        if (fd >= 0)
            hl_sys_close(fd);
        if (rc < 0)
            return hl_fail(rc, "nvme directory %s: %s; create it, or name another",
                           e->opts.nvme_dirs[i], haul_strerror(rc));
        free_bytes += fs.free_bytes / (e->comm ? e->comm->nlocal : 1);
        if (e->durable && !e->opts.plan_only) {
            uint64_t held;
            if ((rc = hl_durable_held_bytes(e, i, &held)) < 0)
                return rc;
            free_bytes += held;
        }
    }
    *out = is_set(e->opts.nvme_mem_bytes) ? least(e->opts.nvme_mem_bytes, free_bytes) : free_bytes;
    if (takes_given(e, e->opts.nvme_mem_bytes))
        *out = e->opts.nvme_mem_bytes;
    return 0;
}

static struct haul_unit *unit_at(const struct haul_engine *e, uint32_t i)
{
    return e->units[e->update_order[i]];
}

/* ---- device ---- */

/* What a unit adds to the device when all its state rests there. */
static uint64_t device_cost(const struct haul_unit *u)
{
    const struct haul_engine *e = u->engine;
    uint64_t cost = u->offload == HAUL_OFFLOAD_ALL ? hl_param_rest_bytes(u) : 0;

    for (unsigned s = 0; s < HL_NTRAIN; s++) {
        uint64_t n = u->own[s].elems, master = s == HL_TRAIN32 ? 0 : hl_unit_split(u, s) ? 2 : 4;
        cost +=
            n * (master + 8) + hl_grad_rest_elems(u, s) * hl_plan_dtype_bytes(hl_rest_dtype(e, s));
        cost += hl_norm_blocks(u, s) * sizeof(float);
    }
    return cost;
}

static int place_on_device(struct haul_engine *e, uint64_t budget, struct sizes *s)
{
    uint64_t used = hl_ledger_bytes(&e->ledger, HAUL_TIER_DEVICE);

    if (e->opts.offload == HAUL_OFFLOAD_NONE || !is_set(e->opts.device_mem_bytes) || used >= budget)
        return 0;
    for (uint32_t i = 0; i < e->nunits; i++)
        s->bytes[i] = device_cost(unit_at(e, i));
    (void)hl_place_evenly(s->bytes, e->nunits, budget - used, s->chosen);
    for (uint32_t i = 0; i < e->nunits; i++)
        if (s->chosen[i])
            unit_at(e, i)->offload = HAUL_OFFLOAD_NONE;
    return hl_engine_make_ledger(e);
}

/* ---- nvme ---- */

static void page_all(struct haul_engine *e, bool params)
{
    for (uint32_t i = 0; i < e->nunits; i++) {
        struct haul_unit *u = unit_at(e, i);
        u->record_paged = !hl_unit_records_on_device(u) && hl_record_bytes(u) > 0;
        u->param_paged = params && hl_unit_params_on_host(u) && hl_param_rest_bytes(u) > 0;
    }
}

/* Give records (or parameter shards) the host room that is left, spread evenly. */
static void take_back(struct haul_engine *e, uint64_t room, bool params, struct sizes *s)
{
    for (uint32_t i = 0; i < e->nunits; i++) {
        const struct haul_unit *u = unit_at(e, i);
        bool paged = params ? u->param_paged : u->record_paged;
        s->bytes[i] = !paged ? 0 : params ? hl_param_rest_bytes(u) : hl_record_bytes(u);
    }
    (void)hl_place_evenly(s->bytes, e->nunits, room, s->chosen);
    for (uint32_t i = 0; i < e->nunits; i++) {
        struct haul_unit *u = unit_at(e, i);
        if (s->chosen[i] && params)
            u->param_paged = false;
        else if (s->chosen[i])
            u->record_paged = false;
    }
}

static int place_on_nvme(struct haul_engine *e, uint64_t host_budget, struct sizes *s)
{
    /* regions are whole pages: one each for records and parameters may be added by a resident */
    const uint64_t slack = 2 * 4096;
    bool params = false;
    int rc;

    page_all(e, false);
    rc = hl_engine_make_ledger(e);
    if (rc == 0 && hl_ledger_bytes(&e->ledger, HAUL_TIER_HOST) > host_budget &&
        e->opts.offload == HAUL_OFFLOAD_ALL) {
        params = true;
        page_all(e, true);
        rc = hl_engine_make_ledger(e);
    }
    uint64_t used = hl_ledger_bytes(&e->ledger, HAUL_TIER_HOST) + slack;
    if (rc < 0 || used > host_budget)
        return rc;
    take_back(e, host_budget - used, params, s);
    return hl_engine_make_ledger(e);
}

/* ---- the verdict ---- */

static int refuse(const struct haul_engine *e, const struct budgets *b)
{
    char text[HL_ERROR_TEXT_BYTES - 512];
    size_t at = 0;

    for (uint32_t i = 0; i < e->ledger.nlines && at < sizeof text; i++) {
        const struct haul_ledger_line *l = &e->ledger.line[i];
        at += (size_t)snprintf(text + at, sizeof text - at, "  %-6s %-18s %20" PRIu64 " B\n",
                               tier_name[l->tier], l->purpose, l->bytes);
    }
    for (enum haul_tier t = 0; t < HAUL_NTIERS && at < sizeof text; t++) {
        uint64_t need = hl_ledger_bytes(&e->ledger, t);
        if (need > b->bytes[t])
            at += (size_t)snprintf(text + at, sizeof text - at,
                                   "  %s needs %" PRIu64 " B, has %" PRIu64 " B: short by %" PRIu64
                                   " B\n",
                                   tier_name[t], need, b->bytes[t], need - b->bytes[t]);
    }
    return hl_fail(
        HAUL_E_PLAN,
        "the plan does not fit%s%s; nothing was reserved. Raise the budget, offload more%s, or "
        "make "
        "the model smaller:\n%s",
        e->comm ? " (bytes of each rank; of the ranks' budgets the least counts)" : "",
        hl_ledger_bytes(&e->ledger, HAUL_TIER_HOST) > b->bytes[HAUL_TIER_HOST] ? b->host_note : "",
        e->opts.nnvme_dirs ? "" : ", name an nvme directory", text);
}

/* All ranks place alike: by the least that one of them has. */
static int take_least(struct haul_engine *e, uint64_t *bytes)
{
    uint64_t most = ~*bytes;
    int rc;

    if (!e->comm)
        return 0;
    rc = hl_comm_all_reduce(e->comm, e->comm_counts, HAUL_COMM_MAX_U64, &most, 1);
    *bytes = ~most;
    return rc;
}

static int place(struct haul_engine *e, struct sizes *s)
{
    struct budgets b;
    int rc;

    if ((rc = hl_engine_make_ledger(e)) < 0 ||
        (rc = read_device_budget(e, &b.bytes[HAUL_TIER_DEVICE])) < 0 ||
        (rc = take_least(e, &b.bytes[HAUL_TIER_DEVICE])) < 0 ||
        (rc = place_on_device(e, b.bytes[HAUL_TIER_DEVICE], s)) < 0 ||
        (rc = read_host_budget(e, &b)) < 0 || (rc = take_least(e, &b.bytes[HAUL_TIER_HOST])) < 0)
        return rc;
    if (has_nvme(e) && hl_ledger_bytes(&e->ledger, HAUL_TIER_HOST) > b.bytes[HAUL_TIER_HOST] &&
        (rc = place_on_nvme(e, b.bytes[HAUL_TIER_HOST], s)) < 0)
        return rc;
    if ((rc = read_nvme_budget(e, &b.bytes[HAUL_TIER_NVME])) < 0 ||
        (rc = take_least(e, &b.bytes[HAUL_TIER_NVME])) < 0)
        return rc;
    if (hl_ledger_bytes(&e->ledger, HAUL_TIER_NVME) && !has_nvme(e))
        b.bytes[HAUL_TIER_NVME] =
            0; /* a stash past its share of host memory, and nowhere to put it */
    for (enum haul_tier t = 0; t < HAUL_NTIERS; t++)
        if (hl_ledger_bytes(&e->ledger, t) > b.bytes[t])
            return refuse(e, &b);
    return 0;
}

static int order_updates(struct haul_engine *e)
{
    hl_sys_free(e->update_order);
    e->update_order = NULL;
    int rc = hl_sys_alloc_array(e->nunits, sizeof *e->update_order, (void **)&e->update_order);
    if (rc < 0)
        return rc;
    e->order = (struct hl_order){e->visits, e->nvisits, e->opts.passes, 0};
    hl_order_updates(&e->order, e->nunits, e->update_order);
    return 0;
}

int hl_engine_plan(struct haul_engine *e)
{
    struct sizes s = {NULL, NULL};
    int rc = order_updates(e);

    for (uint32_t i = 0; i < e->nunits; i++) {
        e->units[i]->offload = e->opts.offload;
        e->units[i]->record_paged = e->units[i]->param_paged = false;
    }
    if (rc == 0)
        rc = hl_sys_alloc_array(e->nunits, sizeof *s.bytes, (void **)&s.bytes);
    if (rc == 0)
        rc = hl_sys_alloc_array(e->nunits, sizeof *s.chosen, (void **)&s.chosen);
    if (rc == 0)
        rc = hl_peers_plan(e);
    if (rc == 0)
        rc = hl_ranks_agree(e);
    if (rc == 0)
        rc = place(e, &s);
    hl_sys_free(s.bytes);
    hl_sys_free(s.chosen);
    e->planned = rc == 0 || rc == HAUL_E_PLAN;
    return rc;
}

int haul_engine_ledger(struct haul_engine *engine, uint32_t i, struct haul_ledger_line *out)
{
    int rc;

    if ((rc = hl_need("haul_engine_ledger", "engine", engine)) < 0 ||
        (rc = hl_need("haul_engine_ledger", "out", out)) < 0)
        return rc;
    if (!engine->planned) {
        rc = hl_engine_default_visits(engine);
        if (rc == 0)
            rc = hl_engine_plan(engine);
        if (rc < 0 && rc != HAUL_E_PLAN)
            return rc;
    }
    if (i >= engine->ledger.nlines)
        return hl_fail(-EINVAL, "haul_engine_ledger: line %u of %u", i, engine->ledger.nlines);
    *out = engine->ledger.line[i];
    return 0;
}
