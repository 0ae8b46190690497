#!/usr/bin/env python3
"""test_haul_report.py HAUL TRAIN_GPT: haul report, held against the lines it was made of."""
import json
import os
import re
import subprocess
import sys
import tempfile

import browser
import page_checks
import tap

HAUL, TRAIN_GPT = (os.path.abspath(p) for p in sys.argv[1:3])
SMALL = ["--layers", "2", "--dim", "32", "--heads", "2", "--seq", "32", "--batch", "4", "--quiet"]


def report(*words, rc=0):
    done = subprocess.run([HAUL, "report", *words], text=True, capture_output=True, timeout=60, check=False)
    assert done.returncode == rc, (words, done.returncode, done.stdout, done.stderr)
    return done


def train(folder, steps):
    """A run's lines, as they are in its file."""
    subprocess.run([TRAIN_GPT, *SMALL, "--steps", str(steps), "--jsonl", folder + "/run.jsonl", "--trace",
                    folder + "/trace.json", "--device-mem", "4MB", "--host-mem", "64MB"],
                   check=True, capture_output=True, timeout=120)
    with open(folder + "/run.jsonl") as f:
        return [json.loads(line) for line in f]


def page(path):
    with open(path) as f:
        return f.read()


def rows(text, caption):
    """Cells of the table with that caption."""
    body = re.search(r"<caption>%s</caption>.*?<tbody>(.*?)</tbody>" % re.escape(caption), text, re.S).group(1)
    return [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row) for row in re.findall(r"<tr>(.*?)</tr>", body, re.S)]


def near(shown, value):
    """Of four digits."""
    return abs(float(shown) - value) <= 1e-3 * abs(value) + 1e-12


def every_number_is_the_run_s(folder, lines):
    report(folder + "/run.jsonl", "-o", folder + "/report.html")
    text = page(folder + "/report.html")
    page_checks.check_page(text)
    steps, summary = lines[:-1], lines[-1]
    shown = rows(text, "Loss by step")
    assert len(shown) == len(steps)
    for row, step in zip(shown, steps):
        assert int(row[0]) == step["step"] and near(row[1], step["loss"]) and near(row[2], step["grad_norm"])
    for row, step in zip(rows(text, "Milliseconds of a step"), steps):
        waited = [step["lanes"][k]["exposed_ms"] for k in ("h2d", "d2h", "io_read", "io_write", "optim", "comm")]
        assert near(row[1], step["ms"]) and all(near(a, b) for a, b in zip(row[3:], waited))
        assert near(row[2], max(0, step["ms"] - sum(waited)))
    for row, step in zip(rows(text, "Bytes in use at most, by step"), steps):
        assert int(row[0]) == step["step"] and [int(b) for b in row[1:]] == [step["held"][k] for k in
                                                                              ("device", "host", "nvme")], (row, step)
    assert steps[-1]["held"]["device"] == summary["peaks"]["device"] > 0
    for row in rows(text, "Bytes of the tiers"):
        assert int(row[1]) == summary["planned"][row[0]] and int(row[2]) == summary["peaks"][row[0]]
        assert row[3] == str(summary["budgets"][row[0]] or "none given")
    for key, shown in (("layers", summary["run"]["layers"]), ("local ranks", 1), ("window", 2)):
        assert '<tr><th scope="row">%s</th><td class="words">%s</td></tr>' % (key, shown) in text, key
    assert re.search(r'<th scope="row">memory</th><td class="words">[0-9.]+ [GMT]B<', text)
    assert summary["digest"] in text and summary["machine"]["device"] in text
    for line in summary["ledger"]:
        assert "<td>%s</td><td class=\"words\">%s</td><td>%d</td>" % (line["tier"], line["purpose"], line["bytes"]) in text


def a_trace_gives_one_step_lane_by_lane(folder, lines):
    report(folder + "/run.jsonl", "--trace", folder + "/trace.json", "--step", "3", "--output", folder + "/traced.html")
    text = page(folder + "/traced.html")
    page_checks.check_page(text)
    assert "Step 3, lane by lane" in text
    with open(folder + "/trace.json") as f:
        spans = [e for e in json.load(f) if e["ph"] == "X" and e["args"]["step"] == 3]
    begin, end = min(e["ts"] for e in spans), max(e["ts"] + e["dur"] for e in spans)
    assert "(%.2f ms)" % ((end - begin) / 1e3) in text
    said = report(folder + "/run.jsonl", "--trace", folder + "/trace.json", "--step", "99", "-o", folder + "/no.html", rc=1)
    assert "step 99 is not in the trace" in said.stderr


def long_runs_are_drawn_in_bins(folder, lines):
    with open(folder + "/long.jsonl", "w") as f:
        for i in range(1, 3001):
            f.write(json.dumps({**lines[0], "step": i, "loss": None if i % 7 == 0 else 1 / i}) + "\n")
        f.write('{"step":3001,"loss":')
    report(folder + "/long.jsonl", "-o", folder + "/long.html")
    text = page(folder + "/long.html")
    page_checks.check_page(text)
    shown = rows(text, "Loss by step")
    assert len(shown) == 60 and shown[0][0] == "1 to 50" and shown[-1][0] == "2951 to 3000"
    first = [1 / i for i in range(1, 51) if i % 7 != 0]
    assert near(shown[0][1], sum(first) / len(first)) and "ended before its last line" in text
    assert len(text) < 100000 and not re.search(r"\b(nan|inf)\b", text)


def budgets_of_several_ranks_are_shown_as_they_are(folder, lines):
    """A rank's line has its own part of the node's budgets."""
    with open(folder + "/ranks.jsonl", "w") as f:
        f.write(json.dumps(lines[0]) + "\n")
        f.write(json.dumps({**lines[-1], "run": {**lines[-1]["run"], "ranks": 4, "local_ranks": 4},
                            "budgets": {"device": 4000000, "host": 64000000, "nvme": None}}) + "\n")
    report(folder + "/ranks.jsonl", "-o", folder + "/ranks.html")
    shown = {row[0]: row[3] for row in rows(page(folder + "/ranks.html"), "Bytes of the tiers")}
    assert shown == {"device": "4000000", "host": "64000000"}, shown


def names_are_text_and_not_markup(folder, lines):
    path = folder + "/<b>&.jsonl"
    with open(path, "w") as f:
        f.write(json.dumps(lines[0]) + "\n")
    report(path, "-o", folder + "/named.html")
    text = page(folder + "/named.html")
    page_checks.check_page(text)
    assert "&lt;b&gt;&amp;.jsonl" in text and "<b>" not in text


def what_is_wrong_is_said(folder, lines):
    assert "FILE comes first" in report(rc=2).stderr
    assert "--step needs --trace" in report(folder + "/run.jsonl", "--step", "1", rc=2).stderr
    assert "No such file" in report(folder + "/nothing.jsonl", rc=1).stderr
    for content, text in (("", "no step in it"), ("{}\n", "line 1"), ("[\n", "line 1")):
        with open(folder + "/bad.jsonl", "w") as f:
            f.write(content)
        assert text in report(folder + "/bad.jsonl", "-o", folder + "/bad.html", rc=1).stderr
    assert "/nowhere/" in report(folder + "/run.jsonl", "-o", "/nowhere/x.html", rc=1).stderr


def a_browser_shows_it(folder, lines):
    if not browser.find():
        raise tap.Skip("no chromium")
    here = browser.Browser()
    try:
        page_checks.check_in_browser(here, folder + "/traced.html", folder, "summary, [tabindex]")
        here.evaluate("document.querySelector('summary').focus()")
        here.evaluate("document.querySelector('summary').click()")
        assert here.evaluate("document.querySelector('details').open")
    finally:
        here.close()


CASES = (every_number_is_the_run_s, a_trace_gives_one_step_lane_by_lane, long_runs_are_drawn_in_bins,
         budgets_of_several_ranks_are_shown_as_they_are, names_are_text_and_not_markup, what_is_wrong_is_said,
         a_browser_shows_it)

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        tap.main(CASES, scratch, train(scratch, 8))
