#!/usr/bin/env python3
"""The commands that README.md and docs/ show run: every block marked sh, page by page, in order, in an empty folder.

usage: check_walks.py SOURCE_ROOT HAUL TRAIN_GPT [PAGE...]

A line "# prints: TEXT" in a block says what the block's output must contain. The commands find haul and train_gpt
by name, as after an install. Pages without such blocks are passed over.
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile


def blocks_of(page):
    return re.findall(r"^```sh\n(.*?)^```$", page.read_text(), flags=re.M | re.S)


def run_page(page, blocks, env):
    """Number of blocks that failed."""
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for block in blocks:
            done = subprocess.run(["sh", "-eu", "-c", block], cwd=folder, env=env, text=True, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, timeout=300, check=False)
            missing = [t for t in re.findall(r"^# prints: (.*)$", block, re.M) if t not in done.stdout]
            if done.returncode != 0 or missing:
                failed += 1
                print("FAILED: %s, exit code %d%s\n%s%s" % (page, done.returncode, "".join("\nnot printed: " + t for t in missing),
                                                            block, done.stdout))
    return failed


def main(root, haul, train_gpt, *names):
    root = pathlib.Path(root)
    pages = [root / n for n in names] or [root / "README.md", *sorted((root / "docs").glob("*.md")),
                                          *sorted((root / "examples").rglob("*.md"))]
    folders = [os.path.dirname(os.path.abspath(p)) for p in (haul, train_gpt)]
    env = {**os.environ, "PATH": ":".join([*folders, os.environ["PATH"]])}
    count = failed = 0
    for page in pages:
        blocks = blocks_of(page)
        count += len(blocks)
        failed += run_page(page.relative_to(root), blocks, env)
    print("%d blocks run, %d failed" % (count, failed))
    return 1 if failed or not count else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
