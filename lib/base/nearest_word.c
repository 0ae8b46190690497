/* nearest_word.c: edit distance, for messages about words that are not known. */
#include "nearest_word.h"

#include <stddef.h>
#include <string.h>

#define MAX_WORD 48

static unsigned min3(unsigned a, unsigned b, unsigned c)
{
    unsigned m = a < b ? a : b;

    return m < c ? m : c;
}

/* Levenshtein distance; words longer than MAX_WORD are far from everything. */
static unsigned distance(const char *a, const char *b)
{
    size_t na = strnlen(a, MAX_WORD + 1), nb = strnlen(b, MAX_WORD + 1);
    unsigned row[MAX_WORD + 1];

    if (na > MAX_WORD || nb > MAX_WORD)
        return MAX_WORD;
    for (size_t j = 0; j <= nb; j++)
        row[j] = (unsigned)j;
    for (size_t i = 1; i <= na; i++) {
        unsigned diagonal = row[0];

        row[0] = (unsigned)i;
        for (size_t j = 1; j <= nb; j++) {
            unsigned above = row[j];

            row[j] = min3(above + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1]));
            diagonal = above;
        }
    }
    return row[nb];
}

const char *hl_nearest_word(const char *text, const char *const *words, uint32_t n)
{
    const char *best = NULL;
    unsigned best_distance =
        (unsigned)strnlen(text, MAX_WORD + 1) / 2 + 1; /* further is no likeness */

    for (uint32_t i = 0; i < n; i++) {
        unsigned d = distance(text, words[i]);

        if (d < best_distance) {
            best_distance = d;
            best = words[i];
        }
    }
    return best;
}
