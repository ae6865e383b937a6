"""Parser cases as text: `tests/sql/parse/*.txt`.

A case is a directive, the SQL, `----` and the result up to an empty line; lines that start with # between
cases tell the story. `parse` gives each statement as `to_sql` writes it (and checks that this text parses
back to an equal statement), or the error; of a statement that `to_sql` does not write, and with `dump` of
any, it gives the fields. TIDEMILL_REWRITE=1 writes the results anew: read the difference before you keep it.
"""

from __future__ import annotations

import dataclasses
import os
from enum import Enum
from pathlib import Path

import pytest

from tidemill.errors import TidemillError
from tidemill.sql import ast
from tidemill.sql.parse import parse
from tidemill.sql.render import Rendered, expression_sql, query_sql, to_sql

HERE = Path(__file__).parent / "parse"
REWRITE = os.environ.get("TIDEMILL_REWRITE") == "1"


@dataclasses.dataclass
class Case:
    directive: str
    sql: str
    expected: str
    line: int


def read_cases(path: Path) -> list[Case | str]:
    """Cases, and the comment and empty lines between them as they are."""
    lines = path.read_text().split("\n")
    found: list[Case | str] = []
    at = 0
    while at < len(lines):
        if not lines[at].strip() or lines[at].startswith("#"):
            found.append(lines[at])
            at += 1
            continue
        line, directive = at + 1, lines[at].strip()
        split = lines.index("----", at)
        end = split + 1
        while end < len(lines) and lines[end].strip():
            end += 1
        found.append(
            Case(directive, "\n".join(lines[at + 1 : split]), "\n".join(lines[split + 1 : end]), line)
        )
        at = end
    return found


def dump(value: object) -> str:
    """A statement's fields that are not at their default, expressions as SQL."""
    match value:
        case ast.Expr(tree):
            return f"`{expression_sql(tree)}`"
        case ast.Query() as query:
            return f"`{query_sql(query)}`"
        case ast.Ident() | ast.Name():
            return str(value)
        case Enum():
            return value.name
        case tuple():
            return f"[{', '.join(map(dump, value))}]"  # pyright: ignore[reportUnknownArgumentType]
        case _:
            pass
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        shown = [
            f"{f.name}={dump(getattr(value, f.name))}"
            for f in dataclasses.fields(value)
            if f.compare and getattr(value, f.name) != f.default
        ]
        return f"{type(value).__name__}({', '.join(shown)})"
    return repr(value)


def run(case: Case) -> str:
    try:
        statements = parse(case.sql)
    except TidemillError as error:
        where = f" at {error.position}" if error.position else ""
        return f"ERROR {error.sqlstate}{where}: {error}"
    assert case.directive in ("parse", "dump"), f"unknown directive {case.directive} in line {case.line}"
    out: list[str] = []
    for parsed in statements:
        statement = parsed.statement
        assert case.sql[parsed.offset : parsed.offset + len(parsed.text)] == parsed.text
        if case.directive == "dump" or not isinstance(statement, Rendered):
            out.append(dump(statement))
            continue
        out.append(to_sql(statement))
        assert [s.statement for s in parse(out[-1])] == [statement], out[-1]
    return "\n".join(out) or "EMPTY"


@pytest.mark.parametrize("path", sorted(HERE.glob("*.txt")), ids=lambda p: p.stem)
def test_file(path: Path) -> None:
    items = read_cases(path)
    cases = [c for c in items if isinstance(c, Case)]
    assert cases
    if REWRITE:
        blocks = [i if isinstance(i, str) else f"{i.directive}\n{i.sql}\n----\n{run(i)}" for i in items]
        path.write_text("\n".join(blocks))
        return
    for case in cases:
        assert run(case) == case.expected, f"{path.name}:{case.line}: {case.sql}"
