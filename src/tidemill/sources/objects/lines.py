"""Lines of a range of bytes, by columns.

A line belongs to the range in which it begins, so an object can be split anywhere. Lines end with LF or CR
LF; the last one of an object may end with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidemill.decode.contract import MAX_MESSAGE_BYTES

_LF, _CR = 10, 13


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines without their ends, and where each begins."""

    values: pa.Array
    offsets: np.ndarray

    def slice(self, start: int, count: int) -> Lines:
        return Lines(self.values.slice(start, count), self.offsets[start : start + count])


@dataclass(frozen=True, slots=True)
class Broken:
    """Something that cannot be read, where it begins, and why."""

    offset: int
    why: str


# The bytes [lower, upper) of an object, chunk by chunk.
Stream = Callable[[int, int], Iterable[bytes]]
# What is read behind the end of a range, for the line that lies across it.
_ACROSS = 256 << 10


def ranged(stream: Stream, lower: int, upper: int, size: int) -> Iterator[Lines | Broken]:
    """The lines that begin in [lower, upper), of an object of `size` bytes."""
    begin = max(0, lower - 1)
    splitter = _Splitter(begin, upper, skip=lower > 0)
    for data in stream(begin, upper):
        yield from splitter.add(data)
    at = upper
    while at < size and not splitter.done:
        for data in stream(at, min(size, at + _ACROSS)):
            yield from splitter.add(data)
        at += _ACROSS
    yield from splitter.end()


def streamed(chunks: Iterable[bytes]) -> Iterator[Lines | Broken]:
    """All lines of a stream. If it breaks off with an error, its last line is not complete and is none."""
    splitter = _Splitter(0, None, skip=False)
    for data in chunks:
        yield from splitter.add(data)
    yield from splitter.end()


class _Splitter:
    """Cuts chunks into lines. `skip`: the first line began before the range."""

    def __init__(self, at: int, upper: int | None, *, skip: bool) -> None:
        self._at = at  # where the held bytes begin
        self._held = b""
        self._skip = skip
        self._long: int | None = None  # where a line began that is too long
        self._upper = upper
        self.done = False

    def add(self, data: bytes) -> Iterator[Lines | Broken]:
        if self.done:
            return
        last = data.rfind(b"\n")
        if last < 0:
            self._hold(data)
            return
        block = self._held + data[: last + 1] if self._held else data[: last + 1]
        rest = data[last + 1 :]
        begin = self._at
        self._at, self._held = begin + len(block), b""
        if self._skip or self._long is not None:
            first = block.find(b"\n") + 1
            if self._long is not None:
                yield Broken(self._long, f"a line of more than {MAX_MESSAGE_BYTES} bytes")
            self._skip, self._long = False, None
            block, begin = block[first:], begin + first
        if block:
            yield from self._cut(block, begin)
        if self._upper is not None and self._at >= self._upper:
            self.done = True
        else:
            self._hold(rest)

    def _hold(self, data: bytes) -> None:
        self._held = self._held + data if self._held else data
        if self._skip or self._long is not None:
            # It is of no use.
            self._at, self._held = self._at + len(self._held), b""
            self.done = self._upper is not None and self._at >= self._upper
        elif len(self._held) > MAX_MESSAGE_BYTES:
            self._long = self._at
            self._at, self._held = self._at + len(self._held), b""

    def end(self) -> Iterator[Lines | Broken]:
        if self._long is not None:
            yield Broken(self._long, f"a line of more than {MAX_MESSAGE_BYTES} bytes")
        elif self._held and not (self._skip or self.done):
            yield from self._cut(self._held + b"\n", self._at)

    def _cut(self, block: bytes, begin: int) -> Iterator[Lines]:
        octets = np.frombuffer(block, np.uint8)
        ends = np.flatnonzero(octets == _LF)
        starts = np.empty_like(ends)
        starts[0] = 0
        starts[1:] = ends[:-1] + 1
        if self._upper is not None and begin + len(block) > self._upper:
            # Only those that begin in the range.
            count = int(np.searchsorted(starts, self._upper - begin))
            if count < len(starts):
                self.done = True
                starts, ends = starts[:count], ends[:count]
                if not count:
                    return
                octets = octets[: int(ends[-1]) + 1]
        keep = np.ones(len(octets), np.bool_)
        keep[ends] = False
        returns = (ends > starts) & (octets[ends - 1] == _CR)
        if bool(returns.any()):
            keep[ends[returns] - 1] = False
        sizes = np.zeros(len(ends) + 1, np.int32)
        np.cumsum(ends - starts - returns, out=sizes[1:])
        data = pa.py_buffer(octets[keep])
        values = pa.Array.from_buffers(pa.binary(), len(ends), [None, pa.py_buffer(sizes), data])
        yield Lines(values, starts.astype(np.int64) + begin)
