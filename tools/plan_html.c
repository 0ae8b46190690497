/* plan_html.c: haul plan --html: a page that works the plan out anew when something is changed. */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fail.h"
#include "page_texts.h"
#include "plan_report.h"

static const char head[] =
    "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
    "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
    "'unsafe-inline'; script-src 'unsafe-inline'; img-src data:\">\n"
    "<link rel=\"icon\" href=\"data:,\">\n<title>haul: planner</title>\n";

static void budget(FILE *out, const char *name, uint64_t bytes)
{
    if (bytes == HAUL_UNLIMITED)
        fprintf(out, " %s: Infinity,", name);
    else
        fprintf(out, " %s: %" PRIu64 ",", name, bytes);
}

/* A name as JavaScript, in which no "</script>" ends the page's. */
static void name(FILE *out, const char *key, const char *text)
{
    json_t *string = json_string(text);
    char *said = string != NULL ? json_dumps(string, JSON_ENCODE_ANY | JSON_ESCAPE_SLASH) : NULL;

    fprintf(out, " %s: %s,", key, said != NULL ? said : "null");
    free(said);
    json_decref(string);
}

/* Where the controls begin: what the command was given. */
static void start(FILE *out, const struct hl_plan_report *r)
{
    const struct haul_plan_opts *o = &r->opts;
    const struct haul_shape *s = &o->shape;

    fprintf(out, "const START = { params: %" PRIu64 ", ranks: %u, ranksPerNode: %u, passes: %u,",
            o->params, o->ranks, o->ranks_per_node, o->passes);
    fprintf(out, " dtype: \"%s\", gradDtype: \"%s\", master: \"%s\",\n ",
            hl_plan_dtype_name(o->dtype), hl_plan_dtype_name(o->grad_dtype),
            o->master == HAUL_MASTER_SPLIT ? "split" : "fp32");
    name(out, "profile", r->profile);
    budget(out, "deviceMem", o->device_mem_per_rank);
    budget(out, "hostMem", o->host_mem_per_node);
    budget(out, "nvmeMem", o->nvme_mem_per_node);
    fprintf(out,
            "\n  layers: %" PRIu64 ", hidden: %" PRIu64 ", heads: %" PRIu64 ", vocab: %" PRIu64
            ", seq: %" PRIu64 ", batch: %" PRIu64 ", recompute: %s,\n",
            s->layers, s->hidden, s->heads, s->vocab, s->seq, s->batch,
            s->recompute ? "true" : "false");
    fprintf(out,
            "  tokens: %.17g, flops: %.17g, link: %.17g, mem: %.17g, driveRead: %.17g, driveWrite: "
            "%.17g };\n",
            r->tokens, r->rates.flops_per_s, r->rates.link_bytes_per_s, r->rates.mem_bytes_per_s,
            r->rates.drive_read_bytes_per_s, r->rates.drive_write_bytes_per_s);
}

int hl_plan_write_html(const struct hl_plan_report *r, const char *path)
{
    FILE *out = fopen(path, "w");
    int failed;

    if (out == NULL)
        return hl_fail(-errno, "%s: %s", path, strerror(errno));
    fprintf(out, "%s<style>\n%s</style>\n</head>\n<body>\n%s<script>\n%s</script>\n<script>\n",
            head, hl_page_css, hl_planner_html, hl_plan_formulas_js);
    start(out, r);
    fprintf(out, "%s</script>\n</body>\n</html>\n", hl_planner_js);
    failed = ferror(out);
    if (fclose(out) != 0 || failed)
        return hl_fail(-EIO, "%s: could not be written: %s", path, strerror(errno));
    return 0;
}
