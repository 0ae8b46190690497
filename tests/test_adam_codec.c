/* The split form loses nothing: all 2^32 patterns. Minutes, so in the slow suite. */
#include "arith.h"
#include "suite.h"

Test(adam_codec, split_is_lossless_over_all_patterns)
{
    uint32_t bits = 0;
    uint64_t wrong = 0;

    do {
        wrong += hl_split_join(hl_split_hi(bits), hl_split_lo(bits)) != bits;
    } while (++bits);
    cr_assert_eq(wrong, 0);
}
