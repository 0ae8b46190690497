#!/usr/bin/env python3
"""haul sim and haul profile: what they say, the arithmetic between their figures, and bad flags.

usage: test_haul_sim.py PATH_OF_HAUL
"""
import json
import os
import subprocess
import sys
import tempfile
import time
import unittest

HAUL = sys.argv.pop()
LANES = {"compute", "h2d", "d2h", "io-read", "io-write", "optim", "comm"}


def haul(*args, cwd=None):
    return subprocess.run([HAUL, *map(str, args)], capture_output=True, text=True, timeout=120, cwd=cwd)


def sim(*args):
    done = haul("sim", "--json", *args)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


class Sim(unittest.TestCase):
    def test_a_large_model_on_many_ranks_takes_less_than_a_second(self):
        begin = time.monotonic()
        out = sim("--model", "70b", "--ranks", 64)
        self.assertLess(time.monotonic() - begin, 1)
        self.assertEqual(out["params"], 68976648192)  # Llama 2 70B
        self.assertTrue(out["simulated"])

    def test_compute_alone_is_six_or_eight_operations_a_parameter_and_token(self):
        args = ("--params", "1B", "--tokens", "1M", "--tflops", 100, "--offload", "none", "--stage", 3)
        step = sim(*args)["step"]
        self.assertAlmostEqual(step["forward_s"], 2e9 * 1e6 / 100e12, places=6)
        self.assertAlmostEqual(step["backward_s"], 6e9 * 1e6 / 100e12, places=6)
        step = sim(*args, "--no-recompute")["step"]
        self.assertAlmostEqual(step["backward_s"], 4e9 * 1e6 / 100e12, places=6)

    def test_what_compute_does_and_waits_for_is_the_step(self):
        step = sim("--model", "7b", "--ranks", 2, "--host-mem", "80GB", "--stash")["step"]
        self.assertEqual(set(step["lanes"]), LANES)
        lanes = step["lanes"]
        whole = lanes["compute"]["busy_s"] + sum(lane["exposed_s"] for lane in lanes.values())
        self.assertAlmostEqual(whole / step["step_s"], 1, places=6)

    def test_four_cards_and_two_drives(self):
        step = sim("--model", "13b", "--ranks", 4, "--tokens", "64k", "--profile", "4x3090",
                   "--stash")["step"]
        self.assertLessEqual(step["device_bytes_per_rank"], 24e9)
        self.assertLessEqual(step["host_bytes_per_node"], 128e9)
        self.assertIn(step["bottleneck"], LANES)
        a_day = step["written_bytes"] / step["step_s"] * 86400
        self.assertAlmostEqual(step["written_bytes_per_day"], a_day, delta=1e-6 * a_day + 1)
        if a_day:
            self.assertAlmostEqual(step["drive_days"] * a_day, 1200e12, delta=1e9)

    def test_the_choice_is_within_a_twentieth_of_the_fastest(self):
        out = sim("--model", "13b", "--ranks", 4, "--tokens", "64k", "--profile", "4x3090", "--stash")
        fits = [c["step_s"] for c in out["choices"] if c["fits"]]
        self.assertLessEqual(out["step"]["step_s"], 1.05 * min(fits))
        self.assertEqual(len(out["choices"]), 12)

    def test_nothing_fits_is_an_answer(self):
        out = sim("--model", "70b", "--device-mem", "1GB")
        self.assertIsNone(out["step"])
        self.assertTrue(all("device" in c["why"] for c in out["choices"]))

    def test_equal_questions_get_equal_answers(self):
        args = ("--model", "7b", "--ranks", 8, "--host-mem", "60GB")
        self.assertEqual(sim(*args), sim(*args))

    def test_a_trace_names_every_lane_that_worked(self):
        with tempfile.TemporaryDirectory() as here:
            path = os.path.join(here, "step.json")
            out = sim("--model", "7b", "--stage", 3, "--offload", "all", "--host-mem", "80GB",
                      "--trace", path, "--stash")["step"]
            with open(path) as f:
                events = json.load(f)["traceEvents"]
        names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
        spans = [e for e in events if e["ph"] == "X"]
        seen = {names[e["tid"]] for e in spans}
        self.assertEqual(seen, {n for n, lane in out["lanes"].items() if lane["busy_s"] > 0})
        self.assertLessEqual(max(e["ts"] + e["dur"] for e in spans), out["step_s"] * 1e6 * 1.001)

    def test_a_sweep_crosses_two_lists(self):
        done = haul("sim", "--json", "--model", "7b", "--stash", "--sweep", "tokens=32k,64k,host-mem=60GB,90GB,120GB")
        self.assertEqual(done.returncode, 0, done.stderr)
        points = json.loads(done.stdout)
        self.assertEqual(len(points), 6)
        for tokens in ("32k", "64k"):
            steps = [p["step_s"] for p in points if p["tokens"] == tokens]
            self.assertEqual(steps, sorted(steps, reverse=True), "more host memory is not slower")

    def test_bad_flags_are_named(self):
        for words, args in [
            (["--model"], []),
            (["layers", "9b"], ["--model", "9b"]),
            (["--sweep", "colour"], ["--model", "7b", "--sweep", "colour=1,2"]),
            (["nosuch"], ["--model", "7b", "--profile", "nosuch"]),
            (["--plot"], ["--model", "7b", "--plot", "x.svg"]),
            (["ranks"], ["--model", "7b", "--ranks", "0"]),
            (["--stage 4"], ["--model", "7b", "--stage", "4"]),
            (["slots"], ["--model", "7b", "--slots", "1"]),
            (["window"], ["--model", "7b", "--window", "0"]),
            (["accum"], ["--model", "7b", "--accum", "5000"]),
        ]:
            done = haul("sim", *args)
            self.assertNotEqual(done.returncode, 0, args)
            for word in words:
                self.assertIn(word, done.stderr)


class Profile(unittest.TestCase):
    def test_every_built_in_value_has_a_source(self):
        names = [line.split()[0] for line in haul("profile", "show").stdout.splitlines()]
        self.assertIn("dgx-a100", names)
        for name in names:
            p = json.loads(haul("profile", "show", name, "--json").stdout)
            self.assertEqual(set(p["rates"]), set(p["sources"]))
            self.assertTrue(all(p["sources"].values()), name)
            self.assertIn(name, haul("profile", "show", name).stdout)

    def test_a_profile_that_was_shown_can_be_read(self):
        with tempfile.TemporaryDirectory() as here:
            path = os.path.join(here, "p.json")
            with open(path, "w") as f:
                f.write(haul("profile", "show", "dgx-h100", "--json").stdout)
            a = sim("--model", "7b", "--profile", path)
            b = sim("--model", "7b", "--profile", "dgx-h100")
            self.assertEqual(a["step"], b["step"])

    def test_a_file_of_tune_is_read_and_what_it_lacks_is_said(self):
        with tempfile.TemporaryDirectory() as here:
            path = os.path.join(here, "p.json")
            with open(path, "w") as f:
                json.dump({"version": 1, "drives": [{"mixed_gb_per_s": 4.5}],
                           "rates": {"drive_read_bytes_per_s": 5e9}}, f)
            p = json.loads(haul("profile", "show", path, "--json").stdout)
            self.assertEqual(p["rates"]["drive_read_bytes_per_s"], 5e9)
            self.assertEqual(p["rates"]["drive_mixed_bytes_per_s"], 4.5e9)
            self.assertIn("not in the file", p["sources"]["flops_per_s"])
            with open(path, "w") as f:
                json.dump({"rates": {"mem_bytes_per_s": -1}}, f)
            done = haul("profile", "show", path)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn("mem_bytes_per_s", done.stderr)


if __name__ == "__main__":
    unittest.main()
