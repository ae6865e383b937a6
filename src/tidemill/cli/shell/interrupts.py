"""Ctrl-C as something to look at and to wait for, instead of an exception in the middle of anything."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Generator
from types import FrameType


class Interrupts:
    """Within `caught()` Ctrl-C sets `wanted` and makes `fd` readable; outside it is Python's own."""

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
        """For one statement, or whatever else must not be torn. Nests."""
        if threading.current_thread() is not threading.main_thread():  # only that one may have handlers
            yield
            return
        before = signal.signal(signal.SIGINT, self._handle)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def take(self) -> bool:
        """Whether it was pressed since it was last asked."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._read, 1024)
        wanted, self.wanted = self.wanted, False
        return wanted

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        self.wanted = True
        # A full pipe is readable already.
        with contextlib.suppress(BlockingIOError):
            os.write(self._write, b"!")
