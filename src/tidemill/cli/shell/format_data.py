"""Result formats for programs: unaligned, csv, json, markdown."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

from tidemill.cli.shell.display_settings import ColumnLook, DisplaySettings, Rows

_MUST_QUOTE = re.compile(r'[",\r\n]|^$|^\\\.$|^ | $')
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
# Characters with a meaning in Markdown; an underscore only at the edge of a word.
_MARKED = re.compile(r"([\\`*|<>\[\]~&#]|(?<!\w)_|_(?!\w))")
_LINE_END = re.compile(r"\r\n|\r|\n")


class Unaligned:
    """Unformatted values with a separator between them."""

    def __init__(self, columns: Sequence[ColumnLook], look: DisplaySettings) -> None:
        self._columns = columns
        self._look = look
        self._begun = False

    def rows(self, rows: Rows) -> Iterator[str]:
        separator, null = self._look.fieldsep, self._look.null_text("")
        if not self._begun and not self._look.tuples_only:
            if self._look.title:
                yield self._look.title + "\n"
            yield separator.join(c.name for c in self._columns) + "\n"
        self._begun = True
        for row in rows if self._columns else ():
            yield separator.join([null if value is None else value for value in row]) + "\n"

    def end(self, footer: str) -> Iterator[str]:
        if footer:
            yield footer + "\n"


class CsvFormat:
    """RFC 4180 with a line end of one character. NULL is nothing and an empty text is "", as in COPY."""

    def __init__(self, columns: Sequence[ColumnLook], look: DisplaySettings) -> None:
        self._columns = columns
        self._look = look
        self._begun = False

    def rows(self, rows: Rows) -> Iterator[str]:
        null = self._look.null_text("")
        if not self._begun and not self._look.tuples_only:
            yield ",".join(_quoted(c.name) for c in self._columns) + "\n"
        self._begun = True
        for row in rows if self._columns else ():
            yield ",".join([null if value is None else _quoted(value) for value in row]) + "\n"

    def end(self, footer: str) -> Iterator[str]:
        del footer
        return iter(())


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if _MUST_QUOTE.search(text) else text


class Json:
    """One JSON object per line. Numbers keep every digit. Types without a JSON literal use PostgreSQL's text
    form."""

    def __init__(self, columns: Sequence[ColumnLook], look: DisplaySettings) -> None:
        del look
        self._columns = columns
        self._keys = [json.dumps(name, ensure_ascii=False) for name in unique([c.name for c in columns])]

    def rows(self, rows: Rows) -> Iterator[str]:
        for row in rows:
            items = zip(self._keys, self._columns, row, strict=True)
            yield (
                "{" + ", ".join([f"{key}: {_literal(column, value)}" for key, column, value in items]) + "}\n"
            )

    def end(self, footer: str) -> Iterator[str]:
        del footer
        return iter(())


def _literal(column: ColumnLook, value: str | None) -> str:
    if value is None:
        return "null"
    if column.is_bool:
        return "true" if value == "t" else "false"
    if column.is_number and _NUMBER.fullmatch(value):  # not NaN, not Infinity
        return value
    if column.is_json:
        # A line end in this JSON is always white space: within a text it is written \n.
        return _LINE_END.sub(" ", value)
    return json.dumps(value, ensure_ascii=False)


def unique(names: Sequence[str]) -> list[str]:
    """Number repeated names, because names in an object must be unique."""
    out: list[str] = []
    taken = set(names)
    seen: set[str] = set()
    for name in names:
        n, candidate = 1, name
        while candidate in seen or (n > 1 and candidate in taken):
            n += 1
            candidate = f"{name}_{n}"
        seen.add(candidate)
        out.append(candidate)
    return out


class Markdown:
    """A table in GitHub's Markdown."""

    def __init__(self, columns: Sequence[ColumnLook], look: DisplaySettings) -> None:
        self._columns = columns
        self._look = look
        self._begun = False

    def rows(self, rows: Rows) -> Iterator[str]:
        null = self._look.null_text("NULL")
        if not self._begun:
            yield _joined([_marked(c.name) for c in self._columns])
            yield _joined(["---:" if c.right else "---" for c in self._columns])
        self._begun = True
        for row in rows:
            yield _joined([null if value is None else _marked(value) for value in row])

    def end(self, footer: str) -> Iterator[str]:
        del footer
        yield "\n"


def _joined(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |\n"


def _marked(text: str) -> str:
    return _LINE_END.sub("<br>", _MARKED.sub(r"\\\1", text))
