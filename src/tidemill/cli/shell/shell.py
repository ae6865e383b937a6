"""The shell: reads lines from a source, runs statements and commands, and holds their shared state.

`Shell.run` is called with the terminal's prompt or with a script; `\\i` calls it with another script while
one is running. Commands (`commands`) receive the shell and change it through its public names.
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

# The depth limit of \i: a file that includes itself must stop.
MOST_NESTED = 64
# The rows that a command may load into memory. A catalog of a hundred thousand relations fits.
MOST_KEPT_ROWS = 200_000
_STREAMS = re.compile(r"\bsubscribe\b", re.IGNORECASE)
_END_OF_DATA = "\\."


class Next(Enum):
    """The action after a command."""

    GO_ON = "go on"
    FAILED = "failed"
    QUIT = "quit"


class ExitStatus:
    """Exit statuses, as in psql."""

    OK, FAILED, NO_CONNECTION, SCRIPT = 0, 1, 2, 3


@dataclass(slots=True)
class InputFrame:
    """An input that is being read, and its incomplete rest."""

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
    # The last statement that was sent, for \\g with an empty buffer.
    last_query: str = ""
    last_error: Failed | None = None
    # Text to edit at the next prompt: the result of \\e.
    draft: str = ""
    may_ask: bool = True
    # Called after statements that may have changed the names for completion.
    on_change: Callable[[], None] = lambda: None
    printer: Printer = field(init=False)
    session: ShellSession | None = field(init=False, default=None)
    frames: list[InputFrame] = field(init=False, default_factory=list)
    # Ctrl-C ended a script: the rest of it is not run.
    interrupted: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self.printer = Printer(self.look, self.interrupts, quiet=self.quiet)
        self.printer.where = self._where

    # -- the connection

    def connect(self, place: ServerAddress | None = None, *, ask: bool = False) -> ShellSession:
        """Connect to an address. The previous connection stays open until the new one exists."""
        connection, found = connected(place or self.place, ask=ask, may_ask=self.may_ask)
        before, self.session = self.session, ShellSession(connection, self.interrupts, self.printer.say)
        self.place = found
        if before is not None:
            before.close()
        self.on_change()
        return self.session

    def ready(self) -> ShellSession:
        """The connection; reconnects if it was lost. In a script a lost connection ends the script."""
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
        """Run all lines of the source; return an exit status. Each call has its own query buffer."""
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
        """Run the text of `-c`: commands, or statements that are sent unchanged in one message. `source`
        supplies the data of a COPY."""
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
        # A SUBSCRIBE ends only by Ctrl-C; even then nothing after it is run.
        return ExitStatus.OK if self.interrupted else None

    def handle(self, event: Event) -> Next:
        """Run one statement or command. Errors are printed, not raised, unless the shell cannot continue."""
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
        """Run a statement and show its events."""
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
        """Run a command's own query and return its rows without showing them. Raises the server's error."""
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
        """Whether Ctrl-C was pressed during the statement that ends here. If so, it ends a script."""
        pressed = self.interrupts.take() or session.was_cancelled
        if pressed:
            for frame in self.frames:
                frame.source.forget()
        self.interrupted = self.interrupted or (pressed and not self.interactive)
        return pressed

    def _remember(self, outcome: Outcome) -> None:
        """Set the variables that psql sets after a statement."""
        error = outcome.error
        self.last_error = error or self.last_error
        self.variables.set("ERROR", "true" if error else "false")
        self.variables.set("SQLSTATE", error.sqlstate if error else "00000")
        self.variables.set("ROW_COUNT", str(outcome.count))
        if any(tag.split(" ", 1)[0] in _CHANGING for tag in outcome.tags):
            self.on_change()

    def inline_data(self) -> Iterator[bytes]:
        """The data of COPY ... FROM STDIN that follow in the input."""
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
    """A duration in psql's form: milliseconds, for long ones also minutes and hours."""
    text = f"{seconds * 1000:.3f} ms"
    if seconds < 1:
        return text
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(int(minutes), 60)
    clock = f"{minutes:02d}:{rest:06.3f}"
    return f"{text} ({f'{hours:02d}:' if hours else ''}{clock})"


def resolved(path: str, folder: str | None) -> str:
    """A path in a script, relative to the script if requested."""
    path = os.path.expanduser(path)
    return os.path.join(folder, path) if folder and not os.path.isabs(path) else path
