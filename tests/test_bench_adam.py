#!/usr/bin/env python3
"""haul bench adam as a script meets it: keys, ratios and refusals.

usage: test_bench_adam.py PATH_TO_HAUL
"""
import json
import os
import subprocess
import sys
import unittest

HAUL = sys.argv[1]
SMALL = ["--elems", "65536", "--repeats", "7", "--threads", "2"]
KEYS = {"variant", "threads", "layout", "grad", "out", "elems", "ns_per_elem", "gb_per_s",
        "roof_ns_per_elem", "ratio_to_roof", "spread"}
STEP_KEYS = {"whole_step_speedup", "bytes_per_elem", "bytes_per_elem_separate"}


def bench(*args, **env):
    return subprocess.run([HAUL, "bench", "adam", *args], capture_output=True, text=True,
                          env={**os.environ, **env})


def cases(*args):
    done = bench(*SMALL, "--json", *args)
    if done.returncode:
        raise AssertionError(done.stderr)
    return json.loads(done.stdout)["cases"]


class BenchAdam(unittest.TestCase):
    def test_each_case_has_the_agreed_keys(self):
        found = cases()
        self.assertEqual({"fp32", "split"}, {c["layout"] for c in found})
        for case in found:
            self.assertLessEqual(KEYS, case.keys())
            self.assertEqual((case["threads"], case["elems"]), (2, 65536))
            self.assertEqual((case["grad"], case["out"]), ("bf16", "bf16"))
            self.assertAlmostEqual(case["ratio_to_roof"],
                                   case["roof_ns_per_elem"] / case["ns_per_elem"], places=6)
            self.assertAlmostEqual(case["gb_per_s"], case["bytes_per_elem"] / case["ns_per_elem"],
                                   places=6)

    def test_bytes_are_those_that_the_layout_moves(self):
        moved = {c["layout"]: c["bytes_per_elem"] for c in cases()}
        self.assertEqual(moved, {"fp32": 28, "split": 26})  # 2 + 12 + 12 + 2; 2 + 12 + 12
        for grad, out, moments, want in (("fp32", "none", "fp32", 28), ("fp16", "fp16", "fp32", 28),
                                         ("bf16", "bf16", "bf16", 20)):
            for case in cases("--layout", "fp32", "--grad", grad, "--out", out, "--moments", moments):
                self.assertEqual(case["bytes_per_elem"], want)
                self.assertEqual(case["changes_mathematics"], moments == "bf16")

    def test_every_optimizer_runs(self):
        for rule, want in (("adamw", 28), ("adam", 28), ("lion", 20), ("adagrad", 20), ("sgd", 20)):
            for case in cases("--optimizer", rule, "--layout", "fp32", "--variant", "best"):
                self.assertEqual((case["optimizer"], case["bytes_per_elem"]), (rule, want))

    def test_norm(self):
        for case in cases("--norm"):
            self.assertLessEqual(KEYS, case.keys())
            self.assertEqual((case["optimizer"], case["bytes_per_elem"]), ("norm", 2))

    def test_whole_step(self):
        for case in cases("--whole-step"):
            self.assertLessEqual(STEP_KEYS, case.keys())
            self.assertLessEqual(case["bytes_per_elem"], 30)
            self.assertAlmostEqual(case["whole_step_speedup"],
                                   case["separate_ns_per_elem"] / case["ns_per_elem"], places=6)

    def test_the_mask_bounds_the_best_variant(self):
        done = bench(*SMALL, "--json", "--variant", "best", HAUL_CPU_MASK="c")
        self.assertEqual({"c"}, {c["variant"] for c in json.loads(done.stdout)["cases"]})

    def test_a_table_for_people_says_what_was_checked(self):
        done = bench(*SMALL, "--layout", "fp32")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("have the bits of the C reference", done.stdout)
        self.assertIn("2 threads", done.stdout)

    def test_usage_errors_are_one_line(self):
        for args in (["--elems", "10"], ["--repeats", "3"], ["--norm", "--whole-step"],
                     ["--layout", "split", "--out", "fp16"], ["--whole-step", "--grad", "fp32"],
                     ["--optimizer", "adamax"], ["--threads", "99999"], ["--nonsense"]):
            done = bench(*args)
            self.assertEqual((done.returncode, done.stdout), (2, ""), args)
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)

    def test_too_many_elements_for_the_machine(self):
        done = bench("--elems", str(1 << 40))
        self.assertEqual(done.returncode, 3)
        self.assertIn("--elems", done.stderr)

    def test_a_variant_that_is_not_here(self):
        foreign = "neon" if os.uname().machine == "x86_64" else "avx2"
        self.assertEqual(bench(*SMALL, "--variant", foreign).returncode, 3)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]] + sys.argv[2:], verbosity=1)
