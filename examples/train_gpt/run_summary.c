/* run_summary.c: see run_summary.h. */
#include "run_summary.h"

#include <inttypes.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

const char *const run_tier_names[HAUL_NTIERS] = {"device", "host", "nvme"};

/* A string of JSON. Names of machines hold no control characters; what does is left out. */
static void json_text(FILE *f, const char *key, const char *text)
{
    fprintf(f, "\"%s\":\"", key);
    for (; *text != '\0'; text++) {
        if (*text == '"' || *text == '\\')
            putc('\\', f);
        if ((unsigned char)*text >= ' ')
            putc(*text, f);
    }
    putc('"', f);
}

static void json_tiers(FILE *f, const struct tier_bytes tiers[HAUL_NTIERS], bool peak)
{
    for (int i = 0; i < HAUL_NTIERS; i++)
        fprintf(f, "%s\"%s\":%" PRIu64, i > 0 ? "," : "", run_tier_names[i],
                peak ? tiers[i].peak : tiers[i].planned);
}

/* Of this rank: its part of the node's host and nvme; null: none was given. */
static void json_budgets(FILE *f, const struct args *args)
{
    const uint64_t budget[HAUL_NTIERS] = {args->device_mem_bytes, args->host_mem_bytes,
                                          args->nvme_mem_bytes};

    fputs(",\"budgets\":{", f);
    for (int i = 0; i < HAUL_NTIERS; i++)
        if (budget[i] == 0)
            fprintf(f, "%s\"%s\":null", i > 0 ? "," : "", run_tier_names[i]);
        else
            fprintf(f, "%s\"%s\":%" PRIu64, i > 0 ? "," : "", run_tier_names[i], budget[i]);
    putc('}', f);
}

static void json_ledger(FILE *f, struct haul_engine *engine)
{
    struct haul_ledger_line line;

    fputs(",\"ledger\":[", f);
    for (uint32_t i = 0; haul_engine_ledger(engine, i, &line) == 0; i++)
        fprintf(f, "%s{\"tier\":\"%s\",\"purpose\":\"%s\",\"bytes\":%" PRIu64 "}", i > 0 ? "," : "",
                run_tier_names[line.tier], line.purpose, line.bytes);
    putc(']', f);
}

static void json_run(FILE *f, const struct trainer *t)
{
    static const char *const offload[] = {"none", "optimizer", "all"};
    const struct args *a = t->args;

    fprintf(f,
            ",\"run\":{\"layers\":%" PRIu64 ",\"dim\":%" PRIu64 ",\"heads\":%" PRIu64
            ",\"seq\":%" PRIu64 ",\"batch\":%" PRIu64 ",\"accum\":%" PRIu64 ",\"ranks\":%" PRIu64
            ",\"local_ranks\":%u,\"stage\":%" PRIu64 ",\"offload\":\"%s\",\"window\":%u}",
            a->layers, a->dim, a->heads, a->seq, a->batch * a->ranks, a->accum, a->ranks,
            t->ranks->nlocal, a->stage, offload[a->offload], t->window);
}

/* "model name" is x86's word; elsewhere the processor stays unnamed. */
static void processor(char *out, size_t size)
{
    FILE *f = fopen("/proc/cpuinfo", "r");
    char line[256];

    snprintf(out, size, "unknown");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        char *name = strchr(line, ':');

        if (strncmp(line, "model name", 10) != 0 || name == NULL)
            continue;
        name[strcspn(name, "\n")] = '\0';
        snprintf(out, size, "%s", name + 1 + strspn(name + 1, " "));
        break;
    }
    if (f != NULL)
        fclose(f);
}

static void json_machine(FILE *f, const struct trainer *t)
{
    char cpu[128], date[32] = "";
    struct utsname system = {.sysname = "unknown"};
    time_t now = time(NULL);
    struct tm utc;

    processor(cpu, sizeof cpu);
    uname(&system);
    if (gmtime_r(&now, &utc) != NULL)
        strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", &utc);
    fputs(",\"machine\":{", f);
    json_text(f, "device", haul_device_name(t->device));
    putc(',', f);
    json_text(f, "cpu", cpu);
    fprintf(f, ",\"cores\":%ld,\"memory_bytes\":%" PRIu64 ",", sysconf(_SC_NPROCESSORS_ONLN),
            (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE));
    json_text(f, "kernel", system.release);
    putc(',', f);
    json_text(f, "optimizer", haul_optim_variant());
    putc(',', f);
    json_text(f, "haul", haul_version());
    putc(',', f);
    json_text(f, "date", date);
    putc('}', f);
}

/* comm_elems: what left this rank since the engine was built. */
void run_summary_write(FILE *f, const struct trainer *t, const struct tier_bytes tiers[HAUL_NTIERS],
                       const struct haul_comm_count *comm, uint64_t digest)
{
    fputs("{\"summary\":true,\"planned\":{", f);
    json_tiers(f, tiers, false);
    fputs("},\"peaks\":{", f);
    json_tiers(f, tiers, true);
    fprintf(f,
            "},\"comm_elems\":{\"all_gather\":%" PRIu64 ",\"reduce_scatter\":%" PRIu64
            ",\"all_reduce\":%" PRIu64 "},\"digest\":\"%016" PRIx64 "\"",
            comm[HAUL_COMM_ALL_GATHER].sent_elems, comm[HAUL_COMM_REDUCE_SCATTER].sent_elems,
            comm[HAUL_COMM_ALL_REDUCE].sent_elems, digest);
    json_budgets(f, t->args);
    json_ledger(f, t->engine);
    json_run(f, t);
    json_machine(f, t);
    fputs("}\n", f);
}
