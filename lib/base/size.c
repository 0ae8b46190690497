/* size.c: sizes and counts as people write them, exactly: the digits are an integer, the decimal
 * point and the exponent only move it, so nothing is rounded. */
#include "haul/size.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "fail.h"

#define MAX_DIGITS 38 /* significant ones: 10^38 - 1 fits 127 bits */
#define MAX_EXP10  100000
#define LIMIT      ((uint64_t)1 << 63)

struct decimal {
    unsigned __int128 digits;
    int exp10; /* value = digits * 10^exp10 */
};

/* One more digit; zeros are held back until a digit after them needs them. */
static int add_digit(struct decimal *d, int *nsignificant, int *zeros, int digit)
{
    if (!digit) {
        *zeros += d->digits != 0;
        return 0;
    }
    *nsignificant += *zeros + 1;
    if (*nsignificant > MAX_DIGITS)
        return -EINVAL;
    for (; *zeros; --*zeros)
        d->digits *= 10;
    d->digits = d->digits * 10 + (unsigned)digit;
    return 0;
}

/* "12", "1.5", ".5", "12e9", "1.5e+3": moves *text past it. */
static int read_decimal(const char **text, struct decimal *out)
{
    const char *p = *text;
    int nsignificant = 0, zeros = 0, ndigits = 0, nfraction = 0, point = 0;
    struct decimal d = {0};

    for (; isdigit((unsigned char)*p) || (*p == '.' && !point); p++) {
        if (*p == '.') {
            point = 1;
            continue;
        }
        ndigits++;
        nfraction += point;
        if (ndigits > MAX_EXP10 || add_digit(&d, &nsignificant, &zeros, *p - '0') < 0)
            return -EINVAL;
    }
    if (!ndigits)
        return -EINVAL;
    d.exp10 = (d.digits ? zeros : 0) - nfraction;
    if (*p == 'e' || *p == 'E') {
        int sign = 1, e = 0;

        p++;
        if (*p == '+' || *p == '-')
            sign = *p++ == '-' ? -1 : 1;
        if (!isdigit((unsigned char)*p))
            return -EINVAL;
        for (; isdigit((unsigned char)*p); p++)
            e = e < MAX_EXP10 ? e * 10 + (*p - '0') : MAX_EXP10;
        d.exp10 += sign * e;
    }
    *text = p;
    *out = d;
    return 0;
}

/* digits * 10^exp10 * 2^exp2 as a whole number below 2^63. */
static int to_whole(struct decimal d, int exp2, uint64_t *out)
{
    unsigned __int128 v = d.digits;

    if (!v) {
        *out = 0;
        return 0;
    }
    for (; d.exp10 < 0; d.exp10++, exp2--) {
        if (v % 5)
            return -EINVAL;
        v /= 5;
    }
    for (; exp2 < 0; exp2++) {
        if (v & 1)
            return -EINVAL;
        v >>= 1;
    }
    for (; d.exp10 > 0 && v < LIMIT; d.exp10--)
        v *= 10;
    for (; exp2 > 0 && v < LIMIT; exp2--)
        v <<= 1;
    if (v >= LIMIT)
        return -ERANGE;
    *out = (uint64_t)v;
    return 0;
}

static const char *skip_blanks(const char *p)
{
    while (isspace((unsigned char)*p))
        p++;
    return p;
}

/* "", "B", "KB" ... "PB", "KiB" ... "PiB" */
static int size_suffix(const char **text, int *exp10, int *exp2)
{
    static const char prefixes[] = "KMGTP";
    const char *p = *text, *at = NULL;

    if (*p)
        at = strchr(prefixes, toupper((unsigned char)*p));
    if (at) {
        int power = (int)(at - prefixes) + 1;

        p++;
        if (*p == 'i' || *p == 'I') {
            *exp2 = 10 * power;
            p++;
        } else {
            *exp10 = 3 * power;
        }
        if (*p != 'b' && *p != 'B')
            return -EINVAL;
    }
    if (*p == 'b' || *p == 'B')
        p++;
    *text = p;
    return 0;
}

/* "", "K", "M", "B", "T", "Ki", "Mi", "Gi", "Ti" */
static int count_suffix(const char **text, int *exp10, int *exp2)
{
    static const char decimal[] = "KMBT", binary[] = "KMGT";
    const char *at = NULL;

    if (!**text)
        return 0;
    if ((*text)[1] == 'i' || (*text)[1] == 'I') {
        at = strchr(binary, toupper((unsigned char)**text));
        if (!at)
            return -EINVAL;
        *exp2 = 10 * ((int)(at - binary) + 1);
        *text += 2;
        return 0;
    }
    at = strchr(decimal, toupper((unsigned char)**text));
    if (at) {
        *exp10 = 3 * ((int)(at - decimal) + 1);
        ++*text;
    }
    return 0;
}

static int parse(const char *text, int (*suffix)(const char **, int *, int *), uint64_t *out)
{
    struct decimal d;
    int exp10 = 0, exp2 = 0;
    const char *p = skip_blanks(text);

    if (read_decimal(&p, &d) < 0)
        return -EINVAL;
    p = skip_blanks(p);
    if (suffix(&p, &exp10, &exp2) < 0 || *skip_blanks(p))
        return -EINVAL;
    d.exp10 += exp10;
    return to_whole(d, exp2, out);
}

int haul_parse_size(const char *text, uint64_t *out)
{
    int rc;

    if (!text)
        return hl_fail(-EINVAL, "no size given");
    rc = parse(text, size_suffix, out);
    if (rc == -EINVAL)
        return hl_fail(rc,
                       "'%.200s' is not a size: write whole bytes as 24GB (24e9), 24GiB "
                       "(24 * 2^30), 1.5TB, 13e9 or 4096; suffixes KB MB GB TB PB, KiB MiB GiB "
                       "TiB PiB",
                       text);
    if (rc < 0)
        return hl_fail(rc, "the size '%.200s' is too large: it must be below 2^63 bytes", text);
    return 0;
}

int haul_parse_count(const char *text, uint64_t *out)
{
    int rc;

    if (!text)
        return hl_fail(-EINVAL, "no count given");
    rc = parse(text, count_suffix, out);
    if (rc == -EINVAL)
        return hl_fail(rc,
                       "'%.200s' is not a count: write a whole number as 13B (13e9), 125M, 64Mi "
                       "(64 * 2^20), 7.5e9 or 300; suffixes K M B T, Ki Mi Gi Ti",
                       text);
    if (rc < 0)
        return hl_fail(rc, "the count '%.200s' is too large: it must be below 2^63", text);
    return 0;
}

const char *haul_format_size(uint64_t bytes, char *buf, size_t len)
{
    static const char *const units[] = {"KB", "MB", "GB", "TB", "PB"};
    uint64_t unit = 1000, hundredths;
    size_t i = 0;

    if (bytes < 1000) {
        snprintf(buf, len, "%u B", (unsigned)bytes);
        return buf;
    }
    for (;; i++, unit *= 1000) {
        uint64_t part = unit / 100;

        hundredths = bytes / part + (bytes % part >= part / 2);
        if (hundredths < 100000 || i == sizeof units / sizeof *units - 1)
            break;
    }
    snprintf(buf, len, "%llu.%02u %s", (unsigned long long)(hundredths / 100),
             (unsigned)(hundredths % 100), units[i]);
    return buf;
}
