"""Recent updates: the last read of a shard's new updates, shared by its followers.

Created by `Shard`, used by `Listen`. A commit wakes all followers of the shard, and all need the same
updates. The first follower reads them, and the others get the same table. With only one listen, nothing is
kept.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import TypeAlias

import pyarrow as pa

# The updates, and the frontier behind them (None at the end of the shard).
Span: TypeAlias = tuple[pa.Table, int | None]

# Limit per shard: spans of some seconds, for late followers. Each follower reads a larger span itself, at its
# own speed.
MAX_SPANS = 8
MAX_BYTES = 16 << 20


class _Entry:
    def __init__(self) -> None:
        self.ready = threading.Event()
        # None when it could not be read.
        self.span: Span | None = None


class Recent:
    """Thread-safe."""

    def __init__(self) -> None:
        # Guards all below.
        self._lock = threading.Lock()
        self._listens: set[object] = set()
        # By the start of the span (and everything else that distinguishes it); the oldest first.
        self._entries: dict[Hashable, _Entry] = {}

    def join(self, listen: object) -> None:
        with self._lock:
            self._listens.add(listen)

    def leave(self, listen: object) -> None:
        """Idempotent."""
        with self._lock:
            self._listens.discard(listen)
            if len(self._listens) <= 1:
                self._entries.clear()

    def get(self, key: Hashable, read: Callable[[], Span]) -> Span:
        """The span at `key`. The first caller reads it, while the others wait."""
        with self._lock:
            if len(self._listens) <= 1:
                entry, first = None, True
            else:
                entry = self._entries.get(key)
                first = entry is None
                if entry is None:
                    entry = self._entries[key] = _Entry()
        if entry is None:
            return read()
        if not first:
            entry.ready.wait()
            return entry.span or read()
        try:
            span = entry.span = read()
        finally:
            entry.ready.set()
            self._trim(key)
        return span

    def _trim(self, key: Hashable) -> None:
        """Drop failed reads, large spans, and the oldest of too many."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None and (entry.span is None or entry.span[0].nbytes > MAX_BYTES):
                del self._entries[key]
            sizes = [e.span[0].nbytes if e.span is not None else 0 for e in self._entries.values()]
            for old in list(self._entries):
                if len(sizes) <= MAX_SPANS and sum(sizes) <= MAX_BYTES:
                    break
                del self._entries[old]
                sizes.pop(0)
