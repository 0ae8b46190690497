/*
 * data.h: batches of bytes from a file.
 *
 * Which bytes sequence s of a step is made of depends on seed, step and s alone: not on micro-batches,
 * and not on what was read before.
 */
#ifndef TRAIN_GPT_DATA_H
#define TRAIN_GPT_DATA_H

#include <stdint.h>

struct data {
    const char *path;
    int fd;
    uint64_t bytes;
};

/**
 * Open the text to learn.
 *
 * @param path  [in]  any regular file; NULL: haul's own text, beside the program, in the installed data
 *                    folder beside it, or in the one given when it was built. Kept, not copied
 * @param seq   [in]  the file must have at least seq + 1 bytes
 *
 * Returns 0, or -1 after one line on stderr.
 */
int data_open(const char *path, uint64_t seq, struct data *out);
void data_close(struct data *data);

/* Sequences [first, first + batch) of a step, seq + 1 bytes each. Returns 0, or -1 after one line on stderr. */
struct data_part {
    uint64_t seed, step, first, batch, seq;
};
int data_read_step(const struct data *data, const struct data_part *part, uint8_t *out);

/* A well mixed number for each (seed, stream, i). */
uint64_t data_hash(uint64_t seed, uint64_t stream, uint64_t i);

#endif
