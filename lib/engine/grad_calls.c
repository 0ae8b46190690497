/*
 * grad_calls.c: grad and reduce, on the trainer's thread.
 *
 * Hot path: nothing here allocates or logs, and nothing waits for queued device work (R5). What may be
 * waited for: a free landing slot, a buffer whose reduce the pump has taken.
 */
#include "engine_state.h"

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

/* Several ranks: the pump has taken the buffer's last reduce, and so will have recorded `drained`. */
static int wait_until_taken(struct haul_engine *e, const struct hl_grad_buffer *buf)
{
    for (;;) {
        uint32_t seen = hl_gate_look(&e->gate);
        int rc = hl_engine_check(e);
        if (rc < 0 || !atomic_load(&buf->queued))
            return rc;
        hl_gate_sleep(&e->gate, seen);
    }
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
        hl_begin_sample(e, stream, HAUL_LANE_D2H, &sample);
    if ((rc = take_landing(e, u, &u->landing)) < 0 || (rc = wait_until_taken(e, buf)) < 0 ||
        (rc = hl_wait_in_stream(e, stream, buf->drained, HAUL_LANE_D2H, sample)) < 0)
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
    rc = hl_check_built(e);
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
        rc = e->ops->sumsq(e->dev, partial + nblocks, hl_shard_grads(u, s), hl_rest_dtype(e, s), n,
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
    char *dst =
        u->landing < 0 ? u->rest_grads[s] : e->landing[u->landing].mem + hl_land_span_offset(u, s);

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

static void count_reduce(struct haul_unit *u, bool last)
{
    hl_jobs_put(u->engine, (struct hl_job){HL_JOB_LAND, u, u->landing, u->nreduced == 0, last,
                                           u->nreduces_asked});
    u->grad_buffer = u->landing = -1;
    u->nreduced++;
}

int haul_unit_reduce(struct haul_unit *u, void *stream)
{
    int rc;

    if ((rc = hl_need("haul_unit_reduce", "unit", u)) < 0)
        return rc;
    struct haul_engine *e = u->engine;
    rc = hl_check_built(e);
    if (rc < 0)
        return rc;
    if (u->grad_buffer < 0)
        return hl_fail(HAUL_E_STATE, "unit %s: reduce without haul_unit_grad() before it", u->name);
    struct hl_grad_buffer *buf = &e->grad_buffer[u->grad_buffer];
    bool last = u->nreduced + 1 == e->opts.passes;
    if ((rc = e->ops->event_record(e->dev, buf->ready, stream)) < 0)
        return rc;
    if (e->comm)
        hl_turns_reduce(u, u->grad_buffer, last);
    else if ((rc = queue_reduce(u, buf, last)) < 0)
        return rc;
    buf->open = 0;
    buf->reduced_at = ++e->nreduces;
    e->last_ready = buf->ready;
    e->nopen--;
    u->had_grad = true;
    count_reduce(u, last);
    return 0;
}

/* Several ranks: a unit that leaves its last visit of a backward pass without a gradient, while another
 * rank may have one. Which visit that is, the declared order says, as long as it has been kept to. */
static bool owes_zeros(const struct haul_unit *u)
{
    const struct haul_engine *e = u->engine;
    uint64_t pass_len = 2ull * e->nvisits, k = u->acquired_at, pass;

    if (!e->comm || e->wandered || e->order.eval || u->grad_buffer >= 0 || k == HL_NEVER ||
        k % pass_len < e->nvisits)
        return false;
    pass = k / pass_len;
    return u->nreduced <= pass && u->nreduced < e->opts.passes &&
           hl_order_next_use(&e->order, u->index, k + 1) >= (pass + 1) * pass_len;
}

int hl_unit_settle_grad(struct haul_unit *u)
{
    struct haul_engine *e = u->engine;
    bool last = u->nreduced + 1 == e->opts.passes;
    int rc;

    if (!owes_zeros(u))
        return 0;
    rc = take_landing(e, u, &u->landing);
    if (rc < 0)
        return rc;
    hl_turns_reduce(u, -1, last);
    count_reduce(u, last);
    return 0;
}
