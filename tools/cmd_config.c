/* cmd_config.c: haul config: what a configuration comes to, and where each value is from. */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "commands.h"
#include "flags.h"
#include "haul/config.h"

static const char notes[] =
    "FILE is a DeepSpeed ds_config.json, with haul's own keys in an object \"haul\". Without FILE "
    "only\n"
    "environment and flags are read. Before the file counts the environment (HAUL_HOST_MEM for\n"
    "host_mem), before that --set. Every key: docs/configuration.md.\n"
    "\n"
    "examples:\n"
    "  haul config ds_config.json\n"
    "  haul config ds_config.json --strict --json --set host_mem=200GB,slots=8";

static const char *source_name(enum haul_config_source source)
{
    static const char *const names[] = {[HAUL_CONFIG_DEFAULT] = "default",
                                        [HAUL_CONFIG_FILE] = "file",
                                        [HAUL_CONFIG_ENVIRONMENT] = "environment",
                                        [HAUL_CONFIG_FLAG] = "flag"};

    return names[source];
}

static int print_table(const struct haul_config *config)
{
    struct haul_config_setting s = {.struct_size = sizeof s};
    const char *note;

    printf("%-18s %-24s %-12s %s\n", "setting", "value", "source", "where");
    for (uint32_t i = 0; i < haul_config_count(config); i++) {
        int rc = haul_config_get_setting(config, i, &s);

        if (rc < 0)
            return rc;
        printf("%-18s %-24s %-12s %s\n", s.key, *s.value ? s.value : "-", source_name(s.source),
               s.where);
    }
    for (uint32_t i = 0; (note = haul_config_note(config, i)) != NULL; i++)
        printf("%snote: %s\n", i == 0 ? "\n" : "", note);
    return 0;
}

static int add_setting(json_t *settings, const struct haul_config *config, uint32_t i)
{
    struct haul_config_setting s = {.struct_size = sizeof s};
    int rc = haul_config_get_setting(config, i, &s);

    if (rc < 0)
        return rc;
    return json_object_set_new(settings, s.key,
                               json_pack("{s:s, s:s, s:s}", "value", s.value, "source",
                                         source_name(s.source), "where", s.where)) < 0
               ? -ENOMEM
               : 0;
}

/* Key names are a contract: append only. */
static int print_json(const struct haul_config *config)
{
    json_t *settings = json_object(), *list = json_array(), *root;
    const char *note;
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < haul_config_count(config); i++)
        rc = add_setting(settings, config, i);
    for (uint32_t i = 0; rc == 0 && (note = haul_config_note(config, i)) != NULL; i++)
        rc = json_array_append_new(list, json_string(note)) < 0 ? -ENOMEM : 0;
    root = json_pack("{s:o, s:o}", "settings", settings, "notes", list);
    if (rc == 0 && root == NULL)
        rc = -ENOMEM;
    if (rc == 0) {
        json_dumpf(root, stdout, JSON_INDENT(2));
        putchar('\n');
    }
    json_decref(root);
    return rc;
}

static int run(const struct hl_command *cmd, const char *path, const struct haul_config_opts *opts,
               int json)
{
    struct haul_config *config;
    int rc = haul_config_load(path, opts, &config);

    if (rc < 0)
        return hl_report_error(cmd, rc);
    rc = json ? print_json(config) : print_table(config);
    haul_config_close(config);
    return rc < 0 ? hl_report_error(cmd, rc) : HL_EXIT_OK;
}

int hl_cmd_config(int argc, char **argv)
{
    struct hl_flag_list set = {.nitems = 0};
    struct haul_config_opts opts;
    int strict = 0, json = 0, rc;
    const char *path = NULL;

    haul_config_opts_init(&opts);
    const struct hl_flag flags[] = {
        {"strict", HL_FLAG_SWITCH, &strict, NULL, "an unknown key is an error", NULL},
        {"set", HL_FLAG_LIST, &set, "KEY=VALUE", "haul's own keys, before all other sources", NULL},
        {"ranks", HL_FLAG_NUMBER, &opts.ranks, "N",
         "ranks, which batch sizes must agree with (default: not known)", NULL},
        {"json", HL_FLAG_SWITCH, &json, NULL, "machine-readable", NULL},
    };
    const struct hl_command cmd = {
        "config", "What a configuration file comes to, value by value: [FILE] [flags].", flags,
        sizeof flags / sizeof flags[0], notes};

    if (argc > 1 && argv[1][0] != '-') {
        path = argv[1];
        argc--;
        argv++;
    }
    rc = hl_flags_parse(&cmd, argc, argv);
    if (rc != HL_FLAGS_GO)
        return rc;
    opts.strict = strict;
    opts.flags = set.item;
    opts.nflags = set.nitems;
    return run(&cmd, path, &opts, json);
}
