"""The expanded format (`\\x`): each row as a block of lines, one value per line, as psql with border 1."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tidemill.cli.shell.cells import lines, width
from tidemill.cli.shell.display_settings import ColumnLook, DisplaySettings, Row, Rows
from tidemill.cli.shell.format_aligned import STROKES


class Records:
    def __init__(self, columns: Sequence[ColumnLook], look: DisplaySettings) -> None:
        self._names = [lines(c.name) for c in columns]
        self._name_width = max((width(line) for name in self._names for line in name), default=0)
        self._look = look
        self._strokes = STROKES[look.linestyle]
        self._null = look.null_text("NULL")
        self._value_width = 0
        self._count = 0

    def rows(self, rows: Rows) -> Iterator[str]:
        if not self._count and self._look.title and not self._look.tuples_only:
            yield self._look.title + "\n"
        shown = [[lines(self._null if value is None else value) for value in row] for row in rows]
        widest = max((width(line) for row in shown for value in row for line in value), default=0)
        # As in psql: the value column is wide enough for the label of the record above it.
        several = any(len(value) > 1 for row in shown for value in row)
        label = len(f"-[ RECORD {self._count + len(rows)} ]") - self._name_width - len(" | ") - several
        self._value_width = max(self._value_width, widest, 0 if self._look.tuples_only else label)
        for row in shown if self._names else ():
            self._count += 1
            if not self._look.tuples_only:
                yield self._rule(self._count)
            elif self._count > 1:
                yield self._rule(0)
            for name, value in zip(self._names, row, strict=True):
                yield from self._drawn(name, value)

    def end(self, footer: str) -> Iterator[str]:
        # Each record has a label; only an empty result needs a row count.
        if footer and (not self._count or not footer.endswith(("rows)", "row)"))):
            yield footer + "\n"
        yield "\n"

    def _rule(self, number: int) -> str:
        rule = self._strokes.top if number == 1 else self._strokes.inner
        dash, cross = rule.dash, rule.middle
        line = f"{dash}[ RECORD {number} ]" if number else dash
        # The label is part of the rule. It hides the crossing if it is longer than the names.
        at = self._name_width + 1
        if len(line) <= at:
            line = line.ljust(at, dash) + cross
        return line.ljust(at + 2 + self._value_width, dash) + "\n"

    def _drawn(self, name: list[str], value: list[str]) -> Iterator[str]:
        for n in range(max(len(name), len(value))):
            label = name[n] if n < len(name) else ""
            label += " " * (self._name_width - width(label))
            label += self._strokes.newline if n + 1 < len(name) else " "
            text = value[n] if n < len(value) else ""
            if n + 1 < len(value):
                text += " " * (self._value_width - width(text)) + self._strokes.newline
            yield (
                f"{label}{self._strokes.bar} {text}\n" if n < len(value) else f"{label}{self._strokes.bar}\n"
            )


class PlainRecords:
    """Unaligned and expanded: `name|value`, with an empty line between rows."""

    def __init__(self, columns: Sequence[ColumnLook], look: DisplaySettings) -> None:
        self._names = [c.name for c in columns]
        self._look = look
        self._count = 0

    def rows(self, rows: Rows) -> Iterator[str]:
        for row in rows:
            if self._count:
                yield "\n"
            self._count += 1
            yield from self._drawn(row)

    def _drawn(self, row: Row) -> Iterator[str]:
        for name, value in zip(self._names, row, strict=True):
            text = self._look.null_text("") if value is None else value
            yield f"{name}{self._look.fieldsep}{text}\n"

    def end(self, footer: str) -> Iterator[str]:
        del footer
        return iter(())
