"""A store that goes wrong on demand: faults as data.

`FlakyBlobs(inner)` passes everything on, but for the puts of log entries, each of which takes the next fault
from `faults` (none left: it works).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import pyarrow as pa

from tidemill.persist.blob import BlobExists, BlobFailed, BlobInfo, Blobs, BlobUnknown


class Fault(Enum):
    FINE = "done, and said so"
    LOST_ANSWER = "done, but nobody said so"
    LOST_REQUEST = "not done, and nobody said so"
    LATE = "done a moment later, when somebody else asks; nobody said so"
    ECHO = "done, then refused as taken: the store's client repeated the request by itself"
    FAILED = "not done, and said so"


class FlakyBlobs:
    """See the module."""

    def __init__(self, inner: Blobs) -> None:
        self.inner = inner
        self.faults: list[Fault] = []
        # Reads fail while it is set: the store is away.
        self.away = False
        # Puts that arrive later (`arrive`).
        self.late: list[tuple[str, bytes]] = []
        self.puts = 0

    def arrive(self) -> None:
        for path, data in self.late:
            try:
                self.inner.put_if_absent(path, data)
            except BlobExists:
                pass
        self.late.clear()

    @property
    def url(self) -> str:
        return self.inner.url

    @property
    def overlap(self) -> int:
        return self.inner.overlap

    def put_if_absent(self, path: str, data: bytes) -> None:
        self.puts += 1
        fault = self.faults.pop(0) if self.faults else Fault.FINE
        if fault is Fault.FAILED:
            raise BlobFailed("not done", hint="try later")
        if fault is Fault.LOST_REQUEST:
            raise BlobUnknown("no answer")
        if fault is Fault.LATE:
            self.late.append((path, data))
            raise BlobUnknown("no answer")
        self.inner.put_if_absent(path, data)
        if fault is Fault.LOST_ANSWER:
            raise BlobUnknown("no answer")
        if fault is Fault.ECHO:
            raise BlobExists("taken")

    def _check(self) -> None:
        if self.away:
            raise BlobFailed("the store is away")

    def put(self, path: str, data: bytes | memoryview | pa.Buffer) -> None:
        self.inner.put(path, data)

    def get(self, path: str) -> bytes:
        self._check()
        return self.inner.get(path)

    def get_many(self, paths: Sequence[str]) -> list[bytes]:
        self._check()
        return self.inner.get_many(paths)

    def open(self, path: str, expected: int) -> pa.NativeFile:
        self._check()
        return self.inner.open(path, expected)

    def size(self, path: str) -> int:
        return self.inner.size(path)

    def list(self, prefix: str) -> list[BlobInfo]:
        return self.inner.list(prefix)

    def folders(self, prefix: str) -> list[str]:
        return self.inner.folders(prefix)

    def delete(self, paths: Sequence[str]) -> None:
        self.inner.delete(paths)

    def delete_prefix(self, prefix: str) -> None:
        self.inner.delete_prefix(prefix)

    def tidy(self, prefix: str, older_than: float) -> int:
        return self.inner.tidy(prefix, older_than)

    def sync(self, paths: Sequence[str]) -> None:
        self.inner.sync(paths)

    def table_uri(self, path: str) -> tuple[str, dict[str, str]]:
        return self.inner.table_uri(path)
