/*
 * engine_state.h: what an engine is made of. Private to lib/engine.
 *
 * Threads. The trainer's thread calls the public functions. Two more belong to the engine:
 *   optim  takes jobs in order: waits for landed gradients and sums them, and updates records
 *   pump   submits every host-to-device copy: prefetch into the window, and published parameters
 * They share state under `lock` (a spin lock, held for a few instructions) and sleep on `gate`, which
 * every change of state that someone may wait for bumps.
 *
 * After build nothing here allocates (R4).
 */
#ifndef HL_ENGINE_STATE_H
#define HL_ENGINE_STATE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "comm.h"
#include "device_ops.h"
#include "fail.h"
#include "haul/engine.h"
#include "haul/pager.h"
#include "haul/pool.h"
#include "layout.h"
#include "placement.h"
#include "schedule.h"
#include "snapshot.h"
#include "state_bytes.h"
#include "wait.h"

/* A unit's pending update. One state machine; hl_unit_set_update() is the only writer.
 *
 *   IDLE      parameters are the newest there are, where acquire looks for them.
 *             Entered at build, and from UPDATED by the pump, or from RUNNING by optim where there is
 *             nothing to publish. Leaves by step(): QUEUED.
 *   QUEUED    step() has put the update into the job queue. Leaves by optim: RUNNING.
 *   RUNNING   optim is at it. Leaves by optim: UPDATED, or IDLE.
 *   UPDATED   the record is new; the device's shard is not yet (offload optimizer). The pump queues the
 *             copy. Leaves by the pump: IDLE.
 *
 * A failed engine leaves the states as they are: nobody looks any more.
 */
enum hl_update { HL_UPDATE_IDLE = 0, HL_UPDATE_QUEUED, HL_UPDATE_RUNNING, HL_UPDATE_UPDATED };

/* What a snapshot behind training has to do with a unit's record and parameters.
 *
 *   NONE    nothing. Entered at build, and from READ by the snapshot's thread, which has read them all.
 *   AFTER   an update was under way when the snapshot began: it belongs to it. Entered by the trainer.
 *           Leaves when the update is IDLE: READ.
 *   READ    a snapshot must read it before its next update: optim waits. Entered by the trainer.
 */
enum hl_snap { HL_SNAP_NONE = 0, HL_SNAP_AFTER, HL_SNAP_READ };

/* The parts of a unit's record, per trained span. Pointers are into the tier the record rests in. */
struct hl_record {
    void *master; /* float, or uint16_t lower halves; NULL: the parameter at rest is the master */
    float *m;
    float *v;
};

/* One run of elements of a span that share a parameter group. */
struct hl_run {
    enum hl_span_kind span;
    uint32_t group;
    uint64_t first_elem, elems; /* in what this rank owns */
};

/* Elements of a span, from `first` of the whole span. */
struct hl_range {
    uint64_t first, elems;
};

struct haul_unit {
    struct haul_engine *engine;
    uint32_t index;
    char *name;
    struct haul_tensor *tensors;
    struct hl_place *places; /* (ntensors,) */
    uint32_t ntensors;
    enum haul_dtype buffer_dtype; /* of the trainer's gradient buffer, 16-bit tensors */
    struct hl_layout layout;
    /* shard: this rank's 1/N. own: what it updates, all in stage 0. rest: the parameters it keeps, all
     * below stage 3. */
    struct hl_range shard[HL_NSPANS], own[HL_NSPANS], rest[HL_NSPANS];
    struct hl_run *runs;
    uint32_t nruns;
    uint64_t *param_offset; /* (ntensors,) in a gathered unit */
    uint64_t *grad_offset;  /* (ntensors,) in a gradient buffer; UINT64_MAX when frozen */

    /* Which tiers: the engine's offload, or NONE for units that the device has room for. */
    enum haul_offload offload;
    bool record_paged, param_paged; /* on nvme, moved through slots */
    struct hl_chunking ck;          /* record_paged */
    uint64_t kept_at; /* of a durable store: where its record begins in the records space */
    uint64_t param_extent_bytes; /* param_paged: the parameter shard in whole blocks */

    /* Where things rest; NULL where they do not. */
    char *rest_params[HL_NSPANS]; /* range rest, host or device by offload */
    char *resident;              /* the whole unit on the device, spans one after the other; NULL */
    char *rest_grads[HL_NTRAIN]; /* range own of the held gradient, or FP32 accumulator */
    uint16_t *hi; /* host copy of the upper halves (split, parameters on the device) */
    struct hl_record record[HL_NTRAIN];
    float *partials_host, *partials_device; /* block sums, records on the device only */

    struct hl_event
        *released; /* the last use of what rests on the device: the trainer's, or a gather's */
    struct hl_event
        *published; /* what rests on the device is new, or what a gather brings to the host */
    struct hl_event *landed; /* the gradient is at rest (passes = 1, or no offload) */
    int publish_slot;        /* UPDATED only: the slot that holds the new parameters; -1: none */

    _Atomic int update; /* enum hl_update */
    _Atomic int snap;   /* enum hl_snap */
    uint64_t nsteps;    /* updates so far: the step number of the bias correction. Optim reads it */
    uint64_t nasked;    /* updates asked for since build, by all ranks alike */
    uint32_t held;      /* acquires not yet released */
    int frame;          /* window frame while held; -1 */
    int last_frame;     /* the frame last filled with it; -1: none; under lock */
    int grad_buffer;    /* open gradient buffer; -1 */
    int landing;        /* landing slot of the open gradient; -1 */
    uint32_t nreduced;  /* reduces in this step */
    bool had_grad;      /* one of them was the trainer's; else this rank added zeros */
    bool apart;     /* ranks' updates have not met yet: the next fetch gathers (stages 1 and 2) */
    bool gathering; /* a gather into what rests on the device is queued; under lock */
    _Atomic uint64_t nreduces_submitted; /* by the pump, since build; several ranks */
    uint64_t nreduces_asked;             /* trainer's */
    uint64_t
        acquired_at; /* position of the visit under way; HL_NEVER out of order; several ranks */
    double sumsq;    /* written by optim, read by step() after the queue has drained */
    int finite;
};

/* A pool slot through which chunks of paged records move. State and owner under lock.
 *
 *   FREE      Entered at build, by a finished write, by a read of what turned out not to be needed.
 *   READING   the pump has submitted the read of (unit, chunk). Leaves by its completion: READY, or FREE
 *             when `drop` was set meanwhile.
 *   READY     the chunk is here, unchanged. Leaves by optim: UPDATING, or by step() or an access to the
 *             state: FREE.
 *   UPDATING  optim is at it. Leaves by optim: UPDATED.
 *   UPDATED   must be written. Leaves by the pump: WRITING.
 *   WRITING   Leaves by the write's completion: FREE.
 */
enum hl_slot_state {
    HL_SLOT_FREE = 0,
    HL_SLOT_READING,
    HL_SLOT_READY,
    HL_SLOT_UPDATING,
    HL_SLOT_UPDATED,
    HL_SLOT_WRITING
};

struct hl_record_slot {
    struct haul_engine *engine;
    char *mem;
    enum hl_slot_state state;
    uint64_t submitted_ns;
    bool drop;
    struct haul_unit *unit;
    uint32_t chunk;
};

/* A pool slot that holds the parameter shard of a unit whose parameters are paged. Under lock.
 * hl_frame (e->pframe) says which unit; it is pinned while any of these is set. */
struct hl_param_slot {
    struct haul_engine *engine;
    char *mem;
    bool reading;  /* the read is submitted; content not there yet */
    bool updating; /* optim writes it */
    bool dirty;    /* must be written to the drive */
    bool writing;  /* the write is submitted; content may be read meanwhile */
    bool copying;  /* a copy to the window was submitted and `copied` may not have happened */
    bool
        refreshed; /* and one back, with what other ranks have updated: dirty once `copied` has happened */
    uint64_t submitted_ns; /* the read or write */
    struct hl_event *copied;
};

/* One chunk of the paged records, in update order. */
struct hl_paged_chunk {
    struct haul_unit *unit;
    uint32_t chunk;
};

/* An activation checkpoint on the stash. Under lock.
 *
 *   HOST     in a slot, its d2h copy queued (slot->done says when it has landed). Entered by put, and from
 *            READING. Leaves by take: gone; or by the pump, when room is short: WRITING.
 *   WRITING  on its way to nvme, still in its slot. Leaves by completion: NVME; or by take: HOST, and gone;
 *            the slot is free when both the write and the copy to the device have left it.
 *   NVME     Leaves by the pump, as the stash shrinks or somebody waits: READING.
 *   READING  Leaves by completion: HOST.
 */
enum hl_stash_state { HL_STASH_HOST = 0, HL_STASH_WRITING, HL_STASH_NVME, HL_STASH_READING };

struct hl_stash_entry {
    enum hl_stash_state state;
    uint64_t bytes;
    int slot; /* HOST, WRITING, READING */
};

struct hl_stash_slot {
    struct haul_engine *engine;
    char *mem;
    bool used;    /* an entry is in it, or comes to it */
    bool writing; /* a write to nvme reads it */
    bool leaving; /* taken: free when `done` has been reached */
    uint32_t entry;
    uint64_t submitted_ns;  /* the read or write */
    struct hl_event *ready; /* the trainer's work before put or take */
    struct hl_event *done;  /* the copy from or to the device */
};

struct hl_stash {
    uint64_t slot_bytes; /* whole blocks when entries may go to nvme */
    uint32_t nslots, nentries, depth;
    bool shrinking;               /* the last call was a take: read back rather than write out */
    bool waiting;                 /* take waits for the newest entry */
    struct hl_stash_entry *entry; /* (nentries,) */
    struct hl_stash_slot *slot;   /* (nslots,) */
    struct hl_event *last_put; /* of the newest put, which the next one makes the stream wait for */
};

/* A window frame (struct hl_frame says which unit it holds). */
struct hl_window_frame {
    char *mem;
    int ready; /* its copy has been submitted */
    int stale; /* the unit was updated while the copy was being submitted: drop it */
    struct hl_event *loaded;
    struct hl_event *released;
    struct hl_event *saved; /* what was gathered has been copied to the host (stages 1 and 2) */
};

struct hl_grad_buffer {
    char *mem;
    int open;                 /* between grad and reduce */
    _Atomic int queued;       /* its reduce waits for the pump, which will record `drained` */
    uint64_t reduced_at;      /* order of reuse: the longest reduced first */
    struct hl_event *ready;   /* the trainer's last use */
    struct hl_event *drained; /* narrowed or copied away */
};

/* A host buffer in which a 16-bit gradient lands before it is added to the accumulator. */
struct hl_landing {
    char *mem;
    _Atomic int busy;
    struct hl_event *landed;
};

/* A host buffer from which published parameters are copied to the device's shard. */
struct hl_publish_slot {
    char *mem;
    _Atomic int
        busy; /* taken by optim; given back when its copy is submitted, then guarded by `copied` */
    struct hl_event *copied;
};

enum hl_job_kind { HL_JOB_LAND, HL_JOB_NORM, HL_JOB_UPDATE };

struct hl_job {
    enum hl_job_kind kind;
    struct haul_unit *unit;
    int landing;       /* LAND with accumulators on the host: the slot; else -1 */
    int first, last;   /* LAND: first or last reduce of the step */
    uint64_t nreduces; /* LAND: of the unit so far, several ranks: submitted before it can land */
};

/* What the ranks do together, in the order of the trainer's calls, which is the same on all of them. The
 * pump takes the oldest as soon as what it needs is there, and no other before it.
 *
 *   FETCH   parameters into a frame: this rank's piece from where it rests, the others' by all-gather
 *           (without one, where `gather` is not set: the whole unit rests here, and is new)
 *   GATHER  the others' pieces into what rests on the device (stages 1 and 2)
 *   REDUCE  a gradient: narrow, reduce-scatter, bring to where it rests
 */
enum hl_turn_kind { HL_TURN_FETCH, HL_TURN_GATHER, HL_TURN_REDUCE };

struct hl_turn {
    enum hl_turn_kind kind;
    struct haul_unit *unit;
    bool gather;
    int frame;           /* FETCH */
    int buffer, landing; /* REDUCE; buffer -1: this rank adds zeros */
    bool first, last;    /* REDUCE: of the step */
};

/* Single producer (the trainer's thread), single consumer (the pump). */
struct hl_turns {
    struct hl_turn *ring;
    uint32_t nring;
    _Atomic uint64_t put, done;
};

/* What a rank of this node shows the others: its parameter shards, and how new they are. */
struct hl_peer {
    struct haul_pool *pool;    /* its segment, mapped; NULL for this rank's own */
    char *params;              /* where this rank's own begin in the own segment */
    _Atomic uint64_t *version; /* (nunits,) updates of each unit's shard that are done */
};

/* A turn's collectives, between two events; `open` until its time has been counted. */
struct hl_comm_span {
    struct hl_event *before, *after;
    bool open;
};
#define HL_COMM_SPANS 64

/* Device memory from which a summed gradient goes to the host, while the next one is being summed. */
struct hl_reduced {
    char *mem;
    struct hl_event *reduced, *copied;
};

/* Single producer (the trainer's thread), single consumer (optim). */
struct hl_jobs {
    struct hl_job *ring;
    uint32_t nring;
    _Atomic uint64_t put, done; /* counts; a job is done when its effects are visible */
};

/* Optim stood still for the drive. */
struct hl_io_wait {
    uint64_t begin_ns, end_ns;
    bool write; /* what it waited for */
};

/* How long the compute lane stood still at one acquire or grad. */
struct hl_sample {
    bool ended;
    enum haul_lane lane;      /* of the wait inside the stream */
    enum haul_lane host_lane; /* of the wait on the host */
    uint64_t enter_ns, leave_ns;
    struct hl_event *before, *after;
};

/* Written by any thread, read by the trainer's. An entry is complete when its `ready` says its turn. */
struct hl_trace {
    struct haul_trace_event *event; /* (n,) */
    _Atomic uint32_t *ready;        /* (n,) 1: written, 0: taken */
    uint32_t n;
    _Atomic uint64_t put;
    _Atomic uint64_t taken;
    _Atomic uint64_t ndropped;
};

struct hl_ledger {
    struct haul_ledger_line line[32];
    uint32_t nlines;
};

struct haul_engine {
    struct haul_engine_opts opts;
    struct haul_device *dev;
    const struct hl_device_ops *ops;
    struct haul_comm *comm; /* NULL: one rank */
    uint32_t nranks, rank;
    struct haul_comm_count
        comm_counts[HAUL_COMM_NKINDS]; /* queued kinds: the pump's; else the trainer's */
    struct hl_turns turns;
    uint64_t turns_hash; /* of the turns put since the last step */
    bool wandered;       /* an acquire since then was out of the declared order */
    char *scratch;       /* device: what the ranks send each other of a gradient */
    struct hl_reduced reduced[2];
    uint32_t nreduced_slots_used; /* the pump's */
    uint64_t *agreed;             /* (HL_AGREED_UNITS + nunits,) */
    struct hl_comm_span
        comm_span[HL_COMM_SPANS]; /* the pump's, the trainer's while no turn waits */
    uint32_t ncomm_spans;
    uint64_t comm_busy_ns;
    bool shares;          /* parameters lie in a segment that all ranks map */
    bool pulls;           /* and are lifted from there; else gathered */
    struct hl_peer *peer; /* (nranks,) when shares */
    bool built;

    struct haul_unit **units;
    uint32_t nunits, units_cap;
    uint64_t elems;          /* Ψ */
    enum haul_dtype dtype16; /* of the 16-bit tensors; NONE when there are none */
    uint32_t *visits;
    uint32_t nvisits;
    uint32_t *update_order; /* (nunits,) */

    struct hl_ledger ledger;
    bool planned;
    struct hl_state_bytes state[HAUL_NTIERS]; /* model state as laid out, padding included */
    uint64_t window_bytes, grad_buffer_bytes, staging_bytes, landing_bytes, slot_bytes;
    uint64_t scratch_bytes, reduced_bytes;
    uint32_t ngrad_buffers, nlandings, nslots, nframes;

    struct haul_pool *pool;
    void *device_arena[16];
    uint32_t ndevice_arenas;
    uint64_t device_base_bytes; /* device bytes in use by others when the engine was built */

    void *h2d, *d2h, *update_stream, *comm_stream;
    struct hl_frame *frame; /* (nframes,) */
    struct hl_window_frame *wframe;
    struct hl_grad_buffer *grad_buffer; /* (ngrad_buffers,) */
    char *staging;                      /* device: a unit's gradient in the dtype it travels in */
    struct hl_landing *landing;         /* (nlandings,) */
    struct hl_publish_slot *slot;       /* (nslots,) */
    uint32_t next_slot;                 /* optim's: of the next update that publishes */
    char *bounce; /* host, HL_BOUNCE_BYTES: reads and writes of device-resident state */

    /* The nvme tier; NULL without paged pieces. */
    char **nvme_dirs; /* (opts.nnvme_dirs,) */
    struct haul_store *store;
    bool durable;        /* records stay in it from run to run; what else is paged does not */
    uint64_t kept_bytes; /* of those records together */
    uint64_t block_bytes, record_slot_bytes, param_slot_bytes, store_bytes;
    uint32_t nrecord_slots, nparam_slots;
    struct hl_record_slot *rslot; /* (nrecord_slots,) */
    struct hl_frame *pframe;      /* (nparam_slots,) */
    struct hl_param_slot *pslot;  /* (nparam_slots,) */
    struct hl_paged_chunk *paged; /* (npaged,) */
    uint32_t npaged;
    uint32_t read_at; /* next of paged to read; under lock */
    bool paused;      /* no reads ahead: the trainer reaches into the state; under lock */
    bool overwrites;  /* and sets all there is, whatever it was: what cannot be read need not be */
    int64_t param_demand;      /* unit whose old parameters optim needs; -1; under lock */
    _Atomic uint32_t nupdates; /* UPDATE jobs not finished */
    /* The newest waits in a ring, and all of them added up: optim writes, the trainer's thread reads when optim
     * has nothing to do. */
    struct hl_io_wait *io_waits; /* (io_waits_cap,) */
    uint32_t io_waits_cap;
    uint64_t nio_waits, io_wait_ns;
    struct {
        struct haul_unit *unit;
        uint32_t chunk;
        bool dirty;
    } at_hand; /* access.c: the chunk in rslot[0] while everything is quiescent */
    struct {
        struct haul_unit *unit;
        bool dirty;
    } params_at_hand;      /* likewise in pslot[0] */
    uint64_t snapshot_pos; /* where a snapshot has stopped everything */

    /* A snapshot behind training; memory and stream of its own while there is one. */
    struct {
        bool armed;       /* trainer's */
        _Atomic int stop; /* its thread is to end */
        struct hl_snapshot_hooks hooks;
        void *stream;
        char *bounce;              /* HL_BOUNCE_BYTES */
        char *chunk;               /* (record_slot_bytes,) of a paged record; NULL: none is */
        struct haul_unit *chunk_u; /* whose; NULL: none's */
        uint32_t chunk_i;
        char *params;               /* (HL_SNAP_PARAM_BYTES,) of a paged parameter extent */
        struct haul_unit *params_u; /* whose; NULL: none's */
        uint64_t params_at, params_bytes;
    } snap;

    struct hl_stash stash;

    struct hl_spin lock;
    struct hl_gate gate;
    struct hl_jobs jobs;
    pthread_t optim_thread, pump_thread;
    bool optim_started, pump_started;
    _Atomic int stop;
    _Atomic int failed; /* first error of an engine thread */
    char fail_text[HL_ERROR_TEXT_BYTES];

    struct hl_order order;
    uint64_t pos;              /* next expected position; under lock */
    int64_t demand;            /* unit the trainer waits for, not in the window; -1; under lock */
    bool hungry;               /* the pump would fetch more if a frame came free; under lock */
    _Atomic uint32_t nupdated; /* units in state UPDATED */

    uint32_t nheld; /* distinct units held */
    uint32_t nopen; /* gradient buffers open */
    uint64_t nreduces;
    struct hl_event *last_ready; /* of the newest reduce: when compute had finished it */

    /* The update under way; constant from step() until the next step() has drained the queue. */
    struct haul_group_step *group_step; /* (ngroups,) */
    double update_scale;
    double loss_scale;
    uint32_t nsteps_finite; /* since the loss scale last changed */

    struct hl_trace trace;
    _Atomic uint64_t nsteps;
    uint64_t step_returned_ns;
    struct hl_sample *samples;
    uint32_t nsamples, samples_cap;
    uint64_t acquired_elems, order_misses;
    uint64_t exposed_ns[HAUL_NLANES];
    _Atomic uint64_t optim_busy_ns, optim_bytes;
    struct haul_lane_report lane_base[HAUL_NLANES]; /* counters when the last step() returned */
};

#define HL_BOUNCE_BYTES     (UINT64_C(1) << 20)
#define HL_SNAP_PARAM_BYTES (UINT64_C(4) << 20) /* several blocks, or part of one */

/* Words that step() agrees on. */
enum {
    HL_AGREED_NOT_FINITE = 0,
    HL_AGREED_STOP,
    HL_AGREED_SAVING,  /* a rank has not yet written all of a snapshot */
    HL_AGREED_REFUSED, /* the call was wrong on a rank */
    HL_AGREED_NUMBERS, /* of the step: a hash, and its complement: equal when the ranks' are */
    HL_AGREED_NUMBERS_NOT,
    HL_AGREED_TURNS, /* likewise what the ranks have done together since the last step */
    HL_AGREED_TURNS_NOT,
    HL_AGREED_UNITS /* and from here one a unit: it has a gradient */
};

#include "engine_calls.h"

#endif
