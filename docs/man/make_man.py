#!/usr/bin/env python3
"""Manual pages from the public headers, and from what the haul command says of itself.

usage: make_man.py list3 HEADER...                 names of the pages of section 3, one a line
       make_man.py list1 HAUL_MAIN_C               of section 1
       make_man.py make3 VERSION FOLDER HEADER...  write them
       make_man.py make1 VERSION FOLDER HAUL_MAIN_C HAUL
"""
import pathlib
import re
import subprocess
import sys

import header_pages

PAGES_OF = "2026-11-30"  # the date in a page's foot: one for all, so that a build can be repeated


def joined(lines):
    """A page: no paragraph begins where a section just has."""
    kept = [l for l, before in zip(lines, [""] + lines) if not (l == ".PP" and before.startswith(".SH"))]
    return "\n".join(kept) + "\n"


def escaped(text):
    """Text as it is to be printed: no character of it means anything to troff."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga")
    text = text.replace("^", "\\(ha").replace("~", "\\(ti")
    return "".join(c if ord(c) < 128 else "\\[u%04X]" % ord(c) for c in text)


def line(text):
    text = escaped(text)
    return "\\&" + text if text[:1] in (".", "'", "\\") else text


def marked(text):
    """A line of prose: functions in bold."""
    return re.sub(r"\b(haul_\w+\(\))", r"\\fB\1\\fR", line(text))


def literal(lines):
    return [".PP", ".in +4n", ".nf"] + [line(l) for l in lines] + [".fi", ".in"]


def prose(lines):
    """Paragraphs; what is indented by two or more, or begins with a dash, stays as it is."""
    out, at = [], 0
    while at < len(lines):
        if not lines[at]:
            at += 1
            continue
        end = at
        while end < len(lines) and lines[end]:
            end += 1
        block = lines[at:end]
        if any(l.startswith("  ") for l in block):
            kept = min((len(l) - len(l.lstrip()) for l in block), default=0)
            out += literal([l[kept:] for l in block])
        else:
            out += [".PP"] + [marked(l.strip()) for l in block]
        at = end
    return out


def table(lines):
    """Result codes and their meanings, one a line, keep their columns; anything else is prose."""
    rest = [len(l) - len(l.lstrip()) for l in lines[1:] if l.strip()]
    body = [l[min(rest, default=0):] for l in lines[1:]]
    if any(re.match(r"\S.*?\s{2,}\S", l) for l in body) or any(l.startswith(" ") for l in body):
        return [".nf"] + [line(l) for l in [lines[0]] + body if l.strip()] + [".fi"]
    return [marked(l.strip()) for l in lines if l.strip()]


def head(name, section, version, about):
    return ['.TH "%s" "%s" "%s" "haul %s" "haul"' % (escaped(name.upper()), section, PAGES_OF, version),
            ".SH NAME", "%s \\- %s" % (escaped(name), line(about))]


def first_sentence(lines):
    text = []
    for l in lines:
        if not l:
            break
        text.append(l.strip())
    text = re.split(r"(?<=[a-z0-9)\]])[.:;](?:\s|$)", " ".join(text))[0]
    return text[:1].lower() + text[1:] if text[1:2].islower() or text[1:2] == " " else text


def prototype(text):
    """A prototype on lines of at most 76 columns, broken between arguments."""
    out = [""]
    for argument in re.split(r"(?<=,) ", text):
        if len(out[-1]) + 1 + len(argument) > 76:
            out.append("    " + argument)
        else:
            out[-1] = (out[-1] + " " + argument) if out[-1] else argument
    out[-1] += ";"
    return out


def page3(function, version, types, shared):
    defaults = function.initialises()
    comment = function.comment
    if not comment and defaults:
        comment = ["Set every field of a struct %s to its default, and struct_size." % defaults]
    if not comment:
        sys.exit("make_man: %s: %s() has no comment" % (function.header, function.name))
    description, parameters, parts = header_pages.sections(comment)
    about = first_sentence(description) or "see haul/%s" % function.header
    library = "haul\\-mpi" if function.header == "mpi.h" else "haul"
    out = head(function.name, 3, version, about)
    out += [".SH SYNOPSIS", ".nf", ".B #include <haul/%s>" % function.header, ""]
    out += ["\\fB%s\\fR" % line(l) for l in prototype(function.prototype)]
    out += [".fi", ".PP", "cc file.c $(pkg\\-config \\-\\-cflags \\-\\-libs %s)" % library]
    out += [".SH DESCRIPTION"] + (prose(description) or [marked(about)])
    if parameters:
        out += [".SH PARAMETERS"]
        for name, direction, lines in parameters:
            out += [".TP", "\\fI%s\\fR %s" % (line(name), line(direction))]
            out += [marked(l.strip()) for l in lines if l.strip()]
    for key, lines in parts:
        out += [".SH %s" % key.upper()] + table(lines)
    named = []
    for kind, name in function.types():
        if name in types and name not in named:
            named.append(name)
    if named:
        out += [".SH TYPES"]
        for name in named:
            out += literal(types[name].split("\n"))
    others = [n for n in shared if n != function.name]
    out += [".SH SEE ALSO", ", ".join("\\fB%s\\fR(3)" % n for n in others) + ("," if others else "")]
    out += ["\\fBhaul\\fR(1)"]
    return joined(out)


def neighbours(functions, i):
    """The functions that stand around this one in its header."""
    return [f.name for f in functions[max(0, i - 3):i + 4]]


def make3(version, folder, headers):
    types = header_pages.types(headers)
    for header in headers:
        functions = header_pages.functions(header)
        for i, function in enumerate(functions):
            text = page3(function, version, types, neighbours(functions, i))
            (folder / (function.name + ".3")).write_text(text)


def commands(main_c):
    """Names and one-liners, from the table of subcommands."""
    text = pathlib.Path(main_c).read_text()
    rows = re.findall(r'\{(NULL|"\w+"), "(\w+)", \w+,\s*((?:"[^"]*"\s*)+)\}', text)
    found = []
    for group, name, help_text in rows:
        group = "" if group == "NULL" else group.strip('"') + " "
        found.append((group + name, "".join(re.findall(r'"([^"]*)"', help_text))))
    return found


def flag_list(lines):
    """Flags as --help prints them, "  --name VALUE  what it is", as a list; the rest as it is."""
    out = []
    for l in lines:
        flag = re.match(r"  (--\S+(?: \S+)*?)(?:\s{2,}(\S.*))?$", l)
        if flag:
            out += [".TP", "\\fB%s\\fR" % line(flag.group(1))]
            if flag.group(2):
                out.append(marked(flag.group(2)))
        elif l.strip():
            out.append(marked(l.strip()))
    return out


def page1(name, about, help_text, version, others):
    dashed = "haul-" + name.replace(" ", "-")
    blocks = help_text.rstrip("\n").split("\n\n")
    out = head(dashed, 1, version, about)
    out += [".SH SYNOPSIS", "\\fBhaul %s\\fR [flags]" % escaped(name), ".SH DESCRIPTION"]
    out += prose(blocks[1].split("\n"))
    for block in blocks[2:]:
        lines = block.split("\n")
        if lines[0] == "flags:":
            out += [".SH FLAGS"] + flag_list(lines[1:])
        elif lines[0].startswith("examples:"):
            out += [".SH EXAMPLES"] + literal([l[2:] for l in lines[1:]])
        else:
            out += [".SH NOTES", ".nf"] + [line(l) for l in lines] + [".fi"] if len(lines) > 0 else []
    out += [".SH EXIT STATUS", "0 done, 1 failed, 2 usage, 3 environment. Data goes to standard output,",
            "diagnostics to standard error."]
    out += [".SH SEE ALSO", ", ".join(["\\fBhaul\\fR(1)"] + ["\\fBhaul\\-%s\\fR(1)" % escaped(o.replace(" ", "-"))
                                                          for o in others if o != name])]
    return joined(out)


def page_haul(found, version):
    out = head("haul", 1, version, "CPU and NVMe offload for training large models")
    out += [".SH SYNOPSIS", "\\fBhaul\\fR \\fICOMMAND\\fR [flags]", ".SH DESCRIPTION",
            "haul keeps parameters, gradients and Adam state of a model in host memory and on NVMe,",
            "and brings each piece to the device just before it is used. The command plans, measures",
            "and looks; the library, haul/haul.h, does the work.", ".SH COMMANDS"]
    for name, about in found:
        out += [".TP", "\\fB%s\\fR" % escaped(name), marked(about) + ":",
                "\\fBhaul\\-%s\\fR(1)" % escaped(name.replace(" ", "-"))]
    out += [".PP", "\\fBhaul \\fICOMMAND\\fB \\-\\-help\\fR lists a command\\(aqs flags,",
            "\\fBhaul \\-\\-version\\fR prints the version.",
            ".SH EXIT STATUS", "0 done, 1 failed, 2 usage, 3 environment.",
            ".SH SEE ALSO", "\\fBhaul_engine_open\\fR(3), \\fBhaul_engine_step\\fR(3), \\fBhaul_optim_update\\fR(3),",
            "\\fBhaul_store_open\\fR(3)"]
    return joined(out)


def make1(version, folder, main_c, haul):
    found = commands(main_c)
    names = [name for name, _ in found]
    (folder / "haul.1").write_text(page_haul(found, version))
    for name, about in found:
        said = subprocess.run([haul, *name.split(), "--help"], capture_output=True, text=True, check=True)
        text = page1(name, about, said.stdout, version, names)
        (folder / ("haul-%s.1" % name.replace(" ", "-"))).write_text(text)


def main(what, *args):
    if what == "list3":
        for header in args:
            for function in header_pages.functions(header):
                print(function.name + ".3")
    elif what == "list1":
        print("\n".join(["haul.1"] + ["haul-%s.1" % n.replace(" ", "-") for n, _ in commands(args[0])]))
    elif what == "make3":
        make3(args[0], pathlib.Path(args[1]), args[2:])
    elif what == "make1":
        make1(args[0], pathlib.Path(args[1]), *args[2:])
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    main(*sys.argv[1:])
