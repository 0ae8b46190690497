/* cmd_report.c: haul report: a run as one page that needs no network and no script. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "commands.h"
#include "fail.h"
#include "flags.h"
#include "haul/size.h"
#include "page_texts.h"
#include "report_charts.h"
#include "report_svg.h"

struct report_args {
    const char *run, *trace, *output;
    uint64_t step;
};

static void tile(FILE *out, const char *name, const char *value)
{
    fprintf(out, "<div><dt>%s</dt><dd>", name);
    hl_svg_text(out, value);
    fputs("</dd></div>\n", out);
}

static void number_tile(FILE *out, const char *name, double value, const char *unit)
{
    char number[32], text[64];

    snprintf(text, sizeof text, "%s%s", hl_svg_number(value, number, sizeof number), unit);
    tile(out, name, text);
}

static void print_tiles(FILE *out, const struct hl_run *run)
{
    const struct hl_run_step *first = &run->steps[0], *last = &run->steps[run->nsteps - 1];
    const char *digest = json_string_value(hl_run_summary(run, "digest"));
    double ms = 0, tokens_per_s = 0;
    uint64_t nskipped = 0;

    for (size_t i = 0; i < run->nsteps; i++) {
        ms += run->steps[i].ms / (double)run->nsteps;
        tokens_per_s += run->steps[i].tokens_per_s * run->steps[i].ms;
        nskipped += run->steps[i].skipped != 0;
    }
    fputs("<dl class=\"tiles\">\n", out);
    number_tile(out, "steps", (double)run->nsteps, "");
    number_tile(out, "first loss", first->loss, "");
    number_tile(out, "last loss", last->loss, "");
    number_tile(out, "step", ms, " ms");
    if (ms > 0)
        number_tile(out, "tokens", tokens_per_s / (ms * (double)run->nsteps), "/s");
    if (nskipped > 0)
        number_tile(out, "skipped", (double)nskipped, " steps");
    if (digest != NULL)
        tile(out, "digest", digest);
    fputs("</dl>\n", out);
}

static void print_head(FILE *out, const struct hl_run *run, const char *path)
{
    fputs("<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
          "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
          "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
          "'unsafe-inline'; img-src data:\">\n<link rel=\"icon\" href=\"data:,\">\n<title>haul: ",
          out);
    hl_svg_text(out, path);
    fprintf(out,
            "</title>\n<style>\n%s</style>\n</head>\n<body>\n<header>\n<h1>Training run</h1>\n",
            hl_page_css);
    fputs("<p class=\"quiet\">", out);
    hl_svg_text(out, path);
    fprintf(out, ", steps %" PRIu64 " to %" PRIu64 "</p>\n", run->steps[0].step,
            run->steps[run->nsteps - 1].step);
    if (run->summary == NULL)
        fputs("<p class=\"bad\">The run ended before its last line: no ledger, no peaks, no "
              "machine.</p>\n",
              out);
    print_tiles(out, run);
    fputs("</header>\n<main>\n<div class=\"cards\">\n", out);
}

static void print_ledger(FILE *out, const struct hl_run *run)
{
    const json_t *ledger = hl_run_summary(run, "ledger");
    const json_t *line;
    size_t i;
    double sum = 0;
    char size[32];

    if (json_array_size(ledger) == 0)
        return;
    fputs("<section class=\"tall\">\n<h2>Ledger: every byte reserved</h2>\n<div class=\"scroll\" "
          "tabindex=\"0\" "
          "role=\"region\" aria-label=\"Ledger\"><table><thead><tr><th scope=\"col\">tier</th><th "
          "class=\"words\" scope=\"col\">purpose</th><th scope=\"col\">bytes</th><th "
          "scope=\"col\">size</th></tr></thead><tbody>\n",
          out);
    json_array_foreach (ledger, i, line) {
        const char *tier = json_string_value(json_object_get(line, "tier"));
        const char *purpose = json_string_value(json_object_get(line, "purpose"));
        double bytes = json_number_value(json_object_get(line, "bytes"));

        fputs("<tr><td>", out);
        hl_svg_text(out, tier != NULL ? tier : "");
        fputs("</td><td class=\"words\">", out);
        hl_svg_text(out, purpose != NULL ? purpose : "");
        fprintf(out, "</td><td>%.0f</td><td>%s</td></tr>\n", bytes,
                haul_format_size((uint64_t)bytes, size, sizeof size));
        sum += bytes;
    }
    fprintf(out,
            "<tr><td>in all</td><td></td><td>%.0f</td><td>%s</td></tr>\n</tbody></table></div>\n"
            "</section>\n",
            sum, haul_format_size((uint64_t)sum, size, sizeof size));
}

/* local_ranks: "local ranks"; memory_bytes, whose value has a unit: "memory". */
static void print_key(FILE *out, const char *key)
{
    char words[64];

    snprintf(words, sizeof words, "%s", key);
    if (strstr(words, "_bytes") != NULL)
        *strstr(words, "_bytes") = '\0';
    for (char *c = words; *c != '\0'; c++)
        *c = *c == '_' ? ' ' : *c;
    hl_svg_text(out, words);
}

/* An object of the summary, key by key. */
static void print_object(FILE *out, const char *heading, const json_t *object)
{
    const char *key;
    json_t *value;
    char size[32];

    if (json_object_size(object) == 0)
        return;
    fprintf(out, "<section>\n<h2>%s</h2>\n<table><tbody>\n", heading);
    json_object_foreach ((json_t *)object, key, value) {
        fputs("<tr><th scope=\"row\">", out);
        print_key(out, key);
        fputs("</th><td class=\"words\">", out);
        if (json_is_string(value))
            hl_svg_text(out, json_string_value(value));
        else if (strstr(key, "_bytes") != NULL)
            fputs(haul_format_size((uint64_t)json_integer_value(value), size, sizeof size), out);
        else
            fprintf(out, "%.10g", json_number_value(value));
        fputs("</td></tr>\n", out);
    }
    fputs("</tbody></table>\n</section>\n", out);
}

static int print_page(FILE *out, const struct hl_run *run, const struct report_args *a)
{
    int rc;

    print_head(out, run, a->run);
    hl_report_loss(out, run);
    hl_report_step_time(out, run);
    hl_report_held(out, run);
    hl_report_tiers(out, run);
    hl_report_rates(out, run);
    rc = hl_report_timeline(out, run, a->step);
    print_ledger(out, run);
    print_object(out, "Run", hl_run_summary(run, "run"));
    print_object(out, "Machine", hl_run_summary(run, "machine"));
    fputs(
        "</div>\n<p class=\"quiet\">Rank 0. Times that compute did not wait for are hidden behind "
        "it. Figures of an emulated device are emulated.</p>\n</main>\n</body>\n</html>\n",
        out);
    return rc;
}

static int write_page(const struct hl_run *run, const struct report_args *a)
{
    FILE *out = fopen(a->output, "w");
    int rc, failed;

    if (out == NULL)
        return hl_fail(-errno, "%s: %s", a->output, strerror(errno));
    rc = print_page(out, run, a);
    failed = ferror(out);
    if (fclose(out) != 0 || failed)
        return rc < 0 ? rc
                      : hl_fail(-EIO, "%s: could not be written: %s", a->output, strerror(errno));
    return rc;
}

static int run_report(const struct hl_command *cmd, const struct report_args *a)
{
    struct hl_run run;
    int rc = hl_run_read(a->run, &run);

    if (rc < 0)
        return hl_report_error(cmd, rc);
    if (a->trace != NULL)
        rc = hl_run_read_trace(a->trace, &run);
    if (rc == 0)
        rc = write_page(&run, a);
    hl_run_close(&run);
    return rc < 0 ? hl_report_error(cmd, rc) : HL_EXIT_OK;
}

int hl_cmd_report(int argc, char **argv)
{
    struct report_args a = {.output = "report.html"};
    static char long_output[] = "--output";
    int step_given = 0, rc;
    const struct hl_flag flags[] = {
        {"output", HL_FLAG_TEXT, &a.output, "FILE", "or -o FILE; default report.html", NULL},
        {"trace", HL_FLAG_TEXT, &a.trace, "FILE", "of the same run: a timeline of one step", NULL},
        {"step", HL_FLAG_COUNT, &a.step, "N", "of the timeline (default: the last but one)",
         &step_given},
    };
    const struct hl_command cmd = {
        "report", "A run as one page of HTML that needs no network: FILE [flags].", flags,
        sizeof flags / sizeof flags[0],
        "FILE is what train_gpt --jsonl wrote, --trace what train_gpt --trace wrote.\n"
        "\n"
        "examples:\n"
        "  train_gpt --jsonl run.jsonl --trace trace.json\n"
        "  haul report run.jsonl --trace trace.json -o report.html"};

    if (argc > 1 && argv[1][0] != '-') {
        a.run = argv[1];
        argc--;
        argv++;
    }
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "-o") == 0)
            argv[i] = long_output;
    rc = hl_flags_parse(&cmd, argc, argv);
    if (rc != HL_FLAGS_GO)
        return rc;
    if (a.run == NULL)
        return hl_usage_error(&cmd, "the FILE comes first: haul report run.jsonl -o report.html");
    if (step_given && a.trace == NULL)
        return hl_usage_error(&cmd, "--step needs --trace");
    return run_report(&cmd, &a);
}
