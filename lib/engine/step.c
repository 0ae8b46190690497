/* step.c: the end of a step: one decision for all units, then updates behind the next forward. */
#include <math.h>
#include <string.h>

#include "clock.h"
#include "engine_state.h"

/* The gradients of a step, over all ranks. */
struct gradients {
    double sumsq;
    int finite;
    int stop; /* somebody asks to end */
};

/* What they amount to. */
struct verdict {
    double norm; /* after grad_scale */
    double clip;
    int skip;
};

static int check_numbers(const struct haul_engine *e, const struct haul_step *s)
{
    if (s->struct_size != 0 && s->struct_size != sizeof *s)
        return hl_fail(HAUL_E_ABI, "step: struct_size %zu; this library's is %zu", s->struct_size,
                       sizeof *s);
    if (!isfinite(s->clip_norm) || s->clip_norm < 0)
        return hl_fail(-EINVAL, "step: clip_norm %g; a positive norm, or 0 for no clipping",
                       s->clip_norm);
    if (!isfinite(s->grad_scale))
        return hl_fail(-EINVAL, "step: grad_scale %g is not finite", s->grad_scale);
    for (uint32_t g = 0; g < e->opts.ngroups; g++) {
        double lr = s->groups ? s->groups[g].lr : s->lr;
        double wd = s->groups ? s->groups[g].weight_decay : s->weight_decay;
        if (!isfinite(lr))
            return hl_fail(-EINVAL, "step: learning rate %g of group %u is not finite", lr, g);
        if (!isfinite(wd) || wd < 0)
            return hl_fail(-EINVAL, "step: weight decay %g of group %u; 0 or positive", wd, g);
    }
    return 0;
}

static int check_units(const struct haul_engine *e)
{
    for (uint32_t i = 0; i < e->nunits; i++) {
        const struct haul_unit *u = e->units[i];
        if (u->held)
            return hl_fail(HAUL_E_STATE, "step: unit %s is still held; release it first", u->name);
        if (u->grad_buffer >= 0)
            return hl_fail(HAUL_E_STATE, "step: the gradient of unit %s was not reduced", u->name);
    }
    return 0;
}

/* Units with fewer reduces than declared have not been summed on arrival. */
static int wait_for_gradients(struct haul_engine *e)
{
    uint64_t enter = hl_clock_ns(), computed = 0;
    int rc;

    for (uint32_t i = 0; i < e->nunits; i++) {
        struct haul_unit *u = e->units[i];
        if (u->nreduced && u->nreduced < e->opts.passes)
            hl_jobs_put(e,
                        (struct hl_job){.kind = HL_JOB_NORM, .unit = u, .landing = -1, .last = 1});
    }
    rc = hl_turns_drain(e);
    if (rc == 0)
        rc = hl_jobs_drain(e);
    if (rc < 0 || !e->last_ready)
        return rc;
    rc = e->ops->event_time_ns(e->dev, e->last_ready, &computed);
    uint64_t idle = computed > enter ? computed : enter, now = hl_clock_ns();
    e->exposed_ns[HAUL_LANE_D2H] += now > idle ? now - idle : 0;
    e->last_ready = NULL;
    return rc;
}

/* Sums in unit order, of units that have a gradient. */
static void sum_units(const struct haul_engine *e, struct gradients *g)
{
    g->sumsq = 0;
    g->finite = 1;
    for (uint32_t i = 0; i < e->nunits; i++)
        if (e->units[i]->nreduced) {
            g->sumsq += e->units[i]->sumsq;
            g->finite &= e->units[i]->finite;
        }
}

/* A unit for which every rank added zeros has had no gradient. */
static int agree_on_units(struct haul_engine *e, const uint64_t *had_grad)
{
    for (uint32_t i = 0; i < e->nunits; i++) {
        struct haul_unit *u = e->units[i];
        if (had_grad[i] && !u->nreduced)
            return hl_fail(HAUL_E_STATE,
                           "step: another rank reduced unit %s, which this one neither reduced nor "
                           "visited; all ranks must acquire the same units",
                           u->name);
        if (!had_grad[i])
            u->nreduced = 0;
    }
    return 0;
}

/* What must be the same on all ranks. */
static uint64_t hash_numbers(const struct haul_engine *e, const struct haul_step *s)
{
    const double own[4] = {s->lr, s->weight_decay, s->clip_norm, s->grad_scale};
    uint64_t h = hl_hash(HL_HASH_START, own, sizeof own);

    return s->groups ? hl_hash(h, s->groups, e->opts.ngroups * sizeof *s->groups) : h;
}

/* refused: this rank's call was wrong, by its error code. */
static int check_agreement(const struct haul_engine *e, int refused)
{
    const uint64_t *word = e->agreed;

    if (refused < 0)
        return refused;
    if (word[HL_AGREED_REFUSED])
        return hl_fail(HAUL_E_STATE,
                       "step: another rank's call was refused, its error says why; no rank "
                       "has taken this step");
    if (word[HL_AGREED_TURNS] != ~word[HL_AGREED_TURNS_NOT])
        return hl_fail(
            HAUL_E_STATE,
            "step: the ranks have acquired units, or reduced gradients, in different orders; "
            "what they hold is mixed up: all ranks must go through the units alike");
    if (word[HL_AGREED_NUMBERS] != ~word[HL_AGREED_NUMBERS_NOT])
        return hl_fail(HAUL_E_STATE,
                       "step: the ranks gave different learning rates, weight decays, clip norms "
                       "or gradient scales; give all the same");
    return 0;
}

/* Words, all-reduced: which units have gradients, whether all are finite, whether to stop or to refuse; then
 * the sum in rank order (R1). No rank acts alone. */
static int agree(struct haul_engine *e, const struct haul_step *s, int refused, struct gradients *g)
{
    uint64_t *word = e->agreed;
    int rc;

    sum_units(e, g);
    if (!e->comm)
        return 0;
    /* the others' updates begin once all have met here: nothing may still read their shards */
    if (e->pulls && (rc = e->ops->stream_sync(e->dev, e->h2d)) < 0)
        return rc;
    word[HL_AGREED_NOT_FINITE] = !g->finite;
    word[HL_AGREED_STOP] = g->stop != 0;
    word[HL_AGREED_REFUSED] = refused < 0;
    word[HL_AGREED_NUMBERS] = refused < 0 ? 0 : hash_numbers(e, s); /* it may be another ABI's */
    word[HL_AGREED_NUMBERS_NOT] = ~word[HL_AGREED_NUMBERS];
    word[HL_AGREED_TURNS] = e->turns_hash;
    word[HL_AGREED_TURNS_NOT] = ~e->turns_hash;
    word[HL_AGREED_SAVING] = !hl_snapshot_written(e);
    for (uint32_t i = 0; i < e->nunits; i++)
        word[HL_AGREED_UNITS + i] = e->units[i]->had_grad;
    if ((rc = hl_comm_all_reduce(e->comm, e->comm_counts, HAUL_COMM_MAX_U64, word,
                                 HL_AGREED_UNITS + e->nunits)) < 0)
        return hl_ranks_failed(e, rc);
    if ((rc = check_agreement(e, refused)) < 0)
        return rc;
    if ((rc = agree_on_units(e, word + HL_AGREED_UNITS)) < 0) {
        hl_engine_fail(e, rc);
        return rc;
    }
    g->stop = word[HL_AGREED_STOP] != 0;
    if (word[HL_AGREED_SAVING] == 0)
        hl_snapshot_all_written(e);
    sum_units(e, g);
    g->finite = word[HL_AGREED_NOT_FINITE] == 0;
    rc = hl_comm_all_reduce(e->comm, e->comm_counts, HAUL_COMM_SUM_F64, &g->sumsq, 1);
    return rc < 0 ? hl_ranks_failed(e, rc) : 0;
}

/* A norm that is not finite though all elements are (their squares
 * overflow) skips the step too: no factor could clip it. */
static struct verdict decide(const struct gradients *g, const struct haul_step *s, double scale)
{
    struct verdict v = {.clip = 1};
    double sum = g->sumsq;
    int finite = g->finite;

    v.norm = finite ? sqrt(sum) * fabs(scale) : INFINITY;
    v.skip = !isfinite(v.norm);
    if (v.skip)
        v.clip = 0;
    else if (s->clip_norm > 0 && v.norm > s->clip_norm)
        v.clip = s->clip_norm / v.norm;
    return v;
}

/* Window frames of updated units hold old parameters from here on. */
static void drop_stale_frames(struct haul_engine *e)
{
    bool meet = e->comm && (e->opts.stage == 1 || e->opts.stage == 2);

    hl_spin_lock(&e->lock);
    for (uint32_t i = 0; meet && i < e->nunits; i++)
        e->units[i]->apart |= e->units[i]->nreduced != 0;
    for (uint32_t i = 0; i < e->nframes; i++) {
        if (e->frame[i].unit < 0 || !e->units[e->frame[i].unit]->nreduced)
            continue;
        if (e->frame[i].pinned) /* being filled: the pump drops it */
            e->wframe[i].stale = 1;
        else
            e->frame[i].unit = -1, e->wframe[i].ready = 0;
    }
    hl_spin_unlock(&e->lock);
}

static void queue_updates(struct haul_engine *e, const struct haul_step *s, double scale)
{
    for (uint32_t g = 0; g < e->opts.ngroups; g++)
        e->group_step[g] =
            s->groups ? s->groups[g] : (struct haul_group_step){s->lr, s->weight_decay};
    uint32_t n = 0;

    e->update_scale = scale;
    for (uint32_t i = 0; i < e->nunits; i++)
        if (e->units[i]->nreduced) {
            e->units[i]->nsteps++;
            e->units[i]->nasked++;
            n++;
            hl_unit_set_update(e->units[i], HL_UPDATE_QUEUED);
        }
    atomic_store(&e->nupdates, n);
    hl_record_slots_begin(e);
    drop_stale_frames(e);
    for (uint32_t i = 0; i < e->nunits; i++) {
        struct haul_unit *u = e->units[e->update_order[i]];
        if (u->nreduced)
            hl_jobs_put(e, (struct hl_job){.kind = HL_JOB_UPDATE, .unit = u});
    }
}

static void begin_next(struct haul_engine *e)
{
    for (uint32_t i = 0; i < e->nunits; i++) {
        e->units[i]->nreduced = 0;
        e->units[i]->had_grad = false;
    }
    e->turns_hash = HL_HASH_START;
    e->wandered = false;
    e->nsteps++;
    hl_spin_lock(&e->lock);
    e->paused = false;
    e->pos = 0;
    e->order.eval = 0;
    hl_spin_unlock(&e->lock);
    hl_gate_wake(&e->gate);
}

static int finish_without_overlap(struct haul_engine *e)
{
    uint64_t begin = hl_clock_ns();
    int rc = haul_engine_sync(e);

    hl_expose_updates(e, begin, hl_clock_ns());
    return rc;
}

static int check_report(const struct haul_report *r)
{
    if (r && r->struct_size != 0 && r->struct_size != sizeof *r)
        return hl_fail(HAUL_E_ABI, "step: report with struct_size %zu; this library's is %zu",
                       r->struct_size, sizeof *r);
    return 0;
}

int haul_engine_step(struct haul_engine *e, const struct haul_step *step,
                     struct haul_report *report)
{
    int rc;

    if ((rc = hl_need("haul_engine_step", "engine", e)) < 0 ||
        (rc = hl_need("haul_engine_step", "step", step)) < 0)
        return rc;
    if (!e->built)
        return hl_fail(HAUL_E_STATE, "step: the engine is not built");
    if ((rc = hl_engine_check(e)) < 0)
        return rc;
    int refused = check_report(report);
    if (refused == 0)
        refused = check_numbers(e, step);
    if (refused == 0)
        refused = check_units(e);
    /* the other ranks are told: they wait for this one */
    if (refused < 0 && !e->comm)
        return refused;
    if (refused == 0 && ((rc = wait_for_gradients(e)) < 0 || (rc = hl_samples_settle(e)) < 0))
        return rc;
    struct gradients g = {.stop = refused == 0 && step->stop != 0};
    if ((rc = agree(e, step, refused, &g)) < 0)
        return rc;
    hl_snapshot_meet(e);
    double scale = (step->grad_scale == 0 ? 1 : step->grad_scale) / e->loss_scale;
    struct verdict v = decide(&g, step, scale);
    if (!v.skip)
        queue_updates(e, step, scale * v.clip);
    hl_loss_scale_step(e, v.skip);
    begin_next(e);
    if (!e->opts.overlap && (rc = finish_without_overlap(e)) < 0)
        return rc;
    if (report) {
        *report = (struct haul_report){.struct_size = sizeof *report,
                                       .step = e->nsteps,
                                       .grad_norm = v.norm,
                                       .clip = v.clip,
                                       .skipped = v.skip,
                                       .stop = g.stop};
        hl_report_fill(e, report);
    }
    hl_report_rebase(e);
    return 0;
}

static bool all_idle(const struct haul_engine *e)
{
    for (uint32_t i = 0; i < e->nunits; i++)
        if (atomic_load(&e->units[i]->update) != HL_UPDATE_IDLE)
            return false;
    return true;
}

int haul_engine_sync(struct haul_engine *e)
{
    int rc = hl_need("haul_engine_sync", "engine", e);

    if (rc < 0)
        return rc;
    if (!e->built)
        return hl_fail(HAUL_E_STATE, "engine: not built; call haul_engine_build() first");
    rc = hl_jobs_drain(e);
    while (rc == 0) {
        uint32_t seen = hl_gate_look(&e->gate);
        if ((rc = hl_engine_check(e)) < 0 || all_idle(e))
            break;
        hl_gate_sleep(&e->gate, seen);
    }
    if (rc == 0)
        rc = e->ops->stream_sync(e->dev, e->h2d);
    return rc < 0 ? rc : e->ops->stream_sync(e->dev, e->update_stream);
}
