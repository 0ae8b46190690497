/* cmd_doctor.c: haul doctor. */
#include <errno.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "doctor.h"
#include "doctor_io.h"
#include "flags.h"

static const char *const health_names[HL_NHEALTH] = {"ok", "warn", "fail"};

void hl_doctor_add(struct hl_doctor *doc, const char *name, enum hl_health health,
                   const char *remedy, const char *fmt, ...)
{
    struct hl_finding *f;
    va_list ap;

    if (doc->nfindings == HL_DOCTOR_MAX)
        return;
    f = &doc->finding[doc->nfindings++];
    f->health = health;
    snprintf(f->name, sizeof f->name, "%s", name);
    snprintf(f->remedy, sizeof f->remedy, "%s", remedy != NULL ? remedy : "");
    va_start(ap, fmt);
    vsnprintf(f->text, sizeof f->text, fmt, ap);
    va_end(ap);
}

static unsigned count(const struct hl_doctor *doc, enum hl_health health)
{
    unsigned n = 0;

    for (unsigned i = 0; i < doc->nfindings; i++)
        n += doc->finding[i].health == health;
    return n;
}

static void print_text(const struct hl_doctor *doc)
{
    for (unsigned i = 0; i < doc->nfindings; i++) {
        const struct hl_finding *f = &doc->finding[i];
        printf("%-4s  %-12s  %s\n", health_names[f->health], f->name, f->text);
        if (f->remedy[0] != '\0')
            printf("%20s-> %s\n", "", f->remedy);
    }
    printf("\n%u ok, %u warn, %u fail\n", count(doc, HL_HEALTH_OK), count(doc, HL_HEALTH_WARN),
           count(doc, HL_HEALTH_FAIL));
}

static int print_json(const struct hl_doctor *doc)
{
    json_t *checks = json_array();
    json_t *root;

    for (unsigned i = 0; i < doc->nfindings; i++) {
        const struct hl_finding *f = &doc->finding[i];
        json_t *check =
            json_pack("{s:s, s:s, s:s, s:s?}", "name", f->name, "status", health_names[f->health],
                      "text", f->text, "remedy", f->remedy[0] != '\0' ? f->remedy : NULL);
        if (json_array_append_new(checks, check) < 0) {
            json_decref(checks);
            return -ENOMEM;
        }
    }
    root = json_pack("{s:s, s:o, s:i, s:i, s:i}", "version", haul_version(), "checks", checks, "ok",
                     (int)count(doc, HL_HEALTH_OK), "warn", (int)count(doc, HL_HEALTH_WARN), "fail",
                     (int)count(doc, HL_HEALTH_FAIL));
    if (root == NULL || json_dumpf(root, stdout, JSON_INDENT(2)) < 0) {
        json_decref(root);
        return -ENOMEM;
    }
    json_decref(root);
    putchar('\n');
    return 0;
}

static void drop_line(void *user, enum haul_log_level level, const char *text)
{
}

int hl_cmd_doctor(int argc, char **argv)
{
    struct hl_flag_list dirs = {.nitems = 0};
    int json = 0, rc = 0;

    const struct hl_flag flags[] = {
        {"dir", HL_FLAG_LIST, &dirs, "D", "a directory that is to hold a store; may be given again",
         NULL},
        {"json", HL_FLAG_SWITCH, &json, NULL, "machine-readable", NULL},
    };
    const struct hl_command cmd = {"doctor",
                                   "What this machine offers to haul, and what to change: ok, warn "
                                   "or fail, each with its remedy.",
                                   flags, sizeof flags / sizeof flags[0],
                                   "Exits with 3 when something fails. Leaves nothing behind; "
                                   "--dir writes 8 MiB there for a moment."};

    rc = hl_flags_parse(&cmd, argc, argv);
    if (rc != HL_FLAGS_GO)
        return rc;
    struct hl_doctor *doc = calloc(1, sizeof *doc);
    if (doc == NULL) {
        fprintf(stderr, "haul doctor: out of memory\n");
        return HL_EXIT_ENVIRONMENT;
    }
    haul_log_set(drop_line, NULL, HAUL_LOG_ERROR); /* findings say it once, in their place */
    hl_doctor_machine(doc);
    hl_doctor_gpu(doc);
    for (uint32_t i = 0; i < dirs.nitems; i++)
        if (hl_doctor_dir(doc, dirs.item[i]))
            hl_doctor_io(doc, dirs.item[i]);
    rc = 0;
    if (json)
        rc = print_json(doc);
    else
        print_text(doc);
    if (rc < 0)
        rc = hl_report_error(&cmd, rc);
    else if (count(doc, HL_HEALTH_FAIL) > 0)
        rc = HL_EXIT_ENVIRONMENT;
    free(doc);
    return rc;
}
