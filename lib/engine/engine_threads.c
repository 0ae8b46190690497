/* engine_threads.c: the optim thread, the pump, and how they report failure. */
#include <string.h>

#include "engine_state.h"
#include "sys.h"
#include "team.h"

void hl_engine_fail(struct haul_engine *e, int rc)
{
    hl_spin_lock(&e->lock);
    if (atomic_load(&e->failed) == 0) {
        strncpy(e->fail_text, haul_last_error(), sizeof e->fail_text - 1);
        atomic_store(&e->failed, rc);
    }
    hl_spin_unlock(&e->lock);
    if (e->comm)
        hl_comm_abort(e->comm); /* so that no rank waits for this one */
    hl_gate_wake(&e->gate);
}

int hl_engine_check(struct haul_engine *e)
{
    int rc = atomic_load(&e->failed);

    return rc == 0 ? 0 : hl_fail_text(rc, e->fail_text);
}

void hl_unit_set_update(struct haul_unit *u, enum hl_update to)
{
    struct haul_engine *e = u->engine;

    if (to == HL_UPDATE_UPDATED)
        atomic_fetch_add(&e->nupdated, 1);
    if (atomic_exchange(&u->update, (int)to) == HL_UPDATE_UPDATED)
        atomic_fetch_sub(&e->nupdated, 1);
    if (to == HL_UPDATE_IDLE)
        hl_snapshot_updated(u);
    hl_gate_wake(&e->gate);
}

void hl_jobs_put(struct haul_engine *e, struct hl_job job)
{
    uint64_t at = atomic_load_explicit(&e->jobs.put, memory_order_relaxed);

    e->jobs.ring[at % e->jobs.nring] = job;
    atomic_store_explicit(&e->jobs.put, at + 1, memory_order_release);
    hl_trace_counter(e, HAUL_TRACE_QUEUE, at + 1 - atomic_load(&e->jobs.done));
    hl_gate_wake(&e->gate);
}

int hl_jobs_drain(struct haul_engine *e)
{
    uint64_t put = atomic_load_explicit(&e->jobs.put, memory_order_relaxed);

    for (;;) {
        uint32_t seen = hl_gate_look(&e->gate);
        int rc = hl_engine_check(e);
        if (rc < 0 || atomic_load_explicit(&e->jobs.done, memory_order_acquire) == put)
            return rc;
        hl_gate_sleep(&e->gate, seen);
    }
}

/* This thread leads the optimizer's team, which nobody else uses: give each member a core, so that they
 * need not be moved after every pause. */
static void bind_team(struct haul_engine *e)
{
    if (e->opts.nthreads < 2)
        return;
    int rc = hl_team_bind(e->comm ? e->comm->local_rank : 0, e->comm ? e->comm->nlocal : 1,
                          e->opts.nthreads);
    if (rc < 0)
        hl_log(HAUL_LOG_INFO, "the optimizer's team is not bound to cores: %s", haul_strerror(rc));
}

static void *optim_main(void *arg)
{
    struct haul_engine *e = arg;

    bind_team(e);
    for (;;) {
        uint32_t seen = hl_gate_look(&e->gate);
        uint64_t done = atomic_load_explicit(&e->jobs.done, memory_order_relaxed);
        if (atomic_load(&e->stop))
            return NULL;
        if (atomic_load(&e->failed) ||
            done == atomic_load_explicit(&e->jobs.put, memory_order_acquire)) {
            hl_gate_sleep(&e->gate, seen);
            continue;
        }
        int rc = hl_job_run(e, &e->jobs.ring[done % e->jobs.nring]);
        if (rc < 0)
            hl_engine_fail(e, rc);
        atomic_store_explicit(&e->jobs.done, done + 1, memory_order_release);
        hl_trace_counter(e, HAUL_TRACE_QUEUE, atomic_load(&e->jobs.put) - done - 1);
        hl_gate_wake(&e->gate);
    }
}

/* How soon the pump looks again for device work that nobody reports the end of. */
#define POLL_NS 100000

static int pump_once(struct haul_engine *e, bool *poll)
{
    int rc = hl_pump_publish(e);

    if (rc == 0)
        rc = hl_pump_turns(e, poll);
    if (rc == 0)
        rc = hl_pump_prefetch(e);
    if (rc == 0)
        rc = hl_pump_records(e);
    if (rc == 0)
        rc = hl_pump_params(e, poll);
    return rc == 0 ? hl_pump_stash(e, poll) : rc;
}

static void *pump_main(void *arg)
{
    struct haul_engine *e = arg;

    for (;;) {
        uint32_t seen = hl_gate_look(&e->gate);
        bool poll = false;
        int rc = 0;
        if (atomic_load(&e->stop))
            return NULL;
        if (!atomic_load(&e->failed))
            rc = pump_once(e, &poll);
        if (rc < 0)
            hl_engine_fail(e, rc);
        else if (rc == 0 && poll)
            hl_gate_sleep_for(&e->gate, seen, POLL_NS);
        else if (rc == 0)
            hl_gate_sleep(&e->gate, seen);
    }
}

int hl_engine_start(struct haul_engine *e)
{
    int rc = hl_sys_thread("haul-optim", optim_main, e, &e->optim_thread);

    if (rc < 0)
        return rc;
    e->optim_started = true;
    rc = hl_sys_thread("haul-pump", pump_main, e, &e->pump_thread);
    if (rc == 0)
        e->pump_started = true;
    return rc;
}

void hl_engine_stop(struct haul_engine *e)
{
    atomic_store(&e->stop, 1);
    hl_gate_wake(&e->gate);
    if (e->pump_started)
        hl_sys_join(e->pump_thread);
    if (e->optim_started)
        hl_sys_join(e->optim_thread);
    e->pump_started = e->optim_started = false;
}
