"""The shell run within the test, and the shell in a terminal of its own."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass

import pytest

from tidemill.cli.app import app
from tidemill.errors import TidemillError

# Nothing here takes a second on an idle machine; the tests run on busy ones.
PATIENCE = 300.0
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\x1b[=>]|\r")


@dataclass(frozen=True)
class Ran:
    status: int
    out: str
    err: str


def ran(*args: str, stdin: str = "") -> Ran:
    """`tidemill sql ...` without a terminal, as the console script would end."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", io.StringIO(stdin))
        patch.setattr(sys, "stdout", out)
        patch.setattr(sys, "stderr", err)
        patch.setattr(sys, "argv", ["tidemill", "sql", *args])
        try:
            status = app(["sql", *args], standalone_mode=False)
        except TidemillError as e:
            print(f"tidemill: {e}", file=err)
            status = 2
    return Ran(int(status or 0), out.getvalue(), err.getvalue())


class Typed:
    """A shell in a terminal. Each `until` looks at what came after what the one before it found; escape
    sequences are not looked at."""

    def __init__(self, fd: int, process: subprocess.Popen[bytes]) -> None:
        self._fd = fd
        self._process = process
        # All that came, and how much of its text was looked at.
        self._raw = b""
        self._at = 0

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def enter(self, text: str) -> None:
        self.type(text + "\r")

    def shows(self, wanted: str, seconds: float) -> bool:
        """Whether it comes within this time; for what may also come later."""
        deadline = time.monotonic() + seconds
        while wanted not in self._new() and time.monotonic() < deadline:
            self._more(0.1)
        return wanted in self._new()

    def _new(self) -> str:
        return _ESCAPES.sub("", self._raw.decode(errors="replace"))[self._at :]

    def _more(self, seconds: float) -> bool:
        """Take what comes within this time; False where the other side closed."""
        if select.select([self._fd], [], [], seconds)[0]:
            try:
                self._raw += os.read(self._fd, 1 << 16)
            except OSError:
                return False
        return True

    def until(self, *wanted: str) -> str:
        """Wait until the screen showed one of these; what it showed up to its end."""
        deadline = time.monotonic() + PATIENCE
        while True:
            seen = self._new()
            ends = [seen.index(text) + len(text) for text in wanted if text in seen]
            if ends:
                self._at += min(ends)
                return seen[: min(ends)]
            assert time.monotonic() < deadline, f"no {wanted} in:\n{seen}"
            assert self._more(1.0), f"no {wanted}, and the shell ended:\n{seen}"

    def ended(self) -> int:
        """The exit status; what it still shows is read meanwhile."""
        deadline = time.monotonic() + PATIENCE
        while self._process.poll() is None:
            assert time.monotonic() < deadline, "the shell does not end"
            with contextlib.suppress(OSError):
                if select.select([self._fd], [], [], 0.1)[0]:
                    os.read(self._fd, 1 << 16)
        return self._process.returncode


@contextlib.contextmanager
def typed(*args: str, env: Mapping[str, str] | None = None) -> Generator[Typed]:
    """`tidemill sql ...` in a terminal of 100 columns and 40 lines."""
    here, there = pty.openpty()
    fcntl.ioctl(there, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
    environ = {**os.environ, "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1", "PAGER": "cat", "LANG": "C.UTF-8"}
    process = subprocess.Popen(
        [sys.executable, "-m", "tidemill.cli", "sql", *args],
        stdin=there,
        stdout=there,
        stderr=there,
        env={**environ, **(env or {})},
        # A session with this terminal: Ctrl-C on it becomes a signal.
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(there)
    try:
        yield Typed(here, process)
    finally:
        process.kill()
        process.wait()
        os.close(here)
