"""The printer of results: draws the events of a statement on the screen or in another output."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from tidemill.cli.shell.display_settings import ColumnLook, DisplaySettings, Rows
from tidemill.cli.shell.events import CopyInEvent, CopyOutEvent, Done, Event, Failed, Head, RowsEvent
from tidemill.cli.shell.formats import Format, chosen
from tidemill.cli.shell.interrupts import Interrupts
from tidemill.cli.shell.output import OutputTarget, paged, pager_command, screen_size, standard_output

_QUERY_CANCELED = "57014"
_FOR_PROGRAMS = ("csv", "json", "markdown")
# Their tags are printed although they returned rows.
_CHANGES = ("INSERT", "UPDATE", "DELETE", "MERGE")


@dataclass(slots=True)
class Outcome:
    """The outcome of a statement."""

    ok: bool = True
    # The number of rows of the last result, or the number that a command reports.
    count: int = 0
    error: Failed | None = None
    tags: list[str] = field(default_factory=list)
    # Ctrl-C was pressed meanwhile.
    interrupted: bool = False


class Printer:
    """Draws results by a `DisplaySettings`. `where` is a prefix of errors (`file.sql:3: `) and follows the
    input."""

    def __init__(self, look: DisplaySettings, interrupts: Interrupts, *, quiet: bool = False) -> None:
        self.look = look
        self.quiet = quiet
        self.target = standard_output()
        self.where: Callable[[], str] = lambda: ""
        self._interrupts = interrupts

    def say(self, text: str) -> None:
        """Print a message to the user after earlier output, never into the output of results."""
        sys.stdout.flush()
        sys.stderr.write(text if text.endswith("\n") else text + "\n")
        sys.stderr.flush()

    def complain(self, text: str) -> None:
        self.say(self.where() + text)

    def show(
        self,
        events: Iterator[Event],
        *,
        look: DisplaySettings | None = None,
        target: OutputTarget | None = None,
        stream: bool = False,
        copy_data: Callable[[], Iterable[bytes]] = tuple,
    ) -> Outcome:
        """Show all events. `stream`: flush while rows arrive; Ctrl-C is then the normal end."""
        out = target or self.target
        outcome = Outcome()
        drawing: _Drawing | None = None
        # The tag of COPY would be mixed with its data.
        copied = False
        with contextlib.ExitStack() as pager:
            for event in events:
                if isinstance(event, Head):
                    drawing = _Drawing(event.columns, look or self.look, out, self._interrupts, stream, pager)
                elif isinstance(event, RowsEvent):
                    assert drawing is not None, "rows have a head"
                    drawing.rows(event.rows, last=event.last)
                    outcome.count = drawing.count
                elif isinstance(event, Done):
                    outcome.tags.append(event.tag)
                    if not copied:
                        self._tag(event.tag, out, had_rows=drawing is not None)
                    copied = False
                    outcome.count = outcome.count if drawing is not None else _counted(event.tag)
                    drawing = None
                elif isinstance(event, CopyOutEvent):
                    self._copy_out(event, out)
                    copied = True
                elif isinstance(event, CopyInEvent):
                    event.send(copy_data())
                elif stream and drawing is not None and event.sqlstate == _QUERY_CANCELED:
                    drawing = None
                else:
                    drawing = None
                    outcome.ok, outcome.error = False, event
                    self.complain(event.message)
        out.flush()
        return outcome

    def table(
        self, columns: Iterable[ColumnLook], rows: Rows, *, title: str = "", footer: str | None = None
    ) -> None:
        """Show rows that are already in memory as a separate result."""
        look = DisplaySettings(**{name: getattr(self.look, name) for name in DisplaySettings.__slots__})
        look.title = title
        look.null = look.null_text("")
        with contextlib.ExitStack() as pager:
            drawing = _Drawing(tuple(columns), look, self.target, self._interrupts, False, pager)
            drawing.rows(rows, last=True, footer=footer)
        self.target.flush()

    def _tag(self, tag: str, out: OutputTarget, *, had_rows: bool) -> None:
        """Print a tag, as psql does: not after a read, and not between data for a program."""
        if self.quiet or not tag or self.look.format in _FOR_PROGRAMS:
            return
        if not had_rows or tag.startswith(_CHANGES):
            out.write(tag + "\n")

    def _copy_out(self, event: CopyOutEvent, out: OutputTarget) -> None:
        for data in event.data:
            if not self._interrupts.wanted:
                out.write_bytes(data)
            if out.is_terminal:
                out.flush()


class _Drawing:
    """The drawing of one result."""

    def __init__(
        self,
        columns: tuple[ColumnLook, ...],
        look: DisplaySettings,
        target: OutputTarget,
        interrupts: Interrupts,
        stream: bool,
        pager: contextlib.ExitStack,
    ) -> None:
        self._columns = columns
        self._look = look
        self._target = target
        self._interrupts = interrupts
        self._stream = stream
        self._pager = pager
        self._format: Format | None = None
        # No reader is left: Ctrl-C was pressed, or the pager was closed.
        self._skip = False
        self.count = 0

    def rows(self, rows: Rows, *, last: bool, footer: str | None = None) -> None:
        self.count += len(rows)
        first = self._format is None
        if self._format is None:
            screen = screen_size()[0] if self._target.is_terminal else None
            self._format = chosen(self._columns, self._look, rows, screen)
        text = self._format.rows(rows)
        if last:
            ending = self._footer() if footer is None else footer
            text = _both(text, self._format.end(ending))
        if first and self._target.is_terminal and not self._stream:
            text = self._paged(text, whole=last)
        self._write(text)
        if self._stream:
            self._target.flush()
        if last:
            self._pager.close()

    def _footer(self) -> str:
        if self._look.tuples_only or not self._look.footer:
            return ""
        return f"({self.count:d} row{'' if self.count == 1 else 's'})"

    def _paged(self, text: Iterator[str], *, whole: bool) -> Iterator[str]:
        """Use the pager if the result is longer than the screen. Reads ahead no further than one screen."""
        command = pager_command() if self._look.pager else None
        if command is None:
            return text
        height = screen_size()[1]
        begin: list[str] = []
        lines = 0
        for piece in text:
            begin.append(piece)
            lines += piece.count("\n")
            if lines >= height:
                break
        if lines >= height or not whole:
            self._target = self._pager.enter_context(paged(command))
        return _both(iter(begin), text)

    def _write(self, text: Iterator[str]) -> None:
        if self._skip:
            return
        write, interrupts = self._target.write, self._interrupts
        try:
            for piece in text:
                if interrupts.wanted:
                    self._skip = True
                    break
                write(piece)
        except BrokenPipeError:
            if self._target.is_standard:
                raise
            self._skip = True


def _both(first: Iterator[str], second: Iterator[str]) -> Iterator[str]:
    yield from first
    yield from second


def _counted(tag: str) -> int:
    """The row count of a tag: INSERT 0 5."""
    last = tag.rsplit(" ", 1)[-1]
    return int(last) if last.isdigit() else 0
