"""Text tests: a file of directives with their results, read into blocks and written back.

    # Words that tell what is shown.
    statement ok
    CREATE TABLE t (a int)

    query rowsort
    SELECT a FROM t
    ----
    a
    1

A block ends with an empty line; lines that begin with # between blocks are narration. Directives:
- `statement ok`: the SQL must succeed. With `----`, the command tag and the notices are compared.
- `statement error`: it must fail; below `----` stand SQLSTATE, message, detail and hint.
- `query [rowsort]`: its rows, under the names of the columns; `rowsort` where the order does not matter.
- `extended [<JSON array of parameters>]` after `ok`, `error` or `query` uses the extended protocol,
  otherwise the simple one.
- `let NAME`: the one value that the SQL returns is `${NAME}` from now on, in statements and in results.
- `connection NAME [user=ROLE]`: the blocks below use this connection; it is opened at its first use.
- `sleep MILLISECONDS`.
- `mask REGEX => TEXT`: from now on every match in a result reads TEXT (for what differs from run to run).
`TIDEMILL_REWRITE=1` writes the results that were got into the file instead of comparing them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

SEPARATOR = "----"


class FormatError(Exception):
    """The file is not in the format."""


@dataclass
class Block:
    """A directive. `line` is where it stands (1-based), `head` its first line as written; `expected` is
    None without `----`."""

    line: int
    head: str
    sql: str = ""
    expected: list[str] | None = None

    # From the head.
    kind: str = ""
    rowsort: bool = False
    # The parameters where the extended protocol is asked for, else None.
    extended: list[str | None] | None = None
    arguments: list[str] = field(default_factory=list)


@dataclass
class Narration:
    """Comments and empty lines between directives."""

    lines: list[str]


def parse(text: str) -> list[Block | Narration]:
    blocks: list[Block | Narration] = []
    lines = text.split("\n")
    if lines and lines[-1] == "":
        lines.pop()
    at = 0
    while at < len(lines):
        if not lines[at].strip() or lines[at].startswith("#"):
            begun = at
            while at < len(lines) and (not lines[at].strip() or lines[at].startswith("#")):
                at += 1
            blocks.append(Narration(lines[begun:at]))
            continue
        begun = at
        while at < len(lines) and lines[at].strip():
            at += 1
        blocks.append(_block(begun + 1, lines[begun:at]))
    return blocks


def render(blocks: Sequence[Block | Narration]) -> str:
    """The text that parses to `blocks`."""
    lines: list[str] = []
    for block in blocks:
        if isinstance(block, Narration):
            lines += block.lines
            continue
        lines.append(block.head)
        if block.sql:
            lines += block.sql.split("\n")
        if block.expected is not None:
            lines += [SEPARATOR, *block.expected]
    return "\n".join(lines) + "\n"


def _block(line: int, lines: list[str]) -> Block:
    head, body = lines[0], lines[1:]
    expected: list[str] | None = None
    if SEPARATOR in body:
        cut = body.index(SEPARATOR)
        body, expected = body[:cut], body[cut + 1 :]
    block = Block(line, head, "\n".join(body), expected)
    _read_head(block)
    return block


def _read_head(block: Block) -> None:
    def bad(why: str) -> FormatError:
        return FormatError(f"line {block.line}: {why}: {block.head}")

    words = block.head.split()
    block.kind = words[0]
    wants_sql = block.kind in ("statement", "query", "let")
    if wants_sql and not block.sql:
        raise bad("no SQL below the directive")
    if not wants_sql and (block.sql or block.expected is not None):
        raise bad("this directive takes no lines below it")
    if block.kind in ("statement", "query"):
        rest = block.head[len(block.kind) :].strip()
        if block.kind == "statement":
            word, _, rest = rest.partition(" ")
            if word not in ("ok", "error"):
                raise bad("expected ok or error")
            block.kind = f"statement {word}"
        elif rest.startswith("rowsort"):
            block.rowsort, rest = True, rest.removeprefix("rowsort")
        block.extended = _parameters(rest.strip(), bad)
        return
    block.arguments = words[1:]
    if block.kind == "mask":
        pattern, arrow, text = block.head[len("mask") :].strip().partition(" => ")
        if not arrow:
            raise bad("expected mask REGEX => TEXT")
        block.arguments = [pattern, text]
    shapes = {"let": (1, 1), "connection": (1, 2), "sleep": (1, 1), "mask": (2, 2)}
    if block.kind not in shapes:
        raise bad("unknown directive")
    least, most = shapes[block.kind]
    if not least <= len(block.arguments) <= most:
        raise bad("wrong number of arguments")


def _parameters(rest: str, bad: Any) -> list[str | None] | None:
    if not rest:
        return None
    word, _, given = rest.partition(" ")
    if word != "extended":
        raise bad("expected extended")
    try:
        values = json.loads(given or "[]")
    except ValueError:
        values = None
    if not isinstance(values, list) or not all(
        v is None or isinstance(v, str) for v in cast(list[Any], values)
    ):
        raise bad("the parameters are not a JSON array of strings and nulls")
    return cast(list[str | None], values)


def format_rows(names: Sequence[str], rows: Sequence[Sequence[str | None]], *, rowsort: bool) -> list[str]:
    """Columns aligned, `NULL` and `(empty)` told apart, no line empty: one line per row below the names."""
    cells = [[_cell(value) for value in row] for row in rows]
    if rowsort:
        cells.sort()
    table = [[_cell(name) for name in names], *cells]
    widths = [max(len(row[i]) for row in table) for i in range(len(names))]
    lines = [" | ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in table]
    return [line or "(no columns)" for line in lines]


def _cell(value: str | None) -> str:
    if value is None:
        return "NULL"
    if value == "":
        return "(empty)"
    return re.sub(r"[^ -~\u00a1-\uffff]", lambda m: m[0].encode("unicode_escape").decode(), value)
