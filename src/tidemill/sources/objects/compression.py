"""Compressed objects: gzip and zstd, by the end of a name or by an option."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa

from tidemill.sources.objects.store import CHUNK_BYTES

AUTO, NONE, GZIP, ZSTD = "auto", "none", "gzip", "zstd"
COMPRESSIONS = (AUTO, NONE, GZIP, ZSTD)
_BY_END = {".gz": GZIP, ".gzip": GZIP, ".zst": ZSTD, ".zstd": ZSTD}


class Corrupt(Exception):
    """An object's contents are not what its format is."""


def compression_of(chosen: str, key: str) -> str:
    """How an object is compressed: as the option says, or (AUTO) as its name does."""
    if chosen != AUTO:
        return chosen
    return next((c for end, c in _BY_END.items() if key.lower().endswith(end)), NONE)


class _Chunks(io.RawIOBase):
    """Chunks as a file. What is wrong with reading them is not wrong with the object."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._held = memoryview(b"")
        self.failed: Exception | None = None

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        while not self._held:
            try:
                found = next(self._chunks, None)
            except Exception as e:
                self.failed = e
                raise
            if found is None:
                return b""
            self._held = memoryview(found)
        taken = self._held if size < 0 else self._held[:size]
        self._held = self._held[len(taken) :]
        return bytes(taken)


# How much is expanded at once, and, since an expansion that fails gives nothing of its step, in which steps
# the end of a stream that breaks off is found.
_STEPS = (CHUNK_BYTES, 64 << 10, 1 << 10, 16, 1)


def expanded(stream: Callable[[], Iterable[bytes]], compression: str) -> Iterator[bytes]:
    """The contents, chunk by chunk, as far as they can be read; behind that raises Corrupt. A stream that
    breaks off is read again from its beginning."""
    if compression == NONE:
        yield from stream()
        return
    done, why = 0, ""
    for step in _STEPS:
        file = _Chunks(stream())
        try:
            with pa.CompressedInputStream(pa.PythonFile(file, mode="r"), compression) as found:
                known = 0
                while known < done and (data := found.read(min(CHUNK_BYTES, done - known))):
                    known += len(data)
                while data := found.read(step):
                    done += len(data)
                    yield data
            return
        except (OSError, pa.ArrowInvalid) as e:
            if file.failed is not None:
                raise file.failed from None
            why = str(e).splitlines()[0]
    raise Corrupt(f"its {compression} stream breaks off: {why}")
