#!/usr/bin/env python3
"""Published steps with state off the device, beside what the simulator says of them.

usage: sim_against_published.py PATH_OF_HAUL

Other engines than haul made these measurements; where one moves other bytes than haul, host memory's rate is
scaled by the bytes, so that the time is that of its bytes. Where the publication has a step with nothing
offloaded, the device's rate is chosen so that the simulator says the same of it: what is predicted is what
offloading adds. docs/performance-model.md discusses each row.
"""
import json
import re
import subprocess
import sys

HAUL = sys.argv[1]
HAUL_BYTES = 30  # a parameter and step: 28 of the update, 2 of the norm


def run(*flags):
    done = subprocess.run([HAUL, "sim", "--json", *map(str, flags)], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def step_s(*flags):
    return run(*flags)["step"]["step_s"]


def least_device(*flags):
    """The device budget with which nothing is kept there that need not be."""
    why = run(*flags, "--device-mem", "1MB")["choices"][0]["why"]
    return re.search(r"needs (\d+) B", why).group(1)


def calibrated(want_s, *flags):
    """TFLOP/s with which a step without offload takes so long."""
    low, high = 1.0, 1e5
    for _ in range(60):
        mid = (low * high) ** 0.5
        if step_s(*flags, "--offload", "none", "--tflops", mid) > want_s:
            low = mid
        else:
            high = mid
    return round(high, 2)


def show(what, published_s, predicted_s):
    print(f"{what:58s} {published_s:9.2f} {predicted_s:9.2f} {predicted_s / published_s:7.2f}")


def prime_rl():
    """prime-rl pull request 3234: Qwen3-30B-A3B on 8 H200; FP32 master and Adam on the host, weights on the
    device, updates during backward."""
    shape = ("--params", "30.5B", "--units", 50, "--ranks", 8, "--profile", "dgx-h100", "--stage", 3,
             "--tokens", "64K", "--accum", 1, "--no-recompute")
    least = least_device(*shape, "--offload", "optimizer")
    for name, none_s, published_s in (("8K", 1.75, 3.96), ("16K", 5.17, 5.73), ("32K", 18.5, 16.05)):
        tflops = calibrated(none_s, *shape, "--device-mem", "141GB")
        got = step_s(*shape, "--offload", "optimizer", "--device-mem", least, "--tflops", tflops)
        show(f"prime-rl full_offload, 30B MoE, 8 H200, sequence {name}", published_s, got)


def torchao():
    """torchao's CPUOffloadOptimizer and DeepSpeed beside it: 1.1B, RTX 4070 Ti SUPER, Ryzen 5600, two channels
    of DDR4 (taken as 40 GB/s). All in BF16 moves 14 B a parameter, DeepSpeed's stage 2 48 B."""
    shape = ("--params", "1.1B", "--units", 40, "--profile", "1x4090", "--tokens", "8K", "--accum", 1,
             "--no-recompute")
    least = least_device(*shape, "--offload", "optimizer")
    tflops = calibrated(1.27, *shape, "--device-mem", "24GB")
    for name, bytes_each, published_s in (("torchao", 14, 1.52), ("DeepSpeed ZeRO-Offload", 48, 3.13)):
        got = step_s(*shape, "--offload", "optimizer", "--device-mem", least, "--tflops", tflops, "--overlap",
                     "off", "--mem-gbps", 40 * HAUL_BYTES / bytes_each)
        show(f"{name}, 1.1B, RTX 4070 Ti SUPER", published_s, got)


def infinity():
    """DeepSpeedExamples issue 192: 10B on two nodes of one A100, optimizer on a Samsung 980 each: 1.5 TFLOP/s,
    which for 96 B s l h^2 operations and their smaller terms is 465 s. The drive taken as 1 GB/s."""
    got = step_s("--model", "layers=50,hidden=4096,vocab=50304,seq=1024", "--ranks", 2, "--ranks-per-node", 1,
                 "--tokens", 16384, "--accum", 1, "--stage", 3, "--offload", "all", "--host-mem", "60GB",
                 "--device-mem", "15GB", "--overlap", "off", "--drive-gbps", 1)
    show("ZeRO-Infinity, 10B, 2 nodes of an A100 and a 980", 465, got)


def main():
    print(f"{'':58s} {'published':>9s} {'simulated':>9s} {'ratio':>7s}")
    prime_rl()
    torchao()
    infinity()


if __name__ == "__main__":
    main()
