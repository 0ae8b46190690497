/* sim_streams.c: lanes as streams of operations, and how fast each goes while others do. */
#include <math.h>

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

/* How much of its rate alone each direction keeps while both work: 1 where neither slows the other, a half where
 * they take turns. It is what the mixed rate amounts to: as many bytes each way, and when the faster direction
 * has moved its own, the slower goes on alone. */
static double drive_share(const struct hl_sim_rates *r)
{
    const double slow = fmin(r->drive_read_bytes_per_s, r->drive_write_bytes_per_s);
    const double fast = fmax(r->drive_read_bytes_per_s, r->drive_write_bytes_per_s);
    const double together =
        2 / r->drive_mixed_bytes_per_s - 1 / slow + 1 / fast; /* fast's, a byte */

    return together * fast > 1 ? 1 / (together * fast) : 1;
}

static void drive_rates(const struct sim *s, double rate[SIM_NSTREAMS])
{
    const struct hl_sim_rates *r = &s->o->rates;
    const bool both = works(s, SIM_READ) && works(s, SIM_WRITE);
    const double part = s->share * (both ? drive_share(r) : 1);

    rate[SIM_READ] = r->drive_read_bytes_per_s * part;
    rate[SIM_WRITE] = r->drive_write_bytes_per_s * part;
}

/* What uses host memory at once: how much it wants, and how much of what is short is its due. */
struct mem_user {
    enum sim_stream_id id;
    double per_byte, want, weight;
};

static unsigned list_users(const struct sim *s, const double rate[SIM_NSTREAMS],
                           struct mem_user out[SIM_NSTREAMS])
{
    const struct hl_sim_rates *r = &s->o->rates;
    const struct mem_user all[] = {{SIM_H2D, r->mem_per_link_byte, 0, 1},
                                   {SIM_D2H, r->mem_per_link_byte, 0, 1},
                                   {SIM_READ, r->mem_per_drive_byte, 0, 1},
                                   {SIM_WRITE, r->mem_per_drive_byte, 0, 1},
                                   {SIM_HOST, 1, 0, r->optim_weight > 0 ? r->optim_weight : 1}};
    unsigned n = 0;

    for (unsigned i = 0; i < sizeof all / sizeof *all; i++) {
        if (!works(s, all[i].id))
            continue;
        out[n] = all[i];
        out[n].want = rate[all[i].id] * all[i].per_byte;
        n++;
    }
    return n;
}

/* Max-min fair: who asks for less than its due gets it, who asks for more shares what is left. */
static void share_memory(const struct sim *s, double rate[SIM_NSTREAMS])
{
    struct mem_user user[SIM_NSTREAMS];
    double have = s->o->rates.mem_bytes_per_s * s->share, weights = 0;
    unsigned n = list_users(s, rate, user);

    for (unsigned i = 0; i < n; i++)
        weights += user[i].weight;
    for (bool any = true; any && n;) {
        any = false;
        for (unsigned i = 0; i < n; i++) {
            if (user[i].want * weights > have * user[i].weight)
                continue;
            have -= user[i].want;
            weights -= user[i].weight;
            user[i--] = user[--n];
            any = true;
        }
    }
    for (unsigned i = 0; i < n; i++)
        rate[user[i].id] = have * user[i].weight / weights / user[i].per_byte;
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
