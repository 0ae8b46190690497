#!/usr/bin/env python3
"""The commands that README.md, docs/ and examples/ show run: every block marked sh, page by page, in order, in an
empty folder. Of blocks without a mark, which need drives, GPUs or hours, every command and flag is one that there is.

usage: check_walks.py SOURCE_ROOT HAUL TRAIN_GPT [PAGE...]

A line "# prints: TEXT" in a block says what the block's output must contain. The commands find haul and train_gpt
by name, as after an install.
"""
import os
import pathlib
import re
import shlex
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


def commands_of(page):
    """Command lines of haul and train_gpt in blocks without a mark: [command, word...]."""
    for mark, block in re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), flags=re.M | re.S):
        if mark:
            continue
        for line in block.replace("\\\n", " ").splitlines():
            if not re.search(r"(^|[ /])(haul|train_gpt) ", line):
                continue
            words = shlex.split(line, comments=True)
            names = [i for i, w in enumerate(words) if w in ("haul", "train_gpt")]
            if names and not words[0].endswith(".sh"):
                yield words[names[0]:]


class Helps:
    """What each command's --help says."""

    def __init__(self, env):
        self.env, self.texts = env, {}
        self.names = re.findall(r"^  ([a-z]+(?: [a-z]+)?)  ", self.of("haul"), re.M)

    def of(self, *command):
        if command not in self.texts:
            done = subprocess.run([*command, "--help"], env=self.env, text=True, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, timeout=60, check=True)
            self.texts[command] = done.stdout
        return self.texts[command]

    def unknown(self, words):
        """What of a command line there is not."""
        command = words[:1]
        if words[0] == "haul":
            name = max((n for n in self.names if words[1:1 + len(n.split())] == n.split()), key=len, default=None)
            if name is None:
                return " ".join(words[:3])
            command += name.split()
        flags = (w.partition("=")[0] for w in words if w.startswith("--"))
        return ", ".join(f for f in flags if not re.search(r"%s\b(?!-)" % f, self.of(*command)))


def check_shown(page, name, helps):
    """Number of command lines, and of those that name what there is not."""
    count = failed = 0
    for words in commands_of(page):
        count += 1
        unknown = helps.unknown(words)
        if unknown:
            failed += 1
            print("FAILED: %s: there is no %s: %s" % (name, unknown, " ".join(words)))
    return count, failed


def main(root, haul, train_gpt, *names):
    root = pathlib.Path(root)
    pages = [root / n for n in names] or [root / "README.md", *sorted((root / "docs").glob("*.md")),
                                          *sorted((root / "examples").rglob("*.md")), root / "tools" / "README.md"]
    folders = [os.path.dirname(os.path.abspath(p)) for p in (haul, train_gpt)]
    env = {**os.environ, "PATH": ":".join([*folders, os.environ["PATH"]])}
    count = failed = shown = wrong = 0
    helps = Helps(env)
    for page in pages:
        blocks, name = blocks_of(page), page.relative_to(root)
        some, bad = check_shown(page, name, helps)
        count, shown, wrong = count + len(blocks), shown + some, wrong + bad
        failed += run_page(name, blocks, env)
    print("%d blocks run, %d failed; %d commands only shown, %d wrong" % (count, failed, shown, wrong))
    return 1 if failed or wrong or not count + shown else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
