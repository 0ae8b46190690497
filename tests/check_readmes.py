#!/usr/bin/env python3
"""The usages in README.md files and docs/ compile: every C block that begins with an #include.

usage: check_readmes.py SOURCE_ROOT CC
"""
import pathlib
import re
import shlex
import subprocess
import sys

FLAGS = ("-std=gnu11 -D_GNU_SOURCE -DHAUL_PLAIN_RUNNER -Wall -Wextra -Werror -Wno-unused-parameter "
         "-Wno-unused-function -fsyntax-only -x c -").split()


def main(root, cc):
    root = pathlib.Path(root)
    rooms = [root / "include", root / "io", root / "cpu_adam", root / "tools", root / "tests",
             *(root / "lib").iterdir()]
    include = [f"-I{d}" for d in rooms if d.is_dir()]
    done = failed = 0
    folders = ("lib", "io", "cpu_adam", "tools", "examples", "tests", "bench", "docs")
    for page in [root / "README.md", *(p for f in folders for p in sorted((root / f).rglob("*.md")))]:
        for block in re.findall(r"^```c\n(#include.*?)^```$", page.read_text(), flags=re.M | re.S):
            done += 1
            run = subprocess.run([*shlex.split(cc), *include, *FLAGS], input=block, text=True)
            if run.returncode:
                failed += 1
                print(f"FAILED: a block of {page.relative_to(root)}")
    print(f"{done} blocks compiled, {failed} failed")
    return 1 if failed or not done else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
