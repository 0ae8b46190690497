/* Huge bytes from recorded smaps. */
#include <errno.h>

#include "fail.h"
#include "recorded_tree.h"
#include "smaps.h"
#include "suite.h"
#include "sys.h"

static const char recorded[] =
    "55d000000000-55d000200000 r-xp 00000000 fe:00 1234                       /usr/bin/trainer\n"
    "Size:               2048 kB\n"
    "FilePmdMapped:      2048 kB\n"
    "VmFlags: rd ex mr mw me\n"
    "7f0000000000-7f0000a00000 rw-p 00000000 00:00 0 \n"
    "Size:              10240 kB\n"
    "KernelPageSize:        4 kB\n"
    "AnonHugePages:      8192 kB\n"
    "ShmemPmdMapped:        0 kB\n"
    "VmFlags: rd wr mr mw me ac sd hg\n"
    "7f0000a00000-7f0000e00000 rw-p 00000000 00:0f 99                         /anon_hugepage "
    "(deleted)\n"
    "Size:               4096 kB\n"
    "KernelPageSize:     2048 kB\n"
    "AnonHugePages:         0 kB\n"
    "Shared_Hugetlb:        0 kB\n"
    "Private_Hugetlb:    4096 kB\n"
    "7f0001000000-7f0001400000 rw-s 00000000 00:01 77                         /memfd:haul pool "
    "(deleted)\n"
    "ShmemPmdMapped:     2048 kB\n"
    "7f0002000000-7f0002400000 rw-p 00000000 00:00 0 \n"
    "AnonHugePages:      4096 kB\n";

#define MIB ((uint64_t)1 << 20)

static void read_huge(const char *text, const struct hl_range *ranges, uint32_t n,
                      struct hl_huge *huge)
{
    struct tree t = tree_make();

    tree_write(&t, "smaps", text);
    cr_assert_eq(hl_smaps_huge(tree_path(&t, "smaps"), ranges, n, huge), 0, "%s",
                 haul_last_error());
    tree_remove(&t);
}

Test(mem_smaps, each_kind_of_huge_page_counts_for_its_range_only)
{
    const struct hl_range ranges[] = {{0x7f0000000000, 14 * MIB}, /* anonymous, then hugetlb */
                                      {0x7f0001000000, 4 * MIB},  /* a memfd */
                                      {0x7f0003000000, 4 * MIB}}; /* not mapped */
    struct hl_huge huge[3];

    read_huge(recorded, ranges, 3, huge);
    cr_assert_eq(huge[0].thp_bytes, 8 * MIB);
    cr_assert_eq(huge[0].hugetlb_bytes, 4 * MIB);
    cr_assert_eq(huge[1].thp_bytes, 2 * MIB);
    cr_assert_eq(huge[1].hugetlb_bytes, 0);
    cr_assert_eq(huge[2].thp_bytes, 0);
    cr_assert_eq(huge[2].hugetlb_bytes, 0);
}

Test(mem_smaps, of_a_mapping_that_reaches_further_only_the_part_inside_can_count)
{
    const struct hl_range inside = {0x7f0002000000, 2 * MIB};
    struct hl_huge huge;

    read_huge(recorded, &inside, 1, &huge);
    cr_assert_eq(huge.thp_bytes, 2 * MIB);
}

Test(mem_smaps, long_lines_and_long_files_are_read_through)
{
    static char text[200000];
    const struct hl_range range = {0x7f0000000000, 4 * MIB};
    struct hl_huge huge;
    size_t n = 0;

    n += (size_t)sprintf(text, "10000-20000 rw-p 00000000 00:00 0 /");
    memset(text + n, 'x', 30000); /* far longer than the reader's buffer */
    n += 30000;
    text[n++] = '\n';
    for (int i = 0; i < 1000; i++)
        n +=
            (size_t)sprintf(text + n, "%x000-%x000 rw-p 00000000 00:00 0\nAnonHugePages: 2048 kB\n",
                            1000 + i, 1001 + i);
    sprintf(text + n, "7f0000000000-7f0000400000 rw-p 00000000 00:00 0\nAnonHugePages: 2048 kB");
    read_huge(text, &range, 1, &huge);
    cr_assert_eq(huge.thp_bytes, 0, "a last line without its end is not trusted");
    strcat(text, "\n");
    read_huge(text, &range, 1, &huge);
    cr_assert_eq(huge.thp_bytes, 2 * MIB);
}

Test(mem_smaps, a_missing_file_is_an_error)
{
    const struct hl_range range = {4096, 4096};
    struct hl_huge huge;

    cr_assert_eq(hl_smaps_huge("/nowhere/smaps", &range, 1, &huge), -ENOENT);
    hl_sys_fail_nth(2, EIO);
    cr_assert_eq(hl_smaps_huge(NULL, &range, 1, &huge), -EIO);
    hl_sys_fail_nth(0, 0);
}
