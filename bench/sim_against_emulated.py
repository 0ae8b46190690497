#!/usr/bin/env python3
"""How far the simulator is from steps on the emulated device: random configurations through haul bench step,
which measures the rates, the step and its exposed times, and asks the simulator for the same.

usage: sim_against_emulated.py PATH_OF_HAUL [--n 30] [--seed 1] [--nvme DIR] [--json]

Prints each configuration, then the median, the 95th percentile and the largest of |predicted / measured - 1|, for
the median of a row's steps and for the fastest (which other processes disturbed least), and of the difference of
each lane's exposed time in parts of the step.
"""
import argparse
import json
import math
import random
import statistics
import subprocess
import sys

LANES = ("h2d", "d2h", "optim", "io")


def configuration(rng):
    """Flags of haul bench step; small enough for a step of well under a second."""
    params = rng.choice((8, 16, 24, 32)) << 20
    placement = rng.choice(("device", "host", "nvme", "nvme", "mixed", "mixed"))
    flags = ["--params", params, "--units", rng.choice((4, 8, 16, 32)), "--placement", placement,
             "--overlap", rng.choice(("off", "deferred", "deferred")),
             "--offload", rng.choice(("all", "optimizer")), "--master", rng.choice(("split", "fp32")),
             "--forward-ms", round(math.exp(rng.uniform(math.log(10), math.log(200))), 2),
             "--link-gbps", round(math.exp(rng.uniform(math.log(0.5), math.log(12))), 2),
             "--slots", rng.choice((2, 3, 4, 8)), "--window", rng.choice((1, 2, 3, 4)),
             "--passes", rng.choice((1, 1, 2, 3))]
    if rng.random() < 0.5:
        flags.append("--no-recompute")
    return [str(f) for f in flags]


def percentile(values, part):
    values = sorted(values)
    at = part * (len(values) - 1)
    low = math.floor(at)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (at - low)


def distribution(values):
    return {"median": statistics.median(values), "p95": percentile(values, 0.95), "most": max(values)}


def measure(haul, flags, nvme, steps):
    more = ["--nvme", nvme] if nvme else []
    done = subprocess.run([haul, "bench", "step", "--json", "--steps", str(steps), *flags, *more],
                          capture_output=True, text=True, timeout=300)
    if done.returncode:
        sys.exit(f"haul bench step {' '.join(flags)}: {done.stderr}")
    return json.loads(done.stdout)["rows"][0]


def compare(flags, row):
    lanes = {lane: abs(row[f"predicted_exposed_{lane}_s"] - row[f"exposed_{lane}_s"]) / row["step_s"]
             for lane in LANES}
    return {"flags": " ".join(flags), "step_s": row["step_s"], "predicted_s": row["predicted_s"],
            "error": row["predicted_s"] / row["step_s"] - 1,
            "error_fastest": row["predicted_s"] / row["fastest_s"] - 1,
            "spread": (row["slowest_s"] - row["fastest_s"]) / row["step_s"], "lanes": lanes}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("haul")
    parser.add_argument("--n", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--nvme")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rng = random.Random(args.seed)
    found = []
    for i in range(args.n):
        flags = configuration(rng)
        found.append(compare(flags, measure(args.haul, flags, args.nvme, args.steps)))
        f = found[-1]
        if not args.json:
            print(f"{i + 1:3d} measured {f['step_s']:.4f} s, spread {f['spread']:.2f}, simulated "
                  f"{f['predicted_s']:.4f} s: {100 * f['error']:+.1f}%  {f['flags']}", flush=True)
    summary = {"n": args.n, "seed": args.seed, "step": distribution([abs(f["error"]) for f in found]),
               "fastest": distribution([abs(f["error_fastest"]) for f in found]),
               "spread": distribution([f["spread"] for f in found]),
               "lanes": {lane: distribution([f["lanes"][lane] for f in found]) for lane in LANES}}
    if args.json:
        print(json.dumps({**summary, "configurations": found}, indent=2))
        return
    rows = {"step": summary["step"], "fastest step": summary["fastest"],
            **{f"exposed {k}": v for k, v in summary["lanes"].items()},
            "spread of a row": summary["spread"]}
    for name, d in rows.items():
        print(f"{name:16s} median {100 * d['median']:5.2f}%  95th percentile {100 * d['p95']:5.2f}%  most "
              f"{100 * d['most']:5.2f}%")


if __name__ == "__main__":
    main()
