/* Sizes and counts. Expected values are written out, or worked with integers in Python. */
#include <errno.h>

#include "haul/size.h"
#include "suite.h"

struct good {
    const char *text;
    uint64_t value;
};

Test(base_size, sizes_are_read_exactly)
{
    static const struct good cases[] = {
        {"0", 0},
        {"4096", 4096},
        {"24GB", 24000000000u},
        {"24 GB", 24000000000u},
        {"24gb", 24000000000u},
        {"24GiB", 25769803776u},
        {"24 gib", 25769803776u},
        {" \t80GB\n", 80000000000u},
        {"13e9", 13000000000u},
        {"13E+9", 13000000000u},
        {"1.5TB", 1500000000000u},
        {"1.5 TB", 1500000000000u},
        {".5KB", 500},
        {"0.1KB", 100},
        {"0.001KB", 1},
        {"1500e-3 KB", 1500},
        {"512 B", 512},
        {"512b", 512},
        {"1PB", 1000000000000000u},
        {"1PiB", 1125899906842624u},
        {"1.5KiB", 1536},
        {"0.0009765625KiB", 1},
        {"0.00000000000000088817841970012523233890533447265625PiB", 1},
        {"9007199254740993", 9007199254740993u}, /* 2^53 + 1: no double holds it */
        {"9.007199254740993PB", 9007199254740993u},
        {"9223372036854775807", 9223372036854775807u},
        {"1.50000000000000000000000000000000000000000000000000KB", 1500},
        {"000000000000000000000000000000000000000000000000007", 7},
        {"0e99999999", 0},
        {"0.000PB", 0},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint64_t v = 77;

        cr_assert_eq(haul_parse_size(cases[i].text, &v), 0, "%s", cases[i].text);
        cr_assert_eq(v, cases[i].value, "%s: %llu", cases[i].text, (unsigned long long)v);
    }
}

Test(base_size, counts_are_read_exactly)
{
    static const struct good cases[] = {
        {"300", 300},
        {"13B", 13000000000u},
        {"13e9", 13000000000u},
        {"70b", 70000000000u},
        {"70 B", 70000000000u},
        {"125M", 125000000},
        {"7.5e9", 7500000000u},
        {"7.5B", 7500000000u},
        {"1k", 1000},
        {"1.25T", 1250000000000u},
        {"0.1K", 100},
        {"1e-3B", 1000000},
        {"1Ki", 1024},
        {"32Mi", 33554432},
        {"64 mi", 67108864},
        {"1.5GI", 1610612736},
        {"2Ti", 2199023255552u},
        {"0", 0},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint64_t v = 77;

        cr_assert_eq(haul_parse_count(cases[i].text, &v), 0, "%s", cases[i].text);
        cr_assert_eq(v, cases[i].value, "%s: %llu", cases[i].text, (unsigned long long)v);
    }
}

Test(base_size, what_is_no_size_is_refused_and_quoted)
{
    static const char *const cases[] = {
        "",
        " ",
        "GB",
        "abc",
        "1.5",
        "1.5B",
        "0.0001KB",
        "-1",
        "-1GB",
        "+1GB",
        "24G",
        "24Gi",
        "24 G B",
        "24GBx",
        "24 GB 1",
        "1e",
        "1e+",
        "1e-1",
        "1.2.3",
        ".",
        "0x10",
        "nan",
        "inf",
        "1,000",
        "24EB",
        "24XB",
        "1__0",
        "24GBB",
        "24bb",
        "1e-30GB",
        "13M",
        "8191.999999999999999PiB",
        "12345678901234567890123456789012345678.9",
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint64_t v = 77;
        char quoted[128];

        snprintf(quoted, sizeof quoted, "'%s'", cases[i]);
        cr_assert_eq(haul_parse_size(cases[i], &v), -EINVAL, "%s", cases[i]);
        cr_assert_eq(v, 77, "%s: the output was written", cases[i]);
        cr_assert_not_null(strstr(haul_last_error(), quoted), "%s", haul_last_error());
        cr_assert_not_null(strstr(haul_last_error(), "24GiB"), "%s", haul_last_error());
    }
}

Test(base_size, what_is_no_count_is_refused_and_quoted)
{
    static const char *const cases[] = {"",    "B",      "13BB",  "1.5",   "13GB",
                                        "-1",  "13 B B", "13P",   "13G",   "13Bi",
                                        "13i", "13M i",  "64MiB", "64Mii", "0.3Ki"};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint64_t v = 77;

        cr_assert_eq(haul_parse_count(cases[i], &v), -EINVAL, "%s", cases[i]);
        cr_assert_eq(v, 77, "%s: the output was written", cases[i]);
        cr_assert_not_null(strstr(haul_last_error(), "13B"), "%s", haul_last_error());
    }
}

Test(base_size, too_large_a_number_is_a_range_error)
{
    static const char *const cases[] = {
        "9223372036854775808",  "8192PiB", "9224PB", "1e19", "1e99999999999999999999",
        "18446744073709551616",
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint64_t v = 77;

        cr_assert_eq(haul_parse_size(cases[i], &v), -ERANGE, "%s", cases[i]);
        cr_assert_eq(v, 77, "%s: the output was written", cases[i]);
        cr_assert_not_null(strstr(haul_last_error(), cases[i]), "%s", haul_last_error());
    }
    cr_assert_eq(haul_parse_count("9223373T", &(uint64_t){0}), -ERANGE);
    cr_assert_eq(haul_parse_count("8388608Ti", &(uint64_t){0}), -ERANGE);
    cr_assert_eq(haul_parse_size(NULL, &(uint64_t){0}), -EINVAL);
    cr_assert_eq(haul_parse_count(NULL, &(uint64_t){0}), -EINVAL);
}

Test(base_size, formatted_sizes_round_to_three_or_more_digits)
{
    static const struct {
        uint64_t bytes;
        const char *text;
    } cases[] = {
        {0, "0 B"},
        {512, "512 B"},
        {999, "999 B"},
        {1000, "1.00 KB"},
        {1004, "1.00 KB"},
        {1005, "1.01 KB"},
        {23456, "23.46 KB"},
        {999994, "999.99 KB"},
        {999995, "1.00 MB"},
        {6500000000u, "6.50 GB"},
        {1875000000000u, "1.88 TB"},
        {999999999999999u, "1.00 PB"},
        {1125899906842624u, "1.13 PB"},
        {UINT64_MAX, "18446.74 PB"},
    };
    char buf[16];

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        cr_assert_str_eq(haul_format_size(cases[i].bytes, buf, sizeof buf), cases[i].text, "%s",
                         buf);
    haul_format_size(6500000000u, buf, 4);
    cr_assert_str_eq(buf, "6.5", "a short buffer is not overrun");
}

/* Oracle: the same number written out in bytes. */
Test(base_size, every_suffix_agrees_with_the_number_written_out)
{
    static const char *const decimal[] = {"KB", "MB", "GB", "TB", "PB"};
    static const char *const binary[] = {"KiB", "MiB", "GiB", "TiB", "PiB"};
    uint64_t d = 1, b = 1;

    for (int i = 0; i < 5; i++) {
        char text[32];
        uint64_t v = 0;

        d *= 1000;
        b *= 1024;
        for (unsigned k = 1; k < 1000; k += 37) {
            snprintf(text, sizeof text, "%u%s", k, decimal[i]);
            cr_assert_eq(haul_parse_size(text, &v), 0, "%s", text);
            cr_assert_eq(v, k * d, "%s", text);
            snprintf(text, sizeof text, "%u %s", k, binary[i]);
            cr_assert_eq(haul_parse_size(text, &v), 0, "%s", text);
            cr_assert_eq(v, k * b, "%s", text);
            snprintf(text, sizeof text, "%u.%03u%s", k / 1000, k % 1000, decimal[i]);
            cr_assert_eq(haul_parse_size(text, &v), 0, "%s", text);
            cr_assert_eq(v, k * (d / 1000), "%s", text);
        }
    }
}
