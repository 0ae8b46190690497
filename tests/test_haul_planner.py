#!/usr/bin/env python3
"""test_haul_planner.py HAUL SOURCE_ROOT: the page of haul plan --html says what haul plan says."""
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile

import browser
import page_checks
import tap

HAUL, ROOT = (os.path.abspath(p) for p in sys.argv[1:3])
NPOINTS = 200


def plan(*words, rc=0):
    done = subprocess.run([HAUL, "plan", *map(str, words)], text=True, capture_output=True, timeout=60, check=False)
    assert done.returncode == rc, (words, done.returncode, done.stdout, done.stderr)
    return done.stdout if rc == 0 else done.stderr


def point(source):
    """Flags of the command, and the same as the page's formulas take it."""
    ranks = source.choice([1, 2, 3, 4, 7, 8, 16, 64])
    dtype = source.choice(["bf16", "bf16", "fp16", "fp32"])
    p = {"params": round(10 ** source.uniform(8, 12.2)), "ranks": ranks, "ranksPerNode": source.randint(1, min(ranks, 8)),
         "dtype": dtype, "gradDtype": "fp32" if dtype == "fp32" else source.choice(["bf16", "fp16", "fp32"]),
         "master": source.choice(["fp32", "split"]) if dtype == "bf16" else "fp32", "passes": source.choice([1, 1, 4]),
         "tokens": source.randint(1000, 10**7), "recompute": source.random() < 0.8, "layers": 0, "hidden": 0, "heads": 1,
         "vocab": 50257, "seq": 0, "batch": 1}
    for name, low, high in (("deviceMem", 9.5, 11.5), ("hostMem", 10, 13), ("nvmeMem", 11, 14)):
        p[name] = round(10 ** source.uniform(low, high)) if source.random() < 0.7 else None
    if source.random() < 0.6:
        heads = source.choice([8, 12, 40])
        p.update(layers=source.randint(2, 90), hidden=heads * source.choice([64, 128]), heads=heads,
                 seq=source.choice([512, 2048, 8192]), batch=source.choice([1, 3]), vocab=source.choice([32000, 50257]))
    p["tflops"], p["link"], p["mem"], p["drive"] = (round(source.uniform(a, b), 3) for a, b in
                                                    ((1, 900), (1, 60), (20, 400), (0.5, 60)))
    flags = ["--params", p["params"], "--ranks", ranks, "--ranks-per-node", p["ranksPerNode"], "--dtype", dtype,
             "--grad-dtype", p["gradDtype"], "--master", p["master"], "--passes", p["passes"], "--tokens", p["tokens"],
             "--tflops", p["tflops"], "--link-gbps", p["link"], "--mem-gbps", p["mem"], "--drive-gbps", p["drive"]]
    for flag, name in (("--device-mem", "deviceMem"), ("--host-mem", "hostMem"), ("--nvme-mem", "nvmeMem")):
        flags += [] if p[name] is None else [flag, p[name]]
    if p["layers"]:
        for name in ("layers", "hidden", "heads", "vocab", "seq", "batch"):
            flags += ["--" + name, p[name]]
    return flags + ([] if p["recompute"] else ["--no-recompute"]), p


JAVASCRIPT = """
const said = POINTS.map((p) => {
  for (const name of ["deviceMem", "hostMem", "nvmeMem"])
    p[name] = p[name] === null ? Infinity : p[name];
  p.flops = p.tflops * 1e12; p.link *= 1e9; p.mem *= 1e9; p.driveRead = p.driveWrite = p.drive * 1e9;
  const rows = planRows(p), best = recommend(rows);
  return { rows, best, bounds: best < 0 ? null : bounds(p, rows[best]) };
});
"""


def formulas(page):
    """The first script of the page."""
    with open(page) as f:
        return re.search(r"<script>\n(.*?)</script>", f.read(), re.S).group(1)


def by_node(script, folder):
    with open(folder + "/points.js", "w") as f:
        f.write(script + "console.log(JSON.stringify(said));\n")
    return json.loads(subprocess.run(["node", folder + "/points.js"], capture_output=True, text=True, check=True).stdout)


def by_browser(script, folder):
    here = browser.Browser()
    try:
        return json.loads(here.evaluate("(() => {" + script.replace('"use strict";', "") + "return JSON.stringify(said); })()"))
    finally:
        here.close()


def same_bounds(page, command):
    names = {"step": "step_s", "forward": "forward_s", "backward": "backward_s", "h2d": "h2d_s", "d2h": "d2h_s",
             "optim": "optim_s", "hostMemory": "host_memory_s", "nvme": "nvme_s"}
    for ours, theirs in names.items():
        assert abs(page[ours] - command[theirs]) <= 1e-12 * abs(command[theirs]), (ours, page, command)
    assert page["by"] == command["bound_by"], (page, command)


def same_point(page, command):
    for ours, theirs in zip(page["rows"], command["rows"]):
        assert (ours["stage"], ours["offload"]) == (theirs["stage"], theirs["offload"])
        said = [ours["device"], ours["host"], ours["nvme"], *ours["lacks"], ours["fits"], ours["ratio"]]
        assert said == [theirs["device_bytes_per_rank"], theirs["host_bytes_per_node"], theirs["nvme_bytes_per_node"],
                        *(theirs["short_by"][t] for t in ("device", "host", "nvme")), theirs["fits"],
                        theirs["comm_ratio"]], (ours, theirs)
        if "working_set" in theirs:
            w = theirs["working_set"]
            assert list(ours["workingSet"].values()) == [w["window_device_bytes"], w["gradient_window_device_bytes"],
                                                         w["activations_device_bytes"], w["slots_host_bytes"]]
    best = command["least_offload"]
    assert (page["best"] < 0) == (best is None)
    if best is not None:
        row = page["rows"][page["best"]]
        assert (row["stage"], row["offload"]) == (best["stage"], best["offload"])
        same_bounds(page["bounds"], best["lower_bounds"])


def the_page_computes_what_the_command_does(folder):
    """On 200 points drawn from a seed: to the byte, and times to 1e-12; in a browser, and where node is there too."""
    runs = [*([by_browser] if browser.find() else []), *([by_node] if shutil.which("node") else [])]
    if not runs:
        raise tap.Skip("no chromium and no node")
    source = random.Random(9)
    points = [point(source) for _ in range(NPOINTS)]
    script = formulas(folder + "/page.html") + "const POINTS = %s;" % json.dumps([p for _, p in points]) + JAVASCRIPT
    nfit = 0
    for (flags, _), *pages in zip(points, *(run(script, folder) for run in runs)):
        command = json.loads(plan(*flags, "--json"))
        for page in pages:
            same_point(page, command)
        nfit += command["recommended"] is not None
    assert NPOINTS / 4 < nfit < NPOINTS, nfit


def the_page_holds_the_formulas_whole(folder):
    with open(ROOT + "/tools/pages/plan_formulas.js") as f:
        assert formulas(folder + "/page.html") == f.read()
    with open(folder + "/page.html") as f:
        tree = page_checks.check_page(f.read())
    assert len(tree.all("script")) == 2


def it_begins_at_the_flags(folder):
    with open(folder + "/page.html") as f:
        start = re.search(r"const START = \{(.*?)\};", f.read(), re.S).group(1)
    for text in ("params: 12853386240,", "ranks: 4,", "deviceMem: 24000000000,", "nvmeMem: Infinity,", "layers: 40,",
                 "tokens: 8192,"):
        assert text in start, (text, start)
    assert "/nowhere/" in plan("--params", "1B", "--html", "/nowhere/x.html", rc=1)


def a_phone_shows_the_result_beside_every_control(folder):
    """On a narrow screen the result stays at the top, and what has the focus is not under it."""
    if not browser.find():
        raise tap.Skip("no chromium")
    here = browser.Browser()
    try:
        here.size(375, 800, False)
        here.open(folder + "/page.html")
        hidden = here.evaluate("""(() => {
            const bars = document.getElementById("bars"), result = document.getElementById("result");
            const wrong = [];
            for (const control of document.querySelectorAll("#controls input, #controls select")) {
                control.focus();
                control.scrollIntoView({ block: "nearest" });
                const at = control.getBoundingClientRect(), r = result.getBoundingClientRect();
                const b = bars.getBoundingClientRect();
                if (b.top < 0 || b.bottom > innerHeight || at.top < r.bottom || at.bottom > innerHeight + 1)
                    wrong.push([control.id, at.top, at.bottom, r.bottom, b.top, b.bottom]);
            }
            return wrong;
        })()""")
        assert hidden == [], hidden
    finally:
        here.close()


def a_browser_moves_it(folder):
    if not browser.find():
        raise tap.Skip("no chromium")
    here = browser.Browser()
    try:
        page_checks.check_in_browser(here, folder + "/page.html", folder, "input, select, [tabindex]")
        read = "document.getElementById(%r).textContent"
        assert "Stage 3, offload optimizer: fits" in here.evaluate(read % "verdict")
        said = here.evaluate(read % "command")
        same = json.loads(subprocess.run([HAUL, *said.split()[1:], "--json"], capture_output=True, text=True, check=True).stdout)
        assert same["least_offload"]["offload"] == "optimizer" and same["params"] == 12853386240
        here.evaluate("document.getElementById('c-params').focus()")
        for _ in range(5):
            here.key("ArrowRight")
        assert here.evaluate(read % "command") != said, "the arrow keys do not move a slider"
        here.evaluate("for (const [id, v] of [['c-offload', 'none'], ['c-stage', '0']]) {"
                      "const e = document.getElementById(id); e.value = v; e.dispatchEvent(new Event('change')); }")
        assert "Stage 0, offload none: does not fit" in here.evaluate(read % "verdict")
        assert here.complaints() == []
        plan("--params", "13B", "--profile", "4x3090", "--html", folder + "/profile.html")
        here.open(folder + "/profile.html")
        said, seconds = here.evaluate(read % "command"), here.evaluate(read % "step")
        command = json.loads(subprocess.run([HAUL, *said.split()[1:], "--json"], capture_output=True, text=True,
                                            check=True).stdout)
        assert "at least %.4g s" % command["least_offload"]["lower_bounds"]["step_s"] in seconds, (said, seconds)
    finally:
        here.close()


CASES = (the_page_computes_what_the_command_does, the_page_holds_the_formulas_whole, it_begins_at_the_flags,
         a_phone_shows_the_result_beside_every_control, a_browser_moves_it)

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        plan("--layers", 40, "--hidden", 5120, "--seq", 2048, "--ranks", 4, "--device-mem", "24GB", "--host-mem", "128GB",
             "--html", scratch + "/page.html")
        tap.main(CASES, scratch)
