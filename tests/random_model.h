/*
 * random_model.h: a model whose units and tensors come from a seed, trained through the engine and, beside
 * it, on plain arrays. What decides the bits (struct random_shape) stands apart from what must not change
 * one (struct random_place): a shape has one digest, wherever it is placed.
 *
 * As in toy_model.h, gradients are a function of the parameters that the device sees, so a stale or torn
 * copy anywhere shows in every later step.
 */
#ifndef HAUL_TESTS_RANDOM_MODEL_H
#define HAUL_TESTS_RANDOM_MODEL_H

#include "haul/engine.h"
#include "thread_comm.h"

#define RANDOM_MAX_TENSORS 6
#define RANDOM_GROUPS      3

struct random_tensor {
    uint64_t elems;
    int fp32, frozen;
    uint32_t group;
    uint64_t first; /* twin only: it has elements first, first + 1, ... of a larger tensor */
};

struct random_unit {
    uint32_t ntensors;
    struct random_tensor tensor[RANDOM_MAX_TENSORS];
};

struct random_shape {
    uint64_t seed;
    uint32_t nunits;
    struct random_unit *unit; /* (nunits,) */
    unsigned nsteps, passes;
    enum haul_dtype grad_dtype, buffer_dtype;
    int tied;           /* unit 0 is visited again at the end */
    int wander;         /* forward begins at another unit in every step: not the declared order */
    unsigned leave_out; /* every so many steps one unit gets no gradient; 0: never */
    unsigned inf_step;  /* step (1-based) whose gradients are not finite; 0: none */
    double clip;
    /* 0: one. A step is this many micro-batches on as many ranks; with leave_out, one rank has no gradient
     * of one unit in the steps between; only the last rank's gradients are not finite in inf_step. */
    unsigned nranks;
};

struct random_place {
    enum haul_offload offload;
    enum haul_master master;
    unsigned nthreads, slots, window;
    int no_overlap;
    uint64_t device_mem, host_mem, slot_bytes;
    int nvme_durable;
    const char *nvme_dir; /* NULL: no nvme tier */
    enum haul_io_method io_method;
    uint64_t jitter_seed;
    unsigned stage;             /* with several ranks */
    struct thread_world *world; /* where the ranks meet; NULL: one rank */
    unsigned rank;
    double timeout_s; /* default 30 */
    enum haul_share share;
    uint64_t
        stash_bytes; /* forward stashes so much at every visit, and backward takes it back; 0: no stash */
};

/* Where state rests, by the share of it that the host budget has room for; 0: all of it. */
struct random_spot {
    const char *name;
    enum haul_offload offload;
    double records, params;
    enum haul_share share;
    int durable; /* records on nvme stay there */
};

#define RANDOM_SPOTS 6

/* Nothing offloaded, the optimizer, all; records on nvme with each of the latter; parameters on nvme. */
extern const struct random_spot random_spots[RANDOM_SPOTS];

/* Of what rests in a tier, by the ledger. */
struct random_rest {
    uint64_t all[HAUL_NTIERS], records[HAUL_NTIERS], params[HAUL_NTIERS];
    uint64_t param_slots;
};

struct random_run {
    const struct random_shape *shape;
    struct haul_comm *comm;
    unsigned rank;
    struct haul_device *dev;
    void *stream;
    struct haul_engine *engine;
    struct haul_unit **unit; /* (nunits,) */
    struct random_work *work;
    unsigned nwork;
    unsigned step; /* steps asked for */
    uint64_t stash_bytes;
    void *stash_buffer[3]; /* on the device: two to put from in turn, one to take to */
    unsigned depth;
    uint64_t nstash_wrong; /* words that came back changed; once the stream is idle */
};

/* Fails the case with `name hangs` after so many seconds (many more under slow tools), unless called again
 * meanwhile. 0: no more. */
void random_watch(const char *name, unsigned seconds);

uint64_t random_next(uint64_t *state);
/* from..to, both included */
uint64_t random_in(uint64_t *state, uint64_t from, uint64_t to);

/* About `elems` elements in units of like or of very different sizes, by the seed; zero-size, one-element,
 * odd, FP32 and frozen tensors among them. */
void random_shape_make(struct random_shape *shape, uint64_t seed, uint32_t max_units,
                       uint64_t elems);
void random_shape_free(struct random_shape *shape);

/* What build would reserve under these budgets, also when it would refuse. */
int random_ledger(const struct random_shape *shape, const struct random_place *place,
                  struct random_rest *out);

/* Budgets by what they should bring about. 0 when the model is too small for it. */
int random_page_records(const struct random_shape *shape, struct random_place *place, double share);
int random_page_params(const struct random_shape *shape, struct random_place *place, double share);

/* Open device and engine, build and fill. Returns the first error, with everything closed again. */
int random_open(struct random_run *run, const struct random_shape *shape,
                const struct random_place *place);
int random_step(struct random_run *run, struct haul_report *report);
/* The device's verdict: HAUL_E_STATE when something was left open on it. */
int random_close(struct random_run *run);

/* The same training on plain arrays, by haul_optim_update() alone. */
struct random_twin {
    const struct random_shape *shape;
    float **p, **m, **v, **grad; /* (nunits * RANDOM_MAX_TENSORS,) each (elems,) */
    uint64_t *nsteps;            /* (nunits,) */
    unsigned step;
    double norm; /* of the newest step, before clipping */
    int skipped;
};

int random_twin_open(struct random_twin *twin, const struct random_shape *shape);
/* clip: the factor that the engine applied. */
void random_twin_step(struct random_twin *twin, double clip);
void random_twin_close(struct random_twin *twin);

/* Elements whose master differs from the twin's, or the error of reading them. The twin's shape may hold a part
 * of every tensor. */
int64_t random_compare(struct random_run *run, const struct random_twin *twin);

/* So many units of one BF16 tensor each, which are written to unit, on one rank. */
struct random_shape random_shape_of(struct random_unit *unit, unsigned nunits, uint64_t elems);

enum { RANDOM_EVEN_UNITS = 6, RANDOM_EVEN_ELEMS = 128 * 96 };

/* Units that divide by 4 ranks without padding. */
struct random_shape random_even_shape(unsigned nranks);

#endif
