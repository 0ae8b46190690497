/* sim_streams.c: lanes as streams of operations, and how fast each goes while others do. */
#include "sim_state.h"

static const enum haul_lane lane_of[SIM_NSTREAMS] = {
    HAUL_LANE_COMPUTE, HAUL_LANE_H2D,     HAUL_LANE_D2H,      HAUL_LANE_COMM,
    HAUL_LANE_OPTIM,   HAUL_LANE_IO_READ, HAUL_LANE_IO_WRITE, HAUL_LANE_OPTIM};

struct sim_mark hl_sim_put(struct sim *s, enum sim_stream_id id, struct sim_op op)
{
    struct sim_stream *st = &s->stream[id];

    st->ring[st->nput++ % st->nring] = op;
    return hl_sim_here(s, id);
}

static const struct sim_op *head(const struct sim_stream *st)
{
    return st->nput > st->ndone ? &st->ring[st->ndone % st->nring] : NULL;
}

static bool may_begin(const struct sim *s, const struct sim_op *op)
{
    for (uint32_t i = 0; i < op->nwaits; i++)
        if (!hl_sim_done(s, op->wait[i]))
            return false;
    return true;
}

/* ---- an operation's end ---- */

static void keep_event(struct sim *s, enum sim_stream_id id, const struct sim_op *op)
{
    struct hl_sim_result *r = &s->result;

    if (!s->keep_events || r->nevents >= s->o->max_events || s->now_s <= s->stream[id].began_s)
        return;
    s->o->events[r->nevents++] =
        (struct hl_sim_event){lane_of[id], op->unit, s->stream[id].began_s - s->step_began_s,
                              s->now_s - s->step_began_s, op->bytes};
}

static void end(struct sim *s, enum sim_stream_id id)
{
    struct sim_stream *st = &s->stream[id];
    const struct sim_op op = *head(st);

    keep_event(s, id, &op);
    st->running = false;
    st->ended_s = s->now_s;
    st->bytes += (double)op.bytes;
    st->ndone++;
    if (id == SIM_READ || id == SIM_WRITE)
        hl_sim_transfer_done(s, &op, id == SIM_WRITE);
}

bool hl_sim_start(struct sim *s)
{
    bool any = false;

    for (enum sim_stream_id id = 0; id < SIM_NSTREAMS; id++) {
        struct sim_stream *st = &s->stream[id];
        const struct sim_op *op;

        while (!st->running && (op = head(st)) && may_begin(s, op)) {
            any = st->running = true;
            st->head_s = op->head_s + (st->ended_s < s->now_s || s->now_s <= 0 ? op->idle_s : 0);
            st->work = op->work;
            st->began_s = s->now_s;
            if (st->head_s <= 0 && op->work <= 0)
                end(s, id);
        }
    }
    return any;
}

/* ---- rates ---- */

static bool works(const struct sim *s, enum sim_stream_id id)
{
    return s->stream[id].running && s->stream[id].head_s <= 0;
}

/* A node's drives: each direction alone, or both. */
static void drive_rates(const struct sim *s, double rate[SIM_NSTREAMS])
{
    const struct hl_sim_rates *r = &s->o->rates;
    const bool both = works(s, SIM_READ) && works(s, SIM_WRITE);
    const double half = r->drive_mixed_bytes_per_s / 2;

    rate[SIM_READ] = r->drive_read_bytes_per_s;
    rate[SIM_WRITE] = r->drive_write_bytes_per_s;
    if (both && half < rate[SIM_READ])
        rate[SIM_READ] = half;
    if (both && half < rate[SIM_WRITE])
        rate[SIM_WRITE] = half;
    rate[SIM_READ] *= s->share;
    rate[SIM_WRITE] *= s->share;
}

/* Host memory for all that uses it at once, max-min fair: who asks for little gets it, who asks for much
 * shares what is left. */
static void share_memory(const struct sim *s, double rate[SIM_NSTREAMS])
{
    static const enum sim_stream_id users[] = {SIM_H2D, SIM_D2H, SIM_READ, SIM_WRITE, SIM_HOST};
    const unsigned n = sizeof users / sizeof *users;
    double have = s->o->rates.mem_bytes_per_s * s->share;
    bool served[sizeof users / sizeof *users];
    unsigned left = 0;

    for (unsigned i = 0; i < n; i++) {
        served[i] = !works(s, users[i]);
        left += !served[i];
    }
    for (bool any = true; any && left;) {
        any = false;
        for (unsigned i = 0; i < n; i++) {
            const double each = i < 2 && s->o->rates.emulated ? 2 : 1, want = rate[users[i]] * each;
            if (served[i] || want > have / left)
                continue;
            have -= want;
            served[i] = any = true;
            left--;
        }
    }
    for (unsigned i = 0; i < n; i++)
        if (!served[i])
            rate[users[i]] = have / left / (i < 2 && s->o->rates.emulated ? 2 : 1);
}

static void rates(const struct sim *s, double rate[SIM_NSTREAMS])
{
    const struct hl_sim_rates *r = &s->o->rates;

    rate[SIM_COMPUTE] = 1;
    rate[SIM_H2D] = r->h2d_bytes_per_s;
    rate[SIM_D2H] = r->d2h_bytes_per_s;
    rate[SIM_COMM] = 1;
    rate[SIM_UPDATE] = r->device_mem_bytes_per_s;
    rate[SIM_HOST] = r->optim_bytes_per_s * s->share;
    drive_rates(s, rate);
    share_memory(s, rate);
}

/* ---- time ---- */

static enum haul_lane blame(const struct sim *s)
{
    const struct sim_op *op = head(&s->stream[SIM_COMPUTE]);

    if (op)
        return op->blame;
    if (s->trainer.waits != HAUL_LANE_OPTIM || s->jobs_done == s->jobs_put)
        return s->trainer.waits;
    /* for the optimizer's thread: what does that wait for? */
    return s->jobs[s->jobs_done % s->njobs].update ? s->optim.waits : HAUL_LANE_D2H;
}

static double left_s(const struct sim_stream *st, double rate)
{
    return st->head_s > 0 ? st->head_s : st->work / rate;
}

static double next_end(const struct sim *s, const double rate[SIM_NSTREAMS])
{
    double least = -1;

    for (enum sim_stream_id id = 0; id < SIM_NSTREAMS; id++) {
        const struct sim_stream *st = &s->stream[id];
        if (st->running && (least < 0 || left_s(st, rate[id]) < least))
            least = left_s(st, rate[id]);
    }
    return least;
}

/* By dt; what ends, ends exactly. */
static void go_on(struct sim *s, enum sim_stream_id id, double rate, double dt)
{
    struct sim_stream *st = &s->stream[id];
    const bool due = left_s(st, rate) <= dt * (1 + 1e-12);

    st->busy_s += dt;
    if (st->head_s > 0) {
        st->head_s = due ? 0 : st->head_s - dt;
        if (due && st->work <= 0)
            end(s, id);
    } else if (due) {
        end(s, id);
    } else {
        st->work -= rate * dt;
    }
}

bool hl_sim_advance(struct sim *s)
{
    double rate[SIM_NSTREAMS], dt;

    rates(s, rate);
    dt = next_end(s, rate);
    if (dt < 0)
        return false;
    if (!s->stream[SIM_COMPUTE].running)
        s->exposed_s[blame(s)] += dt;
    s->now_s += dt;
    for (enum sim_stream_id id = 0; id < SIM_NSTREAMS; id++)
        if (s->stream[id].running)
            go_on(s, id, rate[id], dt);
    return true;
}
