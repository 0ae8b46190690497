/*
 * unit_calls.c: acquire, release, grad and reduce, on the trainer's thread.
 *
 * Hot path: nothing here allocates or logs, and nothing waits for queued device work (R5). What may be
 * waited for: the unit's update and the submission of its copy (acquire), a free landing slot (grad).
 */
#include "engine_state.h"

static int check_built(struct haul_engine *e)
{
    if (!e->built)
        return hl_fail(HAUL_E_STATE, "engine: not built; call haul_engine_build() first");
    return hl_engine_check(e);
}

/* ---- waits, and how long compute stood still for them ---- */

static void begin_sample(struct haul_engine *e, void *stream, enum haul_lane host_lane,
                         struct hl_sample **sample)
{
    if (!*sample)
        *sample = hl_sample_begin(e, stream, host_lane);
}

/* The stream waits for ev; sampled unless it has happened already and nothing else was waited for. */
static int wait_in_stream(struct haul_engine *e, void *stream, struct hl_event *ev,
                          enum haul_lane lane, struct hl_sample *sample)
{
    int rc = e->ops->event_query(e->dev, ev);

    if (rc == 0) {
        begin_sample(e, stream, lane, &sample);
        rc = e->ops->stream_wait(e->dev, stream, ev);
    }
    if (rc < 0)
        return rc;
    return sample ? hl_sample_end(e, sample, lane, stream) : 0;
}

/* ---- acquire ---- */

static bool update_pending(const struct haul_unit *u)
{
    return atomic_load_explicit(&u->update, memory_order_acquire) != HL_UPDATE_IDLE;
}

static int wait_for_update(struct haul_unit *u)
{
    struct haul_engine *e = u->engine;

    for (;;) {
        uint32_t seen = hl_gate_look(&e->gate);
        int rc = hl_engine_check(e);
        if (rc < 0 || !update_pending(u))
            return rc;
        hl_gate_sleep(&e->gate, seen);
    }
}

/* Under lock: the frame that holds the unit with its copy submitted; -1. */
static int find_frame(const struct haul_engine *e, uint32_t unit)
{
    for (uint32_t i = 0; i < e->nframes; i++)
        if (e->frame[i].unit == unit && e->wframe[i].ready)
            return (int)i;
    return -1;
}

/* Pin the unit's frame, having it fetched when it is not there. */
static int pin_frame(struct haul_unit *u, void *stream, struct hl_sample **sample)
{
    struct haul_engine *e = u->engine;

    for (;;) {
        uint32_t seen = hl_gate_look(&e->gate);
        int rc = hl_engine_check(e);
        if (rc < 0)
            return rc;
        hl_spin_lock(&e->lock);
        int f = find_frame(e, u->index);
        bool ask = f < 0 && e->demand != u->index;
        if (f >= 0) {
            e->frame[f].pinned = 1;
            e->demand = -1;
        } else {
            e->demand = u->index;
        }
        hl_spin_unlock(&e->lock);
        if (f >= 0)
            return f;
        begin_sample(e, stream, u->param_paged ? HAUL_LANE_IO_READ : HAUL_LANE_H2D, sample);
        if (ask)
            hl_gate_wake(&e->gate);
        else
            hl_gate_sleep(&e->gate, seen);
    }
}

static void follow_order(struct haul_engine *e, const struct haul_unit *u)
{
    int missed;

    hl_spin_lock(&e->lock);
    e->pos = hl_order_follow(&e->order, u->index, e->pos, &missed);
    hl_spin_unlock(&e->lock);
    e->order_misses += (uint64_t)missed;
    e->acquired_elems += u->layout.elems;
}

static int acquire_first(struct haul_unit *u, void *stream)
{
    struct haul_engine *e = u->engine;
    struct hl_sample *sample = NULL;
    struct hl_event *ready = u->published;
    int rc;

    if (e->nheld >= e->opts.max_held)
        return hl_fail(HAUL_E_STATE,
                       "unit %s: %u units are held already; release one, or raise max_held",
                       u->name, e->nheld);
    follow_order(e, u);
    if (update_pending(u)) {
        begin_sample(e, stream, HAUL_LANE_OPTIM, &sample);
        if ((rc = wait_for_update(u)) < 0)
            return rc;
    }
    if (!u->resident) {
        if ((rc = pin_frame(u, stream, &sample)) < 0)
            return rc;
        u->frame = rc;
        ready = e->wframe[rc].loaded;
    }
    if ((rc = wait_in_stream(e, stream, ready, HAUL_LANE_H2D, sample)) < 0)
        return rc;
    e->nheld++;
    return 0;
}

int haul_unit_acquire(struct haul_unit *u, void *stream, struct haul_view *view)
{
    int rc;

    if ((rc = hl_need("haul_unit_acquire", "unit", u)) < 0 ||
        (rc = hl_need("haul_unit_acquire", "view", view)) < 0)
        return rc;
    struct haul_engine *e = u->engine;
    rc = check_built(e);
    if (rc == 0 && u->held == 0)
        rc = acquire_first(u, stream);
    if (rc < 0)
        return rc;
    u->held++;
    view->base = u->frame >= 0 ? e->wframe[u->frame].mem : u->resident;
    view->offset_bytes = u->param_offset;
    view->ntensors = u->ntensors;
    return 0;
}

int haul_unit_release(struct haul_unit *u, void *stream)
{
    int rc;

    if ((rc = hl_need("haul_unit_release", "unit", u)) < 0)
        return rc;
    struct haul_engine *e = u->engine;
    rc = check_built(e);
    if (rc < 0)
        return rc;
    if (u->held == 0)
        return hl_fail(HAUL_E_STATE, "unit %s: released more often than acquired", u->name);
    if (u->held > 1) {
        u->held--;
        return 0;
    }
    struct hl_event *ev = u->frame >= 0 ? e->wframe[u->frame].released : u->released;
    rc = e->ops->event_record(e->dev, ev, stream);
    if (rc < 0)
        return rc;
    if (u->frame >= 0) {
        hl_spin_lock(&e->lock);
        e->frame[u->frame].pinned = 0;
        bool hungry = e->hungry;
        hl_spin_unlock(&e->lock);
        if (hungry)
            hl_gate_wake(&e->gate);
    }
    u->frame = -1;
    u->held = 0;
    e->nheld--;
    return 0;
}

/* ---- grad ---- */

static int check_grad(const struct haul_unit *u)
{
    const struct haul_engine *e = u->engine;

    if (u->held == 0)
        return hl_fail(HAUL_E_STATE, "unit %s: acquire it before asking for its gradient", u->name);
    if (e->order.eval)
        return hl_fail(HAUL_E_STATE, "unit %s: no gradients in an evaluation pass", u->name);
    if (u->grad_buffer >= 0)
        return 0;
    if (u->nreduced >= e->opts.passes)
        return hl_fail(HAUL_E_STATE,
                       "unit %s: reduced %u times in this step already; opts.passes says how often",
                       u->name, u->nreduced);
    if (e->nopen >= e->ngrad_buffers)
        return hl_fail(HAUL_E_STATE,
                       "unit %s: all %u gradient buffers are open; reduce a unit first", u->name,
                       e->ngrad_buffers);
    return 0;
}

/* The closed buffer that was reduced longest ago. */
static int choose_grad_buffer(const struct haul_engine *e)
{
    int best = -1;

    for (uint32_t i = 0; i < e->ngrad_buffers; i++)
        if (!e->grad_buffer[i].open &&
            (best < 0 || e->grad_buffer[i].reduced_at < e->grad_buffer[best].reduced_at))
            best = (int)i;
    return best;
}

static int take_landing(struct haul_engine *e, const struct haul_unit *u, int *out)
{
    *out = -1;
    while (e->nlandings && !hl_unit_records_on_device(u)) {
        uint32_t seen = hl_gate_look(&e->gate);
        int rc = hl_engine_check(e);
        if (rc < 0)
            return rc;
        for (uint32_t i = 0; i < e->nlandings; i++)
            if (!atomic_load(&e->landing[i].busy)) {
                atomic_store(&e->landing[i].busy, 1);
                *out = (int)i;
                return 0;
            }
        hl_gate_sleep(&e->gate, seen);
    }
    return 0;
}

static int open_grad(struct haul_unit *u, void *stream)
{
    struct haul_engine *e = u->engine;
    int b = choose_grad_buffer(e);
    struct hl_grad_buffer *buf = &e->grad_buffer[b];
    struct hl_sample *sample = NULL;
    uint64_t bytes = hl_grad_span_offset(u, HL_TRAIN32) + u->layout.span[HL_TRAIN32].elems * 4;
    int rc;

    if (e->nlandings)
        begin_sample(e, stream, HAUL_LANE_D2H, &sample);
    if ((rc = take_landing(e, u, &u->landing)) < 0 ||
        (rc = wait_in_stream(e, stream, buf->drained, HAUL_LANE_D2H, sample)) < 0)
        return rc;
    if (bytes && (rc = e->ops->fill(e->dev, buf->mem, 0, bytes, stream)) < 0)
        return rc;
    buf->open = 1;
    u->grad_buffer = b;
    e->nopen++;
    return 0;
}

int haul_unit_grad(struct haul_unit *u, void *stream, struct haul_view *view)
{
    int rc;

    if ((rc = hl_need("haul_unit_grad", "unit", u)) < 0 ||
        (rc = hl_need("haul_unit_grad", "view", view)) < 0)
        return rc;
    struct haul_engine *e = u->engine;
    rc = check_built(e);
    if (rc == 0)
        rc = check_grad(u);
    if (rc == 0 && u->grad_buffer < 0)
        rc = open_grad(u, stream);
    if (rc < 0)
        return rc;
    view->base = e->grad_buffer[u->grad_buffer].mem;
    view->offset_bytes = u->grad_offset;
    view->ntensors = u->ntensors;
    return 0;
}

/* ---- reduce ---- */

int hl_unit_queue_norm(struct haul_unit *u)
{
    struct haul_engine *e = u->engine;
    float *partial = u->partials_device;
    uint64_t nblocks = 0;
    int rc = 0;

    for (unsigned s = 0; rc == 0 && s < HL_NTRAIN; s++) {
        uint64_t n = u->layout.span[s].shard_elems;
        if (n == 0)
            continue;
        rc = e->ops->sumsq(e->dev, partial + nblocks, u->rest_grads[s], hl_rest_dtype(e, s), n,
                           e->d2h);
        nblocks += hl_norm_blocks(u, s);
    }
    if (rc == 0 && nblocks)
        rc = e->ops->copy_d2h(e->dev, u->partials_host, partial, nblocks * sizeof(float), e->d2h);
    return rc < 0 ? rc : e->ops->event_record(e->dev, u->landed, e->d2h);
}

/* From the trainer's buffer to where the gradient rests on the device. */
static int rest_on_device(struct haul_unit *u, unsigned s, const char *src,
                          enum haul_dtype src_dtype)
{
    struct haul_engine *e = u->engine;
    enum haul_dtype travel = hl_travel_dtype(e, s);
    uint64_t n = u->layout.span[s].elems;
    int rc = 0;

    if (e->opts.passes == 1 && src_dtype != travel)
        return e->ops->convert(e->dev, u->rest_grads[s], travel, src, src_dtype, n, e->d2h);
    if (e->opts.passes == 1)
        return e->ops->copy_d2d(e->dev, u->rest_grads[s], src, n * hl_plan_dtype_bytes(travel),
                                e->d2h);
    if (src_dtype != travel) {
        rc = e->ops->convert(e->dev, e->staging, travel, src, src_dtype, n, e->d2h);
        src = e->staging;
    }
    return rc < 0 ? rc
                  : e->ops->accumulate(e->dev, (float *)u->rest_grads[s], src, travel, n,
                                       u->nreduced == 0, e->d2h);
}

/* From the trainer's buffer to where the gradient lands in host memory. */
static int land_in_host(struct haul_unit *u, unsigned s, const char *src, enum haul_dtype src_dtype)
{
    struct haul_engine *e = u->engine;
    enum haul_dtype travel = hl_travel_dtype(e, s);
    uint64_t n = u->layout.span[s].elems;
    char *dst = u->landing < 0 ? u->rest_grads[s]
                               : e->landing[u->landing].mem + hl_travel_span_offset(u, s);

    if (src_dtype != travel) {
        int rc = e->ops->convert(e->dev, e->staging, travel, src, src_dtype, n, e->d2h);
        if (rc < 0)
            return rc;
        src = e->staging;
    }
    return e->ops->copy_d2h(e->dev, dst, src, n * hl_plan_dtype_bytes(travel), e->d2h);
}

static int queue_reduce(struct haul_unit *u, struct hl_grad_buffer *buf, bool last)
{
    struct haul_engine *e = u->engine;
    bool on_device = hl_unit_records_on_device(u);
    int rc = e->ops->stream_wait(e->dev, e->d2h, buf->ready);

    for (unsigned s = 0; rc == 0 && s < HL_NTRAIN; s++) {
        enum haul_dtype dtype = s == HL_TRAIN16 ? u->buffer_dtype : HAUL_FP32;
        const char *src = buf->mem + hl_grad_span_offset(u, s);
        if (u->layout.span[s].elems == 0)
            continue;
        rc = on_device ? rest_on_device(u, s, src, dtype) : land_in_host(u, s, src, dtype);
    }
    if (rc == 0)
        rc = e->ops->event_record(e->dev, buf->drained, e->d2h);
    if (rc < 0)
        return rc;
    if (on_device && last)
        return hl_unit_queue_norm(u);
    return e->ops->event_record(e->dev, u->landing < 0 ? u->landed : e->landing[u->landing].landed,
                                e->d2h);
}

int haul_unit_reduce(struct haul_unit *u, void *stream)
{
    int rc;

    if ((rc = hl_need("haul_unit_reduce", "unit", u)) < 0)
        return rc;
    struct haul_engine *e = u->engine;
    rc = check_built(e);
    if (rc < 0)
        return rc;
    if (u->grad_buffer < 0)
        return hl_fail(HAUL_E_STATE, "unit %s: reduce without haul_unit_grad() before it", u->name);
    struct hl_grad_buffer *buf = &e->grad_buffer[u->grad_buffer];
    bool last = u->nreduced + 1 == e->opts.passes;
    if ((rc = e->ops->event_record(e->dev, buf->ready, stream)) < 0 ||
        (rc = queue_reduce(u, buf, last)) < 0)
        return rc;
    hl_jobs_put(e, (struct hl_job){HL_JOB_LAND, u, u->landing, u->nreduced == 0, last});
    buf->open = 0;
    buf->reduced_at = ++e->nreduces;
    e->last_ready = buf->ready;
    e->nopen--;
    u->grad_buffer = u->landing = -1;
    u->nreduced++;
    return 0;
}

/* ---- passes ---- */

int haul_engine_pass(struct haul_engine *e, enum haul_pass pass)
{
    uint32_t npasses = 0;
    int rc;

    if ((rc = hl_need("haul_engine_pass", "engine", e)) < 0 || (rc = check_built(e)) < 0)
        return rc;
    if (pass != HAUL_PASS_TRAIN && pass != HAUL_PASS_EVAL)
        return hl_fail(-EINVAL, "haul_engine_pass: pass %d is neither train nor eval", (int)pass);
    if (e->nheld)
        return hl_fail(HAUL_E_STATE, "engine: a pass begins with nothing held; %u units are",
                       e->nheld);
    for (uint32_t i = 0; i < e->nunits; i++)
        if (e->units[i]->nreduced > npasses)
            npasses = e->units[i]->nreduced;
    hl_spin_lock(&e->lock);
    e->order.eval = pass == HAUL_PASS_EVAL;
    e->pos = e->order.eval ? 0 : 2ull * e->nvisits * npasses;
    hl_spin_unlock(&e->lock);
    hl_gate_wake(&e->gate);
    return 0;
}
