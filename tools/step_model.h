/*
 * step_model.h: a synthetic model on the emulated device: equal units of one BF16 tensor each, whose
 * compute is timed waits. Through the public engine API only; everything else (copies over links of a
 * set speed, the optimizer on the CPU, the drive) is real.
 */
#ifndef HL_STEP_MODEL_H
#define HL_STEP_MODEL_H

#include "haul/engine.h"

/* Where the records rest. Parameters and gradients rest on the device with DEVICE, else as the offload
 * says. NVME: the least host budget with which the parameters still rest in host memory. MIXED: half the
 * records more than that. */
enum hl_step_placement { HL_STEP_DEVICE = 0, HL_STEP_HOST, HL_STEP_NVME, HL_STEP_MIXED };

static inline int hl_step_pages(enum hl_step_placement placement)
{
    return placement == HL_STEP_NVME || placement == HL_STEP_MIXED;
}

struct hl_step_model_opts {
    uint64_t params;
    uint32_t units;
    enum hl_step_placement placement;
    int overlap;
    enum haul_offload offload; /* ALL or OPTIMIZER; not read with DEVICE */
    enum haul_master master;
    double link_bytes_per_s; /* per direction; 0: as fast as memory copies */
    const char *const *dirs; /* (ndirs,) for NVME and MIXED */
    uint32_t ndirs;
    uint32_t slots;      /* 0: the engine's default */
    uint64_t slot_bytes; /* likewise */
    uint64_t
        host_mem_bytes; /* NVME and MIXED: instead of the budget that the placement means; 0: not */
    uint32_t nthreads;  /* 0: the engine's default */
    uint32_t window;    /* likewise */
    uint32_t passes;    /* over the model in a step, each with its share of the compute; 0: 1 */
};

struct hl_step_model;

/* Of so many parameters. */
uint64_t hl_step_record_bytes(const struct hl_step_model_opts *opts, uint64_t params);

/* Of a slot for paged records, of which there are so many. */
uint64_t hl_step_slot_bytes(const struct hl_step_model_opts *opts, uint32_t slots);

/* Open, plan, place and fill with random parameters. */
int hl_step_model_open(const struct hl_step_model_opts *opts, struct hl_step_model **out);
void hl_step_model_close(struct hl_step_model *m);

/* One whole step: what compute takes on the device, split evenly over the units. `grads`: the backward
 * also writes random gradients; else they are zeros. *wall_s: from the call to the return of step(). */
struct hl_step_compute {
    double forward_s, backward_s;
    int grads;
};
int hl_step_model_run(struct hl_step_model *m, const struct hl_step_compute *c, double *wall_s,
                      struct haul_report *report);

int hl_step_model_sync(struct hl_step_model *m);
int hl_step_model_digest(struct hl_step_model *m, uint64_t *out);

/* Bytes of the ledger's lines of one purpose in a tier; purpose NULL: of all. */
int hl_step_model_bytes(struct hl_step_model *m, enum haul_tier tier, const char *purpose,
                        uint64_t *out);

/* What a model would take from each tier; nothing is reserved. */
int hl_step_model_plan(const struct hl_step_model_opts *opts, uint64_t bytes[HAUL_NTIERS]);

#endif
