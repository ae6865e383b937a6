"""The check whether a JVM that ran out of memory is still usable.

`SparkHost` keeps one for each JVM whose tasks run in it. The request that exceeds the heap is nearly always
the task that collects too much. It fails, its memory is freed, and its client receives the error 53200. But
the thread that gets no memory may also be one that all others wait for. So after each OutOfMemoryError an
empty job must finish in time. A Spark thread that died of the error is detected in the JVM's output. If
either check fails, the JVM is killed. This is detected and reported as any other death, and a new JVM starts:
slow, but no caller waits without end.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

log = logging.getLogger("tidemill.query")

# The time limit of the check job: meanwhile other jobs may hold the cores and garbage collection the heap.
PROBE_SECONDS = 60.0
LOOK_SECONDS = 1.0
_DIED = b"Exception in thread"
_MEMORY = b"OutOfMemoryError"


class Exhausted:
    """`probe` runs a job (and raises what it raises); `give_up` ends the JVM, with a reason."""

    def __init__(self, printed: Path, probe: Callable[[], None], give_up: Callable[[str], None]) -> None:
        self._printed = printed
        self._probe = probe
        self._give_up = give_up
        self._read = 0
        self._probing = threading.Lock()

    def met(self) -> None:
        """A statement ran out of heap. Returns at once."""
        if self._probing.acquire(blocking=False):
            threading.Thread(target=self._check, name="spark-probe", daemon=True).start()

    def watch(self, over: Callable[[], bool], pause: Callable[[float], object]) -> None:
        """Read the JVM's output until it ends."""
        while not over():
            pause(LOOK_SECONDS)
            if self.died():
                self._give_up("one of its threads ran out of memory")
                return

    def died(self) -> bool:
        """Whether the JVM's output since the last call shows a thread that died of an OutOfMemoryError."""
        try:
            if self._printed.stat().st_size <= self._read:
                return False
            with self._printed.open("rb") as file:
                # From the start of a line that was half there.
                file.seek(self._read)
                text = file.read()
        except OSError:
            return False
        whole = text.rfind(b"\n") + 1
        self._read += whole
        return any(_DIED in line and _MEMORY in line for line in text[:whole].split(b"\n"))

    def _check(self) -> None:
        done = threading.Event()

        def run() -> None:
            try:
                self._probe()
                done.set()
            except Exception as e:
                log.info("after a statement ran out of memory, a job failed: %s", e)

        try:
            threading.Thread(target=run, name="spark-probe-job", daemon=True).start()
            if not done.wait(PROBE_SECONDS):
                self._give_up("it ran out of memory, and did not recover")
        finally:
            self._probing.release()
