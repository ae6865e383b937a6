"""SQL in the documentation, as a session of psql: what a reader types, and what psql shows.

A page is one session in a database of its own. A fenced block `sql` is typed; the fenced block without a
language right after it is what the block's last statement shows, as psql prints it (a result, a command tag
with notices, or `ERROR:`). `sql no-test` is not run. A block `file path` is written to this file below the
server's `files_root`, `file >> path` at its end. A statement that ends with `\\gset` keeps its columns
as variables, which `:name` gives back. In what is shown, `...` stands for anything.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from support.wire import Answer, Answers, Wire

# Types that psql aligns to the right: integers, floats, numeric, oid.
_RIGHT = {20, 21, 23, 26, 700, 701, 1700}
_FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_VARIABLE = re.compile(r"(?<![:\w]):([a-z_]\w*)\b")


@dataclass
class Example:
    """One typed block. `shown` is None where the page shows no result; `start` and `end` are where it
    stands in the page. Or, without statements, a file, `appended` if it is there already."""

    line: int
    statements: list[str]
    shown: str | None
    start: int = 0
    end: int = 0
    file: str | None = None
    text: str = ""
    appended: bool = False


def examples(text: str) -> list[Example]:
    found: list[Example] = []
    after_sql = -1
    for match in _FENCE.finditer(text):
        language = match[1].strip()
        if language == "sql":
            line = text.count("\n", 0, match.start()) + 1
            found.append(Example(line, split(match[2]), None))
            after_sql = match.end()
        elif language.startswith("file "):
            name = language.removeprefix("file ")
            path = name.removeprefix(">> ")
            line = text.count("\n", 0, match.start()) + 1
            found.append(Example(line, [], None, file=path, text=match[2], appended=path != name))
            after_sql = -1
        elif language == "" and after_sql >= 0 and not text[after_sql : match.start()].strip():
            found[-1].shown = match[2].rstrip("\n")
            found[-1].start, found[-1].end = match.start(2), match.end(2)
            after_sql = -1
    return found


def split(sql: str) -> list[str]:
    """Statements end with `;` or `\\gset` at the end of a line. Comments between them are dropped."""
    statements: list[str] = []
    current: list[str] = []
    for line in sql.split("\n"):
        if not current and (not line.strip() or line.lstrip().startswith("--")):
            continue
        current.append(line)
        code = re.sub(r"\s+--.*$", "", line).rstrip()
        if code.endswith((";", "\\gset")):
            current[-1] = code
            statements.append("\n".join(current))
            current = []
    if current:
        raise ValueError(f"a statement without its end: {current[0]}")
    return statements


class Psql:
    """A connection with psql's variables and its way to show results."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._variables: dict[str, str] = {}

    def type(self, statement: str) -> tuple[str, bool]:
        """What is shown, and whether it was an error."""
        sql = _VARIABLE.sub(lambda m: self._variables.get(m[1], m[0]), statement)
        keep = sql.endswith("\\gset")
        found = self._wire.run(sql.removesuffix("\\gset").removesuffix(";"))
        if found.failure:
            return _error(found), True
        if keep:
            answer = found.answers[-1]
            for name, value in zip(answer.names or [], answer.rows[0], strict=True):
                self._variables[name] = value or ""
            return "", False
        shown = [_shown(answer) for answer in found.answers]
        return "\n".join([*_notices(found), *shown]), False


def _notices(found: Answers) -> list[str]:
    return [notice.replace(": ", ":  ", 1) for notice in found.notices]


def _error(found: Answers) -> str:
    failure = found.failure
    assert failure is not None
    lines = [*_notices(found), f"ERROR:  {failure.message}"]
    lines += [f"DETAIL:  {failure.detail}"] if failure.detail else []
    lines += [f"HINT:  {failure.hint}"] if failure.hint else []
    return "\n".join(lines)


def _shown(answer: Answer) -> str:
    if answer.names is None:
        return answer.tag
    return aligned(answer.names, answer.rows, answer.oids)


def aligned(names: Sequence[str], rows: Sequence[Sequence[str | None]], oids: Sequence[int]) -> str:
    """psql's aligned format, without the spaces at the ends of lines."""
    cells = [["" if value is None else value for value in row] for row in rows]
    widths = [max([len(name), *(len(row[i]) for row in cells)]) for i, name in enumerate(names)]
    lines = [" | ".join(_centred(n, w) for n, w in zip(names, widths, strict=True))]
    lines.append("-+-".join("-" * w for w in widths))
    for row in cells:
        padded = [
            cell.rjust(w) if oid in _RIGHT else cell.ljust(w)
            for cell, w, oid in zip(row, widths, oids, strict=True)
        ]
        lines.append(" | ".join(padded))
    lines = [f" {line}" if i != 1 else f"-{line}-" for i, line in enumerate(lines)]
    lines.append(f"({len(rows)} row{'' if len(rows) == 1 else 's'})")
    return "\n".join(line.rstrip() for line in lines)


def _centred(name: str, width: int) -> str:
    left = (width - len(name)) // 2
    return (" " * left + name).ljust(width)


def matches(shown: str, got: str) -> bool:
    """Equal, where `...` on the page stands for anything. What is only told when something takes long may
    come or not."""
    pattern = re.compile(".*".join(re.escape(piece) for piece in _clean(shown).split("...")), re.DOTALL)
    return any(pattern.fullmatch(_clean(text)) is not None for text in (got, unhurried(got)))


def unhurried(got: str) -> str:
    """Without the notices that a statement waits: how long it does is not the page's to say."""
    return "\n".join(line for line in got.split("\n") if not line.startswith("NOTICE:  waiting for "))


def _clean(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip("\n").split("\n"))
