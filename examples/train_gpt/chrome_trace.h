/*
 * chrome_trace.h: the engine's trace as a file for Perfetto and chrome://tracing.
 *
 * One track per lane, and counters. A lane is one resource: of two transfers that it serves at once, the
 * one that ends later is drawn from where the other ended, so that a track is full where its lane worked.
 *
 * The file is whole JSON after every step.
 */
#ifndef TRAIN_GPT_CHROME_TRACE_H
#define TRAIN_GPT_CHROME_TRACE_H

#include <stdio.h>
#include "trainer.h"

struct chrome_trace {
    const char *path;
    FILE *file;        /* NULL: no trace, or closed */
    int error;         /* errno of the first write that failed; nothing is written after it */
    uint64_t start_ns; /* CLOCK_MONOTONIC; 0 in the file */
    uint64_t lane_end_ns[HAUL_NLANES]; /* of what is drawn so far */
    uint64_t ndropped;
};

/**
 * Begin a trace; what the engine did before is left out.
 *
 * @param path  [in]  kept; NULL: no trace, and the other calls do nothing
 * @param out   [out] set in any case, so that it may be closed
 *
 * Returns EXIT_OK, or EXIT_FAILED after one line on stderr.
 */
int chrome_trace_open(const char *path, struct chrome_trace *out);

/* Write what has happened since the last call. */
HAUL_MUST_USE
int chrome_trace_step(struct chrome_trace *trace, const struct trainer *t);

/* EXIT_OK, or EXIT_FAILED after one line on stderr when the file is not complete. */
int chrome_trace_close(struct chrome_trace *trace);

#endif
