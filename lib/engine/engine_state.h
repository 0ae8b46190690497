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
#include "haul/pool.h"
#include "layout.h"
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

/* How long the compute lane stood still at one acquire or grad. */
struct hl_sample {
    bool ended;
    enum haul_lane lane;      /* of the wait inside the stream */
    enum haul_lane host_lane; /* of the wait on the host */
    uint64_t enter_ns, leave_ns;
    struct hl_event *before, *after;
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

    uint64_t nsteps;
    uint64_t step_returned_ns;
    struct hl_sample *samples;
    uint32_t nsamples, samples_cap;
    uint64_t acquired_elems, order_misses;
    uint64_t exposed_ns[HAUL_NLANES];
    _Atomic uint64_t optim_busy_ns, optim_bytes;
    struct haul_lane_report lane_base[HAUL_NLANES]; /* counters when the last step() returned */
};

#define HL_BOUNCE_BYTES (UINT64_C(1) << 20)

/* ---- plan_units.c: from units and options to a ledger ---- */
int hl_engine_plan(struct haul_engine *e);
uint64_t hl_ledger_bytes(const struct hl_ledger *ledger, enum haul_tier tier);
bool hl_engine_params_on_host(const struct haul_engine *e);
bool hl_engine_records_on_device(const struct haul_engine *e);
/* dtype in which a trained span's gradient travels, and in which it rests */
enum haul_dtype hl_travel_dtype(const struct haul_engine *e, unsigned span);
enum haul_dtype hl_rest_dtype(const struct haul_engine *e, unsigned span);
enum haul_dtype hl_span_dtype(const struct haul_engine *e, unsigned span);
/* offset of a span in a gathered unit, a gradient buffer, a travelling gradient */
uint64_t hl_param_span_offset(const struct haul_unit *u, unsigned span);
uint64_t hl_grad_span_offset(const struct haul_unit *u, unsigned span);
uint64_t hl_travel_span_offset(const struct haul_unit *u, unsigned span);
uint64_t hl_norm_blocks(const struct haul_unit *u, unsigned span);

/* ---- reserve.c ---- */
int hl_engine_reserve(struct haul_engine *e);
void hl_engine_unreserve(struct haul_engine *e);

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

/* ---- pump.c: what the pump does; 1 when it did something, 0, or an error ---- */
int hl_pump_publish(struct haul_engine *e);
int hl_pump_prefetch(struct haul_engine *e);

/* ---- unit_calls.c ---- */
/* Queue the block sums of a gradient at rest on the device, and their way to the host. */
int hl_unit_queue_norm(struct haul_unit *u);

/* ---- step_report.c ---- */
/* Around a wait of the compute lane, on the host or inside the stream. NULL when all samples are in use:
 * that wait goes unmeasured. */
struct hl_sample *hl_sample_begin(struct haul_engine *e, void *stream, enum haul_lane host_lane);
int hl_sample_end(struct haul_engine *e, struct hl_sample *s, enum haul_lane lane, void *stream);
/* Turn the samples of a step whose compute has finished into exposed time. */
int hl_samples_settle(struct haul_engine *e);
void hl_report_fill(struct haul_engine *e, struct haul_report *out);
/* Start counting for the next report. */
void hl_report_rebase(struct haul_engine *e);

#endif
