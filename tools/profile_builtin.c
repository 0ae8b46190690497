/* profile_builtin.c: profiles of machines that many have. Makers' ratings are peaks; where nothing measured is
 * public, the factor taken of them is said. */
#include <stdio.h>
#include <string.h>

#include "profile.h"

struct machine {
    const char *name, *about;
    struct {
        double value;
        const char *source;
    } rate[HL_PROFILE_RATES];
    uint64_t ranks_per_node;
    double device_mem_bytes, host_mem_bytes, written_bytes_rated;
};

#define ASSUMED_MIXED        "assumed: both directions share what one reaches"
#define ASSUMED_COMM_LATENCY "assumed: a collective's launch"
#define OF_MEMORY            "nine tenths of host memory: docs/bench.md has the optimizer beside its roof"

/* What is taken to be the same on all of them. */
#define ASSUMED_ALIKE                                                                              \
    [HL_RATE_LINK_LATENCY] = {1e-5, "assumed: a copy's launch and first bytes"},                   \
    [HL_RATE_DRIVE_LATENCY] = {1e-4, "assumed: a read of an idle NVMe drive"},                     \
    [HL_RATE_MEM_PER_LINK_BYTE] = {1, "a device reaches host memory by itself"},                   \
    [HL_RATE_MEM_PER_DRIVE_BYTE] = {                                                               \
        1, "a drive reaches host memory by itself; checks read what is in the cache"}

static const struct machine machine[] = {
    {.name = "plan",
     .about = "what haul plan assumes: a guess at a node of A100-80GB, one drive",
     .rate =
         {[HL_RATE_FLOPS] =
              {140e12,
               "a little under half of an A100's rated 312 TFLOP/s (NVIDIA A100 datasheet)"},
          [HL_RATE_DEVICE_MEM] = {1.6e12,
                                  "0.8 of an A100-80GB's rated 2039 GB/s (NVIDIA A100 datasheet)"},
          [HL_RATE_H2D] = {25e9, "PCIe 4.0 x16, 31.5 GB/s raw, as copies reach it"},
          [HL_RATE_D2H] = {25e9, "as h2d"},
          [HL_RATE_MEM] =
              {160e9, "eight channels of DDR4-3200, 204.8 GB/s raw, as streaming kernels reach it"},
          [HL_RATE_OPTIM] = {144e9, OF_MEMORY},
          [HL_RATE_DRIVE_READ] = {6e9, "one PCIe 4.0 x4 drive"},
          [HL_RATE_DRIVE_WRITE] = {6e9, "as reading"},
          [HL_RATE_DRIVE_MIXED] = {6e9, ASSUMED_MIXED},
          [HL_RATE_COMM] =
              {230e9, "NVLink 3, rated 300 GB/s a direction: nccl-tests' bus bandwidth on 8 A100"},
          [HL_RATE_NET] = {25e9, "one 200 Gb/s port"},
          [HL_RATE_COMM_LATENCY] = {3e-5, ASSUMED_COMM_LATENCY},
          ASSUMED_ALIKE},
     .ranks_per_node = 8,
     .device_mem_bytes = 80e9},
    {.name = "dgx-a100",
     .about = "8 A100-80GB, two EPYC 7742, 2 TB, eight drives",
     .rate =
         {[HL_RATE_FLOPS] =
              {140e12,
               "44 to 52% of the rated 312 TFLOP/s (Narayanan et al. 2021, Megatron-LM on A100)"},
          [HL_RATE_DEVICE_MEM] = {1.6e12, "0.8 of the rated 2039 GB/s (NVIDIA A100 datasheet)"},
          [HL_RATE_H2D] = {25e9, "PCIe 4.0 x16, 31.5 GB/s raw, as copies reach it"},
          [HL_RATE_D2H] = {25e9, "as h2d"},
          [HL_RATE_MEM] =
              {320e9, "sixteen channels of DDR4-3200, 409.6 GB/s raw (AMD EPYC 7742), 0.78 of it"},
          [HL_RATE_OPTIM] = {288e9, OF_MEMORY},
          [HL_RATE_DRIVE_READ] =
              {40e9, "eight 3.84 TB PCIe 4.0 drives (NVIDIA DGX A100 datasheet), 5 GB/s each"},
          [HL_RATE_DRIVE_WRITE] = {30e9, "the same drives, 3.75 GB/s each"},
          [HL_RATE_DRIVE_MIXED] = {40e9, ASSUMED_MIXED},
          [HL_RATE_COMM] = {230e9,
                            "NVLink 3, rated 300 GB/s a direction: nccl-tests' bus bandwidth"},
          [HL_RATE_NET] = {200e9, "eight 200 Gb/s ports (NVIDIA DGX A100 datasheet)"},
          [HL_RATE_COMM_LATENCY] = {3e-5, ASSUMED_COMM_LATENCY},
          ASSUMED_ALIKE},
     .ranks_per_node = 8,
     .device_mem_bytes = 80e9,
     .host_mem_bytes = 2e12},
    {.name = "dgx-h100",
     .about = "8 H100-80GB, two Xeon 8480C, 2 TB, eight drives",
     .rate =
         {[HL_RATE_FLOPS] =
              {400e12, "380 to 430 TFLOP/s in BF16 (Llama Team 2024, The Llama 3 Herd of Models)"},
          [HL_RATE_DEVICE_MEM] = {2.7e12, "0.8 of the rated 3352 GB/s (NVIDIA H100 datasheet)"},
          [HL_RATE_H2D] = {50e9, "PCIe 5.0 x16, 63 GB/s raw, 0.8 of it as copies reach on 4.0"},
          [HL_RATE_D2H] = {50e9, "as h2d"},
          [HL_RATE_MEM] =
              {480e9, "sixteen channels of DDR5-4800, 614 GB/s raw (Intel Xeon 8480C), 0.78 of it"},
          [HL_RATE_OPTIM] = {432e9, OF_MEMORY},
          [HL_RATE_DRIVE_READ] = {40e9,
                                  "eight 3.84 TB drives (NVIDIA DGX H100 datasheet), 5 GB/s each"},
          [HL_RATE_DRIVE_WRITE] = {30e9, "the same drives, 3.75 GB/s each"},
          [HL_RATE_DRIVE_MIXED] = {40e9, ASSUMED_MIXED},
          [HL_RATE_COMM] = {360e9, "NVLink 4, rated 450 GB/s a direction: 0.8 of it"},
          [HL_RATE_NET] = {400e9, "eight 400 Gb/s ports (NVIDIA DGX H100 datasheet)"},
          [HL_RATE_COMM_LATENCY] = {3e-5, ASSUMED_COMM_LATENCY},
          ASSUMED_ALIKE},
     .ranks_per_node = 8,
     .device_mem_bytes = 80e9,
     .host_mem_bytes = 2e12},
    {.name = "dgx-2",
     .about = "16 V100-32GB, two Xeon 8168, 1.5 TB: as ZeRO-Infinity's authors measured it",
     .rate =
         {[HL_RATE_FLOPS] = {55e12, "0.44 of the rated 125 TFLOP/s (NVIDIA V100 datasheet)"},
          [HL_RATE_DEVICE_MEM] = {720e9, "0.8 of the rated 900 GB/s (NVIDIA V100 datasheet)"},
          [HL_RATE_H2D] =
              {3e9,
               "16 GPUs at once (Rajbhandari et al. 2021, ZeRO-Infinity, figure 2b); one alone 12"},
          [HL_RATE_D2H] = {3e9, "as h2d"},
          [HL_RATE_MEM] =
              {200e9, "twelve channels of DDR4-2666, 256 GB/s raw (Intel Xeon 8168), 0.78 of it"},
          [HL_RATE_OPTIM] = {180e9, OF_MEMORY},
          [HL_RATE_DRIVE_READ] =
              {25.6e9, "1.6 GB/s a GPU, 16 at once (Rajbhandari et al. 2021, figure 2b)"},
          [HL_RATE_DRIVE_WRITE] = {25.6e9, "as reading"},
          [HL_RATE_DRIVE_MIXED] = {25.6e9, ASSUMED_MIXED},
          [HL_RATE_COMM] =
              {120e9, "NVSwitch, rated 150 GB/s a direction (NVIDIA DGX-2 datasheet), 0.8 of it"},
          [HL_RATE_NET] = {100e9, "eight 100 Gb/s ports (NVIDIA DGX-2 datasheet)"},
          [HL_RATE_COMM_LATENCY] = {3e-5, ASSUMED_COMM_LATENCY},
          ASSUMED_ALIKE},
     .ranks_per_node = 16,
     .device_mem_bytes = 32e9,
     .host_mem_bytes = 1.5e12},
    {.name = "4x3090",
     .about = "4 RTX 3090, one EPYC 7302, 128 GB, two consumer drives",
     .rate =
         {[HL_RATE_FLOPS] = {50e12, "0.7 of the rated 71 TFLOP/s, 16-bit with FP32 sums (NVIDIA "
                                    "Ampere GA102 whitepaper)"},
          [HL_RATE_DEVICE_MEM] = {750e9,
                                  "0.8 of the rated 936 GB/s (NVIDIA Ampere GA102 whitepaper)"},
          [HL_RATE_H2D] = {24e9, "PCIe 4.0 x16, 31.5 GB/s raw, as copies reach it"},
          [HL_RATE_D2H] = {24e9, "as h2d"},
          [HL_RATE_MEM] =
              {150e9, "eight channels of DDR4-3200, 204.8 GB/s raw (AMD EPYC 7302), 0.73 of it"},
          [HL_RATE_OPTIM] = {135e9, OF_MEMORY},
          [HL_RATE_DRIVE_READ] = {13e9,
                                  "two of 7 GB/s rated (Samsung 980 PRO datasheet), 0.93 of it"},
          [HL_RATE_DRIVE_WRITE] =
              {5e9,
               "the same past their cache: a little over 1.5 to 2.5 GB/s each is what reviews see"},
          [HL_RATE_DRIVE_MIXED] = {8e9, "assumed: between the two"},
          [HL_RATE_COMM] = {10e9, "assumed: over PCIe through host memory, no NVLink"},
          [HL_RATE_NET] = {3e9, "assumed: one 25 Gb/s port"},
          [HL_RATE_COMM_LATENCY] = {5e-5, "assumed: a collective through host memory"},
          ASSUMED_ALIKE},
     .ranks_per_node = 4,
     .device_mem_bytes = 24e9,
     .host_mem_bytes = 128e9,
     .written_bytes_rated = 2 * 600e12}, /* 1 TB: 600 TB written (Samsung 980 PRO datasheet) */
    {.name = "1x4090",
     .about = "RTX 4090, desktop with two channels of DDR5, one consumer drive",
     .rate =
         {[HL_RATE_FLOPS] =
              {100e12,
               "0.6 of the rated 165 TFLOP/s, 16-bit with FP32 sums (NVIDIA Ada GPU whitepaper)"},
          [HL_RATE_DEVICE_MEM] = {800e9, "0.8 of the rated 1008 GB/s (NVIDIA Ada GPU whitepaper)"},
          [HL_RATE_H2D] = {25e9, "PCIe 4.0 x16, 31.5 GB/s raw, as copies reach it"},
          [HL_RATE_D2H] = {25e9, "as h2d"},
          [HL_RATE_MEM] = {70e9, "two channels of DDR5-5600, 89.6 GB/s raw, 0.78 of it"},
          [HL_RATE_OPTIM] = {63e9, OF_MEMORY},
          [HL_RATE_DRIVE_READ] = {6.5e9, "7.45 GB/s rated (Samsung 990 PRO datasheet), 0.87 of it"},
          [HL_RATE_DRIVE_WRITE] =
              {3e9, "6.9 GB/s rated into its cache (Samsung 990 PRO datasheet); assumed 3 past it"},
          [HL_RATE_DRIVE_MIXED] = {5e9, "assumed: between the two"},
          [HL_RATE_COMM] = {10e9, "assumed: one device"},
          [HL_RATE_NET] = {1e9, "assumed: 10 Gb/s"},
          [HL_RATE_COMM_LATENCY] = {5e-5, ASSUMED_COMM_LATENCY},
          ASSUMED_ALIKE},
     .ranks_per_node = 1,
     .device_mem_bytes = 24e9,
     .host_mem_bytes = 128e9,
     .written_bytes_rated = 1200e12}, /* 2 TB: 1200 TB written (Samsung 990 PRO datasheet) */
};

const char *hl_profile_name(unsigned i)
{
    return i < sizeof machine / sizeof *machine ? machine[i].name : NULL;
}

const char *hl_profile_about(unsigned i)
{
    return machine[i].about;
}

void hl_profile_builtin(unsigned i, struct hl_profile *out)
{
    const struct machine *m = &machine[i];

    *out = (struct hl_profile){.ranks_per_node = m->ranks_per_node,
                               .device_mem_bytes = (uint64_t)m->device_mem_bytes,
                               .host_mem_bytes = (uint64_t)m->host_mem_bytes,
                               .written_bytes_rated = m->written_bytes_rated};
    snprintf(out->name, sizeof out->name, "%s", m->name);
    snprintf(out->about, sizeof out->about, "%s", m->about);
    for (unsigned k = 0; k < HL_PROFILE_RATES; k++) {
        *hl_profile_rate(&out->rates, k) = m->rate[k].value;
        snprintf(out->source[k], sizeof out->source[k], "%s", m->rate[k].source);
    }
}
