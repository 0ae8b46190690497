/* smaps.c: reads /proc/self/smaps line by line; it may be long, so it is never held whole. */
#include "smaps.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "fail.h"
#include "sys.h"

#define LINE_BYTES 8192

struct scan {
    const struct hl_range *ranges;
    struct hl_huge *out;
    uint32_t n;
    uint32_t range;        /* that the current mapping lies in */
    uint64_t inside_bytes; /* of the current mapping in that range; 0: in none */
    struct hl_huge mapping;
};

static uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static void end_mapping(struct scan *s)
{
    if (s->inside_bytes) {
        s->out[s->range].thp_bytes += min_u64(s->mapping.thp_bytes, s->inside_bytes);
        s->out[s->range].hugetlb_bytes += min_u64(s->mapping.hugetlb_bytes, s->inside_bytes);
    }
    s->mapping = (struct hl_huge){0};
    s->inside_bytes = 0;
}

static void begin_mapping(struct scan *s, uint64_t start, uint64_t end)
{
    end_mapping(s);
    for (uint32_t i = 0; i < s->n && !s->inside_bytes; i++) {
        uint64_t lo = s->ranges[i].start, hi = min_u64(lo + s->ranges[i].bytes, end);

        lo = lo > start ? lo : start;
        s->range = i;
        s->inside_bytes = hi > lo ? hi - lo : 0;
    }
}

static void read_line(struct scan *s, const char *line)
{
    uint64_t a, b;
    char key[32];

    if (sscanf(line, "%" SCNx64 "-%" SCNx64, &a, &b) == 2) {
        begin_mapping(s, a, b);
        return;
    }
    if (!s->inside_bytes || sscanf(line, "%31[^:]: %" SCNu64 " kB", key, &a) != 2)
        return;
    if (strcmp(key, "AnonHugePages") == 0 || strcmp(key, "ShmemPmdMapped") == 0 ||
        strcmp(key, "FilePmdMapped") == 0)
        s->mapping.thp_bytes += a * 1024;
    else if (strcmp(key, "Private_Hugetlb") == 0 || strcmp(key, "Shared_Hugetlb") == 0)
        s->mapping.hugetlb_bytes += a * 1024;
}

/* Reads every whole line of buf and returns how many bytes of an unfinished one are left. */
static size_t read_lines(struct scan *s, char *buf, size_t n)
{
    char *line = buf, *end;

    while ((end = memchr(line, '\n', n - (size_t)(line - buf)))) {
        *end = '\0';
        read_line(s, line);
        line = end + 1;
    }
    n -= (size_t)(line - buf);
    memmove(buf, line, n);
    return n;
}

int hl_smaps_huge(const char *path, const struct hl_range *ranges, uint32_t n, struct hl_huge *out)
{
    struct scan s = {.ranges = ranges, .out = out, .n = n};
    char buf[LINE_BYTES];
    size_t held = 0;
    ssize_t got;
    int fd = hl_sys_open(AT_FDCWD, path ? path : "/proc/self/smaps", O_RDONLY, 0);

    if (fd < 0)
        return fd;
    memset(out, 0, n * sizeof *out);
    while ((got = hl_sys_read(fd, buf + held, sizeof buf - held)) > 0) {
        held = read_lines(&s, buf, held + (size_t)got);
        if (held == sizeof buf)
            held = LINE_BYTES / 2; /* no line that matters is this long: keep its head, drop on */
    }
    hl_sys_close(fd);
    if (got < 0)
        return (int)got;
    end_mapping(&s);
    return 0;
}
