/* profile.c: built-in profiles, and the files of haul tune. */
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
};

#define ASSUMED_LINK_LATENCY  "assumed: a copy's launch and first bytes"
#define ASSUMED_DRIVE_LATENCY "assumed: a read of an idle NVMe drive"
#define ASSUMED_COMM_LATENCY  "assumed: a collective's launch"
#define ASSUMED_MIXED         "assumed: both directions share what one reaches"
#define OF_MEMORY             "nine tenths of host memory: docs/bench.md has the optimizer beside its roof"

/* Makers' ratings are peaks; where nothing measured is public, the factor taken of them is said. */
static const struct hl_profile builtin[] = {
    {.name = "plan",
     .about = "what haul plan assumes: a guess at a node of A100-80GB, one drive",
     .rates = {140e12, 1.6e12, 25e9, 25e9, 160e9, 144e9, 6e9, 6e9, 6e9, 230e9, 25e9, 1e-5, 1e-4,
               3e-5, 0},
     .source = {"a little under half of an A100's rated 312 TFLOP/s (NVIDIA A100 datasheet)",
                "0.8 of an A100-80GB's rated 2039 GB/s (NVIDIA A100 datasheet)",
                "PCIe 4.0 x16, 31.5 GB/s raw, as copies reach it", "as h2d",
                "eight channels of DDR4-3200, 204.8 GB/s raw, as streaming kernels reach it",
                OF_MEMORY, "one PCIe 4.0 x4 drive", "as reading", ASSUMED_MIXED,
                "NVLink 3, rated 300 GB/s a direction: nccl-tests' bus bandwidth on 8 A100",
                "one 200 Gb/s port", ASSUMED_LINK_LATENCY, ASSUMED_DRIVE_LATENCY,
                ASSUMED_COMM_LATENCY},
     .ranks_per_node = 8,
     .device_mem_bytes = UINT64_C(80000000000)},
    {.name = "dgx-a100",
     .about = "8 A100-80GB, two EPYC 7742, 2 TB, eight drives",
     .rates = {140e12, 1.6e12, 25e9, 25e9, 320e9, 288e9, 40e9, 30e9, 40e9, 230e9, 200e9, 1e-5, 1e-4,
               3e-5, 0},
     .source = {"44 to 52% of the rated 312 TFLOP/s (Narayanan et al. 2021, Megatron-LM on A100)",
                "0.8 of the rated 2039 GB/s (NVIDIA A100 datasheet)",
                "PCIe 4.0 x16, 31.5 GB/s raw, as copies reach it", "as h2d",
                "sixteen channels of DDR4-3200, 409.6 GB/s raw (AMD EPYC 7742), 0.78 of it",
                OF_MEMORY, "eight 3.84 TB PCIe 4.0 drives (NVIDIA DGX A100 datasheet), 5 GB/s each",
                "the same drives, 3.75 GB/s each", ASSUMED_MIXED,
                "NVLink 3, rated 300 GB/s a direction: nccl-tests' bus bandwidth",
                "eight 200 Gb/s ports (NVIDIA DGX A100 datasheet)", ASSUMED_LINK_LATENCY,
                ASSUMED_DRIVE_LATENCY, ASSUMED_COMM_LATENCY},
     .ranks_per_node = 8,
     .device_mem_bytes = UINT64_C(80000000000),
     .host_mem_bytes = UINT64_C(2000000000000)},
    {.name = "dgx-h100",
     .about = "8 H100-80GB, two Xeon 8480C, 2 TB, eight drives",
     .rates = {400e12, 2.7e12, 50e9, 50e9, 480e9, 432e9, 40e9, 30e9, 40e9, 360e9, 400e9, 1e-5, 1e-4,
               3e-5, 0},
     .source = {"380 to 430 TFLOP/s in BF16 (Llama Team 2024, The Llama 3 Herd of Models)",
                "0.8 of the rated 3352 GB/s (NVIDIA H100 datasheet)",
                "PCIe 5.0 x16, 63 GB/s raw, 0.8 of it as copies reach on 4.0", "as h2d",
                "sixteen channels of DDR5-4800, 614 GB/s raw (Intel Xeon 8480C), 0.78 of it",
                OF_MEMORY, "eight 3.84 TB drives (NVIDIA DGX H100 datasheet), 5 GB/s each",
                "the same drives, 3.75 GB/s each", ASSUMED_MIXED,
                "NVLink 4, rated 450 GB/s a direction: 0.8 of it",
                "eight 400 Gb/s ports (NVIDIA DGX H100 datasheet)", ASSUMED_LINK_LATENCY,
                ASSUMED_DRIVE_LATENCY, ASSUMED_COMM_LATENCY},
     .ranks_per_node = 8,
     .device_mem_bytes = UINT64_C(80000000000),
     .host_mem_bytes = UINT64_C(2000000000000)},
    {.name = "dgx-2",
     .about = "16 V100-32GB, two Xeon 8168, 1.5 TB: as ZeRO-Infinity's authors measured it",
     .rates = {55e12, 0.72e12, 3e9, 3e9, 200e9, 180e9, 25.6e9, 25.6e9, 25.6e9, 120e9, 100e9, 1e-5,
               1e-4, 3e-5, 0},
     .source = {"0.44 of the rated 125 TFLOP/s (NVIDIA V100 datasheet)",
                "0.8 of the rated 900 GB/s (NVIDIA V100 datasheet)",
                "16 GPUs at once (Rajbhandari et al. 2021, ZeRO-Infinity, figure 2b); one alone 12",
                "as h2d",
                "twelve channels of DDR4-2666, 256 GB/s raw (Intel Xeon 8168), 0.78 of it",
                OF_MEMORY, "1.6 GB/s a GPU, 16 at once (Rajbhandari et al. 2021, figure 2b)",
                "as reading", ASSUMED_MIXED,
                "NVSwitch, rated 150 GB/s a direction (NVIDIA DGX-2 datasheet), 0.8 of it",
                "eight 100 Gb/s ports (NVIDIA DGX-2 datasheet)", ASSUMED_LINK_LATENCY,
                ASSUMED_DRIVE_LATENCY, ASSUMED_COMM_LATENCY},
     .ranks_per_node = 16,
     .device_mem_bytes = UINT64_C(32000000000),
     .host_mem_bytes = UINT64_C(1500000000000)},
    {.name = "4x3090",
     .about = "4 RTX 3090, one EPYC 7302, 128 GB, two consumer drives",
     .rates = {50e12, 0.75e12, 24e9, 24e9, 150e9, 135e9, 13e9, 5e9, 8e9, 10e9, 3e9, 1e-5, 1e-4,
               5e-5, 0},
     .source =
         {"0.7 of the rated 71 TFLOP/s, 16-bit with FP32 sums (NVIDIA Ampere GA102 whitepaper)",
          "0.8 of the rated 936 GB/s (NVIDIA Ampere GA102 whitepaper)",
          "PCIe 4.0 x16, 31.5 GB/s raw, as copies reach it", "as h2d",
          "eight channels of DDR4-3200, 204.8 GB/s raw (AMD EPYC 7302), 0.73 of it", OF_MEMORY,
          "two of 7 GB/s rated (Samsung 980 PRO datasheet), 0.93 of it",
          "the same past their cache: a little over 1.5 to 2.5 GB/s each is what reviews see",
          "assumed: between the two", "assumed: over PCIe through host memory, no NVLink",
          "assumed: one 25 Gb/s port", ASSUMED_LINK_LATENCY, ASSUMED_DRIVE_LATENCY,
          "assumed: a collective through host memory"},
     .ranks_per_node = 4,
     .device_mem_bytes = UINT64_C(24000000000),
     .host_mem_bytes = UINT64_C(128000000000),
     .written_bytes_rated = 2 * 600e12}, /* 1 TB: 600 TB written (Samsung 980 PRO datasheet) */
    {.name = "1x4090",
     .about = "RTX 4090, desktop with two channels of DDR5, one consumer drive",
     .rates = {100e12, 0.8e12, 25e9, 25e9, 70e9, 63e9, 6.5e9, 3e9, 5e9, 10e9, 1e9, 1e-5, 1e-4, 5e-5,
               0},
     .source = {"0.6 of the rated 165 TFLOP/s, 16-bit with FP32 sums (NVIDIA Ada GPU whitepaper)",
                "0.8 of the rated 1008 GB/s (NVIDIA Ada GPU whitepaper)",
                "PCIe 4.0 x16, 31.5 GB/s raw, as copies reach it", "as h2d",
                "two channels of DDR5-5600, 89.6 GB/s raw, 0.78 of it", OF_MEMORY,
                "7.45 GB/s rated (Samsung 990 PRO datasheet), 0.87 of it",
                "6.9 GB/s rated into its cache (Samsung 990 PRO datasheet); assumed 3 past it",
                "assumed: between the two", "assumed: one device", "assumed: 10 Gb/s",
                ASSUMED_LINK_LATENCY, ASSUMED_DRIVE_LATENCY, ASSUMED_COMM_LATENCY},
     .ranks_per_node = 1,
     .device_mem_bytes = UINT64_C(24000000000),
     .host_mem_bytes = UINT64_C(128000000000),
     .written_bytes_rated = 1200e12}, /* 2 TB: 1200 TB written (Samsung 990 PRO datasheet) */
};

const struct hl_profile *hl_profile_builtin(unsigned i)
{
    return i < sizeof builtin / sizeof *builtin ? &builtin[i] : NULL;
}

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
                     "not in the file: as the built-in profile %.40s", builtin[0].name);
    }
    return 0;
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
    snprintf(p->source[8], sizeof p->source[8], "measured by haul tune");
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
        mix_drives(root, p);
    if (rc < 0 || (rc = read_number(root, path, "ranks_per_node", &ranks)) < 0 ||
        (rc = read_number(root, path, "device_mem_bytes", &device)) < 0 ||
        (rc = read_number(root, path, "host_mem_bytes", &host)) < 0 ||
        (rc = read_number(root, path, "written_bytes_rated", &p->written_bytes_rated)) < 0)
        return rc;
    p->ranks_per_node = (uint64_t)ranks;
    p->device_mem_bytes = (uint64_t)device;
    p->host_mem_bytes = (uint64_t)host;
    p->rates.emulated = json_is_true(json_object_get(root, "emulated"));
    take_text(root, "about", p->about, sizeof p->about);
    read_sources(json_object_get(root, "sources"), p);
    return 0;
}

static int load_file(const char *path, struct hl_profile *out)
{
    struct hl_profile p = {.rates = builtin[0].rates};
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
    snprintf(p.name, sizeof p.name, "%s", path);
    rc = read_root(root, path, &p);
    json_decref(root);
    if (rc == 0)
        *out = p;
    return rc;
}

int hl_profile_load(const char *name, struct hl_profile *out)
{
    for (unsigned i = 0; i < sizeof builtin / sizeof *builtin; i++)
        if (strcmp(name, builtin[i].name) == 0) {
            *out = builtin[i];
            return 0;
        }
    return load_file(name, out);
}
