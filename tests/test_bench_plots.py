#!/usr/bin/env python3
"""test_bench_plots.py HAUL SOURCE_ROOT: --plot of the benches, and the study of slower links, in small."""
import csv
import os
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

import tap

HAUL, ROOT = (os.path.abspath(p) for p in sys.argv[1:3])
SMALL_STEP = ["--params", "256Ki", "--units", "4", "--steps", "2", "--forward-ms", "2"]


def bench(*words, rc=0):
    done = subprocess.run([HAUL, "bench", *words], text=True, capture_output=True, timeout=120, check=False)
    assert done.returncode == rc, (words, done.returncode, done.stdout, done.stderr)
    return done


def words_of(path):
    """All text in a drawing."""
    root = xml.etree.ElementTree.parse(path).getroot()
    assert root.tag.endswith("svg")
    return " ".join(" ".join(e.itertext()) for e in root.iter() if e.tag.endswith("text"))


def needs_gnuplot():
    if not shutil.which("gnuplot"):
        raise tap.Skip("no gnuplot")


def draws(folder, *words):
    path = folder + "/plot.svg"
    bench(*words, "--plot", path)
    text = words_of(path)
    os.remove(path)
    return text


def a_store_is_drawn(folder):
    needs_gnuplot()
    text = draws(folder, "io", "--dir", folder, "--bytes", "256MiB", "--repeats", "1")
    assert all(w in text for w in ("read", "write", "mixed", "GB/s")) and "fio" not in text, text


def kernels_are_drawn_beside_their_roof(folder):
    needs_gnuplot()
    text = draws(folder, "adam", "--elems", "65536", "--repeats", "7", "--variant", "c")
    assert "c adamw fp32" in text and "c adamw split" in text and "roof" in text, text


def a_link_is_drawn_by_size(folder):
    needs_gnuplot()
    text = draws(folder, "link", "--size", "128KiB", "--repeats", "1")
    assert "h2d" in text and "d2h" in text and "pageable" in text and "emulated" in text, text


def steps_are_drawn_beside_their_bound(folder):
    needs_gnuplot()
    text = draws(folder, "step", *SMALL_STEP, "--nvme", folder)
    assert "host deferred" in text and "nvme off" in text and "bound" in text, text


def a_name_that_gnuplot_could_not_take_is_refused(folder):
    assert "no quotes" in bench("link", "--size", "64KiB", "--repeats", "1", "--plot", folder + "/a'b.svg", rc=2).stderr


def the_study_of_links_ends_with_its_figures(folder):
    env = {**os.environ, "PENALTY_FLAGS": " ".join(SMALL_STEP)}
    done = subprocess.run([ROOT + "/examples/bench_link_penalty.sh", HAUL, folder, "1", "4"], env=env, text=True,
                          capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    with open(folder + "/penalty.csv") as f:
        rows = list(csv.DictReader(f))
    assert [(r["link_gbps"], r["placement"], r["overlap"]) for r in rows] == [
        (link, placement, overlap) for link in ("1", "4") for placement in ("host", "nvme") for overlap in ("off", "deferred")]
    assert all(float(r["step_s"]) >= 0.99 * float(r["bound_s"]) > 0 for r in rows), rows
    needs_gnuplot()
    assert "host, deferred" in words_of(folder + "/penalty.svg")


CASES = (a_store_is_drawn, kernels_are_drawn_beside_their_roof, a_link_is_drawn_by_size,
         steps_are_drawn_beside_their_bound, a_name_that_gnuplot_could_not_take_is_refused,
         the_study_of_links_ends_with_its_figures)

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        tap.main(CASES, scratch)
