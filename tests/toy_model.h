/*
 * toy_model.h: a model of a few odd tensors, trained twice: through the engine, with its compute queued
 * on the device, and on plain arrays by haul_optim_update() alone. The gradients are a function of the
 * parameters that the device sees, so a stale or torn copy anywhere shows in every later step.
 */
#ifndef HAUL_TESTS_TOY_MODEL_H
#define HAUL_TESTS_TOY_MODEL_H

#include "haul/engine.h"

#define TOY_MAX_UNITS   64
#define TOY_MAX_TENSORS 6

/* How to run it. Zero means the engine's default. */
struct toy_config {
    enum haul_offload offload;
    enum haul_master master;
    enum haul_dtype grad_dtype;   /* travels */
    enum haul_dtype buffer_dtype; /* the trainer's buffer */
    enum haul_dtype dtype;        /* of 16-bit tensors; default BF16 */
    unsigned passes, window, max_held, nthreads, slots;
    int no_overlap;
    int all_fp32;
    uint64_t device_mem, host_mem;
    const char *nvme_dir; /* NULL: no nvme tier */
    uint64_t nvme_mem, slot_bytes;
    enum haul_io_method io_method;
    uint64_t jitter_seed;
    double clip;
    uint32_t trace_events;
    double loss_scale;
    uint32_t loss_scale_window;
    uint32_t ngroups;
    int tied;   /* unit 0 is visited again at the end */
    int frozen; /* tensor 1 of every unit is frozen */
    int cuda;   /* on the CUDA back end: the test has loaded the fake driver */
};

struct toy_tensor {
    uint64_t n;
    float *p, *m, *v; /* the plain twin's master and moments */
    float *grad;      /* summed over passes as it rests */
};

struct toy_unit {
    struct toy *toy;
    uint32_t index;
    uint32_t ntensors;
    uint64_t elems[TOY_MAX_TENSORS];
    struct haul_unit *unit;
    struct toy_tensor twin[TOY_MAX_TENSORS];
    uint64_t nsteps;
};

struct toy {
    struct toy_config cfg;
    struct haul_device *dev;
    void *stream;
    struct haul_engine *engine;
    uint32_t nunits;
    struct toy_unit units[TOY_MAX_UNITS];
    uint64_t step;      /* steps asked for */
    uint64_t plant_inf; /* step (1-based) in which one gradient is Inf; 0: none */
    uint64_t skip_unit; /* unit (1-based) that is left out of backward in every step; 0: none */
    double twin_norm;   /* of the newest step */
};

/* Sizes of unit u's tensors: odd ones, an empty one, a one-element one among them. */
void toy_describe(struct toy *toy, uint32_t nunits, uint64_t scale);

/* Open device and engine, build and fill. Returns the first error, with everything closed again. */
int toy_open(struct toy *toy, const struct toy_config *cfg, uint32_t nunits, uint64_t scale);
void toy_close(struct toy *toy);

/* The ledger that build would be held to, summed by tier and for one purpose; nothing is built. */
int toy_ledger(const struct toy_config *cfg, uint32_t nunits, uint64_t scale,
               uint64_t sum[HAUL_NTIERS], const char *purpose, uint64_t of_purpose[HAUL_NTIERS]);

/* One step through the engine. */
int toy_step(struct toy *toy, struct haul_report *report);
/* The same step on plain arrays. */
void toy_twin_step(struct toy *toy);

/* Number of elements whose master differs from the twin's; -1: a read failed. */
int64_t toy_compare(struct toy *toy);

uint64_t toy_digest(struct toy *toy);

#endif
