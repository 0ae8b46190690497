/* tune.h: the parts of haul tune. Each adds what it measured to the profile's "rates", and its details to a list or
 * an object of its own; what cannot be measured is said on standard error and left out. */
#ifndef HL_TUNE_H
#define HL_TUNE_H

#include <jansson.h>

#include "bench_io.h"
#include "time_left.h"

struct hl_tune {
    json_t *rates;
    double thorough_s; /* of sustained writing and of mixed traffic, each, per drive; 0: none */
    uint64_t bytes;    /* of a trial file */
    struct hl_time_left left;
    uint64_t done; /* passes so far, of left.total */
};

/* Passes that a drive takes, for the total. */
uint64_t hl_tune_drive_passes(const struct hl_tune *t);
/* Block size and depths of one directory; out gets its line. 0 or an error of haul. */
int hl_tune_drive(struct hl_tune *t, const char *dir, json_t *out);

/* A trial store. depth 0: the store's own. */
int hl_tune_open(const struct hl_tune *t, const char *dir, uint32_t block_bytes, uint32_t depth,
                 enum haul_verify verify, struct hl_bench_io **out);

#define HL_TUNE_HOST_PASSES 10
/* Host memory, the optimizer's kernels, and what a drive in dir (NULL: none) takes from them. Binds this thread
 * to a core: last. */
void hl_tune_host(struct hl_tune *t, const char *dir, uint32_t block_bytes, json_t *kernels);

/* Each GPU's link; says so where there is none. */
void hl_tune_links(struct hl_tune *t, json_t *root);

/* One more is done. */
void hl_tune_step(struct hl_tune *t);

#endif
