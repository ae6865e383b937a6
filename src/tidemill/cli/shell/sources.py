"""The line sources: a file, the standard input, a text. `prompt` has the source for terminals."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Generator, Iterable, Iterator
from typing import Protocol

from tidemill.cli.shell.splitter import SplitterState


class LineSource(Protocol):
    """Lines, each with its line end. `name` and `number` locate an error."""

    name: str
    number: int
    interactive: bool

    def line(self, state: SplitterState) -> str | None:
        """The next line; None at the end. `state` is shown in the prompt."""
        ...

    def data_line(self) -> str | None:
        """The next line of the data of a COPY."""
        ...

    def forget(self) -> None:
        """Discard the rest of the input after Ctrl-C ended a statement."""
        ...


class Lines:
    """A script. `folder` is the base of relative names, for `\\ir`."""

    interactive = False

    def __init__(self, lines: Iterable[str], name: str, folder: str | None = None) -> None:
        self._lines: Iterator[str] = iter(lines)
        self.name = name
        self.folder = folder
        self.number = 0

    def line(self, state: SplitterState) -> str | None:
        del state
        self.number += 1
        line = next(self._lines, None)
        return line.lstrip("\ufeff") if line is not None and self.number == 1 else line

    def data_line(self) -> str | None:
        return self.line(SplitterState.START)

    def forget(self) -> None:
        self._lines = iter(())


@contextlib.contextmanager
def of_file(path: str) -> Generator[Lines]:
    """The lines of a file; `-` is the standard input."""
    if path == "-":
        yield of_stdin("<stdin>")
        return
    path = os.path.expanduser(path)
    with open(path, encoding="utf-8", errors="surrogateescape", newline="\n") as file:
        yield Lines(file, path, os.path.dirname(os.path.abspath(path)))


def of_stdin(name: str = "") -> Lines:
    if hasattr(sys.stdin, "reconfigure"):
        sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")  # pyright: ignore[reportAttributeAccessIssue]
    return Lines(sys.stdin, name)
