"""Ctrl-C as a flag to check and a descriptor to wait for, instead of an exception at any point."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Generator
from types import FrameType


class Interrupts:
    """Within `caught()` Ctrl-C sets `wanted` and makes `fd` readable; outside it Python's handler applies."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self.wanted = False

    @property
    def fd(self) -> int:
        return self._read

    def close(self) -> None:
        os.close(self._read)
        os.close(self._write)

    @contextlib.contextmanager
    def caught(self) -> Generator[None]:
        """Catch Ctrl-C during one statement, or any work that must not be interrupted. Nests."""
        if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
            yield
            return
        before = signal.signal(signal.SIGINT, self._handle)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def take(self) -> bool:
        """Whether Ctrl-C was pressed since the last call."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._read, 1024)
        wanted, self.wanted = self.wanted, False
        return wanted

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        self.wanted = True
        # A full pipe is already readable.
        with contextlib.suppress(BlockingIOError):
            os.write(self._write, b"!")
