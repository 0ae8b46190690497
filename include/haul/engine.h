/*
 * haul/engine.h: units, tensors and the training step.
 *
 * Open an engine, add units, declare the order they are visited in, build
 * (plan and reserve), fill. Then, every step:
 *
 *     for (u = 0; u < n; u++) {
 *         haul_unit_acquire(unit[u], stream, &w);
 *         forward(u, w, stream);
 *         haul_unit_release(unit[u], stream);
 *     }
 *     for (u = n; u-- > 0;) {
 *         haul_unit_acquire(unit[u], stream, &w);
 *         haul_unit_grad(unit[u], stream, &g);
 *         backward(u, w, g, stream);
 *         haul_unit_reduce(unit[u], stream);
 *         haul_unit_release(unit[u], stream);
 *     }
 *     haul_engine_step(engine, &(struct haul_step){.lr = lr}, &report);
 *
 * One thread at a time drives an engine; its own threads are its own business.
 * After an error from the engine's threads every call but close returns that error.
 * A NULL where an argument is needed is -EINVAL, with a text that names it; nothing has changed then.
 */
#ifndef HAUL_ENGINE_H
#define HAUL_ENGINE_H

#include "haul/comm.h"
#include "haul/device.h"
#include "haul/optim.h"
#include "haul/pager.h"
#include "haul/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

struct haul_engine;
struct haul_unit;

/* Read the budget from the machine: the device's memory, the cgroup and /proc/meminfo. */
#define HAUL_AUTO 0

/* Stage 3, offload all, all ranks on one node: how a unit comes to the device. The same bits either way. */
enum haul_share {
    HAUL_SHARE_AUTO = 0, /* on GPUs whichever is faster, measured in build; emulated devices gather */
    HAUL_SHARE_GATHER,   /* each rank lifts its shard, the devices gather */
    HAUL_SHARE_PULL      /* shards lie in memory that all ranks map: each lifts the whole unit up its own link */
};

/* What takes long, apart from steps. */
enum haul_work {
    HAUL_WORK_STORE = 0, /* build: the nvme tier's files are written for the first time */
    HAUL_WORK_FILL,
    HAUL_WORK_SAVE,      /* of this rank */
    HAUL_WORK_LOAD,      /* of the whole checkpoint: a rank passes over what is not its own */
    HAUL_NWORKS
};

/* So much of it is done. Called often, on the thread that does it: the one that called haul, but for a save in
 * the background. It returns soon and calls nothing of haul. */
typedef void (*haul_work_fn)(void *user, enum haul_work work, uint64_t done_bytes, uint64_t total_bytes);

struct haul_engine_opts {
    size_t struct_size;
    struct haul_device *device; /* not owned; outlives the engine */
    uint32_t stage;             /* 0..3, default 3 */
    enum haul_offload offload;  /* default HAUL_OFFLOAD_ALL */
    enum haul_master master;    /* default HAUL_MASTER_FP32 */
    enum haul_dtype grad_dtype; /* in which 16-bit tensors' gradients travel and wait: BF16 (default),
                                   FP16 or FP32 */
    struct haul_optim optim;    /* default AdamW */
    uint32_t ngroups;           /* parameter groups, default 1 */
    uint64_t device_mem_bytes;  /* budgets; HAUL_AUTO (default) or HAUL_UNLIMITED: what the machine has.
                                   With a size given and an offload chosen, device memory that is left
                                   over takes as many whole units' state back as fit */
    uint64_t host_mem_bytes; /* of this rank; HAUL_AUTO: its share of what the node has */
    uint64_t trainer_device_bytes; /* what the trainer will itself take from the device; in the ledger */
    uint32_t passes;    /* reduces of one unit in a step, default 1; over 1: FP32 accumulators */
    uint32_t max_held;  /* units the trainer holds at once, default 1 */
    uint32_t window;    /* unit buffers on the device, >= max_held; default max_held + 1 */
    uint32_t slots;     /* pool slots through which paged records move, >= 2, default 4 */
    uint32_t nthreads;  /* of the optimizer's team, at most 4096; 0 (default): cores allowed */
    int overlap;        /* 1 (default): deferred updates and prefetch; 0: step() waits for all */
    const char *const *nvme_dirs; /* (nnvme_dirs,) where records, and with offload all parameters, go
                                     that the host budget has no room for; read at open, not kept */
    uint32_t nnvme_dirs;          /* default 0: no nvme tier */
    uint64_t nvme_mem_bytes;      /* budget on them together; HAUL_AUTO (default): what is free */
    uint64_t slot_bytes;          /* of one slot; 0 (default): the largest paged record, at most 32 MiB */
    enum haul_io_method io_method; /* default HAUL_IO_AUTO */
    double loss_scale; /* first loss scale, a power of two (65536 is usual for FP16); 0 (default): none */
    uint32_t loss_scale_window; /* steps without overflow until the scale doubles, default 2000 */
    uint32_t trace_events;      /* kept for haul_engine_trace(), default 0: no trace */
    uint32_t stash_entries;     /* activation checkpoints stashed at once, default 0: no stash */
    uint64_t stash_entry_bytes; /* of the largest one */
    uint64_t stash_host_bytes;  /* of pool memory for them; 0 (default): all. The oldest ones go on to
                                   nvme when there is no room; at least three entries' worth then */
    struct haul_comm *comm; /* between the ranks; not owned, outlives the engine, on the same device; NULL
                               (default): one rank. All ranks make the same calls in the same order, but
                               that a rank may leave out grad and reduce of a unit: it adds zeros */
    int plan_only;          /* 1: plan for budgets as they are given, whatever this machine has, nvme_mem_bytes
                               without directories too; the engine has a ledger and cannot be built. 0 (default) */
    enum haul_share share;  /* default HAUL_SHARE_AUTO; PULL is refused where it cannot be */
    haul_work_fn work;      /* how far long work is; NULL (default): nobody asks */
    void *work_user;
    int nvme_durable; /* 1: records that rest on nvme stay there from run to run, in a folder of the rank below
                         each of nvme_dirs, and the newest checkpoint refers to them instead of copying them.
                         Takes the nvme tier's bytes twice. 0 (default): they are gone with the process */
};

HAUL_API
void haul_engine_opts_init(struct haul_engine_opts *opts);

/**
 * Open an engine: no units yet, and nothing reserved before haul_engine_build().
 *
 * Errors     0, -EINVAL or -EOVERFLOW (text names the option), -ENOMEM, HAUL_E_ABI
 */
HAUL_API HAUL_MUST_USE
int haul_engine_open(const struct haul_engine_opts *opts, struct haul_engine **out);

/* Drops updates not yet begun, waits for what runs, and returns every byte. NULL is fine. Queued device
 * work that uses the engine's buffers must be done. */
HAUL_API
void haul_engine_close(struct haul_engine *engine);

#define HAUL_MAX_DIMS 4

struct haul_tensor {
    const char *name;  /* copied */
    uint32_t ndims;    /* 1..HAUL_MAX_DIMS */
    uint64_t shape[HAUL_MAX_DIMS]; /* row-major; a product of 0 is allowed */
    enum haul_dtype dtype; /* BF16, FP16 or FP32 */
    uint32_t group;    /* < ngroups */
    int frozen;        /* no gradient, no record */
};

struct haul_unit_desc {
    size_t struct_size;
    const char *name; /* unique in the engine; copied */
    const struct haul_tensor *tensors;
    uint32_t ntensors;
    enum haul_dtype grad_dtype; /* of the buffer the trainer adds into, for 16-bit tensors: FP32
                                   (default when NONE), BF16 or FP16. FP32 tensors always FP32 */
};

/**
 * Add a unit. Before build only.
 *
 * Ownership  the engine owns *out
 * Errors     0, HAUL_E_STATE (already built), -EINVAL (text names unit and tensor), -EOVERFLOW (more than
 *            2^58 elements in a tensor, the unit or the engine), -ENOMEM
 */
HAUL_API HAUL_MUST_USE
int haul_engine_add_unit(struct haul_engine *engine, const struct haul_unit_desc *desc,
                         struct haul_unit **out);

/**
 * Declare the forward order. A unit may stand in it more than once (tied embeddings); backward visits
 * the reverse. Without this call: the order of add_unit.
 */
HAUL_API HAUL_MUST_USE
int haul_engine_visits(struct haul_engine *engine, struct haul_unit *const *visits, uint32_t nvisits);

/**
 * Plan, check against the budgets, reserve. Nothing is reserved when it does not fit.
 *
 * Blocks     yes: touches all memory
 * Errors     0, HAUL_E_PLAN (text: the ledger and the shortfall, or what the ranks do not agree on), HAUL_E_STATE, -ENOMEM, device errors,
 *            -EOVERFLOW (a tier beyond 2^63 bytes; text names what to lower)
 */
HAUL_API HAUL_MUST_USE
int haul_engine_build(struct haul_engine *engine);

/* The ledger: line i. Works before build too, once units and visits are declared (it plans then).
 * -EINVAL past the last line. */
HAUL_API HAUL_MUST_USE
int haul_engine_ledger(struct haul_engine *engine, uint32_t i, struct haul_ledger_line *out);

/* Planned and measured bytes of a tier on this rank. Measured is read from the allocators: the highest
 * since open. */
HAUL_API HAUL_MUST_USE
int haul_engine_tier_bytes(struct haul_engine *engine, enum haul_tier tier, uint64_t *planned,
                           uint64_t *peak);

/**
 * Called for each tensor, possibly in pieces: write values [first, first + n) of it to out.
 * Return 0, or a negative code that ends the fill.
 */
typedef int (*haul_fill_fn)(void *user, const char *unit, uint32_t tensor, uint64_t first, uint64_t n,
                            float *out);

/* Set every parameter; moments and step counts become 0. Blocks. */
HAUL_API HAUL_MUST_USE
int haul_engine_fill(struct haul_engine *engine, haul_fill_fn fn, void *user);

/**
 * Read or write FP32 values [first, first + n) of one tensor: the master where there is one, else the
 * parameter widened. A write sets the published parameter too and leaves the moments.
 *
 * Blocks     yes: waits for all updates
 * Errors     0, -EINVAL, HAUL_E_STATE (not built, or units are held)
 */
HAUL_API HAUL_MUST_USE
int haul_tensor_read(struct haul_unit *unit, uint32_t tensor, uint64_t first, uint64_t n, float *out);
HAUL_API HAUL_MUST_USE
int haul_tensor_write(struct haul_unit *unit, uint32_t tensor, uint64_t first, uint64_t n,
                      const float *values);

/* Where a unit's tensors are on the device, for as long as it is held. */
struct haul_view {
    void *base;
    const uint64_t *offset_bytes; /* per tensor; UINT64_MAX: not there (a frozen tensor's gradient) */
    uint32_t ntensors;
};

/* Start of a tensor on the device; NULL when it is not there. */
static inline void *haul_view_tensor(const struct haul_view *view, uint32_t tensor)
{
    uint64_t off = view->offset_bytes[tensor];

    return off == UINT64_MAX ? NULL : (char *)view->base + off;
}

/**
 * Have the unit's parameters on the device before anything queued later on stream.
 *
 * @param view  [out] parameters, each tensor in its own dtype, row-major; 64-byte aligned
 *
 * Acquiring a held unit again is allowed and must be released as often.
 *
 * Blocks     until the unit's update is done and its copy submitted; never for queued device work
 * Errors     0, HAUL_E_STATE (not built, or max_held others are held), or the engine's error
 */
HAUL_API HAUL_MUST_USE
int haul_unit_acquire(struct haul_unit *unit, void *stream, struct haul_view *view);

/* The trainer's work queued so far on stream is the last that uses this view. Blocks: no. */
HAUL_API HAUL_MUST_USE
int haul_unit_release(struct haul_unit *unit, void *stream);

/**
 * The unit's gradient buffer, zeroed (in stream order) when it is the first call since the last reduce.
 * The trainer adds into it. A second call before reduce gives the same buffer.
 *
 * Blocks     for a free buffer, at most until an earlier reduce's copy is submitted
 * Errors     0, HAUL_E_STATE (not held; every buffer is open; already reduced `passes` times)
 */
HAUL_API HAUL_MUST_USE
int haul_unit_grad(struct haul_unit *unit, void *stream, struct haul_view *view);

/* The gradient is complete: narrow, sum over ranks, bring to its tier. Blocks: no. */
HAUL_API HAUL_MUST_USE
int haul_unit_reduce(struct haul_unit *unit, void *stream);

/**
 * Put an activation checkpoint on the stash: device to pool, and past the pool's share to nvme.
 *
 * The copy follows what is queued on stream. Work queued on stream after the *next* put, or after a take,
 * may overwrite src: two buffers in turn are enough.
 *
 * @param src     [in] (bytes,) on the device
 * @param bytes   [in] at most opts.stash_entry_bytes
 *
 * Blocks     for pool room, while older entries are on their way to nvme
 * Errors     0, HAUL_E_STATE (stash_entries are stashed already), -EINVAL, or the engine's error
 */
HAUL_API HAUL_MUST_USE
int haul_stash_put(struct haul_engine *engine, const void *src, uint64_t bytes, void *stream);

/**
 * Take the newest entry back to the device. Entries come back last in, first out, read ahead of use.
 *
 * @param dst    [out] (bytes,) on the device: filled before what is queued on stream afterwards
 * @param bytes  [in]  as put
 *
 * Blocks     for an entry that is still on its way from nvme; never for queued device work
 * Errors     0, HAUL_E_STATE (the stash is empty, or its newest entry has another size), the engine's
 */
HAUL_API HAUL_MUST_USE
int haul_stash_take(struct haul_engine *engine, void *dst, uint64_t bytes, void *stream);

enum haul_pass { HAUL_PASS_TRAIN = 0, HAUL_PASS_EVAL };

/* Say that what follows is a forward-only pass (EVAL), or training again (TRAIN, the default). Guides
 * prefetch; only between passes, with nothing held. */
HAUL_API HAUL_MUST_USE
int haul_engine_pass(struct haul_engine *engine, enum haul_pass pass);

struct haul_group_step {
    double lr, weight_decay;
};

struct haul_step {
    size_t struct_size;  /* 0 is read as this version's size */
    double lr;           /* for every group, unless groups is given */
    double weight_decay; /* likewise */
    const struct haul_group_step *groups; /* (ngroups,) or NULL */
    double clip_norm;    /* clip to this global norm; 0: no clipping */
    double grad_scale;   /* multiplies every gradient (1 / micro-batches); 0 is read as 1 */
    int stop;            /* this rank asks all ranks to end here, after a signal for example */
};

enum haul_lane {
    HAUL_LANE_COMPUTE = 0, HAUL_LANE_H2D, HAUL_LANE_D2H, HAUL_LANE_IO_READ, HAUL_LANE_IO_WRITE,
    HAUL_LANE_OPTIM, HAUL_LANE_COMM, HAUL_NLANES
};

struct haul_lane_report {
    uint64_t busy_ns;    /* the lane worked */
    uint64_t exposed_ns; /* the compute lane waited for it */
    uint64_t bytes;
};

/* What happened since the previous step() returned. */
struct haul_report {
    size_t struct_size;
    uint64_t step;       /* steps asked for so far, skipped ones too */
    double grad_norm;    /* after grad_scale, before clipping; +Inf or NaN when not finite */
    double clip;         /* factor applied: 1 when not clipped, 0 when skipped */
    int skipped;         /* 1: a gradient was not finite; nothing was updated */
    uint64_t wall_ns;
    double weight_passes; /* parameter elements acquired / Ψ */
    uint64_t order_misses; /* acquires that were out of the declared order */
    struct haul_lane_report lanes[HAUL_NLANES];
    int stop;            /* some rank asked for it; the same on all ranks */
};

/* What the ranks have sent each other since build. counts is (HAUL_COMM_NKINDS,). */
HAUL_API HAUL_MUST_USE
int haul_engine_comm_counts(struct haul_engine *engine, struct haul_comm_count *counts);

/**
 * End a step: wait for the last gradient, norm over everything, clip or skip, start the updates.
 *
 * Updates run in forward order behind the next forward; acquire of a unit waits for its own. With several
 * ranks, norm, skip and stop are decided once, for all.
 *
 * @param step    [in]  read here, not kept
 * @param report  [out] may be NULL; struct_size set by the caller (0 is read as this version's)
 *
 * Blocks     until the last gradient has landed; with overlap = 0 until all updates are done
 * Errors     0, HAUL_E_STATE (a unit is held, or its gradient was not reduced: named), -EINVAL
 */
HAUL_API HAUL_MUST_USE
int haul_engine_step(struct haul_engine *engine, const struct haul_step *step,
                     struct haul_report *report);

/**
 * What the trainer multiplies its loss by before the next backward: the dynamic loss scale.
 *
 * The engine divides it out again in step(), before norm and clipping. A step whose gradients overflow
 * is skipped and halves it; loss_scale_window steps without overflow double it. A skipped step does not
 * advance any unit's step count.
 *
 * Returns the scale in force, a power of two from 1 to 2^24; 1 when opts.loss_scale was 0.
 *
 * Threads    as every call on the engine
 * Blocks     no
 * Source     Micikevicius et al. 2018, section 3.2
 */
HAUL_API
double haul_engine_loss_scale(const struct haul_engine *engine);

enum haul_trace_kind {
    HAUL_TRACE_SPAN = 0,  /* the lane worked from begin_ns to end_ns */
    HAUL_TRACE_SLOTS,     /* counters, at begin_ns: record slots in use */
    HAUL_TRACE_QUEUE,     /* jobs that wait for the optimizer's thread */
    HAUL_TRACE_IN_FLIGHT, /* bytes of records between nvme and pool */
};

struct haul_trace_event {
    enum haul_trace_kind kind;
    enum haul_lane lane; /* of a span */
    int32_t unit;        /* index in the order of add_unit; -1: not known */
    uint32_t step;       /* haul_report.step of the step under way */
    uint64_t begin_ns, end_ns; /* CLOCK_MONOTONIC */
    uint64_t value;            /* bytes moved, or the counter */
};

/**
 * Take the events recorded since the last call, oldest first.
 *
 * At most opts.trace_events are kept in between; the rest are counted and dropped. Spans of a CUDA
 * device's own lanes are not recorded.
 *
 * @param events    [out] (max,)
 * @param n         [out] how many were taken
 * @param ndropped  [out] how many did not fit since the last call; may be NULL
 *
 * Blocks     no
 * Errors     0, HAUL_E_STATE (trace_events was 0, or not built)
 */
HAUL_API HAUL_MUST_USE
int haul_engine_trace(struct haul_engine *engine, struct haul_trace_event *events, uint32_t max,
                      uint32_t *n, uint64_t *ndropped);

/* Wait for all updates. Returns the engine's error if one occurred. */
HAUL_API HAUL_MUST_USE
int haul_engine_sync(struct haul_engine *engine);

/**
 * Fingerprint of all parameters and moments: sum over elements of mix(unit, i, p, m, v) mod 2^64, i the
 * element's index in the unit as declared. No placement or rank count changes it.
 *
 * Blocks     yes: syncs, reads all state
 */
HAUL_API HAUL_MUST_USE
int haul_engine_digest(struct haul_engine *engine, uint64_t *out);

#ifdef __cplusplus
}
#endif
#endif
