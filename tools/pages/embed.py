"""Text files as one C file of strings: embed.py OUT NAME=FILE..."""
import pathlib
import sys


def literal(text):
    """Lines of string literals; none too long for a compiler."""
    lines = []
    for line in text.splitlines(keepends=True):
        escaped = line.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("?", "\\?")
        lines.append('    "%s"' % escaped)
    return "\n".join(lines)


def main(out, *pairs):
    parts = ["/* Made by embed.py. */", '#include "page_texts.h"']
    for pair in pairs:
        name, path = pair.split("=", 1)
        parts.append("const char %s[] =\n%s;" % (name, literal(pathlib.Path(path).read_text(encoding="ascii"))))
    pathlib.Path(out).write_text("\n\n".join(parts) + "\n")


main(*sys.argv[1:])
