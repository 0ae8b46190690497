/* The nearest known word. Distances counted by hand. */
#include "nearest_word.h"
#include "suite.h"

static const char *const words[] = {"stage", "slots", "slot_bytes", "threads"};

static const char *nearest(const char *text)
{
    return hl_nearest_word(text, words, 4);
}

Test(base_nearest, a_letter_left_out_added_or_changed_is_one_step)
{
    cr_assert_str_eq(nearest("stge"), "stage");
    cr_assert_str_eq(nearest("staage"), "stage");
    cr_assert_str_eq(nearest("stale"), "stage");
    cr_assert_str_eq(nearest("thraeds"), "threads", "two steps");
    cr_assert_str_eq(nearest("slotbytes"), "slot_bytes", "one step; slots takes four");
}

Test(base_nearest, a_known_word_is_nearest_to_itself)
{
    for (int i = 0; i < 4; i++)
        cr_assert_str_eq(nearest(words[i]), words[i]);
}

Test(base_nearest, of_equally_near_ones_the_first_counts)
{
    const char *const pair[] = {"cat", "car"};

    cr_assert_str_eq(hl_nearest_word("cap", pair, 2), "cat");
}

Test(base_nearest, what_is_like_none_has_no_neighbour)
{
    char long_word[100];

    memset(long_word, 'q', sizeof long_word - 1);
    long_word[99] = '\0';
    cr_assert_null(nearest("zzzzzzzz"));
    cr_assert_null(nearest(long_word));
    cr_assert_null(nearest(""));
    cr_assert_null(hl_nearest_word("stage", words, 0));
}
