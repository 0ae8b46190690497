/* flags.c: reads flags from a table, and names the nearest one when it does not know one. */
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "flags.h"
#include "haul/size.h"
#include "nearest_word.h"

int hl_usage_error(const struct hl_command *cmd, const char *fmt, ...)
{
    va_list ap;

    fprintf(stderr, "haul %s: ", cmd->name);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
    return HL_EXIT_USAGE;
}

int hl_report_error(const struct hl_command *cmd, int rc)
{
    fprintf(stderr, "haul %s: %s\n", cmd->name,
            haul_last_error()[0] != '\0' ? haul_last_error() : haul_strerror(rc));
    switch (rc) {
    case -EINVAL:
    case -ERANGE:
    case -EOVERFLOW:
    case HAUL_E_CONFIG:
        return HL_EXIT_USAGE;
    case -EPERM:
    case -EACCES:
    case -ENOSYS:
    case -ENOTSUP:
    case -ENOMEM:
    case -ENODEV:
    case HAUL_E_DEVICE:
        return HL_EXIT_ENVIRONMENT;
    default:
        return HL_EXIT_FAILED;
    }
}

#define MAX_FLAG 40

static int unknown_flag(const struct hl_command *cmd, const char *arg)
{
    const char *words[64] = {"help"};
    uint32_t n = 1;
    char name[MAX_FLAG + 1];
    const char *nearest;

    for (uint32_t i = 0; i < cmd->nflags && n < 64; i++)
        words[n++] = cmd->flags[i].name;
    snprintf(name, sizeof name, "%.*s", (int)strcspn(arg, "="), arg);
    nearest = hl_nearest_word(name + strspn(name, "-"), words, n);
    if (nearest != NULL)
        return hl_usage_error(cmd, "unknown flag %s; did you mean --%s?", name, nearest);
    return hl_usage_error(cmd, "unknown flag %s; haul %s --help lists them", name, cmd->name);
}

static int choose(const struct hl_command *cmd, const struct hl_flag *f, const char *text)
{
    const size_t len = strlen(text);
    const char *word = f->value;

    for (int i = 0; word != NULL; i++) {
        const size_t n = strcspn(word, "|");
        if (n == len && strncmp(word, text, n) == 0) {
            *(int *)f->dest = i;
            return HL_FLAGS_GO;
        }
        word = word[n] == '|' ? word + n + 1 : NULL;
    }
    return hl_usage_error(cmd, "--%s %s: not one of %s", f->name, text, f->value);
}

static int append(const struct hl_command *cmd, const struct hl_flag *f, char *text)
{
    struct hl_flag_list *list = f->dest;

    for (char *item = text; item != NULL;) {
        char *comma = strchr(item, ',');
        if (comma != NULL)
            *comma = '\0';
        if (*item == '\0')
            return hl_usage_error(cmd, "--%s: an empty name", f->name);
        if (list->nitems == HL_FLAG_LIST_MAX)
            return hl_usage_error(cmd, "--%s: more than %d", f->name, HL_FLAG_LIST_MAX);
        list->item[list->nitems++] = item;
        item = comma != NULL ? comma + 1 : NULL;
    }
    return HL_FLAGS_GO;
}

static int read_real(const struct hl_command *cmd, const struct hl_flag *f, const char *text)
{
    char *end;
    const double value = strtod(text, &end);

    if (end == text || *end != '\0' || !isfinite(value) || value <= 0)
        return hl_usage_error(cmd, "--%s %s: not a number above 0", f->name, text);
    *(double *)f->dest = value;
    return HL_FLAGS_GO;
}

static int read_whole(const struct hl_command *cmd, const struct hl_flag *f, const char *text)
{
    uint64_t value;
    const int rc =
        f->kind == HL_FLAG_SIZE ? haul_parse_size(text, &value) : haul_parse_count(text, &value);

    if (rc < 0)
        return hl_usage_error(cmd, "--%s: %s", f->name, haul_last_error());
    if (f->kind != HL_FLAG_NUMBER) {
        *(uint64_t *)f->dest = value;
        return HL_FLAGS_GO;
    }
    if (value > UINT32_MAX)
        return hl_usage_error(cmd, "--%s %s: more than %u", f->name, text, UINT32_MAX);
    *(uint32_t *)f->dest = (uint32_t)value;
    return HL_FLAGS_GO;
}

static int read_value(const struct hl_command *cmd, const struct hl_flag *f, char *text)
{
    switch (f->kind) {
    case HL_FLAG_SWITCH:
        *(int *)f->dest = 1;
        return HL_FLAGS_GO;
    case HL_FLAG_SIZE:
    case HL_FLAG_COUNT:
    case HL_FLAG_NUMBER:
        return read_whole(cmd, f, text);
    case HL_FLAG_REAL:
        return read_real(cmd, f, text);
    case HL_FLAG_TEXT:
        *(const char **)f->dest = text;
        return HL_FLAGS_GO;
    case HL_FLAG_LIST:
        return append(cmd, f, text);
    case HL_FLAG_CHOICE:
        return choose(cmd, f, text);
    }
    return hl_usage_error(cmd, "--%s: unknown kind of flag", f->name);
}

/* The flag and its value in a column as wide as the widest, but no wider than MAX_COLUMN. */
#define MAX_COLUMN 34

static int left_column(const struct hl_flag *f, char *buf, size_t len)
{
    return snprintf(buf, len, "--%s %s", f->name, f->kind == HL_FLAG_SWITCH ? "" : f->value);
}

static void print_flag(const char *left, const char *help, int column)
{
    if ((int)strlen(left) <= column)
        printf("  %-*s  %s\n", column, left, help);
    else
        printf("  %s\n  %*s  %s\n", left, column, "", help);
}

static void print_help(const struct hl_command *cmd)
{
    char left[96];
    int column = 0;

    for (uint32_t i = 0; i < cmd->nflags; i++) {
        const int width = left_column(&cmd->flags[i], left, sizeof left);
        if (width > column)
            column = width < MAX_COLUMN ? width : MAX_COLUMN;
    }
    printf("usage: haul %s [flags]\n\n%s\n\nflags:\n", cmd->name, cmd->summary);
    for (uint32_t i = 0; i < cmd->nflags; i++) {
        left_column(&cmd->flags[i], left, sizeof left);
        print_flag(left, cmd->flags[i].help, column);
    }
    print_flag("--help", "this text", column);
    if (cmd->notes != NULL)
        printf("\n%s\n", cmd->notes);
}

static const struct hl_flag *find_flag(const struct hl_command *cmd, const char *name, size_t len)
{
    for (uint32_t i = 0; i < cmd->nflags; i++)
        if (strlen(cmd->flags[i].name) == len && strncmp(cmd->flags[i].name, name, len) == 0)
            return &cmd->flags[i];
    return NULL;
}

/* One flag at argv[*i]; *i moves to the last argument used. */
static int parse_one(const struct hl_command *cmd, int argc, char **argv, int *i)
{
    char *arg = argv[*i], *value = strchr(arg, '=');
    const struct hl_flag *f;

    if (strncmp(arg, "--", 2) != 0) {
        if (arg[0] == '-' && arg[1] != '\0')
            return unknown_flag(cmd, arg);
        return hl_usage_error(cmd, "unexpected argument \"%s\"; haul %s --help shows the usage",
                              arg, cmd->name);
    }
    f = find_flag(cmd, arg + 2, strcspn(arg + 2, "="));
    if (f == NULL)
        return unknown_flag(cmd, arg);
    if (value != NULL)
        value++;
    if (f->kind == HL_FLAG_SWITCH) {
        if (value != NULL)
            return hl_usage_error(cmd, "--%s takes no value", f->name);
    } else if (value == NULL) {
        if (*i + 1 == argc || strncmp(argv[*i + 1], "--", 2) == 0)
            return hl_usage_error(cmd, "--%s needs a value: --%s %s", f->name, f->name, f->value);
        value = argv[++*i];
    }
    if (f->given != NULL)
        *f->given = 1;
    return read_value(cmd, f, value);
}

int hl_flags_parse(const struct hl_command *cmd, int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            print_help(cmd);
            return HL_EXIT_OK;
        }
    for (int i = 1; i < argc; i++) {
        const int rc = parse_one(cmd, argc, argv, &i);
        if (rc != HL_FLAGS_GO)
            return rc;
    }
    return HL_FLAGS_GO;
}
