#!/usr/bin/env python3
"""test_bench_plots.py HAUL SOURCE_ROOT: --plot of the benches, and the study of slower links, in small."""
import csv
import os
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

HAUL, ROOT = (os.path.abspath(p) for p in sys.argv[1:3])
NO_GNUPLOT = None if shutil.which("gnuplot") else "no gnuplot"
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


def draws(folder, *words):
    path = folder + "/plot.svg"
    bench(*words, "--plot", path)
    text = words_of(path)
    os.remove(path)
    return text


def a_store_is_drawn(folder):
    if NO_GNUPLOT:
        return NO_GNUPLOT
    text = draws(folder, "io", "--dir", folder, "--bytes", "256MiB", "--repeats", "1")
    assert all(w in text for w in ("read", "write", "mixed", "GB/s")) and "fio" not in text, text
    return None


def kernels_are_drawn_beside_their_roof(folder):
    if NO_GNUPLOT:
        return NO_GNUPLOT
    text = draws(folder, "adam", "--elems", "65536", "--repeats", "7", "--variant", "c")
    assert "c adamw fp32" in text and "c adamw split" in text and "roof" in text, text
    return None


def a_link_is_drawn_by_size(folder):
    if NO_GNUPLOT:
        return NO_GNUPLOT
    text = draws(folder, "link", "--size", "128KiB", "--repeats", "1")
    assert "h2d" in text and "d2h" in text and "pageable" in text and "emulated" in text, text
    return None


def steps_are_drawn_beside_their_bound(folder):
    if NO_GNUPLOT:
        return NO_GNUPLOT
    text = draws(folder, "step", *SMALL_STEP, "--nvme", folder)
    assert "host deferred" in text and "nvme off" in text and "bound" in text, text
    return None


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
    if NO_GNUPLOT:
        return NO_GNUPLOT
    assert "host, deferred" in words_of(folder + "/penalty.svg")
    return None


def main():
    cases = (a_store_is_drawn, kernels_are_drawn_beside_their_roof, a_link_is_drawn_by_size,
             steps_are_drawn_beside_their_bound, a_name_that_gnuplot_could_not_take_is_refused,
             the_study_of_links_ends_with_its_figures)
    failed = 0
    print("1..%d" % len(cases))
    with tempfile.TemporaryDirectory() as folder:
        for i, case in enumerate(cases, 1):
            try:
                skipped = case(folder)
                print("ok %d - %s%s" % (i, case.__name__, " # SKIP " + skipped if skipped else ""))
            except Exception as error:
                failed += 1
                print("not ok %d - %s" % (i, case.__name__))
                print("\n".join("# " + line for line in repr(error).splitlines()), file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
