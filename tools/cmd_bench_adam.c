/* cmd_bench_adam.c: haul bench adam. */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>

#include "arith.h"
#include "bench_adam.h"
#include "bench_plot.h"
#include "commands.h"
#include "flags.h"
#include "kernel_table.h"

struct request {
    uint64_t elems;
    uint32_t threads, repeats;
    int layout, grad, out, optimizer, moments, variant; /* indices of the words below */
    int norm, whole_step, json;
    const char *plot;
};

enum { LAYOUT_ALL = 0, LAYOUT_FP32, LAYOUT_SPLIT };
enum { VARIANT_ALL = 0, VARIANT_BEST, VARIANT_FIRST };

static const char *const dtype_names[] = {"none", "fp32", "bf16", "fp16"};
static const char *const optimizer_names[] = {"adamw", "adam", "lion", "adagrad", "sgd"};
static const enum hl_isa variants[] = {HL_ISA_C, HL_ISA_NEON, HL_ISA_AVX2, HL_ISA_AVX512};

static const char *layout_name(const struct hl_bench_case *c)
{
    return c->norm ? "norm" : c->master == HAUL_MASTER_SPLIT ? "split" : "fp32";
}

static const char *out_name(const struct hl_bench_case *c)
{
    return dtype_names[c->norm ? HAUL_DTYPE_NONE : c->out];
}

struct report {
    const struct request *req;
    struct hl_bench_opts opts;
    unsigned cores; /* allowed here; asked before threads are bound */
    int bound;
    json_t *cases; /* NULL: print lines */
    int failed;    /* a line could not be added */
    struct hl_bench_plot plot;
};

static void put_header(const struct report *r, unsigned checked)
{
    if (r->cases)
        return;
    printf("%u cases have the bits of the C reference\n", checked);
    printf("%u threads (%u cores allowed here)%s, %llu elements, median of %u\n\n", r->opts.threads,
           r->cores, r->bound ? ", bound to cores" : ", not bound",
           (unsigned long long)r->opts.elems, r->opts.repeats);
    if (!r->req->whole_step)
        printf("%-8s %-8s %-7s %-5s %-5s %8s %8s %8s %7s %7s %8s %8s  %s\n", "variant", "rule",
               "layout", "grad", "out", "ns/elem", "GB/s", "roof", "ratio", "spread", "fastest",
               "roof's", "roof is");
}

static void set(struct report *r, json_t *o, const char *key, json_t *value)
{
    r->failed |= json_object_set_new(o, key, value) < 0;
}

/* An object in the list of cases, with what every case says. */
static json_t *new_case(struct report *r, const struct hl_bench_case *c)
{
    json_t *o = json_object();

    r->failed |= json_array_append_new(r->cases, o) < 0;
    set(r, o, "variant", json_string(hl_isa_name(c->isa)));
    set(r, o, "threads", json_integer(r->opts.threads));
    set(r, o, "layout", json_string(layout_name(c)));
    set(r, o, "grad", json_string(dtype_names[c->grad]));
    set(r, o, "out", json_string(out_name(c)));
    set(r, o, "elems", json_integer((json_int_t)r->opts.elems));
    return o;
}

static void put_case(struct report *r, const struct hl_bench_case *c,
                     const struct hl_bench_result *x)
{
    const char *rule = c->norm ? "norm" : optimizer_names[c->opt.kind];
    int rounds = !c->norm && c->opt.moment_dtype == HAUL_BF16;
    json_t *o;

    hl_bench_plot_add(&r->plot, x->ns_per_elem, x->roof_ns_per_elem, "%s %s %s",
                      hl_isa_name(c->isa), rule, layout_name(c));
    if (!r->cases) {
        printf("%-8s %-8s %-7s %-5s %-5s %8.4f %8.1f %8.4f %7.3f %7.3f %8.4f %8.4f  %s%s\n",
               hl_isa_name(c->isa), rule, layout_name(c), dtype_names[c->grad], out_name(c),
               x->ns_per_elem, x->gb_per_s, x->roof_ns_per_elem, x->ratio_to_roof, x->spread,
               x->fastest_ns_per_elem, x->fastest_roof_ns_per_elem, x->roof,
               rounds ? " (BF16 moments: changes the mathematics)" : "");
        return;
    }
    o = new_case(r, c);
    set(r, o, "optimizer", json_string(rule));
    set(r, o, "moments", json_string(dtype_names[c->opt.moment_dtype]));
    set(r, o, "changes_mathematics", json_boolean(rounds));
    set(r, o, "ns_per_elem", json_real(x->ns_per_elem));
    set(r, o, "gb_per_s", json_real(x->gb_per_s));
    set(r, o, "roof_ns_per_elem", json_real(x->roof_ns_per_elem));
    set(r, o, "ratio_to_roof", json_real(x->ratio_to_roof));
    set(r, o, "spread", json_real(x->spread));
    set(r, o, "fastest_ns_per_elem", json_real(x->fastest_ns_per_elem));
    set(r, o, "fastest_roof_ns_per_elem", json_real(x->fastest_roof_ns_per_elem));
    set(r, o, "bytes_per_elem", json_integer(x->bytes_per_elem));
    set(r, o, "roof", json_string(x->roof));
}

static void put_whole_step(struct report *r, const struct hl_bench_case *c,
                           const struct hl_whole_step *x)
{
    json_t *o;

    hl_bench_plot_add(&r->plot, x->ns_per_elem, x->separate_ns_per_elem, "%s %s",
                      hl_isa_name(c->isa), layout_name(c));
    if (!r->cases) {
        printf("whole step, %s, %s, gradients %s:\n", hl_isa_name(c->isa), layout_name(c),
               dtype_names[c->grad]);
        printf("  separate passes         %8.4f ns per element, %u bytes\n",
               x->separate_ns_per_elem, x->bytes_per_elem_separate);
        printf("  norm pass, then update  %8.4f ns per element: %.2f times as fast\n",
               x->with_norm_ns_per_elem, x->speedup_with_norm);
        printf("  update, norm on arrival %8.4f ns per element, %u bytes: %.2f times as fast\n",
               x->ns_per_elem, x->bytes_per_elem, x->speedup);
        return;
    }
    o = new_case(r, c);
    set(r, o, "ns_per_elem", json_real(x->ns_per_elem));
    set(r, o, "separate_ns_per_elem", json_real(x->separate_ns_per_elem));
    set(r, o, "with_norm_ns_per_elem", json_real(x->with_norm_ns_per_elem));
    set(r, o, "whole_step_speedup", json_real(x->speedup));
    set(r, o, "whole_step_speedup_with_norm_pass", json_real(x->speedup_with_norm));
    set(r, o, "bytes_per_elem", json_integer(x->bytes_per_elem));
    set(r, o, "bytes_per_elem_separate", json_integer(x->bytes_per_elem_separate));
}

static int run_case(struct report *r, const struct hl_bench_arena *arena,
                    const struct hl_bench_case *c)
{
    struct hl_bench_result result;
    struct hl_whole_step whole;
    int rc;

    if (r->req->whole_step) {
        rc = hl_bench_whole_step(&r->opts, arena, c, &whole);
        if (rc == 0)
            put_whole_step(r, c, &whole);
        return rc;
    }
    rc = hl_bench_run(&r->opts, arena, c, &result);
    if (rc == 0)
        put_case(r, c, &result);
    fflush(stdout);
    return rc;
}

/* The cases of one variant. */
static int run_variant(struct report *r, const struct hl_bench_arena *arena, enum hl_isa isa)
{
    const struct request *q = r->req;
    struct hl_bench_case c = {.isa = isa, .grad = (enum haul_dtype)(q->grad + 1)};
    int rc = 0;

    haul_optim_init(&c.opt, (enum haul_optimizer)q->optimizer);
    c.opt.moment_dtype = q->moments ? HAUL_BF16 : HAUL_FP32;
    if (q->norm) {
        c.norm = 1;
        return run_case(r, arena, &c);
    }
    if (q->layout != LAYOUT_SPLIT) {
        c.out = q->out == 2 ? HAUL_DTYPE_NONE : q->out ? HAUL_FP16 : HAUL_BF16;
        rc = run_case(r, arena, &c);
    }
    if (rc == 0 && q->layout != LAYOUT_FP32) {
        c.out = HAUL_BF16;
        c.master = HAUL_MASTER_SPLIT;
        rc = run_case(r, arena, &c);
    }
    return rc;
}

static int wanted(const struct request *q, enum hl_isa isa)
{
    if (!hl_cpu_has(isa) || !hl_kernels_of(isa))
        return 0;
    if (q->variant == VARIANT_BEST || (q->whole_step && q->variant == VARIANT_ALL))
        return hl_kernels_of(isa) == hl_kernels_best();
    if (q->variant == VARIANT_ALL)
        return isa != HL_ISA_C; /* slow, and made to be read: only when asked for by name */
    return variants[q->variant - VARIANT_FIRST] == isa;
}

static int run_all(struct report *r)
{
    struct hl_bench_arena arena;
    unsigned checked;
    int rc = hl_bench_check(r->opts.threads, &checked);

    if (rc < 0)
        return rc;
    rc = hl_bench_arena_open(&r->opts, &arena);
    if (rc < 0)
        return rc;
    r->bound = arena.bound;
    put_header(r, checked);
    for (unsigned i = 0; rc == 0 && i < sizeof variants / sizeof *variants; i++)
        if (wanted(r->req, variants[i]))
            rc = run_variant(r, &arena, variants[i]);
    hl_bench_arena_close(&arena);
    return rc;
}

static int print_json(struct report *r)
{
    json_t *root = json_pack("{s:I, s:I, s:b, s:I, s:O}", "threads", (json_int_t)r->opts.threads,
                             "cores_allowed", (json_int_t)r->cores, "bound", r->bound, "repeats",
                             (json_int_t)r->opts.repeats, "cases", r->cases);
    int rc = !root || r->failed || json_dumpf(root, stdout, JSON_INDENT(2)) < 0 ? -ENOMEM : 0;

    json_decref(root);
    if (rc == 0)
        putchar('\n');
    return rc;
}

static int check_request(const struct hl_command *cmd, const struct request *q)
{
    int named = q->variant >= VARIANT_FIRST;
    enum hl_isa isa = named ? variants[q->variant - VARIANT_FIRST] : HL_ISA_C;

    if (q->elems < 65536 || q->elems > UINT64_C(1) << 40)
        return hl_usage_error(cmd, "--elems must be from 65536 to 2^40");
    if (q->repeats < 7 || q->repeats > HL_BENCH_MAX_REPEATS)
        return hl_usage_error(cmd, "--repeats must be from 7 to %d", HL_BENCH_MAX_REPEATS);
    if (q->threads > 4096)
        return hl_usage_error(cmd, "--threads must be at most 4096");
    if (q->norm && q->whole_step)
        return hl_usage_error(cmd, "--norm and --whole-step exclude each other");
    if (q->whole_step && (q->optimizer != HAUL_ADAMW || q->moments || q->grad == 0 || q->out == 2))
        return hl_usage_error(cmd, "--whole-step is AdamW from 16-bit gradients to 16-bit "
                                   "parameters with fp32 moments");
    if (q->layout == LAYOUT_SPLIT && q->out != 0)
        return hl_usage_error(cmd, "--layout split publishes bf16 only");
    if (named && (!hl_cpu_has(isa) || !hl_kernels_of(isa))) {
        fprintf(stderr, "haul %s: this CPU does not run %s\n", cmd->name, hl_isa_name(isa));
        return HL_EXIT_ENVIRONMENT;
    }
    return HL_FLAGS_GO;
}

static int run_request(const struct hl_command *cmd, const struct request *q)
{
    struct report r = {.req = q,
                       .opts = {.repeats = q->repeats},
                       .plot = {.path = q->plot,
                                .title = "Optimizer kernels beside their roof, median",
                                .unit = "ns per element",
                                .value = "kernel",
                                .bound = q->whole_step ? "separate passes" : "roof"}};
    int rc;

    r.cores = haul_optim_threads(1);
    r.opts.threads = q->threads ? q->threads : r.cores;
    r.opts.elems = q->elems / 65536 * 65536; /* whole grains for every thread and roof */
    if (q->json) {
        r.cases = json_array();
        if (!r.cases)
            return hl_report_error(cmd, -ENOMEM);
    }
    rc = run_all(&r);
    if (rc == 0 && q->json)
        rc = print_json(&r);
    if (rc == 0)
        rc = hl_bench_plot_draw(&r.plot);
    json_decref(r.cases);
    return rc < 0 ? hl_report_error(cmd, rc) : HL_EXIT_OK;
}

int hl_cmd_bench_adam(int argc, char **argv)
{
    struct request q = {.elems = 64 << 20, .repeats = 9, .grad = 1};
    const struct hl_flag flags[] = {
        {"elems", HL_FLAG_COUNT, &q.elems, "N", "elements (default 64Mi = 67108864)", NULL},
        {"threads", HL_FLAG_NUMBER, &q.threads, "N", "default: what an update would use here",
         NULL},
        {"layout", HL_FLAG_CHOICE, &q.layout, "all|fp32|split", "how the master is kept", NULL},
        {"grad", HL_FLAG_CHOICE, &q.grad, "fp32|bf16|fp16", "gradients (default bf16)", NULL},
        {"out", HL_FLAG_CHOICE, &q.out, "bf16|fp16|none", "published parameter", NULL},
        {"optimizer", HL_FLAG_CHOICE, &q.optimizer, "adamw|adam|lion|adagrad|sgd", "update rule",
         NULL},
        {"moments", HL_FLAG_CHOICE, &q.moments, "fp32|bf16",
         "bf16: rounded stochastically, changes the mathematics", NULL},
        {"variant", HL_FLAG_CHOICE, &q.variant, "all|best|c|neon|avx2|avx512",
         "instruction set; all leaves out c", NULL},
        {"repeats", HL_FLAG_NUMBER, &q.repeats, "N", "at least 7 (default 9)", NULL},
        {"norm", HL_FLAG_SWITCH, &q.norm, NULL, "the norm beside a read-only roof", NULL},
        {"whole-step", HL_FLAG_SWITCH, &q.whole_step, NULL,
         "from landed gradient to published parameter, and the same as separate passes", NULL},
        {"plot", HL_FLAG_TEXT, &q.plot, "FILE.svg", "the same drawn by gnuplot", NULL},
        {"json", HL_FLAG_SWITCH, &q.json, NULL, "machine-readable", NULL},
    };
    const struct hl_command cmd = {
        "bench adam",
        "Check every kernel against the C reference, then time it beside the fastest way of moving "
        "the same bytes.",
        flags, sizeof flags / sizeof flags[0],
        "ratio: roof time / kernel time, both medians of runs that took turns. Needs 22 bytes of\n"
        "memory per element. spread: (slowest - fastest) / median."};
    int rc = hl_flags_parse(&cmd, argc, argv);

    if (rc == HL_FLAGS_GO)
        rc = check_request(&cmd, &q);
    return rc != HL_FLAGS_GO ? rc : run_request(&cmd, &q);
}
