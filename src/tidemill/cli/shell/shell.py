"""The shell itself: takes lines from a source, runs statements and commands, keeps what they share.

`Shell.run` is called with the terminal's prompt, with a script, or, by `\\i`, with another script in the
middle of either. Commands (`commands`) get the shell and change it through its public names.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum

from tidemill.cli.shell.connecting import ServerAddress, connected
from tidemill.cli.shell.display_settings import ColumnLook, DisplaySettings, Row
from tidemill.cli.shell.events import Done, Failed, Head, RowsEvent
from tidemill.cli.shell.interrupts import Interrupts
from tidemill.cli.shell.output import OutputTarget, file_trouble
from tidemill.cli.shell.printing import Outcome, Printer
from tidemill.cli.shell.session import ShellSession
from tidemill.cli.shell.sources import LineSource
from tidemill.cli.shell.splitter import Command, Event, ShellStatement, Splitter
from tidemill.cli.shell.variables import ShellVariables
from tidemill.client.errors import ConnectionLost
from tidemill.errors import InvalidValue, LimitExceeded, TidemillError

# \i within \i: a file that includes itself must end somewhere.
MOST_NESTED = 64
# Rows that a command may take into memory: catalogs of a hundred thousand relations still fit.
MOST_KEPT_ROWS = 200_000
_STREAMS = re.compile(r"\bsubscribe\b", re.IGNORECASE)
_END_OF_DATA = "\\."


class Next(Enum):
    """What comes after a command."""

    GO_ON = "go on"
    FAILED = "failed"
    QUIT = "quit"


class ExitStatus:
    """Exit statuses, as psql's."""

    OK, FAILED, NO_CONNECTION, SCRIPT = 0, 1, 2, 3


@dataclass(slots=True)
class InputFrame:
    """An input that is being worked through, and what of it is not yet complete."""

    source: LineSource
    splitter: Splitter


@dataclass(frozen=True, slots=True)
class ShownTable:
    """A result in memory."""

    columns: tuple[ColumnLook, ...]
    rows: list[Row]


@dataclass(slots=True)
class Shell:
    place: ServerAddress
    look: DisplaySettings = field(default_factory=DisplaySettings)
    variables: ShellVariables = field(default_factory=ShellVariables)
    interrupts: Interrupts = field(default_factory=Interrupts)
    quiet: bool = False
    timing: bool = False
    # The last statement that was sent, for \\g on an empty buffer.
    last_query: str = ""
    last_error: Failed | None = None
    # Text to edit at the next prompt: what \\e gave back.
    draft: str = ""
    may_ask: bool = True
    # Told after statements that may have changed what names there are.
    on_change: Callable[[], None] = lambda: None
    printer: Printer = field(init=False)
    session: ShellSession | None = field(init=False, default=None)
    frames: list[InputFrame] = field(init=False, default_factory=list)
    # Ctrl-C ended a script: nothing of it is run after that.
    interrupted: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self.printer = Printer(self.look, self.interrupts, quiet=self.quiet)
        self.printer.where = self._where

    # -- the connection

    def connect(self, place: ServerAddress | None = None, *, ask: bool = False) -> ShellSession:
        """To the place, or to another; the one that was stays until the other is there."""
        connection, found = connected(place or self.place, ask=ask, may_ask=self.may_ask)
        before, self.session = self.session, ShellSession(connection, self.interrupts, self.printer.say)
        self.place = found
        if before is not None:
            before.close()
        self.on_change()
        return self.session

    def ready(self) -> ShellSession:
        """The connection, made again if it was lost. In a script a lost one is the end."""
        if self.session is not None and self.session.alive:
            return self.session
        if self.session is None or not self.interactive:
            raise ConnectionLost("the connection to the server was lost")
        session = self.connect()
        self.printer.say("The connection was lost and is made again; what the session had set is gone.")
        return session

    @property
    def interactive(self) -> bool:
        return bool(self.frames) and self.frames[0].source.interactive

    @property
    def frame(self) -> InputFrame:
        return self.frames[-1]

    def close(self) -> None:
        if self.session is not None:
            self.session.close()
        if not self.printer.target.is_standard:
            self.printer.target.close()
        self.interrupts.close()

    # -- input

    def run(self, source: LineSource) -> int:
        """All lines of the source; an exit status. The query buffer is its own."""
        if len(self.frames) >= MOST_NESTED:
            raise LimitExceeded(f"\\i is nested more than {MOST_NESTED} deep")
        frame = InputFrame(source, Splitter(self.variables.lookup))
        self.frames.append(frame)
        try:
            return self._run(frame)
        finally:
            self.frames.pop()

    def _run(self, frame: InputFrame) -> int:
        source, splitter = frame.source, frame.splitter
        while (line := source.line(splitter.state)) is not None:
            for event in splitter.feed(line if line.endswith("\n") else line + "\n"):
                status = self._after(self.handle(event), source)
                if status is not None:
                    return status
        rest = None if source.interactive else splitter.finish()
        status = None if rest is None else self._after(self.handle(rest), source)
        return ExitStatus.OK if status is None else status

    def run_text(self, text: str, source: LineSource) -> Next:
        """What `-c` gives: commands, or statements that go to the server as they are, in one message.
        `source` is where the data of a COPY come from."""
        frame = InputFrame(source, Splitter(self.variables.lookup))
        self.frames.append(frame)
        try:
            if not text.lstrip().startswith("\\"):
                return self.handle(ShellStatement(text))
            outcome = Next.GO_ON
            for event in frame.splitter.feed(text + "\n"):
                outcome = self.handle(event)
            rest = frame.splitter.finish()
            return outcome if rest is None else self.handle(rest)
        finally:
            self.frames.pop()

    def _after(self, outcome: Next, source: LineSource) -> int | None:
        """Whether the source ends here, and with which status."""
        if outcome is Next.QUIT:
            return ExitStatus.OK
        if source.interactive:
            return None
        if outcome is Next.FAILED and (self.interrupted or self.variables.is_on("ON_ERROR_STOP")):
            return ExitStatus.SCRIPT
        # A SUBSCRIBE has no other end than Ctrl-C; nothing is run after it all the same.
        return ExitStatus.OK if self.interrupted else None

    def handle(self, event: Event) -> Next:
        """One statement or command; errors are told, not raised, unless there is nothing left to do."""
        try:
            if isinstance(event, ShellStatement):
                return Next.GO_ON if self.execute(event.text).ok else Next.FAILED
            return self.command(event)
        except ConnectionLost as e:
            if not self.interactive:
                raise
            self.printer.complain(f"{e}\nThe next statement connects again.")
        except (TidemillError, OSError) as e:
            if isinstance(e, BrokenPipeError):
                raise
            self.printer.complain(f"ERROR:  {e}" if isinstance(e, TidemillError) else file_trouble(e))
        return Next.FAILED

    def command(self, command: Command) -> Next:
        from tidemill.cli.shell.commands import run

        return run(self, command)

    def _where(self) -> str:
        if not self.frames or self.frame.source.interactive or not self.frame.source.name:
            return ""
        return f"tidemill:{self.frame.source.name}:{self.frame.source.number}: "

    # -- statements

    def execute(
        self,
        sql: str,
        *,
        look: DisplaySettings | None = None,
        target: OutputTarget | None = None,
        copy_data: Callable[[], Iterator[bytes]] | None = None,
    ) -> Outcome:
        """Run it and show what comes."""
        session = self.ready()
        if self.variables.get("ECHO") == "queries":
            self.printer.target.write(sql + "\n")
        self.last_query = sql
        stream = _STREAMS.search(sql) is not None
        began = time.monotonic()
        with self.interrupts.caught():
            try:
                outcome = self.printer.show(
                    session.run(sql, stream=stream),
                    look=look,
                    target=target,
                    stream=stream,
                    copy_data=copy_data or self.inline_data,
                )
            finally:
                pressed = self._pressed(session)
        outcome.interrupted = pressed
        self._remember(outcome)
        if self.timing:
            self.printer.target.write(f"Time: {duration(time.monotonic() - began)}\n")
        self.printer.target.flush()
        return outcome

    def query(self, sql: str) -> ShownTable:
        """A command's own question: its rows, shown to nobody. Raises what the server says."""
        session = self.ready()
        table = ShownTable((), [])
        failed: Failed | None = None
        with self.interrupts.caught():
            try:
                for event in session.run(sql):
                    if isinstance(event, Head):
                        table = ShownTable(event.columns, [])
                    elif isinstance(event, RowsEvent):
                        table.rows.extend(event.rows)
                        if len(table.rows) > MOST_KEPT_ROWS:
                            raise LimitExceeded(f"more than {MOST_KEPT_ROWS:,} rows for one command")
                    elif isinstance(event, Failed):
                        failed = failed or event
                    elif not isinstance(event, Done):
                        raise InvalidValue("COPY is not for this command")
            finally:
                self._pressed(session)
        if failed is not None:
            self.last_error = failed
            raise TidemillError(failed.primary or failed.message.strip(), sqlstate=failed.sqlstate)
        return table

    def _pressed(self, session: ShellSession) -> bool:
        """Whether Ctrl-C was, during the statement that ends here. It ends a script."""
        pressed = self.interrupts.take() or session.was_cancelled
        if pressed:
            for frame in self.frames:
                frame.source.forget()
        self.interrupted = self.interrupted or (pressed and not self.interactive)
        return pressed

    def _remember(self, outcome: Outcome) -> None:
        """The variables that psql sets after a statement."""
        error = outcome.error
        self.last_error = error or self.last_error
        self.variables.set("ERROR", "true" if error else "false")
        self.variables.set("SQLSTATE", error.sqlstate if error else "00000")
        self.variables.set("ROW_COUNT", str(outcome.count))
        if any(tag.split(" ", 1)[0] in _CHANGING for tag in outcome.tags):
            self.on_change()

    def inline_data(self) -> Iterator[bytes]:
        """The data of COPY ... FROM STDIN that stand in the input itself."""
        source = self.frame.source
        if source.interactive and not self.quiet:
            self.printer.say(
                "Enter data to be copied followed by a newline.\n"
                "End with a backslash and a period on a line by itself, or an EOF signal."
            )
        while (line := source.data_line()) is not None:
            if line.rstrip("\r\n") == _END_OF_DATA:
                return
            yield (line if line.endswith("\n") else line + "\n").encode(errors="surrogateescape")

    def with_look(self, **changes: object) -> DisplaySettings:
        return replace(self.look, **changes)  # pyright: ignore[reportArgumentType]


_CHANGING = frozenset({"CREATE", "DROP", "ALTER", "COMMENT", "GRANT", "REVOKE", "SET", "DISCARD", "COMMIT"})


def duration(seconds: float) -> str:
    """As psql tells it: milliseconds, and where that is much also in minutes and hours."""
    text = f"{seconds * 1000:.3f} ms"
    if seconds < 1:
        return text
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(int(minutes), 60)
    clock = f"{minutes:02d}:{rest:06.3f}"
    return f"{text} ({f'{hours:02d}:' if hours else ''}{clock})"


def resolved(path: str, folder: str | None) -> str:
    """A path in a script, relative to the script where that is asked for."""
    path = os.path.expanduser(path)
    return os.path.join(folder, path) if folder and not os.path.isabs(path) else path
