"""What public headers say of their functions: names, prototypes, comments, and the structs they take."""
import pathlib
import re

KEYS = ("Shape", "Units", "Ownership", "Threads", "Blocks", "Errors", "Source")

COMMENT = r"/\*(?:(?!\*/).)*\*/"
DECLARATION = re.compile(
    r"(?P<comment>" + COMMENT + r"\n)?"
    r"(?P<proto>(?:HAUL_API(?:\s+HAUL_MUST_USE)?|static inline)\s+[^;{]*?\b(?P<name>haul_\w+)\([^;{]*\))"
    r"(?P<tail>\s*HAUL_PRINTF\([^)]*\))?\s*(?P<end>[;{])", re.S)


class Function:
    def __init__(self, header, name, prototype, comment):
        self.header, self.name, self.prototype, self.comment = header, name, prototype, comment

    def types(self):
        """The structs and enums of the prototype."""
        return re.findall(r"\b(struct|enum) (haul_\w+)", self.prototype)

    def initialises(self):
        """The struct of an init function that says no more than its name, or None."""
        found = re.match(r"void (haul_\w+)_init\(struct (haul_\w+) \*\w+\)$", self.prototype)
        return found.group(2) if found else None


def plain(comment):
    """The text of a comment without its stars, as lines."""
    text = re.sub(r"^/\*\*?|\*/\s*$", "", comment.strip())
    lines = [re.sub(r"^\s*\* ?", "", line).rstrip() for line in text.split("\n")]
    lines[0] = lines[0].strip()
    while lines and not lines[0]:
        lines.pop(0)
    while lines and not lines[-1]:
        lines.pop()
    return lines


def one_line(prototype):
    words = re.sub(r"\b(HAUL_API|HAUL_MUST_USE)\b", "", prototype)
    return re.sub(r"\s+", " ", words).strip()


def functions(path):
    """Functions of one header, in its order. Declarations that follow each other share a comment."""
    text = pathlib.Path(path).read_text()
    found, last_end, last_comment = [], -1, None
    for match in DECLARATION.finditer(text):
        comment = match.group("comment")
        if comment is None and not text[last_end:match.start()].strip() and last_comment:
            if text[last_end:match.start()].count("\n") <= 1:
                comment = last_comment
        lines = plain(comment) if comment else []
        found.append(Function(pathlib.Path(path).name, match.group("name"),
                              one_line(match.group("proto")), lines))
        last_end, last_comment = match.end(), comment
    return found


def types(paths):
    """Source text of every struct and enum that is defined, by name."""
    all_types = {}
    for path in paths:
        text = pathlib.Path(path).read_text()
        for match in re.finditer(r"^(struct|enum) (haul_\w+) \{.*?\};", text, re.S | re.M):
            all_types[match.group(2)] = match.group(0)
    return all_types


def opening(path):
    """A header's first comment: its line, and the rest."""
    text = pathlib.Path(path).read_text()
    lines = plain(re.match(COMMENT, text, re.S).group(0))
    return lines


def sections(lines):
    """(description, parameters, parts) of a comment: lists of lines; (name, direction, lines); (key, lines)."""
    description, parameters, parts = [], [], []
    into = description
    for line in lines:
        param = re.match(r"@param\s+([\w, ]+?)\s+(\[[\w,]+\])\s*(.*)$", line)
        key = re.match(r"(%s)\s{2,}(\S.*)$" % "|".join(KEYS), line)
        if param:
            into = [param.group(3)]
            parameters.append((param.group(1), param.group(2), into))
        elif key:
            into = [key.group(2)]
            parts.append((key.group(1), into))
        elif into is not description and not line:
            into = description if not parts else into
            into.append("")
        elif into is not description and not line.startswith(" "):
            into = description
            into.append(line)
        else:
            into.append(line)
    return description, parameters, parts
