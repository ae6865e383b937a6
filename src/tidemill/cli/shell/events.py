"""What a statement brings, in the order in which it comes. Made by `session`, drawn by `printing`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from tidemill.cli.shell.display_settings import ColumnLook, Rows


@dataclass(frozen=True, slots=True)
class Head:
    """A result with columns begins."""

    columns: tuple[ColumnLook, ...]


@dataclass(frozen=True, slots=True)
class RowsEvent:
    """Rows of it. `last` says that no more come; else they are drawn before the next are taken."""

    rows: Rows
    last: bool


@dataclass(frozen=True, slots=True)
class Done:
    """One statement of the text is done: the server's tag (`SELECT 3`)."""

    tag: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The server's error, as libpq writes it for people: with the line, the caret, DETAIL and HINT."""

    message: str
    sqlstate: str
    primary: str
    # Where in the server's source, for \\errverbose.
    location: str


@dataclass(frozen=True, slots=True)
class CopyOutEvent:
    """COPY ... TO STDOUT: take all of it."""

    data: Iterator[bytes]


@dataclass(frozen=True, slots=True)
class CopyInEvent:
    """COPY ... FROM STDIN: call `send` once, with the data. What fails while they are made fails the COPY."""

    send: Callable[[Iterable[bytes]], None]


Event = Head | RowsEvent | Done | Failed | CopyOutEvent | CopyInEvent
