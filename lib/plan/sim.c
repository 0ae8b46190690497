/* sim.c: steps until two take the same time, and the report of the last. */
#include <math.h>
#include <string.h>

#include "fail.h"
#include "sim_state.h"
#include "sys.h"

#define LEAST_STEPS 3
#define MOST_STEPS  8
#define SAME        1e-6

#define SECONDS_A_DAY 86400.0

/* ---- counting ---- */

static void begin_count(struct sim *s)
{
    struct hl_sim_result *r = &s->result;

    s->step_began_s = s->now_s;
    memset(s->exposed_s, 0, sizeof s->exposed_s);
    for (unsigned i = 0; i < SIM_NSTREAMS; i++)
        s->stream[i].busy_s = s->stream[i].bytes = 0;
    r->forward_s = r->backward_s = 0;
    r->most_slots = r->most_stashed = 0;
    r->most_flight_bytes = s->flight_bytes;
    r->nevents = 0;
}

static void add_lane(struct sim *s, enum haul_lane lane, enum sim_stream_id id)
{
    s->result.lane[lane].busy_s += s->stream[id].busy_s;
    s->result.lane[lane].bytes += s->stream[id].bytes;
}

static void end_count(struct sim *s)
{
    struct hl_sim_result *r = &s->result;
    const double ranks = s->o->ranks_per_node;

    r->step_s = s->now_s - s->step_began_s;
    memset(r->lane, 0, sizeof r->lane);
    add_lane(s, HAUL_LANE_COMPUTE, SIM_COMPUTE);
    add_lane(s, HAUL_LANE_H2D, SIM_H2D);
    add_lane(s, HAUL_LANE_D2H, SIM_D2H);
    add_lane(s, HAUL_LANE_COMM, SIM_COMM);
    add_lane(s, HAUL_LANE_IO_READ, SIM_READ);
    add_lane(s, HAUL_LANE_IO_WRITE, SIM_WRITE);
    add_lane(s, HAUL_LANE_OPTIM, SIM_HOST);
    add_lane(s, HAUL_LANE_OPTIM, SIM_UPDATE);
    for (unsigned i = 0; i < HAUL_NLANES; i++)
        r->lane[i].exposed_s = i == HAUL_LANE_COMPUTE ? 0 : s->exposed_s[i];
    r->read_bytes = s->stream[SIM_READ].bytes * ranks;
    r->written_bytes = s->stream[SIM_WRITE].bytes * ranks;
    r->written_bytes_per_day = r->step_s > 0 ? r->written_bytes / r->step_s * SECONDS_A_DAY : 0;
    r->steps = (uint32_t)s->trainer.nsteps;
}

/* ---- running ---- */

/* Everybody does what can be done now. */
static void settle(struct sim *s, uint64_t until)
{
    bool any = true;

    while (any && s->trainer.nsteps < until) {
        any = hl_sim_start(s);
        /* A call is one act: the pump does not see it half done. */
        while (s->trainer.nsteps < until && hl_sim_trainer(s))
            any = true;
        any |= hl_sim_optim(s);
        any |= hl_sim_pump(s);
    }
}

static int run_step(struct sim *s)
{
    const uint64_t until = s->trainer.nsteps + 1;

    begin_count(s);
    for (;;) {
        settle(s, until);
        if (s->trainer.nsteps == until)
            break;
        if (!hl_sim_advance(s))
            return hl_fail(HAUL_E_STATE,
                           "sim: the step stands still at visit %llu of %llu, phase %d; a defect",
                           (unsigned long long)s->trainer.at,
                           (unsigned long long)hl_order_len(&s->order), s->trainer.phase);
    }
    end_count(s);
    return 0;
}

static int run(struct sim *s)
{
    double before = -1;
    int rc = 0;

    for (unsigned i = 0; rc == 0 && i < MOST_STEPS; i++) {
        s->keep_events = s->o->events != NULL;
        rc = run_step(s);
        if (i + 1 >= LEAST_STEPS && fabs(s->result.step_s - before) <= SAME * before)
            break;
        before = s->result.step_s;
    }
    return rc;
}

int hl_sim_run(const struct hl_sim_opts *opts, struct hl_sim_result *out)
{
    struct sim *s;
    void *mem;
    int rc = hl_sys_alloc(sizeof *s, &mem);

    if (rc < 0)
        return rc;
    s = mem;
    rc = hl_sim_open(opts, s);
    if (rc == 0)
        rc = run(s);
    if (rc == 0)
        *out = s->result;
    hl_sim_close(s);
    hl_sys_free(s);
    return rc;
}
