/* saves.c: see saves.h. What the trainer itself must know again is one line of text in the checkpoint: batches
 * are drawn from seed and step alone, and the step is the engine's. */
#include "saves.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define NOTES "train_gpt 1 seed %" SCNu64

static int read_notes(struct trainer *t, char *notes, const struct haul_checkpoint_info *info)
{
    char end;

    notes[info->user_bytes] = '\0';
    t->nsteps = info->step;
    if (sscanf(notes, NOTES "%c", &t->seed, &end) == 2 && end == '\n')
        return 0;
    snprintf(t->text, sizeof t->text, "%s: not a checkpoint of train_gpt", info->path);
    return HAUL_E_FORMAT;
}

static void tell_resumed(const struct trainer *t, const struct haul_checkpoint_info *info)
{
    if (t->args->rank != 0)
        return;
    if (!t->args->quiet)
        fprintf(stderr, "resumed %s: step %" PRIu64 "\n", info->path, t->nsteps);
    if (t->seed != t->args->seed)
        fprintf(stderr, "train_gpt: goes on with the seed of the checkpoint, %" PRIu64 "\n",
                t->seed);
}

/* Of another model: what to do is the trainer's to say. */
static void tell_unfit(struct trainer *t)
{
    snprintf(
        t->text, sizeof t->text,
        "%s; --resume needs --layers, --dim, --seq, --vocab and --dtype of the run that saved it",
        haul_last_error());
}

int saves_load(struct trainer *t)
{
    struct haul_checkpoint_load_opts opts;
    struct haul_checkpoint_info info = {.struct_size = sizeof info};
    char notes[256];
    int rc;

    haul_checkpoint_load_opts_init(&opts);
    opts.user = notes;
    opts.user_capacity = sizeof notes - 1;
    rc = haul_checkpoint_load(t->engine, t->args->resume, &opts, &info);
    work_line_end(&t->work);
    if (rc == HAUL_E_CONFIG)
        tell_unfit(t);
    if (rc == 0)
        rc = read_notes(t, notes, &info);
    if (rc == 0)
        tell_resumed(t, &info);
    return rc;
}

/* The save that was begun is complete, or failed. */
static int finish(struct trainer *t)
{
    int rc;

    atomic_store(&t->work.waiting, 1);
    rc = haul_checkpoint_wait(t->engine);
    atomic_store(&t->work.waiting, 0);
    work_line_end(&t->work);
    if (rc < 0)
        trainer_complain(t, rc);
    else if (t->saving != 0 && t->args->rank == 0 && !t->args->quiet)
        fprintf(stderr, "saved %s: step %" PRIu64 "\n", t->args->save, t->saving);
    t->saving = 0;
    return rc < 0 ? EXIT_FAILED : EXIT_OK;
}

/* Behind the steps that follow. */
static int begin(struct trainer *t, uint64_t step)
{
    struct haul_checkpoint_save_opts opts;
    char notes[256];
    int rc;

    haul_checkpoint_save_opts_init(&opts);
    opts.user = notes;
    opts.user_bytes =
        (uint64_t)snprintf(notes, sizeof notes, "train_gpt 1 seed %" PRIu64 "\n", t->seed);
    opts.keep_last = (uint32_t)t->args->save_keep;
    opts.background = 1;
    rc = haul_checkpoint_save(t->engine, t->args->save, &opts);
    if (rc < 0)
        trainer_complain(t, rc);
    else
        t->saving = step;
    return rc < 0 ? EXIT_FAILED : EXIT_OK;
}

int saves_step(struct trainer *t, uint64_t step, bool last)
{
    const struct args *args = t->args;
    int rc;

    if (args->save == NULL)
        return EXIT_OK;
    if (!last && (args->save_every == 0 || step % args->save_every != 0))
        return EXIT_OK;
    (void)finish(t);
    rc = begin(t, step);
    if (rc == EXIT_OK && last)
        rc = finish(t);
    return last ? rc : EXIT_OK;
}
