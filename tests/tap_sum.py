#!/usr/bin/env python3
"""Add up the cases of meson test runs.

usage: tap_sum.py testlog.json...

meson counts programs; this counts cases: every TAP line of a suite, and one for a test that is no
suite. A suite that ended otherwise than its lines say (a crash, a timeout) is one more failure.
Prints `N passed, N failed, N skipped` last; exits with 1 when something failed or nothing ran.
"""
import json
import os
import re
import sys

CASE = re.compile(r"^(not )?ok\b(?: \d+)?(?: - )?(.*)$")


def cases(stdout):
    """(passed, failed, skipped) of a suite's TAP, or None when it is none."""
    lines = stdout.splitlines()
    if not any(re.match(r"^1\.\.\d+", line) for line in lines):
        return None
    count = [0, 0, 0]
    for line in lines:
        m = CASE.match(line)
        if m:
            skipped = re.search(r"# *skip", m.group(2), re.I)
            count[1 if m.group(1) else 2 if skipped else 0] += 1
    return count


def count_test(test):
    result = test["result"]
    count = cases(test.get("stdout") or "")
    if result == "SKIP" and not (count and sum(count)):
        return [0, 0, 1]
    bad = result not in ("OK", "SKIP", "EXPECTEDFAIL")
    if count is None:
        return [0, 1, 0] if bad else [1, 0, 0]
    if bad and count[1] == 0:
        count[1] = 1
    return count


def main(paths):
    total = [0, 0, 0]
    for path in paths:
        part = os.path.basename(path).removesuffix(".json")
        with open(path, encoding="utf-8") as log:
            for test in map(json.loads, log):
                where = test["name"] if part == "testlog" else f"{part}: {test['name']}"
                count = count_test(test)
                total = [a + b for a, b in zip(total, count)]
                if count[1]:
                    print(f"FAILED in {where}: {count[1]} of {sum(count)} ({test['result']})")
                if count[2]:
                    print(f"skipped in {where}: {count[2]} of {sum(count)}")
    print("%d passed, %d failed, %d skipped" % tuple(total))
    return 1 if total[1] or sum(total) == 0 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
