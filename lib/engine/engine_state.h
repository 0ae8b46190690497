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

#include "device_ops.h"
#include "fail.h"
#include "haul/engine.h"
#include "haul/pager.h"
#include "haul/pool.h"
#include "layout.h"
#include "placement.h"
#include "schedule.h"
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
    uint64_t first_elem, elems; /* in the shard */
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
    struct hl_run *runs;
    uint32_t nruns;
    uint64_t *param_offset; /* (ntensors,) in a gathered unit */
    uint64_t *grad_offset;  /* (ntensors,) in a gradient buffer; UINT64_MAX when frozen */

    /* Which tiers: the engine's offload, or NONE for units that the device has room for. */
    enum haul_offload offload;
    bool record_paged, param_paged; /* on nvme, moved through slots */
    struct hl_chunking ck;          /* record_paged */
    uint64_t param_extent_bytes;    /* param_paged: the parameter shard in whole blocks */

    /* Where things rest; NULL where they do not. */
    char *rest_params[HL_NSPANS]; /* the parameter shard, host or device by offload */
    char *resident;              /* the whole unit on the device, spans one after the other; NULL */
    char *rest_grads[HL_NTRAIN]; /* held gradient, or FP32 accumulator */
    uint16_t *hi; /* host copy of the upper halves (split, parameters on the device) */
    struct hl_record record[HL_NTRAIN];
    float *partials_host, *partials_device; /* block sums, records on the device only */

    struct hl_event *released;  /* the trainer's last use of the device's shard */
    struct hl_event *published; /* the device's shard is new */
    struct hl_event *landed;    /* the gradient is at rest (passes = 1, or no offload) */
    int publish_slot;           /* UPDATED only: the slot that holds the new parameters; -1: none */

    _Atomic int update; /* enum hl_update */
    uint64_t nsteps;    /* updates so far: the step number of the bias correction. Optim reads it */
    uint32_t held;      /* acquires not yet released */
    int frame;          /* window frame while held; -1 */
    int last_frame;     /* the frame last filled with it; -1: none; under lock */
    int grad_buffer;    /* open gradient buffer; -1 */
    int landing;        /* landing slot of the open gradient; -1 */
    uint32_t nreduced;  /* reduces in this step */
    double sumsq;       /* written by optim, read by step() after the queue has drained */
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
};

struct hl_grad_buffer {
    char *mem;
    int open;                 /* between grad and reduce */
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
    int landing;     /* LAND with accumulators on the host: the slot; else -1 */
    int first, last; /* LAND: first or last reduce of the step */
};

/* Single producer (the trainer's thread), single consumer (optim). */
struct hl_jobs {
    struct hl_job *ring;
    uint32_t nring;
    _Atomic uint64_t put, done; /* counts; a job is done when its effects are visible */
};

/* How long optim has stood still for the drive, by what it waited for. */
struct hl_io_wait {
    uint64_t read_ns, write_ns;
};

/* How long the compute lane stood still at one acquire or grad. */
struct hl_sample {
    bool ended;
    enum haul_lane lane;       /* of the wait inside the stream */
    enum haul_lane host_lane;  /* of the wait on the host */
    struct hl_io_wait io_wait; /* of optim before, then meanwhile */
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
    uint32_t ngrad_buffers, nlandings, nslots, nframes;

    struct haul_pool *pool;
    void *device_arena[16];
    uint32_t ndevice_arenas;
    uint64_t device_base_bytes; /* device bytes in use by others when the engine was built */

    void *h2d, *d2h, *update_stream;
    struct hl_frame *frame; /* (nframes,) */
    struct hl_window_frame *wframe;
    struct hl_grad_buffer *grad_buffer; /* (ngrad_buffers,) */
    char *staging;                      /* device: a unit's gradient in the dtype it travels in */
    struct hl_landing *landing;         /* (nlandings,) */
    struct hl_publish_slot *slot;       /* (nslots,) */
    char *bounce; /* host, HL_BOUNCE_BYTES: reads and writes of device-resident state */

    /* The nvme tier; NULL without paged pieces. */
    char **nvme_dirs; /* (opts.nnvme_dirs,) */
    struct haul_store *store;
    uint64_t block_bytes, record_slot_bytes, param_slot_bytes, store_bytes;
    uint32_t nrecord_slots, nparam_slots;
    struct hl_record_slot *rslot; /* (nrecord_slots,) */
    struct hl_frame *pframe;      /* (nparam_slots,) */
    struct hl_param_slot *pslot;  /* (nparam_slots,) */
    struct hl_paged_chunk *paged; /* (npaged,) */
    uint32_t npaged;
    uint32_t read_at;          /* next of paged to read; under lock */
    bool paused;               /* no reads ahead: the trainer reaches into the state; under lock */
    int64_t param_demand;      /* unit whose old parameters optim needs; -1; under lock */
    _Atomic uint32_t nupdates; /* UPDATE jobs not finished */
    _Atomic uint64_t io_read_wait_ns, io_write_wait_ns; /* hl_io_wait so far; optim writes */
    struct {
        struct haul_unit *unit;
        uint32_t chunk;
        bool dirty;
    } at_hand; /* access.c: the chunk in rslot[0] while everything is quiescent */
    struct {
        struct haul_unit *unit;
        bool dirty;
    } params_at_hand; /* likewise in pslot[0] */

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

#define HL_BOUNCE_BYTES (UINT64_C(1) << 20)

/* ---- place_units.c: budgets, and which unit's state rests where ---- */
/* Place and write the ledger. HAUL_E_PLAN when it does not fit: the ledger then says what was missing. */
int hl_engine_plan(struct haul_engine *e);

/* ---- engine.c ---- */
int hl_engine_default_visits(struct haul_engine *e);

/* ---- ledger_lines.c: sizes of everything, from units and their tiers ---- */
int hl_engine_make_ledger(struct haul_engine *e);
uint64_t hl_ledger_bytes(const struct hl_ledger *ledger, enum haul_tier tier);
static inline bool hl_unit_params_on_host(const struct haul_unit *u)
{
    return u->offload == HAUL_OFFLOAD_ALL;
}

static inline bool hl_unit_records_on_device(const struct haul_unit *u)
{
    return u->offload == HAUL_OFFLOAD_NONE;
}

static inline bool hl_unit_split(const struct haul_unit *u, unsigned span)
{
    return span == HL_TRAIN16 && u->engine->opts.master == HAUL_MASTER_SPLIT;
}

/* dtype in which a trained span's gradient travels, and in which it rests */
enum haul_dtype hl_travel_dtype(const struct haul_engine *e, unsigned span);
enum haul_dtype hl_rest_dtype(const struct haul_engine *e, unsigned span);
enum haul_dtype hl_span_dtype(const struct haul_engine *e, unsigned span);
/* offset of a span in a gathered unit, a gradient buffer, a travelling gradient */
uint64_t hl_param_span_offset(const struct haul_unit *u, unsigned span);
uint64_t hl_grad_span_offset(const struct haul_unit *u, unsigned span);
uint64_t hl_travel_span_offset(const struct haul_unit *u, unsigned span);
uint64_t hl_norm_blocks(const struct haul_unit *u, unsigned span);
uint64_t hl_gathered_bytes(const struct haul_unit *u);
uint64_t hl_grad_bytes(const struct haul_unit *u);
uint64_t hl_travel_bytes(const struct haul_unit *u);
/* of this rank's parameter shard, all spans */
uint64_t hl_param_shard_bytes(const struct haul_unit *u);
/* of a record's master, per element: 4, 2 (split), or 0 (the parameter at rest is the master) */
uint64_t hl_record_master_bytes(const struct haul_unit *u, unsigned span);
uint64_t hl_record_bytes(const struct haul_unit *u);
/* of new parameters that must wait in a publish slot for their way to the device's shard: the 16-bit ones
 * unless the copy of hi holds them, then the FP32 ones (from _offset32) unless a resident record does */
uint64_t hl_publish_bytes(const struct haul_unit *u);
uint64_t hl_publish_offset32(const struct haul_unit *u);

/* ---- reserve.c ---- */
int hl_engine_reserve(struct haul_engine *e);
void hl_engine_unreserve(struct haul_engine *e);

/* ---- paging_open.c: the store, the slots, and the list of chunks ---- */
int hl_paging_open(struct haul_engine *e);
void hl_paging_close(struct haul_engine *e);
uint32_t hl_record_extent(const struct haul_unit *u);
uint32_t hl_param_extent(const struct haul_unit *u);

/* ---- engine_threads.c ---- */
int hl_engine_start(struct haul_engine *e);
void hl_engine_stop(struct haul_engine *e);
/* Record the calling thread's last error as the engine's; the first one stays. */
void hl_engine_fail(struct haul_engine *e, int rc);
/* 0, or the engine's error, set as this thread's last error. */
int hl_engine_check(struct haul_engine *e);
void hl_unit_set_update(struct haul_unit *u, enum hl_update to);
/* Trainer's thread: append a job; the ring holds every job a step can have. */
void hl_jobs_put(struct haul_engine *e, struct hl_job job);
/* Trainer's thread: wait until every job is done. */
int hl_jobs_drain(struct haul_engine *e);

/* ---- optim_jobs.c: what the optim thread does ---- */
int hl_job_run(struct haul_engine *e, const struct hl_job *job);

/* ---- pump.c, record_slots.c, param_slots.c: what the pump does; 1 when it did something, 0, or an
 * error. *poll is set when the pump should look again soon without being woken. ---- */
int hl_pump_publish(struct haul_engine *e);
int hl_pump_prefetch(struct haul_engine *e);
int hl_pump_records(struct haul_engine *e);
int hl_pump_params(struct haul_engine *e, bool *poll);
int hl_pump_stash(struct haul_engine *e, bool *poll);

/* ---- record_slots.c ---- */
/* Optim: the slot that holds the chunk, in state UPDATING; NULL when the engine ends meanwhile. */
struct hl_record_slot *hl_record_slot_take(struct haul_unit *u, uint32_t chunk);
/* Optim: the chunk is new. */
void hl_record_slot_updated(struct hl_record_slot *slot);
/* Optim: the last update of a step is done, reading ahead begins anew. */
void hl_record_slots_rewind(struct haul_engine *e);
/* Trainer, in step(): what was read ahead for units without gradient is not needed. */
void hl_record_slots_begin(struct haul_engine *e);
/* Trainer, everything quiescent: forget what was read ahead. */
void hl_record_slots_drop(struct haul_engine *e);

/* ---- param_slots.c ---- */
/* Under lock: the slot that holds the unit's parameters, read and not being updated; -1. */
int hl_param_slot_loaded(const struct haul_engine *e, uint32_t unit);
/* Optim: a slot to write the unit's new parameters to, with the old ones in it when `load`; *out is -1
 * when the engine ends meanwhile. */
int hl_param_slot_take(struct haul_unit *u, bool load, int *out);
void hl_param_slot_updated(struct haul_engine *e, int slot);
/* No read or write is under way. Under lock. */
bool hl_slots_quiet(const struct haul_engine *e);

/* ---- quiesce.c ---- */
/* Stop everything that touches the state: updates done, slots empty, nothing held. */
int hl_engine_quiesce(struct haul_engine *e);
/* Have a chunk of a paged record in rslot[0], or a paged parameter shard in pslot[0]; `write`: it will be
 * changed. */
int hl_chunk_at_hand(struct haul_unit *u, uint32_t chunk, bool write);
int hl_params_at_hand(struct haul_unit *u, bool write);
/* Write back what is at hand, and go on from position pos. */
int hl_engine_resume(struct haul_engine *e, uint64_t pos);

/* ---- unit_calls.c ---- */
/* Queue the block sums of a gradient at rest on the device, and their way to the host. */
int hl_unit_queue_norm(struct haul_unit *u);

/* ---- stash.c ---- */
/* Slots and their size, from the options and e->block_bytes; what does not fit goes to nvme. */
void hl_stash_size(struct haul_engine *e);
uint64_t hl_stash_nvme_bytes(const struct haul_engine *e);
uint32_t hl_stash_extent(const struct haul_engine *e);
int hl_stash_open(struct haul_engine *e);
void hl_stash_close(struct haul_engine *e);

/* ---- trace.c ---- */
int hl_trace_open(struct haul_engine *e);
void hl_trace_close(struct haul_engine *e);
static inline bool hl_trace_on(const struct haul_engine *e)
{
    return e->trace.n != 0;
}
/* Any thread; no lock, no allocation. unit: -1 for none. */
void hl_trace_span(struct haul_engine *e, enum haul_lane lane, int32_t unit, uint64_t begin_ns,
                   uint64_t bytes);
void hl_trace_counter(struct haul_engine *e, enum haul_trace_kind kind, uint64_t value);

/* ---- loss_scale.c ---- */
int hl_loss_scale_open(struct haul_engine *e);
/* After every step: skipped or not. */
void hl_loss_scale_step(struct haul_engine *e, int skipped);

/* ---- step_report.c ---- */
/* Around a wait of the compute lane, on the host or inside the stream. NULL when all samples are in use:
 * that wait goes unmeasured. */
struct hl_sample *hl_sample_begin(struct haul_engine *e, void *stream, enum haul_lane host_lane);
int hl_sample_end(struct haul_engine *e, struct hl_sample *s, enum haul_lane lane, void *stream);
/* Optim: it stood still for a read of the drive, or for a write that must leave a slot first. */
void hl_io_wait_add(struct haul_engine *e, bool write, uint64_t ns);
struct hl_io_wait hl_io_wait_since(const struct haul_engine *e, struct hl_io_wait before);
/* The compute lane stood still for updates; what optim waited for the drive meanwhile is the drive's. */
void hl_expose_updates(struct haul_engine *e, uint64_t ns, struct hl_io_wait meanwhile);
/* Turn the samples of a step whose compute has finished into exposed time. */
int hl_samples_settle(struct haul_engine *e);
void hl_report_fill(struct haul_engine *e, struct haul_report *out);
/* Start counting for the next report. */
void hl_report_rebase(struct haul_engine *e);

#endif
