/* profile.c: rates by name, and the files of haul tune. */
#include "profile.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "fail.h"

static const struct {
    const char *name;
    size_t at;
} rate_table[HL_PROFILE_RATES] = {
    {"flops_per_s", offsetof(struct hl_sim_rates, flops_per_s)},
    {"device_mem_bytes_per_s", offsetof(struct hl_sim_rates, device_mem_bytes_per_s)},
    {"h2d_bytes_per_s", offsetof(struct hl_sim_rates, h2d_bytes_per_s)},
    {"d2h_bytes_per_s", offsetof(struct hl_sim_rates, d2h_bytes_per_s)},
    {"mem_bytes_per_s", offsetof(struct hl_sim_rates, mem_bytes_per_s)},
    {"optim_bytes_per_s", offsetof(struct hl_sim_rates, optim_bytes_per_s)},
    {"drive_read_bytes_per_s", offsetof(struct hl_sim_rates, drive_read_bytes_per_s)},
    {"drive_write_bytes_per_s", offsetof(struct hl_sim_rates, drive_write_bytes_per_s)},
    {"drive_mixed_bytes_per_s", offsetof(struct hl_sim_rates, drive_mixed_bytes_per_s)},
    {"comm_bytes_per_s", offsetof(struct hl_sim_rates, comm_bytes_per_s)},
    {"net_bytes_per_s", offsetof(struct hl_sim_rates, net_bytes_per_s)},
    {"link_latency_s", offsetof(struct hl_sim_rates, link_latency_s)},
    {"drive_latency_s", offsetof(struct hl_sim_rates, drive_latency_s)},
    {"comm_latency_s", offsetof(struct hl_sim_rates, comm_latency_s)},
    {"mem_per_link_byte", offsetof(struct hl_sim_rates, mem_per_link_byte)},
    {"mem_per_drive_byte", offsetof(struct hl_sim_rates, mem_per_drive_byte)},
};

const char *hl_profile_rate_name(unsigned i)
{
    return rate_table[i].name;
}

double *hl_profile_rate(struct hl_sim_rates *rates, unsigned i)
{
    return (double *)(void *)((char *)rates + rate_table[i].at);
}

/* ---- files ---- */

static int bad(const char *path, const char *key)
{
    return hl_fail(HAUL_E_CONFIG, "profile %s: \"%s\" is not a number above 0", path, key);
}

static int read_number(const json_t *from, const char *path, const char *key, double *out)
{
    const json_t *v = json_object_get(from, key);
    const double x = json_is_number(v) ? json_number_value(v) : -1;

    if (!v)
        return 0;
    if (!(x > 0) || !isfinite(x))
        return bad(path, key);
    *out = x;
    return 1;
}

static int read_rates(const json_t *from, const char *path, const char *source,
                      struct hl_profile *p)
{
    for (unsigned i = 0; i < HL_PROFILE_RATES; i++) {
        int rc = read_number(from, path, rate_table[i].name, hl_profile_rate(&p->rates, i));
        if (rc < 0)
            return rc;
        if (rc)
            snprintf(p->source[i], sizeof p->source[i], "%s", source);
        else
            snprintf(p->source[i], sizeof p->source[i],
                     "not in the file: as the built-in profile %.40s", hl_profile_name(0));
    }
    return 0;
}

/* Without them gradients land at the optimizer's rate. */
static int read_landing(const json_t *from, const char *path, struct hl_profile *p)
{
    int rc = read_number(from, path, "norm_bytes_per_s", &p->rates.norm_bytes_per_s);

    if (rc >= 0)
        rc = read_number(from, path, "accumulate_bytes_per_s", &p->rates.accumulate_bytes_per_s);
    return rc < 0 ? rc : 0;
}

static void take_text(const json_t *from, const char *key, char *out, size_t len)
{
    const char *text = json_string_value(json_object_get(from, key));

    if (text)
        snprintf(out, len, "%s", text);
}

static void read_sources(const json_t *from, struct hl_profile *p)
{
    for (unsigned i = 0; i < HL_PROFILE_RATES; i++)
        take_text(from, rate_table[i].name, p->source[i], sizeof p->source[i]);
}

/* The profile of a tune that did not yet measure both directions together as a rate. */
static void mix_drives(const json_t *root, struct hl_profile *p)
{
    const json_t *drives = json_object_get(root, "drives"), *drive;
    double mixed = 0;
    size_t i;

    if (json_object_get(json_object_get(root, "rates"), "drive_mixed_bytes_per_s"))
        return;
    json_array_foreach (drives, i, drive)
        mixed += json_number_value(json_object_get(drive, "mixed_gb_per_s"));
    if (mixed <= 0)
        return;
    p->rates.drive_mixed_bytes_per_s = mixed * 1e9;
    snprintf(p->source[HL_RATE_DRIVE_MIXED], sizeof p->source[HL_RATE_DRIVE_MIXED],
             "measured by haul tune");
}

static int read_root(const json_t *root, const char *path, struct hl_profile *p)
{
    const json_t *rates = json_object_get(root, "rates");
    double ranks = 0, device = 0, host = 0;
    int rc;

    if (!json_is_object(rates))
        return hl_fail(HAUL_E_CONFIG, "%s is not a profile: it has no \"rates\"", path);
    rc = read_rates(rates, path, "measured by haul tune", p);
    if (rc == 0)
        rc = read_landing(rates, path, p);
    if (rc == 0)
        mix_drives(root, p);
    if (rc < 0 || (rc = read_number(root, path, "ranks_per_node", &ranks)) < 0 ||
        (rc = read_number(root, path, "device_mem_bytes", &device)) < 0 ||
        (rc = read_number(root, path, "host_mem_bytes", &host)) < 0 ||
        (rc = read_number(root, path, "written_bytes_rated", &p->written_bytes_rated)) < 0)
        return rc;
    p->ranks_per_node = (uint64_t)ranks;
    p->device_mem_bytes = (uint64_t)device;
    p->host_mem_bytes = (uint64_t)host;
    take_text(root, "about", p->about, sizeof p->about);
    read_sources(json_object_get(root, "sources"), p);
    return 0;
}

static int load_file(const char *path, struct hl_profile *out)
{
    struct hl_profile p = {.name = ""};
    json_error_t where;
    FILE *f = fopen(path, "re");
    json_t *root;
    int rc = f ? 0 : -errno;

    if (rc < 0)
        return hl_fail(rc, "profile %s: %s; haul profile show lists the built-in ones", path,
                       haul_strerror(rc));
    root = json_loadf(f, 0, &where);
    (void)fclose(f);
    if (!root)
        return hl_fail(HAUL_E_CONFIG, "profile %s, line %d: %s", path, where.line, where.text);
    hl_profile_builtin(0, &p); /* what the file leaves out */
    p.about[0] = '\0';
    snprintf(p.name, sizeof p.name, "%s", path);
    rc = read_root(root, path, &p);
    json_decref(root);
    if (rc == 0)
        *out = p;
    return rc;
}

int hl_profile_load(const char *name, struct hl_profile *out)
{
    for (unsigned i = 0; hl_profile_name(i); i++)
        if (strcmp(name, hl_profile_name(i)) == 0) {
            hl_profile_builtin(i, out);
            return 0;
        }
    return load_file(name, out);
}
