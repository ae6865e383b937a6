"""Where results go: the standard output, a file, a command, or the pager where a result is longer than the
screen."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Generator
from typing import IO

# Where neither $PAGER nor these are there, nothing is paged.
_PAGERS = ("less", "more")


class OutputTarget:
    """A stream for text and, for COPY, bytes."""

    def __init__(self, stream: IO[str], process: subprocess.Popen[str] | None = None) -> None:
        self._stream = stream
        self._process = process

    @property
    def is_terminal(self) -> bool:
        return self._process is None and self._stream.isatty()

    @property
    def is_standard(self) -> bool:
        return self._stream is sys.stdout

    def write(self, text: str) -> None:
        self._stream.write(text)

    def write_bytes(self, data: bytes) -> None:
        # A stream of tests has no bytes below it.
        buffer = getattr(self._stream, "buffer", None)
        if buffer is None:
            self._stream.write(data.decode(errors="replace"))
        else:
            self._stream.flush()
            buffer.write(data)

    def flush(self) -> None:
        self._stream.flush()

    def close(self) -> None:
        """Also waits for the command. The standard output stays open."""
        if self.is_standard:
            self._stream.flush()
            return
        with contextlib.suppress(BrokenPipeError):  # it has seen enough
            self._stream.close()
        if self._process is not None:
            self._process.wait()


def standard_output() -> OutputTarget:
    if hasattr(sys.stdout, "reconfigure"):
        # A character that the terminal's encoding has not is no reason to stop.
        sys.stdout.reconfigure(errors="replace")  # pyright: ignore[reportAttributeAccessIssue]
    return OutputTarget(sys.stdout)


def file_trouble(error: OSError) -> str:
    """What is wrong with a file, as other commands say it."""
    if not error.strerror:
        return str(error)
    return f"{error.filename}: {error.strerror}" if error.filename else error.strerror


def opened(name: str) -> OutputTarget:
    """A file to write, or with `|` in front a command to write to."""
    if name.startswith("|"):
        return _command(name[1:])
    path = os.path.expanduser(name)
    return OutputTarget(open(path, "w", encoding="utf-8", errors="replace", newline=""))


def _command(command: str) -> OutputTarget:
    process = subprocess.Popen(
        ["/bin/sh", "-c", command], stdin=subprocess.PIPE, text=True, encoding="utf-8", errors="replace"
    )
    assert process.stdin is not None
    return OutputTarget(process.stdin, process)


def pager_command() -> str | None:
    """What people chose, else what there is; None: no paging."""
    chosen = os.environ.get("TIDEMILL_PAGER", os.environ.get("PSQL_PAGER", os.environ.get("PAGER")))
    if chosen is not None:
        return chosen.strip() or None
    return next((name for name in _PAGERS if shutil.which(name)), None)


@contextlib.contextmanager
def paged(command: str) -> Generator[OutputTarget]:
    """The pager, for one result. Ctrl-C is its own meanwhile."""
    # Wide tables are better cut than folded; -X leaves the last screen to be seen.
    process = subprocess.Popen(
        ["/bin/sh", "-c", command],
        stdin=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        errors="replace",
        env={"LESS": "-SX", **os.environ},
    )
    assert process.stdin is not None
    target = OutputTarget(process.stdin, process)
    # Only now: the pager would inherit that Ctrl-C is ignored.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield target
    finally:
        target.close()
        signal.signal(signal.SIGINT, before)


def screen_size() -> tuple[int, int]:
    """Columns and lines of the terminal."""
    size = shutil.get_terminal_size()
    return size.columns, size.lines
