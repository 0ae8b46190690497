/*
 * data.h: batches of tokens from a file: its bytes.
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
    uint8_t token[256]; /* of each byte */
};

/**
 * Open the text to learn.
 *
 * @param path  [in]  any regular file; NULL: haul's own text, beside the program, in the installed data
 *                    folder beside it, or in the one given when it was built. Kept, not copied
 * @param seq   [in]  the file must have at least seq + 1 bytes
 * @param vocab [in]  256: a token is a byte; more: it is GPT-2's token of that byte, below 256 too
 *
 * Returns 0, or -1 after one line on stderr.
 */
int data_open(const char *path, uint64_t seq, uint64_t vocab, struct data *out);
void data_close(struct data *data);

/* Sequences [first, first + batch) of a step, seq + 1 tokens each. Returns 0, or -1 after one line on stderr. */
struct data_part {
    uint64_t seed, step, first, batch, seq;
};
int data_read_step(const struct data *data, const struct data_part *part, uint8_t *out);

/* A well mixed number for each (seed, stream, i). */
uint64_t data_hash(uint64_t seed, uint64_t stream, uint64_t i);

#endif
