/* data.c: see data.h. */
#include "data.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TEXT_NAME "haul-text.txt"

static uint64_t mix(uint64_t x)
{
    /* The finalizer of SplitMix64 (Steele, Lea and Flood 2014). */
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

uint64_t data_hash(uint64_t seed, uint64_t stream, uint64_t i)
{
    const uint64_t golden = 0x9e3779b97f4a7c15ull;

    return mix(mix(mix(seed + golden) + (stream + 1) * golden) + (i + 1) * golden);
}

/* The first of the places where haul's own text may be that has it, or NULL. */
static const char *find_own_text(void)
{
    static const char *const places[] = {"/", "/../share/haul/"};
    static char path[4096];
    char program[3072];
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    char *slash;

    program[n < 0 ? 0 : n] = '\0';
    slash = strrchr(program, '/');
    if (slash != NULL) {
        *slash = '\0';
        for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
            snprintf(path, sizeof path, "%s%s%s", program, places[i], TEXT_NAME);
            if (access(path, R_OK) == 0)
                return path;
        }
    }
    snprintf(path, sizeof path, "%s/%s", TRAIN_GPT_DATADIR, TEXT_NAME);
    return access(path, R_OK) == 0 ? path : NULL;
}

static int check(struct data *data, uint64_t seq)
{
    struct stat st;

    if (fstat(data->fd, &st) < 0) {
        fprintf(stderr, "train_gpt: %s: %s\n", data->path, strerror(errno));
        return -1;
    }
    if (!S_ISREG(st.st_mode)) {
        fprintf(stderr, "train_gpt: %s: not a regular file\n", data->path);
        return -1;
    }
    data->bytes = (uint64_t)st.st_size;
    if (data->bytes < seq + 1) {
        fprintf(stderr,
                "train_gpt: %s: %llu bytes, but one sequence takes %llu (--seq and one more); use "
                "a longer file or a smaller --seq\n",
                data->path, (unsigned long long)data->bytes, (unsigned long long)seq + 1);
        return -1;
    }
    return 0;
}

/* Bytes that GPT-2 shows as themselves come first in its vocabulary, then the others
 * (bytes_to_unicode() in its encoder.py). */
static bool is_shown(unsigned byte)
{
    return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

static void number_tokens(uint8_t token[256], bool gpt2)
{
    unsigned n = 0;

    for (unsigned b = 0; b < 256; b++)
        if (!gpt2 || is_shown(b))
            token[b] = (uint8_t)n++;
    for (unsigned b = 0; gpt2 && b < 256; b++)
        if (!is_shown(b))
            token[b] = (uint8_t)n++;
}

int data_open(const char *path, uint64_t seq, uint64_t vocab, struct data *out)
{
    number_tokens(out->token, vocab > 256);
    out->path = path != NULL ? path : find_own_text();
    if (out->path == NULL) {
        fprintf(stderr,
                "train_gpt: haul's own text (%s) is neither beside the program nor installed; give "
                "--data FILE\n",
                TEXT_NAME);
        return -1;
    }
    out->fd = open(out->path, O_RDONLY | O_CLOEXEC);
    if (out->fd < 0) {
        fprintf(stderr, "train_gpt: %s: %s; give --data a file that can be read\n", out->path,
                strerror(errno));
        return -1;
    }
    if (check(out, seq) < 0) {
        close(out->fd);
        return -1;
    }
    return 0;
}

void data_close(struct data *data)
{
    close(data->fd);
}

static int read_at(const struct data *data, uint64_t at, uint8_t *out, uint64_t n)
{
    while (n > 0) {
        ssize_t got = pread(data->fd, out, n, (off_t)at);

        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0) {
            fprintf(stderr, "train_gpt: %s: %s at byte %llu\n", data->path,
                    got < 0 ? strerror(errno) : "the file became shorter", (unsigned long long)at);
            return -1;
        }
        at += (uint64_t)got;
        out += got;
        n -= (uint64_t)got;
    }
    return 0;
}

int data_read_step(const struct data *data, const struct data_part *part, uint8_t *out)
{
    uint64_t bytes = part->seq + 1;

    for (uint64_t s = 0; s < part->batch; s++) {
        uint64_t at =
            data_hash(part->seed, part->step, part->first + s) % (data->bytes - part->seq);

        if (read_at(data, at, out + s * bytes, bytes) < 0)
            return -1;
    }
    for (uint64_t i = 0; i < part->batch * bytes; i++)
        out[i] = data->token[out[i]];
    return 0;
}
