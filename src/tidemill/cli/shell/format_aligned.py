"""The aligned format: tables drawn exactly as in psql.

Rows arrive in blocks. The first block sets the widths of the columns. If a later block needs more, they grow
from there on. A result of any length therefore needs the memory of one block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tidemill.cli.shell.cells import is_plain, lines, width
from tidemill.cli.shell.display_settings import ColumnLook, DisplaySettings, Rows


@dataclass(frozen=True, slots=True)
class Rule:
    """A horizontal line: its character, and its crossings at the left, between columns and at the right."""

    dash: str
    left: str
    middle: str
    right: str


@dataclass(frozen=True, slots=True)
class Strokes:
    """The characters of all lines. `newline` marks a value that continues in the next line."""

    bar: str
    newline: str
    top: Rule
    inner: Rule
    bottom: Rule


_PLUS = Rule("-", "+", "+", "+")
STROKES = {
    "ascii": Strokes("|", "+", _PLUS, _PLUS, _PLUS),
    "unicode": Strokes(
        "│", "↵", Rule("─", "┌", "┬", "┐"), Rule("─", "├", "┼", "┤"), Rule("─", "└", "┴", "┘")
    ),
}


class Aligned:
    def __init__(self, columns: Sequence[ColumnLook], look: DisplaySettings) -> None:
        self._names = [lines(c.name) for c in columns]
        self._right = [c.right for c in columns]
        self._widths = [max(map(width, name)) for name in self._names]
        self._look = look
        self._border = look.border
        self._strokes = STROKES[look.linestyle]
        self._null = look.null_text("NULL")
        self._begun = False
        self._count = 0

    def total_width(self, rows: Rows) -> int:
        """The width of the whole table, to decide whether it fits the screen."""
        self._measure(self._cells(rows))
        return sum(self._widths) + (0, 3, 3)[self._border] * max(len(self._widths) - 1, 0) + 2 * self._border

    def rows(self, rows: Rows) -> Iterator[str]:
        self._count += len(rows)
        cells = self._cells(rows)
        self._measure(cells)
        if not self._begun:
            self._begun = True
            yield from self._head()
        if not self._widths:
            return
        if all(all(isinstance(cell, str) for cell in column) for column in cells):
            yield from self._plain_rows([[str(cell) for cell in column] for column in cells])
        else:
            for row in zip(*cells, strict=True):
                yield from self._drawn([[cell] if isinstance(cell, str) else cell for cell in row])

    def end(self, footer: str) -> Iterator[str]:
        if self._border == 2:
            yield self._rule(self._strokes.bottom)
        if footer:
            yield footer + "\n"
        yield "\n"

    def _cells(self, rows: Rows) -> list[list[str | list[str]]]:
        """Values by column. A value that is not one plain line is the list of its lines."""
        out: list[list[str | list[str]]] = []
        for column in zip(*rows, strict=True):
            texts = [self._null if value is None else value for value in column]
            if is_plain("".join(texts)):
                out.append([*texts])
            else:
                out.append([text if is_plain(text) else lines(text) for text in texts])
        return out

    def _measure(self, cells: list[list[str | list[str]]]) -> None:
        for i, column in enumerate(cells):
            widest = max(
                (len(cell) if isinstance(cell, str) else max(map(width, cell)) for cell in column), default=0
            )
            self._widths[i] = max(self._widths[i], widest)

    def _head(self) -> Iterator[str]:
        if self._look.tuples_only:
            return
        if self._look.title:
            total = (
                sum(self._widths)
                + (len(self._widths) - 1) * (0, 3, 3)[self._border]
                + (0, 2, 4)[self._border]
            )
            yield self._look.title.center(total).rstrip() + "\n"
        if self._border == 2:
            yield self._rule(self._strokes.top)
        for n in range(max(map(len, self._names), default=0)):
            yield self._head_line(n)
        yield self._rule(self._strokes.inner)

    def _head_line(self, n: int) -> str:
        parts: list[str] = []
        for name, size in zip(self._names, self._widths, strict=True):
            text = name[n] if n < len(name) else ""
            spare = size - width(text)
            mark = self._strokes.newline if n + 1 < len(name) else " "
            left = " " if self._border else ""
            parts.append(left + " " * (spare // 2) + text + " " * ((spare + 1) // 2) + mark)
        return self._framed(parts)

    def _framed(self, parts: list[str]) -> str:
        bar = self._strokes.bar if self._border else ""
        line = bar.join(parts)
        return f"{bar}{line}{bar}\n" if self._border == 2 else f"{line}\n"

    def _rule(self, rule: Rule) -> str:
        if not self._widths:  # psql's rule for zero columns
            edge = (rule.left, rule.right) if self._border == 2 else ("", "")
            return f"{edge[0]}{rule.dash * (2 if self._border else 0)}{edge[1]}\n"
        if not self._border:
            return " ".join(rule.dash * size for size in self._widths) + "\n"
        line = rule.middle.join(rule.dash * (size + 2) for size in self._widths)
        return f"{rule.left}{line}{rule.right}\n" if self._border == 2 else f"{line}\n"

    def _plain_rows(self, columns: list[list[str]]) -> Iterator[str]:
        padded: list[list[str]] = []
        for i, column in enumerate(columns):
            size = self._widths[i]
            last = i == len(columns) - 1 and self._border != 2
            if self._right[i]:
                padded.append([cell.rjust(size) for cell in column])
            else:
                padded.append(column if last else [cell.ljust(size) for cell in column])
        bar = self._strokes.bar
        between, before, after = {
            0: (" ", "", "\n"),
            1: (f" {bar} ", " ", "\n"),
            2: (f" {bar} ", f"{bar} ", f" {bar}\n"),
        }[self._border]
        for row in zip(*padded, strict=True):
            yield before + between.join(row) + after

    def _drawn(self, row: Sequence[list[str]]) -> Iterator[str]:
        """A row with multi-line values or wide characters."""
        last = len(row) - 1
        for n in range(max(map(len, row))):
            parts: list[str] = []
            for i, cell in enumerate(row):
                text = cell[n] if n < len(cell) else ""
                more = n + 1 < len(cell)
                space = " " * (self._widths[i] - width(text))
                final = self._border == 2 or i < last
                if self._right[i] and n < len(cell):
                    text = space + text
                elif final or more:
                    text += space
                mark = self._strokes.newline if more else " " if final else ""
                parts.append((" " if self._border else "") + text + mark)
            yield self._framed(parts)
