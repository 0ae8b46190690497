/*
 * engine_calls.h: what the files of this room offer each other, file by file. Comes with engine_state.h.
 */
#ifndef HL_ENGINE_CALLS_H
#define HL_ENGINE_CALLS_H

#include "engine_state.h"

/* ---- place_units.c: budgets, and which unit's state rests where ---- */
/* Place and write the ledger. HAUL_E_PLAN when it does not fit: the ledger then says what was missing. */
int hl_engine_plan(struct haul_engine *e);

/* ---- rank_terms.c ---- */
/* Several ranks: model and options are the same on all of them, else HAUL_E_PLAN, which names what is not. */
int hl_ranks_agree(struct haul_engine *e);
/* Several ranks, around a call that all of them make, nothing else for one: all make it, with these arguments
 * (a hash), and none refuses it (rc: this one's own verdict); and in the end, it has worked on all. */
int hl_ranks_enter(struct haul_engine *e, const char *call, uint64_t args, int rc);
int hl_ranks_leave(struct haul_engine *e, const char *call, int rc);
/* A collective has failed: the engine's own error, where that is why, else rc, which is the engine's now. */
int hl_ranks_failed(struct haul_engine *e, int rc);
/* FNV-1a, 64 bits; begin with HL_HASH_START. */
#define HL_HASH_START UINT64_C(0xcbf29ce484222325)
uint64_t hl_hash(uint64_t h, const void *data, size_t n);

/* ---- engine.c ---- */
int hl_engine_default_visits(struct haul_engine *e);

/* ---- ledger_lines.c: sizes of everything, from units and their tiers ---- */
int hl_engine_make_ledger(struct haul_engine *e);
uint64_t hl_ledger_bytes(const struct hl_ledger *ledger, enum haul_tier tier);
static inline bool hl_unit_params_on_host(const struct haul_unit *u)
{
    return u->offload == HAUL_OFFLOAD_ALL;
}

/* Comes to the device when it is needed; else it is there as a whole. */
static inline bool hl_unit_windowed(const struct haul_unit *u)
{
    return hl_unit_params_on_host(u) || (u->engine->nranks > 1 && u->engine->opts.stage == 3);
}

/* Fetches are turns that the ranks take together; else the pump fetches as it sees fit. */
static inline bool hl_fetches_in_turn(const struct haul_engine *e)
{
    return e->comm && e->opts.stage > 0;
}

/* Comes from all ranks' memory up this rank's link. */
static inline bool hl_unit_pulls(const struct haul_unit *u)
{
    return u->engine->pulls && hl_unit_params_on_host(u) && !u->param_paged;
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
/* offset of a span in a gathered unit, in a gradient buffer */
uint64_t hl_param_span_offset(const struct haul_unit *u, unsigned span);
uint64_t hl_grad_span_offset(const struct haul_unit *u, unsigned span);
/* offset of a span in the parameters at rest, in the gradient that lands */
uint64_t hl_rest_span_offset(const struct haul_unit *u, unsigned span);
uint64_t hl_land_span_offset(const struct haul_unit *u, unsigned span);
/* of the gradient at rest; more than what this rank owns in stage 1, which keeps it whole by definition */
uint64_t hl_grad_rest_elems(const struct haul_unit *u, unsigned span);
/* this rank's shard of the gradient at rest */
char *hl_shard_grads(const struct haul_unit *u, unsigned span);
/* what this rank owns of the parameters at rest */
char *hl_own_params(const struct haul_unit *u, unsigned span);
uint64_t hl_norm_blocks(const struct haul_unit *u, unsigned span);
uint64_t hl_gathered_bytes(const struct haul_unit *u);
uint64_t hl_grad_bytes(const struct haul_unit *u);
/* of the gradient that lands: what this rank owns */
uint64_t hl_land_bytes(const struct haul_unit *u);
/* of the parameters at rest, all spans */
uint64_t hl_param_rest_bytes(const struct haul_unit *u);
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
/* Register the segments of a pool with the device. */
int hl_engine_pin(struct haul_engine *e, const struct haul_pool *pool);
void hl_engine_unpin(struct haul_engine *e, const struct haul_pool *pool);

/* ---- paging_open.c: the store, the slots, and the list of chunks ---- */
int hl_paging_open(struct haul_engine *e);
void hl_paging_close(struct haul_engine *e);
uint32_t hl_record_extent(const struct haul_unit *u);
uint32_t hl_param_extent(const struct haul_unit *u);

/* ---- durable.c: a store that stays from run to run ---- */
#define HL_DURABLE_PATH_BYTES 512
/* This rank's folder below nvme directory i. */
int hl_durable_folder(const struct haul_engine *e, uint32_t i, char *out, size_t len);
/* What an earlier run has left there, which is this one's. */
int hl_durable_held_bytes(const struct haul_engine *e, uint32_t i, uint64_t *out);
/* o: what a scratch store would have. Opens it at the generation that holds. */
int hl_durable_open(struct haul_engine *e, struct haul_store_opts *o);
/* A unit's record in it: made, or there. */
int hl_durable_extent(struct haul_engine *e, const struct haul_unit *u);

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

/* ---- turns.c: what the ranks do together ---- */
/* Trainer: queue the fetch of a unit, which becomes pinned, and those of the visits that follow. */
int hl_turns_fetch(struct haul_engine *e, struct haul_unit *u);
/* Trainer: queue a reduce; buffer -1: this rank adds zeros. */
void hl_turns_reduce(struct haul_unit *u, int buffer, bool last);
/* Trainer: wait until the pump has taken all of them. */
int hl_turns_drain(struct haul_engine *e);
/* Trainer, no turn waits: count the time of collectives that are done. */
int hl_comm_spans_settle(struct haul_engine *e);
/* In build: seconds from asking for a unit until it is in a frame. Collective. */
int hl_turns_time_fetch(struct haul_engine *e, struct haul_unit *u, double *seconds);
/* Pump: 1 when it did something. */
int hl_pump_turns(struct haul_engine *e, bool *poll);

/* ---- peers.c: parameter shards in memory that the ranks of a node share ---- */
/* Before planning: whether parameters will lie in a shared segment. */
int hl_peers_plan(struct haul_engine *e);
/* Of the versions, in the shared segment. */
uint64_t hl_peers_bytes(const struct haul_engine *e);
/* After the pool is open, and after all is reserved. */
int hl_peers_take(struct haul_engine *e);
int hl_peers_open(struct haul_engine *e);
void hl_peers_close(struct haul_engine *e);
/* All ranks' shards of a unit are as new as the updates asked for. */
bool hl_peers_ready(const struct haul_unit *u);
/* Optim: this rank's shard is new. */
void hl_peers_updated(struct haul_unit *u);

/* ---- quiesce.c ---- */
/* Stop everything that touches the state: updates done, slots empty, nothing held. */
int hl_engine_quiesce(struct haul_engine *e);
/* Have a chunk of a paged record in rslot[0], or a paged parameter shard in pslot[0]; `write`: it will be
 * changed. */
int hl_chunk_at_hand(struct haul_unit *u, uint32_t chunk, bool write);
int hl_params_at_hand(struct haul_unit *u, bool write);
/* Write back what is at hand, and go on from position pos. */
int hl_engine_resume(struct haul_engine *e, uint64_t pos);

/* ---- snapshot_behind.c ---- */
/* Optim, before an update: wait until a snapshot has read what the update will change. */
void hl_snapshot_pass(struct haul_unit *u);
/* Trainer, all ranks: a save whose updates wait until the ranks have met goes on to its end. */
void hl_snapshot_meet(struct haul_engine *e);
/* Trainer: wait until a snapshot has read all. */
int hl_snapshot_settle(struct haul_engine *e);
/* A unit's update is IDLE. */
void hl_snapshot_updated(struct haul_unit *u);
/* The snapshot's thread: have a chunk of a paged record in e->snap.chunk; point at bytes of a paged parameter
 * shard. */
int hl_snapshot_chunk(struct haul_unit *u, uint32_t chunk);
int hl_snapshot_params(struct haul_unit *u, uint64_t at, uint64_t bytes, char **out);
/* In step(): this rank's part of a snapshot is written; all ranks' are. */
bool hl_snapshot_written(const struct haul_engine *e);
void hl_snapshot_all_written(struct haul_engine *e);
/* Close: no snapshot goes on. */
void hl_snapshot_abandon(struct haul_engine *e);

/* ---- record_slots.c, param_slots.c ---- */
/* Under lock: what optim has written of it is on its way to the drive. */
bool hl_record_slot_dirty(const struct haul_engine *e, const struct haul_unit *u, uint32_t chunk);
bool hl_param_slot_dirty(const struct haul_engine *e, const struct haul_unit *u);

/* ---- unit_calls.c ---- */
int hl_check_built(struct haul_engine *e);
/* Begin a sample unless one has begun. */
void hl_begin_sample(struct haul_engine *e, void *stream, enum haul_lane host_lane,
                     struct hl_sample **sample);
/* The stream waits for ev; sampled unless it has happened already and nothing else was waited for. */
int hl_wait_in_stream(struct haul_engine *e, void *stream, struct hl_event *ev, enum haul_lane lane,
                      struct hl_sample *sample);

/* ---- grad_calls.c ---- */
/* Several ranks, a unit's last use in a visit has ended: add zeros where this rank has no gradient. */
int hl_unit_settle_grad(struct haul_unit *u);
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
void hl_io_wait_add(struct haul_engine *e, bool write, uint64_t begin_ns, uint64_t end_ns);
/* The compute lane stood still for updates; what optim waited for the drive meanwhile is the drive's. Optim
 * has done all its jobs. */
void hl_expose_updates(struct haul_engine *e, uint64_t from_ns, uint64_t to_ns);
/* Turn the samples of a step whose compute has finished into exposed time. */
int hl_samples_settle(struct haul_engine *e);
void hl_report_fill(struct haul_engine *e, struct haul_report *out);
/* Start counting for the next report. */
void hl_report_rebase(struct haul_engine *e);

#endif
