/* cmd_tune.c: haul tune. Measures drives, host memory, optimizer and links, and writes a profile. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>

#include "commands.h"
#include "flags.h"
#include "tune.h"

#define PROFILE_VERSION 1
#define LEAST_BYTES     (576ull << 20) /* what a trial with blocks of 8 MiB takes */

struct request {
    struct hl_flag_list dirs;
    uint64_t bytes;
    double thorough_s;
    const char *output;
    int no_memory, json;
};

void hl_tune_step(struct hl_tune *t)
{
    hl_time_left_at(&t->left, ++t->done);
}

/* Where and when. */
static void describe_run(json_t *root)
{
    struct utsname u;
    struct tm day;
    time_t now = time(NULL);
    char date[32];

    if (uname(&u) == 0)
        json_object_set_new(root, "about",
                            json_sprintf("%s, %s %s", u.nodename, u.sysname, u.release));
    if (gmtime_r(&now, &day) && strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", &day))
        json_object_set_new(root, "date", json_string(date));
}

static int save(const struct request *req, const json_t *root)
{
    const size_t flags = JSON_INDENT(2) | JSON_REAL_PRECISION(6);

    if (json_dump_file(root, req->output, flags) < 0) {
        fprintf(stderr, "haul tune: cannot write %s: %s\n", req->output, strerror(errno));
        return HL_EXIT_FAILED;
    }
    if (req->json) {
        json_dumpf(root, stdout, flags);
        putchar('\n');
    } else {
        printf("%s\n", req->output);
    }
    return HL_EXIT_OK;
}

static int tune_drives(const struct request *req, struct hl_tune *t, json_t *drives)
{
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < req->dirs.nitems; i++) {
        json_t *line = json_object();

        rc = hl_tune_drive(t, req->dirs.item[i], line);
        json_array_append_new(drives, line);
    }
    return rc;
}

static int measure(const struct request *req, struct hl_tune *t, json_t *root)
{
    json_t *drives = json_array(), *kernels = json_array();
    uint64_t passes = req->dirs.nitems * hl_tune_drive_passes(t);
    int rc;

    json_object_set_new(root, "drives", drives);
    json_object_set_new(root, "kernels", kernels);
    hl_time_left_begin(&t->left, "tune", passes + (req->no_memory ? 0 : HL_TUNE_HOST_PASSES), 0);
    rc = tune_drives(req, t, drives);
    if (rc == 0) {
        hl_time_left_end(&t->left);
        hl_tune_links(t, root);
    }
    /* Last: it binds this thread to a core. */
    if (rc == 0 && !req->no_memory)
        hl_tune_host(
            t, req->dirs.item[0],
            (uint32_t)json_integer_value(json_object_get(json_array_get(drives, 0), "block_bytes")),
            kernels);
    hl_time_left_end(&t->left);
    return rc;
}

static int run(const struct hl_command *cmd, const struct request *req)
{
    struct hl_tune t = {.rates = json_object(), .thorough_s = req->thorough_s, .bytes = req->bytes};
    json_t *root = json_pack("{s:i, s:s, s:o}", "version", PROFILE_VERSION, "haul", haul_version(),
                             "rates", t.rates);
    int rc;

    if (!root)
        return HL_EXIT_FAILED;
    describe_run(root);
    rc = measure(req, &t, root);
    rc = rc < 0 ? hl_report_error(cmd, rc) : save(req, root);
    json_decref(root);
    return rc;
}

int hl_cmd_tune(int argc, char **argv)
{
    static struct request req = {.bytes = 2ull << 30, .output = "profile.json"};
    static char long_output[] = "--output";
    const struct hl_flag flags[] = {
        {"dir", HL_FLAG_LIST, &req.dirs, "DIR", "a drive's directory; may be given again", NULL},
        {"bytes", HL_FLAG_SIZE, &req.bytes, "SIZE", "of each trial file (default 2GiB)", NULL},
        {"thorough", HL_FLAG_REAL, &req.thorough_s, "SECONDS",
         "also write, and read and write, for so long each: past a drive's cache", NULL},
        {"output", HL_FLAG_TEXT, &req.output, "FILE", "or -o FILE; default profile.json", NULL},
        {"no-memory", HL_FLAG_SWITCH, &req.no_memory, NULL, "leave host memory out", NULL},
        {"json", HL_FLAG_SWITCH, &req.json, NULL, "the profile on stdout too", NULL},
    };
    const struct hl_command cmd = {
        "tune", "Measure drives, links, memory and the optimizer, and write a profile.", flags,
        sizeof flags / sizeof *flags,
        "Block sizes and depths are tried per drive; the smallest within 2% of the best is taken.\n"
        "A GPU's link is measured where there is one. --thorough: the rates of the last quarter of "
        "the time.\n"
        "haul bench io --profile, haul plan --profile, haul sim --profile and "
        "haul_store_opts_profile()\n"
        "read the result."};
    int rc;

    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], "-o"))
            argv[i] = long_output;
    rc = hl_flags_parse(&cmd, argc, argv);
    if (rc != HL_FLAGS_GO)
        return rc;
    if (!req.dirs.nitems)
        return hl_usage_error(&cmd, "--dir is missing");
    if (req.bytes < LEAST_BYTES)
        return hl_usage_error(&cmd, "--bytes: give at least 576MiB, for 8 MiB blocks in flight");
    return run(&cmd, &req);
}
