/*
 * sim_state.h: what a simulation is made of. Private to sim*.c.
 *
 * Who acts, as in the engine: the trainer's thread (calls), the pump, the optimizer's thread; and streams,
 * whose operations run one after the other. Actors act in no time, as far as they can, whenever an
 * operation ends; then time goes on to the next end.
 */
#ifndef HL_SIM_STATE_H
#define HL_SIM_STATE_H

#include <stdbool.h>

#include "placement.h"
#include "schedule.h"
#include "sim.h"

enum sim_stream_id {
    SIM_COMPUTE = 0,
    SIM_H2D,
    SIM_D2H,
    SIM_COMM,
    SIM_UPDATE, /* updates on the device */
    SIM_READ,
    SIM_WRITE,
    SIM_HOST, /* what the optimizer's thread works at */
    SIM_NSTREAMS
};

/* All that was put into a stream up to `at` is done. {0, 0}: always true, as an event not recorded. */
struct sim_mark {
    uint32_t stream;
    uint64_t at;
};

#define SIM_WAITS 4

struct sim_op {
    double head_s; /* before the work */
    double
        idle_s; /* likewise, where the stream stood idle: else it begins behind the one before it */
    double work; /* seconds of compute, else bytes */
    uint64_t bytes;
    struct sim_mark wait[SIM_WAITS];
    uint32_t nwaits;
    enum haul_lane blame; /* what a compute lane that waits for it waits for */
    int32_t unit;
    int32_t slot; /* reads and writes: whose */
    enum sim_slot_kind { SIM_RECORD = 0, SIM_PARAM, SIM_STASH } kind;
};

struct sim_stream {
    struct sim_op *ring;
    uint32_t nring;
    uint64_t nput, ndone;
    bool running;
    double head_s, work; /* left of the running one */
    double began_s, ended_s;
    double busy_s, bytes;
};

struct sim_unit {
    uint64_t elems, own, rest,
        travel; /* whole; updated here; kept here; gradient that comes down */
    enum haul_offload offload;
    bool windowed, record_paged, param_paged;
    struct hl_chunking ck;
    uint64_t record_bytes, param_extent_bytes;
    enum { SIM_IDLE = 0, SIM_QUEUED, SIM_RUNNING, SIM_UPDATED } update;
    struct sim_mark released, published, landed;
    int frame, last_frame, publish_slot;
    uint32_t nreduced;
    bool apart, gathering;
    uint64_t nreduces_asked, nreduces_taken;
};

struct sim_frame {
    bool ready, stale;
    struct sim_mark released, loaded, saved;
};

struct sim_record_slot {
    enum {
        SIM_FREE = 0,
        SIM_READING,
        SIM_READY,
        SIM_UPDATING,
        SIM_UPDATED_SLOT,
        SIM_WRITING
    } state;
    uint32_t unit, chunk;
};

struct sim_param_slot {
    bool reading, updating, dirty, writing, copying, refreshed;
    struct sim_mark copied;
};

struct sim_stash_entry {
    enum { SIM_IN_HOST = 0, SIM_ON_NVME, SIM_GOING, SIM_COMING } state;
    int slot;
    uint64_t bytes;
};

struct sim_stash_slot {
    bool used, leaving, writing;
    uint32_t entry;
    struct sim_mark done;
};

struct sim_job {
    bool update;
    uint32_t unit;
    int landing;
    bool first, last;
    uint64_t nreduces;
    struct sim_mark landed;
};

struct sim_turn {
    enum { SIM_FETCH = 0, SIM_GATHER, SIM_REDUCE } kind;
    uint32_t unit;
    int frame, buffer, landing;
    bool gather, last;
};

struct sim_grad_buffer {
    uint64_t reduced_at;
    bool queued; /* its reduce has not been taken */
    struct sim_mark ready, drained;
};

struct sim_chunk {
    uint32_t unit, chunk;
};

#define SIM_GRAD_BUFFERS  8
#define SIM_PUBLISH_SLOTS 2
#define SIM_PARAM_SLOTS   3
#define SIM_STASH_LEAST   3

struct sim {
    const struct hl_sim_opts *o;
    double now_s;
    struct sim_stream stream[SIM_NSTREAMS];
    struct hl_order order;
    uint32_t *visits, *update_order;
    struct sim_unit *unit;
    uint32_t nunits, passes;
    bool comm, in_turn;
    double share; /* of a node, that a rank has */

    uint64_t pos; /* as the engine's: the position after the visit under way */
    int64_t demand, param_demand;
    struct hl_frame *frame, pframe[SIM_PARAM_SLOTS];
    struct sim_frame *wframe;
    uint32_t nframes;
    struct sim_grad_buffer buffer[SIM_GRAD_BUFFERS];
    uint32_t nbuffers;
    uint64_t nreduces;
    bool landing_busy[SIM_GRAD_BUFFERS + 1];
    uint32_t nlandings;
    bool publish_busy[SIM_PUBLISH_SLOTS];
    struct sim_mark publish_copied[SIM_PUBLISH_SLOTS];
    uint32_t npublish, nupdated, nupdates;
    struct sim_mark reduced_copied[2];
    uint64_t nreduced_used;

    struct sim_record_slot *rslot;
    uint32_t nrslots, nparam_slots;
    struct sim_param_slot pslot[SIM_PARAM_SLOTS];
    struct sim_chunk *paged;
    uint32_t npaged, read_at;
    uint64_t block_bytes, record_slot_bytes, param_slot_bytes, flight_bytes;

    struct sim_stash_entry *entry;
    struct sim_stash_slot *sslot;
    uint32_t nentries, nsslots, depth;
    uint64_t stash_entry_bytes, stash_slot_bytes;
    bool shrinking, stash_waiting;
    struct sim_mark last_put;

    struct sim_job *jobs;
    uint32_t njobs;
    uint64_t jobs_put, jobs_done;
    struct sim_turn *turns;
    uint32_t nturns;
    uint64_t turns_put, turns_done;

    /* the optimizer's thread */
    struct {
        int phase;
        uint32_t chunk;
        int slot, pslot, rslot;
        struct sim_mark work;
        enum haul_lane waits; /* what it stands still for; OPTIM: it works, or waits for a copy */
    } optim;

    /* the trainer's thread */
    struct {
        uint64_t at; /* position of the visit under way; len: the end of the step */
        int phase;   /* within it */
        int buffer, landing;
        enum haul_lane waits;
        struct sim_mark agreed;
        uint64_t nsteps;
    } trainer;

    double step_began_s, exposed_s[HAUL_NLANES];
    struct hl_sim_result result;
    bool keep_events;
};

static inline bool hl_sim_done(const struct sim *s, struct sim_mark m)
{
    return s->stream[m.stream].ndone >= m.at;
}

static inline bool hl_sim_on_host(const struct sim_unit *u)
{
    return u->offload == HAUL_OFFLOAD_ALL;
}

/* ---- sim_check.c ---- */
int hl_sim_check(const struct hl_sim_opts *opts);

/* ---- sim_place.c ---- */
/* Tiers of the units, and the sizes and counts that follow: units, orders and stash are made. */
int hl_sim_place(struct sim *s);

/* ---- sim_open.c ---- */
/* Everything from the options; the arrays are the caller's to free with hl_sim_close(). */
int hl_sim_open(const struct hl_sim_opts *opts, struct sim *s);
void hl_sim_close(struct sim *s);

/* ---- sim_streams.c ---- */
/* Put an operation; returns the mark of its end. */
struct sim_mark hl_sim_put(struct sim *s, enum sim_stream_id id, struct sim_op op);
static inline struct sim_mark hl_sim_here(const struct sim *s, enum sim_stream_id id)
{
    return (struct sim_mark){id, s->stream[id].nput};
}
/* Begin what can begin; true when something did, or ended at once. */
bool hl_sim_start(struct sim *s);
/* To the next end of an operation. false: nothing runs. */
bool hl_sim_advance(struct sim *s);

/* ---- sim_trainer.c, sim_pump.c, sim_turns.c, sim_optim.c, sim_stash.c: each true when it did something ---- */
bool hl_sim_trainer(struct sim *s);
bool hl_sim_pump(struct sim *s);
bool hl_sim_optim(struct sim *s);
bool hl_sim_take_turn(struct sim *s);

/* A transfer of a slot has ended. */
void hl_sim_transfer_done(struct sim *s, const struct sim_op *op, bool write);

void hl_sim_put_job(struct sim *s, struct sim_job job);
void hl_sim_put_turn(struct sim *s, struct sim_turn turn);
int hl_sim_find_frame(const struct sim *s, uint32_t unit, bool ready);
int hl_sim_param_loaded(const struct sim *s, uint32_t unit);
/* A slot for the unit's new parameters; -1: wait. */
int hl_sim_param_take(struct sim *s, uint32_t unit, bool load);
/* Whether what it waits for is a write. */
bool hl_sim_param_waits_for_write(struct sim *s, uint32_t unit);
int hl_sim_record_find(const struct sim *s, uint32_t unit, uint32_t chunk);
bool hl_sim_record_waits_for_write(const struct sim *s, int slot);
/* Seconds of a collective that moves so many bytes of a whole array: (work, head). */
struct sim_op hl_sim_collective(const struct sim *s, uint64_t whole_bytes, int32_t unit);
/* -1 while there is no slot; else the entry is on the stash and the copy queued. */
bool hl_sim_stash_put(struct sim *s, uint64_t bytes, int32_t unit);
bool hl_sim_stash_take(struct sim *s, int32_t unit);
bool hl_sim_pump_stash(struct sim *s);
void hl_sim_stash_transfer_done(struct sim *s, const struct sim_op *op, bool write);

#endif
