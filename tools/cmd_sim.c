/* cmd_sim.c: haul sim. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "sim_report.h"

#define MAX_EVENTS (1u << 18)

static const char notes[] =
    "A step is simulated with the engine's own order and placement against a table of rates; "
    "nothing is\n"
    "measured. Without --stage or --offload all that fit are tried, and the cheapest within 5% of "
    "the fastest\n"
    "is taken. --sweep tokens=64k,128k,host-mem=64GB,128GB crosses two lists. What is modelled, "
    "and how near\n"
    "it comes: docs/performance-model.md.\n"
    "\n"
    "examples:\n"
    "  haul sim --model 70b --ranks 64 --tokens 4M\n"
    "  haul sim --model 13b --ranks 4 --tokens 256k --profile 4x3090 --trace step.json\n"
    "  haul sim --model layers=24,hidden=2048 --profile profile.json --sweep tokens=8k,16k,32k,64k";

static struct hl_sim_event events[MAX_EVENTS];

/* The chosen configuration once more, with its events. */
static int trace(struct hl_sim_answer *a, const char *path)
{
    struct hl_sim_opts *o = &a->made->opts;
    int rc;

    o->events = events;
    o->max_events = MAX_EVENTS;
    rc = hl_sim_run(o, &a->choice[a->best].result);
    return rc < 0 ? rc : hl_sim_write_trace(a, path);
}

static int run(const struct hl_command *cmd, const struct hl_sim_request *q, int json,
               const char *trace_path)
{
    static struct hl_sim_case made; /* large, and a command runs once */
    static struct hl_sim_answer answer;
    int rc = hl_sim_case_make(cmd, q, &made);

    if (rc != HL_FLAGS_GO)
        return rc;
    answer.made = &made;
    rc = hl_sim_choose(&made, answer.choice, &answer.nchoices, &answer.best);
    if (rc == 0 && answer.best >= 0)
        rc = hl_sim_upgrade(&made.opts, answer.choice[answer.best].result.step_s, &answer.upgrade);
    if (rc == 0 && answer.best >= 0 && trace_path)
        rc = trace(&answer, trace_path);
    if (rc == 0 && json)
        rc = hl_sim_print_json(&answer);
    else if (rc == 0)
        hl_sim_print_table(&answer);
    return rc < 0 ? hl_report_error(cmd, rc) : HL_EXIT_OK;
}

int hl_cmd_sim(int argc, char **argv)
{
    static struct hl_sim_request q;
    struct hl_flag_list sweep = {.nitems = 0};
    const char *trace_path = NULL, *plot = NULL;
    int json = 0, rc;

    hl_sim_request_init(&q);
    const struct hl_flag flags[] = {
        {"model", HL_FLAG_LIST, &q.model, "NAME",
         "7b, 13b, 70b, or layers=L,hidden=H[,vocab=,seq=]", NULL},
        {"params", HL_FLAG_COUNT, &q.params, "P", "instead: equal units", NULL},
        {"units", HL_FLAG_NUMBER, &q.units, "N", "of --params (default 32)", NULL},
        {"seq", HL_FLAG_COUNT, &q.seq, "S", "tokens of a sequence (default: the model's)", NULL},
        {"ranks", HL_FLAG_NUMBER, &q.ranks, "N", "data parallel ranks (default 1)", NULL},
        {"ranks-per-node", HL_FLAG_NUMBER, &q.ranks_per_node, "R", "default: the profile's", NULL},
        {"tokens", HL_FLAG_COUNT, &q.tokens, "T",
         "of a step, all ranks (default one sequence each)", NULL},
        {"accum", HL_FLAG_NUMBER, &q.accum, "A",
         "micro-batches of a step (default: of one sequence a rank)", NULL},
        {"order", HL_FLAG_CHOICE, &q.order, "layer|batch",
         "all micro-batches through a unit, or one through all (default layer)", NULL},
        {"profile", HL_FLAG_TEXT, &q.profile_name, "NAME|FILE",
         "the machine (haul profile show; default plan)", NULL},
        {"stage", HL_FLAG_NUMBER, &q.stage, "0..3", "default: choose", &q.stage_given},
        {"offload", HL_FLAG_CHOICE, &q.offload, "none|optimizer|all", "default: choose",
         &q.offload_given},
        {"master", HL_FLAG_CHOICE, &q.master, "fp32|split", "form of the records (default fp32)",
         NULL},
        {"share", HL_FLAG_CHOICE, &q.share, "gather|pull",
         "how ranks of a node reach each other's shards (default gather)", NULL},
        {"overlap", HL_FLAG_CHOICE, &q.overlap, "deferred|off", "of the updates (default deferred)",
         NULL},
        {"no-recompute", HL_FLAG_SWITCH, &q.no_recompute, NULL, "keep all activations", NULL},
        {"stash", HL_FLAG_SWITCH, &q.stash, NULL,
         "inputs of blocks leave the device until backward", NULL},
        {"stash-host-mem", HL_FLAG_SIZE, &q.stash_host_mem, "SIZE",
         "of a rank; what is over goes to nvme", NULL},
        {"device-mem", HL_FLAG_SIZE, &q.device_mem, "SIZE", "budget of one device", NULL},
        {"host-mem", HL_FLAG_SIZE, &q.host_mem, "SIZE", "host budget of one node", NULL},
        {"nvme-mem", HL_FLAG_SIZE, &q.nvme_mem, "SIZE", "nvme budget of one node", NULL},
        {"window", HL_FLAG_NUMBER, &q.window, "N", "units on the device (default 2)", NULL},
        {"slots", HL_FLAG_NUMBER, &q.slots, "N", "for paged records (default 4)", NULL},
        {"slot-bytes", HL_FLAG_SIZE, &q.slot_bytes, "SIZE", "of one (default 32MiB)", NULL},
        {"tflops", HL_FLAG_REAL, &q.tflops, "X", "instead of the profile's", NULL},
        {"link-gbps", HL_FLAG_REAL, &q.link_gbps, "X", "instead of the profile's, each way", NULL},
        {"mem-gbps", HL_FLAG_REAL, &q.mem_gbps, "X", "of host memory and optimizer", NULL},
        {"drive-gbps", HL_FLAG_REAL, &q.drive_gbps, "X", "of a node's drives, however used", NULL},
        {"sweep", HL_FLAG_LIST, &sweep, "KEY=V,V,...", "one or two lists of values", NULL},
        {"plot", HL_FLAG_TEXT, &plot, "FILE.svg", "the sweep drawn by gnuplot", NULL},
        {"trace", HL_FLAG_TEXT, &trace_path, "FILE", "a timeline for Perfetto", NULL},
        {"json", HL_FLAG_SWITCH, &json, NULL, "machine-readable", NULL},
    };
    const struct hl_command cmd = {"sim", "A training step before it is run: how long, and why.",
                                   flags, sizeof flags / sizeof *flags, notes};

    rc = hl_flags_parse(&cmd, argc, argv);
    if (rc != HL_FLAGS_GO)
        return rc;
    if (plot && !sweep.nitems)
        return hl_usage_error(&cmd, "--plot draws a --sweep");
    if (trace_path && sweep.nitems)
        return hl_usage_error(&cmd, "--trace is of one step, not of a --sweep");
    return sweep.nitems ? hl_sim_sweep(&cmd, &q, &sweep, json, plot)
                        : run(&cmd, &q, json, trace_path);
}
