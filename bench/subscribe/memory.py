"""The memory of a server with all that belongs to it: Spark's JVM and the workers."""

from __future__ import annotations

import threading

import psutil


class Family:
    """Watched until `grown_mb`."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self.before = self._size()
        self.most = self.before
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _size(self) -> int:
        total = 0
        for process in [self._process, *self._process.children(recursive=True)]:
            try:
                total += process.memory_info().rss
            except psutil.NoSuchProcess:
                continue
        return total

    def _watch(self) -> None:
        while not self._stop.wait(0.1):
            self.most = max(self.most, self._size())

    def grown_mb(self) -> float:
        """By how much it was ever larger than at the start."""
        self._stop.set()
        self._thread.join()
        return (self.most - self.before) / 1e6
