/*
 * trainer.h: the model on a device, its state carried by the engine.
 *
 *   trainer_open   device, engine, units, plan and reserve, the trainer's own device memory, weights
 *   trainer_step   queue a step's passes on the stream (passes.c), end it, read the losses
 *   trainer_close
 *
 * What is queued on the stream there, and on which device, is the affair of compute.h.
 */
#ifndef TRAIN_GPT_TRAINER_H
#define TRAIN_GPT_TRAINER_H

#include "args.h"
#include "model.h"
#include "weights.h"
#include "ranks.h"
#include "work_line.h"

/* With --stash a block's input has left for the stash before its buffer has its turn again. */
#define STASH_BUFFERS 3

/* The trainer's own device memory, one allocation cut in this order. "Kept" micro-batches are all of a
 * step's with --order layer, one with --order batch. */
struct arena {
    void *base;
    uint64_t bytes;
    uint32_t kept;        /* micro-batches */
    uint32_t nboundaries; /* layers + 2: all of them; STASH_BUFFERS with --stash */
    uint64_t stash_bytes; /* of one entry: a block's input, (kept, M, C) */
    uint8_t *tokens;      /* (batch, seq + 1) of the step */
    double *losses;       /* (accum,) */
    void *weights;    /* the acquired unit as it is computed with; NULL: as the engine shows it */
    real *boundaries; /* (nboundaries, kept, M, C): inputs of blocks, final norm, head */
    real *dboundary;  /* (kept, M, C): gradient travelling backward */
    void *acts;       /* (kept, layers) block activations, or one when recomputed */
    void *scratch;
    uint64_t block_acts_bytes; /* of one block's activations */
};

/* Events of --trace that the engine keeps for one step. */
#define TRAINER_TRACE_EVENTS (1u << 17)

struct trainer {
    const struct args *args; /* of this rank */
    struct ranks *ranks;
    struct gpt_shape shape; /* of a micro-batch */
    struct haul_device *device;
    void *stream;
    struct haul_engine *engine;
    struct haul_unit **units; /* (layers + 2,): embed, block.0.., final */
    uint32_t nunits;
    uint32_t window;
    uint32_t nvisits; /* embed, blocks, final, embed again as the head */
    struct arena arena;
    struct compute *compute; /* of compute.h; NULL until it is open */
    uint8_t *tokens;         /* (batch, seq + 1), host */
    double *losses;          /* (accum,), host */
    double loss_scale;       /* of the step that is queued */
    struct weights weights;  /* of --init, until they are in the engine */
    uint64_t nsteps, seed;   /* of the run before it was resumed: 0; args->seed */
    uint64_t saving;         /* the step that is being saved; 0: none */
    struct work_line work;
    char text[1200]; /* of an error of the trainer's own; "" */
};

/* Learning rate of a step, from 1: a fixed warm-up, then level, so that it does not depend on --steps. */
double trainer_lr(const struct args *args, uint64_t step);

/* Elements of the largest unit. */
uint64_t trainer_largest_unit_elems(const struct gpt_shape *shape);

/* Unit u's name: embed, block.0.., final. */
void trainer_unit_name(const struct trainer *t, uint32_t u, char *out, size_t size);

/* Unit u's kind. */
static inline enum gpt_unit trainer_kind(const struct trainer *t, uint32_t u)
{
    return u == 0 ? GPT_EMBED : u + 1 == t->nunits ? GPT_FINAL : GPT_BLOCK;
}

/**
 * Open everything but the data. With --plan-only the engine is not built and holds the plan alone.
 *
 * Returns EXIT_OK, or another exit code after a message on stderr; nothing is left open then.
 */
int trainer_open(const struct args *args, struct ranks *ranks, struct trainer *out);
void trainer_close(struct trainer *t);

/* The last error on stderr, with the rank where there are several. */
void trainer_complain(const struct trainer *t, int rc);

/* The text of the last error, whoever made it. */
const char *trainer_error(int rc);

/* Train on t->tokens. *loss, unscaled: mean over the step's tokens, all ranks'. stop: this rank asks to end
 * here; report->stop says whether one has. Errors of haul; haul_last_error() says more. */
HAUL_MUST_USE
int trainer_step(struct trainer *t, uint64_t step, bool stop, double *loss,
                 struct haul_report *report);

/* passes.c: queue forward and backward of a whole step. */
HAUL_MUST_USE
int passes_queue(struct trainer *t);

#endif
