"""The destination of results: the standard output, a file, a command, or the pager for long results."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Generator
from typing import IO

# If neither $PAGER nor one of these exists, nothing is paged.
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
        # A stream used in tests has no underlying byte stream.
        buffer = getattr(self._stream, "buffer", None)
        if buffer is None:
            self._stream.write(data.decode(errors="replace"))
        else:
            self._stream.flush()
            buffer.write(data)

    def flush(self) -> None:
        self._stream.flush()

    def close(self) -> None:
        """Close, and wait for the command. The standard output stays open."""
        if self.is_standard:
            self._stream.flush()
            return
        with contextlib.suppress(BrokenPipeError):  # the reader has closed the pipe
            self._stream.close()
        if self._process is not None:
            self._process.wait()


def standard_output() -> OutputTarget:
    if hasattr(sys.stdout, "reconfigure"):
        # A character that the terminal's encoding lacks must not stop the output.
        sys.stdout.reconfigure(errors="replace")  # pyright: ignore[reportAttributeAccessIssue]
    return OutputTarget(sys.stdout)


def file_trouble(error: OSError) -> str:
    """The problem with a file, worded as other commands do."""
    if not error.strerror:
        return str(error)
    return f"{error.filename}: {error.strerror}" if error.filename else error.strerror


def opened(name: str) -> OutputTarget:
    """Open a file, or a command if the name begins with `|`."""
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
    """The pager that the user chose, otherwise an installed one; None: no paging."""
    chosen = os.environ.get("TIDEMILL_PAGER", os.environ.get("PSQL_PAGER", os.environ.get("PAGER")))
    if chosen is not None:
        return chosen.strip() or None
    return next((name for name in _PAGERS if shutil.which(name)), None)


@contextlib.contextmanager
def paged(command: str) -> Generator[OutputTarget]:
    """The pager for one result. It handles Ctrl-C meanwhile."""
    # Wide tables are cut, not folded; -X leaves the last screen visible.
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
    # Not earlier: the pager would inherit the ignored Ctrl-C.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield target
    finally:
        target.close()
        signal.signal(signal.SIGINT, before)


def screen_size() -> tuple[int, int]:
    """The columns and lines of the terminal."""
    size = shutil.get_terminal_size()
    return size.columns, size.lines
