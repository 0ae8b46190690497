/* cmd_plan.c: haul plan. */
#include <stdio.h>
#include <string.h>

#include "commands.h"
#include "flags.h"
#include "plan_report.h"
#include "plan_tiers.h"
#include "profile.h"

struct plan_args {
    struct haul_plan_opts opts;
    struct hl_rates rates;
    int dtype, master, grad_dtype; /* indices of the choices */
    int no_recompute, json;
    const char *html, *profile;
    double tokens, tflops, link_gbps, mem_gbps, drive_gbps;
    int layers_given, hidden_given, seq_given, other_shape_given, params_given, passes_given;
};

static const enum haul_dtype dtypes[] = {HAUL_BF16, HAUL_FP16, HAUL_FP32};

static const char notes[] =
    "Sizes: 24GB (24e9), 24GiB, 13e9. Counts: 13B, 70e9, 64Mi. Budgets left out are unlimited;\n"
    "host and nvme are per node. With --layers, --hidden and --seq the working set (window,\n"
    "gradient buffers, activations, slots) is counted too; without --params they give the number "
    "of parameters.\n"
    "What is counted and assumed: docs/plan.md.\n"
    "\n"
    "examples:\n"
    "  haul plan --params 13e9 --ranks 4 --device-mem 24GB --host-mem 256GB\n"
    "  haul plan --layers 40 --hidden 5120 --seq 2048 --ranks 4 --device-mem 24GB --json";

/* Heads of 128, else 64, else one: what most models of that width have. */
static uint64_t default_heads(uint64_t hidden)
{
    if (hidden % 128 == 0)
        return hidden / 128;
    return hidden % 64 == 0 ? hidden / 64 : 1;
}

static int finish_shape(const struct hl_command *cmd, struct plan_args *a)
{
    struct haul_shape *s = &a->opts.shape;

    s->recompute = !a->no_recompute;
    if (!a->layers_given && !a->hidden_given && !a->seq_given) {
        if (a->other_shape_given)
            return hl_usage_error(cmd,
                                  "--heads, --vocab and --batch need --layers, --hidden and --seq");
        return HL_FLAGS_GO;
    }
    if (!a->layers_given || !a->hidden_given || !a->seq_given)
        return hl_usage_error(cmd, "the shape needs --layers, --hidden and --seq; --%s is missing",
                              !a->layers_given   ? "layers"
                              : !a->hidden_given ? "hidden"
                                                 : "seq");
    if (s->layers == 0)
        return hl_usage_error(cmd, "--layers 0: give at least 1");
    if (s->heads == 0)
        s->heads = default_heads(s->hidden);
    return HL_FLAGS_GO;
}

/* Ψ from the shape, or a warning when the two disagree. */
static int check_params(const struct hl_command *cmd, const struct plan_args *a)
{
    uint64_t derived;
    int rc;

    if (a->params_given && a->opts.params == 0)
        return hl_usage_error(cmd, "--params 0: give at least 1");
    if (a->passes_given && a->opts.passes == 0)
        return hl_usage_error(cmd, "--passes 0: give at least 1");
    if (a->opts.shape.layers == 0) {
        if (a->opts.params == 0)
            return hl_usage_error(cmd, "--params is missing (or --layers, --hidden and --seq)");
        return HL_FLAGS_GO;
    }
    rc = haul_shape_params(&a->opts.shape, &derived);
    if (rc < 0)
        return hl_report_error(cmd, rc);
    const double given = (double)a->opts.params, shaped = (double)derived;
    if (a->opts.params > 0 && (shaped < 0.9 * given || shaped > 1.1 * given))
        fprintf(
            stderr,
            "haul plan: warning: --params %.4g, but a model of this shape has %.4g; the state is "
            "planned for %.4g\n",
            given, shaped, given);
    return HL_FLAGS_GO;
}

/* The rates of a profile; for the bounds the slower direction of its links. */
static int take_profile(const char *name, struct hl_rates *out, struct hl_sim_rates *sim)
{
    struct hl_profile p;
    int rc = hl_profile_load(name, &p);
    const struct hl_sim_rates *r = &p.rates;

    if (rc < 0)
        return rc;
    *sim = *r;
    *out = (struct hl_rates){.flops_per_s = r->flops_per_s,
                             .link_bytes_per_s = r->h2d_bytes_per_s < r->d2h_bytes_per_s
                                                     ? r->h2d_bytes_per_s
                                                     : r->d2h_bytes_per_s,
                             .mem_bytes_per_s = r->mem_bytes_per_s,
                             .drive_read_bytes_per_s = r->drive_read_bytes_per_s,
                             .drive_write_bytes_per_s = r->drive_write_bytes_per_s};
    return 0;
}

static int finish_rates(const struct plan_args *a, struct hl_plan_report *r)
{
    const struct haul_shape *s = &r->opts.shape;
    struct hl_sim_rates *sim = &r->sim_rates;
    int rc = take_profile(a->profile ? a->profile : hl_profile_name(0), &r->rates, sim);

    r->profile = a->profile;
    if (rc < 0)
        return rc;
    if (a->tflops > 0)
        r->rates.flops_per_s = sim->flops_per_s = a->tflops * 1e12;
    if (a->link_gbps > 0)
        r->rates.link_bytes_per_s = sim->h2d_bytes_per_s = sim->d2h_bytes_per_s =
            a->link_gbps * 1e9;
    if (a->mem_gbps > 0)
        r->rates.mem_bytes_per_s = sim->mem_bytes_per_s = sim->optim_bytes_per_s =
            a->mem_gbps * 1e9;
    if (a->drive_gbps > 0)
        r->rates.drive_read_bytes_per_s = r->rates.drive_write_bytes_per_s =
            sim->drive_read_bytes_per_s = sim->drive_write_bytes_per_s =
                sim->drive_mixed_bytes_per_s = a->drive_gbps * 1e9;
    r->rates_given =
        a->profile || a->tflops > 0 || a->link_gbps > 0 || a->mem_gbps > 0 || a->drive_gbps > 0;
    r->tokens = a->tokens;
    if (r->tokens <= 0) {
        const double per_rank = s->layers > 0 ? (double)s->seq * (double)s->batch : 4096;
        r->tokens = per_rank * r->opts.ranks * r->opts.passes;
    }
    return 0;
}

static int work_out(const struct plan_args *a, struct hl_plan_report *r)
{
    int rc = hl_plan_resolve(&a->opts, &r->opts);

    if (rc == 0)
        rc = haul_plan_rows(&r->opts, r->rows);
    if (rc < 0)
        return rc;
    r->best = r->least_offload = hl_plan_recommend(r->rows);
    rc = finish_rates(a, r);
    if (rc < 0 || r->best < 0)
        return rc;
    rc =
        hl_plan_bounds(&r->opts, &r->rows[r->best], r->tokens, &r->rates, &r->least_offload_bounds);
    if (rc < 0)
        return rc;
    hl_plan_simulate(r, &r->sim);
    r->best = r->sim.best >= 0 ? r->sim.best : r->best;
    return hl_plan_bounds(&r->opts, &r->rows[r->best], r->tokens, &r->rates, &r->bounds);
}

static int run(const struct hl_command *cmd, struct plan_args *a)
{
    static struct hl_plan_report report; /* large, and a command runs once */
    int rc = finish_shape(cmd, a);

    if (rc == HL_FLAGS_GO)
        rc = check_params(cmd, a);
    if (rc != HL_FLAGS_GO)
        return rc;
    a->opts.dtype = dtypes[a->dtype];
    a->opts.master = a->master == 0 ? HAUL_MASTER_FP32 : HAUL_MASTER_SPLIT;
    if (a->grad_dtype >= 0)
        a->opts.grad_dtype = dtypes[a->grad_dtype];
    memset(&report, 0, sizeof report);
    rc = work_out(a, &report);
    if (rc == 0 && a->html != NULL)
        rc = hl_plan_write_html(&report, a->html);
    if (rc == 0 && a->json)
        rc = hl_plan_print_json(&report);
    if (rc < 0)
        return hl_report_error(cmd, rc);
    if (!a->json)
        hl_plan_print_table(&report);
    return HL_EXIT_OK;
}

int hl_cmd_plan(int argc, char **argv)
{
    struct plan_args a = {.grad_dtype = -1};
    struct haul_plan_opts *o = &a.opts;
    struct haul_shape *s = &o->shape;

    const struct hl_flag flags[] = {
        {"params", HL_FLAG_COUNT, &o->params, "P", "parameters of the model", &a.params_given},
        {"ranks", HL_FLAG_NUMBER, &o->ranks, "N", "data parallel ranks (default 1)", NULL},
        {"ranks-per-node", HL_FLAG_NUMBER, &o->ranks_per_node, "R", "default min(N, 8)", NULL},
        {"device-mem", HL_FLAG_SIZE, &o->device_mem_per_rank, "SIZE", "budget of one device", NULL},
        {"host-mem", HL_FLAG_SIZE, &o->host_mem_per_node, "SIZE", "host budget of one node", NULL},
        {"nvme-mem", HL_FLAG_SIZE, &o->nvme_mem_per_node, "SIZE", "nvme budget of one node", NULL},
        {"dtype", HL_FLAG_CHOICE, &a.dtype, "bf16|fp16|fp32", "parameters (default bf16)", NULL},
        {"grad-dtype", HL_FLAG_CHOICE, &a.grad_dtype, "bf16|fp16|fp32",
         "gradients at rest (default: as the parameters)", NULL},
        {"master", HL_FLAG_CHOICE, &a.master, "fp32|split", "form of the records (default fp32)",
         NULL},
        {"passes", HL_FLAG_NUMBER, &o->passes, "G",
         "sweeps over the weights per step (default 1; more: FP32 sums)", &a.passes_given},
        {"layers", HL_FLAG_COUNT, &s->layers, "L", "transformer blocks", &a.layers_given},
        {"hidden", HL_FLAG_COUNT, &s->hidden, "D", "width", &a.hidden_given},
        {"seq", HL_FLAG_COUNT, &s->seq, "S", "tokens of a sequence", &a.seq_given},
        {"heads", HL_FLAG_COUNT, &s->heads, "A", "attention heads (default D/128)",
         &a.other_shape_given},
        {"vocab", HL_FLAG_COUNT, &s->vocab, "V", "vocabulary (default 50257)",
         &a.other_shape_given},
        {"batch", HL_FLAG_COUNT, &s->batch, "B", "sequences per rank and micro-batch (default 1)",
         &a.other_shape_given},
        {"no-recompute", HL_FLAG_SWITCH, &a.no_recompute, NULL, "keep all activations", NULL},
        {"tokens", HL_FLAG_REAL, &a.tokens, "T",
         "tokens per step, all ranks (default B*S*N*G, without a shape 4096*N*G)", NULL},
        {"profile", HL_FLAG_TEXT, &a.profile, "NAME|FILE", "rates (haul profile show; haul tune)",
         NULL},
        {"tflops", HL_FLAG_REAL, &a.tflops, "X", "useful TFLOP/s of a device (default 140)", NULL},
        {"link-gbps", HL_FLAG_REAL, &a.link_gbps, "X", "GB/s of a link, one direction (default 25)",
         NULL},
        {"mem-gbps", HL_FLAG_REAL, &a.mem_gbps, "X", "GB/s of a node's host memory (default 160)",
         NULL},
        {"drive-gbps", HL_FLAG_REAL, &a.drive_gbps, "X",
         "GB/s of a node's drives together (default 6)", NULL},
        {"html", HL_FLAG_TEXT, &a.html, "FILE",
         "also a page of its own, with sliders that begin at these values", NULL},
        {"json", HL_FLAG_SWITCH, &a.json, NULL, "machine-readable", NULL},
    };
    const struct hl_command cmd = {
        "plan",
        "What every stage and offload takes per tier, whether it fits, and how fast it can be.",
        flags, sizeof flags / sizeof flags[0], notes};

    haul_plan_opts_init(o);
    s->vocab = 50257;
    s->batch = 1;
    int rc = hl_flags_parse(&cmd, argc, argv);

    return rc == HL_FLAGS_GO ? run(&cmd, &a) : rc;
}
