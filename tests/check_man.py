#!/usr/bin/env python3
"""Every exported function has a manual page with all that its header says of it, every command has one that has
all of its --help, and the formatters take them without a warning.

usage: check_man.py SOURCE_ROOT PAGES HAUL LIBRARY...
"""
import pathlib
import re
import shutil
import subprocess
import sys


def exported(libraries):
    """Functions in the dynamic symbol tables."""
    said = subprocess.run(["nm", "-D", "--defined-only", *libraries], capture_output=True, text=True, check=True)
    return sorted(set(re.findall(r" T (haul_\w+)", said.stdout)))


def header_comments(root):
    """The comment right above each declaration, by function."""
    found = {}
    for header in sorted((root / "include" / "haul").glob("*.h")):
        lines = header.read_text().split("\n")
        for at, line in enumerate(lines):
            name = re.match(r"(?:[\w\s\*]*[\s\*])?(haul_\w+)\(", line)
            if not name or line.startswith((" ", "/")) or not lines[at - 1].startswith("HAUL_"):
                continue
            top = at
            while lines[top - 1].startswith("HAUL_"):
                top -= 1
            end = top
            while end > 0 and lines[end - 1].startswith((" *", "/*")):
                end -= 1
                if lines[end].startswith("/*"):
                    break
            found[name.group(1)] = "\n".join(lines[end:top])
    return found


def words(text):
    return re.findall(r"\w+", text)


def headed(text):
    """As a page says it: parts of a comment and blocks of a --help have become headings."""
    text = re.sub(r"^(?: \*|/\*) (Shape|Units|Ownership|Threads|Blocks|Errors|Source)(?=  )", lambda m: m.group(1).upper(),
                  text, flags=re.M)
    text = re.sub(r"^(examples|flags)(?=:$)", lambda m: m.group(1).upper(), text, flags=re.M)
    return text.replace("@param", "PARAMETERS", 1).replace("@param", "")


def rendered(page):
    """As a reader sees it: no hyphenation, no end of line."""
    said = subprocess.run(["man", "-l", page], capture_output=True, text=True,
                          env={"MANWIDTH": "1000", "MANOPT": "--nh --nj", "LC_ALL": "C.UTF-8",
                               "PATH": "/usr/bin:/bin"})
    return said.stdout if said.returncode == 0 else None


def unformatted(page):
    """The words of the source, where there is no man."""
    text = page.read_text()
    for code, char in ((r"\(aq", "'"), (r"\(ha", "^"), (r"\-", "-"), (r"\fB", ""), (r"\fR", ""), (r"\fI", "")):
        text = text.replace(code, char)
    return re.sub(r"\\\[u([0-9A-F]{4})\]", lambda m: chr(int(m.group(1), 16)), text)


def lacking(wanted, text):
    """Words that do not stand in text as often as they should."""
    there = words(text)
    return sorted({w for w in wanted if there.count(w) < wanted.count(w)})


def warnings(page):
    """What formatters that are installed say of a page."""
    said = ""
    if shutil.which("groff"):
        said += subprocess.run(["groff", "-man", "-Tutf8", "-ww", "-z", "-rLL=110n", page], capture_output=True,
                               text=True).stderr
    if shutil.which("mandoc"):
        said += subprocess.run(["mandoc", "-Tlint", "-Wwarning", page], capture_output=True, text=True).stdout
    return said


def check_page(page, wanted, read):
    if not page.exists():
        return ["%s is missing" % page.name]
    missing = lacking(wanted, read(page) or "")
    faults = ["%s lacks: %s" % (page.name, " ".join(missing))] if missing else []
    said = warnings(page)
    return faults + (["%s: %s" % (page.name, said)] if said else [])


def main(root, pages, haul, *libraries):
    root, pages = pathlib.Path(root), pathlib.Path(pages)
    can_render = shutil.which("man") and subprocess.run(
        ["man", "-l", pages / "haul.1"], capture_output=True).returncode == 0
    read = rendered if can_render else unformatted
    faults, comments, names = [], header_comments(root), exported(libraries)
    for name in names:
        faults += check_page(pages / (name + ".3"), words(headed(comments.get(name, ""))) + ["NAME", "SYNOPSIS", name], read)
    listing = subprocess.run([haul, "--help"], capture_output=True, text=True, check=True).stdout
    commands = re.findall(r"^  (\w+(?: \w+)?)  ", listing, re.M)
    for command in commands:
        help_text = subprocess.run([haul, *command.split(), "--help"], capture_output=True, text=True).stdout
        page = pages / ("haul-%s.1" % command.replace(" ", "-"))
        faults += check_page(page, words(headed(help_text.split("\n\n", 1)[1])), read)
    faults += check_page(pages / "haul.1", words(" ".join(commands)), read)
    for fault in faults:
        print("FAILED: " + fault)
    for tool in ("groff", "mandoc"):
        if not shutil.which(tool):
            print("skipped: warnings of %s, which is not installed" % tool)
    print("%d functions, %d commands, %d faults" % (len(names), len(commands), len(faults)))
    return 1 if faults or len(names) < 100 or len(commands) < 10 else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
