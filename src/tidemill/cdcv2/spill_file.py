"""Spill file: numbered pieces of bytes on disk, in one unlinked file.

Called by `RowStash`. Only one file is open, for any number of pieces (two while it is rewritten), and the
process leaves nothing behind, however it ends. Promises: a piece exists from the `put` that returned its
number until it is freed. A call that raises has changed nothing.
"""

from __future__ import annotations

import os
import tempfile
from typing import IO

from tidemill.cdcv2.problems import SpillFailed

# The unused bytes after which the rest is copied into a new file, and the old file is closed. So the file is
# never larger than this plus twice its contents.
MAX_DEAD_BYTES = 64 << 20


class SpillFile:
    def __init__(self, folder: str | None) -> None:
        self._folder = folder
        # Opened with the first piece.
        self._file: IO[bytes] | None = None
        # The start and the length of each piece, by number.
        self._pieces: dict[int, tuple[int, int]] = {}
        self._next = 0
        # The end of the last piece; and the number of used bytes.
        self._end = 0
        self._live = 0

    def put(self, data: bytes) -> int:
        """Raises SpillFailed."""
        try:
            if self._file is None:
                self._file = _opened(self._folder)
            self._make_room()
            _write(self._file.fileno(), data, self._end)
        except OSError as e:
            raise SpillFailed.of(e) from e
        number, self._next = self._next, self._next + 1
        self._pieces[number] = (self._end, len(data))
        self._end += len(data)
        self._live += len(data)
        return number

    def get(self, number: int) -> bytes:
        """Raises SpillFailed."""
        assert self._file is not None
        try:
            return _read(self._file.fileno(), *self._pieces[number])
        except OSError as e:
            raise SpillFailed.of(e) from e

    def free(self, number: int) -> None:
        self._live -= self._pieces.pop(number)[1]
        if not self._pieces and self._file is not None:
            self._file.close()
            self._file, self._end = None, 0

    def _make_room(self) -> None:
        """Copies the used pieces into a new file, if most of the file is unused."""
        old = self._file
        if old is None or self._end - self._live <= max(self._live, MAX_DEAD_BYTES):
            return
        new = _opened(self._folder)
        places: dict[int, tuple[int, int]] = {}
        end = 0
        try:
            for number, (start, size) in self._pieces.items():
                _write(new.fileno(), _read(old.fileno(), start, size), end)
                places[number] = (end, size)
                end += size
        except BaseException:
            new.close()
            raise
        self._file, self._pieces, self._end = new, places, end
        old.close()


def _opened(folder: str | None) -> IO[bytes]:
    return tempfile.TemporaryFile(prefix="tidemill-stash-", dir=folder, buffering=0)


def _write(handle: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(handle, view, at)
        view, at = view[written:], at + written


def _read(handle: int, start: int, size: int) -> bytes:
    parts: list[bytes] = []
    while size:
        part = os.pread(handle, size, start)
        if not part:
            raise OSError("the file of stashed updates has lost its end")
        parts.append(part)
        start, size = start + len(part), size - len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)
