/*
 * flags.h: the command line of every haul subcommand.
 *
 *     static uint64_t mem;
 *     static const struct hl_flag flags[] = {
 *         {"device-mem", HL_FLAG_SIZE, &mem, "SIZE", "memory of one device", NULL},
 *     };
 *     static const struct hl_command cmd = {"plan", "what it does", flags, 1, NULL};
 *     int rc = hl_flags_parse(&cmd, argc, argv);
 *     if (rc != HL_FLAGS_GO)
 *         return rc;
 *
 * A value follows its flag as "--name value" or "--name=value". --help is understood by every command.
 */
#ifndef HL_FLAGS_H
#define HL_FLAGS_H

#include <stdint.h>

#include "haul/error.h"

/* Exit codes of the haul command. */
enum { HL_EXIT_OK = 0, HL_EXIT_FAILED = 1, HL_EXIT_USAGE = 2, HL_EXIT_ENVIRONMENT = 3 };

/* hl_flags_parse(): go on. Any other result is an exit code. */
#define HL_FLAGS_GO (-1)

enum hl_flag_kind {
    HL_FLAG_SWITCH = 0, /* int *: set to 1, takes no value */
    HL_FLAG_SIZE,       /* uint64_t *: bytes, "24GB" */
    HL_FLAG_COUNT,      /* uint64_t *: "13B", "64Mi" */
    HL_FLAG_NUMBER,     /* uint32_t *: a count below 2^32 */
    HL_FLAG_REAL,       /* double *: finite, above 0 */
    HL_FLAG_TEXT,       /* const char ** into argv */
    HL_FLAG_LIST,       /* struct hl_flag_list *: may be given again, commas separate */
    HL_FLAG_CHOICE,     /* int *: index among the words of .value, "bf16|fp16|fp32" */
};

#define HL_FLAG_LIST_MAX 32

struct hl_flag_list {
    const char *item[HL_FLAG_LIST_MAX]; /* into argv, whose commas become ends */
    uint32_t nitems;
};

struct hl_flag {
    const char *name; /* without the dashes */
    enum hl_flag_kind kind;
    void *dest;        /* holds the default; written when the flag is given */
    const char *value; /* what help shows for the value; CHOICE: the words */
    const char *help;
    int *given; /* set to 1 when the flag is given; may be NULL */
};

struct hl_command {
    const char *name;    /* after "haul " */
    const char *summary; /* one sentence */
    const struct hl_flag *flags;
    uint32_t nflags;
    const char *notes; /* after the flags in the help; may be NULL */
};

/**
 * Read the arguments after the command's name.
 *
 * @param argc, argv  [in]  argv[0] is the command's name and is skipped
 *
 * Returns HL_FLAGS_GO; HL_EXIT_OK when help was asked for and printed on stdout; HL_EXIT_USAGE after
 * one line on stderr. The last value wins where a flag is given twice.
 */
int hl_flags_parse(const struct hl_command *cmd, int argc, char **argv);

/* One line on stderr, "haul NAME: ...", and HL_EXIT_USAGE. */
int hl_usage_error(const struct hl_command *cmd, const char *fmt, ...) HAUL_PRINTF(2, 3);

/* The library's last error on stderr. Returns the exit code that suits rc: usage for -EINVAL and
 * -EOVERFLOW, environment for missing permission, device or memory, else failed. */
int hl_report_error(const struct hl_command *cmd, int rc);

#endif
