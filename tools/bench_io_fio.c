/* bench_io_fio.c: the same work done by fio, on the same files. */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench_io.h"
#include "fail.h"
#include "store.h"

#define NR_HUGEPAGES "/proc/sys/vm/nr_hugepages"

const char *hl_fio_version(void)
{
    static char text[64];
    FILE *p = popen("fio --version 2>/dev/null", "r");

    text[0] = '\0';
    if (!p)
        return NULL;
    if (!fgets(text, sizeof text, p))
        text[0] = '\0';
    pclose(p);
    text[strcspn(text, "\n")] = '\0';
    return strncmp(text, "fio", 3) ? NULL : text;
}

int64_t hl_fio_hugepages(int64_t pages)
{
    FILE *f = fopen(NR_HUGEPAGES, "r+");
    long long before = -1;

    if (!f)
        return -1;
    if (fscanf(f, "%lld", &before) != 1 || before == pages) {
        fclose(f);
        return before;
    }
    rewind(f);
    if (fprintf(f, "%lld\n", (long long)pages) < 0)
        before = -1;
    return fclose(f) ? -1 : before;
}

/* The store's files have no names; fio reaches them through our descriptors. */
static void command(struct haul_store *s, uint64_t bytes, const struct hl_fio_job *job,
                    enum hl_io_pattern pattern, char *buf, size_t len)
{
    static const char *const rw[HL_IO_NPATTERNS] = {"read", "write", "rw"};
    int uring = !strcmp(job->engine, "io_uring");
    size_t n;

    n = (size_t)snprintf(buf, len,
                         "fio --output-format=json --name=haul --direct=%d --rw=%s --bs=%u "
                         "--iodepth=%u --ioengine=%s --mem=%s --size=%" PRIu64
                         " --overwrite=1 --allow_file_create=0 --invalidate=0 %s --filename=",
                         s->dirs[0].direct, rw[pattern], job->block_bytes, job->depth, job->engine,
                         job->mem, bytes, uring ? "--fixedbufs=1 --registerfiles=1" : "");
    for (uint32_t i = 0; i < s->ndirs && n < len; i++)
        n += (size_t)snprintf(buf + n, len - n, "%s/proc/%d/fd/%d", i ? ":" : "", (int)getpid(),
                              s->fds[i]);
    if (n < len)
        snprintf(buf + n, len - n, " 2>/dev/null");
}

static double number(const json_t *o, const char *key)
{
    return json_number_value(json_object_get(o, key));
}

static int digest(const json_t *root, struct hl_io_pass *out)
{
    const json_t *job = json_array_get(json_object_get(root, "jobs"), 0);
    const json_t *r = json_object_get(job, "read"), *w = json_object_get(job, "write");
    double bytes = number(r, "io_bytes") + number(w, "io_bytes");
    double ms =
        number(r, "runtime") > number(w, "runtime") ? number(r, "runtime") : number(w, "runtime");
    double cpu = (number(job, "usr_cpu") + number(job, "sys_cpu")) / 100;

    if (!(bytes > 0 && ms > 0) || number(job, "error") != 0)
        return hl_fail(-EIO, "fio moved nothing (error %g)", number(job, "error"));
    out->gb_per_s = bytes / 1e9 / (ms / 1e3);
    out->cpu_s_per_gb = cpu * number(job, "job_runtime") / 1e3 / (bytes / 1e9);
    return 0;
}

int hl_fio_pass(struct haul_store *store, uint64_t bytes, const struct hl_fio_job *job,
                enum hl_io_pattern pattern, struct hl_io_pass *out)
{
    char cmd[1024];
    json_error_t where;
    json_t *root;
    FILE *p;
    int rc;

    command(store, bytes, job, pattern, cmd, sizeof cmd);
    p = popen(cmd, "r");
    if (!p)
        return hl_fail(-errno, "fio cannot be started");
    root = json_loadf(p, JSON_DISABLE_EOF_CHECK, &where);
    rc = pclose(p);
    if (!root)
        return hl_fail(-EIO, "fio gave no result (exit %d): %s", rc, cmd);
    rc = digest(root, out);
    json_decref(root);
    return rc;
}
