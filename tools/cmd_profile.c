/* cmd_profile.c: haul profile show. */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>

#include "commands.h"
#include "flags.h"
#include "profile.h"

/* Latencies in microseconds, rates in G or T. */
static void print_value(unsigned i, double v)
{
    const char *name = hl_profile_rate_name(i);

    if (i >= HL_RATE_MEM_PER_LINK_BYTE)
        printf("%-24s %9.4g         ", name, v);
    else if (i == HL_RATE_FLOPS)
        printf("%-24s %9.4g TFLOP/s ", name, v / 1e12);
    else if (v < 1)
        printf("%-24s %9.4g us      ", name, v * 1e6);
    else
        printf("%-24s %9.4g GB/s    ", name, v / 1e9);
}

static void print_table(struct hl_profile *p)
{
    printf("%s: %s\n", p->name, p->about);
    for (unsigned i = 0; i < HL_PROFILE_RATES; i++) {
        print_value(i, *hl_profile_rate(&p->rates, i));
        printf(" %s\n", p->source[i]);
    }
    if (p->ranks_per_node)
        printf("%-24s %9llu\n", "ranks_per_node", (unsigned long long)p->ranks_per_node);
    if (p->device_mem_bytes)
        printf("%-24s %9.4g GB\n", "device_mem_bytes", (double)p->device_mem_bytes / 1e9);
    if (p->host_mem_bytes)
        printf("%-24s %9.4g GB\n", "host_mem_bytes", (double)p->host_mem_bytes / 1e9);
    if (p->written_bytes_rated > 0)
        printf("%-24s %9.4g TB       written, all drives of a node\n", "written_bytes_rated",
               p->written_bytes_rated / 1e12);
}

/* The form that --profile reads. */
static int print_json(struct hl_profile *p)
{
    json_t *rates = json_object(), *sources = json_object(), *root;
    int failed = !rates || !sources;

    for (unsigned i = 0; i < HL_PROFILE_RATES; i++) {
        const char *name = hl_profile_rate_name(i);

        failed |= json_object_set_new(rates, name, json_real(*hl_profile_rate(&p->rates, i))) < 0;
        failed |= json_object_set_new(sources, name, json_string(p->source[i])) < 0;
    }
    root = json_pack("{s:i, s:s, s:s, s:O, s:O}", "version", 1, "name", p->name, "about", p->about,
                     "rates", rates, "sources", sources);
    failed |= !root;
    if (root && p->ranks_per_node)
        json_object_set_new(root, "ranks_per_node", json_integer((json_int_t)p->ranks_per_node));
    if (root && p->device_mem_bytes)
        json_object_set_new(root, "device_mem_bytes",
                            json_integer((json_int_t)p->device_mem_bytes));
    if (root && p->host_mem_bytes)
        json_object_set_new(root, "host_mem_bytes", json_integer((json_int_t)p->host_mem_bytes));
    if (root && p->written_bytes_rated > 0)
        json_object_set_new(root, "written_bytes_rated", json_real(p->written_bytes_rated));
    failed |= !root || json_dumpf(root, stdout, JSON_INDENT(2)) < 0;
    json_decref(root);
    json_decref(rates);
    json_decref(sources);
    putchar('\n');
    return failed ? -ENOMEM : 0;
}

static int list(void)
{
    for (unsigned i = 0; hl_profile_name(i); i++)
        printf("%-10s %s\n", hl_profile_name(i), hl_profile_about(i));
    return HL_EXIT_OK;
}

int hl_cmd_profile_show(int argc, char **argv)
{
    const char *name = NULL;
    struct hl_profile p;
    int json = 0, rc;
    const struct hl_flag flags[] = {
        {"json", HL_FLAG_SWITCH, &json, NULL, "as a file that --profile reads", NULL},
    };
    const struct hl_command cmd = {
        "profile show",
        "A profile's rates and where each is from: [NAME|FILE]; without, the built-in ones.", flags,
        sizeof flags / sizeof *flags, "haul tune writes files; haul sim reads them."};

    if (argc > 1 && argv[1][0] != '-') {
        name = argv[1];
        argc--;
        argv++;
    }
    rc = hl_flags_parse(&cmd, argc, argv);
    if (rc != HL_FLAGS_GO)
        return rc;
    if (!name)
        return list();
    rc = hl_profile_load(name, &p);
    if (rc == 0 && json)
        rc = print_json(&p);
    else if (rc == 0)
        print_table(&p);
    return rc < 0 ? hl_report_error(&cmd, rc) : HL_EXIT_OK;
}
