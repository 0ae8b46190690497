#!/usr/bin/env python3
"""The usages in README.md files and docs/ compile: every C block that begins with an #include. Those that are whole
programs on the public headers, without arguments, are linked and run too.

usage: check_readmes.py SOURCE_ROOT CC [LIBHAUL_SO]
"""
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

FLAGS = ("-std=gnu11 -D_GNU_SOURCE -DHAUL_PLAIN_RUNNER -Wall -Wextra -Werror -Wno-unused-parameter "
         "-Wno-unused-function -x c -").split()


def runs(cc, root, block, lib):
    """Whether a program ends with 0."""
    with tempfile.TemporaryDirectory() as folder:
        made = subprocess.run([*shlex.split(cc), f"-I{root / 'include'}", "-o", f"{folder}/program", *FLAGS, "-x", "none", lib],
                              input=block, text=True)
        return made.returncode == 0 and subprocess.run(
            [f"{folder}/program"], cwd=folder, timeout=60, stdout=subprocess.DEVNULL,
            env={**os.environ, "LD_LIBRARY_PATH": str(pathlib.Path(lib).parent)}).returncode == 0


def is_program(block):
    return "int main(void)" in block and all(h.startswith("haul/") or h.endswith(("io.h", "lib.h", "string.h"))
                                             for h in re.findall(r'#include [<"](.*?)[>"]', block))


def main(root, cc, lib=None):
    root = pathlib.Path(root)
    rooms = [root / "include", root / "io", root / "cpu_adam", root / "tools", root / "tests",
             *(root / "lib").iterdir()]
    include = [f"-I{d}" for d in rooms if d.is_dir()]
    done = failed = ran = 0
    folders = ("lib", "io", "cpu_adam", "tools", "examples", "tests", "bench", "docs")
    for page in [root / "README.md", *(p for f in folders for p in sorted((root / f).rglob("*.md")))]:
        for block in re.findall(r"^```c\n(#include.*?)^```$", page.read_text(), flags=re.M | re.S):
            done += 1
            run = subprocess.run([*shlex.split(cc), *include, "-fsyntax-only", *FLAGS], input=block, text=True)
            program = lib and run.returncode == 0 and is_program(block)
            ran += bool(program)
            if run.returncode or (program and not runs(cc, root, block, os.path.abspath(lib))):
                failed += 1
                print(f"FAILED: a block of {page.relative_to(root)}")
    print(f"{done} blocks compiled, {ran} run, {failed} failed")
    return 1 if failed or not done or (lib and not ran) else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
