#!/usr/bin/env python3
"""The haul command as a person or a script meets it: output, exit codes, bad input.

usage: test_haul_command.py PATH_OF_HAUL
"""
import json
import os
import subprocess
import sys
import tempfile
import unittest

HAUL = os.path.abspath(sys.argv[1]) if len(sys.argv) > 1 else "haul"
OK, FAILED, USAGE, ENVIRONMENT = 0, 1, 2, 3


def haul(*args, **kwargs):
    return subprocess.run([HAUL, *map(str, args)], capture_output=True, text=True, timeout=60,
                          **kwargs)


def plan(*args):
    done = haul("plan", "--json", *args)
    assert done.returncode == OK, done.stderr
    return json.loads(done.stdout)


def rows(answer, offload):
    return [r for r in answer["rows"] if r["offload"] == offload]


class Plan(unittest.TestCase):
    def test_zero_paper_figures(self):
        answer = plan("--params", "7.5e9", "--ranks", 64, "--device-mem", "80GB")
        none = rows(answer, "none")
        self.assertEqual([r["stage"] for r in none], [0, 1, 2, 3])
        self.assertEqual([r["device_bytes_per_rank"] for r in none],
                         [120000000000, 31406250000, 16640625000, 1875000000])
        self.assertEqual([r["comm_ratio"] for r in none], [1, 1, 1, 1.5])
        self.assertEqual([r["fits"] for r in none], [False, True, True, True])
        self.assertEqual([r["short_by_bytes"] for r in none], [40 * 10**9, 0, 0, 0])
        self.assertEqual((answer["params"], answer["ranks"], answer["dtype"]),
                         (7500000000, 64, "bf16"))

    def test_70b(self):
        none = rows(plan("--params", "70e9", "--ranks", 16), "none")
        self.assertEqual(none[3]["device_bytes_per_rank"], 70 * 10**9)
        for ranks in (1, 16, 500):
            none = rows(plan("--params", "70B", "--ranks", ranks), "none")
            self.assertEqual(none[0]["device_bytes_per_rank"], 1120 * 10**9)
        optimizer = rows(plan("--params", "70e9", "--ranks", 8), "optimizer")
        self.assertEqual(optimizer[3]["device_bytes_per_rank"], 17500000000)

    def test_13b_on_four_24_gb_cards(self):
        answer = plan("--params", "13e9", "--ranks", 4, "--device-mem", "24GB")
        none = rows(answer, "none")
        self.assertEqual([r["device_bytes_per_rank"] for r in none],
                         [208 * 10**9, 91 * 10**9, 71500000000, 52 * 10**9])
        self.assertFalse(any(r["fits"] for r in none))
        optimizer = rows(answer, "optimizer")
        self.assertEqual((optimizer[2]["device_bytes_per_rank"], optimizer[2]["fits"]),
                         (26 * 10**9, False))
        self.assertEqual((optimizer[3]["device_bytes_per_rank"], optimizer[3]["fits"]),
                         (6500000000, True))
        self.assertEqual((answer["least_offload"]["stage"], answer["least_offload"]["offload"]),
                         (3, "optimizer"))

    def test_the_simulator_recommends(self):
        """What haul sim says of the same: the cheapest within 5% of the fastest, what holds it up, what helps."""
        same = ("--params", "13e9", "--ranks", 4, "--device-mem", "24GB", "--host-mem", "100GB", "--tokens", 65536)
        got = plan(*same)["recommended"]
        sim = json.loads(haul("sim", *same, "--accum", 1, "--json").stdout)
        best, said = sim["step"], got["simulated"]
        self.assertEqual((got["stage"], got["offload"]), (best["stage"], best["offload"]))
        self.assertAlmostEqual(said["step_s"], best["step_s"], places=9)
        self.assertEqual((said["bottleneck"], said["upgrade"]["what"]), (best["bottleneck"], best["upgrade"]["what"]))
        steps = [c["step_s"] for c in sim["choices"] if c["fits"]]
        self.assertAlmostEqual(said["fastest_s"], min(steps), places=9)
        self.assertLessEqual(said["step_s"], 1.05 * min(steps))
        self.assertIn("most helps: %s" % said["upgrade"]["what"], haul("plan", *same).stdout)

    def test_room_for_everything_is_compute_alone(self):
        """2 P T / F forward, 6 P T / F backward; a device updates 28 B a parameter at 1.6 TB/s."""
        got = plan("--params", "1e9", "--tokens", 10**6)["recommended"]
        self.assertEqual((got["stage"], got["offload"]), (0, "none"))
        self.assertAlmostEqual(got["simulated"]["step_s"] / (8e15 / 140e12), 1, places=2)
        self.assertEqual(got["simulated"]["bottleneck"], "compute")

    def test_what_cannot_be_simulated_says_so(self):
        got = plan("--params", "1e9", "--dtype", "fp32")
        self.assertIn("16-bit", got["recommended"]["simulated"]["why_not"])
        self.assertEqual((got["recommended"]["stage"], got["recommended"]["offload"]),
                         (got["least_offload"]["stage"], got["least_offload"]["offload"]))
        self.assertIn("Not simulated", haul("plan", "--params", "1e9", "--dtype", "fp32").stdout)

    def test_counts_are_exact_integers(self):
        for row in plan("--params", 10**17 + 1, "--ranks", 1)["rows"]:
            for key in ("device_bytes_per_rank", "host_bytes_per_node", "nvme_bytes_per_node",
                        "short_by_bytes"):
                self.assertIsInstance(row[key], int)
            self.assertEqual(row["device_bytes_per_rank"] + row["host_bytes_per_node"],
                             16 * (10**17 + 1))

    def test_working_set_only_with_a_shape(self):
        self.assertNotIn("working_set", plan("--params", "1e9")["rows"][0])
        answer = plan("--layers", 12, "--hidden", 768, "--seq", 1024, "--ranks", 2)
        self.assertEqual(answer["params"], 124439808)  # GPT-2
        for row in answer["rows"]:
            self.assertGreater(row["working_set"]["activations_full_device_bytes"],
                               row["working_set"]["activations_recompute_device_bytes"])

    def test_split_records_page_ten_bytes(self):
        answer = plan("--params", "1e9", "--master", "split", "--host-mem", "4GB")
        self.assertEqual(rows(answer, "optimizer")[3]["nvme_bytes_per_node"], 10**10)

    def test_nothing_fits_is_an_answer(self):
        answer = plan("--params", "1e9", "--device-mem", 0, "--host-mem", 0, "--nvme-mem", 0)
        self.assertIsNone(answer["recommended"])
        self.assertFalse(any(r["fits"] for r in answer["rows"]))
        self.assertIn("Recommended: none", haul("plan", "--params", "1e9", "--device-mem", "1GB",
                                                "--host-mem", 0, "--nvme-mem", 0).stdout)

    def test_table(self):
        done = haul("plan", "--params", "13B", "--ranks", 4, "--device-mem", "24GB")
        self.assertEqual((done.returncode, done.stderr), (OK, ""))
        marked = [line for line in done.stdout.splitlines() if "recommended" in line]
        self.assertEqual(marked[0].split()[:5], ["3", "all", "-", "208.00", "GB"])
        self.assertIn("    3  optimizer      6.50 GB", done.stdout)
        self.assertIn("(defaults)", done.stdout)

    def test_rates_scale_the_bounds(self):
        slow, fast = (plan("--params", "13e9", "--device-mem", "30GB", "--mem-gbps", x)["recommended"]
                      for x in (100, 200))
        self.assertAlmostEqual(slow["lower_bounds"]["optim_s"],
                               2 * fast["lower_bounds"]["optim_s"])

    def test_params_and_shape_that_disagree_warn(self):
        done = haul("plan", "--params", "1e9", "--layers", 12, "--hidden", 768, "--seq", 1024)
        self.assertEqual(done.returncode, OK)
        self.assertIn("warning", done.stderr)
        done = haul("plan", "--params", "124M", "--layers", 12, "--hidden", 768, "--seq", 1024)
        self.assertEqual(done.stderr, "")


class BadInput(unittest.TestCase):
    """One clear line on stderr, nothing on stdout, exit code 2."""

    def refused(self, word, *args):
        done = haul(*args)
        self.assertEqual(done.returncode, USAGE, args)
        self.assertEqual(done.stdout, "", args)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        self.assertIn(word, done.stderr, args)

    def test_values(self):
        p = ("plan", "--params", "1e9")
        self.refused("ranks", *p, "--ranks", "0")
        self.refused("ranks", *p, "--ranks", "1.5")
        self.refused("ranks", *p, "--ranks", "5e9")
        self.refused("ranks_per_node", *p, "--ranks-per-node", "2")
        self.refused("nonsense", *p, "--device-mem", "nonsense")
        self.refused("-1", *p, "--host-mem", "-1")
        self.refused("--dtype", *p, "--dtype", "int8")
        self.refused("split", *p, "--dtype", "fp16", "--master", "split")
        self.refused("--tflops", *p, "--tflops", "nan")
        self.refused("--tokens", *p, "--tokens", "0")
        self.refused("--passes", *p, "--passes", "0")
        self.refused("--params", "plan", "--params", "0")
        self.refused("--params", "plan", "--params", "")
        self.refused("--params", "plan")

    def test_overflow(self):
        self.refused("63 bits", "plan", "--params", "9e18")
        self.refused("2^63", "plan", "--params", "1e30")
        self.refused("63 bits", "plan", "--layers", "1e15", "--hidden", "1e15", "--seq", "1e15")
        self.refused("step", "plan", "--params", "1e9", "--tokens", "1e300")

    def test_shape(self):
        self.refused("--hidden", "plan", "--params", "1e9", "--layers", "4")
        self.refused("--layers", "plan", "--params", "1e9", "--layers", "0", "--hidden", "8",
                     "--seq", "8")
        self.refused("heads", "plan", "--layers", "4", "--hidden", "100", "--seq", "8", "--heads", "3")
        self.refused("--layers", "plan", "--params", "1e9", "--heads", "3")

    def test_bench_io(self):
        b = ("bench", "io", "--dir", "/nonexistent/folder")
        for flag, values in (("--block", (0, 1, 4095, 6000, "2GiB", "4GiB")),
                             ("--depth", (0, 1025)), ("--write-depth", (0, 1025)),
                             ("--repeats", (0, 65))):
            for value in values:
                self.refused(f"{flag} ", *b, flag, value)

    def test_bench_io_of_too_little_says_how_much(self):
        with tempfile.TemporaryDirectory(dir=os.getcwd()) as folder:
            b = ("bench", "io", "--dir", folder, "--block", "1MiB", "--depth", "4", "--repeats", "1", "--bytes")
            said = haul(*b, "2MiB")
            self.assertEqual(said.returncode, USAGE, said.stderr)
            self.assertIn("--bytes 2.10 MB is too little", said.stderr)
            enough = said.stderr.split("at least --bytes ")[1].split()[0]
            self.assertEqual(haul(*b, enough).returncode, OK)

    def test_flags(self):
        self.refused("did you mean --ranks?", "plan", "--params", "1e9", "--rank", "2")
        self.refused("did you mean --device-mem?", "plan", "--params", "1e9", "--devicemem=2GB")
        self.refused("--help", "plan", "--zzzzzzzzzzzzzzzzz")
        self.refused("needs a value", "plan", "--params")
        self.refused("needs a value", "plan", "--params", "--ranks", "2")
        self.refused("takes no value", "plan", "--params", "1e9", "--json=yes")
        self.refused("unexpected argument", "plan", "13e9")
        self.refused("did you mean plan?", "pln")
        self.refused("did you mean adam?", "bench", "adm")
        self.refused("unknown command", "--frobnicate")
        self.refused("empty", "doctor", "--dir", "a,,b")


class Shell(unittest.TestCase):
    def test_help_and_version(self):
        for args in (("--help",), ("plan", "--help"), ("doctor", "--help")):
            done = haul(*args)
            self.assertEqual((done.returncode, done.stderr), (OK, ""), args)
            self.assertTrue(done.stdout.startswith("usage: haul"), args)
        self.assertRegex(haul("--version").stdout, r"^haul \d+\.\d+\.\d+\n$")

    def test_no_command_is_a_usage_error(self):
        done = haul()
        self.assertEqual((done.returncode, done.stdout), (USAGE, ""))
        self.assertIn("usage:", done.stderr)

    def test_lost_output_is_a_failure(self):
        with open("/dev/full", "w", encoding="ascii") as full:
            done = subprocess.run([HAUL, "plan", "--params", "1e9"], stdout=full,
                                  stderr=subprocess.PIPE, text=True, timeout=60, check=False)
        self.assertEqual(done.returncode, FAILED)
        self.assertIn("standard output", done.stderr)


class Config(unittest.TestCase):
    FILES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "configs")

    def config(self, *args, **env):
        clean = {k: v for k, v in os.environ.items() if not k.startswith("HAUL_")}
        return haul("config", *args, env={**clean, **env})

    def test_each_value_has_its_source(self):
        path = os.path.join(self.FILES, "zero3_offload_bf16.json")
        done = self.config(path, "--json", "--strict", "--set", "slots=8", "--ranks", 4, HAUL_HOST_MEM="200GB")
        self.assertEqual((done.returncode, done.stderr), (OK, ""))
        settings = json.loads(done.stdout)["settings"]
        self.assertEqual(settings["stage"], {"value": "3", "source": "file",
                                             "where": "zero_optimization.stage"})
        self.assertEqual(settings["slots"], {"value": "8", "source": "flag", "where": "slots"})
        self.assertEqual(settings["host_mem"], {"value": "200000000000", "source": "environment",
                                                "where": "HAUL_HOST_MEM"})
        self.assertEqual(settings["passes"], {"value": "1", "source": "default", "where": ""})
        self.assertEqual(settings["train_batch"]["value"], "32")
        table = self.config(path).stdout
        self.assertRegex(table, r"(?m)^offload +all +file +zero_optimization.offload_param.device$")
        self.assertIn("note: ", table)

    def test_a_misspelled_key_names_its_neighbour(self):
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            file.write('{"zero_optimization": {"stge": 2}}')
            file.flush()
            done = self.config(file.name)
            self.assertEqual(done.returncode, OK)
            self.assertIn("zero_optimization.stge is not a known key; did you mean "
                          "zero_optimization.stage?", done.stderr)
            done = self.config(file.name, "--strict")
            self.assertEqual((done.returncode, done.stdout), (USAGE, ""))
            self.assertEqual(done.stderr.count("\n"), 1)

    def test_bad_use(self):
        self.assertEqual(self.config("/no/such/file").returncode, FAILED)
        self.assertEqual(self.config("--set", "stage=7").returncode, USAGE)
        self.assertEqual(self.config("a", "b").returncode, USAGE)


class Doctor(unittest.TestCase):
    def test_json(self):
        done = haul("doctor", "--json")
        self.assertEqual(done.returncode, OK, done.stdout + done.stderr)
        answer = json.loads(done.stdout)
        names = {check["name"] for check in answer["checks"]}
        self.assertLessEqual({"kernel", "io_uring", "memlock", "huge pages", "memory", "numa",
                              "processors", "optimizer", "gpu"}, names)
        for check in answer["checks"]:
            self.assertIn(check["status"], ("ok", "warn", "fail"))
        self.assertEqual(sum(answer[s] for s in ("ok", "warn", "fail")), len(answer["checks"]))

    def test_a_missing_directory_fails_with_a_remedy(self):
        with tempfile.TemporaryDirectory() as there:
            missing = os.path.join(there, "missing")
            done = haul("doctor", "--json", "--dir", there, "--dir", missing)
            self.assertEqual(os.listdir(there), [])  # what was tried there is gone
        self.assertEqual(done.returncode, ENVIRONMENT)
        checks = json.loads(done.stdout)["checks"]
        self.assertEqual([x["text"] for x in checks if " ," in x["text"] or "  " in x["text"]], [])  # a name that is not there
        failed = [x for x in checks if x["status"] == "fail"]
        self.assertEqual(len(failed), 1, failed)
        self.assertFalse(os.path.exists(missing))
        self.assertIn(missing, failed[0]["text"])
        self.assertTrue(failed[0]["remedy"])

    def test_the_mask_shows(self):
        done = haul("doctor", env={**os.environ, "HAUL_CPU_MASK": "c"})
        line = next(x for x in done.stdout.splitlines() if "optimizer" in x)
        self.assertTrue(line.startswith("warn"), line)

    def test_a_file_is_no_directory(self):
        with tempfile.NamedTemporaryFile() as file:
            self.assertEqual(haul("doctor", "--dir", file.name).returncode, ENVIRONMENT)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]] + sys.argv[2:], verbosity=1)
