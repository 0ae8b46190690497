#!/usr/bin/env python3
"""haul bench step on a tiny model: every row, the arithmetic between its figures, and bad flags.

usage: test_bench_step.py PATH_OF_HAUL
"""
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

HAUL = os.path.abspath(sys.argv[1]) if len(sys.argv) > 1 else "haul"
OK, FAILED, USAGE, ENVIRONMENT = 0, 1, 2, 3
KEYS = ("placement overlap step_s compute_s exposed_h2d_s exposed_d2h_s exposed_optim_s "
        "exposed_io_s penalty bound_s ratio_to_bound").split()
PARAMS, UNITS = 1000003, 5  # units of two sizes


def bench(*args, cwd=None):
    return subprocess.run([HAUL, "bench", "step", *map(str, args)], capture_output=True, text=True,
                          timeout=200, cwd=cwd, check=False)


def answer(*args):
    with tempfile.TemporaryDirectory(dir=".") as here:
        done = bench("--json", "--params", PARAMS, "--units", UNITS, "--steps", 2, *args, cwd=here)
        assert done.returncode == OK, done.stderr
        assert os.listdir(here) == [], "something was left behind"
    return json.loads(done.stdout)


class Rows(unittest.TestCase):
    def check_rows(self, got):
        for row in got["rows"]:
            self.assertLessEqual(set(KEYS), set(row))
            self.assertAlmostEqual(row["ratio_to_bound"], row["step_s"] / row["bound_s"])
            self.assertLessEqual(row["fastest_s"], row["step_s"])
            self.assertLessEqual(row["step_s"], row["slowest_s"])
            hidden = max(got["forward_s"], row["cores_s"], row["nvme_s"]) + got["backward_s"]
            self.assertAlmostEqual(row["bound_s"], max(hidden, row["nvme_all_s"], row["h2d_s"],
                                                       row["d2h_s"]))
            self.assertLessEqual(row["nvme_s"], row["nvme_all_s"])
            # Units are copied up while others are updated, all but the last: by as many cores as there are.
            if row["overlap"] == "off" or row["placement"] == "device":
                self.assertEqual(row["cores_s"], row["optim_s"])
                continue
            copy_s = 2 * PARAMS * (UNITS - 1) / UNITS / row["copy_bytes_per_s"]
            ncores = copy_s / (row["cores_s"] - row["optim_s"])
            self.assertAlmostEqual(ncores, round(ncores), places=3)
            self.assertIn(round(ncores), range(1, len(os.sched_getaffinity(0)) + 1))

    def test_every_placement_deferred_and_not(self):
        got = answer("--forward-ms", 30)
        self.check_rows(got)
        self.assertEqual([(r["placement"], r["overlap"]) for r in got["rows"]],
                         [(p, o) for p in ("device", "host", "nvme", "mixed")
                          for o in ("off", "deferred")])
        self.assertIs(got["emulated"], True)
        self.assertEqual((got["params"], got["units"]), (PARAMS, UNITS))
        self.assertAlmostEqual(got["forward_s"], 0.03)
        for row in got["rows"]:
            self.assertAlmostEqual(row["compute_s"], 0.03 * 4)
            self.assertAlmostEqual(row["penalty"], row["step_s"] / row["compute_s"] - 1)
            # Waits are never shorter than asked for, but for a late wake at their beginning.
            self.assertGreater(row["step_s"], 0.99 * row["compute_s"])
            # Parameters go up twice and gradients come down once, in 2 bytes each.
            host = row["placement"] != "device"
            # With 1% for padding, and for the norm's block sums on the device.
            self.assertAlmostEqual(row["d2h_bytes"], 2 * PARAMS * host, delta=PARAMS / 100)
            self.assertLessEqual(row["h2d_bytes"], 4.01 * PARAMS * host)

    def test_every_pass_moves_gradients_and_the_simulator_has_its_say(self):
        got = answer("--forward-ms", 20, "--passes", 2, "--window", 3, "--placement", "host")
        self.check_rows(got)
        for row in got["rows"]:
            self.assertAlmostEqual(row["compute_s"], 0.02 * 4)
            self.assertAlmostEqual(row["d2h_bytes"], 2 * 2 * PARAMS, delta=PARAMS / 50)
            # Two thirds as a bound for a machine that others use too.
            self.assertGreaterEqual(row["predicted_s"], row["compute_s"])
            self.assertLess(row["predicted_s"], 1.5 * row["step_s"])

    def test_records_rest_where_the_placement_says(self):
        got = answer("--forward-ms", 1)
        records = 10 * PARAMS
        for row in got["rows"]:
            rest = [row[f"records_{t}_bytes"] for t in ("device", "host", "nvme")]
            self.assertEqual(sum(rest), records, row["placement"])
            if row["placement"] == "mixed":
                self.assertGreater(min(rest[1:]), records / 4)
            else:
                self.assertEqual(rest[("device", "host", "nvme").index(row["placement"])], records)

    def test_paged_records_move_both_ways_once(self):
        got = answer("--placement", "nvme", "--overlap", "off", "--no-recompute",
                     "--forward-ms", 1)
        row, = got["rows"]
        self.check_rows(got)
        self.assertAlmostEqual(got["backward_s"], 2 * got["forward_s"])
        self.assertGreaterEqual(row["io_bytes"], 20 * PARAMS)
        self.assertLess(row["io_bytes"], 1.3 * 20 * PARAMS)  # whole blocks

    def test_tokens_and_flops_give_the_forward_time(self):
        got = answer("--placement", "host", "--overlap", "deferred", "--tokens", 10000, "--tflops", 1)
        self.assertAlmostEqual(got["forward_s"], 2 * PARAMS * 10000 / 1e12)
        self.assertEqual(got["mixed_bytes_per_s"], 0)  # no drive was touched

    def test_no_compute_has_no_penalty(self):
        got = answer("--no-compute", "--placement", "nvme", "--overlap", "deferred", "--offload",
                     "optimizer", "--master", "fp32")
        row, = got["rows"]
        self.check_rows(got)
        self.assertIsNone(row["penalty"])
        self.assertEqual((row["compute_s"], row["records_nvme_bytes"]), (0, 12 * PARAMS))

    def test_a_host_budget_of_ones_own_keeps_records_in_memory(self):
        least, = answer("--placement", "nvme", "--overlap", "off", "--forward-ms", 1)["rows"]
        more, = answer("--placement", "nvme", "--overlap", "off", "--forward-ms", 1, "--host-mem",
                       least["host_bytes"] + 5 * PARAMS)["rows"]
        self.assertGreater(more["records_host_bytes"], 0)
        self.assertGreater(more["records_nvme_bytes"], 0)

    def test_the_table_says_that_it_is_emulated(self):
        with tempfile.TemporaryDirectory(dir=".") as here:
            done = bench("--params", PARAMS, "--steps", 1, "--placement", "host", "--forward-ms", 1,
                         cwd=here)
        self.assertEqual((done.returncode, done.stderr), (OK, ""))
        self.assertIn("emulated", done.stdout.splitlines()[0])


class Refused(unittest.TestCase):
    def refused(self, code, word, *args):
        done = bench(*args)
        self.assertEqual((done.returncode, done.stdout), (code, ""), done.stderr)
        self.assertIn(word, done.stderr)

    def test_flags(self):
        self.refused(USAGE, "--units", "--units", 0)
        self.refused(USAGE, "--params", "--params", 1000)
        self.refused(USAGE, "--steps", "--steps", 0)
        self.refused(USAGE, "--steps", "--steps", 65)
        for wrong in (0, 1, 1025, 4097):
            self.refused(USAGE, "--slots", "--slots", wrong)
        for wrong in (0, 4097, 2**32 - 1):
            self.refused(USAGE, "--threads", "--threads", wrong)
        self.refused(USAGE, "--placement", "--placement", "moon")
        self.refused(USAGE, "--overlap", "--overlap", "on")
        self.refused(USAGE, "--forward-ms", "--forward-ms", 0)
        self.refused(USAGE, "--forward-ms", "--forward-ms", 5, "--tokens", 100)
        self.refused(USAGE, "--no-compute", "--no-compute", "--tokens", 100)
        self.refused(USAGE, "--host-mem", "--host-mem", "1GB")
        self.refused(USAGE, "did you mean --tokens?", "--token", 100)

    def test_a_budget_below_the_floor_is_refused_with_the_shortfall(self):
        with tempfile.TemporaryDirectory(dir=".") as here:
            self.refused(FAILED, "short by", "--params", PARAMS, "--placement", "nvme", "--host-mem",
                         "1MB", "--forward-ms", 1, "--nvme", here)

    def test_a_directory_that_is_not_there_is_not_made(self):
        with tempfile.TemporaryDirectory(dir=".") as here:
            missing, file = os.path.join(here, "missing"), os.path.join(here, "file")
            with open(file, "w", encoding="ascii"):
                pass
            for name in (missing, file, "/dev/null/here"):
                self.refused(ENVIRONMENT, name, "--params", PARAMS, "--placement", "nvme", "--nvme",
                             f"{here},{name}", "--forward-ms", 1, "--steps", 1)
            self.assertEqual(os.listdir(here), ["file"])


class Scratch(unittest.TestCase):
    def test_it_goes_on_an_error(self):
        with tempfile.TemporaryDirectory(dir=".") as here:
            done = bench("--params", PARAMS, "--placement", "nvme", "--host-mem", "1MB",
                         "--forward-ms", 1, cwd=here)
            self.assertEqual(done.returncode, FAILED, done.stderr)
            self.assertEqual(os.listdir(here), [])

    def test_it_goes_on_signals_which_still_end_the_process(self):
        for sig in (signal.SIGINT, signal.SIGTERM):
            with tempfile.TemporaryDirectory(dir=".") as here:
                with subprocess.Popen([HAUL, "bench", "step", "--params", str(PARAMS), "--steps",
                                       "64", "--forward-ms", "1000"], cwd=here) as child:
                    end = time.monotonic() + 60
                    while not os.listdir(here) and time.monotonic() < end:
                        time.sleep(0.01)
                    self.assertEqual(len(os.listdir(here)), 1)
                    time.sleep(1)  # into the steps
                    child.send_signal(sig)
                    child.wait(timeout=60)
                self.assertEqual(child.returncode, -sig)
                self.assertEqual(os.listdir(here), [], sig)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]] + sys.argv[2:], verbosity=1)
