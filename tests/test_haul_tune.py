#!/usr/bin/env python3
"""test_haul_tune.py HAUL: what haul tune measures here, says on a terminal, and what reads it. About a minute."""
import json
import os
import re
import subprocess
import sys
import tempfile

import tap
import terminal

HAUL = os.path.abspath(sys.argv[1])


def a_profile_has_what_was_measured(said, profile):
    rates = profile["rates"]
    for name in ("drive_read", "drive_write", "drive_mixed", "mem", "optim", "norm", "accumulate"):
        assert rates[name + "_bytes_per_s"] > 1e6, (name, rates)
    assert 0 <= rates.get("mem_per_drive_byte", 0) < 1000
    drive = profile["drives"][0]
    assert drive["sustained_s"] == 1 and drive["block_bytes"] in (2**19, 2**20, 2**21, 2**22, 2**23)
    assert rates["drive_read_bytes_per_s"] == drive["read_gb_per_s"] * 1e9
    kernels = {k["kernel"]: k for k in profile["kernels"]}
    assert set(kernels) == {"adamw", "adamw split", "adam", "lion", "adagrad", "sgd", "norm"}
    # bytes an element: the same for adamw and adam; without v lion and sgd move less
    for name, moved in (("adamw", 28), ("adam", 28), ("adamw split", 26), ("norm", 2)):
        k = kernels[name]
        assert abs(k["gb_per_s"] * k["ns_per_elem"] - moved) < 0.01, (name, k)


def the_terminal_saw_how_far_it_was(said, profile):
    parts = [int(p) for p in re.findall(r"tune: (\d+)%, \d+ (?:s|min) left", said)]
    assert len(parts) > 20 and parts == sorted(parts) and parts[-1] > 80, parts
    assert "blocks of 8192 KiB" in said and "after 1 s each" in said


def a_machine_without_a_gpu_says_so(said, profile):
    if "device" in profile:
        raise tap.Skip("a machine without a GPU")
    assert "links are not measured" in said and "h2d_bytes_per_s" not in profile["rates"]


def haul_sim_reads_it(said, profile):
    with tempfile.TemporaryDirectory() as folder:
        path = folder + "/profile.json"
        with open(path, "w") as f:
            json.dump(profile, f)
        shown = json.loads(subprocess.run([HAUL, "profile", "show", path, "--json"], capture_output=True, text=True,
                                          check=True).stdout)
        assert shown["sources"]["optim_bytes_per_s"] == "measured by haul tune"
        assert shown["rates"]["optim_bytes_per_s"] == profile["rates"]["optim_bytes_per_s"]
        subprocess.run([HAUL, "sim", "--params", "1B", "--profile", path], capture_output=True, check=True)


CASES = (a_profile_has_what_was_measured, the_terminal_saw_how_far_it_was, a_machine_without_a_gpu_says_so,
         haul_sim_reads_it)

if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=os.getcwd()) as scratch:
        try:
            code, _, errors = terminal.run([HAUL, "tune", "--dir", scratch, "--bytes", "576MiB", "--thorough", "1", "-o",
                                            scratch + "/profile.json"])
        except tap.Skip as skip:
            print(f"1..0 # SKIP {skip}")
            sys.exit(0)
        assert code == 0, errors
        with open(scratch + "/profile.json") as result:
            tap.main(CASES, errors, json.load(result))
