/* smaps.h: how much of some ranges the kernel keeps on huge pages. */
#ifndef HL_SMAPS_H
#define HL_SMAPS_H

#include <stdint.h>

struct hl_range {
    uint64_t start, bytes;
};

struct hl_huge {
    uint64_t thp_bytes;     /* mapped by 2 MiB entries: anonymous, shmem or file */
    uint64_t hugetlb_bytes; /* on hugetlb pages */
};

/* out: (n,), one per range. The kernel counts per mapping: of one that reaches past a range at most the
 * part inside is counted, and one that covers two ranges counts for the first (segments of a pool
 * never share one). path NULL: /proc/self/smaps; tests give a recorded one. */
int hl_smaps_huge(const char *path, const struct hl_range *ranges, uint32_t n, struct hl_huge *out);

#endif
