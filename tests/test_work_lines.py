#!/usr/bin/env python3
"""test_work_lines.py HAUL TRAIN_GPT LATE_CLOCK: what long work says on a terminal. LATE_CLOCK makes short work long."""
import os
import re
import subprocess
import sys
import tempfile

import tap
import terminal

HAUL, TRAIN_GPT, LATE_CLOCK = (os.path.abspath(p) for p in sys.argv[1:4])
MODEL = ["--layers", "3", "--dim", "512", "--heads", "4", "--seq", "32", "--batch", "1"]
LINE = r"\r\x1b\[K%s: (?:begun|(\d+)%%, [0-9.]+ GB/s, \d+ (?:s|min) left)"


def watched(words, rc=0):
    code, _, said = terminal.run(list(map(str, words)), env={**os.environ, "LD_PRELOAD": LATE_CLOCK})
    assert code == rc, said
    return said


def shows(said, *works):
    """Each work's line has rates, and percentages that grow towards the end; then the line is taken away."""
    for work in works:
        parts = [int(p) for p in re.findall(LINE % work, said) if p]
        assert len(parts) > 3 and parts == sorted(parts) and 75 < parts[-1] <= 100, (work, parts, said)
        after = said[said.rindex("\r\x1b[K" + work):][3:]
        assert "\r\x1b[K" in after, (work, "the line is left standing", after)
    return said


def making_a_store_filling_and_saving_have_lines(t):
    said = shows(watched(t.train("--steps", 1, "--nvme", t.nvme, "--save", t.saves)), "making the store", "filling",
                 "saving")
    assert "\r\x1b[Kstep 1/1" in said or "\x1b[Kstep 1/1" in said, said


def writing_weights_has_a_line(t):
    file = os.path.join(t.folder, "init.safetensors")
    shows(watched(t.train("--steps", 1, "--nvme", t.nvme, "--dump-init", file)), "filling", "writing weights")


def loading_has_a_line(t):
    shows(watched(t.train("--steps", 1, "--nvme", t.nvme, "--resume", t.saves)), "making the store", "loading")


def checkpoint_commands_have_lines(t):
    weights, made = os.path.join(t.folder, "w.safetensors"), os.path.join(t.folder, "made")
    for words in (["verify", t.saves], ["export", t.saves, "--to", weights, "--optimizer"],
                  ["import", weights, "--like", t.saves, "--to", made], ["reshard", t.saves, "--ranks", 2, "--to", made],
                  ["diff", t.saves, made]):
        shows(watched([HAUL, "ckpt", *words]), words[0])


def benches_have_lines(t):
    """Those of set speeds under their own clock; bench adam has no line: it says each result as it comes."""
    shows(watched([HAUL, "bench", "io", "--dir", t.nvme, "--bytes", "192MiB", "--repeats", 2]), "making the store",
          "bench io")
    for words in (["step", "--params", "1Mi", "--steps", 3, "--forward-ms", 60, "--overlap", "off", "--nvme", t.nvme],
                  ["link", "--size", "64MiB", "--repeats", 9, "--link-gbps", 1]):
        code, _, said = terminal.run(list(map(str, [HAUL, "bench", *words])))
        parts = [int(p) for p in re.findall(r"\r\x1b\[Kbench %s: (\d+)%%" % words[0], said)]
        assert code == 0 and parts and parts == sorted(parts) and parts[-1] <= 100, (words, said)
        assert said.endswith("\r\x1b[K"), (words, said)


SWEEP = [HAUL, "sim", "--model", "7b", "--ranks", 8, "--device-mem", "80GB", "--stage", 3, "--sweep", "tokens=1M,2M,4M,8M,window=2,3"]


def a_sweep_says_how_long_it_will_take(_):
    code, out, said = terminal.run(list(map(str, SWEEP)), env={**os.environ, "LD_PRELOAD": LATE_CLOCK})
    parts = [int(p) for p in re.findall(r"\r\x1b\[Ksweep: (\d+)%, \d+ s left", said)]
    assert code == 0 and len(parts) > 3 and parts == sorted(parts), said
    assert said.endswith("\r\x1b[K"), ("the line is left standing", said)
    assert len(out.splitlines()) == 1 + 8, out


def what_is_no_terminal_hears_nothing(t):
    for words in ([HAUL, "ckpt", "verify", t.saves], SWEEP,
                  t.train("--steps", 1, "--nvme", t.nvme, "--resume", t.saves, "--save", t.saves)):
        done = subprocess.run(list(map(str, words)), env={**os.environ, "LD_PRELOAD": LATE_CLOCK}, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=True)
        assert "\r" not in done.stderr and "\x1b" not in done.stderr, done.stderr


def quiet_is_quiet(t):
    said = watched(t.train("--steps", 1, "--nvme", t.nvme, "--resume", t.saves, "--quiet"))
    assert said == "", said


class Scratch:
    def __init__(self, folder):
        self.folder = folder
        self.nvme, self.saves = os.path.join(folder, "nvme"), os.path.join(folder, "saves")
        os.mkdir(self.nvme)

    def train(self, *flags):
        return [TRAIN_GPT, *MODEL, "--host-mem", "60MB", "--slots", 2, "--slot-bytes", "4MiB", *flags]


def main():
    with tempfile.TemporaryDirectory(dir=os.getcwd(), prefix="haul-lines-") as folder:
        tap.main((making_a_store_filling_and_saving_have_lines, loading_has_a_line, writing_weights_has_a_line,
                  checkpoint_commands_have_lines, benches_have_lines,
                  a_sweep_says_how_long_it_will_take, what_is_no_terminal_hears_nothing, quiet_is_quiet),
                 Scratch(folder))


main()
