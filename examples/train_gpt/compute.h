/*
 * compute.h: how the model is computed, and on which device. compute_host.c, in FP32 on the CPU, is
 * linked into train_gpt; what another device needs is a file of its own, linked into a program of its own.
 *
 * compute_weights() and compute_run() queue work on the trainer's stream and return. They may keep the
 * job's pointers until the stream is done, not the job.
 */
#ifndef TRAIN_GPT_COMPUTE_H
#define TRAIN_GPT_COMPUTE_H

#include "trainer.h"

/* Part of the model that a visit computes: a unit, or the embedding again as the head. */
enum gpt_part {
    GPT_PART_EMBED = GPT_EMBED,
    GPT_PART_BLOCK = GPT_BLOCK,
    GPT_PART_FINAL = GPT_FINAL,
    GPT_PART_HEAD
};

/* One part, one micro-batch, one direction. All arrays are the device's. */
struct job {
    struct trainer *trainer;
    enum gpt_part part;
    bool backward;
    const void *raw[GPT_MAX_TENSORS]; /* the parameters as the engine shows them */
    real *g[GPT_MAX_TENSORS];         /* backward: gradients, to be added to */
    const uint8_t *tokens;            /* (batch, seq + 1) */
    const real *x;                    /* (M, C); NULL: embed */
    real *y;                          /* (M, C), forward; NULL: head */
    real *d;                          /* (M, C), backward: of the output, then of the input */
    void *acts;                       /* block: its activations */
    double *loss;                     /* head, forward: mean over the micro-batch */
};

static inline enum gpt_unit job_unit(const struct job *job)
{
    return job->part == GPT_PART_HEAD ? GPT_EMBED : (enum gpt_unit)job->part;
}

/* Tensor i of the acquired unit: as the engine shows it, or where compute_weights() has put it, in elements
 * of elem_bytes. */
const void *job_weight(const struct job *job, uint32_t i, size_t elem_bytes);

/* Device memory that the arithmetic takes; UINT64_MAX: more than can be counted. */
struct compute_bytes {
    uint64_t weights;    /* the largest unit as it is computed with; 0: as the engine shows it */
    uint64_t block_acts; /* what a block's forward leaves for its backward; a multiple of 64 */
    uint64_t scratch;
};

/* The device that this program computes on. */
extern const enum device_kind compute_device;

void compute_bytes(const struct args *args, const struct gpt_shape *shape,
                   struct compute_bytes *out);

/* Opens t->device, and t->compute. HAUL_E_DEVICE: something is missing here. Close, which leaves the device
 * open, may follow a failed open too; the stream is done then. */
HAUL_MUST_USE
int compute_open(struct trainer *t);
void compute_close(struct trainer *t);

/* Arena and stream are there. */
HAUL_MUST_USE
int compute_bind(struct trainer *t);

/* What went wrong here and not in haul; "" when nothing did. */
const char *compute_error(void);

/* The acquired unit into the arena's weights; called where compute_bytes() asked for them. */
HAUL_MUST_USE
int compute_weights(const struct job *job);
HAUL_MUST_USE
int compute_run(const struct job *job);

#endif
