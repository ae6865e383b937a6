"""The events of a statement in the order in which they occur. Created by `session`, shown by `printing`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from tidemill.cli.shell.display_settings import ColumnLook, Rows


@dataclass(frozen=True, slots=True)
class Head:
    """The start of a result with columns."""

    columns: tuple[ColumnLook, ...]


@dataclass(frozen=True, slots=True)
class RowsEvent:
    """Rows of a result. `last` means that no more follow; otherwise draw them before reading the next."""

    rows: Rows
    last: bool


@dataclass(frozen=True, slots=True)
class Done:
    """The end of one statement of the text, with the command tag (`SELECT 3`)."""

    tag: str


@dataclass(frozen=True, slots=True)
class Failed:
    """An error of the server, formatted by libpq: with the line, the caret, DETAIL and HINT."""

    message: str
    sqlstate: str
    primary: str
    # The place in the server's source, for \\errverbose.
    location: str


@dataclass(frozen=True, slots=True)
class CopyOutEvent:
    """COPY ... TO STDOUT: the consumer must read all of it."""

    data: Iterator[bytes]


@dataclass(frozen=True, slots=True)
class CopyInEvent:
    """COPY ... FROM STDIN: call `send` once with the data. An error in producing it fails the COPY."""

    send: Callable[[Iterable[bytes]], None]


Event = Head | RowsEvent | Done | Failed | CopyOutEvent | CopyInEvent
