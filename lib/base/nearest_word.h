/* nearest_word.h: the known word that a mistyped one was meant to be. */
#ifndef HL_NEAREST_WORD_H
#define HL_NEAREST_WORD_H

#include <stdint.h>

/* Of n words the one nearest to text, or NULL when none is near. */
const char *hl_nearest_word(const char *text, const char *const *words, uint32_t n);

#endif
